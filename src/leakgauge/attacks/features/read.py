"""The hidden tensors that an update shows, what certifies them, and why the others do not come out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.fx import Node

from leakgauge.attacks.features.demixing import unmixed
from leakgauge.attacks.features.inside import Centring, Inside, Layer
from leakgauge.attacks.features.null_space import (
    LARGE,
    MapFactors,
    SpanOfRows,
    by_mean_row,
    by_shift,
    narrowed_space,
    null_space,
    signals_of,
)
from leakgauge.attacks.features.signals import KnownInside
from leakgauge.attacks.matching.problem import UNLIMITED, Meter, Over
from leakgauge.observation import Observation
from leakgauge.update import UpdateKind
from leakgauge.view.entries import Entries, SentTensor, noise_of, one_factor, sent_decay

SPARE = 1.5  # equations for each number of maps whose rows span more than a row space
TURNED = 0.3  # share by which errors may turn the faintest direction of a row space
HIDDEN = 5.0  # standard errors that an entry which was left out, and then filled with noise, stays below
COUNTED = 1e-7  # squared ratio of a row space's faintest direction to its strongest that a Gram matrix still tells


@dataclass(frozen=True, eq=False)
class Noisy:
    """One layer's gradient and how far off its entries may be."""

    matrix: Float[Tensor, "filters columns"]
    errors: Float[Tensor, "filters columns"]  # standard deviation of each entry's error
    hides: bool = False  # whether entries may have been left out that nothing tells

    @property
    def whole(self) -> bool:
        """Whether no column may have been left out: what is read of it would be zero."""
        return not self.hides or bool((self.matrix.abs() > HIDDEN * self.errors).any(0).all())

    @property
    def share(self) -> float:
        """Of its length that errors make."""
        return float(self.errors.norm() / self.matrix.norm().clamp_min(1e-300))

    @property
    def faintest(self) -> float:
        """What errors alone reach as a singular value, with half as much again: the longest row and the longest column
        of their deviations, which may differ from entry to entry (Bandeira and van Handel, 2016)."""
        return 1.5 * float(self.errors.norm(dim=1).max() + self.errors.norm(dim=0).max())

    def turned(self, values: Float[Tensor, " rank"], basis: Float[Tensor, "rank columns"]) -> float:
        """How far errors turn a row space, in the mean over its directions: each by those of the rows that make it."""
        made = (self.matrix @ basis.T / values).square()
        return float((self.errors.square().sum(1) @ made / values.square()).mean().sqrt())


@dataclass(frozen=True)
class Passes:
    """How often the client's loop ran the network before it sent one sum of all gradients: a round of several steps, or
    a sum of several clients', is one batch of all pairs of an example and a step."""

    maps: int | None  # such pairs; `None` for any number
    batches: int | None  # that had statistics of their own; `None` for any number
    factor: float | None  # of the mean gradient, where all were at the broadcast weights

    @staticmethod
    def of(observation: Observation, examples: int) -> "Passes":
        client, told = observation.knowledge.local_training, observation.linear
        factor = None if told is None or sent_decay(observation) is None else told.factor
        if client is not None:
            parts = client.parts(examples)
            return Passes(sum(parts), len(parts), factor)
        gradient = observation.update.header.kind is UpdateKind.GRADIENT
        return Passes(examples, 1, factor) if gradient else Passes(None, None, None)

    @property
    def words(self) -> str:
        return f"{self.maps or 'any number of'} {'examples' if self.factor else 'examples and steps'}"

    def scaled(self, spaces: Sequence[SpanOfRows]) -> bool:
        """Whether a shift's gradient, at the broadcast weights, may tell the scale of maps."""
        return (self.factor is not None or self.maps is None) and all(space.batches < 2 for space in spaces)


