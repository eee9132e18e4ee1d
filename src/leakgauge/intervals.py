"""How sure a share or a mean is."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import betaincinv, stdtrit

from leakgauge.errors import require

DRAWS = 8_000  # draws of the weights behind `bounded_upper`: the quantile's own error is .0025 in probability
MANY = 200  # values above which `bounded_upper` draws no weights


@dataclass(frozen=True)
class Interval:
    """Both ends included; `None` is unbounded, so that a report holds no infinity."""

    low: float | None
    high: float | None

    def rounded(self, digits: int) -> Mapping[str, Any]:
        """Both ends by name; of values with bounds they are numbers."""
        return {name: None if end is None else round(end, digits) for name, end in vars(self).items()}


def proportion_lower(hits: int, n: int, confidence: float = 0.95) -> float:
    """Exact one-sided Clopper–Pearson lower bound of a share; 0 for no hits or no trials."""
    return 1 - proportion_upper(n - hits, n, confidence)


def proportion_upper(hits: int, n: int, confidence: float = 0.95) -> float:
    """Exact one-sided Clopper–Pearson upper bound of a share; 0 of 8 at 95 % gives .312. 1 for no trials."""
    require(0 <= hits <= n, "hits", f"is {hits} of {n}", "count hits among the trials")
    require(0 < confidence < 1, "confidence", f"is {confidence}", "give a share, e.g. 0.95")
    return float(betaincinv(hits + 1, n - hits, confidence)) if hits < n else 1.0


def proportion_interval(hits: int, n: int, confidence: float = 0.95) -> Interval:
    """Exact two-sided Clopper–Pearson interval of a share."""
    side = 1 - (1 - confidence) / 2
    return Interval(proportion_lower(hits, n, side), proportion_upper(hits, n, side))


def bounded_upper(values: Sequence[float], confidence: float = 0.95, *, low: float = 0.0, high: float = 1.0) -> float:
    """One-sided upper bound of the mean of independent values in [low, high], e.g. one share a client.

    The `confidence` quantile of Σ wᵢ·xᵢ over the values and one more at `high`, with weights w uniform on the simplex.
    For values at the two ends it is the Clopper–Pearson bound. Within a client anything may depend on anything: the
    client is the unit, so eight clients of eight pictures each support no more than eight do.

    Source: Gaffke, Three test statistics for a nonparametric one-sided hypothesis on the mean of a nonnegative
    variable, 2005; Learned-Miller and Thomas, A new confidence interval for the mean of a bounded random variable,
    2019. That it holds in general is a conjecture, and true in every simulation known.
    Differs: the quantile is of `DRAWS` fixed draws of the weights. Above `MANY` values it is the Clopper–Pearson bound
    with a fraction of a hit, which is wider. Of no values it is `high`. Raises `InputError`: a value is outside
    [low, high], or not a number.
    """
    require(0 < confidence < 1, "confidence", f"is {confidence}", "give a share, e.g. 0.95")
    sample = np.asarray(values, dtype=np.float64)
    inside = bool(((sample >= low) & (sample <= high)).all())
    require(inside, "values", f"are not all in [{low:g}, {high:g}]", "give the range that they cannot leave")
    if set(sample.tolist()) <= {low, high}:
        return low + (high - low) * proportion_upper(int((sample == high).sum()), len(sample), confidence)
    if len(sample) > MANY:
        hits = len(sample) * float((sample.mean() - low) / (high - low))
        return low + (high - low) * float(betaincinv(hits + 1, len(sample) - hits, confidence))
    return float(np.quantile(_weights(len(sample) + 1) @ np.append(sample, high), confidence))


@lru_cache(maxsize=32)
def _weights(n: int) -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.ones(n), DRAWS)


def bounded_lower(values: Sequence[float], confidence: float = 0.95, *, low: float = 0.0, high: float = 1.0) -> float:
    return -bounded_upper([-v for v in values], confidence, low=-high, high=-low)


def bounded_interval(values: Sequence[float], *, low: float = 0.0, high: float = 1.0) -> Interval:
    """Two-sided 95 % interval of the mean of independent values in [low, high]; see `bounded_upper`."""
    return Interval(bounded_lower(values, 0.975, low=low, high=high), bounded_upper(values, 0.975, low=low, high=high))


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Student's interval of the mean of independent values without bounds, e.g. the mean PSNR of each client.

    Fewer than two values say nothing of their spread and give an unbounded interval. Exact for values from a normal
    law, near it for one hump. Where a few clients are far from all others (an exact copy beside failures) no interval
    of a mean without bounds holds for few clients: read the highest value and the shares there. Raises `InputError`: a
    value is not finite.
    """
    sample = np.asarray(values, dtype=np.float64)
    require(bool(np.isfinite(sample).all()), "values", "are not all finite", "cap them first")
    require(0 < confidence < 1, "confidence", f"is {confidence}", "give a share, e.g. 0.95")
    if len(sample) < 2:
        return Interval(None, None)
    half = float(stdtrit(len(sample) - 1, (1 + confidence) / 2) * sample.std(ddof=1) / math.sqrt(len(sample)))
    return Interval(float(sample.mean()) - half, float(sample.mean()) + half)
