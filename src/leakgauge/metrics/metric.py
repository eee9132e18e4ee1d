"""The contract of a score, and the preparation that all of them share."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.errors import require
from leakgauge.task import DataSpec

MORE, LESS = "more leakage", "less leakage"


@runtime_checkable
class Metric(Protocol):
    """A score per example.

    Guarantees: one finite number an example, which depends on that example and its truth alone, never on
    the rest of the batch; both are clamped to [low, low + data_range] first; the order of examples
    is the caller's (see `assign`). Registered constructors take `data_range` and `low`.

    Attributes:
        name: as in plans and reports.
        higher_means: "more leakage" or "less leakage".
        range: the least and the greatest value.
        needs_truth: whether it compares with the true example.
    """

    name: ClassVar[str]
    higher_means: ClassVar[str]
    range: ClassVar[tuple[float, float]]
    needs_truth: ClassVar[bool]

    def defined_for(self, spec: DataSpec) -> bool:
        """Whether the score has a meaning for such data; where not, reports leave it empty."""
        ...

    def __call__(self, x_hat: Float[Tensor, "n ..."], x: Float[Tensor, "n ..."]) -> Float[Tensor, " n"]: ...


def prepare(
    x_hat: Float[Tensor, "n ..."], x: Float[Tensor, "n ..."], *, data_range: float, low: float
) -> tuple[Float[Tensor, "n ..."], Float[Tensor, "n ..."]]:
    """Both in float64 on the CPU, clamped to the data's range. Entries that are not a number become the
    middle of the range, as they say nothing.

    Raises:
        InputError: the shapes differ.
    """
    shapes = f"{tuple(x_hat.shape)} for truth of shape {tuple(x.shape)}"
    require(x_hat.shape == x.shape, "x_hat", f"has shape {shapes}", "assign reconstructions to the truth first")
    return clamped(x_hat, data_range=data_range, low=low), clamped(x, data_range=data_range, low=low)


def clamped(x: Float[Tensor, "n ..."], *, data_range: float, low: float) -> Float[Tensor, "n ..."]:
    """See `prepare`."""
    values = x.detach().to("cpu", torch.float64)
    values = torch.where(values.isnan(), low + data_range / 2, values)
    return values.clamp_(low, low + data_range)