@dataclass(frozen=True, eq=False)
class HiddenRead:
    """A hidden tensor of each example that a layer showed."""

    layers: tuple[Layer, ...]  # that read it, and of which it was read
    maps: Float[Tensor, "k c pixels"]  # to scale where a `residual` says so; zeros of a ReLU are exactly zero
    raw: Float[Tensor, "k c pixels"]  # the same before that
    # at the layers' outputs, by weight, at the places that are used; with `maps` they make the gradient
    signals: Mapping[str, Float[Tensor, "k places filters"]]
    error: float  # estimated relative error of the maps
    residual: float | None  # of the shift's gradient, where one set the scale
    sparse: bool  # whether zeros of a ReLU were seen
    told: bool  # whether enough pixels tell the maps from their mixtures, of which the shift's gradient says nothing
    # whether their number and the rank of the gradient are both what the client's loop makes: then its rows span
    # nothing but the maps' rows. Without a `residual` these are known up to a factor each.
    counted: bool
    runs: tuple[Int[Tensor, " m"], ...]  # maps that ran together, as in one step, and are to scale with each other
    whole: bool = True  # whether all columns of the gradient are known to have been sent
    # whether the weights and the shift that set the scale are known to have been shortened by one factor; else all maps
    # are known up to one
    alike: bool = True

    @property
    def hidden(self) -> Node:
        return self.layers[0].hidden

    def reordered(self, order: Int[Tensor, " k"]) -> "HiddenRead":
        """With its examples in another order."""
        signals = {name: signal[order] for name, signal in self.signals.items()}
        runs = tuple(order.argsort()[run] for run in self.runs)
        return replace(self, maps=self.maps[order], raw=self.raw[order], signals=signals, runs=runs)

    @property
    def certified(self) -> bool:
        """Whether zeros tell the maps apart, and a shift's gradient, which no step of the read has used, agrees; where
        there is none, their number."""
        agrees = self.counted if self.residual is None else self.residual < AGREES and self.scaled
        return self.told and self.whole and self.error < EXACT and agrees

    @property
    def scaled(self) -> bool:
        """Whether a shift's gradient agrees as far as errors allow, so that the maps are worth going on from."""
        limit = max(CERTAIN, 30 * self.error)
        return self.told and self.residual is not None and self.residual < limit and self.error < BLURRED


TOLD = 0.05  # least share of the pixels that hold a map's zeros, where several are told apart
SPREAD = 5.0  # times their typical error that maps may be off
EXACT = 1e-3  # most error of what is certified
BLURRED = 0.1  # most error of maps that the examples are looked for behind
AGREES = 2e-3  # share of a shift's gradient that what is certified may leave of it
CERTAIN = 2e-5  # share of a shift's gradient that float32 may leave; one wrong map leaves a hundred times as much


def row_space(layer: Layer, gradient: Noisy, passes: Passes) -> SpanOfRows | str:
    """The space of a layer's rows, or the condition that fails."""
    unfolding = layer.unfolding.only(layer.used)
    places, (filters, columns) = unfolding.places, gradient.matrix.shape
    values, basis = _rows_of(gradient.matrix)
    bound, batched = gradient.faintest, layer.centring is Centring.BATCH
    rank = int((values > bound).sum())
    whole, lost = places * (passes.maps or 0), (passes.batches or 0) * batched
    if whole - lost < rank <= whole:  # what float32 leaves of sums that are zero is an error too
        rank, bound = whole - lost, max(bound, 1.5 * float(values[whole - lost]))
    if places == 0 or not float(values[0]) > bound:
        return "no signal reaches it above the errors of the entries"
    if places > min(filters, columns - 1):
        return f"{filters} filters are fewer than its {places} places"
    if rank >= columns:
        return f"its {columns} columns are all in use"
    each = places - (layer.centring is Centring.EXAMPLE)
    lost = (passes.batches or -rank % places) if batched else 0
    maps, rest = divmod(rank + lost, max(each, 1))
    said = f"{places} places × {passes.words}"
    if rank >= filters and maps != passes.maps:
        return f"{filters} filters are fewer than {said}"
    unknowns = (passes.maps or 0) * unfolding.channels * unfolding.pixels
    enough = rank * (columns - whole) >= SPARE * unknowns and unknowns <= LARGE
    short = layer.centring is Centring.NONE and rank < whole <= filters and enough
    if (rest and not short) or not 0 < maps + bool(rest) <= (passes.maps or maps):
        return f"rank {rank} of {said}: signals are too faint, repeated or dead"
    if bound > TURNED * float(values[rank - 1]):
        return "errors of the entries hide the row space"
    noise = gradient.turned(values[:rank], basis[:rank]) * max(bound / max(gradient.faintest, 1e-300), 1.0)
    centred = layer.centring is not Centring.NONE
    return SpanOfRows(unfolding, basis[:rank], 0 if rest else maps, lost, noise, centred, short)


