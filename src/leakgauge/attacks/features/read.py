"""The hidden tensors that an update shows: null space, demixing, scale, and what certifies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.fx import Node

from leakgauge.attacks.features.demixing import unmixed
from leakgauge.attacks.features.network import Layer, Network
from leakgauge.attacks.features.null_space import NullSpace, SpanOfRows, null_space
from leakgauge.attacks.features.reach import Centring, Reach
from leakgauge.attacks.features.scale import MapFactors, by_mean_row, by_shift, signals_of
from leakgauge.attacks.features.signals import Signals, kink

COUNTED = 1e-7
"""Squared ratio of a row space's faintest direction to its strongest down to which a Gram matrix tells it."""


@dataclass(frozen=True, eq=False)
class Noisy:
    """One layer's gradient and how far off its entries may be.

    Attributes:
        matrix: [filters, columns].
        error: standard deviation of an entry's error.
    """

    matrix: Float[Tensor, "filters columns"]
    error: float

    @property
    def faintest(self) -> float:
        """What errors alone reach as a singular value (Davidson and Szarek, 2001), with half as much again."""
        return 1.5 * self.error * float(self.matrix.shape[0] ** 0.5 + self.matrix.shape[1] ** 0.5)


@dataclass(frozen=True, eq=False)
class HiddenRead:
    """A hidden tensor of each example that a layer showed.

    Attributes:
        hidden: the node.
        layers: that read it, and of which it was read.
        maps: to scale where `scaled`; zeros of a ReLU are exactly zero.
        raw: the same before that.
        signals: at the layers' outputs, by weight, at the places that are used; with `maps` they make the gradient.
        error: estimated relative error of the maps.
        residual: of the shift's gradient, where it set the scale.
        mean_residual: of the mean row, where that set the relative scale.
        scaled: whether the scale is known.
        sparse: whether zeros of a ReLU were seen.
        told: whether enough pixels tell the maps from their mixtures, of which the shift's gradient says nothing.
    """

    hidden: Node
    layers: tuple[Layer, ...]
    maps: Float[Tensor, "k c pixels"]
    raw: Float[Tensor, "k c pixels"]
    signals: Mapping[str, Float[Tensor, "k places filters"]]
    error: float
    residual: float | None
    mean_residual: float | None
    scaled: bool
    sparse: bool
    told: bool

    @property
    def certified(self) -> bool:
        """Whether a shift's gradient, which no step of the read has used, agrees, and zeros tell the maps apart."""
        limit = min(max(CERTAIN, 30 * self.error), 2e-3)
        return self.told and self.scaled and self.residual is not None and self.residual < limit


TOLD = 0.05
"""Least share of the pixels that hold a map's zeros, where several are told apart."""

CERTAIN = 2e-5
"""Share of a shift's gradient that float32 arithmetic may leave; one wrong map leaves a hundred times as much."""


def row_space(
    layer: Layer, gradient: Noisy, reach: Reach, *, most: int, steps: int | None = 1
) -> tuple[SpanOfRows, float] | str:
    """The space of a layer's rows and the share by which errors may turn it, or the condition that fails.

    Args:
        most: examples that the update holds at most.
        steps: gradients that it sums; `None` where that is not known.
    """
    unfolding = layer.unfolding.only(reach.used)
    places, (filters, columns) = unfolding.places, gradient.matrix.shape
    values, basis = _rows_of(gradient.matrix)
    rank = int((values > gradient.faintest).sum())
    if places == 0 or not float(values[0]) > gradient.faintest:
        return "no signal reaches it above the errors of the entries"
    if places > min(filters, columns - 1):
        return f"{filters} filters are fewer than its {places} places"
    if rank >= columns:
        return f"its {columns} columns are all in use"
    lost = {Centring.NONE: 0, Centring.BATCH: steps or 1, Centring.EXAMPLE: most}[reach.centring]
    if rank >= filters and rank != places * most - lost:
        return f"{filters} filters are fewer than {places} places × {most} examples"
    known = steps is not None and reach.centring is not Centring.EXAMPLE
    if known and (rank + lost) % places:
        return f"rank {rank} of {places} places × {most} examples: signals are too faint, repeated or dead"
    turned = gradient.faintest / float(values[rank - 1])
    return SpanOfRows(unfolding, basis[:rank], reach.centring is not Centring.NONE), turned


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
    reach: Mapping[str, Reach],
    network: Network,
    generator: torch.Generator,
    *,
    most: int,
    shifts: Mapping[str, Tensor],
) -> HiddenRead | str:
    """The hidden tensor that some layers read, or the condition that fails.

    Args:
        layers: that read one node.
        most: examples in the update.
        shifts: the update's gradients of shifts.
    """
    spaces: list[SpanOfRows] = []
    read: list[Layer] = []
    turned, why = 0.0, ""
    for layer in layers:
        found = row_space(layer, gradients[layer.weight], reach[layer.weight], most=most)
        if isinstance(found, str):
            why = why or found
            continue
        spaces.append(found[0])
        read.append(layer)
        turned = max(turned, found[1])
    if not spaces:
        return why
    if turned > 0.3:
        return "errors of the entries hide the row space"
    null = null_space(spaces, most, generator, noise=turned)
    if null is None:
        return f"the overlaps of its rows leave more than {most} maps open"
    return _unmixed_read(tuple(read), spaces, null, gradients, reach, network, generator, shifts)


