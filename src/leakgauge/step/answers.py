"""What networks answer, and how numbers of several float types meet in a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from leakgauge.errors import InputError


def logits_of(answer: Any) -> Tensor:
    """The logits in what a network answers: a tensor as it is; of a mapping, dataclass or named tuple what is called
    ``logits``, and else, as of a tuple or list, the first tensor with a row an example.

    Raises:
        InputError: there is no such tensor.
    """
    found = next(tensors_of(answer), None)
    if found is None:
        problem = f"answers with a {type(answer).__name__}, which holds no tensor with a row an example"
        raise InputError("model", problem, "wrap it in a module that returns its logits, e.g. the first item")
    return found


def tensors_of(answer: Any) -> Iterator[Tensor]:
    """Tensors with a row an example, what is called ``logits`` first."""
    if isinstance(answer, Tensor):
        if answer.ndim:
            yield answer
    elif isinstance(answer, Mapping):
        yield from _within(answer.get("logits"), *answer.values())
    elif is_dataclass(answer) and not isinstance(answer, type):
        yield from _within(getattr(answer, "logits", None), *(getattr(answer, f.name) for f in fields(answer)))
    elif isinstance(answer, tuple | list):
        yield from _within(getattr(answer, "logits", None), *answer)


def _within(*parts: Any) -> Iterator[Tensor]:
    for part in parts:
        yield from tensors_of(part)


class _OneType(TorchFunctionMode):
    """Floating tensors of other types become `kind` wherever they meet one of it."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.kind = kind

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.requires_grad_:  # fine-tuning hooks ask it of an embedding's output, where a function has it
            return args[0]
        given = [*args, *(kwargs or {}).values()]
        floats = {a.dtype for a in given if isinstance(a, Tensor) and a.is_floating_point()}
        if len(floats) < 2 or self.kind not in floats or func is Tensor.to:
            return func(*args, **(kwargs or {}))

        def same(value: Any) -> Any:
            return value.to(self.kind) if isinstance(value, Tensor) and value.is_floating_point() else value

        return func(*(same(a) for a in args), **{k: same(v) for k, v in (kwargs or {}).items()})


def in_one_type(kind: torch.dtype) -> _OneType:
    """Around code of somebody's own that holds tensors, called with others of type `kind`: a weight of the classes, a
    module with buffers. In place of an error, theirs become the same type."""
    return _OneType(kind)
