"""Nodes and linear stacks of a traced network."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.proxy import TraceError

from leakgauge.errors import InputError, require
from leakgauge.task import Task


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
        pool: dict[str, object] = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False}
        pool |= dict(zip(_MAX_POOL, node.args[1:], strict=False)) | dict(node.kwargs)
        return MaxPool(*(pool[name] for name in _MAX_POOL))
    return None


FIT = "give a classifier that ends in linear layers with ReLU, sigmoid or tanh between them"

RELUS = (F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_")
SMOOTH = (torch.sigmoid, F.sigmoid, torch.tanh, F.tanh, "sigmoid", "tanh")
FLATTEN = (torch.flatten, torch.reshape, "flatten", "view", "reshape", "contiguous")
DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d)


@dataclass(frozen=True, kw_only=True)
class NetworkLayer:
    """One linear layer and what follows it.

    Attributes:
        name, weight, bias: the module and its parameters in the update; `bias` is `None` where it has none.
        inputs, outputs: units.
        relu: a ReLU follows: a unit can die.
        smooth: a sigmoid or tanh follows.
        dropout_before, dropout: probability in front of the layer (first layer only) and behind it; 0 in eval mode.
    """

    name: str
    weight: str
    bias: str | None
    inputs: int
    outputs: int
    relu: bool = False
    smooth: bool = False
    dropout_before: float = 0.0
    dropout: float = 0.0


def linear_stack(task: Task) -> tuple[NetworkLayer, ...]:
    """The linear layers that end in the logits, first one first, by following the graph back from the output.

    What lies below the first of them is not looked at, but for a dropout directly in front of it.

    Raises:
        InputError: the module cannot be traced, ends in anything else, or a layer of the stack is frozen or
            its output is used twice.
    """
    try:
        graph = fx.symbolic_trace(task.module).graph
    except (TraceError, TypeError, RuntimeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError("model", f"cannot be traced, so its layers are not known ({reason})", FIT) from error
    node = next(n for n in graph.nodes if n.op == "output").args[0]
    found: list[NetworkLayer] = []
    relu = smooth = False
    dropout = 0.0
    while isinstance(node, fx.Node) and len(node.users) == 1:
        module = task.module.get_submodule(str(node.target)) if node.op == "call_module" else None
        called = node.target if node.op in ("call_function", "call_method") else None
        if isinstance(module, nn.Linear):
            found.insert(0, _layer(task, str(node.target), module, relu=relu, smooth=smooth, dropout=dropout))
            relu, smooth, dropout = False, False, 0.0
        elif isinstance(module, nn.ReLU) or called in RELUS:
            relu = True
        elif isinstance(module, nn.Sigmoid | nn.Tanh) or called in SMOOTH:
            smooth = True
        elif (p := _dropout(node, module, called)) is not None:
            dropout = 1 - (1 - dropout) * (1 - p)
        elif not (isinstance(module, nn.Flatten | nn.Identity) or called in FLATTEN):
            break
        node = node.args[0]
    require(bool(found), "model", "does not end in a linear layer", FIT)
    require(task.outputs == found[-1].outputs, "model", "does not end in a linear layer that makes its logits", FIT)
    if not task.stochastic:
        dropout = 0.0
    first = found[0]
    found[0] = NetworkLayer(**{**vars(first), "dropout_before": dropout})
    return tuple(found)


def _layer(task: Task, name: str, linear: nn.Linear, *, relu: bool, smooth: bool, dropout: float) -> NetworkLayer:
    prefix = f"{name}." if name else ""
    weight, bias = f"{prefix}weight", None if linear.bias is None else f"{prefix}bias"
    for part in (weight, bias):
        trained = part is None or part in task.parameters
        require(trained, "model", f"does not train {part}, so the update does not carry it", "unfreeze it")
    return NetworkLayer(
        name=name,
        weight=weight,
        bias=bias,
        inputs=linear.in_features,
        outputs=linear.out_features,
        relu=relu,
        smooth=smooth,
        dropout=dropout if task.stochastic else 0.0,
    )


def _dropout(node: fx.Node, module: nn.Module | None, called: object) -> float | None:
    """Probability of a dropout that is on, 0 of one that is off, `None` of anything else."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p
    if called not in DROPOUTS:
        return None
    options: Mapping[str, Any] = dict(zip(("p", "training"), node.args[1:], strict=False)) | dict(node.kwargs)
    return float(options.get("p", 0.5)) if options.get("training", True) else 0.0