def _unmixed_read(
    layers: tuple[Layer, ...],
    spaces: Sequence[SpanOfRows],
    null: NullSpace,
    gradients: Mapping[str, Noisy],
    reach: Mapping[str, Reach],
    network: Network,
    generator: torch.Generator,
    shifts: Mapping[str, Tensor],
) -> HiddenRead | str:
    count, hidden = len(null.maps), layers[0].hidden
    shape = null.maps.shape[1:]
    made = unmixed(null.maps.flatten(1), generator, noise=null.error)
    if len(made.maps) < count:
        return f"of {count} maps that it holds only {len(made.maps)} come apart by their zeros"
    maps = made.maps.view(count, *shape)
    floor = (3 * made.floor * made.maps.amax(1)).view(-1, 1, 1)
    bent = kink(network, hidden)
    sparse = bent is not None and bent.below == 0
    if sparse and float((-maps).amax((1, 2)).div(maps.amax((1, 2))).max()) > max(1e-3, 100 * null.error):
        return "a map has negative entries, behind a ReLU"
    raw = maps
    if sparse:
        maps = maps * (maps > floor)
    mean: MapFactors | None = None
    if reach[layers[0].weight].centring is Centring.BATCH:
        mean = by_mean_row(spaces, maps)
        maps = maps * mean.factors.view(-1, 1, 1)
        if mean.residual > max(1e-3, 100 * null.error):
            return f"maps do not share one mean row ({mean.residual:.0e})"
    maps = maps / maps.flatten(1).norm(dim=1).mean()
    raw = raw * (maps.sum((1, 2)) / (raw * (raw > floor) if sparse else raw).sum((1, 2))).view(-1, 1, 1)
    signals = {
        layer.weight: _signals(space, maps, gradients[layer.weight].matrix, reach[layer.weight].centring)
        for layer, space in zip(layers, spaces, strict=True)
    }
    found = _scaled(layers, maps, signals, reach, network, shifts, together=mean is not None)
    factors = torch.ones(count, dtype=torch.float64) if found is None else found.factors
    if found is not None and sparse and not bool((factors > 0).all()):
        found = None
        factors = torch.ones_like(factors)
    return HiddenRead(
        hidden,
        layers,
        maps * factors.view(-1, 1, 1),
        raw * factors.view(-1, 1, 1),
        {name: signal / factors.view(-1, 1, 1) for name, signal in signals.items()},
        null.error,
        None if found is None else found.residual,
        None if mean is None else mean.residual,
        found is not None,
        sparse,
        count == 1 or (sparse and float(made.held.min()) >= TOLD),
    )


def _signals(
    space: SpanOfRows, maps: Float[Tensor, "k c pixels"], gradient: Tensor, centring: Centring
) -> Float[Tensor, "k places filters"]:
    rows = space.unfolding.rows(maps)
    if centring is Centring.BATCH:
        rows = rows - rows.mean((0, 1))
    elif centring is Centring.EXAMPLE:
        rows = rows - rows.mean(1, keepdim=True)
    return signals_of(rows, gradient)


def whole_output(
    layer: Layer, signals: Float[Tensor, "k places filters"], reach: Reach, network: Network
) -> Float[Tensor, "k ..."]:
    """Signals at the used places as the gradient of the layer's output."""
    full = signals.new_zeros(len(signals), layer.unfolding.places, signals.shape[2])
    full[:, reach.used] = signals
    shape = network.shapes[layer.output]
    rows = len(signals) * shape[0] // network.examples
    return layer.output_of(full, torch.Size((rows, *shape[1:])))


def _scaled(
    layers: Sequence[Layer],
    maps: Float[Tensor, "k c pixels"],
    signals: Mapping[str, Tensor],
    reach: Mapping[str, Reach],
    network: Network,
    shifts: Mapping[str, Tensor],
    *,
    together: bool,
) -> MapFactors | None:
    """MapFactors by the shift behind a layer, else by the one in front of the hidden tensor."""
    best: MapFactors | None = None
    for sums, shift in _shift_sums(layers, maps, signals, reach, network, shifts):
        if together:
            found = by_shift(sums.sum(0, keepdim=True), shift)
            found = None if found is None else MapFactors(found.factors.expand(len(maps)), found.residual)
        else:
            found = by_shift(sums, shift)
        if found is not None and (best is None or found.residual < best.residual):
            best = found
    return best


def _shift_sums(
    layers: Sequence[Layer],
    maps: Float[Tensor, "k c pixels"],
    signals: Mapping[str, Tensor],
    reach: Mapping[str, Reach],
    network: Network,
    shifts: Mapping[str, Tensor],
) -> list[tuple[Tensor, Tensor]]:
    """What the signals of each map say of shifts that the update holds."""
    if len(maps) != network.examples:
        return []
    state = Signals(network, {layers[0].hidden: layers[0].hidden_of(maps, network.shapes[layers[0].hidden])})
    for layer in layers:
        state.known[layer.output] = whole_output(layer, signals[layer.weight], reach[layer.weight], network)
    pairs = []
    for layer in layers:
        if layer.bias is not None and layer.bias in shifts:
            pairs.append((signals[layer.weight].sum(1), shifts[layer.bias]))
        state.lifted(layer.output)
    asked = [node for node in state.known if node not in {layer.output for layer in layers}]
    hidden = layers[0].hidden
    if state.kink(hidden) is not None and state.at(hidden) is not None:
        (argument,) = network.operands(hidden)
        if state.at(argument) is not None:
            asked.append(argument)
    for node in asked:
        shift = state.shift(node)
        if shift is not None and shift.name in shifts:
            pairs.append((shift.sums(state.known[node]), shifts[shift.name]))
    return pairs
