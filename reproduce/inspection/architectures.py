"""Architectures that give the input away, for the zoo: no server of the package, whose rules must find them unseen."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from leakgauge.attacks.closed_form.proof import name_labels
from leakgauge.attacks.closed_form.single import CERTAIN
from leakgauge.attacks.effort import ReadingAttack
from leakgauge.defenses import parts_of
from leakgauge.errors import require
from leakgauge.observation import Observation, Reconstruction, Status
from leakgauge.servers.imprint import linear, rebuilt
from leakgauge.servers.server import Broadcast, Change
from leakgauge.task import Task
from leakgauge.update import UpdateKind
from leakgauge.view.entries import OPERATIONS, SentTensor


def row_errors(observation: Observation, name: str, *, terms: int) -> Float[Tensor, " rows"]:
    """Bound on the rounding of a row's entries, each a sum of `terms`: by the client, and on the wire.

    A sum of n products is off by at most n·v of its largest partial sum, for which the row's largest entry stands
    (Higham, *Accuracy and Stability*, §3.1); a delta also as the parameter that it moved, once a step.
    """
    bound = SentTensor.of(observation, name, operations=terms + OPERATIONS)[...].bound
    return bound.reshape(len(bound), -1).amax(1)


def undefended(observation: Observation) -> bool:
    """Whether the server knows that there is no defence. One on the batch would not show in the numbers."""
    defense = observation.knowledge.defense
    return defense is not None and not parts_of(defense)


SLACK = 1e-2
"""How far outside the range a single example may be read, in shares of the range's width."""


@dataclass(frozen=True, eq=False)
class Slots:
    """Per slot Σ_n g_rn·z_n and Σ_n g_rn over the examples n that fell into it, for one or more rows r.

    Attributes:
        weight, bias: those sums; z is the model input, g the gradient at the row's output.
        error: largest rounding of an entry of `weight` and of `bias`, slot by slot.
        driven: slots that are not empty, by a threshold that knows the layer's rounding.
        belongs: for one raw example a slot, whether it would fall into that slot.
        steadfast: the slots keep their examples over local steps, and their inputs.
    """

    weight: Float[Tensor, "slots rows d"]
    bias: Float[Tensor, "slots rows"]
    error: tuple[Float[Tensor, " slots"], Float[Tensor, " slots"]]
    driven: Bool[Tensor, " slots"]
    belongs: Callable[[Float[Tensor, "slots d"]], Bool[Tensor, " slots"]]
    steadfast: bool = False


def read_slots(slots: Slots, observation: Observation, generator: torch.Generator) -> Reconstruction:
    """One image a slot: the least-squares ratio Σ_r b_r·W_r / Σ_r b_r², exact where the slot has one example.

    A read is *plausible* when its rows agree on the ratio, it lies in the data's range, and it would fall into the
    slot it came from. Examples that share a slot fail the first where there are several rows; with one row
    they fail only when their weights differ in sign: a convex mixture (equal labels) passes. Plausible reads
    come first, the others, clamped to the range, last; no more are given than there are examples. Labels are
    a multiset.

    `EXACT`: all reads are plausible and there are as many driven slots as examples, fewer than slots, so that none
    is shared; the update is one gradient (or the slots are steadfast), no defence is known, and rounding has moved
    no input by more than `CERTAIN`. Otherwise `CONVERGED`, and the message counts.

    With entries of the weight off by at most e and of the bias by f, a ratio x is off by at most
    (e + f·|x|)·Σ_r |b_r| / Σ_r b_r², and rows agree where residuals are within e + f·|x| + |b_r| times that.
    """
    data, examples = observation.task.data, observation.examples
    evidence = slots.bias.square().sum(1)
    chosen = (slots.driven & (evidence > 0)).nonzero()[:, 0]
    if not len(chosen):
        return Reconstruction(None, None, Status.FAILED, "no slot was driven: the layer's gradient is zero")
    ratios = torch.einsum("sr,srd->sd", slots.bias, slots.weight) / evidence[:, None]
    entry = slots.error[0][:, None] + slots.error[1][:, None] * ratios.abs()
    off = entry * (slots.bias.abs().sum(1) / evidence)[:, None]
    residual = (slots.weight - slots.bias[:, :, None] * ratios[:, None]).abs()
    allowed = entry[:, None] + slots.bias.abs()[:, :, None] * off[:, None]
    agree = (residual <= allowed + 1e-12 * slots.weight.abs()).flatten(1).all(1)
    raw = data.denormalise(ratios.nan_to_num().view(-1, *data.shape)).flatten(1)
    margin = SLACK * data.range
    inside = ((raw >= data.low - margin) & (raw <= data.high + margin)).all(1)
    plausible = (agree & inside & slots.belongs(raw))[chosen]
    strongest = evidence[chosen].argsort(descending=True)
    order = strongest[plausible[strongest].int().argsort(descending=True, stable=True)]
    chosen, plausible = chosen[order], plausible[order]

    driven, certain = int(slots.driven.sum()), int(plausible.sum())
    plain, told = observation.factor is not None, observation.linear
    unmixed = driven == examples and driven < len(slots.driven) and certain == driven
    fine = float(off[chosen].max()) * max(data.std) <= CERTAIN * data.range
    exact = unmixed and fine and undefended(observation)
    exact = exact and (plain or (slots.steadfast and told is not None and not told.decay))
    message = f"{driven} of {len(slots.driven)} slots driven"
    message += "" if examples is None else f" by {examples} examples"
    message += f", {certain} plausible reads, {len(chosen) - certain} doubtful ones (mixtures, or noise)"
    if not plain and not slots.steadfast:
        message += "; several or unknown local steps: reads are approximate"
    kept = raw[chosen][:examples].clamp(data.low, data.high)
    named = name_labels(observation, generator)
    return Reconstruction(
        kept.view(-1, *data.shape),
        named.labels,
        Status.EXACT if exact else Status.CONVERGED,
        message,
        None,
        named.confidence,
        paired=False,
    )


