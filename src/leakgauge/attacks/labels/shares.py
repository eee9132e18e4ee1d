"""Targets of which no list can be tried: what one bias says of their mean, shares of classes or how often labels hold;
and numbers that stand for them in a search, from there."""

from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.attacks.labels.strategy import stand_ins
from leakgauge.defenses.defense import leaves_gradients
from leakgauge.errors import FOREIGN
from leakgauge.observation import Observation
from leakgauge.step.layout import Layout
from leakgauge.step.parts import Labels, Mask, NextToken, Values
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import Update, UpdateHeader, UpdateKind

STAND_INS = 4  # batches of made-up inputs whose answers are averaged where no input is known
STRANGE = 3  # how much further than any of these a true batch may be from their mean
SHARE_STEPS, MOST_WAYS = 12, 64
MASK_STEPS, FITS, FAR = 6, 1e-2, 1.5  # Gauss–Newton's; share of the gradient a mask may leave; how far from ½ it may be
ALIKE = 2e-3  # least that shares are said to be off, and most of an update that labels of which they follow may leave

Averaged = Labels | Mask | NextToken | Values


def average_target(
    observation: Observation, inputs: Float[Tensor, "n *shape"] | None, generator: torch.Generator
) -> tuple[Float[Tensor, " classes"], float] | None:
    """Of the only target: shares of classes, how often labels hold, or the mean of values; and how far off they may be.
    `None` where a defence, several local steps or several targets stand between.

    The gradient of a bias that is added to the logits is the sum of the error signals. Targets of given shares, spread
    at random, make that sum by simulation; Newton's steps find the shares that make the one that was sent. Exact where
    the loss is a line in the target (cross-entropy, BCE, squares) and raw `inputs` are known. Those of made-up inputs
    are off as these differ among each other. Dice asks where a class lies too: of known inputs the plainest mask that
    the last layer allows is taken; where the loss takes no such mask, shares are off as those of other places."""
    task, n, gradient = observation.task, observation.examples, observation.gradient
    targets = list(task.layout.targets.values())
    if n is None or gradient is None or task.stochastic or not leaves_gradients(observation.knowledge.defense):
        return None
    if len(targets) != 1 or not isinstance(target := targets[0], Averaged):
        return None
    classes = target.count if isinstance(target, Values) else target.classes
    try:
        double = task.to(torch.empty((), dtype=torch.float64))
        known = inputs is not None and len(inputs) == n
        made = inputs if known and inputs is not None else stand_ins(observation, STAND_INS * n, generator)
        # Batches of inputs that are alike, so that they differ as much as a true one may.
        given = list(made[made.flatten(1).mean(1).argsort()].double().split(n))[:STAND_INS]
        bias = _last_bias(double, given[0])
        if bias is None or double.parameters[bias].numel() not in (classes, 1) or classes > MOST_WAYS:
            return None
        if known and isinstance(target, Mask):
            with suppress(*FOREIGN):  # the loss takes no targets between those that there are
                if (found := _plainest(double, target, bias, given[0], gradient)) is not None:
                    return found if target.count > 1 else torch.cat([1 - found, found]), FITS
        sent = gradient[bias].double().flatten()
        mean, off = _averaged(double, target, bias, given, sent)
    except FOREIGN:  # a loss or a network of somebody's own
        return None
    held = mean if isinstance(target, Values) else mean.clamp(0, 1)
    held = held if isinstance(target, Labels | Values) else held / held.sum().clamp_min(1e-12)
    return held, max(ALIKE, STRANGE * off, float((held - mean).abs().max()))


def _last_bias(task: Task, inputs: Tensor) -> str | None:
    """The parameter whose motion moves the logits by itself, channel by channel."""
    logits = task.logits(task.parameters, task.buffers, inputs)[0].detach()
    for name, value in reversed(task.parameters.items()):
        if value.ndim != 1 or value.numel() not in logits.shape[1:] or value.numel() > 4096:
            continue
        step = torch.arange(1.0, value.numel() + 1).to(value)
        moved = task.logits({**task.parameters, name: value + step}, task.buffers, inputs)[0].detach() - logits
        for axis in (1, -1):
            if logits.shape[axis] == len(step) and torch.allclose(moved.movedim(axis, -1), step, atol=1e-8):
                return name
    return None


