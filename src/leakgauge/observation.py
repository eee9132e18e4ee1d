"""All that an attack receives."""

from __future__ import annotations

from dataclasses import dataclass, fields

from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.clients.protocol import Protocol
from leakgauge.defenses.defense import Defense
from leakgauge.draws import Draws
from leakgauge.servers.server import Crafting
from leakgauge.task import Task
from leakgauge.tensors import Tensors
from leakgauge.update import Update


@dataclass(frozen=True, eq=False)
class Knowledge:
    """One field per thing an attacker may know; `None` is unknown. No field hides another.

    Attributes:
        labels: the batch's labels, in the client's order.
        example_count: how many examples made the update.
        local_training: the client's protocol with its hyper-parameters (never labels or order).
        buffers: the client's buffers after local training, e.g. BatchNorm statistics.
        defense: the mechanism that the client applies.
        draws: the client's random choices, order of batches included. No real server has them.
        public_data: examples from the attacker's own collection, raw.
        crafting: what a dishonest server put into the model, when the attacker is that server.
    """

    labels: Int[Tensor, " n"] | None = None
    example_count: int | None = None
    local_training: Protocol | None = None
    buffers: Tensors | None = None
    defense: Defense | None = None
    draws: Draws | None = None
    public_data: Float[Tensor, "m *shape"] | None = None
    crafting: Crafting | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The fields that are known, for the report."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) is not None)


@dataclass(frozen=True, eq=False)
class Observation:
    """Task, update and knowledge. It never holds the client's data."""

    task: Task
    update: Update
    knowledge: Knowledge

    def __post_init__(self) -> None:
        self.update.check(self.task.parameters)

    @property
    def examples(self) -> int | None:
        """How many made the update: by the labels where they are known, else by the count."""
        return self.example_count if self.knowledge.labels is None else len(self.knowledge.labels)

    @property
    def example_count(self) -> int | None:
        """From the attacker's knowledge, else from the update's header."""
        known = self.knowledge.example_count
        return known if known is not None else self.update.header.example_count
