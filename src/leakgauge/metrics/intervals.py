"""How sure a share or a mean is."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import DegenerateDataWarning, beta, bootstrap

from leakgauge.errors import require


@dataclass(frozen=True)
class Interval:
    """Both ends included; `None` is unbounded, so that a report holds no infinity."""

    low: float | None
    high: float | None


def proportion_lower(hits: int, n: int, confidence: float = 0.95) -> float:
    """Exact one-sided Clopper–Pearson lower bound of a share; 0 for no hits or no trials."""
    _check(hits, n, confidence)
    return float(beta.ppf(1 - confidence, hits, n - hits + 1)) if hits > 0 else 0.0


def proportion_upper(hits: int, n: int, confidence: float = 0.95) -> float:
    """Exact one-sided Clopper–Pearson upper bound of a share; 0 of 8 at 95 % gives .312. 1 for no trials."""
    _check(hits, n, confidence)
    return float(beta.ppf(confidence, hits + 1, n - hits)) if hits < n else 1.0


def proportion_interval(hits: int, n: int, confidence: float = 0.95) -> Interval:
    """Exact two-sided Clopper–Pearson interval of a share."""
    side = 1 - (1 - confidence) / 2
    return Interval(proportion_lower(hits, n, side), proportion_upper(hits, n, side))


def _check(hits: int, n: int, confidence: float) -> None:
    require(0 <= hits <= n, "hits", f"is {hits} of {n}", "count hits among the trials")
    require(0 < confidence < 1, "confidence", f"is {confidence}", "give a share, e.g. 0.95")


def mean_interval(
    values: Sequence[float], generator: np.random.Generator, confidence: float = 0.95, resamples: int = 2000
) -> Interval:
    """Bootstrap interval (BCa) of the mean of independent values, e.g. one number a batch.

    Edge cases: fewer than two values say nothing of their spread and give an unbounded interval; equal values give
    a point; where BCa is undefined, the percentile method. Below about ten values the interval is too narrow.

    Raises:
        InputError: a value is not finite.
    """
    sample = np.asarray(values, dtype=np.float64)
    require(bool(np.isfinite(sample).all()), "values", "are not all finite", "cap them first")
    require(0 < confidence < 1, "confidence", f"is {confidence}", "give a share, e.g. 0.95")
    if len(sample) < 2:
        return Interval(None, None)
    if sample.min() == sample.max():
        return Interval(float(sample[0]), float(sample[0]))

    def ends(method: str) -> tuple[float, float]:
        found = bootstrap(
            (sample,),
            np.mean,
            confidence_level=confidence,
            n_resamples=resamples,
            method=method,
            random_state=generator,
        ).confidence_interval
        return float(found.low), float(found.high)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateDataWarning)
        low, high = ends("BCa")
    if math.isnan(low) or math.isnan(high):
        low, high = ends("percentile")
    return Interval(low, high)
