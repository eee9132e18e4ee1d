"""MKOR: maximum knowledge orthogonality reconstruction."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from leakgauge.observation import Observation, ReadingAttack, Reconstruction, Status
from leakgauge.registry import SERVERS
from leakgauge.servers.mkor.classes import Decoy
from leakgauge.servers.mkor.convolutions import PublishedTaps
from leakgauge.servers.mkor.heads import Constant
from leakgauge.servers.mkor.parts import FeatureMap, Head, LossTreatment, Taps, Wiring
from leakgauge.servers.server import Broadcast, Change
from leakgauge.task import Task


@dataclass(frozen=True, eq=False)
class MKORCrafting(ReadingAttack):
    """The inverse of the crafted layers, and which gradient rows hold which class. No data in it."""

    map: FeatureMap
    wiring: Wiring

    def read(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """One picture per class that was read, with its label; an average where a class has several examples.

        Costs no gradient evaluation and draws nothing. `CONVERGED`, never certified: the inverse of the pooling is
        an interpolation. `FAILED` with the reason where no class can be read.
        """
        del generator
        reading = self.wiring.read(observation, self.map.positions)
        if isinstance(reading, str):
            return Reconstruction(None, None, Status.FAILED, reading)
        features = self.map.rescaled(reading.features) if reading.up_to_scale else reading.features
        inputs = self.map.images(features)
        if not bool(torch.isfinite(inputs).all()):
            return Reconstruction(None, None, Status.NON_FINITE, f"not finite; {reading.message}")
        sure = 1.0 if reading.certain and observation.knowledge.labels is None else None
        message = "; ".join(part for part in (reading.message, self.map.remark) if part)
        return Reconstruction(inputs, reading.classes, Status.CONVERGED, message, None, sure)


@SERVERS.register("mkor", needs="a plain convolutional network with linear layers, and a unit for every class")
@dataclass(frozen=True, kw_only=True)
class MKOR:
    """Maximum Knowledge Orthogonality Reconstruction: one picture per class from a batch of any size.

    Each class drives rows of its own in the first linear layer; their weight gradient divided by their bias gradient is
    the class's mean feature, and the layers below are crafted so that features can be turned back into a
    picture. Nothing of the client's data is needed, and no search.

    Differs from the paper in the loss: with soft-max cross-entropy, which real clients use, the published server reads
    nothing from a batch with every class once. The default `decoy` works with an honest client's loss; `nll-raw` is the
    published code's, and then the server changes the client's loss too.

    Attributes:
        taps: the layers below the first linear one.
        head: the linear layers.
        loss: what is done about the loss.
    """

    taps: Taps = field(default_factory=PublishedTaps)
    head: Head = field(default_factory=Constant)
    loss: LossTreatment = field(default_factory=Decoy)

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        """Raises `InputError` where the layers, the head or the loss treatment do not fit the model."""
        features = self.taps.craft(task, generator)
        built = self.head.craft(task, features, self.loss, generator)
        changes = (Change.PARAMETERS,) if built.task.loss is task.loss else (Change.PARAMETERS, Change.LOSS)
        return Broadcast(built.task, MKORCrafting(features.map, built.wiring), changes)
