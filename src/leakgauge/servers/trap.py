"""Trap weights: rows that few examples activate, read one by one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from leakgauge.attacks.closed_form.linear import LinearRead
from leakgauge.errors import require
from leakgauge.registry import SERVERS
from leakgauge.servers.blocks import fronted, relu_pair
from leakgauge.servers.server import Broadcast, Change
from leakgauge.task import Task


@SERVERS.register("trap-weights", needs="a linear layer with bias that reads the input, then ReLU and a linear layer")
@dataclass(frozen=True, kw_only=True)
class TrapWeights:
    """Rows with half of their components negative and heavier, so that few examples reach the ReLU.

    Source: Boenisch et al., *When the curious abandon honesty*, EuroS&P 2023, Algorithm 1. In units of the data's
    range, u = (x − low)/range ≥ 0: half of a row's components, at random places, are ``−|w|``, w ~ N(0, 4/d), the
    others ``|w|/factor`` with w drawn alike. A row's answer is negative for most examples; a row that is positive
    for a single example has its gradient from it alone.
    Differs: the model's normalisation is undone in weights and bias (the paper's models read raw data);
    convolutions before the layer are not made to pass the input on, but refused.

    Measured (CIFAR-10, MLP, FedSGD, 3 batches each, images above 60 dB): 256 rows 7, 5, 7 of 8, 14, 9, 12 of 32 and
    18, 18, 15 of 64; 1024 rows 8, 6, 8, then 18, 17, 19, then 23, 20, 18. Factors of 1.03 to 1.08 do about as well; 1.2
    reads nothing. The reader finds those with two rows of their own; with one row it cannot tell them from mixtures.

    Attributes:
        factor: of the negative components, above 1. Larger: fewer examples a row.
    """

    factor: float = 1.05

    def __post_init__(self) -> None:
        require(self.factor > 1, "factor", f"is {self.factor}", "give a number above 1")

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        """Raises `InputError` where no linear layer with bias reads the input in front of a ReLU."""
        first, _ = relu_pair(task, generator)
        assert first.bias is not None
        data, (rows, d) = task.data, task.parameters[first.weight].shape
        size = torch.randn((rows, d), generator=generator, dtype=torch.float64).abs() * (2 / math.sqrt(d))
        negative = torch.rand((rows, d), generator=generator).argsort(1) < d // 2
        unit = torch.where(negative, -size, size / self.factor)
        zero = torch.zeros((1, *data.shape), dtype=torch.float64)
        offset = data.denormalise(zero).flatten()
        slope = data.denormalise(zero + 1).flatten() - offset
        state = {
            first.weight: unit * slope / data.range,
            first.bias: unit @ ((offset - data.low) / data.range),
        }
        return Broadcast(task.with_state(state), LinearRead(), (Change.PARAMETERS,))


@SERVERS.register("linear-first")
@dataclass(frozen=True, kw_only=True)
class LinearFirst:
    """A biased linear layer with trap weights in front of any model: x + back(relu(first(x))) is passed on.

    Source: `TrapWeights`, with the layer of Fowl et al., 2022, in the place that Boenisch et al. need: at the input.
    The way back is small and differs per row, so that a mixture is not the same in two rows.

    Attributes:
        rows: of the layer.
        factor: as in `TrapWeights`.
    """

    rows: int = 512
    factor: float = 1.05

    def __post_init__(self) -> None:
        require(self.rows > 0, "rows", f"is {self.rows}", "give a positive number")
        TrapWeights(factor=self.factor)

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        wrapped = fronted(task, self.rows, "linear-first", generator)
        crafted = TrapWeights(factor=self.factor).broadcast(wrapped, generator)
        return Broadcast(crafted.task, LinearRead(), (Change.ARCHITECTURE,))
