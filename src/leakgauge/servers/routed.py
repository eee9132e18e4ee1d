"""An architecture that sends each example of a batch to a small layer of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from leakgauge.errors import require
from leakgauge.observation import Observation, ReadingAttack, Reconstruction
from leakgauge.registry import SERVERS
from leakgauge.servers.blocks import honest_module, linear, rebuilt
from leakgauge.servers.reads import Slots, read_slots, row_errors
from leakgauge.servers.server import Broadcast, Change
from leakgauge.task import Task

TURNS = 100.0
"""How often the hash goes round while the brightness crosses the data's range."""


def places(brightness: Float[Tensor, " n"], turns: float, copies: int) -> Float[Tensor, " n"]:
    """A hash of the brightness on the circle [0, copies); its whole part is the copy."""
    return torch.remainder(brightness * turns, 1.0) * copies


class Routed(nn.Module):
    """x ↦ model(x) + head(copies[hash(x)](x))."""

    edges: Tensor

    def __init__(self, model: nn.Module, copies: nn.Linear, head: nn.Linear, number: int, turns: float) -> None:
        super().__init__()
        self.model, self.copies, self.head = model, copies, head
        self.number, self.turns = number, turns
        self.register_buffer("edges", torch.arange(number).to(copies.weight))

    def forward(self, x: Float[Tensor, "n *shape"]) -> Float[Tensor, "n outputs"]:
        flat = x.flatten(1)
        place = places(flat.detach().mean(1), self.turns, self.number)[:, None]
        gate = ((place >= self.edges) & (place < self.edges + 1)).to(flat)
        answers = self.copies(flat).unflatten(1, (self.number, -1))
        return self.model(x) + self.head((gate[:, :, None] * answers).sum(1))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class RoutedRead(ReadingAttack):
    """One slot a copy (`leakgauge.servers.reads`)."""

    copies: int
    turns: float

    def read(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """Costs no gradient evaluation. `EXACT` where no copy can have been shared, over any local steps."""
        data = observation.task.data
        names = "copies.weight", "copies.bias"
        weight, bias = (observation.values(name).unflatten(0, (self.copies, -1)) for name in names)
        error = [row_errors(observation, name, terms=1).view(self.copies, -1).amax(1) for name in names]
        driven = (weight != 0).any(2).any(1)
        own = torch.arange(self.copies).to(weight)

        def belongs(raw: Float[Tensor, "copies d"]) -> Bool[Tensor, " copies"]:
            mean = data.normalise(raw.view(-1, *data.shape)).flatten(1).mean(1)
            place = places(mean, self.turns, self.copies)
            return ((place - own - 0.5 + self.copies / 2).remainder(self.copies) - self.copies / 2).abs() < 0.6

        slots = Slots(weight, bias, (error[0], error[1]), driven, belongs, steadfast=True)
        return read_slots(slots, observation, generator)


@SERVERS.register("sub-model-per-example")
@dataclass(frozen=True, kw_only=True)
class SubModelPerExample:
    """A small linear layer many times beside the model; a hash of its brightness routes each example to one.

    Source: the limit of Fowl et al.'s bins, ICLR 2022, in which nothing is shared: a copy's gradient is that of the
    examples routed to it, and its rows ÷ biases are the example that is there alone. The routing has no gradient and no
    parameters, so that local steps do not change it and reads stay exact over FedAvg (no weight decay).
    A hash instead of brightness thresholds fills the copies evenly whatever the data's distribution:
    n·(1 − 1/copies)^(n−1) of n examples are alone.
    Measured (CIFAR-10 before a LeNet, FedSGD in float32, 3 batches each, above 60 dB): of 64 images 29, 26, 29 with 64
    copies (expected 23.7), 43, 56, 55 with 256 (50.0), 58, 60, 62 with 512 (56.6).

    Attributes:
        copies: of the layer.
        width: rows of a copy. From 2 on, rows that disagree tell a mixture.
    """

    copies: int = 256
    width: int = 2

    def __post_init__(self) -> None:
        for name, value in (("copies", self.copies), ("width", self.width)):
            require(value > 0, name, f"is {value}", "give a positive number")

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        data = task.data
        turns = TURNS * sum(data.std) / len(data.std) / data.range
        copies = linear(math.prod(data.shape), self.copies * self.width, task, generator)
        head = linear(self.width, task.outputs, task, generator, scale=0.1)
        module = Routed(honest_module(task), copies, head, self.copies, turns)
        return Broadcast(
            rebuilt(task, module, "sub-model-per-example"), RoutedRead(self.copies, turns), (Change.ARCHITECTURE,)
        )
