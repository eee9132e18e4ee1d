"""Null baselines: what an attacker reaches without any update."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.data.lent import AT_ONCE, Lent, in_chunks, some_of
from leakgauge.errors import require
from leakgauge.metrics.assignment import Assignment, pairwise_mse


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


TIE = 1e-9
"""Relative difference below which two distances count as equal."""


@dataclass(frozen=True, eq=False)
class Identification:
    """Rank of each true example among the candidates by distance to its reconstruction.

    Attributes:
        ranks: 1 is nearest; the number of candidates for a truth without a reconstruction.
        candidates: gallery and truth together.
    """

    ranks: Int[Tensor, " n"]
    candidates: int

    @property
    def identified(self) -> Bool[Tensor, " n"]:
        """Whose true example is strictly nearer than every distractor."""
        return self.ranks == 1

    @property
    def rate(self) -> float:
        """Share of the true examples that are identified."""
        return float(self.identified.double().mean()) if len(self.ranks) else 0.0

    @property
    def chance(self) -> float:
        """The rate that a guess among exchangeable candidates reaches."""
        return 1 / self.candidates


def identify(
    x_hat: Float[Tensor, "m ..."],
    x: Float[Tensor, "n ..."],
    assignment: Assignment,
    gallery: Float[Tensor, "g ..."] | Lent,
    *,
    data_range: float = 1.0,
    low: float = 0.0,
) -> Identification:
    """Ranks by mean squared error after clamping. Ties count against identification, so that a reconstruction
    that is as near to a distractor as to the truth identifies nobody.

    Raises:
        InputError: the gallery is empty, which would identify everybody.
    """
    require(len(gallery) > 0, "gallery", "is empty", "give distractors, see leakgauge.data.gallery")
    ranks = torch.full((len(x),), len(gallery) + 1)
    matched = list(assignment.matched)
    if matched:
        taken = assignment.take(x_hat)
        to_others = pairwise_mse(taken, gallery, data_range=data_range, low=low)
        to_truth = pairwise_mse(taken, x[matched], data_range=data_range, low=low).diagonal()[:, None]
        ranks[matched] = 1 + (to_others <= to_truth * (1 + TIE)).sum(1)
    return Identification(ranks, len(gallery) + 1)
