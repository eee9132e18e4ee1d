"""The last layer's own steps under FedAvg: in which order the labels came, and what entered the layer at each step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.func import jacrev, vmap

from leakgauge.attacks.labels.head import stand_ins
from leakgauge.attacks.labels.strategy import Classifier, Unknown, find_classifier
from leakgauge.defenses import parts_of
from leakgauge.observation import Observation
from leakgauge.task import cross_entropy
from leakgauge.view.entries import rounding_norms

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


def read_head_steps(observation: Observation, orders: list[Order], generator: torch.Generator) -> HeadSteps | Unknown:
    """The orders under which the last layer's steps are what the update says, without the model below it.

    With a bias, soft-max cross-entropy and plain SGD for one epoch, the layer's update is Σ_t −lr·(p_t − y_t)·h_tᵀ,
    where p_t = softmax(W_{t−1}·h_t + b_{t−1}): it depends on nothing but the n features h_t, whatever the layers below
    do. The h_t lie in the row space of the update, so n² numbers stand against (n + 1)·(outputs − 1); for every order
    they are fitted by Levenberg–Marquardt from features of stand-ins, and only the true order fits. It costs no
    gradient evaluation. Examples whose gradient is below the rounding have no place; orders that differ by them fit
    alike and are all returned. Known failure: a saturated soft-max has no slope that would lead from one predicted
    class to another, and then no order fits.

    Source: ours.

    Args:
        orders: of all labels, as they would come at the steps; at least one.
    """
    observation = observation.view
    client, told, layer = observation.knowledge.local_training, observation.linear, find_classifier(observation)
    if isinstance(layer, Unknown):
        return layer
    count = len(orders[0])
    refused = _refused(observation, layer, count)
    if refused or client is None or told is None:
        return Unknown(refused)
    delta, bias = layer.of(observation.update.tensors)
    weight, offset = layer.of(observation.task.parameters)
    assert bias is not None
    assert offset is not None
    if not bool(torch.isfinite(delta).all()):
        return Unknown("the update is not finite")
    if not bool(delta.any()):
        return Unknown("the last layer's update is zero")
    basis = torch.linalg.svd(delta, full_matrices=False)[2][:count].T
    head = _ReducedLayer(weight @ basis, offset, delta @ basis, bias, -told.weights[0], told.sizes)
    coded = F.one_hot(torch.tensor(orders), len(offset)).double()
    made = _features(observation, layer, count, max(STARTS, FEW // len(orders)), generator)
    if not bool(torch.isfinite(made).all()):
        return Unknown("the model's features are not finite")
    found, misfit = head.best_of((made @ basis).expand(len(orders), *made.shape[:2], -1), coded)
    ranked = misfit.argsort()
    least = float(misfit[ranked[0]])
    norms = rounding_norms(observation.update, observation.task.parameters, client.steps(count))
    rounding = norms[layer.weight] / float(delta.norm())
    if not least <= FITS * rounding:
        return Unknown(f"no order of the labels explains the last layer's steps (misfit {least:.2g})")
    near = [int(i) for i in ranked if float(misfit[i]) <= max(ALIKE * least, rounding)]
    slopes = torch.stack([head.slopes(found[i], coded[i]) for i in near])
    return HeadSteps(tuple(orders[i] for i in near), least, layer, found[near] @ basis.T, slopes)


def _features(
    observation: Observation, layer: Classifier, count: int, starts: int, generator: torch.Generator
) -> Float[Tensor, "starts n features"]:
    """Features of stand-ins under the broadcast weights."""
    with torch.no_grad():
        like = [stand_ins(observation, count, generator) for _ in range(starts)]
        return torch.stack([layer.features(observation.task, x)[0].detach().cpu().double() for x in like])


Fit = tuple[Float[Tensor, "m n k"], Float[Tensor, " m"]]
"""Features in the coordinates of the row space, and the misfit that they leave."""


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