def _rows_of(matrix: Float[Tensor, "filters columns"]) -> tuple[Tensor, Tensor]:
    """Singular values and right singular vectors, of a flat matrix from its Gram matrix where that has the digits."""
    if matrix.shape[1] > 2 * matrix.shape[0]:
        squares, left = torch.linalg.eigh(matrix @ matrix.T)
        squares, left = squares.flip(0), left.flip(1)
        inside = squares > COUNTED * squares[0]
        if bool(inside.all()):
            made = (left.T @ matrix) / squares.sqrt()[:, None]
            return squares.sqrt(), torch.linalg.qr(made.T)[0].T
    _, values, right = torch.linalg.svd(matrix, full_matrices=False)
    return values, right


def read_hidden(
    layers: Sequence[Layer],
    gradients: Mapping[str, Noisy],
    inside: Inside,
    generator: torch.Generator,
    *,
    shifts: Mapping[str, Tensor],
    passes: Passes,
    alike: Callable[[frozenset[str]], bool] = lambda _: True,
    meter: Meter = UNLIMITED,
) -> HiddenRead | str:
    """The hidden tensor that `layers` read, or the condition that fails. `alike` says of tensors whether they were
    shortened by one factor."""
    found = {layer: row_space(layer, gradients[layer.weight], passes) for layer in layers}
    spans = {layer: space for layer, space in found.items() if isinstance(space, SpanOfRows)}
    if not spans:
        return next(why for why in found.values() if isinstance(why, str))
    most = passes.maps or max(space.maps for space in spans.values())
    # A rank below that of all maps lacks some directions of their rows, or, where no layer has more, is that of fewer.
    full, short = {k: s for k, s in spans.items() if not s.short}, {k: s for k, s in spans.items() if s.short}
    whole = full or {k: s for k, s in spans.items() if s.maps}
    null = null_space([*whole.values()], most, generator, meter) if whole else None
    if null is None and short:
        whole, null = short, narrowed_space([*short.values()], most, generator, meter)
    read, spaces = [*whole], [*whole.values()]
    if null is None:
        return f"the overlaps of its rows leave more than {most} maps open"
    count, first = len(null.maps), read[0]
    made = unmixed(null.maps.flatten(1), generator, noise=null.typical)
    if len(made.maps) < count:
        return f"of {count} maps that it holds only {len(made.maps)} come apart by their zeros"
    maps = made.maps.view(count, *null.maps.shape[1:])
    apart = torch.linalg.svdvals(made.maps / made.maps.norm(dim=1, keepdim=True))[-1]
    # In a span of nearly equal maps, mixtures are near too, and few zeros are of one alone.
    firm = made.firm.clamp_min(1e-300)
    bound = null.error / max(min(float(apart), float(firm.min())), 1e-300)
    error = min(SPREAD * float((null.typical_of(made.maps) / firm).max()), bound, 1.0)
    floor = (3 * made.floor * made.maps.amax(1)).view(-1, 1, 1)
    bent = KnownInside(inside).bent(first.hidden)
    sparse = bent is not None and bent.below == 0
    if sparse and float((-maps).amax((1, 2)).div(maps.amax((1, 2))).max()) > max(1e-3, 100 * null.error):
        return "a map has negative entries, behind a ReLU"
    raw, certain = maps, maps * (maps > floor) if sparse else maps
    together = first.centring is Centring.BATCH and passes.scaled(spaces)
    maps, runs = certain, torch.arange(count).split(1)
    if first.centring is Centring.BATCH:
        means = by_mean_row(spaces, maps, max(1e-3, 100 * (null.error if together else null.typical)))
        if together and len(means) > 1:
            return f"maps do not share one mean row, but have {len(means)}"
        factors = maps.new_ones(count).index_put((torch.cat([m for m, _ in means]),), torch.cat([f for _, f in means]))
        maps, runs = maps * factors.view(-1, 1, 1), tuple(which for which, _ in means)
    maps = maps / maps.flatten(1).norm(dim=1).mean()
    raw = raw * (maps.sum((1, 2)) / certain.sum((1, 2))).view(-1, 1, 1)
    signals: dict[str, Tensor] = {}
    scale, by = None, ""
    if passes.scaled(spaces):
        for layer, space in zip(read, spaces, strict=True):
            rows = layer.centred(space.unfolding.rows(maps))
            signals[layer.weight] = signals_of(rows, gradients[layer.weight].matrix)
        if count == inside.examples:
            scale, by = _scaled(_known(read, maps, signals, inside), count, shifts, together=together)
    if scale is not None and sparse and not bool((scale.factors > 0).all()):
        scale = None
    factors = (torch.ones(count, dtype=torch.float64) if scale is None else scale.factors).view(-1, 1, 1)
    return HiddenRead(
        tuple(read),
        maps * factors,
        raw * factors,
        {name: signal / factors for name, signal in signals.items()},
        error,
        None if scale is None else scale.residual,
        sparse,
        count == 1 or (sparse and float(made.held.min()) >= TOLD),
        count == passes.maps and all(space.maps == count for space in spaces),
        runs,
        all(gradients[layer.weight].whole for layer in read) or _zeros_told(read, maps, signals, inside, shifts),
        not by or alike(frozenset({by, *(layer.weight for layer in read)})),
    )


