"""The last layer's own steps under FedAvg: in which order the labels came, and what entered the layer at each step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.func import jacrev, vmap

from leakgauge.attacks.labels.head import made_up, stand_ins
from leakgauge.attacks.labels.strategy import Classifier, Unknown, find_classifier
from leakgauge.clients.protocol import mean_gradient
from leakgauge.defenses import parts_of
from leakgauge.observation import Observation
from leakgauge.task import Batch, Task, cross_entropy
from leakgauge.tensors import Wire, map_tensors

Order = tuple[int, ...]

STARTS, FEW, FIRST, THEN, FINALISTS = 2, 24, 40, 160, 8
"""Starts of every order, at least so many in all; Levenberg–Marquardt iterations of each and of so many finalists."""

PATIENCE, SLOW = 12, 0.9
"""They end where in so many iterations no misfit has fallen below that share."""

FITS, ALIKE = 50.0, 4.0
"""An order fits whose misfit is so many times the rounding at most, and is as good with so many times the smallest."""

SPARE = 1.76
"""Equations for each unknown, at least: five examples of ten classes were read, of six the fit did not find its way."""


@dataclass(frozen=True, eq=False)
class HeadRead:
    """What the last layer's steps are, or why that cannot be said; and the gradient evaluations that it took."""

    steps: HeadSteps | Unknown
    evaluations: int = 0


@dataclass(frozen=True, eq=False)
class HeadSteps:
    """What the last layer's update allows.

    Attributes:
        orders: of the labels over the local steps, the nearest first; all that rounding cannot tell apart.
        misfit: relative, of the nearest.
        layer: whose steps they are.
        features: what entered the layer, for each order. Those of the first step belong to the broadcast weights,
            later ones to weights that the server does not know.
        slopes: p − y of each example at its step, for each order; zero where an example is not in the update.
    """

    orders: tuple[Order, ...]
    misfit: float
    layer: Classifier
    features: Float[Tensor, "orders n features"]
    slopes: Float[Tensor, "orders n outputs"]


