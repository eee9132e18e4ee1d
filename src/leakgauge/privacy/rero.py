"""From ε to a probability: how often a reconstruction can succeed at all."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.signal import lfilter
from scipy.stats import norm

from leakgauge.errors import require
from leakgauge.privacy.accounting import Release, grid_of, opacus, privacy_losses, quiet
from leakgauge.privacy.guarantee import Guarantee

MOST_POINTS = 4_000_000
"""Most points of a discretised privacy loss; beyond, the mesh gets coarser, then the Rényi bound alone counts."""


def success_bound(spent: Guarantee | Sequence[Release], prior: float) -> float:
    """Reconstruction robustness: an attacker whose guess without the releases succeeds with probability at most κ
    succeeds with at most γ(κ) after seeing them all, whatever success means, if all but the unit's data is known.

    The smallest of the bounds that hold:

    * all units in every step: γ = Φ(Φ⁻¹(κ) + μ) with μ² = Σ steps/z². It is exact there, and no sampling is worse.
    * Rényi divergence D_α of the releases with the unit from those without (Balle, Cherubin and Hayes, 2022, by
      Hölder): γ ≤ (κ·e^{D_α})^{(α−1)/α}, smallest over α.
    * privacy-loss random variable, discretised as Opacus' prv does: γ ≤ κ·e^{ε+η} + δ(ε) + η', smallest over ε,
      with η, η' the errors of the discretisation. Up to these it is the trade-off function, so it is tight.

    Raises `InputError`: κ out of range; or a sample rate below 1 and no Opacus.
    """
    require(0 < prior < 1, "prior", f"is {prior}", "give a probability, e.g. 0.001")
    releases = (spent.release,) if isinstance(spent, Guarantee) else spent
    mu = math.hypot(*(math.sqrt(r.steps) / r.noise_multiplier for r in releases))
    if mu > 1e100:
        return 1.0  # so little noise that z² is no number
    bounds = [1.0, float(norm.cdf(norm.ppf(prior) + mu))]
    if any(r.sample_rate < 1 for r in releases):
        bounds += [_renyi(releases, prior), _privacy_loss(releases, prior)]
    return max(min(bounds), prior)


def sentence(spent: Guarantee | Sequence[Release], prior: float) -> str:
    odds, share = 1 / prior, success_bound(spent, prior)
    times = f"{odds:,.0f}".replace(",", " ") if odds >= 10 else f"{odds:.2g}"
    percent = f"{100 * share:.2g}" if share < 0.995 else f"{100 * share:.0f}"
    return (
        f"an attacker whose guess is right 1 time in {times} without the updates is right at most {percent} % of the "
        "time with them"
    )


def _renyi(releases: Sequence[Release], prior: float) -> float:
    orders = opacus("opacus.accountants").RDPAccountant.DEFAULT_ALPHAS
    rdp = opacus("opacus.accountants.analysis.rdp")
    with quiet():
        spent = sum(
            rdp.compute_rdp(q=r.sample_rate, noise_multiplier=r.noise_multiplier, steps=r.steps, orders=orders)
            for r in releases
        )
    alpha = np.asarray(orders, dtype=float)
    logs = (math.log(prior) + np.asarray(spent)) * (alpha - 1) / alpha
    finite = logs[np.isfinite(logs)]
    return math.exp(min(float(finite.min()), 0.0)) if finite.size else 1.0


def _privacy_loss(releases: Sequence[Release], prior: float) -> float:
    """The bound from δ(ε) over the grid of the composed, discretised privacy loss; 1 where the grid is too large."""
    prv = opacus("opacus.accountants.analysis.prv")
    error = prior * 1e-3
    with quiet():
        for mesh in (0.01, 0.1):
            reach, width = grid_of(releases, mesh, error)
            if not 2 * reach / width < MOST_POINTS:
                continue
            domain = prv.Domain.create_aligned(-reach, reach, width)
            cut = [prv.TruncatedPrivacyRandomVariable(x, domain.t_min, domain.t_max) for x in privacy_losses(releases)]
            try:
                loss = prv.compose_heterogeneous([prv.discretize(x, domain) for x in cut], [r.steps for r in releases])
            except (RuntimeError, ValueError):
                continue  # its own check of the discretisation failed
            return _least(np.asarray(loss.domain.ts), np.asarray(loss.pmf), prior, mesh, error)
    return 1.0


def _least(ts: np.ndarray, pmf: np.ndarray, prior: float, mesh: float, error: float) -> float:
    """min over t of κ·e^{t+mesh} + Σ_{s>t} p(s)(1 − e^{t−s}) + error.

    The sum Σ_{s≥t} p(s)e^{t−s} is a recurrence on the even grid. Taken as e^t·Σ p(s)e^{−s} it overflows where losses
    reach hundreds, and a bound below the truth comes out.
    """
    falling = np.flip(np.clip(pmf, 0.0, None))
    upper = falling.cumsum()
    weighted = lfilter([1.0], [1.0, -math.exp(-float(ts[1] - ts[0]))], falling)
    delta = np.flip(np.clip(upper - weighted, 0.0, 1.0))
    bounds = prior * np.exp(np.minimum(ts + mesh, 700.0)) + delta + error
    return float(min(bounds.min(), 1.0))