def _zeros_told(
    layers: Sequence[Layer],
    maps: Float[Tensor, "k c pixels"],
    signals: Mapping[str, Tensor],
    inside: Inside,
    shifts: Mapping[str, Tensor],
) -> bool:
    """Whether zeros of the maps are zeros of the hidden tensor, not columns that were left out: the gradients of shifts
    in front of it say so, which signals reach through its other entries alone."""
    if not signals or len(maps) != inside.examples:
        return False
    open_, found = maps.abs() + 1, []
    sums, others = (dict(_known(layers, m, signals, inside).shifts(set(shifts))) for m in (maps, open_))
    for name in sums.keys() & others.keys():
        if not torch.equal(sums[name], others[name]):
            told, dead = by_shift(sums[name], shifts[name]), (sums[name] == 0).all(0)
            still = bool((shifts[name][dead].abs() <= CERTAIN * shifts[name].abs().max()).all())
            found.append(told is not None and told.residual < AGREES and still)
    return bool(found) and all(found)


def _known(
    layers: Sequence[Layer], maps: Float[Tensor, "k c pixels"], signals: Mapping[str, Tensor], inside: Inside
) -> KnownInside:
    known = KnownInside(inside, {layers[0].hidden: layers[0].hidden_of(maps)})
    for layer in layers:
        known.sent[layer.output] = inside.output_of(layer, signals[layer.weight])
    for layer in layers:
        known.lifted(layer.output)
    return known


