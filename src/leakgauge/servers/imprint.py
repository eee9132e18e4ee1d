"""Servers that rewrite layers: imprint and trap weights, rows that few examples activate and that give each of them
away; and class fishing in the last layer."""

import math
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.attacks.closed_form.linear import LinearRead
from leakgauge.attacks.closed_form.row_differences import RowDifferences
from leakgauge.attacks.effort import Effort, SearchingAttack
from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedSGD
from leakgauge.clients.protocol import mean_gradient
from leakgauge.draws import Draws
from leakgauge.errors import Checked, InputError, limited, positive, require
from leakgauge.observation import Attack, Observation, Reconstruction
from leakgauge.registry import SERVERS
from leakgauge.servers.network import NetworkLayer, known_graph, linear_stack
from leakgauge.servers.server import Broadcast, Change
from leakgauge.task import Batch, DataSpec, Task, cross_entropy
from leakgauge.tensors import Tensors
from leakgauge.update import Update, UpdateHeader, UpdateKind
from leakgauge.view.axes import cut
from leakgauge.view.products import Term
from leakgauge.view.trace import operation


def linear(before: int, after: int, task: Task, generator: torch.Generator, scale: float = 1.0) -> nn.Linear:
    """Weights N(0, scale²/before) from `generator` in the task's dtype and on its device, biases zero."""
    like = next(iter(task.parameters.values()))
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, before, after, device=like.device, dtype=like.dtype)
    drawn = torch.randn((after, before), generator=generator) * (scale / math.sqrt(before))
    with torch.no_grad():
        layer.weight.copy_(drawn)
        layer.bias.zero_()
    return layer


def rebuilt(task: Task, module: nn.Module, name: str) -> Task:
    """The task with another architecture around the same data format, mode and loss."""
    with torch.random.fork_rng(devices=[]):  # a model with dropout draws when it is tried out
        made = task.of_module(module, name=f"{name}({task.name})")
    return replace(made, stochastic=task.stochastic)


class Front(nn.Module):
    """x ↦ model(x + back(relu(first(x)))): a residual block on the flattened model input."""

    def __init__(self, first: nn.Linear, back: nn.Linear, model: nn.Module) -> None:
        super().__init__()
        self.first, self.back, self.model = first, back, model

    def forward(self, x: Float[Tensor, "n *shape"]) -> Float[Tensor, "n outputs"]:
        moved: Tensor = self.back(self.first(x.flatten(1)).relu())
        return self.model(x + moved.view_as(x))  # type: ignore[no-any-return]


def fronted(task: Task, rows: int, name: str, generator: torch.Generator) -> Task:
    """The task behind a `Front` of `rows` units, random as yet; its way back is small."""
    d = math.prod(task.data.shape)
    first, back = linear(d, rows, task, generator), linear(rows, d, task, generator, 0.1)
    return rebuilt(task, Front(first, back, task.module_copy()), name)


HINT = "use a fully connected model (mlp), or a server that changes the architecture (imprint-block, linear-first)"


def relu_pair(task: Task) -> tuple[str, str, str]:
    """Weight and bias of the first linear layer that reads the input, and the weight of the one behind its ReLU. Raises
    `InputError`: no linear layer with bias reads the input, or none of those is followed by ReLU and a linear layer."""
    graph = known_graph(task, HINT)
    rows = [p for p in graph.products if p.weight and _rows_read_in_order(p.terms[0])]
    read = {p: graph.same[p.activation.node] for p in rows if p.activation is not None}
    firsts = [
        (p.weight, shift.weight)
        for group in graph.first
        for p in group.products
        for shift in group.shifts
        if p in rows and read[p] is graph.inputs and shift.terms[0].signal.node is p.terms[0].signal.node
    ]
    for weight, bias in firsts:
        for second in rows:
            behind = operation(read[second]).rstrip("_") == "relu"
            alone = behind and graph.colours.parameters[read[second]] == {weight, bias}
            if weight and bias and second.weight and alone:
                return weight, bias, second.weight
    problem = "has no linear layer with bias that reads the input"
    if firsts:
        problem = f"has no ReLU and second linear layer behind '{firsts[0][0]}', which reads the input"
    raise InputError("model", problem, HINT)


def _rows_read_in_order(term: Term) -> bool:
    """Whether a weight has a row for each unit, and the row's entries are in the order of what it reads."""
    given, kinds = term.activation, term.kinds
    if given is None or given.hot or given.windows is not None or kinds[0][1] != "signal":
        return False
    own = [atom for axis in cut(given.dims)[1:] for atom in axis]
    return own == [atom for atom, kind in kinds if kind == "activation"]


