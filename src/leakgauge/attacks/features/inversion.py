"""Examples from hidden tensors that are known: feature inversion, which is continuous in the examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse.linalg import LinearOperator, lsmr
from torch import Tensor
from torch.fx import Node

from leakgauge.attacks.features.descent import Descent
from leakgauge.attacks.features.inside import Inside, Layer
from leakgauge.attacks.features.signals import KnownInside
from leakgauge.attacks.matching import AnnealedAdam, BoundedLBFGS, NoPrior, Prior, TotalVariation
from leakgauge.attacks.matching.problem import Meter, Over, Problem
from leakgauge.attacks.matching.schedules import Falling
from leakgauge.observation import Status
from leakgauge.task import Batch, DataSpec
from leakgauge.tensors import Tensors

HIGH = 60.0
"""Added to the logarithm of a residual, which is then positive."""

ROUNDING = 1e-9
"""Squared residual below which a round that gains little has met the rounding of what is known."""


@dataclass(frozen=True, eq=False)
class KnownTerm:
    """A node whose value is known, and the graph's own that it is compared with.

    Attributes:
        node: compared at: the argument of an activation, or the known node itself.
        value: what it is.
        open: where it may be anything below zero; `None` for nowhere.
    """

    node: Node
    value: Tensor
    open: Tensor | None

    @staticmethod
    def of(node: Node, value: Tensor, known: KnownInside) -> KnownTerm:
        """A hidden tensor, compared at the argument of its activation."""
        bent = known.bent(node)
        if bent is None:
            return KnownTerm(node, value, None)
        opened = value <= 0 if bent.below == 0 else None
        return KnownTerm(known.inside.operands(node)[0], bent.argument(value), opened)


@dataclass(frozen=True, eq=False)
class Residuals:
    """Examples → relative differences to what is known of the network's inside.

    Attributes:
        inside: the batch.
        terms: known values that still depend on the examples.
        held: values that are put in where they come up, beside the term's own.
        products: layers with their signals and their weight's gradient.
    """

    inside: Inside
    terms: tuple[KnownTerm, ...]
    held: dict[Node, Tensor]
    products: tuple[tuple[Layer, Tensor, Tensor], ...]

    @staticmethod
    def of(descent: Descent) -> Residuals:
        """All that a descent knows in front of its deepest tensors."""
        inside, values = descent.inside, descent.state.values
        terms = []
        for node, value in values.items():
            term = KnownTerm.of(node, value, descent.state)
            if inside.open(term.node, [n for n in values if n is not node]):
                terms.append(term)
        gradients = descent.hidden.gradients
        products = tuple((layer, signal, gradients[layer.weight].matrix) for layer, signal in descent.equations())
        return Residuals(inside, tuple(terms), dict(values), products)

    def to(self, dtype: torch.dtype) -> Residuals:
        """The same in another precision."""
        return Residuals(
            self.inside.to(dtype),
            tuple(replace(t, value=t.value.to(dtype)) for t in self.terms),
            {n: v.to(dtype) for n, v in self.held.items()},
            tuple((layer, s.to(dtype), g.to(dtype)) for layer, s, g in self.products),
        )

    @property
    def shape(self) -> torch.Size:
        """Of the examples."""
        return torch.Size((self.inside.examples, *self.inside.task.data.shape))

    @property
    def determined(self) -> bool:
        """Whether there are as many equations as unknowns, a ReLU's zeros not counted, and known values for half.

        Gradients alone are what a search has as well.
        """
        active = sum(t.value.numel() - (0 if t.open is None else int(t.open.sum())) for t in self.terms)
        equations = active + sum(min(g.numel(), s.numel() * g.shape[1] // s.shape[2]) for _, s, g in self.products)
        return equations >= self.shape.numel() <= 2 * active

    def __call__(self, inputs: Float[Tensor, "n *shape"]) -> Float[Tensor, " m"]:
        """All differences, each term relative to the size of what is known."""
        inside, parts = self.inside, []
        nodes = [t.node for t in self.terms] + [layer.hidden for layer, _, _ in self.products]
        # A term's own value is behind its argument; no other argument needs it that does not stand behind it.
        labels = torch.zeros(len(inputs), dtype=torch.long)
        made = inside.run(nodes, self._cut(nodes), Batch(inputs, labels))
        for term, value in zip(self.terms, made, strict=False):
            gap, size = value - term.value, term.value
            if term.open is not None:
                gap, size = torch.where(term.open, value.clamp_min(0), gap), size.masked_fill(term.open, 0)
            parts.append(gap.flatten() / size.norm())
        for (layer, signal, gradient), hidden in zip(self.products, made[len(self.terms) :], strict=True):
            rows = layer.unfolding.rows(layer.unfolding.of_hidden(hidden)).flatten(0, 1)
            parts.append((signal.flatten(0, 1).T @ rows - gradient).flatten() / gradient.norm())
        return torch.cat(parts)

    def _cut(self, nodes: Sequence[Node]) -> dict[Node, Tensor]:
        return {n: v for n, v in self.held.items() if n not in nodes}


@dataclass(frozen=True)
class Inverted:
    """What the inversion came to.

    Attributes:
        inputs: raw.
        residual: ‖differences‖², near zero where these are the client's.
        status: how it ended.
    """

    inputs: Float[Tensor, "n *shape"]
    residual: float
    status: Status


@dataclass(frozen=True, kw_only=True)
class FeatureInversion:
    """√residual + w · total variation by unsigned Adam, w falling; then log residual by L-BFGS within the data's range;
    then Levenberg–Marquardt in float32, and two rounds in float64.

    The root keeps its slope where the residual is small, and the total variation leads from grey to the basin: at its
    end the residual alone decides. Its logarithm makes a step as large near the end as it is far from it. What is left
    of the residual tells success without the truth.

    Attributes:
        steps: of Adam, and as many of L-BFGS, each a gradient evaluation.
        lr: of Adam, in shares of the data's range.
        weight, last: of the total variation, first and last.
        spread: of the start around grey.
        finish: residual below which Levenberg–Marquardt takes over.
    """

    steps: int = 700
    lr: float = 0.1
    weight: float = 1.0
    last: float = 0.002
    spread: float = 0.05
    finish: float = 1e-2

    def __call__(
        self, residuals: Residuals, data: DataSpec, meter: Meter, generator: torch.Generator, *, rounds: int = 8
    ) -> Inverted:
        """From grey, within the meter's budget."""
        single = residuals.to(torch.float32)
        shape = residuals.shape
        image = data.is_image
        prior: Prior = TotalVariation(self.weight) if image else NoPrior()

        def raw(share: Tensor) -> Tensor:
            return data.low + data.range * share

        def loss(variables: Tensors) -> tuple[Tensor, Tensor]:
            share = variables["inputs"]
            squares = single(raw(share)).square().sum()
            root = squares.sqrt()
            return root + prior(share), root

        start = 0.5 + self.spread * torch.randn(shape, generator=generator)
        problem = Problem(
            loss,
            {"inputs": start.clamp(0, 1)[None]},
            {"inputs": (torch.zeros(()), torch.ones(()))},
            meter,
            schedule=Falling(to=self.last / self.weight, levels=40) if image else None,
        )
        minimum = AnnealedAdam(steps=self.steps, lr=self.lr, floor=0.02).minimise(problem)
        if not minimum.variables:
            return Inverted(raw(start), float("inf"), minimum.status)

        def logarithm(variables: Tensors) -> tuple[Tensor, Tensor]:
            left = HIGH + single(raw(variables["inputs"])).square().sum().log()
            return left, left

        near = BoundedLBFGS(steps=self.steps, history=50, scale=1.0, tolerance=0.0)
        closer = near.minimise(replace(problem, loss=logarithm, start=minimum.variables, schedule=None))
        minimum = closer if closer.variables else minimum
        found = raw(minimum.variables["inputs"][0].double()).detach()
        with torch.no_grad():
            left = float(residuals(found).square().sum())
        if left < self.finish:
            single_found, left = polished(single, found.float(), data, meter, rounds=rounds)
            found, left = polished(residuals, single_found.double(), data, meter, rounds=2 if left < ROUNDING else 0)
        return Inverted(found, left, minimum.status)


