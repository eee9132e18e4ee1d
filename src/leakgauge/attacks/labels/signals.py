"""Error signals of given inputs, whatever the loss: what an update says of a batch before it speaks of labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.func import vjp

from leakgauge.attacks.adaptive.mixup import single_gradient
from leakgauge.attacks.matching.simulator import ROUNDING, SHIFT, every_input_shows
from leakgauge.defenses import parts_of
from leakgauge.observation import Observation
from leakgauge.task import Task
from leakgauge.view.entries import relative_rounding, surely_sent

MOST = 2**25
"""Entries of the Jacobian that is held: signals × parameters."""
SPARE = 4
"""Equations for each unknown, at least."""


@dataclass(frozen=True, eq=False)
class ErrorSignals:
    """The gradient of any loss that depends on the network by its logits alone is Σ_k (∂z_k/∂θ)ᵀ e_k: linear in the
    error signals e = ∂L/∂z, which least squares finds for given inputs. No label and no loss is needed.

    Attributes:
        task: in float64.
        sent: the client's one gradient, in one row.
        tolerance: share of its length that rounding may leave.
        heard: numbers of the row that the client did send; `None` for all.
    """

    task: Task
    sent: Float[Tensor, " p"]
    tolerance: float
    heard: Bool[Tensor, " p"] | None = None

    @staticmethod
    def of(observation: Observation) -> ErrorSignals | str:
        """What the update says of signals, or why it says nothing."""
        task, gradient = observation.task, single_gradient(observation)
        defense = observation.knowledge.defense
        if gradient is None or (defense is not None and parts_of(defense)):
            return "the update is no gradient at one point as the client worked it out"
        if task.stochastic or task.penalties:
            return "the model draws at random or is penalised, so its logits do not make its gradient"
        double = task.to(torch.empty((), dtype=torch.float64))
        sent = torch.cat([gradient[name].detach().double().flatten().cpu() for name in double.parameters])
        if not bool(sent.any()) or not bool(sent.isfinite().all()):
            return "the update is empty or not finite"
        entry, weights = relative_rounding(observation)
        tolerance = max(ROUNDING * entry + 2 * weights, 1e-9)
        kept = surely_sent(observation, tolerance)
        heard = None if kept is None else torch.cat([kept[name].flatten().cpu() for name in double.parameters])
        return ErrorSignals(double, sent, tolerance, heard)

    def logits(self, inputs: Float[Tensor, "n *shape"]) -> Tensor:
        """Of raw examples."""
        with torch.no_grad():
            return self.task.logits(self.task.parameters, self.task.buffers, inputs.double())[0]

    def affords(self, inputs: Tensor) -> bool:
        """Whether there are enough equations, and room for them."""
        unknowns = self.logits(inputs).numel()
        return SPARE * unknowns <= len(self.sent) and unknowns * len(self.sent) <= MOST

    def solve(self, inputs: Float[Tensor, "n *shape"]) -> tuple[Tensor, Float[Tensor, " p"]]:
        """Error signals, of the shape of the logits, and what they leave of the gradient."""

        def answer(*values: Tensor) -> Tensor:
            parameters = dict(zip(self.task.parameters, values, strict=True))
            return self.task.logits(parameters, self.task.buffers, inputs.double())[0]

        z, back = vjp(answer, *self.task.parameters.values())[:2]
        rows = [torch.cat([g.flatten() for g in back(unit.view_as(z))]) for unit in torch.eye(z.numel()).to(z)]
        matrix = torch.stack(rows, 1).detach()
        size = matrix.norm(dim=0).clamp_min(torch.finfo(torch.float64).tiny)
        solved = torch.linalg.lstsq(matrix / size, self.sent, driver="gelsd").solution
        return (solved / size).view_as(z), self.sent - matrix @ (solved / size)

    def left(self, inputs: Float[Tensor, "n *shape"]) -> float:
        """Share of the gradient's length that no error signals of these inputs explain."""
        return float(self.solve(inputs)[1].norm() / self.sent.norm())

    def nearest(self, candidates: Float[Tensor, "m *shape"], count: int) -> Float[Tensor, "n *shape"]:
        """The candidates that carry most of the gradient: mixtures of examples carry nothing beside these."""
        if len(candidates) <= count:
            return candidates
        signals, _ = self.solve(candidates)
        weight = signals.flatten(1).norm(dim=1)
        return candidates[weight.argsort(descending=True)[:count].sort().values]

    def certified(self, inputs: Float[Tensor, "n *shape"], generator: torch.Generator) -> Bool[Tensor, " n"]:
        """Which examples are proved: together they explain the gradient to its rounding, and no others near them do.

        Others are each example moved at random, and towards every other one, in all combinations: signals are free,
        and of a linear model mixtures of a batch explain what the batch does. An example whose motion others can make
        up for is not proved.
        """
        count, data = len(inputs), self.task.data
        none = torch.zeros(count, dtype=torch.bool)
        if self.tolerance > SHIFT / 10 or not self.affords(inputs) or not self.left(inputs) <= self.tolerance:
            return none
        left, size = self.solve(inputs)[1], self.sent.norm()
        changes: list[Tensor] = []
        for k in range(count):
            noise = torch.randn(inputs[k].shape, generator=generator).double() * data.range
            ways = [noise, *(inputs[other].double() - inputs[k].double() for other in range(count) if other != k)]
            for way in ways:
                moved = inputs.double().clone()
                inside = (moved[k] + SHIFT * way >= data.low) & (moved[k] + SHIFT * way <= data.high)
                moved[k] += SHIFT * torch.where(inside, way, -way)
                changes.append((self.solve(moved)[1] - left) / size)
        columns = torch.stack(changes, 1)
        _, values, ways_back = torch.linalg.svd(columns, full_matrices=False)
        hidden = values < 10 * self.tolerance
        share = ways_back[hidden].square().sum(0) if bool(hidden.any()) else columns.new_zeros(columns.shape[1])
        told: Tensor = share.view(count, -1).amax(1) < 1e-3
        proved: Tensor = told & (columns.norm(dim=0).view(count, -1).amin(1) > 0)
        return proved & self._every_input_shows(inputs)

    def _every_input_shows(self, inputs: Float[Tensor, "n *shape"]) -> Bool[Tensor, " n"]:
        """As an explainer's, for the signals that were found."""
        heard, signals = self.heard, self.solve(inputs)[0]
        if heard is None:
            return torch.ones(len(inputs), dtype=torch.bool)

        def made(x: Tensor) -> Tensor:
            own = {name: value.detach().requires_grad_() for name, value in self.task.parameters.items()}
            z = self.task.logits(own, self.task.buffers, x)[0]
            back = torch.autograd.grad(z, list(own.values()), signals, create_graph=True, materialize_grads=True)
            return torch.cat([g.flatten() for g in back])

        return every_input_shows(made, heard, inputs, self.task.data, 10 * self.tolerance * float(self.sent.norm()))
