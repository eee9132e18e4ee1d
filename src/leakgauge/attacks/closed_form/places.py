"""Examples whose parts enter a layer one by one: patches of pictures, columns of a table, steps of a series.

What may enter at a place is a function of a part's few numbers, and fills few directions. The rows of the layer's
gradient span what did enter. Where the two meet in one direction alone it is that part's. Of several examples each
place would meet all that these differ in, so they are told apart first, by what attention binds in each (`unmixing`).
A part follows from its direction by Newton's method. Nothing here proves an example.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.attacks.closed_form.entered import EnteredLayer, entered
from leakgauge.attacks.closed_form.unmixing import Mixed
from leakgauge.observation import Observation
from leakgauge.task import Batch, Task
from leakgauge.view.entries import SentTensor
from leakgauge.view.front import categories
from leakgauge.view.graph import Graph, OuterSum
from leakgauge.view.trace import probe

MORE = 8  # random parts, beyond as many as a part has numbers, that show which directions a place may take
RANK = 1e-9  # share of the largest singular value below which those show no further direction
CLEAR = 10.0  # times farther from the span that the second direction of a place is at least
OUT = 0.1  # of the data's range, that an example lies outside it at most
STEPS, NEAR, TURN = 16, 1e-4, 0.5
"""Steps of Newton's method, how far parts are moved for their slopes, and how far rows turn in a step, in radians."""


