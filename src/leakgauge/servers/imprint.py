"""Imprint and trap weights: rows that few examples activate, and that give each of them away; how they are read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.attacks.closed_form.linear import LinearRead
from leakgauge.attacks.closed_form.proof import name_labels
from leakgauge.attacks.effort import ReadingAttack
from leakgauge.defenses import parts_of
from leakgauge.errors import require
from leakgauge.observation import Observation, Reconstruction, Status
from leakgauge.registry import SERVERS
from leakgauge.servers.blocks import fronted, relu_pair
from leakgauge.servers.server import Broadcast, Change
from leakgauge.task import DataSpec, Task
from leakgauge.view.entries import OPERATIONS, SentTensor

CERTAIN = 1 / 510
"""Largest error of a certified input, in shares of the data's range: half a grey level of 8 bits."""


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


TERMS = 256
"""Examples whose sums may round before an empty bin looks driven."""
ROWS = 0.01
"""Scale of the rows, undone in the columns. A float32 delta is rounded as the parameter that it moved: small
biases with large gradients keep its digits."""


@dataclass(frozen=True, eq=False)
class ImprintRead(ReadingAttack):
    """Differences of neighbouring rows: Σ over the examples between two thresholds (`leakgauge.servers.imprint`).

    Attributes:
        weight, bias: names of the layer's parameters.
        thresholds: ascending, in raw brightness; row i is active above the i-th.
    """

    weight: str
    bias: str
    thresholds: Float[Tensor, " bins"]

    def read(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """Costs no gradient evaluation. `EXACT` where no bin can have been shared."""
        bins, data = len(self.thresholds), observation.task.data
        weight, bias = (observation.values(name)[:bins] for name in (self.weight, self.bias))
        # Nothing stands above the last row, so that it is a bin itself.
        steps = [torch.cat([t[:-1] - t[1:], t[-1:]]) for t in (weight, bias)]
        names = self.weight, self.bias
        floors = [2 * float(row_errors(observation, name, terms=TERMS)[:bins].max()) for name in names]
        driven = (steps[0].abs().amax(1) > floors[0]) | (steps[1].abs() > floors[1])
        low = self.thresholds.to(weight)
        high = torch.cat([low[1:], low.new_tensor([torch.inf])])
        slack = 1e-5 * data.range

        def belongs(raw: Float[Tensor, "bins d"]) -> Bool[Tensor, " bins"]:
            brightness = raw.mean(1)
            return (brightness >= low - slack) & (brightness <= high + slack)

        terms = observation.examples or TERMS
        off = [row_errors(observation, name, terms=terms)[:bins] for name in names]
        error = [torch.cat([e[:-1] + e[1:], e[-1:]]) for e in off]
        slots = Slots(steps[0][:, None], steps[1][:, None], (error[0], error[1]), driven, belongs)
        return read_slots(slots, observation, generator)


@SERVERS.register("imprint", needs="a linear layer with bias that reads the input, then ReLU and a linear layer")
@dataclass(frozen=True, kw_only=True)
class Imprint:
    """Bins in an existing first linear layer: parameters only.

    Source: Fowl et al., *Robbing the Fed*, ICLR 2022. All rows measure the brightness h(x) (mean of the raw data);
    row i has bias −t_i with thresholds t_i = mean + std·Φ⁻¹(i/bins), so that it is active for h > t_i. The next
    layer's columns are equal, so that an example sends the same gradient g to each row that it activates, and
    (W_i − W_{i+1}) ÷ (b_i − b_{i+1}) is the example whose brightness alone lies in (t_i, t_{i+1}]. Signs and sizes of g
    differ per example under soft-max cross-entropy; the ratio does not depend on them. Entries of the columns are
    ±c with both signs: g = c·Σ_j s_j·(p_j − y_j) would vanish for equal ones.

    Expected number of n examples alone in k equally likely bins: n·(1 − 1/k)^(n−1).
    Differs: the lowest threshold lies below all data (k rows make k bins; the paper's lowest bin is not read); the
    measurement undoes the model's normalisation; brightness is taken as normal, with a generic prior where
    `mean` and `std` are not given, and bins are then not equally likely.
    Several local steps move rows and columns: reads are approximate, and say so. Replaces all rows of the first
    layer below `bins` and the matching columns of the second; the model no longer classifies.

    Attributes:
        bins: rows used; `None` for all.
        mean, std: of the brightness over examples, in raw units. `None`: the mean that inputs are normalised by
            (mid-range where that is none of the data's values), and an eighth of the range.
        gain: bound on the second layer's answer, roughly.
    """

    bins: int | None = None
    mean: float | None = None
    std: float | None = None
    gain: float = 1.0

    def __post_init__(self) -> None:
        require(self.bins is None or self.bins > 1, "bins", f"is {self.bins}", "give at least 2")
        require(self.std is None or self.std > 0, "std", f"is {self.std}", "give a positive number")
        require(self.gain > 0, "gain", f"is {self.gain}", "give a positive number")

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
        pair = relu_pair(task)
        names = (pair.weight, pair.bias, pair.second)
        weight, bias, after = (task.parameters[name].clone() for name in names)
        bins = len(weight) if self.bins is None else self.bins
        fits = 1 < bins <= len(weight)
        require(fits, "bins", f"is {bins}, and '{pair.weight}' has {len(weight)} rows", "give at most as many, and 2")
        data, edges = task.data, self.thresholds(task.data, bins)
        zero = torch.zeros((1, *data.shape), dtype=torch.float64)
        offset, slope = data.denormalise(zero), data.denormalise(zero + 1) - data.denormalise(zero)
        weight[:bins] = (ROWS * slope.flatten() / slope.numel()).to(weight)
        bias[:bins] = (ROWS * (offset.mean() - edges)).to(bias)
        signs = torch.ones(len(after))
        signs[torch.randperm(len(after), generator=generator)[: len(after) // 2]] = -1
        after[:, :bins] = (signs * self.gain / (ROWS * bins * data.range)).to(after)[:, None]
        crafted = task.with_state(dict(zip(names, (weight, bias, after), strict=True)))
        return Broadcast(crafted, ImprintRead(pair.weight, pair.bias, edges), (Change.PARAMETERS,))


@SERVERS.register("imprint-block")
@dataclass(frozen=True, kw_only=True)
class ImprintBlock:
    """Bins in a block of the server's own in front of any model: x + back(relu(first(x))) is passed on.

    Source: the imprint module of Fowl et al., *Robbing the Fed*, ICLR 2022. Values, reader and expected number are
    those of `Imprint`. Differs: the block is a residual one with a small gain, so the model still classifies.
    The ratio is exact whatever the model behind is, BatchNorm in train mode included: only the block's own
    gradient enters.

    Attributes:
        bins: of the block.
        mean, std: as in `Imprint`.
        gain: bound on how far the block moves a normalised pixel, roughly.
    """

    bins: int = 256
    mean: float | None = None
    std: float | None = None
    gain: float = 0.1

    def __post_init__(self) -> None:
        Imprint(bins=self.bins, mean=self.mean, std=self.std, gain=self.gain)

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        wrapped = fronted(task, self.bins, "imprint-block", generator)
        values = Imprint(bins=self.bins, mean=self.mean, std=self.std, gain=self.gain)
        crafted = values.broadcast(wrapped, generator)
        return Broadcast(crafted.task, crafted.crafting, (Change.ARCHITECTURE,))


@SERVERS.register("trap-weights", needs="a linear layer with bias that reads the input, then ReLU and a linear layer")
@dataclass(frozen=True, kw_only=True)
class TrapWeights:
    """Rows with half of their components negative and heavier, so that few examples reach the ReLU.

    Source: Boenisch et al., *When the curious abandon honesty*, EuroS&P 2023, Algorithm 1. In units of the data's
    range, u = (x − low)/range ≥ 0: half of a row's components, at random places, are ``−|w|``, w ~ N(0, 4/d), the
    others ``|w|/factor`` with w drawn alike. A row's answer is negative for most examples; a row that is positive
    for a single example has its gradient from it alone.
    Differs: the model's normalisation is undone in weights and bias (the paper's models read raw data);
    convolutions before the layer are not made to pass the input on, but refused.

    The reader finds examples with two rows of their own; with one row it cannot tell them from mixtures.

    Attributes:
        factor: of the negative components, above 1. Larger: fewer examples a row.
    """

    factor: float = 1.05

    def __post_init__(self) -> None:
        require(self.factor > 1, "factor", f"is {self.factor}", "give a number above 1")

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        """Raises `InputError` where no linear layer with bias reads the input in front of a ReLU."""
        pair = relu_pair(task)
        data, (rows, d) = task.data, task.parameters[pair.weight].shape
        size = torch.randn((rows, d), generator=generator, dtype=torch.float64).abs() * (2 / math.sqrt(d))
        negative = torch.rand((rows, d), generator=generator).argsort(1) < d // 2
        unit = torch.where(negative, -size, size / self.factor)
        zero = torch.zeros((1, *data.shape), dtype=torch.float64)
        offset = data.denormalise(zero).flatten()
        slope = data.denormalise(zero + 1).flatten() - offset
        state = {
            pair.weight: unit * slope / data.range,
            pair.bias: unit @ ((offset - data.low) / data.range),
        }
        return Broadcast(task.with_state(state), LinearRead(), (Change.PARAMETERS,))


@SERVERS.register("linear-first")
@dataclass(frozen=True, kw_only=True)
class LinearFirst:
    """A biased linear layer with trap weights in front of any model: x + back(relu(first(x))) is passed on.

    Source: `TrapWeights`, with the layer of Fowl et al., 2022, in the place that Boenisch et al. need: at the input.
    The way back is small and differs per row, so that a mixture is not the same in two rows.

    Attributes:
        rows: of the layer.
        factor: as in `TrapWeights`.
    """

    rows: int = 512
    factor: float = 1.05

    def __post_init__(self) -> None:
        require(self.rows > 0, "rows", f"is {self.rows}", "give a positive number")
        TrapWeights(factor=self.factor)

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        wrapped = fronted(task, self.rows, "linear-first", generator)
        crafted = TrapWeights(factor=self.factor).broadcast(wrapped, generator)
        return Broadcast(crafted.task, LinearRead(), (Change.ARCHITECTURE,))