def _scaled(
    known: KnownInside, count: int, shifts: Mapping[str, Tensor], *, together: bool
) -> tuple[MapFactors | None, str]:
    """Factors by the shift of which the signals know most, and its name: behind a layer, or in front of the hidden
    tensor."""
    best, by = None, ""
    for name, sums in known.shifts(set(shifts)):
        found = by_shift(sums.sum(0, keepdim=True) if together else sums, shifts[name])
        if found is not None and (best is None or found.residual < best.residual):
            best, by = MapFactors(found.factors.expand(count), found.residual), name
    return best, by


@dataclass(frozen=True, eq=False)
class HiddenTensors:
    """What is read of an update."""

    observation: Observation
    passes: Passes  # of the client's loop
    inside: Inside  # the network, in float64, of as many examples as the update holds at most
    gradients: Mapping[str, Noisy]  # of its layers' weights
    shifts: Mapping[str, Tensor]  # gradients of all parameters of one dimension
    groups: Sequence[Sequence[Layer]]  # layers that read one tensor, from the output on
    # of those that were tried, by the first weight that reads the tensor: what came out, or the condition that fails
    found: dict[str, HiddenRead | str] = field(default_factory=dict)

    @staticmethod
    def of(observation: Observation, count: int) -> "HiddenTensors":
        """Nothing yet of an update of `count` examples at most. Raises what the model raises where it cannot be
        traced."""
        inside, passes = Inside.of(observation.task, count), Passes.of(observation, count)
        factor = passes.factor or 1.0
        gradients = layer_gradients(observation, inside, factor)
        flat = [name for name, tensor in observation.update.tensors.items() if tensor.ndim == 1]
        shifts = {name: entries.value / factor for name, entries in _entries(observation, flat)}
        groups: dict[Node, list[Layer]] = {}
        for layer in inside.layers:
            if layer.weight in gradients:
                groups.setdefault(layer.hidden, []).append(layer)
        return HiddenTensors(observation, passes, inside, gradients, shifts, [*reversed(groups.values())])

    def read(self, generator: torch.Generator, meter: Meter = UNLIMITED, most: int | None = None) -> "HiddenTensors":
        """With all tensors, of at most so many numbers an example, that layers read, while the meter lasts."""
        alike = partial(one_factor, self.observation)
        for group in self.groups:
            name, unfolding = group[0].weight, group[0].unfolding
            if name in self.found or (most is not None and unfolding.channels * unfolding.pixels > most):
                continue
            try:
                meter.tick()
                asked = partial(read_hidden, group, self.gradients, self.inside, generator, shifts=self.shifts)
                self.found[name] = asked(passes=self.passes, alike=alike, meter=meter)
            except Over:
                self.found[name] = "the budget's seconds ended before"
        return self

    @property
    def reads(self) -> list[HiddenRead]:
        """From the input on."""
        return [read for read in self._ordered.values() if isinstance(read, HiddenRead)]

    @property
    def why(self) -> dict[str, str]:
        """Of the others, the condition that fails, from the input on."""
        return {name: read for name, read in self._ordered.items() if isinstance(read, str)}

    @property
    def _ordered(self) -> dict[str, HiddenRead | str]:
        names = [group[0].weight for group in reversed(self.groups)]
        return {name: self.found[name] for name in names if name in self.found}


def layer_gradients(
    observation: Observation, inside: Inside, factor: float = 1.0, *, but: str = ""
) -> dict[str, Noisy]:
    """Of the weights that were sent, `but` one, `factor` taken off, by name."""
    sent = observation.update.tensors.keys() - {but}
    layers = {layer.weight: layer for layer in inside.layers if layer.weight in sent}
    return {
        name: Noisy(layers[name].matrix(e.value / factor), layers[name].matrix(e.unsure / abs(factor)), e.hides)
        for name, e in _entries(observation, layers)
    }


def _entries(observation: Observation, names: Iterable[str]) -> Iterator[tuple[str, Entries]]:
    """Tensors as they were sent, without the client's decay."""
    decay, view = sent_decay(observation), noise_of(observation)
    for name in names:
        yield name, SentTensor.of(observation, name, view=view, decay=decay or 0.0)[...]
