"""A hidden tensor that error signals depend on, as behind statistics of the batch, by smooth least squares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize_scalar
from scipy.sparse.linalg import LinearOperator, lsmr
from torch import Tensor

from leakgauge.attacks.features.inside import Layer
from leakgauge.attacks.features.null_space import signals_of
from leakgauge.attacks.features.read import Noisy
from leakgauge.attacks.features.signals import KnownInside, KnownTerm
from leakgauge.attacks.features.systems import design_of
from leakgauge.attacks.matching.problem import Meter
from leakgauge.view.derivatives import jacobian

ROUNDS, INNER, LONGER = 16, 80, 300  # of Gauss–Newton, and iterations of LSMR in each, and in the last ones
SIZES = 3  # powers of two of a start, in deviations: much smaller ones meet what keeps a norm finite
ENOUGH = 2e-11  # what is left, squared, of a tensor that is found
STUCK, PATIENT = 0.5, 3  # share of what was left that rounds must get below, but for so many
DAMPED, WEAK = 1e-2, 1e-3  # Levenberg's damping at the start; least size of a direction, in shares of the largest
NEAR = 1e-5  # what is left, squared, where the last rounds begin
SPREAD = 30.0  # times the error of a tensor that is found over which its zeros are spread
FREE = 1e-12  # eigenvalues of the design, in shares of the largest, of directions that gradients do not tell


@dataclass(frozen=True, eq=False)
class SmoothSystem:
    """What a hidden tensor leaves of its layers' gradients, and of the known tensors that it makes with others."""

    known: KnownInside
    layers: tuple[Layer, ...]  # that read it
    gradients: tuple[Float[Tensor, "filters columns"], ...]
    terms: tuple[KnownTerm, ...]

    @staticmethod
    def of(known: KnownInside, layers: Sequence[Layer], gradients: Mapping[str, Noisy]) -> SmoothSystem:
        hidden, inside, terms = layers[0].hidden, known.inside, []
        for node, value in known.values.items():
            others, term = [n for n in known.values if n is not node], KnownTerm.of(node, value, known)
            if inside.open(term.node, others) and not inside.open(term.node, [hidden, *others]):
                terms.append(term)
        return SmoothSystem(
            known, tuple(layers), tuple(gradients[layer.weight].matrix for layer in layers), tuple(terms)
        )

    def to(self, dtype: torch.dtype) -> SmoothSystem:
        inside = self.known.inside.to(dtype)
        values, sent = ({n: t.to(dtype) for n, t in held.items()} for held in (self.known.values, self.known.sent))
        known = replace(self.known, inside=inside, values=values, sent=sent)
        terms = tuple(term.changed(lambda value: value.to(dtype)) for term in self.terms)
        return replace(self, known=known, gradients=tuple(g.to(dtype) for g in self.gradients), terms=terms)

    def determined(self, spare: float) -> bool:
        """Whether there are so many equations for each number."""
        active = sum(term.active for term in self.terms)
        numbers = self.known.inside.examples * self.layers[0].unfolding.channels * self.layers[0].unfolding.pixels
        return active + sum(g.numel() for g in self.gradients) >= spare * numbers

    def signals(self, hidden: Tensor) -> list[Float[Tensor, "n places filters"]]:
        """At the outputs of its layers."""
        inside = self.known.inside
        given = {**self.known.given, self.layers[0].hidden: hidden}
        made = inside.run([layer.output for layer in self.layers], given)
        return [inside.signals(layer.product, one) for layer, one in zip(self.layers, made, strict=True)]

    def jumps(self, hidden: Tensor) -> bool:
        """Whether signals change with the tensor by jumps alone, as where a max-pool takes another place."""
        with torch.enable_grad():
            own = hidden.clone().requires_grad_()
            total = torch.stack([(one * one.detach()).sum() for one in self.signals(own)]).sum()
            return not total.requires_grad or not bool(torch.autograd.grad(total, own)[0].any())

    def __call__(self, hidden: Tensor) -> Float[Tensor, " m"]:
        """All differences, each gradient's and each known tensor's relative to its size."""
        found = []
        for layer, gradient, signal in zip(self.layers, self.gradients, self.signals(hidden), strict=True):
            rows = layer.unfolding.rows(layer.unfolding.of_hidden(hidden)).flatten(0, 1)
            found.append(((signal.flatten(0, 1).T @ rows - gradient) / gradient.norm()).flatten())
        nodes = [term.node for term in self.terms]
        held = {n: v for n, v in self.known.values.items() if n not in nodes}
        made = self.known.inside.run(nodes, {**held, self.layers[0].hidden: hidden})
        for term, value in zip(self.terms, made, strict=True):
            found.append(term.gaps(value).flatten() / term.value.masked_fill(term.open, 0).norm())
        return torch.cat(found)

    def left(self, hidden: Tensor) -> float:
        """Of all differences, squared."""
        with torch.no_grad():
            return float(self(hidden).square().sum())

    def sized(self, start: Tensor) -> Tensor:
        """A start times what leaves least."""
        start = start / start.square().mean().sqrt()

        def left(power: float) -> float:
            return self.left(2.0**power * start)

        best = min(range(-SIZES, SIZES + 1), key=left)
        found = minimize_scalar(left, bounds=(best - 1, best + 1), method="bounded", options={"xatol": 1e-9})
        return float(2.0**found.x) * start if found.fun < STUCK * left(0) else start  # if anything behind it tells

    def solved(self, start: Tensor, meter: Meter, *, rectified: bool) -> tuple[Tensor, float]:
        """Gauss–Newton with Levenberg's damping from a start, and what it leaves. `rectified`: a ReLU made it, which
        also tells the shift of a channel that gradients do not: its least number is zero. Raises `Over` where the meter
        ends it."""
        found, damping, single = start, DAMPED, self.to(torch.float32)
        history = [least := self.left(found)]
        for index in range(ROUNDS):
            meter.note(index, least)
            step = self._step(single, found, damping, least, meter)
            for share in (1.0, 0.5, 0.2, 0.05):
                moved = found + share * step
                if (left := self.left(moved)) < least:
                    found, least = moved, left
                    break
            else:
                share = 0.0
            damping = damping / 10 if share == 1.0 else damping if share else damping * 10
            history.append(least)
            if len(history) > PATIENT and least > STUCK * history[-1 - PATIENT]:
                break
            if least < ENOUGH and least > STUCK * history[-2]:
                break
        if rectified:
            found = self._grounded(found, least)
            least = self.left(found)
        return found, least

    def _design(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Squares of singular values, and vectors, of what gradients are of one channel where signals stand still."""
        with torch.no_grad():
            parts = [
                design_of(layer, signal) / gradient.norm()
                for layer, gradient, signal in zip(self.layers, self.gradients, self.signals(hidden), strict=True)
            ]
        design = torch.cat(parts)
        values, vectors = torch.linalg.eigh(design.T @ design)
        return values.clamp_min(0), vectors

    def _step(self, single: SmoothSystem, hidden: Tensor, damping: float, left: float, meter: Meter) -> Tensor:
        """In coordinates in which a channel's design is diagonal."""
        layer, count = self.layers[0], self.known.inside.examples
        channels, shape = layer.unfolding.channels, hidden.shape
        values, vectors = self._design(hidden)
        wide = (vectors / (values + WEAK * values[-1]).sqrt()).float()

        def spread(steps: np.ndarray) -> Tensor:
            maps = torch.from_numpy(np.asarray(steps, dtype=np.float32)).view(channels, -1) @ wide.T
            return layer.hidden_of(maps.view(channels, count, -1).transpose(0, 1)).reshape(shape)

        def gathered(slopes: np.ndarray) -> np.ndarray:
            maps = layer.unfolding.of_hidden(torch.from_numpy(np.asarray(slopes, dtype=np.float32)).view(shape))
            found: np.ndarray = (maps.transpose(0, 1).reshape(channels, -1) @ wide).flatten().double().numpy()
            return found

        _, slope = jacobian(single, hidden.float(), meter.tick)
        operator = LinearOperator(
            slope.shape,
            lambda steps: slope.matvec(spread(steps).flatten().numpy()),
            lambda gaps: gathered(slope.rmatvec(gaps)),
            dtype=np.float64,
        )
        with torch.no_grad():
            right = -self(hidden).numpy()
        accurate = min(0.1, left**0.5)
        most = INNER if left > NEAR else LONGER
        solved = lsmr(operator, right, damp=damping**0.5, atol=1e-3 * accurate, btol=accurate, conlim=0, maxiter=most)
        return spread(solved[0]).double()

    def _grounded(self, hidden: Tensor, left: float) -> Tensor:
        """With zero as the least number along a direction of each channel that nothing else tells."""
        values, vectors = self._design(hidden)
        layer, free = self.layers[0], values < FREE * values[-1]
        if int(free.sum()) != 1:
            return hidden
        along = vectors[:, free][:, 0]
        along = along * along.sum().sign()
        on = along > 1e-6 * along.max()
        maps = layer.unfolding.of_hidden(hidden).transpose(0, 1).flatten(1)
        if bool((along[~on] < -1e-6).any()):
            return hidden
        heights = maps[:, on] / along[on]
        above, error = heights - heights.amin(1, keepdim=True), left**0.5 * float(heights.std())
        zeros = above <= SPREAD * error
        shift = (heights * zeros).sum(1, keepdim=True) / zeros.sum(1, keepdim=True)
        lower = maps - shift * along
        moved = layer.hidden_of(lower.view(len(maps), self.known.inside.examples, -1).transpose(0, 1))
        return moved if self.left(moved) < max(ENOUGH, 4 * left) else hidden


def by_input(
    known: KnownInside, layer: Layer, gradient: Float[Tensor, "filters columns"]
) -> tuple[Float[Tensor, "n used filters"], float] | None:
    """Error signals at a layer's output, and the share of its gradient that they leave; `None` where its input is not
    known or its rows are not independent."""
    unfolding = layer.unfolding.only(layer.used)
    if known.inside.open(layer.hidden, known.values) or unfolding.places * known.inside.examples > unfolding.columns:
        return None
    (hidden,) = known.inside.run([layer.hidden], known.values)
    rows = layer.centred(unfolding.rows(unfolding.of_hidden(hidden)))
    signals = signals_of(rows, gradient)
    made = signals.flatten(0, 1).T @ rows.flatten(0, 1)
    return signals, float((made - gradient).norm() / gradient.norm())
