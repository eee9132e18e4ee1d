"""Statistics of an update as a linear function of label counts, fitted to simulated clients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.attacks.labels.posterior import CountPosterior

RIDGE = 0.1
"""Share added to each variance."""
BELIEVED = 4.0
"""Deviations up to which an energy that contradicts the other statistics keeps its weight."""
LENGTHS, RATIO, ROUNDS = 41, 1.1, 6
"""First guesses of a length, each so many times the one before, and rounds of counts and length in turn."""
EXPECTED = 0.5
"""Standard deviation of the logarithm of a length about that of the simulated clients."""


@dataclass(frozen=True, eq=False)
class Regression:
    """s ≈ A·n + ε, ε ~ N(0, S), all in units of the residuals' standard deviation. Counts sum to B: the intercept is
    in A.

    Attributes:
        energies: of the statistics; they come last and grow with the square of the update, the others with the update.
        rough: norm of the first statistics, the median of the simulated clients.
    """

    slope: Float[Tensor, "c p"]
    covariance: Float[Tensor, "p p"]
    unit: Float[Tensor, " p"]
    energies: int
    rough: float

    @staticmethod
    def of(simulated: Float[Tensor, "r p"], labels: Int[Tensor, "r n"], energies: int, classes: int) -> Regression:
        """By least squares over r clients."""
        n = torch.zeros(len(labels), classes, dtype=simulated.dtype)
        n.scatter_add_(1, labels, torch.ones_like(labels, dtype=n.dtype))
        slope = torch.linalg.solve(n.T @ n + 1e-6 * len(n) * torch.eye(classes, dtype=n.dtype), n.T @ simulated)
        residual = simulated - n @ slope
        unit = residual.std(0).clamp_min(1e-9 * simulated.abs().amax(0) + 1e-30)
        residual, slope = residual / unit, slope / unit
        covariance = residual.T @ residual / max(len(n) - classes, 1) + RIDGE * torch.eye(len(unit), dtype=n.dtype)
        means = len(unit) - energies
        rough = float(simulated[:, :means].norm(dim=1).median())
        return Regression(slope, covariance, unit, energies, rough)

    def posterior(self, observed: Float[Tensor, " p"], near: Float[Tensor, " c"]) -> CountPosterior:
        """p(n | observed). What the first statistics say decides how far each energy is trusted."""
        target, means = observed / self.unit, len(observed) - self.energies
        plain = _solve(self.slope[:, :means], self.covariance[:means, :means], target[:means], near)
        off = (target - plain.mode(near) @ self.slope)[means:].abs() / self.covariance.diagonal()[means:].sqrt()
        doubt = torch.cat([torch.ones(means, dtype=target.dtype), (off / BELIEVED).clamp_min(1.0)])
        return _solve(self.slope, self.covariance * doubt[:, None] * doubt, target, near)

    def lengthened(
        self, observed: Float[Tensor, " p"], near: Float[Tensor, " c"]
    ) -> tuple[Float[Tensor, " p"], Float[Tensor, " c"]]:
        """The statistics of the update before something shortened it as a whole, by an unknown factor f, and counts.

        f and the counts maximise p(observed | f, n) = f^k·N(f·s; A·n, S) over the k first statistics, in turn. Where
        the best misfit is more than chance, as the examples were shortened one by one or differ from the stand-ins, S
        is widened to it, and f is held near what simulated clients have (`EXPECTED`).
        """
        means = len(observed) - self.energies
        a, s = _whitened(self.slope[:, :means], self.covariance[:means, :means], (observed / self.unit)[:means])
        energy, quadratic = float(s @ s), a.T @ a
        size = float(observed[:means].norm())
        if energy == 0 or size == 0 or not math.isfinite(energy):
            return observed, near
        best, length, chosen = -math.inf, 1.0, near
        for k in range(LENGTHS):
            f, counts, heat = self.rough / size * RATIO ** (k - LENGTHS // 2), near, 1.0
            for _ in range(ROUNDS):
                counts = CountPosterior(quadratic, a.T @ s * f).mode(counts)
                heat = max(1.0, float((f * s - a @ counts).square().mean()))
                along = float(s @ (a @ counts))
                f = (along + math.sqrt(along**2 + 4 * heat * means * energy)) / (2 * energy)
            misfit = float((f * s - a @ counts).square().mean())
            heat = max(1.0, misfit)
            score = math.log(f) - 0.5 * misfit / heat - 0.5 * math.log(heat)
            if heat > 1:
                score -= 0.5 * (math.log(f * size / self.rough) / EXPECTED) ** 2
            if score > best:
                best, length, chosen = score, f, counts
        return torch.cat([observed[:means] * length, observed[means:] * length**2]), chosen


def _solve(
    slope: Float[Tensor, "c p"],
    covariance: Float[Tensor, "p p"],
    target: Float[Tensor, " p"],
    near: Float[Tensor, " c"],
) -> CountPosterior:
    """Generalised least squares; the misfit at the mode is the temperature."""
    a, s = _whitened(slope, covariance, target)
    posterior = CountPosterior(a.T @ a, a.T @ s)
    misfit = (s - a @ posterior.mode(near)).square().mean()
    return CountPosterior(posterior.quadratic, posterior.linear, float(misfit.clamp_min(1.0)))


def _whitened(
    slope: Float[Tensor, "c p"], covariance: Float[Tensor, "p p"], target: Float[Tensor, " p"]
) -> tuple[Float[Tensor, "p c"], Float[Tensor, " p"]]:
    factor = torch.linalg.cholesky(covariance)
    a = torch.linalg.solve_triangular(factor, slope.T, upper=False)
    return a, torch.linalg.solve_triangular(factor, target[:, None], upper=False)[:, 0]