def read_head_steps(
    observation: Observation, orders: list[Order], generator: torch.Generator, *, room: int | None = None
) -> HeadRead:
    """The orders under which the last layer's steps are what the update says, without the model below it.

    With a bias, soft-max cross-entropy and plain SGD for one epoch, the layer's update is Σ_t −lr·(p_t − y_t)·h_tᵀ,
    where p_t = softmax(W_{t−1}·h_t + b_{t−1}): it depends on nothing but the n features h_t, whatever the layers below
    do. The h_t lie in the row space of the update, so n² numbers stand against (n + 1)·(outputs − 1); for every order
    they are fitted by Levenberg–Marquardt, and only the true order fits. It starts from features of stand-ins; where
    no order fits, from those that a client has who trains on the stand-ins in that order, since a saturated soft-max
    has no slope that would lead from one predicted class to another. Examples whose gradient is below the rounding
    have no place; orders that differ by them fit alike and are all returned.

    Source: ours.

    Args:
        orders: of all labels, as they would come at the steps; at least one.
        room: gradient evaluations that it may make; without limit unless given. Mostly it makes none.
    """
    observation = observation.view
    client, told, layer = observation.knowledge.local_training, observation.linear, find_classifier(observation)
    if isinstance(layer, Unknown):
        return HeadRead(layer)
    count = len(orders[0])
    refused = _refused(observation, layer, count)
    if refused or client is None or told is None:
        return HeadRead(Unknown(refused))
    delta, bias = layer.of(observation.update.tensors)
    weight, offset = layer.of(observation.task.parameters)
    assert bias is not None
    assert offset is not None
    if not bool(torch.isfinite(delta).all()):
        return HeadRead(Unknown("the update is not finite"))
    basis = torch.linalg.svd(delta, full_matrices=False)[2][:count].T
    head = _ReducedLayer(weight @ basis, offset, delta @ basis, bias, -told.weights[0], told.sizes)
    coded = F.one_hot(torch.tensor(orders), len(offset)).double()
    # The client rounds its parameters at every step.
    unit = Wire.of(*observation.update.tensors.values()).arithmetic
    rounding = unit * float(weight.norm() / delta.norm()) * client.steps(count) ** 0.5
    price, spent = len(orders) * client.steps(count), 0
    best = coded.new_zeros(len(orders), count, basis.shape[1]), coded.new_full((len(orders),), torch.inf)
    for trained in (False, True, True):
        if trained and room is not None and spent + price > room:
            break
        if trained:
            spent += price
            made = torch.stack([_trained(observation.task, head, layer, order, generator) for order in orders])[:, None]
        else:
            made = _untrained(observation, layer, count, max(STARTS, FEW // len(orders)), generator)
            made = made.expand(len(orders), *made.shape)
        if not bool(torch.isfinite(made).all()):
            return HeadRead(Unknown("the model's features are not finite"), spent)
        best = _better(best, head.best_of(made @ basis, coded))
        if float(best[1].min()) <= FITS * rounding:
            break
    found, misfit = best
    ranked = misfit.argsort()
    least = float(misfit[ranked[0]])
    if not least <= FITS * rounding:
        return HeadRead(Unknown(f"no order of the labels explains the last layer's steps (misfit {least:.2g})"), spent)
    near = [int(i) for i in ranked if float(misfit[i]) <= max(ALIKE * least, rounding)]
    slopes = torch.stack([head.slopes(found[i], coded[i]) for i in near])
    return HeadRead(HeadSteps(tuple(orders[i] for i in near), least, layer, found[near] @ basis.T, slopes), spent)


def _untrained(
    observation: Observation, layer: Classifier, count: int, starts: int, generator: torch.Generator
) -> Float[Tensor, "starts n features"]:
    """Features of stand-ins under the broadcast weights."""
    with torch.no_grad():
        like = [stand_ins(observation, count, generator) for _ in range(starts)]
        return torch.stack([layer.features(observation.task, x)[0].detach().cpu().double() for x in like])


def _trained(
    task: Task, head: _ReducedLayer, layer: Classifier, order: Order, generator: torch.Generator
) -> Float[Tensor, "n features"]:
    """Features of made-up examples, each under the weights of its own step."""
    inputs = made_up(task.data, len(order), generator).to(next(iter(task.parameters.values())))
    batch, found = Batch(inputs, torch.tensor(order, device=inputs.device)), []
    for index in torch.arange(len(order)).split(head.sizes):
        step = batch.take(index.to(inputs.device))
        with torch.no_grad():
            found.append(layer.features(task, step.inputs)[0].detach().cpu().double())
        slope, _ = mean_gradient(task, task.parameters, task.buffers, step, None, torch.Generator())
        task = replace(task, parameters=map_tensors(lambda p, g: p - head.lr * g, task.parameters, slope))
    return torch.cat(found)


Fit = tuple[Float[Tensor, "m n k"], Float[Tensor, " m"]]
"""Features in the coordinates of the row space, and the misfit that they leave."""


def _better(one: Fit, other: Fit) -> Fit:
    """The better of two for each order."""
    wins = other[1] < one[1]
    return torch.where(wins[:, None, None], other[0], one[0]), torch.where(wins, other[1], one[1])


def _refused(observation: Observation, layer: Classifier, count: int) -> str:
    """Why the steps cannot be read; empty where they can be tried."""
    task, client, defense = observation.task, observation.knowledge.local_training, observation.knowledge.defense
    if layer.bias is None or task.loss is not cross_entropy or task.penalties:
        return "the last layer has no bias, or the loss is more than soft-max cross-entropy"
    told = observation.linear
    if client is None or client.aggregates or told is None or told.decay or told.shortened:
        return "the client takes other steps than those of plain SGD"
    # Each step's gradient counts alike without momentum, and one epoch has all examples once.
    if len(set(told.weights)) > 1 or sum(told.sizes) != count:
        return "the client takes other steps than one epoch of plain SGD"
    if defense is not None and parts_of(defense):
        return "a defence has changed the update"
    outputs, width = task.parameters[layer.weight].shape
    if count > width or (count + 1) * (outputs - 1) < SPARE * count * count:
        return f"{count} examples are too many for {outputs} outputs"
    return ""


@dataclass(frozen=True, eq=False)
class _ReducedLayer:
    """The layer in the coordinates of its update's row space, and what its update was there."""

    weight: Float[Tensor, "outputs k"]
    bias: Float[Tensor, " outputs"]
    moved: Float[Tensor, "outputs k"]
    shifted: Float[Tensor, " outputs"]
    lr: float
    sizes: tuple[int, ...]

    def residual(self, h: Float[Tensor, "n k"], labels: Float[Tensor, "n outputs"]) -> Float[Tensor, " equations"]:
        """What features and labels leave of the update, relative."""
        slopes = self.slopes(h, labels)
        each = [self.lr * part / len(part) for part in slopes.split(self.sizes)]
        slope = torch.cat(each)
        weight = (slope.T @ h + self.moved) / self.moved.norm()
        return torch.cat([weight.flatten(), (slope.sum(0) + self.shifted) / self.shifted.norm()])

    def slopes(self, h: Float[Tensor, "n k"], labels: Float[Tensor, "n outputs"]) -> Float[Tensor, "n outputs"]:
        """p − y of each example at its step."""
        w, b, found = self.weight, self.bias, []
        for part, coded in zip(h.split(self.sizes), labels.split(self.sizes), strict=True):
            found.append((part @ w.T + b).softmax(1) - coded)
            slope = self.lr * found[-1] / len(part)
            w, b = w - slope.T @ part, b - slope.sum(0)
        return torch.cat(found)

    def best_of(self, starts: Float[Tensor, "m r n k"], labels: Float[Tensor, "m n outputs"]) -> Fit:
        """The best fit of every order from all of its starts; only finalists are fitted to the end."""
        orders, repeats = starts.shape[:2]
        found, misfit = self.fitted(starts.flatten(0, 1), labels.repeat_interleave(repeats, 0), FIRST)
        misfit, which = misfit.view(orders, repeats).min(1)
        found = found[which + repeats * torch.arange(orders)]
        last = misfit.argsort()[:FINALISTS]
        found[last], misfit[last] = self.fitted(found[last], labels[last], THEN)
        return found, misfit

    def fitted(self, h: Float[Tensor, "m n k"], labels: Float[Tensor, "m n outputs"], iterations: int) -> Fit:
        """Levenberg–Marquardt on each of m, side by side; the features and the norm of what they leave."""
        value, slopes = vmap(self.residual), vmap(jacrev(self.residual))
        damping = torch.full((len(h),), 1e-2, dtype=h.dtype)
        left = value(h, labels)
        before = left.norm(dim=1)
        for iteration in range(1, iterations + 1):
            j = slopes(h, labels).flatten(2)
            normal = j.mT @ j
            scale = torch.diag_embed(normal.diagonal(dim1=1, dim2=2) + 1e-12)
            step, _ = torch.linalg.solve_ex(normal + damping[:, None, None] * scale, (j.mT @ left[..., None]))
            tried = h - step.view_as(h)
            after = value(tried, labels)
            better = after.norm(dim=1) < left.norm(dim=1)
            h = torch.where(better[:, None, None], tried, h)
            left = torch.where(better[:, None], after, left)
            damping = torch.where(better, damping / 5, damping * 4).clamp(1e-12, 1e8)
            if iteration % PATIENCE == 0:
                now = left.norm(dim=1)
                if not bool((now < SLOW * before).any()):
                    break
                before = now
        return h, left.norm(dim=1)
