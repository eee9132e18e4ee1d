"""Named tensors, and how exact the numbers of an update are by the float types they went through."""

import hashlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

Tensors = dict[str, Tensor]  # parameter name to tensor, in the order of ``module.named_parameters()``


def map_tensors(function: Callable[..., Tensor], *trees: Mapping[str, Tensor]) -> Tensors:
    """Applies `function` name by name; the trees share their names."""
    return {name: function(*(tree[name] for tree in trees)) for name in trees[0]}


def weighted_mean(counts: Sequence[int], trees: Sequence[Mapping[str, Tensor]]) -> Tensors:
    """Mean name by name, weighted by counts; of what is no real number the first."""

    def mean(*values: Tensor) -> Tensor:
        shares = torch.stack([n / sum(counts) * value for n, value in zip(counts, values, strict=True)])
        return shares.sum(0) if values[0].is_floating_point() else values[0]

    return map_tensors(mean, *trees)


def dense(tensors: Mapping[str, Tensor]) -> Tensors:
    """With zeros where rows of a sparse gradient are left out, as of an embedding with ``sparse=True``; of quantised
    tensors the numbers that they stand for."""
    whole = map_tensors(lambda t: t if t.layout is torch.strided else t.to_dense(), tensors)
    return map_tensors(lambda t: t.dequantize() if t.is_quantized else t, whole)


def apart(tensors: Mapping[str, Tensor]) -> Tensors:
    """Contiguous, each in memory of its own, as files have them: heads are the embedding, gradients views of one."""
    held: dict[int, str] = {}
    alone = {k for k, t in tensors.items() if held.setdefault(t.untyped_storage().data_ptr(), k) == k}
    whole = torch.contiguous_format
    return {k: t.contiguous() if k in alone else t.clone(memory_format=whole) for k, t in tensors.items()}


@contextmanager
def forward_mode() -> Iterator[None]:
    """Around forward derivatives: torch compiles a helper of theirs, once a process, with a function it deprecates."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.script", category=DeprecationWarning)
        yield


ONCE = {
    "_checkpoint_without_reentrant_generator": lambda *_args, **_kwargs: iter((None,)),
    "CheckpointFunction": SimpleNamespace(apply=lambda function, _preserve, *args: function(*args)),
}
"""Run a block as it is, in place of what ``torch.utils.checkpoint`` calls around it, of the newer and the older kind.
Whoever has imported ``checkpoint`` by name calls these two of its module."""


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Runs attention by its plain formula, whatever calls it; both switches are afterwards as they were.

    The fused kernels and the fast path of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` have no second
    derivative and no forward one. Blocks that are computed twice to save memory (`torch.utils.checkpoint`) are computed
    once: what they do has no derivative that can be differentiated. Compiled modules run as they were written.
    """
    fast, checkpointing = torch.backends.mha.get_fastpath_enabled(), vars(torch.utils.checkpoint)
    twice = {name: checkpointing[name] for name in ONCE}
    stance: Any = getattr(torch.compiler, "set_stance", nullcontext)  # torch 2.6
    compiled = "torch._dynamo" in sys.modules
    torch.backends.mha.set_fastpath_enabled(False)
    checkpointing.update(ONCE)
    try:
        with sdpa_kernel(SDPBackend.MATH), stance("force_eager") if compiled else nullcontext():
            yield
    finally:
        checkpointing.update(twice)
        torch.backends.mha.set_fastpath_enabled(fast)


