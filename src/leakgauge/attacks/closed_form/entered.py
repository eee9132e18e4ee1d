"""Layers that parts of an example enter one by one: tokens, patches, columns; and the span of what entered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Real
from torch import Tensor, fx

from leakgauge.batch import Batch
from leakgauge.observation import Observation
from leakgauge.task import Task
from leakgauge.view.entries import SentTensor
from leakgauge.view.graph import Graph, OuterSum
from leakgauge.view.products import Operand, Term
from leakgauge.view.trace import probe

SPREAD = 0.6
"""Twice the deviation of roundings that are uniform up to half of their bound. What independent ones of that size make
of a matrix is no direction of its inputs."""
TWICE, FAINT = 2, 1e-5
"""Inputs of random examples that show in how many directions they lie, for each number of an input; and the share of
the largest below which they lie in no further one."""
CLEAR = 10  # times its rounding that the weakest direction must exceed for none to be hidden beneath it


@dataclass(frozen=True, eq=False)
class Span:
    """Directions of a layer's input that gradients show beyond their rounding."""

    rows: Float[Tensor, "r width"]  # orthonormal
    values: Float[Tensor, " r"]  # singular values, falling, in units of what rounding makes
    blur: float  # what rounding makes outside the span, in the same units
    most: int  # directions of which it must have fewer, so that not all may lie in it: error signals may sum to zero
    entering: int  # tokens of which the gradients may be a sum
    wide: int  # directions in which inputs of random texts lie
    taken: list[int]  # ranks of the weights that clearly show as many directions, each alone

    @property
    def full(self) -> bool:
        return len(self.rows) >= self.most

    @property
    def short(self) -> bool:  # whether tokens may be more than it tells apart, some beneath the rounding
        return self.full or (self.entering >= self.most and bool((self.values[-1:] < CLEAR).any()))

    def outside(self, inputs: Float[Tensor, "*n width"]) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"]]:
        """Share of inputs outside the span, all of one that is zero, and how much of it rounding explains: what is
        weak is known less well."""
        size = inputs.norm(dim=-1)
        along = inputs @ self.rows.T
        left = torch.where(size > 0, (inputs - along @ self.rows).norm(dim=-1) / size, 1.0)
        return left, self.blur * (along / self.values).norm(dim=-1) / size


