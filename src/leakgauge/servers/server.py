"""What a server broadcasts, and what a dishonest one can read out of the answer because of it."""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

import torch

from leakgauge.observation import Attack
from leakgauge.registry import SERVERS
from leakgauge.task import Task


class Change(Enum):
    """What a dishonest server has to control. Each is a stronger threat model than the one before."""

    PARAMETERS = "parameters"  #: an ordinary state dict of an ordinary architecture, with crafted values
    LOSS = "loss"  #: the client also trains with a loss that the server chose
    ARCHITECTURE = "architecture"  #: the client runs a model that the server designed


@dataclass(frozen=True, eq=False)
class Broadcast:
    """What a server sends to its clients, and what it keeps."""

    task: Task  #: what clients receive
    #: the attack that the server prepared: it reads the answer because of what was crafted into the task. Made without
    #: sight of any client's data. `None` from an honest server.
    crafting: Attack | None = None
    changes: tuple[Change, ...] = ()  #: what the server had to control


@runtime_checkable
class Server(Protocol):
    """How a server answers clients that ask for the model.

    Guarantees: a pure function of its arguments; the honest task is not changed; the crafted one has the
    same data format. Clients use the broadcast task for all of their local training.
    """

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        """The task for clients, from the honest one. Raises `InputError`: the construction does not fit this
        architecture; names what it would need."""


@SERVERS.register("honest")
@dataclass(frozen=True)
class Honest:
    """Broadcasts the model as it is."""

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        return Broadcast(task)
