"""Knobs that change time and memory, the budget that ends a run, and the memory that a computation needs."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from leakgauge.errors import Checked, positive, refusing, require

LIMITS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)
"""A container's limit, its use, and what the kernel can give back of that. Control groups of version 2, then 1."""
CGROUP = Path("/sys/fs/cgroup")
SHARE = 0.9  # share of the free memory that a computation may take


@dataclass(frozen=True)
class Compute(Checked):
    """Where and how to compute; never what. Threads are explicit because two OpenMP threads on a busy
    two-core machine are over ten times slower than one on small networks."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32  #: working precision of attacks that do not ask for another
    threads: int = positive(1)  #: intra-op threads that `apply` sets
    chunk: int | None = positive(None)  #: restarts evaluated in one vmap; `None` for all of them.
    #: most bytes that a step of a search may take beside what is there. Restarts are evaluated in chunks that fit;
    #: where not even one does, the attack fails and names the bytes. `None`: nine tenths of what the device has free
    #: when the search begins.
    memory: int | None = positive(None, "number of bytes")

    def __post_init__(self) -> None:
        problem, hint = f"'{self.device}' cannot be used", "give cpu, or a device of this machine"
        with refusing("device", problem, hint, RuntimeError, AssertionError):
            torch.empty((), device=self.device)
        super().__post_init__()

    def apply(self) -> None:
        """Sets threads, passive waiting and flush-to-zero for this process. Called by entry points only."""
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        torch.set_num_threads(self.threads)
        torch.set_flush_denormal(True)

    def like(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """An empty tensor on the device, in `dtype` or the working precision."""
        return torch.empty((), device=self.device, dtype=dtype or self.dtype)


@dataclass(frozen=True)
class Budget:
    """What a run may spend over all its restarts; `None` is unlimited.

    A gradient evaluation is one gradient of the loss over the candidate batch; a candidate of a FedAvg
    attack costs one a local step. A limit in seconds makes results depend on the machine."""

    gradient_evaluations: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, most in vars(self).items():
            require(most is None or most > 0, f"budget.{name}", f"is {most}", "give a positive number")


class Held(TorchDispatchMode):
    """Bytes of the memory that operations made and something still holds, and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._there: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak: int = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        before = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        out = func(*args, **dict(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, Tensor) and t.untyped_storage()._cdata not in before:
                storage = t.untyped_storage()
                self._there[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._there = {k: (ref, size) for k, (ref, size) in self._there.items() if not ref.expired()}
        self.peak = max(self.peak, sum(size for _, size in self._there.values()))
        return out


def needed(work: Callable[[Callable[[Tensor], Tensor]], object]) -> int | None:
    """Most bytes that tensors made by `work` take at one time, found with tensors that have shapes and no data; `None`
    where it looks at values. It is given a function that takes the data out of a tensor, for its inputs."""
    held = Held()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as fake, held:
            work(fake.from_tensor)
    except (RuntimeError, TypeError, ValueError):  # torch's words for a value that is asked for
        return None
    return held.peak


def available(device: str) -> int:
    """Bytes that may be taken now: `SHARE` of the free memory of the device, or of the container's limit."""
    if torch.device(device).type == "cuda":
        return int(SHARE * torch.cuda.mem_get_info(torch.device(device))[0])
    free = psutil.virtual_memory().available
    for limit, used, kept in LIMITS:
        try:
            left = int((CGROUP / limit).read_text()) - int((CGROUP / used).read_text())
            stat = (CGROUP / used).with_name("memory.stat").read_text()
        except (OSError, ValueError):  # no such limit, or "max"
            continue
        left += sum(int(row.split()[1]) for row in stat.splitlines() if row.split()[0] == kept)
        free = min(free, left)
    return int(SHARE * max(free, 0))


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.2g} GB"
