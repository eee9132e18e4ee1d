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
SHARE_STEPS, MOST_WAYS = 12, 64
MASK_STEPS, FITS, FAR = 6, 1e-2, 1.5  # Gauss–Newton's; share of the gradient a mask may leave; how far from ½ it may be
ALIKE = 2e-3  # shares that other places give, and what shares leave of the sum, relative to it

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
    observation: Observation,
    inputs: Float[Tensor, "n *shape"] | None,
    generator: torch.Generator,
    *,
    anywhere: bool = False,
) -> Float[Tensor, " classes"] | None:
    """Of the only target: shares of classes, how often labels hold, or the mean of values. `None` where a defence,
    several local steps or several targets stand between.

    The gradient of a bias that is added to the logits is the sum of the error signals. Targets of given shares, spread
    at random, make that sum by simulation; Newton's steps find the shares that make the one that was sent. Exact where
    the loss is a line in the target (cross-entropy, BCE, squares) and raw `inputs` are known, else of made-up ones.
    Dice asks where a class lies too: of known inputs the plainest mask that the last layer allows is taken, and nothing
    where the loss takes no such mask and other places give other shares, or none make the sum; of made-up ones nothing
    where other places give other shares, unless `anywhere` is good enough."""
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
        if inputs is not None and isinstance(target, Mask):
            with suppress(*FOREIGN):  # the loss takes no targets between those that there are
                if (found := _plainest(double, target, bias, given[0], gradient)) is not None:
                    return found if target.count > 1 else torch.cat([1 - found, found])
        sent, known = gradient[bias].double().flatten(), inputs is not None and len(inputs) == n
        orders = [[torch.randperm(_places(target, x), generator=torch.Generator().manual_seed(0)) for x in given]]
        if not anywhere and not isinstance(
            target, Labels | Values
        ):  # where the network sees a class, and where it does not
            logits = (double.logits(double.parameters, double.buffers, x)[0].detach() for x in given)
            seen = [x.movedim(1 if isinstance(target, Mask) else -1, 0)[0].flatten().argsort() for x in logits]
            sizes = [_places(target, x) for x in given]  # a loss may bring answers to the mask's size: place by place
            seen = [o if len(o) == n else torch.arange(n) for o, n in zip(seen, sizes, strict=True)]
            orders += [seen, [order.flip(0) for order in seen]]
        (found, left), *others = (_solved(double, target, classes, bias, given, sent, order) for order in orders)
        if found is None or (known and left > ALIKE * float(sent.norm())):
            return None
        return found if all(one is not None and bool((found - one).abs().max() < ALIKE) for one, _ in others) else None
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
        for axis in (1, -1):
            if logits.shape[axis] == len(step) and torch.allclose(moved.movedim(axis, -1), step, atol=1e-8):
                return name
    return None


def _places(target: Averaged, inputs: Tensor) -> int:
    return len(inputs) * torch.Size(target.shape).numel()


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


def _solved(
    task: Task, target: Averaged, classes: int, bias: str, given: list[Tensor], sent: Tensor, orders: list[Tensor]
) -> tuple[Float[Tensor, " classes"] | None, float]:
    """Shares, and what they leave of the sum."""
    free = isinstance(target, Labels | Values)
    low, high = (-torch.inf, torch.inf) if isinstance(target, Values) else (0.0, 1.0)

    def misfit(shares: Tensor) -> Tensor:
        own = task.parameters[bias].detach().clone().requires_grad_()
        batches = (Batch(x, _spread(target, len(x), shares, o)) for x, o in zip(given, orders, strict=True))
        values = [task({**task.parameters, bias: own}, task.buffers, batch)[0] for batch in batches]
        (slope,) = torch.autograd.grad(torch.stack(values).mean(), own, allow_unused=True, materialize_grads=True)
        return slope.detach().flatten() - sent

    shares, ways = torch.full((classes,), 0.5, dtype=torch.float64), torch.eye(classes, dtype=torch.float64)
    if not free:  # exchanges with the last class keep the sum
        shares, ways = torch.full_like(shares, 1 / classes), ways[:-1] - ways[-1]
    if len(ways) > MOST_WAYS:
        return None, torch.inf
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
    return shares, float(misfit(shares).norm())


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
        mean = average_target(_in_one_step(observation), None, generator, anywhere=True) if len(shapes) == 1 else None
        if mean is not None:
            ((name, target),) = layout.targets.items()
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

    def soft(self, variables: Tensors) -> Tensor:
        """As `Batch.labels` has them, between those that there are."""
        return self.layout.soft(self._numbers(variables))

    def settled(self, variables: Tensors) -> Tensor:
        return self.layout.soft(self._numbers(variables), settled=True)

    def _numbers(self, variables: Tensors) -> Tensors:
        return {name: variables[f"target.{name}"] for name in self.first}

    def taken(self, task: Task) -> bool:
        """Whether the loss takes targets between those that there are."""
        numbers = {name: mean.to(next(iter(task.parameters.values()))) for name, mean in self.first.items()}
        like = next(iter(numbers.values()))
        grey = torch.full((len(like), *task.data.shape), (task.data.low + task.data.high) / 2).to(like)
        try:
            with torch.no_grad():
                task(task.parameters, task.buffers, Batch(grey, self.layout.soft(numbers)), torch.Generator())
        except FOREIGN:
            return False
        return True


def _in_one_step(observation: Observation) -> Observation:
    """As if small local steps had been one, for who has nothing better."""
    told = observation.linear
    if observation.gradient is not None or told is None or not sum(told.weights):
        return observation
    mean = map_tensors(lambda t: t.double() / sum(told.weights), observation.update.tensors)
    update = Update(mean, UpdateHeader(UpdateKind.GRADIENT, observation.examples))
    return Observation(observation.task, update, replace(observation.knowledge, local_training=None))
