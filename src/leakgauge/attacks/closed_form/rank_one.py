"""One example off a linear layer without bias: its direction is read, its length is searched for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from scipy.optimize import minimize_scalar
from torch import Tensor

from leakgauge.attacks.closed_form.proof import name_labels, simulated
from leakgauge.attacks.effort import Effort, SearchingAttack
from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.observation import Observation, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch, DataSpec
from leakgauge.tracing import input_layers
from leakgauge.view.entries import SentTensor, rank_one

SWEEPS = 1000
"""Most sweeps of a completion. Each takes a share of the error off: a half and more where a tenth was sent."""


@ATTACKS.register("rank-one", needs="one example; a linear layer without bias that reads the input")
@dataclass(frozen=True, kw_only=True)
class RankOneRead(SearchingAttack):
    """The input of a linear layer without bias, for one example.

    ∂L/∂W = δxᵀ has rank one: its right singular vector is ±x/‖x‖. The length and the sign are found by simulating the
    update: a grid of lengths inside the data's range, then Brent's method in its best cell. Certified where the
    simulated update explains the observed one. Entries that a known defence left out follow from the others, as long as
    each column has one that was sent. Noise and rounding disturb the first singular vector far less than single
    entries, so the read is a start for a search there, without proof.

    Source: ours; the direction is that of Geiping et al., 2020, Proposition 3.1 without the bias.

    Attributes:
        grid: lengths tried for each sign.
        refinements: most evaluations of Brent's method.
    """

    grid: int = 24
    refinements: int = 60

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        """`EXACT` when certified, `CONVERGED` for a read that does not explain the update."""
        generator = effort.generator
        observation = observation.view
        if observation.examples != 1:
            return Reconstruction.not_applicable("of several examples the gradient has no single direction")
        layers = [layer for layer in input_layers(observation.task, generator) if layer.bias is None]
        if not layers:
            return Reconstruction.not_applicable("no linear layer without bias reads the input")
        entries = SentTensor.of(observation, layers[0].weight)[...]
        sent = entries.value.cpu()
        size = sent.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
        values, directions = torch.linalg.svd(sent / size, full_matrices=False)[1:]
        if not bool(values[0] > 0):
            return Reconstruction(None, None, Status.FAILED, "the layer's gradient is zero")
        direction = directions[0]
        if entries.seen is not None and not bool(entries.seen.all()):
            direction = rank_one(sent / size, entries.seen.cpu(), direction, sweeps=SWEEPS)[1]
            direction = direction / direction.norm().clamp_min(torch.finfo(torch.float64).tiny)
        named = name_labels(observation, generator)
        labels = named.labels
        if labels is None:
            return Reconstruction.not_applicable(named.why)
        explainer = Explainer.of(observation, generator)
        room = effort.budget.gradient_evaluations
        # What is left for Brent's method after the grid and the four evaluations of the check.
        left = self.refinements if room is None else room // explainer.simulator.cost(1) - 2 * self.grid - 4
        if left < self.refinements // 4:
            return Reconstruction.not_applicable("the budget has no room for a search of the length")
        data = observation.task.data

        def raw(length: float) -> Tensor:
            return data.denormalise((length * direction).view(1, *data.shape))

        def misfit(length: float) -> float:
            return explainer.left(Batch(raw(length), labels))

        length = self._length(misfit, direction, data, min(left, self.refinements))
        found = simulated(observation, raw(length), named, generator, explainer)
        return replace(found, cost=effort.cost(found.cost.gradient_evaluations))

    def _length(
        self, misfit: Callable[[float], float], direction: Float[Tensor, " d"], data: DataSpec, refinements: int
    ) -> float:
        """The signed length with the least misfit."""
        edge = direction.new_zeros((1, *data.shape))
        low, high = (data.normalise(edge + v).flatten() for v in (data.low, data.high))
        most = float(torch.maximum(low.abs(), high.abs()).norm())
        slack = 1e-2 * (high - low)
        cells: list[tuple[float, float, float]] = []
        for sign in (1.0, -1.0):
            along = sign * direction
            room = torch.where(along > 0, high + slack, low - slack) / along
            end = min(float(room[along.abs() > 1e-12].min()), most)
            step = end / self.grid
            cells += [(misfit(sign * step * i), sign * step * i, step) for i in range(1, self.grid + 1) if end > 0]
        _, best, step = min(cells)
        found = minimize_scalar(
            misfit,
            bounds=(best - step, best + step),
            method="bounded",
            options={"maxiter": refinements, "xatol": 1e-12 * abs(best)},
        )
        return float(found.x)