def _spread(target: Averaged, count: int, shares: Tensor, order: Int[Tensor, " places"]) -> Tensor:
    """Targets of which these shares are of each class, place by place in an order."""
    if isinstance(target, Labels | Values):
        return shares.expand(count, -1).reshape(count, *target.shape)
    edges = shares.clamp(0, 1).cumsum(0)[:-1]
    return (order.argsort().double()[:, None] / len(order) >= edges).sum(1).view(count, *target.shape)


def _plainest(task: Task, target: Mask, bias: str, inputs: Tensor, sent: Tensors) -> Float[Tensor, " outputs"] | None:
    """Means of the mask nearest to equal shares everywhere that makes the gradient of the last layer (of some entries,
    where there are many), by Gauss–Newton. `None` where none makes it, or only one far from 0 and 1."""
    names = [name for name in task.parameters if name.rpartition(".")[0] == bias.rpartition(".")[0]]
    names.sort(key=bias.__ne__)
    own = {name: task.parameters[name].detach().clone().requires_grad_() for name in names}
    seen = torch.cat([sent[name].double().flatten() for name in names])
    mixed = torch.randperm(len(seen), generator=torch.Generator().manual_seed(0)) + len(own[bias])
    taken = torch.cat([torch.arange(len(own[bias])), mixed[mixed < len(seen)]])[:MOST_WAYS]
    left, mask = seen, target.soft(torch.zeros(len(inputs), target.count, *target.places, dtype=torch.float64))
    for _ in range(MASK_STEPS):
        mask.requires_grad_()
        value = task({**task.parameters, **own}, task.buffers, Batch(inputs, mask))[0]
        slopes = torch.autograd.grad(value, list(own.values()), create_graph=True)
        made = torch.cat([slope.flatten() for slope in slopes])[taken]
        rows = torch.stack([torch.autograd.grad(one, mask, retain_graph=True)[0] for one in made])
        rows = (rows - rows.mean(2, keepdim=True) if target.count > 1 else rows).flatten(1)
        left = seen[taken] - made.detach()
        ways = torch.linalg.lstsq(rows @ rows.T, left[:, None], rcond=1e-9, driver="gelsd").solution
        mask = mask.detach() + (ways.T @ rows).view_as(mask)
    fits = left.norm() < FITS * seen[taken].norm() and (mask - 0.5).abs().max() < FAR
    return mask.transpose(0, 1).flatten(1).mean(1) if fits else None


def _averaged(task: Task, target: Averaged, bias: str, given: list[Tensor], sent: Tensor) -> tuple[Tensor, float]:
    """Mean of the shares that batches give, and how far any are from it, at whatever places: at random, where the
    network sees a class, and where it does not."""
    every, off = [], 0.0
    for inputs in given:
        places = len(inputs) * torch.Size(target.shape).numel()
        orders = [torch.randperm(places, generator=torch.Generator().manual_seed(0))]
        if not isinstance(target, Labels | Values):
            logits = task.logits(task.parameters, task.buffers, inputs)[0].detach()
            seen = logits.movedim(1 if isinstance(target, Mask) else -1, 0)[0].flatten().argsort()
            # A loss may bring answers to the mask's size: place by place.
            orders += [order if len(order) == places else torch.arange(places) for order in (seen, seen.flip(0))]
        found = [_solved(task, target, bias, inputs, sent, order) for order in orders]
        every.append(torch.stack([shares for shares, _ in found]))
        off = max(off, *(lack for _, lack in found))
    mean = torch.stack(every)[:, 0].mean(0)
    return mean, max(off, float((torch.stack(every) - mean).abs().max()))


