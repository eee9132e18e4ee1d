"""A second device without one: tensors that say `meta` and hold their numbers on the CPU.

Under `elsewhere()`, whatever is made on the device `meta`, or moved there, computes as on the CPU, to the last bit, and
keeps the rules of a GPU: tensors of two devices do not meet (numbers without a dimension, indices and copies do), NumPy
does not see them, and a generator of the CPU does not draw there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

THERE = torch.device("meta")
MOVES = {"aten::copy_", "aten::_to_copy", "aten::index.Tensor", "aten::index_put", "aten::index_put_"}
MOVES |= {"aten::_index_put_impl_", "aten::index"}
"""Operations that take tensors of both sides, as they do between a CPU and a GPU."""


class Away(Tensor):
    """A tensor elsewhere."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Away:
        made: Away = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=THERE,
            requires_grad=False,
        )
        made.held = held
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Away({self.held!r})"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        return there(func, tuple(args), dict(kwargs or {}))


def there(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operation, if a GPU would do it."""
    tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)]
    away = [t for t in tensors if isinstance(t, Away)]
    plain = [t for t in tensors if not isinstance(t, Away) and t.ndim > 0]
    name = func._schema.name
    if away and plain and name not in MOVES:
        raise RuntimeError(f"Expected all tensors to be on the same device: {name} of {len(plain)} on cpu")
    asked = kwargs.get("device")
    asked = None if asked is None else torch.device(asked)
    goes = bool(away) if asked is None else asked == THERE
    generator = kwargs.get("generator")
    if goes and generator is not None and generator.device != THERE:
        raise RuntimeError(f"Expected a generator of another device than {generator.device}: {name}")
    if asked == THERE:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if name == "aten::copy_" and not isinstance(args[0], Away):
        goes = False
    here = tree_map(lambda t: t.held if isinstance(t, Away) else t, (args, kwargs))
    out = func(*here[0], **here[1])
    if goes:
        out = tree_map(lambda t: Away(t) if isinstance(t, Tensor) else t, out)
    return return_and_correct_aliasing(func, args, kwargs, out) if away and goes else out


class _Factories(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        return there(func, tuple(args), dict(kwargs or {}))


class _Constants(TorchFunctionMode):
    """What makes a tensor of Python numbers, or numbers of a tensor, without passing by the dispatcher."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and torch.device(given.get("device") or "cpu") == THERE:
            return func(*args, **{**given, "device": "cpu"}).to(THERE)
        if func is Tensor.new_tensor and args[0].device == THERE:
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype, **given}).to(THERE)
        if func is Tensor.tolist and args[0].device == THERE:
            return args[0].detach().cpu().tolist()
        return func(*args, **given)


@contextmanager
def elsewhere() -> Iterator[str]:
    """The device's name, while it is there."""
    with _Constants(), _Factories():
        yield str(THERE)