def inner(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """Sum over all entries of a·b, a scalar."""
    return torch.stack([(a[name] * b[name]).sum() for name in a]).sum()


def squared_norm(a: Mapping[str, Tensor]) -> Tensor:
    """Squared Euclidean norm over all tensors together, a scalar."""
    return inner(a, a)


def entries(a: Mapping[str, Tensor]) -> int:
    """Number of scalars in all tensors together."""
    return sum(tensor.numel() for tensor in a.values())


def differences(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """How names and shapes of given tensors differ from a model's, a clause each; empty where they agree."""

    def shape(name: str) -> str:
        want, got = tuple(expected[name].shape), tuple(given[name].shape)
        return f"shape of {name} {got} for {want}" + (", transposed" if len(got) > 1 and got == want[::-1] else "")

    odd = [name for name in expected if name in given and given[name].shape != expected[name].shape]
    missing = [f"missing {name}" for name in expected if name not in given]
    return missing + [f"unknown {name}" for name in given if name not in expected] + [shape(name) for name in odd]


def fingerprint(*tensors: Tensor) -> str:
    """Hash of inputs and labels, bit by bit and in order: other data of the same size have another one."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


WRAPPERS = ("module.", "_orig_mod.")  # what data-parallel and compiled modules put before every name


def _bare(names: Iterable[str]) -> dict[str, str]:
    found = {name: name for name in names}
    while prefix := next((p for p in WRAPPERS if found and all(name.startswith(p) for name in found)), ""):
        found = {name.removeprefix(prefix): whole for name, whole in found.items()}
    return found


def unwrapped(state: Mapping[str, Tensor]) -> Tensors:
    """Without the prefixes that all names share because the module was wrapped, in whatever order."""
    return {bare: state[name] for bare, name in _bare(state).items()}


def aligned(expected: Iterable[str], given: Mapping[str, Tensor]) -> Tensors:
    """Tensors under the names of a model, where they differ from these by a wrapper before all of them or by the name
    of an adapter, which PEFT leaves out of its files (``lora_A.weight`` for ``lora_A.default.weight``)."""
    names = _bare(expected)
    known = {bare.replace(".default.", "."): name for bare, name in names.items()}
    if set(names.values()) == set(given) or len(known) != len(names):
        return dict(given)
    return {known.get(bare.replace(".default.", "."), bare): tensor for bare, tensor in unwrapped(given).items()}


def cast(a: Mapping[str, Tensor], like: Tensor) -> Tensors:
    """Floating tensors in the dtype and on the device of `like`; integer ones change device only."""
    return map_tensors(lambda t: t.to(like) if t.is_floating_point() else t.to(like.device), a)


COARSE = (torch.bfloat16, torch.float16, torch.float32)  # what none of them holds without loss went through float64
BLOCK = 1 << 20  # entries that are looked at together: a tensor may fill half of the memory


def _every(tensor: Tensor, test: Callable[[Tensor], Tensor]) -> bool:
    return all(bool(test(part).all()) for part in tensor.detach().flatten().split(BLOCK))


def finite(tensor: Tensor) -> bool:
    """Whether no entry is NaN or infinite, without a mask of the tensor's size."""
    return _every(tensor, lambda part: torch.isfinite(part if part.element_size() > 1 else part.float()))


def _held(tensor: Tensor, kind: torch.dtype) -> bool:
    return _every(tensor, lambda part: part.to(kind).to(part.dtype) == part)


def fits_every_type(tensor: Tensor) -> bool:
    """Whether no entry tells the type that it came in: numbers of at most four binary digits."""

    def short(part: Tensor) -> Tensor:
        digits = part.double().frexp().mantissa * 2**4
        return digits == digits.round()

    return _every(tensor, short)


def narrowed(tensors: Tensors) -> Tensors:
    """Numbers of float32 that are kept in a wider type, as float32; others as they are."""
    single = all(_held(t, torch.float32) for t in tensors.values())
    return map_tensors(lambda t: t.float() if single and t.dtype is torch.float64 else t, tensors)


@dataclass(frozen=True)
class Wire:
    """A bound on what rounding did to a tensor: ``|sent − meant| ≤ unit · |sent| + least``, entry by entry."""

    #: half the distance from 1 to the next number: a normal number is rounded by at most that share of itself
    unit: float
    least: float  #: half the smallest subnormal number, which bounds the rounding of what lies below the normal ones
    computed: torch.dtype  #: the type that the client is taken to compute in: float64 where it sends that, else float32

    @property
    def arithmetic(self) -> float:
        """Unit roundoff of that type."""
        return torch.finfo(self.computed).eps / 2

    @staticmethod
    def through(kind: torch.dtype) -> "Wire":
        """What goes through one float type."""
        info = torch.finfo(kind)
        computed = torch.float64 if kind is torch.float64 else torch.float32
        return Wire(info.eps / 2, info.smallest_normal * info.eps / 2, computed)

    @staticmethod
    def of(*tensors: Tensor) -> "Wire":
        """The worst of several tensors, each by its values: float32 numbers in a float64 tensor are float32 numbers.

        Numbers of at most four binary digits (zero, one, a half) fit every type and do not count, but for `least`: what
        is left of numbers at the lower end of float16 has few digits too. Where several types hold all values, the
        larger of their bounds holds. What was scaled after it was rounded fits no coarse type; the bound is then too
        small, and a certificate that checks residuals against it fails.
        """
        units, leasts, exact = [], [0.0], []
        for sent in tensors:
            fits = [torch.finfo(kind) for kind in COARSE if _held(sent, kind)]
            leasts += [info.smallest_normal * info.eps / 2 for info in fits]
            if not fits_every_type(sent):
                units += [info.eps / 2 for info in fits or [torch.finfo(torch.float64)]]
                exact.append(not fits)
        unit = max(units, default=torch.finfo(torch.float32).eps / 2)
        return Wire(unit, max(leasts), torch.float64 if exact and all(exact) else torch.float32)

    def errors(self, sent: Tensor) -> Tensor:
        """The bound of every entry."""
        return self.unit * sent.abs() + self.least
