"""How much of a batch is of each class, off the gradient of the last bias: rates of labels, shares of a mask."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.adaptive.mixup import single_gradient
from leakgauge.attacks.labels.head import stand_ins
from leakgauge.defenses import parts_of
from leakgauge.errors import FOREIGN
from leakgauge.observation import Observation
from leakgauge.step.parts import Labels, Mask, NextToken
from leakgauge.task import Batch, Task

STAND_INS = 4
"""Batches of made-up inputs whose answers are averaged where no input is known."""
STEPS = 12


def shares_of(
    observation: Observation, inputs: Float[Tensor, "n *shape"] | None, generator: torch.Generator
) -> dict[str, Float[Tensor, " classes"]]:
    """Share of the places of a mask, or of the tokens, that is of each class; of several labels how often each holds.

    Nothing where a defence, several local steps or several targets stand between.

    The gradient of a bias that is added to the logits is the sum of the error signals. Targets of given shares, spread
    at random, make that sum by simulation; Newton's steps find the shares that make the one that was sent. Exact where
    the loss is a line in the target (cross-entropy, BCE) and the inputs are known.

    Args:
        inputs: raw examples, as they were read; `None` takes made-up ones.
    """
    task, n = observation.task, observation.examples
    targets = list(task.layout.targets.items())
    defense = observation.knowledge.defense
    if n is None or len(targets) != 1 or (defense is not None and parts_of(defense)):
        return {}
    (name, target), gradient = targets[0], single_gradient(observation)
    if gradient is None or task.stochastic or not isinstance(target, Labels | Mask | NextToken):
        return {}
    try:
        double = task.to(torch.empty((), dtype=torch.float64))
        given = [inputs.double()] if inputs is not None and len(inputs) == n else _made_up(observation, n, generator)
        bias = _last_bias(double, given[0])
        if bias is None or double.parameters[bias].numel() not in (target.classes, 1):
            return {}
        found = _solved(double, target, bias, given, gradient[bias].double().flatten())
    except FOREIGN:  # a loss or a network of somebody's own
        return {}
    return {} if found is None else {name: found}


def _made_up(observation: Observation, count: int, generator: torch.Generator) -> list[Tensor]:
    made = stand_ins(observation, STAND_INS * count, generator).double()
    return list(made.split(count))[:STAND_INS]


def _sums(task: Task, inputs: Tensor, labels: Tensor, names: list[str]) -> dict[str, Tensor]:
    leaves = {k: v.detach().clone().requires_grad_(k in names) for k, v in task.parameters.items()}
    value = task(leaves, task.buffers, Batch(inputs, labels))[0]
    slopes = torch.autograd.grad(value, [leaves[k] for k in names], allow_unused=True, materialize_grads=True)
    return dict(zip(names, (s.detach().flatten() for s in slopes), strict=True))


def _last_bias(task: Task, inputs: Tensor) -> str | None:
    """The parameter whose motion moves the logits by itself, channel by channel."""
    logits = task.logits(task.parameters, task.buffers, inputs)[0].detach()
    for name, value in reversed(task.parameters.items()):
        if value.ndim != 1 or value.numel() not in logits.shape[1:] or value.numel() > 4096:
            continue
        step = torch.arange(1.0, value.numel() + 1).to(value)
        moved = task.logits({**task.parameters, name: value + step}, task.buffers, inputs)[0].detach() - logits
        for axis in (1, logits.ndim - 1):
            shape = [1] * logits.ndim
            shape[axis] = len(step)
            if logits.shape[axis] == len(step) and torch.allclose(moved, step.view(shape).expand_as(moved), atol=1e-8):
                return name
    return None


def _spread(target: Labels | Mask | NextToken, count: int, shares: Tensor) -> Tensor:
    """Targets of which these shares are of each class, at random places that depend on nothing."""
    size = count * torch.Size(target.shape).numel()
    if isinstance(target, Labels):
        return shares.expand(count, -1)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(0)).argsort().double() / size
    edges = shares.clamp(0, 1).cumsum(0)[:-1]
    return (order[:, None] >= edges).sum(1).view(count, *target.shape)


def _solved(
    task: Task, target: Labels | Mask | NextToken, bias: str, given: list[Tensor], sent: Tensor
) -> Float[Tensor, " classes"] | None:
    classes = target.classes
    free = isinstance(target, Labels)

    def misfit(shares: Tensor) -> Tensor:
        made = [_sums(task, x, _spread(target, len(x), shares), [bias])[bias] for x in given]
        return torch.stack(made).mean(0) - sent

    shares = torch.full((classes,), 0.5 if free else 1 / classes, dtype=torch.float64)
    # Exchanges with the last class keep the sum.
    ways = torch.eye(classes, dtype=torch.float64) if free else torch.eye(classes, dtype=torch.float64)[:-1]
    if not free:
        ways = ways - torch.eye(classes, dtype=torch.float64)[-1]
    if len(ways) > 64:
        return None
    reach = 0.25 if free else 0.5 / classes
    for _ in range(STEPS):
        left = misfit(shares)
        slope = torch.stack([(misfit(shares + reach * way) - left) / reach for way in ways], 1)
        move = torch.linalg.lstsq(slope, -left[:, None], driver="gelsd").solution[:, 0]
        before, shares = shares, (shares + ways.T @ move).clamp(0, 1)
        if not free:
            shares = shares / shares.sum().clamp_min(1e-12)
        if float((shares - before).abs().max()) < 1e-7:
            break
    return shares
