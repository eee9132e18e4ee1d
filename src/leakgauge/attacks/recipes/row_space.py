"""A search in the few directions that a linear input layer's gradient leaves."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.matching import (
    BoundedLBFGS,
    JointSoftLabels,
    Matching,
    Minimiser,
    Objective,
    SquaredL2,
    Uniform,
)
from leakgauge.attacks.matching.parts import Bounds, Canvas, Start
from leakgauge.compute import Budget, Compute
from leakgauge.errors import require
from leakgauge.observation import Observation, OnStep, Reconstruction
from leakgauge.registry import ATTACKS
from leakgauge.task import DataSpec
from leakgauge.tensors import Tensors
from leakgauge.tracing import input_layers

FAINT = 1e-6
"""Singular values below this share of the largest are rounding in float32."""


@dataclass(frozen=True, eq=False)
class SpanCanvas(Canvas):
    """Examples as combinations of fixed ones. No box: coefficients have none."""

    basis: Float[Tensor, "r d"]
    first: Start = field(default_factory=Uniform)

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        """The first guess, projected."""
        return {"coefficients": self.first(examples, data, generator).flatten(1) @ self.basis.T}

    def decode(self, variables: Tensors, data: DataSpec) -> Float[Tensor, "n *shape"]:
        coefficients = variables["coefficients"]
        return (coefficients @ self.basis.to(coefficients)).view(len(coefficients), *data.shape)

    def bounds(self, data: DataSpec) -> dict[str, Bounds]:
        return {}


@ATTACKS.register(
    "row-space", needs="a linear layer on the input as wide as the batch; example_count; a smooth network"
)
@dataclass(frozen=True, kw_only=True)
class RowSpace:
    """Matches gradients over combinations of the rows of ∂L/∂W.

    ∂L/∂W = Σ_k δ_k x_kᵀ, so with at least as many units as examples its rows span the examples: B·B numbers are
    unknown in place of B·d. It turns Qian & Hansen's condition n₁ ≥ B into a search that ends: eight digits of 1 024
    pixels from a sigmoid network of 8 units, labels unknown (two weight seeds, two restarts: L1 below 0.001 an image
    at 8, 12 and 16 units, at 10 in one of the two; 24 at 7 units, 59 at 6). 3 000 evaluations of L-BFGS-B and 150
    steps of a search on the pixels did not recover them. Tanh works too; ReLU did for four
    digits with four units and not with eight (one seed). With fewer units than examples the span cannot hold the truth.

    Source: ours; the span is the "rows" argument behind their Proposition 2.

    Attributes:
        minimiser, restarts: of the search; the lowest distance is the answer.
        objective: of the search.
        first: where it starts.
    """

    minimiser: Minimiser = field(
        default_factory=lambda: BoundedLBFGS(steps=2000, history=100, scale=1e6, tolerance=0.0)
    )
    restarts: int = 4
    objective: Objective = field(default_factory=SquaredL2)
    first: Start = field(default_factory=Uniform)

    def __post_init__(self) -> None:
        require(self.restarts > 0, "restarts", f"is {self.restarts}", "give a positive number")

    def reconstruct(
        self,
        observation: Observation,
        generator: torch.Generator,
        *,
        budget: Budget = Budget(),
        compute: Compute = Compute(),
        on_step: OnStep | None = None,
    ) -> Reconstruction:
        """The best found within the budget."""
        observation = observation.view
        examples, layers = observation.examples, input_layers(observation.task, generator)
        if examples is None:
            return Reconstruction.not_applicable("needs the number of examples (knows: example_count)")
        if not layers:
            return Reconstruction.not_applicable("needs a linear layer that reads the input")
        rows = observation.update.tensors[layers[0].weight].double()
        values, directions = torch.linalg.svd(rows, full_matrices=False)[1:]
        kept = min(examples, int((values > FAINT * values[0]).sum()))
        if not kept:
            return Reconstruction.not_applicable("the input layer's gradient is zero")
        attack = Matching(
            objective=self.objective,
            canvas=SpanCanvas(directions[:kept].cpu(), self.first),
            minimiser=self.minimiser,
            labels=JointSoftLabels(),
            restarts=self.restarts,
        )
        return attack.reconstruct(observation, generator, budget=budget, compute=compute, on_step=on_step)
