"""How much of an update a candidate batch leaves unexplained, by simulating the client on it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.attacks.matching.simulator import Simulator
from leakgauge.observation import Observation
from leakgauge.task import Batch
from leakgauge.tensors import Tensors, Wire, inner, squared_norm

ROUNDING = 200
"""A simulated update may differ from the observed one by this many units of rounding: sums over the batch and the
network's depth, and the error of what was read."""

SHIFT = 1e-2
"""A certified example stands out: moved at random by this share of the range, it explains ten times less."""


@dataclass(eq=False)
class Explainer:
    """Simulates the client in float64. Truth plays no part.

    Attributes:
        simulator: the client as the attacker knows it.
        tolerance: relative distance that rounding allows.
        spent: gradient evaluations so far.
    """

    simulator: Simulator
    tolerance: float
    spent: int = field(default=0)

    @staticmethod
    def of(observation: Observation, generator: torch.Generator) -> Explainer:
        """For one observation; `generator` stands for draws that are not known."""
        simulator = Simulator.of(observation, torch.empty((), dtype=torch.float64), generator)
        unit = Wire.of(*observation.update.tensors.values()).unit
        return Explainer(simulator, max(ROUNDING * unit, 1e-9))

    def left(self, batch: Batch) -> float:
        """‖a·simulated − observed‖ / ‖observed‖, where a is 1, or the best length where it is not known."""
        self.spent += self.simulator.cost(len(batch))
        with torch.no_grad():
            made = {k: v.detach() for k, v in self.simulator(_double(batch)).items()}
        return relative_distance(made, self.simulator.observed, free=not self.simulator.scale_known)

    def certified(self, batch: Batch, generator: torch.Generator) -> Bool[Tensor, " n"]:
        """Which examples are proved: together they explain the update to its rounding, and each must be what it is.

        Behind noise, rounding or draws that are not known nothing explains an update that well.
        """
        count = len(batch)
        if self.tolerance > SHIFT / 10 or not self.left(batch) <= self.tolerance:
            return torch.zeros(count, dtype=torch.bool)
        data, proved = self.simulator.task.data, []
        for index in range(count):
            moved = batch.inputs.double().clone()
            moved[index] += SHIFT * data.range * torch.randn(moved[index].shape, generator=generator).double()
            proved.append(self.left(Batch(moved, batch.labels)) > 10 * self.tolerance)
        return torch.tensor(proved)


def _double(batch: Batch) -> Batch:
    return Batch(batch.inputs.double(), batch.labels)


def relative_distance(made: Tensors, seen: Tensors, *, free: bool) -> float:
    """‖a·made − seen‖ / ‖seen‖ over the tensors of `seen`, where a is 1, or the best length where it is `free`."""
    made = {k: made[k] for k in seen}
    size = squared_norm(seen).clamp_min(torch.finfo(torch.float64).tiny)
    length: Tensor | Float[Tensor, ""] = torch.ones((), dtype=torch.float64)
    if free:
        length = inner(made, seen) / squared_norm(made).clamp_min(torch.finfo(torch.float64).tiny)
    return float((squared_norm({k: length * made[k] - seen[k] for k in seen}) / size).sqrt())
