"""What a node of a traced graph computes, whether it is a module, a function or a method."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn


@dataclass(frozen=True)
class Rectify:
    """ReLU."""


@dataclass(frozen=True)
class MaxPool:
    """Max-pool as torch is told: each argument one number or a pair."""

    side: Any
    stride: Any
    padding: Any
    dilation: Any
    ceil: Any

    @property
    def plain(self) -> int | None:
        """Side of the square where it equals the stride and nothing is padded or rounded up, else `None`."""
        sides = {self.side} if isinstance(self.side, int) else set(self.side)
        strides = {self.stride} if isinstance(self.stride, int) else set(self.stride or sides)
        ordinary = self.padding in (0, (0, 0)) and self.dilation in (1, (1, 1)) and not self.ceil
        return int(sides.pop()) if len(sides) == 1 and strides == sides and ordinary else None


@dataclass(frozen=True)
class Average:
    """Adaptive average pooling to an output size: one number or a pair, `None` keeps."""

    output: Any

    def target(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns that it makes of `size`."""
        rows, columns = (self.output, self.output) if isinstance(self.output, int | None) else self.output
        return (size[0] if rows is None else rows, size[1] if columns is None else columns)


@dataclass(frozen=True)
class Drop:
    """Dropout with its probability in the present mode."""

    probability: float


@dataclass(frozen=True)
class Flatten:
    """From one axis to another."""

    start: Any = 0
    end: Any = -1


@dataclass(frozen=True)
class Reshape:
    """To these sizes; a size may be a node."""

    sizes: tuple[Any, ...]


@dataclass(frozen=True)
class Nothing:
    """The identity."""


Operation = Rectify | MaxPool | Average | Drop | Flatten | Reshape | Nothing

_MAX_POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
_RELU = (F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_")


def is_size(node: fx.Node) -> bool:
    """Whether the node asks for a shape, or picks a number from one."""
    if node.op == "call_method" and node.target == "size":
        return True
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1] == "shape"
    return node.target is operator.getitem and isinstance(node.args[0], fx.Node) and is_size(node.args[0])


def of_module(module: nn.Module) -> Operation | None:
    """What a module without parameters computes; `None` where it is none of these."""
    match module:
        case nn.ReLU():
            return Rectify()
        case nn.MaxPool2d():
            return MaxPool(*(getattr(module, name) for name in _MAX_POOL))
        case nn.AdaptiveAvgPool2d():
            return Average(module.output_size)
        case nn.Dropout() | nn.Dropout2d():
            return Drop(module.p if module.training else 0.0)
        case nn.Flatten():
            return Flatten(module.start_dim, module.end_dim)
        case nn.Identity():
            return Nothing()
    return None


def of_call(node: fx.Node) -> Operation | None:
    """What a function or method call computes; `None` where it is none of these."""
    if node.target in _RELU:
        return Rectify()
    if node.target in (torch.flatten, "flatten"):
        named = dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False)) | dict(node.kwargs)
        return Flatten(named.get("start_dim", 0), named.get("end_dim", -1))
    if node.target in (torch.reshape, "reshape", "view"):
        given = node.args[1:]
        return Reshape(tuple(given[0]) if len(given) == 1 and isinstance(given[0], tuple | list) else tuple(given))
    if node.target in (F.dropout, F.dropout2d):
        named = dict(zip(("p", "training"), node.args[1:], strict=False)) | dict(node.kwargs)
        probability: Any = named.get("p", 0.5)
        return Drop(float(probability) if named.get("training", True) else 0.0)
    if node.target is F.adaptive_avg_pool2d:
        return Average((*node.args[1:], *node.kwargs.values())[0])
    # F.max_pool2d is a dispatcher without a name of its own before it is traced.
    if node.target is F.max_pool2d or getattr(node.target, "__name__", "") == "max_pool2d":
        pool: dict[str, Any] = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False}
        pool |= dict(zip(_MAX_POOL, node.args[1:], strict=False)) | dict(node.kwargs)
        return MaxPool(*(pool[name] for name in _MAX_POOL))
    return None
