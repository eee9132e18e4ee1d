"""Sum of absolute errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from leakgauge.errors import require
from leakgauge.metrics.metric import LESS, prepare
from leakgauge.registry import METRICS
from leakgauge.task import DataSpec


@METRICS.register("l1")
@dataclass(frozen=True, kw_only=True)
class L1:
    """Σ|x̂ − x| per example, a sum over its entries and not a mean, in units of the data.

    Source: Qian & Hansen, Table 6f. Differs: both are clamped to the data's range, as for all our scores, so that a
    search without a box which has left it scores lower than in the paper. It grows with the number of entries: a
    photo of 3×32×32 that is wrong by 1 % of its range everywhere scores 31. Range [0, entries · data_range].
    """

    data_range: float = 1.0
    low: float = 0.0

    name: ClassVar[str] = "l1"
    higher_means: ClassVar[str] = LESS
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))
    needs_truth: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.data_range > 0, "data_range", f"is {self.data_range}", "give the width of the data's range")

    def defined_for(self, spec: DataSpec) -> bool:
        """For all data."""
        return True

    def __call__(self, x_hat: Float[Tensor, "n ..."], x: Float[Tensor, "n ..."]) -> Float[Tensor, " n"]:
        a, b = prepare(x_hat, x, data_range=self.data_range, low=self.low)
        return (a - b).abs().reshape(len(a), -1).sum(1) if len(a) else a.new_zeros(0)
