"""Posterior of label counts: exact by sampling, in the mean field, and by regression on simulated clients."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.attacks.labels.strategy import SimulatedHead
from leakgauge.clients.protocol import Protocol
from leakgauge.observation import Observation
from leakgauge.tracing import LinearLayer


def labels_of(counts: Float[Tensor, " c"]) -> Int[Tensor, " n"]:
    """The sorted multiset that has these counts."""
    return torch.repeat_interleave(torch.arange(len(counts)), counts.long())


def mean_field(
    observation: Observation, layer: LinearLayer, protocol: Protocol, features: Float[Tensor, "m f"], count: int
) -> tuple[Float[Tensor, " c"], float]:
    """Counts if every example had the mean feature: a few fixed-point steps with a simulation each. Any size."""
    classes = observation.task.data.classes
    mean = features.mean(0)[None]
    axis = mean / mean.norm().clamp_min(1e-12)

    def summary(w: Tensor, b: Tensor | None) -> Tensor:
        return w[:, 0] if b is None else b

    head = SimulatedHead.of(observation.task, layer, protocol, axis, mean, summary)
    moved, moved_bias = layer.of(observation.update.tensors)
    observed, index = summary(moved @ axis.T, moved_bias), torch.zeros(1, count, dtype=torch.long)
    ends = [head(index, torch.full((1, count), c))[0] for c in (0, min(1, classes - 1))]
    unit = (ends[0] - ends[1])[0] / count
    shares = features.new_ones(classes)
    counts = largest_remainder(shares, count)
    if classes < 2 or not bool(unit.abs() > 0):
        return counts, 0.0
    for _ in range(6):
        simulated = head(index, labels_of(counts)[None])[0]
        shares = counts + ((observed - simulated) / unit)[:classes]
        counts = largest_remainder(shares, count)
    off = (torch.nan_to_num(shares, posinf=0.0, neginf=0.0) - counts).abs().sum() / 2
    return counts, float((1 - off / count).clamp(0, 1))


CHAINS, STEPS = 256, 800  # of the sampler: a flat posterior over many examples is not left far behind in so few


@dataclass(frozen=True, eq=False)
class CountPosterior:
    """p(n) ∝ exp(−(½·nᵀQn − qᵀn)/T) over count vectors n ≥ 0 of a given sum, all of them equally likely before. A
    temperature T above one widens it where the model does not fit."""

    quadratic: Float[Tensor, "c c"]
    linear: Float[Tensor, " c"]
    temperature: float = 1.0

    def energy(self, counts: Float[Tensor, "m c"]) -> Float[Tensor, " m"]:
        return (0.5 * ((counts @ self.quadratic) * counts).sum(1) - counts @ self.linear) / self.temperature

    def mode(self, start: Float[Tensor, " c"]) -> Float[Tensor, " c"]:
        """Descends from `start` by moving one example at a time, to the best neighbour, until none is better."""
        counts = start
        for _ in range(10 * int(start.sum()) + 10):
            energies = self.energy(near := neighbours(counts))
            best = int(energies.argmin())
            if best == 0 or float(energies[0] - energies[best]) < 1e-9:
                break
            counts = near[best]
        return counts

    def sample(self, mode: Float[Tensor, " c"], generator: torch.Generator) -> Float[Tensor, "m c"]:
        """Metropolis chains from the mode, each step giving one example of a class to another; thinned states. All
        pairs of classes are proposed alike, so the proposal is symmetric; an empty class gives nothing."""
        q, classes, row = (self.quadratic / self.temperature).numpy(), len(mode), torch.arange(CHAINS).numpy()
        counts, kept, diagonal = mode.repeat(CHAINS, 1).numpy(), [], q.diagonal()
        slope = (mode @ torch.from_numpy(q) - self.linear / self.temperature).repeat(CHAINS, 1).numpy()
        for step in range(STEPS):  # in numpy, of which each small step costs a third
            giver, taker = torch.randint(classes, (2, CHAINS), generator=generator).numpy()
            rise = slope[row, taker] - slope[row, giver] + 0.5 * (diagonal[giver] + diagonal[taker]) - q[giver, taker]
            odds = torch.rand(CHAINS, generator=generator, dtype=mode.dtype).log().numpy()
            go = (odds < -rise) & (counts[row, giver] > 0) & (giver != taker)
            who, gives, takes = row[go], giver[go], taker[go]
            counts[who, gives] -= 1
            counts[who, takes] += 1
            slope[who] += q[takes] - q[gives]
            if step >= STEPS // 2 and step % 8 == 0:
                kept.append(torch.from_numpy(counts.copy()))
        return torch.cat(kept)


def neighbours(counts: Float[Tensor, " c"]) -> Float[Tensor, "m c"]:
    """The counts themselves, then all that differ by one example of one class given to another."""
    eye = torch.eye(len(counts), dtype=counts.dtype)
    moves = (eye[None] - eye[counts > 0][:, None]).flatten(0, 1)
    return torch.cat([counts[None], counts + moves[moves.abs().sum(1) > 0]])


def best_expected_f1(draws: Float[Tensor, "m c"], total: int) -> Int[Tensor, " n"]:
    """The multiset of `total` labels with the largest multiset F1 in the mean over drawn counts: as F1(n, m) is
    Σ_c Σ_{j ≤ n_c} [m_c ≥ j]/total, it is the `total` largest of P(m_c ≥ j), which fall with j."""
    at_least = torch.stack([(draws >= j).to(draws).mean(0) for j in range(1, total + 1)], 1)
    return (at_least.flatten().argsort(descending=True, stable=True)[:total] // total).sort().values


def largest_remainder(shares: Float[Tensor, " c"], total: int) -> Float[Tensor, " c"]:
    """Whole numbers ≥ 0 that sum to `total`, nearest to `shares` scaled to that sum."""
    shares = torch.nan_to_num(shares).clamp_min(0)
    shares = shares * total / shares.sum() if float(shares.sum()) > 0 else torch.full_like(shares, total / len(shares))
    counts = shares.floor()
    rest = total - int(counts.sum())
    counts[(shares - counts).argsort(descending=True, stable=True)[:rest]] += 1
    return counts


RIDGE = 0.1  # share added to each variance
BELIEVED = 4.0  # deviations up to which an energy that contradicts the other statistics keeps its weight
LENGTHS, RATIO, ROUNDS = 41, 1.1, 6  # first guesses of a length, their ratio, and rounds of counts and length in turn
EXPECTED = 0.5  # standard deviation of the logarithm of a length about that of the simulated clients


@dataclass(frozen=True, eq=False)
class Regression:
    """s ≈ A·n + ε, ε ~ N(0, S), all in units of the residuals' standard deviation. Counts sum to B: the intercept is in
    A."""

    slope: Float[Tensor, "c p"]
    covariance: Float[Tensor, "p p"]
    unit: Float[Tensor, " p"]
    # of the statistics; they come last and grow with the square of the update, the others with the update
    energies: int
    rough: float  # norm of the first statistics, the median of the simulated clients

    @staticmethod
    def of(simulated: Float[Tensor, "r p"], labels: Int[Tensor, "r n"], energies: int, classes: int) -> "Regression":
        """By least squares over r clients."""
        n = torch.zeros(len(labels), classes, dtype=simulated.dtype)
        n.scatter_add_(1, labels, torch.ones_like(labels, dtype=n.dtype))
        slope = torch.linalg.solve(n.T @ n + 1e-6 * len(n) * torch.eye(classes, dtype=n.dtype), n.T @ simulated)
        residual = simulated - n @ slope
        unit = residual.std(0).clamp_min(1e-9 * simulated.abs().amax(0) + 1e-30)
        residual, slope = residual / unit, slope / unit
        covariance = residual.T @ residual / max(len(n) - classes, 1) + RIDGE * torch.eye(len(unit), dtype=n.dtype)
        rough = float(simulated[:, : len(unit) - energies].norm(dim=1).median())
        return Regression(slope, covariance, unit, energies, rough)

    def posterior(self, observed: Float[Tensor, " p"], near: Float[Tensor, " c"]) -> CountPosterior:
        """p(n | observed). What the first statistics say decides how far each energy is trusted."""
        target, means = observed / self.unit, len(observed) - self.energies
        plain = self._solved(self.covariance, target, near, means)
        off = (target - plain.mode(near) @ self.slope)[means:].abs() / self.covariance.diagonal()[means:].sqrt()
        doubt = torch.cat([torch.ones(means, dtype=target.dtype), (off / BELIEVED).clamp_min(1.0)])
        return self._solved(self.covariance * doubt[:, None] * doubt, target, near, None)

    def lengthened(
        self, observed: Float[Tensor, " p"], near: Float[Tensor, " c"]
    ) -> tuple[Float[Tensor, " p"], Float[Tensor, " c"]]:
        """The statistics of the update before something shortened it as a whole, by an unknown factor f, and counts:
        they maximise p(observed | f, n) = f^k·N(f·s; A·n, S) over the k first statistics, in turn. Where the best
        misfit is more than chance S is widened to it, and f is held near what simulated clients have (`EXPECTED`)."""
        means = len(observed) - self.energies
        a, s = self._whitened(self.covariance, observed / self.unit, means)
        energy, size = float(s @ s), float(observed[:means].norm())
        if energy == 0 or size == 0 or not math.isfinite(energy):
            return observed, near
        best, length, chosen = -math.inf, 1.0, near
        for k in range(LENGTHS):
            f, counts, heat = self.rough / size * RATIO ** (k - LENGTHS // 2), near, 1.0
            for _ in range(ROUNDS):
                counts = CountPosterior(a.T @ a, a.T @ s * f).mode(counts)
                heat = max(1.0, float((f * s - a @ counts).square().mean()))
                along = float(s @ (a @ counts))
                f = (along + math.sqrt(along**2 + 4 * heat * means * energy)) / (2 * energy)
            misfit = float((f * s - a @ counts).square().mean())
            score = math.log(f) - 0.5 * min(misfit, 1.0) - 0.5 * math.log(max(1.0, misfit))
            if misfit > 1:
                score -= 0.5 * (math.log(f * size / self.rough) / EXPECTED) ** 2
            if score > best:
                best, length, chosen = score, f, counts
        return torch.cat([observed[:means] * length, observed[means:] * length**2]), chosen

    def _solved(
        self,
        covariance: Float[Tensor, "p p"],
        target: Float[Tensor, " p"],
        near: Float[Tensor, " c"],
        first: int | None,
    ) -> CountPosterior:
        """Generalised least squares in the first statistics; the misfit at the mode is the temperature."""
        a, s = self._whitened(covariance, target, first)
        posterior = CountPosterior(a.T @ a, a.T @ s)
        misfit = (s - a @ posterior.mode(near)).square().mean()
        return replace(posterior, temperature=float(misfit.clamp_min(1.0)))

    def _whitened(
        self, covariance: Float[Tensor, "p p"], target: Float[Tensor, " p"], first: int | None
    ) -> tuple[Float[Tensor, "m c"], Float[Tensor, " m"]]:
        factor = torch.linalg.cholesky(covariance[:first, :first])
        a = torch.linalg.solve_triangular(factor, self.slope[:, :first].T, upper=False)
        return a, torch.linalg.solve_triangular(factor, target[:first, None], upper=False)[:, 0]
