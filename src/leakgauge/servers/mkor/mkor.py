"""Maximum knowledge orthogonality reconstruction: linear layers in which a class drives rows of its own, the server."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.attacks.effort import ReadingAttack
from leakgauge.errors import Checked, InputError, positive, require
from leakgauge.observation import Observation, Reconstruction, Status
from leakgauge.registry import SERVERS
from leakgauge.servers.mkor.convolutions import PublishedTaps
from leakgauge.servers.mkor.network import EVAL, NetworkLayer, linear_stack
from leakgauge.servers.mkor.parts import HEADS, Decoy, FeatureMap, Head, LossTreatment, Routes, Taps
from leakgauge.servers.server import Broadcast, Change
from leakgauge.task import Task
from leakgauge.tensors import Tensors
from leakgauge.view.entries import wire_of


def wired(task: Task) -> tuple[tuple[NetworkLayer, ...], int]:
    """The linear layers, first one first, and how many logits have units of their own: all of them where the hidden
    layers are wide enough, at least all classes. Raises `InputError`: a hidden layer has too few units for the classes,
    units are dropped in train mode, or the model does not end in linear layers.
    """
    require(not task.stochastic, "model", "has dropout in train mode", EVAL)
    layers, classes = linear_stack(task), task.data.classes
    room = min(layer.outputs for layer in layers)
    problem = f"has room for {room} classes in its narrowest linear layer, and the data have {classes}"
    require(room >= classes, "model", problem, "give wider hidden layers, or fewer classes")
    return layers, room


@HEADS.register("constant", needs="hidden linear layers with a unit for every class")
@dataclass(frozen=True, kw_only=True)
class Constant(Checked):
    """The released construction: equal rows in the first layer, identities above, no biases.

    Every hidden unit sees the mean feature m > 0, unit n feeds logit n alone, and all logits are equal to m. ReLU,
    sigmoid and tanh stacks alike; with a single linear layer its rows are the classes' rows.

    Source: MKOR's code. Differs: `bias` in the first layer (0 in the release) keeps an all-zero feature vector alive.
    Trivial to detect: all linear layers are overwritten, and all hidden units are alike.

    Attributes:
        bias: of the first layer.
        scale: of the first layer's rows, 1/inputs each in the release. Gradients do not depend on it, activations do,
            and with them how fast local training moves the layers above: see `Decoy`.
    """

    bias: float = 0.0
    scale: float = positive(1.0)

    def craft(self, task: Task, generator: torch.Generator) -> tuple[Tensors, Routes]:
        layers, outputs = wired(task)
        first, state = layers[0], Tensors()
        for layer in layers:
            honest = task.parameters[layer.weight]
            if layer is first:
                state[layer.weight] = torch.full_like(honest, self.scale / layer.inputs)
            else:
                state[layer.weight] = torch.eye(*honest.shape).to(honest)
                if layer is layers[-1]:
                    state[layer.weight][outputs:] = 0
            if layer.bias is not None:
                level = self.bias if layer is first else 0.0
                state[layer.bias] = torch.full_like(task.parameters[layer.bias], level)
        return state, routes(first, outputs)


def routes(first: NetworkLayer, outputs: int) -> Routes:
    """Through the first rows of the first linear layer. Raises `InputError` where it has no bias."""
    if first.bias is None:
        raise InputError("model", f"layer '{first.name}' has no bias, by which rows are divided", "give it one")
    return Routes(first.weight, first.bias, outputs)


CLEAR = 5.0  # standard deviations of the noise by which a class must stand out to be read without known labels
PART = 0.3  # share of one example that a class must have after several local steps, where classes leak into others
FINE = 2.0**-20  # rounding on the wire up to which a read may be called exact: pooling and gains make it larger


@dataclass(frozen=True, eq=False)
class ClassReading:
    """Per class: the (weighted) mean feature of the class's examples."""

    classes: Int[Tensor, " k"]  # labels that were read
    # one row a class, at the positions of the feature map; NaN where the client sent nothing that tells
    features: Float[Tensor, "k f"]
    message: str  # what was and what was not read, and under which loss
    certain: bool  # the classes were read without noise, leak or later local steps


