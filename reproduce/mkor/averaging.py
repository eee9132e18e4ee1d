"""What MKOR's theory expects of random batches, and of what averaging hides."""

from __future__ import annotations

import math
from collections.abc import Sequence

from leakgauge.errors import require


def expected_singletons(batch: int, classes: int | Sequence[float]) -> float:
    """Expected number of examples that are alone in their class in a random batch: Σ_n K·p_n·(1 − p_n)^(K−1).

    Source: MKOR, Eq. 3, which is the case of N equally likely classes: K·(1 − 1/N)^(K−1), 36.97 for N = K = 100. An
    attack that recovers each class's mean recovers these examples unmixed; at the most K/e or so of K = N.

    Labels are drawn independently. Where a batch is drawn without replacement from few examples, slightly more
    are alone.

    Args:
        batch: number of examples, K.
        classes: number of equally likely classes N, or the probability of each.

    Raises:
        InputError: no example, no class, or probabilities that do not sum to one.
    """
    require(batch > 0, "batch", f"is {batch}", "give a positive number of examples")
    if isinstance(classes, int):
        require(classes > 0, "classes", f"is {classes}", "give a positive number of classes")
        return float(batch * (1 - 1 / classes) ** (batch - 1))
    shares = list(classes)
    valid = bool(shares) and min(shares) >= 0 and math.isclose(sum(shares), 1, rel_tol=1e-6)
    require(valid, "classes", "are no probabilities that sum to one", "give one share a class")
    return batch * sum(p * (1 - p) ** (batch - 1) for p in shares)


def hidden_by_averaging(batch: int, dimensions: int = 1) -> float:
    """Mutual information in nats between one example and the mean of K: dimensions · ½·ln(K / (K − 1)).

    Source: MKOR, Eqs. 1–2, for examples that are independent draws of one Gaussian. Derivation: x̄ = (1/K)·Σ x_k has
    variance σ²/K, and its covariance with x₁ is σ²/K, so their squared correlation is (σ²/K)² / (σ² · σ²/K) = 1/K.
    Two jointly Gaussian numbers of correlation ρ share −½·ln(1 − ρ²), which is ½·ln(K/(K − 1)). A vector with any
    covariance of full rank is whitened by an invertible map that commutes with the mean, and its dimensions add up.

    It is what knowing the mean tells about one example, and bounds every attack that sees only the mean. About
    1/(2K) nats a dimension for large K; infinite for K = 1, where the mean is the example. Pictures are not
    Gaussian: with a strong prior (all examples of one class alike) the mean tells more than this.

    Args:
        batch: number of examples averaged, K.
        dimensions: of one example, or the rank of its covariance.

    Raises:
        InputError: no example, or no dimension.
    """
    require(batch > 0, "batch", f"is {batch}", "give a positive number of examples")
    require(dimensions > 0, "dimensions", f"is {dimensions}", "give a positive number")
    return math.inf if batch == 1 else -0.5 * dimensions * math.log1p(-1 / batch)
