"""From ε to a probability: how often a reconstruction can succeed at all."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.optimize import minimize_scalar
from scipy.stats import norm

from leakgauge.errors import require
from leakgauge.privacy.accounting import ACCOUNTANTS, Release, Uncountable, epsilon_of, grid_points
from leakgauge.privacy.guarantee import Guarantee


def success_bound(spent: Guarantee | Sequence[Release], prior: float) -> float:
    """Reconstruction robustness: an attacker whose guess without the releases succeeds with probability at most κ
    succeeds with at most γ(κ) after seeing them all, whatever success means, if all but the unit's data is known.

    The smallest of the bounds that hold:

    * all units in every step: γ = Φ(Φ⁻¹(κ) + μ) with μ² = Σ steps/z². It is exact there, and no sampling is worse.
    * ε at δ by each accountant: γ ≤ κ·e^ε + δ, smallest over δ.

    Args:
        spent: a guarantee, or the releases of a ledger.
        prior: κ in (0, 1).

    Raises:
        InputError: κ out of range; or a sample rate below 1 and no Opacus.
    """
    require(0 < prior < 1, "prior", f"is {prior}", "give a probability, e.g. 0.001")
    releases = (spent.release,) if isinstance(spent, Guarantee) else spent
    mu = math.hypot(*(math.sqrt(r.steps) / r.noise_multiplier for r in releases))
    if mu > 1e100:
        return 1.0  # so little noise that z² is no number
    bounds = [1.0, float(norm.cdf(norm.ppf(prior) + mu))]
    if any(r.sample_rate < 1 for r in releases):
        bounds += [_trade_off(releases, prior, accountant) for accountant in ACCOUNTANTS]
    return max(min(bounds), prior)


def sentence(spent: Guarantee | Sequence[Release], prior: float) -> str:
    """The bound in words."""
    return (
        f"an attacker whose guess is right 1 time in {_whole(1 / prior)} without the updates is right at most "
        f"{_percent(success_bound(spent, prior))} % of the time with them"
    )


def _percent(share: float) -> str:
    """Two digits; 100, not 1e+02."""
    return f"{100 * share:.2g}" if share < 0.995 else f"{100 * share:.0f}"


def _whole(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if value >= 10 else f"{value:.2g}"


def _trade_off(releases: Sequence[Release], prior: float, accountant: str) -> float:
    """min over δ of κ·e^{ε(δ)} + δ; 1 where the accountant cannot count, or not fast."""
    if accountant == "prv" and not grid_points(releases, 0.01, prior * 1e-6) < 1e6:
        return 1.0

    def right(log_delta: float) -> float:
        delta = math.exp(log_delta)
        return prior * math.exp(min(epsilon_of(releases, delta, accountant), 700.0)) + delta

    try:
        found = minimize_scalar(
            right, bounds=(math.log(prior * 1e-3), 0.0), method="bounded", options={"xatol": 0.3, "maxiter": 10}
        )
    except Uncountable:
        return 1.0
    return min(float(found.fun), 1.0)
