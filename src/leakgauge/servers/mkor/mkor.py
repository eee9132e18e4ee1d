"""Maximum knowledge orthogonality reconstruction: linear layers in which a class drives rows of its own, the server."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.attacks.effort import ReadingAttack
from leakgauge.errors import require
from leakgauge.observation import Observation, Reconstruction, Status
from leakgauge.registry import SERVERS
from leakgauge.servers.mkor.convolutions import PublishedTaps
from leakgauge.servers.mkor.network import EVAL, NetworkLayer, linear_stack
from leakgauge.servers.mkor.parts import (
    HEADS,
    CraftedFeatures,
    CraftedHead,
    Decoy,
    FeatureMap,
    Head,
    LossTreatment,
    Routes,
    Taps,
)
from leakgauge.servers.server import Broadcast, Change
from leakgauge.task import Task
from leakgauge.tensors import Tensors

MOST = 16
"""Paths a class gets by default under dropout: at p = .5 in two layers, one example in 33 000 is lost."""


@dataclass(frozen=True)
class UnitsPlan:
    """How many units each class gets.

    Attributes:
        layers: the linear layers, first one first.
        outputs: logits that are wired: all of them where the hidden layers are wide enough, at least all classes.
        paths: units of each hidden layer that a class owns.
        lost: chance that dropout silences all paths of a class that one example has, 1 − Π_l (1 − p_l^paths).
    """

    layers: tuple[NetworkLayer, ...]
    outputs: int
    paths: int
    lost: float

    @property
    def hidden(self) -> tuple[NetworkLayer, ...]:
        return self.layers[:-1]


def planned(task: Task, paths: int | None, *, first: int = 1) -> UnitsPlan:
    """The plan for a task; in the first hidden layer a path takes `first` units.

    Raises:
        InputError: a hidden layer has too few units for the classes, dropout hides features or logits in train mode,
            the first linear layer has no bias, or the model does not end in linear layers.
    """
    layers = linear_stack(task)
    biased = layers[0].bias is not None
    require(biased, "model", f"layer '{layers[0].name}' has no bias, by which rows are divided", "give it one")
    hidden, classes = layers[:-1], task.data.classes
    require(layers[-1].dropout == 0, "model", "drops logits in train mode", EVAL)
    widths = [layer.outputs // (first if depth == 0 else 1) for depth, layer in enumerate(hidden)]
    drops = [layer.dropout for layer in hidden]
    room = min(widths, default=task.outputs)
    least = classes * (paths or 1)
    problem = f"has room for {room} paths in its narrowest linear layer, and {classes} classes need {least}"
    require(room >= least, "model", problem, "give wider hidden layers, or fewer classes or paths")
    outputs = min(task.outputs, room // (paths or 1))
    if paths is None:
        paths = min(room // outputs, MOST) if any(drops) and hidden else 1
    lost = 1 - math.prod(1 - p**paths for p in drops)
    return UnitsPlan(layers, outputs, paths if hidden else 1, lost)


def crafted(task: Task, features: CraftedFeatures, head: Tensors) -> Task:
    """The task with the values of both crafted halves; tensors that nobody crafted are shared, not copied."""
    values = {**features.state, **head}
    parameters = {k: values[k].to(v) if k in values else v for k, v in task.parameters.items()}
    buffers = {k: values[k].to(v) if k in values else v for k, v in task.buffers.items()}
    return replace(task, parameters=parameters, buffers=buffers)


def consecutive(outputs: int, paths: int) -> Int[Tensor, "outputs paths"]:
    """Class n owns the units n·paths … n·paths + paths − 1."""
    return torch.arange(outputs * paths).view(outputs, paths)


def wire(
    weight: Float[Tensor, "rows columns"], to: Int[Tensor, "outputs p"], of: Int[Tensor, "outputs q"], value: float
) -> None:
    """In place: each unit of ``to[n]`` reads each unit of ``of[n]`` with weight `value`."""
    weight[to[:, :, None], of[:, None, :]] = value


def idle_rows(width: int, used: Int[Tensor, "outputs paths"]) -> Int[Tensor, " m"]:
    """Units of the first layer that no class owns."""
    free = torch.ones(width, dtype=torch.bool)
    free[used.flatten()] = False
    return free.nonzero().flatten()


@HEADS.register("constant", needs="hidden linear layers with a unit for every class")
@dataclass(frozen=True, kw_only=True)
class Constant:
    """The released construction: equal rows in the first layer, identities above, no biases.

    Every hidden unit sees the mean feature m > 0, unit n feeds logit n alone, and all logits are equal to m. ReLU,
    sigmoid and tanh stacks alike; with a single linear layer its rows are the classes' rows.

    Source: MKOR's code. Differs: `paths` units a class where dropout is on (the release has none): blocks of
    paths×paths entries 1/paths in place of the identity, so that an example is lost only if all units of its class in
    one layer are dropped; `bias` in the first layer (0 in the release) keeps an all-zero feature vector alive.
    Trivial to detect: all linear layers are overwritten, and all hidden units are alike.

    Attributes:
        paths: units a class owns in each hidden layer. By default 1, and under dropout as many as fit, 16 at most.
        bias: of the first layer.
        scale: of the first layer's rows, 1/inputs each in the release. Gradients do not depend on it, activations do,
            and with them how fast local training moves the layers above: see `Decoy`. Leave it at 1 for absent-class
            and several local steps, which silence units with small activations.
    """

    paths: int | None = None
    bias: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        require(self.paths is None or self.paths > 0, "paths", f"is {self.paths}", "give a positive number")
        require(self.scale > 0, "scale", f"is {self.scale}", "give a positive number")

    def craft(
        self, task: Task, features: CraftedFeatures, loss: LossTreatment, generator: torch.Generator
    ) -> CraftedHead:
        plan = planned(task, self.paths)
        units, logits = consecutive(plan.outputs, plan.paths), torch.arange(plan.outputs)[:, None]
        head: Tensors = {}
        for depth, layer in enumerate(plan.layers):
            honest, last = task.parameters[layer.weight], depth == len(plan.layers) - 1
            if depth == 0:
                weight = torch.full_like(honest, self.scale / layer.inputs)
            else:
                spread = plan.paths == 1 and not last
                weight = torch.eye(*honest.shape).to(honest) if spread else torch.zeros_like(honest)
                wire(weight, logits if last else units, units, 1 / plan.paths)
            head[layer.weight] = weight
            if layer.bias is not None:
                head[layer.bias] = torch.full_like(task.parameters[layer.bias], 0.0 if depth else self.bias)
        first, rows = plan.layers[0], units if plan.hidden else logits
        assert first.bias is not None
        idle = idle_rows(first.outputs, rows)
        wiring = Routes(weight=first.weight, bias=first.bias, rows=rows, idle=idle, gain=1.0, loss=loss, lost=plan.lost)
        return CraftedHead(loss.applied(crafted(task, features, head)), wiring)


@dataclass(frozen=True, eq=False)
class MKORCrafting(ReadingAttack):
    """The inverse of the crafted layers, and which gradient rows hold which class. No data in it."""

    map: FeatureMap
    wiring: Routes

    def read(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """One picture per class that was read, with its label; an average where a class has several examples.

        Costs no gradient evaluation and draws nothing. `CONVERGED`, never certified: the inverse of the pooling is
        an interpolation. `FAILED` with the reason where no class can be read.
        """
        reading = self.wiring.read(observation, self.map.positions)
        if isinstance(reading, str):
            return Reconstruction(None, None, Status.FAILED, reading)
        inputs = self.map.images(reading.features)
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
