"""MKOR (maximum knowledge orthogonality reconstruction): a dishonest server that reads one picture a class from a batch
of any size, in closed form; its parts and their contracts: taps below, a head above, what is done about the loss."""

from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.attacks.effort import ReadingAttack
from leakgauge.errors import Checked, InputError, limited, positive, require
from leakgauge.observation import Observation, Reconstruction, Status
from leakgauge.registry import HEADS, LOSSES, SERVERS
from leakgauge.servers.convolutions import PublishedTaps
from leakgauge.servers.network import EVAL, NetworkLayer, linear_stack
from leakgauge.servers.server import Broadcast, Change
from leakgauge.task import Task, nll_raw
from leakgauge.tensors import Tensors
from leakgauge.update import UpdateKind
from leakgauge.view.entries import wire_of

Made = TypeVar("Made", covariant=True)
Separated = tuple[Float[Tensor, "classes f"], Float[Tensor, " classes"], Tensor, str]


@runtime_checkable
class FeatureMap(Protocol):
    """What crafted layers below the first linear layer compute, and its inverse. Data-free."""

    @property
    def positions(self) -> Int[Tensor, " f"]:
        """Where the features that are read stand in the first linear layer's flat input."""

    @property
    def remark(self) -> str:
        """What the construction loses on this architecture, for the report; empty if nothing."""

    def images(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n c h w"]:
        """Raw images in the data's range from such features, or from averages of them; NaN is a feature not seen."""


@runtime_checkable
class Crafter(Protocol[Made]):
    """Crafts layers: taps those below the first linear layer, a head the linear ones, so that each class drives rows of
    its own."""

    def craft(self, task: Task, generator: torch.Generator) -> tuple[Tensors, Made]:
        """Values that replace parameters and buffers of the task, by name, and what they compute, or which rows hold
        which class. Raises `InputError` where the architecture does not fit, and says which layer and why."""


@runtime_checkable
class LossTreatment(Protocol):
    """What the server does so that the class's rows are not mixed by the loss."""

    def applied(self, task: Task) -> Task:
        """The task with what this treatment changes: a bias of the last layer, or the loss itself."""

    def separate(
        self, rows: Float[Tensor, "classes f"], totals: Float[Tensor, " classes"], observation: Observation
    ) -> Separated | str:
        """Σ_k δ_kn·z_k and Σ_k δ_kn per class, with the loss's mixing taken out, the bool mask of classes that can be
        read, and a remark; or why nothing can be read."""


ROUNDING = 1e3  # totals below that many units of rounding of the largest count as zero


def negative(rows: Float[Tensor, "classes f"], totals: Float[Tensor, " classes"]) -> Bool[Tensor, " classes"]:
    """Classes with examples: the gradient of a label's logit is negative, beyond rounding."""
    return -totals > ROUNDING * torch.finfo(rows.dtype).eps * totals.abs().max()


@LOSSES.register("nll-raw", needs="a client that lets the server choose its loss")
@dataclass(frozen=True)
class NLLRaw:
    """The server sets the client's loss: −logit[label], with no log-soft-max.

    Source: MKOR's code. δ_kn = −[y_k = n]/K, so classes do not mix at all and the mean features are exact.
    """

    def applied(self, task: Task) -> Task:
        return replace(task, loss=nll_raw)

    def separate(
        self, rows: Float[Tensor, "classes f"], totals: Float[Tensor, " classes"], observation: Observation
    ) -> Separated | str:
        return rows, totals, negative(rows, totals), "loss: raw negative log-likelihood, set by the server"


@LOSSES.register("decoy", needs="a bias in the last layer")
@dataclass(frozen=True, kw_only=True)
class Decoy(Checked):
    """Plain cross-entropy, and a large bias on the logit of one decoy class, whose logit reads nothing else.

    p_kn ≤ e^(−bias) for all other classes, so δ_kn = −[y_k = n]/K up to 1e-13 at the default, and every class but the
    decoy is exact whatever the batch. The decoy's examples give no gradient and cannot be read. Not in the paper.
    Conspicuous: the client sees a loss of about `bias` on all other examples (an untrained model has log N). Under
    several local steps the decoy's gradient of size one moves the last layer and leaks into all classes, less so with
    `Constant(scale=0.01)`.

    Attributes:
        bias: added to the decoy's logit; must exceed the spread of the crafted logits by far.
        label: the decoy's output. By default the last, which is no class at all where the model has more outputs than
            the data has classes.
    """

    bias: float = limited(30.0, lambda bias: 0 < bias <= 1e6, "give a number in (0, 1e6], e.g. 30")
    label: int | None = None

    def applied(self, task: Task) -> Task:
        """Raises `InputError` where the last layer has no bias, or no such output."""
        last, label = linear_stack(task)[-1], self._output(task)
        if last.bias is None:
            raise InputError("loss", "decoy needs a bias in the last layer", "use nll-raw")
        require(0 <= label < last.outputs, "label", f"is {label}", f"give an output in 0…{last.outputs - 1}")
        bias, weight = task.parameters[last.bias].clone(), task.parameters[last.weight].clone()
        bias[label] += self.bias
        weight[label] = 0
        return replace(task, parameters={**task.parameters, last.bias: bias, last.weight: weight})

    def separate(
        self, rows: Float[Tensor, "classes f"], totals: Float[Tensor, " classes"], observation: Observation
    ) -> Separated | str:
        label, classes = self._output(observation.task), observation.task.data.classes
        # The decoy's own total is about +1, which is no reason to lose a class of one example in thousands.
        others = torch.where(torch.arange(len(totals)) == label, 0.0, totals)
        lost = f"class {label} is the decoy and cannot be read" if label < classes else "no class is lost to the decoy"
        remark = f"cross-entropy with a decoy: {lost}, and the client's loss is near {self.bias:g}, which shows"
        return rows, totals, negative(rows, others), remark

    def _output(self, task: Task) -> int:
        return task.outputs - 1 if self.label is None else self.label


IDLE = 8  # fewer rows without a gradient than this do not tell how large the noise is


@dataclass(frozen=True, eq=False)
class Routes:
    """Class n drives row n of the first linear layer and no other class does.

    With δ_kn = ∂L/∂(logit n of example k), ΔW[n] = Σ_k δ_kn·z_k and Δb[n] = Σ_k δ_kn. Their ratio, once the loss
    treatment has taken other classes' examples out, is the mean feature of the class.

    Source: MKOR, Eq. (7). Differs: entries that a sparsifier did not send leave numerator and denominator.
    """

    weight: str  # weight, bias: the first linear layer's parameters
    bias: str
    outputs: int  # logits with a row of their own, the data's classes first; the rows behind them have no gradient

    def sums(
        self, observation: Observation, positions: Int[Tensor, " f"]
    ) -> tuple[Float[Tensor, "outputs f"], Float[Tensor, " outputs"]]:
        """Σ δ·z and Σ δ per logit, as of a gradient; NaN of what was not sent and may be large."""
        weight, view = observation.update.tensors[self.weight], observation.defended
        sign = -1.0 if observation.update.header.kind is UpdateKind.DELTA else 1.0
        own, columns = slice(self.outputs), positions.to(weight.device)
        rows = sign * weight[own][:, columns].to(torch.promote_types(weight.dtype, torch.float32))
        totals = sign * observation.values(self.bias)[own]
        if view.support is not None:
            seen = (view.support[self.weight][own][:, columns] != 0) & (totals != 0)[:, None]
            # What was not sent is near zero after top-k, and unknown otherwise.
            rows = torch.where(seen, rows, 0.0 if view.unsent_small else float("nan"))
        return rows.cpu(), totals.cpu()

    def floor(self, observation: Observation, totals: Float[Tensor, " outputs"]) -> float:
        """Standard deviation of what is no signal in the totals: by the known defence, or the rows behind them."""
        del totals
        scale = observation.defended.noise_scale
        known = 0.0 if scale is None else float(scale[self.bias])
        idle = observation.values(self.bias)[self.outputs :]
        return max(known, float(idle.square().mean().sqrt())) if len(idle) >= IDLE else known


def wired(task: Task) -> tuple[tuple[NetworkLayer, ...], int]:
    """The linear layers, first one first, and how many logits have units of their own: all of them where the hidden
    layers are wide enough, at least all classes. Raises `InputError`: a hidden layer has too few units for the classes,
    units are dropped in train mode, or the model does not end in linear layers."""
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
            honest, level = task.parameters[layer.weight], self.bias if layer is first else 0.0
            plain = torch.full_like(honest, self.scale / layer.inputs)
            state[layer.weight] = plain if layer is first else torch.eye(*honest.shape).to(honest)
            if layer is layers[-1] and layer is not first:
                state[layer.weight][outputs:] = 0
            if layer.bias is not None:
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
        known, examples, view = observation.knowledge, observation.examples, observation.defended
        labels, local = known.labels, known.local_training
        # Of the client with most in a cohort; 1 where they are not known.
        steps = max(c.steps(n) for c, n in local.clients(examples)) if local is not None and examples is not None else 1
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
        if (told := observation.linear) is not None and told.decay:
            said.append("the weight decay of local steps is not taken off")
        if steps > 1:
            said.append("several local steps: the model left the construction after the first, so this is approximate")
        if view.support is not None:
            share = float(view.support[self.routes.weight][: self.routes.outputs].double().mean())
            others = "are 0" if view.unsent_small else "stay open"
            said.append(f"{share:.1%} of the entries were sent, the others {others}")
        wire = wire_of(observation, self.routes.weight, self.routes.bias)
        certain = floor == 0 and steps == 1 and wire.unit <= FINE
        return ClassReading(classes, rows[classes] / totals[classes][:, None].to(rows), "; ".join(said), certain)


@SERVERS.register("mkor", needs="a plain convolutional network with linear layers, and a unit for every class")
@dataclass(frozen=True, kw_only=True)
class MKOR:
    """Maximum Knowledge Orthogonality Reconstruction: one picture per class from a batch of any size.

    Each class drives rows of its own in the first linear layer; their weight gradient divided by their bias gradient is
    the class's mean feature, and the layers below are crafted so that features can be turned back into a
    picture. Nothing of the client's data is needed, and no search.

    Differs from the paper in the loss: with soft-max cross-entropy, which real clients use, the published server reads
    nothing from a batch with every class once. The default `decoy` works with an honest client's loss; `nll-raw` is the
    published code's, and then the server changes the client's loss too. `taps` are the layers below the first linear
    one, `head` the linear ones.
    """

    taps: Crafter[FeatureMap] = field(default_factory=PublishedTaps)
    head: Crafter[Routes] = field(default_factory=Constant)
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
