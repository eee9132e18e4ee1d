"""Null baselines: what an attacker reaches without any update."""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor

from leakgauge.data.lent import AT_ONCE, Lent, in_chunks, some_of
from leakgauge.errors import require
from leakgauge.metrics.assignment import pairwise_mse


def mean_image(public: Float[Tensor, "m ..."] | Lent, n: int) -> Float[Tensor, "n ..."]:
    """The mean of the public examples, `n` times: the constant guess with the least squared error over them.

    Raises:
        InputError: there are no public examples.
    """
    require(len(public) > 0, "public", "is empty", "give public examples, see leakgauge.data.public")
    if isinstance(public, Lent) and 4 * len(public) * math.prod(public.shape) <= 16 * AT_ONCE:
        public = public.whole()
    if isinstance(public, Lent):
        mean = public.take([0]).double().zero_()
        for chunk in in_chunks(public, max(1, AT_ONCE // (8 * mean.numel()))):
            mean += chunk.double().sum(0, keepdim=True)
        mean = (mean / len(public)).float()
    else:
        mean = public.mean(0, keepdim=True)
    return mean.repeat(n, *([1] * (mean.ndim - 1)))


def nearest_public(
    truth: Float[Tensor, "n ..."], public: Float[Tensor, "m ..."] | Lent, *, data_range: float = 1.0, low: float = 0.0
) -> Float[Tensor, "n ..."]:
    """For each true example the public one with the least squared error.

    It is chosen by the truth, which no attacker can do: a generous bar. A reconstruction below it is less like
    the truth than some stranger's example. One public example may serve several truths.

    Raises:
        InputError: there are no public examples.
    """
    require(len(public) > 0, "public", "is empty", "give public examples, see leakgauge.data.public")
    return some_of(public, pairwise_mse(truth, public, data_range=data_range, low=low).argmin(1).tolist())
