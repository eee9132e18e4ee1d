"""A plain chain of modules, read off what passes between them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.errors import InputError
from leakgauge.task import Task

FIT = "give a plain chain of modules (no residual connections, no functional layers)"


@dataclass(frozen=True, eq=False)
class Layer:
    """A module without children, and the shapes of what it was given and what it gave."""

    name: str
    module: nn.Module
    before: tuple[int, ...]
    after: tuple[int, ...]


def layer_chain(task: Task, inputs: Float[Tensor, "n *shape"]) -> list[Layer]:
    """The chain, found by sending raw `inputs` through and comparing what leaves a module with what enters the next.

    Reshaping in between is passed over.

    Raises:
        InputError: a module is used twice, or takes what no module before it alone has made (a residual
            connection, a function between modules).
    """
    calls: list[tuple[str, Tensor, Tensor]] = []
    given: list[Tensor] = []
    handles = []

    def before(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        given.append(args[0].detach().clone())  # a ReLU may work in place

    def after(name: str, out: Tensor) -> None:
        calls.append((name, given.pop(), out.detach().clone()))

    leaves = {n: m for n, m in task.module.named_modules() if not list(m.children())}
    for name, module in leaves.items():
        handles.append(module.register_forward_pre_hook(before))
        handles.append(module.register_forward_hook(lambda _m, _a, out, name=name: after(name, out)))
    try:
        with torch.no_grad():
            logits, _ = task.logits(task.parameters, task.buffers, inputs)
    finally:
        for handle in handles:
            handle.remove()
    value, last = task.data.normalise(inputs), "the input"
    for name, taken, made in calls:
        if not _same(value, taken):
            kind = type(leaves[name]).__name__
            raise InputError("model", f"layer '{name}' ({kind}) does not take the output of {last} alone", FIT)
        value, last = made, f"'{name}'"
    if not _same(value, logits):
        raise InputError("model", f"the logits are not the output of {last}", FIT)
    names = [name for name, _, _ in calls]
    twice = [name for name in names if names.count(name) > 1 and list(leaves[name].parameters())]
    if twice:
        raise InputError("model", f"layer '{twice[0]}' is used twice", FIT)
    return [Layer(name, leaves[name], tuple(taken.shape), tuple(made.shape)) for name, taken, made in calls]


def _same(a: Tensor, b: Tensor) -> bool:
    return a.numel() == b.numel() and torch.equal(a.reshape(-1), b.reshape(-1))