@dataclass(frozen=True, eq=False)
class EnteredLayer:
    """Weights that multiply the same rows of vectors, a row a place, `first` places before those of a text's tokens."""

    graph: Graph
    observation: Observation
    products: list[OuterSum]
    by_example: bool  # whether the rows of an example follow each other; else those of a place do
    places: int = 0  # rows of an example, from `first` on
    first: int = 0
    alone: bool = True  # a row depends on what is at its place alone; else also on what is before it

    @property
    def entering(self) -> int:
        """Rows of which the gradients may be a sum."""
        return (self.observation.examples or 1) * self.places

    @cached_property
    def span(self) -> Span:
        """Of the gradients of its weights; random examples show in how many directions its inputs lie."""
        parts = list[Tensor]()
        for product in self.products:
            entries = SentTensor.of(self.observation, product.weight or "", operations=self.entering)[...]
            sent, error = (product.matrices(t)[0].cpu() for t in (entries.value, SPREAD * entries.hard + entries.sigma))
            noise = float(error.square().mean().sqrt())
            parts.append(sent / max(noise, torch.finfo(torch.float64).tiny))
        every = torch.cat(parts)
        largest, taken = [sum(size**0.5 for size in one.shape) for one in (every, *parts)], list[int]()
        for one, noise in zip(parts, largest[1:], strict=True):
            shown = int((torch.linalg.svdvals(one) > CLEAR * noise).sum())
            taken += [shown] * (shown == min(one.shape))
        some = probe(self.observation.task, TWICE * every.shape[1] // self.places + 1).inputs
        wide = int(torch.linalg.matrix_rank(self.given(some).flatten(0, 1), rtol=FAINT))
        values, rows = torch.linalg.svd(every / largest[0], full_matrices=False)[1:]
        rows, values = rows[values > 1], values[values > 1]
        blur = ((every.shape[1] - len(rows)) ** 0.5 + 1) / largest[0]
        return Span(rows, values, blur, min(wide, len(every) - 1), self.entering, wide, taken)

    @property
    def name(self) -> str:
        return (self.products[0].weight or "").rpartition(".")[0]

    def too_narrow(self, layers: list[EnteredLayer]) -> str:
        """Why nothing is read where more tokens enter than the layer's weights tell apart, or show; else empty.

        It names the least rank that could do, with two directions more than tokens, as others lie near a span that
        lacks one; none where inputs of none of the `layers` have so many, or no weight shows as many as its rank."""
        span, count, (_, out, wide) = self.span, len(self.products), self.products[0].shape
        rows = sum(p.shape[1] for p in self.products)
        rank = span.entering + 2 if rows > wide else -(-(span.entering + 3) // count)
        does = span.entering + 1 < max(x.span.wide for x in layers) and not wide < rows <= rank
        which = f"{count} weights of rank {min(out, wide)} tell" if count > 1 else f"its rank of {min(out, wide)} tells"
        words = f"{span.entering} tokens enter {self.name}; {which} at most {span.most - 1} apart"
        if not span.short:
            words = f"{span.entering} tokens enter {self.name}; its gradients show {len(span.rows)} directions"
            others = max(len(span.rows) - sum(span.taken), 0)  # of weights whose errors have few, at any rank
            rank = -((others - span.entering - 2) // max(len(span.taken), 1))
            does = max(span.taken, default=rank) < rank <= max(x.span.wide for x in layers)
        told = f"{words}{f'; it takes rank {rank} or more' * does}"
        return told * (span.short or len(span.rows) < span.entering)

    def given(self, inputs: Real[Tensor, "n *shape"]) -> Float[Tensor, "n places width"]:
        """What the layer is given at the places of raw examples, or of texts."""
        return self.rows(inputs, self.observation.task)[:, self.first : self.first + self.places]

    def rows(self, inputs: Real[Tensor, "n *shape"], task: Task) -> Float[Tensor, "n rows width"]:
        """What it is given at all places, in the precision of a task; of none where it has no row for each place of
        each example."""
        batch = Batch(inputs.to(task.like), torch.zeros(len(inputs), dtype=torch.long, device=task.like.device))
        with torch.no_grad():
            return self.read(task, batch).cpu().double()

    def read(self, task: Task, batch: Batch) -> Float[Tensor, "n rows width"]:
        """The same of a batch, with derivatives."""
        terms = _in_order(self.graph, self.products[0])
        return torch.cat([self._split(self.graph.rows(t, o, task, batch)[0], len(batch)) for t, o in terms], 1)

    def signals(self, product: OuterSum, task: Task, batch: Batch) -> Float[Tensor, "n rows outputs"]:
        """Error signals at the same places of what one of its weights makes."""
        terms = _in_order(self.graph, product)
        return torch.cat([self._split(self.graph.rows(t, t.signal, task, batch)[0], len(batch)) for t, _ in terms], 1)

    def _split(self, rows: Float[Tensor, "rows columns"], count: int) -> Float[Tensor, "n places columns"]:
        """Rows example by example; none where it has no row for each place of each example."""
        places = 0 if len(rows) % count else len(rows) // count
        if self.by_example:
            return rows[: count * places].view(count, places, rows.shape[1])
        return rows[: count * places].view(places, count, rows.shape[1]).transpose(0, 1)


def entered(graph: Graph, observation: Observation) -> Iterator[EnteredLayer]:
    """Weights that multiply the same rows, in the order of the network, each in both orders of these rows."""
    together: dict[tuple[fx.Node, ...], list[OuterSum]] = {}
    for product in graph.products:
        given = [operand for _, operand in _in_order(graph, product)]
        plain = len(given) == len(product.terms) and not any(o.hot or o.windows for o in given)
        nodes = tuple(graph.same[operand.node] for operand in given)
        if plain and product.weight and product.shape[0] == 1 < product.shape[2] and len({*nodes}) == len(nodes):
            together.setdefault(nodes, []).append(product)
    order = {node: k for k, node in enumerate(graph.trace.code.graph.nodes)}
    for nodes, products in sorted(together.items(), key=lambda pair: order[pair[0][0]]):
        for width in dict.fromkeys(p.shape[2] for p in products):
            own = [p for p in products if p.shape[2] == width]
            for by_example in (True, False)[: 2 if len(nodes) == 1 else 1]:
                yield EnteredLayer(graph, observation, own, by_example)


def _in_order(graph: Graph, product: OuterSum) -> list[tuple[Term, Operand]]:
    """Its terms that multiply, with what they do, in the order in which that was made: a loop reads a part a turn."""
    found = [(term, term.activation) for term in product.terms if term.activation is not None]
    order = {node: k for k, node in enumerate(graph.trace.code.graph.nodes)} if len(found) > 1 else {}
    return sorted(found, key=lambda pair: order.get(graph.same[pair[1].node], 0))