def polished(
    residuals: Residuals,
    inputs: Float[Tensor, "n *shape"],
    data: DataSpec,
    meter: Meter,
    *,
    rounds: int,
    inner: int = 160,
) -> tuple[Float[Tensor, "n *shape"], float]:
    """Levenberg–Marquardt with LSMR for its steps, kept in the data's range, in the precision of the inputs.

    Each product with the Jacobian or its adjoint counts as a gradient evaluation.
    """
    best = float(residuals(inputs).detach().double().square().sum())
    damping = 1e-4
    for _ in range(rounds):
        if meter.over(2 * inner) is not None:
            break
        try:
            step = _step(residuals, inputs, damping, inner, meter)
        except Over:
            break
        before, whole = best, False
        for length in (1.0, 0.5, 0.2):
            trial = (inputs + length * step).clamp(data.low, data.high)
            with torch.no_grad():
                left = float(residuals(trial).double().square().sum())
            if left < best:
                inputs, best, whole = trial, left, length == 1.0
                break
        if best < ROUNDING and best > before / 4:
            break
        damping = max(damping / 10 if whole else damping if best < before else 10 * damping, 1e-12)
        if damping > 1:
            break
    return inputs, best


def _step(residuals: Residuals, inputs: Tensor, damping: float, inner: int, meter: Meter) -> Tensor:
    point = inputs.clone().requires_grad_()
    with torch.enable_grad():
        made = residuals(point)
        dual = torch.zeros_like(made, requires_grad=True)
        (back,) = torch.autograd.grad(made, point, dual, create_graph=True)

    def forward(step: np.ndarray) -> np.ndarray:
        meter.tick()
        towards = torch.from_numpy(step).view_as(inputs).to(inputs)
        return torch.autograd.grad(back, dual, towards, retain_graph=True)[0].double().numpy()

    def adjoint(left: np.ndarray) -> np.ndarray:
        towards = torch.from_numpy(left).to(inputs)
        return torch.autograd.grad(made, point, towards, retain_graph=True)[0].flatten().double().numpy()

    operator = LinearOperator((made.numel(), inputs.numel()), matvec=forward, rmatvec=adjoint, dtype=np.float64)
    right = -made.detach().double().numpy()
    found = lsmr(operator, right, damp=damping**0.5, atol=1e-10, btol=1e-10, conlim=0, maxiter=inner)
    meter.spent += 2 * int(found[2])
    return torch.from_numpy(found[0]).view_as(inputs).to(inputs)