def _solved(
    task: Task, target: Averaged, bias: str, inputs: Tensor, sent: Tensor, order: Int[Tensor, " places"]
) -> tuple[Float[Tensor, " classes"], float]:
    """Shares, and how far they would move to make what they lack of the sum."""
    free, classes = isinstance(target, Labels | Values), target.count if isinstance(target, Values) else target.classes

    def misfit(shares: Tensor) -> Tensor:
        own = task.parameters[bias].detach().clone().requires_grad_()
        batch = Batch(inputs, _spread(target, len(inputs), shares, order))
        value = task({**task.parameters, bias: own}, task.buffers, batch)[0]
        (slope,) = torch.autograd.grad(value, own, allow_unused=True, materialize_grads=True)
        return slope.detach().flatten() - sent

    shares, ways = torch.full((classes,), 0.5, dtype=torch.float64), torch.eye(classes, dtype=torch.float64)
    if not free:  # exchanges with the last class keep the sum
        shares, ways = torch.full_like(shares, 1 / classes), ways[:-1] - ways[-1]
    reach, firm = 0.25 if free else 0.5 / classes, 0.0
    for step in range(SHARE_STEPS):
        left = misfit(shares)
        slope = torch.stack([(misfit(shares + reach * way) - left) / reach for way in ways], 1)
        move = torch.linalg.lstsq(slope, -left[:, None], driver="gelsd").solution[:, 0]
        firm = firm if step else float(torch.linalg.svdvals(slope).min())  # no share is at an edge yet
        before, wanted = shares, shares + ways.T @ move
        shares = wanted if free else wanted.clamp(0, 1) / wanted.clamp(0, 1).sum().clamp_min(1e-12)
        if float((shares - before).abs().max()) < 1e-7:
            break
    return wanted, float(misfit(shares).norm()) / max(firm, 1e-12)


APART = 0.1  # spread of the first numbers, so that examples are told apart
EDGE = 0.02  # no class starts rarer


@dataclass(frozen=True, eq=False)
class SoughtTargets:
    """Numbers that stand for the targets of a batch, beside the variables of a search; `first`, by name, before they
    are told apart."""

    layout: Layout
    first: Tensors

    @staticmethod
    def of(observation: Observation, generator: torch.Generator) -> "SoughtTargets | None":
        """From their average where the update tells it (`average_target`); `None` where no search moves them."""
        layout, count = observation.task.layout, observation.examples
        shapes = layout.sought(count) if observation.task.named and count else {}
        if not shapes:
            return None
        first = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
        told = average_target(_in_one_step(observation), None, generator) if len(shapes) == 1 else None
        if told is not None:
            ((name, target),), mean = layout.targets.items(), told[0]
            if not isinstance(target, Values):
                share = mean.clamp(EDGE, 1 - EDGE)
                single = first[name].shape[1] == 1 and len(share) == 2
                mean = share[1:].logit() if single else share.log() if target.whole else share.logit()
            wide = mean.view(-1, *[1] * (first[name].ndim - 2)) if first[name].ndim > 1 else mean
            first[name] = first[name] + wide
        return SoughtTargets(layout, first)

    def start(self, generator: torch.Generator) -> Tensors:
        return {
            f"target.{name}": mean + APART * torch.randn(mean.shape, generator=generator, dtype=torch.float64)
            for name, mean in self.first.items()
        }

    def soft(self, variables: Tensors, *, settled: bool = False) -> Tensor:
        """As `Batch.labels` has them, between those that there are, or `settled` on these."""
        return self.layout.soft({name: variables[f"target.{name}"] for name in self.first}, settled=settled)

    def taken(self, task: Task) -> bool:
        """Whether the loss takes targets between those that there are."""
        numbers = {name: mean.to(next(iter(task.parameters.values()))) for name, mean in self.first.items()}
        like = next(iter(numbers.values()))
        grey = torch.full((len(like), *task.data.shape), (task.data.low + task.data.high) / 2).to(like)
        with suppress(*FOREIGN), torch.no_grad():
            task(task.parameters, task.buffers, Batch(grey, self.layout.soft(numbers)), torch.Generator())
            return True
        return False


def _in_one_step(observation: Observation) -> Observation:
    """As if small local steps had been one, for who has nothing better."""
    told = observation.linear
    if observation.gradient is not None or told is None or not sum(told.weights):
        return observation
    mean = map_tensors(lambda t: t.double() / sum(told.weights), observation.update.tensors)
    update = Update(mean, UpdateHeader(UpdateKind.GRADIENT, observation.examples))
    return Observation(observation.task, update, replace(observation.knowledge, local_training=None))
