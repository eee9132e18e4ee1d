"""Identification by squared error alone: the rank of each true example among strangers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.errors import require
from leakgauge.metrics.likeness import TIE, Assignment, pairwise_mse


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
    gallery: Float[Tensor, "g ..."],
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