@dataclass(frozen=True, eq=False)
class Places:
    """A layer, and the numbers of an example that each of its rows is made of."""

    layer: EnteredLayer
    numbers: Bool[Tensor, "places d"]

    @staticmethod
    def of(layer: EnteredLayer) -> Places | None:
        """Of rows that each example has several of, by itself; else `None`. Of rows that share numbers only some."""
        task = layer.graph.double
        one, other = (probe(task, 2, seed).inputs for seed in (0, 1))
        first, second = (layer.rows(x, task) for x in (one, torch.cat([one[:1], other[1:]])))
        if not first.shape[1] > 1 or not torch.equal(first[0], second[0]) or torch.equal(first[1], second[1]):
            return None
        found = Places(replace(layer, places=first.shape[1]), torch.zeros(0, one[0].numel(), dtype=torch.bool))
        every = torch.arange(first.shape[1])
        for some in (every[[0, len(every) // 2, -1]].unique(), every):
            found = replace(found, numbers=found.behind(some))
            if not found.alone:
                break
        return found

    def behind(self, places: Int[Tensor, " k"]) -> Bool[Tensor, "k d"]:
        """The numbers that move some rows."""
        count, layer = len(places), self.layer
        points = probe(self.task, 1).inputs.expand(count, *self.task.data.shape).clone().requires_grad_()
        with torch.enable_grad():
            batch = Batch(points, torch.zeros(count, dtype=torch.long))
            rows = layer.read(self.task, batch)
            weights = torch.randn(rows.shape[2], generator=torch.Generator().manual_seed(0), dtype=rows.dtype)
            (slopes,) = torch.autograd.grad((rows[torch.arange(count), places] @ weights).sum(), points)
        return slopes.flatten(1) != 0

    @property
    def alone(self) -> bool:
        """Whether no number moves two rows."""
        return bool((self.numbers.sum(0) <= 1).all())

    @property
    def task(self) -> Task:
        return self.layer.graph.double

    @property
    def taken(self) -> Bool[Tensor, " places"]:
        """Those that something of an example enters at; the others' rows are the same in all."""
        return self.numbers.any(1)

    def rows(self, flat: Float[Tensor, "n d"]) -> Float[Tensor, "n places width"]:
        """Of examples in the network's units."""
        shape = self.task.data.shape
        return self.layer.rows(self.task.data.denormalise(flat.view(-1, *shape)), self.task)

    @cached_property
    def ways(self) -> Float[Tensor, "k d"]:
        """Directions of all parts at once, in the network's units: each number of them; or, where the gradient of a
        layer that cuts examples into the same parts has fewer rows, these."""
        most, entering = int(self.numbers.sum(1).max()), int(self.taken.sum()) * (self.layer.observation.examples or 1)
        units, graph = torch.zeros(most, self.numbers.shape[1], dtype=torch.float64), self.layer.graph
        for part in self.numbers[self.taken]:
            units[torch.arange(int(part.sum())), part.nonzero().flatten()] = 1
        cut = [p for g in graph.first for p in g.products if p.weight and len(p.terms) == 1] if entering < most else []
        for product in cut:
            if (places := places_in(graph, product)) is None:
                continue
            places = places[places[:, 0] >= 0]
            own = {tuple(part.nonzero().flatten().tolist()) for part in self.numbers[self.taken]}
            if {tuple(sorted(one)) for one in places.tolist()} != own:
                continue
            sent = SentTensor.of(self.layer.observation, product.weight or "", operations=entering)[...].value.cpu()
            _, sizes, sides = torch.linalg.svd(product.matrices(sent)[0], full_matrices=False)
            if len(sizes) <= entering or float(sizes[entering - 1]) < CLEAR * float(sizes[entering]):
                continue
            units = torch.zeros(entering, self.numbers.shape[1], dtype=torch.float64)
            units[:, places.flatten()] = sides[:entering].repeat(1, len(places))
            break
        return units

    @cached_property
    def possible(self) -> list[Float[Tensor, "r width"]]:
        """For each place orthonormal directions of what may enter there."""
        draw, ways = torch.Generator().manual_seed(0), self.ways
        weights = torch.randn(len(ways) + MORE, int(self.taken.sum()), len(ways), generator=draw, dtype=ways.dtype)
        flat = ways.new_zeros(len(weights), ways.shape[1])
        for part, some in zip(self.numbers[self.taken], weights.unbind(1), strict=True):
            flat[:, part] = some @ ways[:, part]
        found = list[Tensor]()
        for rows in self.rows(flat).unbind(1):
            _, sizes, sides = torch.linalg.svd(rows, full_matrices=False)
            found.append(sides[sizes > RANK * sizes[0]])
        return found

    def directions(self, span: Float[Tensor, "r width"]) -> Float[Tensor, "taken width"] | None:
        """The only direction of each place in a span, of length 1; `None` where a place has none, or more."""
        found, span = list[Tensor](), torch.linalg.qr(span.T)[0].T
        for possible in (p for p, taken in zip(self.possible, self.taken, strict=True) if taken):
            if len(possible) + len(span) > span.shape[1] + 1:
                return None
            along = torch.linalg.svd(span @ possible.T)[2][:2] @ possible
            left = (along - along @ span.T @ span).norm(dim=1)
            if len(left) > 1 and not float(left[1]) > CLEAR * float(left[0]):
                return None
            found.append(along[0])
        return torch.stack(found)

    def example(self, directions: Float[Tensor, "taken width"]) -> Float[Tensor, " d"]:
        """In the network's units: the parts whose rows point there, or the opposite way."""
        (one, left), (other, worse) = (self._turned(sign * directions) for sign in (1, -1))
        return torch.where((self.numbers[self.taken] & (left < worse)[:, None]).any(0), one, other)

    def _turned(self, wanted: Float[Tensor, "taken width"]) -> tuple[Float[Tensor, " d"], Float[Tensor, " taken"]]:
        """The parts whose rows point there, from zeros on by Newton's method, and how far off each still is. Rows turn
        by at most `TURN` a step: what a positive factor makes of affine maps is convex, and is not left on the way."""
        flat, parts, left = self.ways.new_zeros(self.ways.shape[1]), self.numbers[self.taken], wanted[:, 0]
        for _ in range(STEPS):
            moved = self.rows(torch.cat([flat[None], flat + NEAR * self.ways]))[:, self.taken]
            here = torch.nn.functional.normalize(moved[0], dim=1)
            along = (here * wanted).sum(1, keepdim=True)
            aside = wanted - along * here
            left = torch.atan2(aside.norm(dim=1), along[:, 0])
            turn = left.clamp_max(TURN)[:, None]
            aim = turn.cos() * here + turn.sin() * torch.nn.functional.normalize(aside, dim=1)
            for k, part in enumerate(parts):
                used = self.ways[:, part].any(1)
                system = torch.cat([(moved[1:, k] - moved[0, k])[used] / NEAR, -aim[k : k + 1]])
                step = torch.linalg.lstsq(system.T, -moved[0, k, :, None], driver="gelsd").solution[:-1, 0]
                flat[part] += step @ self.ways[used][:, part]
        return flat, left


def read_parts(
    graph: Graph, observation: Observation
) -> tuple[Float[Tensor, "k *shape"], Float[Tensor, "m *shape"] | None] | str:
    """All raw examples that some layer tells apart which they enter part by part, with the directions that each lies in
    where these are fewer than its numbers; or why there are none."""
    why, data = "no layer takes in parts of examples one by one", observation.task.data
    if bool(categories(observation.task).any()):
        return "needs inputs that are numbers"
    for places in filter(None, map(Places.of, entered(graph, observation))):
        if not places.alone:  # nor is any row behind these
            break
        if found := [places.example(one) for one in _told_apart(places)]:
            inputs = data.denormalise(torch.stack(found).view(-1, *data.shape))
            off = (inputs - inputs.clamp(data.low, data.high)).flatten(1).square().mean(1).sqrt()
            inputs = inputs[off < OUT * data.range]
            ways = (places.numbers[places.taken][:, None] * places.ways).flatten(0, 1)
            zero = data.denormalise(ways.new_zeros(1, *data.shape))
            few = len(ways) < ways.shape[1]
            if len(inputs):
                return inputs, data.denormalise(ways.view(-1, *data.shape)) - zero if few else None
        (_, width), name = places.layer.span.rows.shape, places.layer.name
        parts, many = f"{int(places.taken.sum())} parts of each example", len(places.layer.span.rows)
        why = f"{parts} enter {name}, whose gradients show {many} of {width} directions: they are not told apart"
    return why


def _told_apart(places: Places) -> Iterator[Float[Tensor, "taken width"]]:
    """The directions of single examples."""
    layer, count, taken = places.layer, places.layer.observation.examples or 1, int(places.taken.sum())
    alike = places.rows(places.ways[:1] * 0)[0, ~places.taken]
    span = layer.span
    if span.full or len(span.rows) != count * taken + len(alike):
        return
    parts = [span.rows]
    if count > 1:
        mixed = Mixed.of(layer)
        own = mixed.beside(alike @ mixed.basis.T)
        parts = [torch.cat([one.basis, alike]) for one in own.singles(taken)]
    for part in parts:
        directions = places.directions(part)
        if directions is not None:
            yield directions


def places_in(graph: Graph, product: OuterSum) -> Int[Tensor, "tokens size"] | None:
    """Which entry of the flattened input stands where in the rows that a product reads of an example, −1 in rows of
    zeros alone; `None` unless each entry stands in one place."""
    shape, like = graph.inputs.meta["val"].shape[1:], next(iter(graph.task.parameters.values()))
    numbers = torch.arange(1, shape.numel() + 1, dtype=torch.float64)  # zeros are padding
    rows = graph.read(product, numbers.view(1, *shape).to(like)).double().cpu()
    told = len(rows) == 1 and torch.equal(rows[rows.any(2)].flatten().sort().values, numbers)
    return rows[0].long() - 1 if told else None
