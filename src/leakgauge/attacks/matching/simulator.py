"""The attacker's own client: candidate batch → update as it would look on the wire."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakgauge.clients import FedSGD, Protocol, raw_update
from leakgauge.defenses import AttackerView, Defense, NoDefense, view_of
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.observation import Observation
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import UpdateKind


@dataclass(frozen=True, eq=False)
class Simulator:
    """Runs the very functions that the client ran, on what the attacker knows.

    Where local training is unknown and the update is a delta, the candidate's gradient with its sign
    turned stands for it: right in direction for small local steps, unknown in length (`scale_known`).
    """

    task: Task
    observed: Tensors
    view: AttackerView
    protocol: Protocol
    defense: Defense
    draws: Draws
    sign: float
    scale_known: bool

    @staticmethod
    def of(observation: Observation, like: torch.Tensor, generator: torch.Generator) -> Simulator:
        """In the dtype and on the device of `like`. Unknown draws are replaced by the attacker's own.

        Raises:
            InputError: the stated local training makes another kind of update than the one observed.
        """
        knowledge, update = observation.knowledge, observation.update
        task = observation.task.to(like)
        observed = map_tensors(lambda t: t.to(like), update.tensors)
        protocol = knowledge.local_training
        if protocol is not None and protocol.kind is not update.header.kind:
            raise InputError(
                "knowledge.local_training",
                f"{protocol} sends a {protocol.kind.value}, the update is a {update.header.kind.value}",
                "make them agree",
            )
        defense = knowledge.defense or NoDefense()
        cast = type(update)(observed, update.header)
        return Simulator(
            task=task,
            observed=observed,
            view=view_of(defense, cast, knowledge.draws),
            protocol=protocol or FedSGD(),
            defense=defense,
            draws=knowledge.draws or Draws.sample(generator),
            sign=-1.0 if protocol is None and update.header.kind is UpdateKind.DELTA else 1.0,
            scale_known=protocol is not None or update.header.kind is UpdateKind.GRADIENT,
        )

    def __call__(self, batch: Batch) -> Tensors:
        """Simulated update, differentiable in the batch."""
        raw = raw_update(self.task, self.protocol, batch, self.draws, self.defense)[0]
        return self.view(map_tensors(lambda t: self.sign * t, raw) if self.sign < 0 else raw)

    def cost(self, examples: int) -> int:
        """Gradient evaluations of one call."""
        return self.protocol.steps(examples)
