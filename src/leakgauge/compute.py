"""Knobs that change time and memory, and the budget that ends a run."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from leakgauge.errors import InputError, require


@dataclass(frozen=True)
class Compute:
    """Where and how to compute; never what. Threads are explicit because two OpenMP threads on a busy
    two-core machine are over ten times slower than one on small networks.

    Attributes:
        device: a torch device name.
        dtype: working precision of attacks that do not ask for another.
        threads: intra-op threads that `apply` sets.
        chunk: restarts evaluated in one vmap; `None` for all of them.
        capture: steps of a search after which the next one is recorded and then repeated without Python and autograd
            (`leakgauge.attacks.matching.captured`), the same numbers in less time. Recording takes as long as some
            hundreds of steps of a small network save; `None` never records.
    """

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    threads: int = 1
    chunk: int | None = None
    capture: int | None = 300

    def __post_init__(self) -> None:
        try:
            torch.empty((), device=self.device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                "device", f"'{self.device}' cannot be used ({reason})", "give cpu, or a device of this machine"
            ) from error
        require(self.threads > 0, "threads", f"is {self.threads}", "give a positive number")
        require(self.chunk is None or self.chunk > 0, "chunk", f"is {self.chunk}", "give a positive number")
        right = self.capture is None or self.capture >= 0
        require(right, "capture", f"is {self.capture}", "give a number of steps, or none")

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
    attack costs one a local step. A limit in seconds makes results depend on the machine.
    """

    gradient_evaluations: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        require(
            self.gradient_evaluations is None or self.gradient_evaluations > 0,
            "budget.gradient_evaluations",
            f"is {self.gradient_evaluations}",
            "give a positive number",
        )
        require(
            self.seconds is None or self.seconds > 0, "budget.seconds", f"is {self.seconds}", "give a positive number"
        )