def _raw(data: DataSpec) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
    """Slope and offset by which the model's input becomes raw data."""
    zero = torch.zeros((1, *data.shape), dtype=torch.float64)
    offset = data.denormalise(zero).flatten()
    return data.denormalise(zero + 1).flatten() - offset, offset


ROWS = 0.01
"""Scale of the rows, undone in the columns. A float32 delta is rounded as the parameter that it moved: small
biases with large gradients keep its digits."""


@SERVERS.register("imprint", needs="a linear layer with bias that reads the input, then ReLU and a linear layer")
@dataclass(frozen=True, kw_only=True)
class Imprint(Checked):
    """Bins in an existing first linear layer: parameters only.

    Source: Fowl et al., *Robbing the Fed*, ICLR 2022. All rows measure the brightness h(x) (mean of the raw data);
    row i has bias −t_i with thresholds t_i = mean + std·Φ⁻¹(i/bins), so that it is active for h > t_i. The next
    layer's columns are equal, so that an example sends the same gradient g to each row that it activates, and
    (W_i − W_{i+1}) ÷ (b_i − b_{i+1}) is the example whose brightness alone lies in (t_i, t_{i+1}]. Signs and sizes of g
    differ per example under soft-max cross-entropy; the ratio does not depend on them. Entries of the columns are
    ±c with both signs: g = c·Σ_j s_j·(p_j − y_j) would vanish for equal ones.

    Expected number of n examples alone in k equally likely bins: n·(1 − 1/k)^(n−1).
    Differs: the lowest threshold lies below all data, so that k rows make k bins; the measurement undoes the model's
    normalisation; bins are equally likely only where `mean` and `std` are right. After several local steps reads are
    approximate. The model no longer classifies.

    Attributes:
        bins: rows used; `None` for all.
        mean, std: of the brightness over examples, in raw units. `None`: the mean that inputs are normalised by
            (mid-range where that is none of the data's values), and an eighth of the range.
        gain: bound on the second layer's answer, roughly.
    """

    bins: int | None = limited(None, lambda bins: bins > 1, "give at least 2")
    mean: float | None = None
    std: float | None = positive(None)
    gain: float = positive(1.0)

    def thresholds(self, data: DataSpec, bins: int) -> Float[Tensor, " bins"]:
        """Ascending brightness quantiles in float64, the first of them below all data."""
        usual = sum(data.mean) / len(data.mean)
        middle = usual if data.low < usual < data.high else (data.low + data.high) / 2
        mean = middle if self.mean is None else self.mean
        std = data.range / 8 if self.std is None else self.std
        shares = torch.arange(bins, dtype=torch.float64) / bins
        quantiles: Tensor = mean + std * torch.special.ndtri(shares)
        quantiles[0] = min(data.low - data.range, float(quantiles[1]) - data.range)
        return quantiles

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        """Raises `InputError` where no such layers exist, or the first has fewer rows than bins."""
        names = relu_pair(task)
        weight, bias, after = (task.parameters[name].clone() for name in names)
        bins = len(weight) if self.bins is None else self.bins
        fits = 1 < bins <= len(weight)
        require(fits, "bins", f"is {bins}, and '{names[0]}' has {len(weight)} rows", "give at most as many, and 2")
        data, edges = task.data, self.thresholds(task.data, bins)
        slope, offset = _raw(data)
        weight[:bins] = (ROWS * slope / slope.numel()).to(weight)
        bias[:bins] = (ROWS * (offset.mean() - edges)).to(bias)
        signs = torch.ones(len(after))
        signs[torch.randperm(len(after), generator=generator)[: len(after) // 2]] = -1
        after[:, :bins] = (signs * self.gain / (ROWS * bins * data.range)).to(after)[:, None]
        crafted = task.with_state(dict(zip(names, (weight, bias, after), strict=True)))
        return Broadcast(crafted, RowDifferences(), (Change.PARAMETERS,))


@SERVERS.register("imprint-block")
@dataclass(frozen=True, kw_only=True)
class ImprintBlock(Imprint):
    """Bins in a block of the server's own in front of any model: x + back(relu(first(x))) is passed on.

    Source: the imprint module of Fowl et al., *Robbing the Fed*, ICLR 2022. Values, reader and expected number are
    those of `Imprint`. Differs: the block is a residual one with a small gain, so the model still classifies.
    The ratio is exact whatever the model behind is, BatchNorm in train mode included: only the block's own
    gradient enters. `gain` bounds how far the block moves a normalised pixel, roughly."""

    bins: int = limited(256, lambda bins: bins > 1, "give at least 2")
    gain: float = positive(0.1)

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        crafted = super().broadcast(fronted(task, self.bins, "imprint-block", generator), generator)
        return Broadcast(crafted.task, crafted.crafting, (Change.ARCHITECTURE,))


@SERVERS.register("trap-weights", needs="a linear layer with bias that reads the input, then ReLU and a linear layer")
@dataclass(frozen=True, kw_only=True)
class TrapWeights(Checked):
    """Rows with half of their components negative and heavier, so that few examples reach the ReLU.

    Source: Boenisch et al., *When the curious abandon honesty*, EuroS&P 2023, Algorithm 1. In units of the data's
    range, u = (x − low)/range ≥ 0: half of a row's components, at random places, are ``−|w|``, w ~ N(0, 4/d), the
    others ``|w|/factor`` with w drawn alike. A row's answer is negative for most examples; a row that is positive
    for a single example has its gradient from it alone.
    Differs: the model's normalisation is undone in weights and bias (the paper's models read raw data);
    convolutions before the layer are not made to pass the input on, but refused.

    The reader finds examples with two rows of their own; with one row it cannot tell them from mixtures. The larger
    `factor`, above 1, the fewer examples drive a row."""

    factor: float = limited(1.05, lambda factor: factor > 1, "give a number above 1")

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        """Raises `InputError` where no linear layer with bias reads the input in front of a ReLU."""
        weight, bias, _ = relu_pair(task)
        data, (rows, d) = task.data, task.parameters[weight].shape
        size = torch.randn((rows, d), generator=generator, dtype=torch.float64).abs() * (2 / math.sqrt(d))
        negative = torch.rand((rows, d), generator=generator).argsort(1) < d // 2
        unit = torch.where(negative, -size, size / self.factor)
        slope, offset = _raw(data)
        state = {weight: unit * slope / data.range, bias: unit @ ((offset - data.low) / data.range)}
        return Broadcast(task.with_state(state), LinearRead(), (Change.PARAMETERS,))


@SERVERS.register("linear-first")
@dataclass(frozen=True, kw_only=True)
class LinearFirst(TrapWeights):
    """A biased linear layer with trap weights in front of any model: x + back(relu(first(x))) is passed on.

    Source: `TrapWeights`, with the layer of Fowl et al., 2022, in the place that Boenisch et al. need: at the input.
    The way back is small and differs per row, so that a mixture is not the same in two rows. The layer has so many
    `rows`."""

    rows: int = positive(512)

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        crafted = super().broadcast(fronted(task, self.rows, "linear-first", generator), generator)
        return Broadcast(crafted.task, crafted.crafting, (Change.ARCHITECTURE,))


def classifier_of(task: Task) -> NetworkLayer:
    """The linear layer that makes the logits. Raises `InputError` where there is none."""
    found = linear_stack(task)[-1]
    plain = not (found.relu or found.smooth)
    require(plain, "model", "ends in no linear layer that makes its logits", "give a model that ends in an nn.Linear")
    return found


PRESENT = 1e-6  # least bias gradient of the target class, relative to the largest one, that counts as an example of it


@dataclass(frozen=True, eq=False)
class Fished(SearchingAttack):
    """Reads the update as the gradient of the caught examples alone, and hands that to another attack.

    A caught example has ∂L/∂logit = −1 at the target class and 1/(N−1) elsewhere, any other 0 at the target class.
    So the update divided by −∂L/∂b_target is the caught examples' mean gradient, whatever the learning rate, the
    batch or a clipping made of its length; the other rows of the last layer, which other examples drive too, are
    replaced by −1/(N−1) of the target's row, which is what the caught examples make there.
    """

    target: int
    weight: str  # weight, bias: names of the last layer's parameters
    bias: str
    then: Attack  # the attack that receives the purified gradient, the labels and the number of examples

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        """As many images as examples were caught; not applicable where there is none."""
        caught, how = self.caught(observation)
        if caught == 0:
            return Reconstruction.not_applicable(f"no example was caught: {how}")
        found = effort.of(self.then, self.purified(observation, caught))
        message = f"{caught} examples of class {self.target} caught ({how})"
        message = f"{message}; {found.message}" if found.message else message
        if found.inputs is None:
            return replace(found, message=message)
        labels = torch.full((len(found.inputs),), self.target)
        return replace(found, labels=labels, label_confidence=1.0, paired=True, message=message)

    def caught(self, observation: Observation) -> tuple[int, str]:
        """How many examples drive the target's row, and how that is known.

        The target's bias moves in proportion to it. The proportion is that of a stand-in batch with one example
        of the class, sent through the client's own local training; a defence that rescales updates makes the
        count wrong. Where the example count or the training of a delta is unknown, one is assumed.
        """
        bias, header = observation.values(self.bias), observation.update.header
        towards = bias[self.target] if header.kind is UpdateKind.DELTA else -bias[self.target]
        if float(towards) <= PRESENT * float(bias.abs().max()):
            return 0, f"the batch holds none that class {self.target}'s row responds to"
        protocol = observation.knowledge.local_training or (FedSGD() if header.kind is UpdateKind.GRADIENT else None)
        examples = observation.examples
        if protocol is None or examples is None:
            return 1, "assumed: the example count or the local training is unknown"
        # Whatever the stand-ins' features are, their target has no probability. Its own bias stays as it was sent: far
        # from zero a float type has no room for a step of it.
        held = observation.task.parameters[self.bias]
        silent = held + 2 * held.abs().max() + 1000.0
        silent[self.target] = held[self.target]
        task = observation.task.with_state({self.bias: silent})
        middle = torch.full((examples, *task.data.shape), (task.data.low + task.data.high) / 2)
        middle = middle.to(task.parameters[self.bias])
        labels = torch.full((examples,), (self.target + 1) % task.data.classes, device=bias.device)
        labels[0] = self.target
        made, _ = protocol.local_training(task, Batch(middle, labels), Draws(0), mean_gradient)
        counted = round(float(bias[self.target] / made[self.bias][self.target]))
        return min(max(counted, 1), examples), "counted from the last layer's bias"

    def purified(self, observation: Observation, caught: int) -> Observation:
        """The caught examples' mean gradient, as if a client had held nothing else."""
        update, known = observation.update, observation.knowledge
        strength = -observation.values(self.bias)[self.target]
        wide = observation.task.like.dtype
        own: Tensors = {name: (observation.values(name) / strength).to(wide) for name in update.tensors}
        for name in (self.weight, self.bias):
            row = own[name][self.target]
            rows = (-row / (len(own[name]) - 1)).expand_as(own[name]).clone()
            rows[self.target] = row
            own[name] = rows
        labels = torch.full((caught,), self.target)
        knowledge = replace(known, labels=labels, example_count=caught, local_training=None, draws=None, crafting=None)
        header = UpdateHeader(UpdateKind.GRADIENT, caught)
        return Observation(observation.task, Update(own, header, update.buffers), knowledge)


@SERVERS.register("class-fishing", needs="a last linear layer with bias; soft-max cross-entropy")
@dataclass(frozen=True, kw_only=True)
class ClassFishing(Checked):
    """Only the target's row of the last layer is not zero, and the other biases are large: other examples fall silent.

    Source: Wen et al., *Fishing for user data in large-batch federated learning via gradient magnification*, ICML
    2022, class fishing. The target's probability is e^(z−saturation)/(N−1) ≈ 0 for every example, so ∂L/∂z_target
    is −1 for examples of the class and 0 for all others, and nothing else leads to the layers below.
    Exact there, up to that probability (0 in float32 at the default); in the last layer the other classes' rows are
    driven by all examples, and the reader replaces them. A FedAvg delta is exact for one local step; over several
    the zero rows grow and let other examples through, and the reader takes the delta for a gradient.
    Differs: the examples of the class are counted from the update instead of taken to be one.

    Limits: BatchNorm in train mode lets the others in through its statistics. Several examples of the
    class are caught together.

    Attributes:
        saturation: bias of the other classes; far above any logit of the target.
        then: the attack on the purified gradient.
    """

    target: int = 0
    saturation: float = limited(1000.0, lambda bias: 0 < bias <= 1e6, "give a number in (0, 1e6]")
    then: Attack = field(default_factory=Auto)

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        """Raises `InputError` where the last layer has no bias, the loss is another, or the target is no label."""
        most, plain = task.data.classes - 1, task.loss is cross_entropy
        require(task.outputs > 1, "model", "has one output", "give a classifier of at least two classes")
        require(0 <= self.target <= most, "target", f"is {self.target}", f"give a label from 0 to {most}")
        require(plain, "loss", "is not soft-max cross-entropy", "fishing needs probabilities that saturate")
        layer = classifier_of(task)
        weight, bias = layer.weight, layer.bias
        if bias is None:
            problem = f"its last layer '{layer.name}' has no bias, which the server must set"
            raise InputError("model", problem, "give it one")
        rows = torch.zeros_like(task.parameters[weight])
        biases = torch.full_like(task.parameters[bias], self.saturation)
        row = task.parameters[weight][self.target]
        drawn = torch.randn(row.shape, generator=generator).to(row) / len(row) ** 0.5
        rows[self.target] = row if bool(row.any()) else drawn  # a zero row would carry nothing down
        biases[self.target] = 0.0
        return Broadcast(
            task.with_state({weight: rows, bias: biases}),
            Fished(target=self.target, weight=weight, bias=bias, then=self.then),
            (Change.PARAMETERS,),
        )