NOTHING = "no class but the decoy's was seen"


def inside(raw: Float[Tensor, "k *shape"], data: DataSpec) -> bool:
    """Whether all examples lie in the data's range, up to a hundredth of its width."""
    margin = 1e-2 * data.range
    return bool(((raw >= data.low - margin) & (raw <= data.high + margin)).all())


class Skip(nn.Module):
    """x ↦ classifier([model(x), x/√d]): scaled, the input's columns learn no faster than others."""

    def __init__(self, model: nn.Module, classifier: nn.Linear) -> None:
        super().__init__()
        self.model, self.classifier = model, classifier

    def forward(self, x: Float[Tensor, "n *shape"]) -> Float[Tensor, "n outputs"]:
        flat = x.flatten(1)
        logits: Tensor = self.classifier(torch.cat([self.model(x), flat / math.sqrt(flat.shape[1])], 1))
        return logits


@dataclass(frozen=True)
class SkipRead(ReadingAttack):
    """The classifier's rows of the input's columns ÷ its bias: mean inputs per class.

    Attributes:
        outputs: of the honest model, the columns before the input's.
        decoy: the class that the classifier always answers.
    """

    outputs: int
    decoy: int

    def read(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """Costs no gradient evaluation. One image a class, paired with its label.

        `EXACT` where every example is the only one of its class, none is of the decoy's, and no defence is known.
        """
        del generator
        data, examples = observation.task.data, observation.examples
        columns = slice(self.outputs, None)
        found = class_features(observation, "classifier.weight", "classifier.bias", columns, self.decoy)
        if found is None:
            return Reconstruction.not_applicable(NOTHING)
        scale = math.sqrt(found.features.shape[1])
        raw = data.denormalise(scale * found.features.view(-1, *data.shape))
        exact = exactly_all(found, examples) and inside(raw, data) and undefended(observation)
        message = summary(found, examples)
        if observation.factor is None:
            message += "; several or unknown local steps: exact only while the decoy leads"
        status = Status.EXACT if exact else Status.CONVERGED
        kept = raw.clamp(data.low, data.high)
        return Reconstruction(kept, found.classes, status, message)


@dataclass(frozen=True)
class InputSkip:
    """A new classifier on honest logits and input side by side: its rows hold mean inputs per class.

     Source: the read of a biased linear layer (Geiping et al., 2020, Proposition 3.1) at a skip connection from the
     input; the decoy class is the remedy that makes a soft-max's rows belong to one class each
    . Exact for each example that is alone in its class, a mean for others; examples
     of the decoy class are not read. Local steps do not move the input, so that reads stay exact over several as long
     as the decoy leads, but then have no certificate. The price is a conspicuous loss of about 50.
    """

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        d, outputs, decoy = math.prod(task.data.shape), task.outputs, decoy_of(task)
        classifier = linear(outputs + d, outputs, task, generator, scale=1e-3)
        with torch.no_grad():
            classifier.weight[:, :outputs] = torch.eye(outputs).to(classifier.weight)
            classifier.bias[decoy] = DECOY_BIAS
        module = Skip(task.module_copy(), classifier)
        return Broadcast(rebuilt(task, module, "input-skip"), SkipRead(outputs, decoy), (Change.ARCHITECTURE,))


class CouplingBlock(nn.Module):
    """(a, b) ↦ (a + f(b), b + g(a + f(b))), with f and g two linear layers each."""

    def __init__(self, halves: tuple[int, int], width: int, task: Task, generator: torch.Generator) -> None:
        super().__init__()
        self.halves = halves
        a, b = halves

        def network(before: int, after: int) -> nn.Sequential:
            return nn.Sequential(
                linear(before, width, task, generator), nn.Tanh(), linear(width, after, task, generator)
            )

        self.f, self.g = network(b, a), network(a, b)

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        a, b = x.split(self.halves, 1)
        a = a + self.f(b)
        return torch.cat([a, b + self.g(a)], 1)

    def inverse(self, y: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        a, b = y.split(self.halves, 1)
        b = b - self.g(a)
        return torch.cat([a - self.f(b), b], 1)


class Reversible(nn.Module):
    """x ↦ model(x) + head(couplings(x)/√d)."""

    def __init__(self, model: nn.Module, couplings: nn.Sequential, head: nn.Linear) -> None:
        super().__init__()
        self.model, self.couplings, self.head = model, couplings, head

    def forward(self, x: Float[Tensor, "n *shape"]) -> Float[Tensor, "n outputs"]:
        flat = x.flatten(1)
        last = self.couplings(flat) / math.sqrt(flat.shape[1])
        return self.model(x) + self.head(last)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class ReversibleRead(ReadingAttack):
    """Activations per class off the head, and the couplings backwards from there.

    Attributes:
        couplings: a copy with the values that were broadcast.
        decoy: the class that the head always answers.
    """

    couplings: nn.Sequential
    decoy: int

    def inputs(self, activations: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
        """Model inputs from activations, in float64."""
        backwards = copy.deepcopy(self.couplings).to(torch.empty((), dtype=torch.float64, device=activations.device))
        x = activations.double()
        with torch.no_grad():
            for coupling in reversed(list(backwards)):
                assert isinstance(coupling, CouplingBlock)
                x = coupling.inverse(x)
        return x.to(activations)

    def read(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """Costs no gradient evaluation. One image a class, paired with its label.

        `EXACT` where every example is the only one of its class, none is of the decoy's, and no defence is known.
        """
        del generator
        data, examples = observation.task.data, observation.examples
        found = class_features(observation, "head.weight", "head.bias", slice(None), self.decoy)
        if found is None:
            return Reconstruction.not_applicable(NOTHING)
        scale = math.sqrt(found.features.shape[1])
        raw = data.denormalise(self.inputs(scale * found.features).view(-1, *data.shape))
        exact = exactly_all(found, examples) and inside(raw, data) and undefended(observation)
        message = summary(found, examples)
        if observation.factor is None:
            message += "; several or unknown local steps moved the couplings: reads are approximate"
        status = Status.EXACT if exact else Status.CONVERGED
        kept = raw.nan_to_num().clamp(data.low, data.high)
        return Reconstruction(kept, found.classes, status, message)


@dataclass(frozen=True, kw_only=True)
class ReversibleNetwork:
    """Additive couplings from the input to a linear head, beside the honest model: the head gives the input away.

    Source: couplings of NICE (Dinh et al., 2015) and RevNet (Gomez et al., 2017), whose inverse needs no search. The
    head's rows ÷ its bias are the last activations (per class), and the inverse is
    their input. Exact for each example that is alone in its class; where a class has several, the inverse of
    their mean activation, which is not their mean. Examples of the decoy class are not read.
    Several local steps move the couplings: reads are approximate. The price is a conspicuous loss of about 50.

    Attributes:
        depth: couplings.
        width: of the networks in a coupling.
    """

    depth: int = 3
    width: int = 32

    def __post_init__(self) -> None:
        for name, value in (("depth", self.depth), ("width", self.width)):
            require(value > 0, name, f"is {value}", "give a positive number")

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        """Raises `InputError` where an example is a single number, which cannot be split."""
        d, decoy = math.prod(task.data.shape), decoy_of(task)
        require(d > 1, "data.shape", "is one number, which cannot be split in two", "give larger examples")
        halves = (d - d // 2, d // 2)
        couplings = nn.Sequential(*(CouplingBlock(halves, self.width, task, generator) for _ in range(self.depth)))
        head = linear(d, task.outputs, task, generator, scale=1e-3)
        with torch.no_grad():
            head.bias[decoy] = DECOY_BIAS
        module = Reversible(task.module_copy(), couplings, head)
        read = ReversibleRead(copy.deepcopy(couplings).requires_grad_(False), decoy)
        return Broadcast(rebuilt(task, module, "reversible"), read, (Change.ARCHITECTURE,))


DECOY_BIAS = 50.0
"""Lead of the decoy's logit. e⁻⁴⁰ would be below the rounding of float64; the rest is room for local steps."""


def decoy_of(task: Task) -> int:
    """An output that no label has, where the model has one; else class 0, whose examples are then not read."""
    return task.data.classes if task.outputs > task.data.classes else 0


@dataclass(frozen=True, eq=False)
class ClassFeatures:
    """Mean feature per class that was seen.

    Attributes:
        features: one row a class, at `classes`.
        counts: examples of each; `None` where the update's scale is unknown.
        error: of any feature that rounding can have made, in shares of the largest.
    """

    classes: Int[Tensor, " k"]
    features: Float[Tensor, "k f"]
    counts: Int[Tensor, " k"] | None
    error: float = 0.0


def class_features(
    observation: Observation, weight: str, bias: str, columns: slice, decoy: int
) -> ClassFeatures | None:
    """W_c ÷ b_c for every class but the decoy; `None` where no class was seen.

    The decoy's logit leads by `DECOY_BIAS`, so that softmax gives p ≈ 0 elsewhere and ∂L/∂logit_c is −1/n on the
    examples of class c and 0 on all others: the ratio is the mean feature of the class, and −n·∂L/∂b_c its count.
    """
    factor, sums = observation.factor, observation.values(bias)
    sign = 1.0 if observation.update.header.kind is UpdateKind.GRADIENT else -1.0
    rows, totals = observation.values(weight)[:, columns], sums * sign
    errors = [row_errors(observation, name, terms=observation.examples or 1) for name in (weight, bias)]
    seen = totals < -1e-6 * totals.abs().max()
    seen[decoy] = False
    seen[observation.task.data.classes :] = False
    classes = seen.nonzero()[:, 0]
    if not len(classes):
        return None
    counts: Tensor | None = None
    if factor is not None and observation.examples is not None:
        exact = -observation.examples * sums[classes] / factor
        whole = exact.round()
        # A defence that changed the numbers shows here.
        allowed = 1e-4 * whole.clamp_min(1) + abs(observation.examples * factor) * errors[1][classes]
        if bool(((exact - whole).abs() < allowed.clamp_max(0.1)).all()) and bool((whole > 0).all()):
            counts = whole.long()
    features = rows[classes] * sign / totals[classes][:, None]
    largest = float(features.abs().max()) or 1.0
    moved = errors[0][classes, None] + errors[1][classes, None] * features.abs()
    off = float((moved / totals[classes].abs()[:, None]).max())
    return ClassFeatures(classes, features, counts, off / largest)


def exactly_all(found: ClassFeatures, examples: int | None) -> bool:
    """Whether every example is the only one of its class, none is of the decoy's, and rounding is small."""
    if found.counts is None or examples is None or found.error > CERTAIN:
        return False
    return bool((found.counts == 1).all()) and int(found.counts.sum()) == examples


def summary(found: ClassFeatures, examples: int | None) -> str:
    """What was read, for the report."""
    shown = f"{len(found.classes)} classes read"
    if found.counts is None:
        return f"{shown}; how many examples each of them has is not known"
    alone = int((found.counts == 1).sum())
    missing = "" if examples is None else f", {examples - int(found.counts.sum())} examples of the decoy class unread"
    return f"{shown}, {alone} of them with one example, the others as means{missing}"


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
    """One slot a copy."""

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
        module = Routed(task.module_copy(), copies, head, self.copies, turns)
        return Broadcast(
            rebuilt(task, module, "sub-model-per-example"), RoutedRead(self.copies, turns), (Change.ARCHITECTURE,)
        )
