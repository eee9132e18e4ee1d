"""The linear layers that a classifier ends in, read off its traced graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.proxy import TraceError

from leakgauge.errors import InputError, require
from leakgauge.task import Task

FIT = "give a classifier that ends in linear layers with ReLU, sigmoid or tanh between them"

RELUS = (F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_")
SMOOTH = (torch.sigmoid, F.sigmoid, torch.tanh, F.tanh, "sigmoid", "tanh")
FLATTEN = (torch.flatten, torch.reshape, "flatten", "view", "reshape", "contiguous")
DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d)


@dataclass(frozen=True, kw_only=True)
class Layer:
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


def linear_stack(task: Task) -> tuple[Layer, ...]:
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
    found: list[Layer] = []
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
    found[0] = Layer(**{**vars(first), "dropout_before": dropout})
    return tuple(found)


def _layer(task: Task, name: str, linear: nn.Linear, *, relu: bool, smooth: bool, dropout: float) -> Layer:
    prefix = f"{name}." if name else ""
    weight, bias = f"{prefix}weight", None if linear.bias is None else f"{prefix}bias"
    for part in (weight, bias):
        trained = part is None or part in task.parameters
        require(trained, "model", f"does not train {part}, so the update does not carry it", "unfreeze it")
    return Layer(
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
    options: dict[str, Any] = dict(zip(("p", "training"), node.args[1:], strict=False)) | dict(node.kwargs)
    return float(options.get("p", 0.5)) if options.get("training", True) else 0.0
