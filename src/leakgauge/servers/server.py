"""What a server broadcasts, and what a dishonest one can read out of the answer because of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

from leakgauge.registry import SERVERS
from leakgauge.task import Task

if TYPE_CHECKING:
    from leakgauge.compute import Budget, Compute
    from leakgauge.observation import Observation, OnStep, Reconstruction


class Change(Enum):
    """What a dishonest server has to control. Each is a stronger threat model than the one before."""

    PARAMETERS = "parameters"
    """An ordinary state dict of an ordinary architecture, with crafted values."""
    LOSS = "loss"
    """The client also trains with a loss that the server chose."""
    ARCHITECTURE = "architecture"
    """The client runs a model that the server designed."""


@runtime_checkable
class Crafting(Protocol):
    """The server's secret: what it put into the model, and the attack that reads it.

    Made without sight of any client's data. Has the guarantees of `leakgauge.observation.Attack`.
    """

    @property
    def changes(self) -> tuple[Change, ...]:
        """What the server changed, for the report."""
        ...

    def reconstruct(
        self,
        observation: Observation,
        generator: torch.Generator,
        *,
        budget: Budget = ...,
        compute: Compute = ...,
        on_step: OnStep | None = None,
    ) -> Reconstruction: ...


@dataclass(frozen=True, eq=False)
class Broadcast:
    """The task that clients receive; `crafting` is `None` from an honest server."""

    task: Task
    crafting: Crafting | None = None


@runtime_checkable
class Server(Protocol):
    """How a server answers clients that ask for the model.

    Guarantees: a pure function of its arguments; the honest task is not changed; the crafted one has the
    same data format. Clients use the broadcast task for all of their local training.
    """

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        """The task for clients, from the honest one.

        Raises:
            InputError: the construction does not fit this architecture; names what it would need.
        """
        ...


@SERVERS.register("honest")
@dataclass(frozen=True)
class Honest:
    """Broadcasts the model as it is."""

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        del generator
        return Broadcast(task)