@dataclass(frozen=True, eq=False)
class MKORCrafting(ReadingAttack):
    """The inverse of the crafted layers, which gradient rows hold which class, and the loss. No data in it."""

    map: FeatureMap
    routes: Routes
    loss: LossTreatment

    def read(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """One picture per class that was read, with its label; an average where a class has several examples.

        Costs no gradient evaluation and draws nothing. `CONVERGED`, never certified: the inverse of the pooling is
        an interpolation. `FAILED` with the reason where no class can be read.
        """
        reading = self.classes(observation)
        if isinstance(reading, str):
            return Reconstruction(None, None, Status.FAILED, reading)
        inputs = self.map.images(reading.features)
        if not bool(torch.isfinite(inputs).all()):
            return Reconstruction(None, None, Status.NON_FINITE, f"not finite; {reading.message}")
        sure = 1.0 if reading.certain and observation.knowledge.labels is None else None
        message = "; ".join(part for part in (reading.message, self.map.remark) if part)
        return Reconstruction(inputs, reading.classes, Status.CONVERGED, message, None, sure)

    def classes(self, observation: Observation) -> ClassReading | str:
        """Class features out of an update, or why there are none.

        Zero gradient: "no class …". Classes whose Δb was not sent stay unread. Entries that were not sent are 0
        where the defence sends the largest ones, else NaN. Presence of a class needs no truth: Δb < 0 beyond
        rounding, or beyond `CLEAR` standard deviations of noise.
        """
        labels, examples, steps = observation.knowledge.labels, observation.examples, _steps(observation)
        rows, totals = self.routes.sums(observation, self.map.positions)
        unseen = rows.isnan()
        rows = rows.nan_to_num(nan=0.0)
        if not bool(rows.any()) and not bool(totals.any()):
            return "no class can be read: all rows that belong to classes are zero in the update"
        separated = self.loss.separate(rows, totals, observation)
        if isinstance(separated, str):
            return separated
        rows, totals, readable, remark = separated
        rows = rows.masked_fill(unseen, float("nan"))
        every, outputs = observation.task.data.classes, torch.arange(len(totals))
        floor = self.routes.floor(observation, totals)
        readable = readable & (outputs < every)
        if labels is not None:
            readable = readable & torch.isin(outputs, labels.cpu())
        else:
            readable = readable & (-totals > CLEAR * floor)
            if steps > 1 and examples is not None:
                readable = readable & (-totals * examples > PART * -totals[readable].sum())
        classes = readable.nonzero().flatten()
        if examples is not None and len(classes) > examples:
            strongest = (-totals[classes]).topk(examples).indices
            classes = classes[strongest].sort().values
        if not len(classes):
            clearest = f"{float(-totals.min()) / floor:.1f} standard deviations of the noise" if floor > 0 else ""
            return f"no class can be read ({remark})" + (clearest and f"; the clearest class is {clearest}")
        said = [f"{len(classes)} of {every} classes read", remark]
        if floor > 0:
            chosen = "from known labels" if labels is not None else f"{CLEAR:g} standard deviations above it"
            said.append(f"noise up to {floor / float(-totals[classes].max()):.1e} of Δb, classes {chosen}")
        said += self._remarks(observation, steps)
        wire = wire_of(observation, self.routes.weight, self.routes.bias)
        certain = floor == 0 and steps == 1 and wire.unit <= FINE
        return ClassReading(classes, rows[classes] / totals[classes][:, None].to(rows), "; ".join(said), certain)

    def _remarks(self, observation: Observation, steps: int) -> list[str]:
        said, view = [], observation.defended
        if (told := observation.linear) is not None and told.decay:
            said.append("the weight decay of local steps is not taken off")
        if steps > 1:
            said.append("several local steps: the model left the construction after the first, so this is approximate")
        if view.support is not None:
            share = float(view.support[self.routes.weight][: self.routes.outputs].double().mean())
            others = "are 0" if view.unsent_small else "stay open"
            said.append(f"{share:.1%} of the entries were sent, the others {others}")
        return said


def _steps(observation: Observation) -> int:
    """Local steps of a client, of the one with most in a cohort; 1 where they are not known."""
    local, examples = observation.knowledge.local_training, observation.examples
    if local is None or examples is None:
        return 1
    return max(client.steps(count) for client, count in local.clients(examples))


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
        (below, features), (above, routes) = self.taps.craft(task, generator), self.head.craft(task, generator)
        state = {**below, **above}
        # What nobody crafted is shared, not copied.
        parameters = {k: state.get(k, v) for k, v in task.parameters.items()}
        buffers = {k: state.get(k, v) for k, v in task.buffers.items()}
        sent = self.loss.applied(replace(task, parameters=parameters, buffers=buffers))
        changes = (Change.PARAMETERS,) if sent.loss is task.loss else (Change.PARAMETERS, Change.LOSS)
        return Broadcast(sent, MKORCrafting(features, routes, self.loss), changes)
