"""What one bias says of targets under any loss: shares of classes, how often labels hold, the mean of values."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.labels.strategy import stand_ins
from leakgauge.defenses.defense import leaves_gradients
from leakgauge.errors import FOREIGN
from leakgauge.observation import Observation
from leakgauge.step.parts import Labels, Mask, NextToken, Values
from leakgauge.task import Batch, Task

STAND_INS = 4  # batches of made-up inputs whose answers are averaged where no input is known
SHARE_STEPS, MOST_WAYS = 12, 64

Averaged = Labels | Mask | NextToken | Values


def shares_of(
    observation: Observation, inputs: Float[Tensor, "n *shape"] | None, generator: torch.Generator
) -> dict[str, Float[Tensor, " classes"]]:
    """Share of the places of a mask, or of the tokens, that is of each class; of several labels how often each holds.
    As `average_target`."""
    targets = list(observation.task.layout.targets.items())
    if len(targets) != 1 or not isinstance(targets[0][1], Labels | Mask | NextToken):
        return {}
    found = average_target(observation, inputs, generator)
    return {} if found is None else {targets[0][0]: found}


def average_target(
    observation: Observation, inputs: Float[Tensor, "n *shape"] | None, generator: torch.Generator
) -> Float[Tensor, " classes"] | None:
    """Of the only target: shares of classes, how often labels hold, or the mean of values. `None` where a defence,
    several local steps or several targets stand between.

    The gradient of a bias that is added to the logits is the sum of the error signals. Targets of given shares, spread
    at random, make that sum by simulation; Newton's steps find the shares that make the one that was sent. Exact where
    the loss is a line in the target (cross-entropy, BCE, squares) and the inputs are known.

    Args:
        inputs: raw examples, as they were read; `None` takes made-up ones.
    """
    task, n, gradient = observation.task, observation.examples, observation.gradient
    targets = list(task.layout.targets.values())
    if n is None or gradient is None or task.stochastic or not leaves_gradients(observation.knowledge.defense):
        return None
    if len(targets) != 1 or not isinstance(target := targets[0], Averaged):
        return None
    classes = target.count if isinstance(target, Values) else target.classes
    try:
        double = task.to(torch.empty((), dtype=torch.float64))
        given = [inputs.double()] if inputs is not None and len(inputs) == n else []
        given = given or list(stand_ins(observation, STAND_INS * n, generator).double().split(n))[:STAND_INS]
        bias = _last_bias(double, given[0])
        if bias is None or double.parameters[bias].numel() not in (classes, 1):
            return None
        return _solved(double, target, classes, bias, given, gradient[bias].double().flatten())
    except FOREIGN:  # a loss or a network of somebody's own
        return None


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


def _spread(target: Averaged, count: int, shares: Tensor) -> Tensor:
    """Targets of which these shares are of each class, at random places that depend on nothing."""
    size = count * torch.Size(target.shape).numel()
    if isinstance(target, Labels | Values):
        return shares.expand(count, -1).reshape(count, *target.shape)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(0)).argsort().double() / size
    edges = shares.clamp(0, 1).cumsum(0)[:-1]
    return (order[:, None] >= edges).sum(1).view(count, *target.shape)


def _solved(
    task: Task, target: Averaged, classes: int, bias: str, given: list[Tensor], sent: Tensor
) -> Float[Tensor, " classes"] | None:
    free = isinstance(target, Labels | Values)
    low, high = (-torch.inf, torch.inf) if isinstance(target, Values) else (0.0, 1.0)

    def misfit(shares: Tensor) -> Tensor:
        own = task.parameters[bias].detach().clone().requires_grad_()
        batches = (Batch(x, _spread(target, len(x), shares)) for x in given)
        values = [task({**task.parameters, bias: own}, task.buffers, batch)[0] for batch in batches]
        (slope,) = torch.autograd.grad(torch.stack(values).mean(), own, allow_unused=True, materialize_grads=True)
        return slope.detach().flatten() - sent

    shares, ways = torch.full((classes,), 0.5, dtype=torch.float64), torch.eye(classes, dtype=torch.float64)
    if not free:  # exchanges with the last class keep the sum
        shares, ways = torch.full_like(shares, 1 / classes), ways[:-1] - ways[-1]
    if len(ways) > MOST_WAYS:
        return None
    reach = 0.25 if free else 0.5 / classes
    for _ in range(SHARE_STEPS):
        left = misfit(shares)
        slope = torch.stack([(misfit(shares + reach * way) - left) / reach for way in ways], 1)
        move = torch.linalg.lstsq(slope, -left[:, None], driver="gelsd").solution[:, 0]
        before, shares = shares, (shares + ways.T @ move).clamp(low, high)
        if not free:
            shares = shares / shares.sum().clamp_min(1e-12)
        if float((shares - before).abs().max()) < 1e-7:
            break
    return shares
