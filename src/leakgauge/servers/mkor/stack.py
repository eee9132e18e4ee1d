"""The linear layers in which a network ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from leakgauge.errors import require
from leakgauge.servers.mkor.layers import Drop, Flatten, Plain, Reshape, of_call, of_module, traced
from leakgauge.task import Task

ENDS = "give a classifier that ends in linear layers with ReLU, sigmoid or tanh between them"


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
    node: Any = next(n for n in traced(task, ENDS).nodes if n.op == "output").args[0]
    found: list[NetworkLayer] = []
    relu = smooth = False
    dropout = 0.0
    while isinstance(node, fx.Node) and len(node.users) == 1:
        module = task.module.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(module, nn.Linear):
            found.insert(0, _layer(task, str(node.target), module, relu=relu, smooth=smooth, dropout=dropout))
            relu, smooth, dropout = False, False, 0.0
        else:
            match of_call(node) if module is None else of_module(module):
                case Plain() as plain:
                    relu, smooth = relu or plain is Plain.RELU, smooth or plain is Plain.SMOOTH
                case Drop(probability):
                    dropout = 1 - (1 - dropout) * (1 - probability)
                case Flatten() | Reshape():
                    pass
                case _:
                    break
        node = node.args[0] if node.args else None
    require(bool(found), "model", "does not end in a linear layer", ENDS)
    require(task.outputs == found[-1].outputs, "model", "does not end in a linear layer that makes its logits", ENDS)
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
