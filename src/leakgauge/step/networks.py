"""A network of somebody's own, made ready to be called as a pure function, and what it answers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from leakgauge.errors import FOREIGN, InputError, require, said


def own_copy(module: nn.Module) -> nn.Module:
    """A private copy whose gradients can be differentiated again: no sparse ones, nothing worked out twice.

    Raises:
        InputError: it has lazy layers, or cannot be copied.
    """
    module = unwrapped_module(module)
    _refuse_packed(module)
    lazy = any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters())
    require(not lazy, "model", "has lazy layers that have seen no example", "call it once before it is audited")
    try:
        made = copy.deepcopy(module)
    except FOREIGN as error:
        hint = "give a fresh module; torch.nn.utils.parametrizations.weight_norm can be copied, the old one cannot"
        raise InputError("model", f"cannot be copied ({said(error)})", hint) from error
    for part in made.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            part.sparse = False
        stop = getattr(part, "gradient_checkpointing_disable", None)
        if callable(stop):
            stop()
    return made


def unwrapped_module(module: nn.Module) -> nn.Module:
    """The network inside `nn.DataParallel` and its kin."""
    while isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        module = module.module
    return module


def _refuse_packed(module: nn.Module) -> None:
    """Weights of 4 or 8 bits stand for real ones that no gradient is taken of twice."""
    for name, parameter in module.named_parameters():
        if not parameter.is_floating_point() or hasattr(parameter, "quant_state"):
            kind = str(parameter.dtype).removeprefix("torch.")
            problem = f"holds packed weights ('{name}' is {kind}), of which no second derivative is taken"
            raise InputError("model", problem, "load the base in bfloat16 or float32: the adapter's update is the same")


def computing_type(module: nn.Module) -> torch.dtype:
    """The float type that a network is given its inputs in: that of its first parameter, frozen or not."""
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())


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
