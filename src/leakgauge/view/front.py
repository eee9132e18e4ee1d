"""Which numbers of an example follow from what a network's first layers read of it."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse.linalg import lsmr
from torch import Tensor, fx

from leakgauge.errors import FOREIGN
from leakgauge.task import Task
from leakgauge.view.derivatives import jacobian
from leakgauge.view.graph import KEPT, Graph, followed
from leakgauge.view.probed import Range
from leakgauge.view.products import Term
from leakgauge.view.trace import ROUNDED, ancestors, probe

PAIRS = 6  # of examples, noise and spots of all densities: between the two of a pair an affine map is a line
MOVES = 24  # pairs of noise, by which it is seen which number moves an entry; entries of bins move in few
AFFINE = 1e-9  # relative gap of what is affine
ITERATIONS = 200
FOLLOWS = 1e-4  # most error of a number of size 1 to 3, which is solved for
SOLVED = 4  # examples that are solved for
LEVELS = 1024  # of a number, all over its range
MOST = 2**13  # numbers of an example that are moved one by one
EXCHANGED = 8  # kinds of numbers that look the same, of each of which two are exchanged


Made = TypeVar("Made")  # what is made of numbers


def told_apart(task: Task, inputs: Float[Tensor, "n *shape"]) -> Bool[Tensor, " n"]:
    """Which normalised examples the layers of a task's network tell from all others; none of a network that cannot be
    followed."""
    graph = followed(task)
    return torch.zeros(len(inputs), dtype=torch.bool) if isinstance(graph, str) else _front(graph).tells(inputs)


def movers(
    seen: Callable[[Iterable[Made], Tensor], list[Tensor]],
    every: Iterable[Made],
    pairs: Float[Tensor, "k two *n d"],
    least: int = 1,
) -> dict[Made, Int[Tensor, " m"]]:
    """For every entry of what is made of numbers the only number that moves it, −1 where there is none or more than
    one; of what has not so many such entries nothing. Numbers of pairs are exchanged by halves: what moves with a half
    and not with the other tells a digit of its own. `seen`: some of what is made, of numbers or of several rows."""
    numbers, owners, alone = torch.arange(pairs.shape[-1]), dict[Made, Tensor](), dict[Made, Tensor]()
    for place in range(max((len(numbers) - 1).bit_length(), 1)):
        moved = dict.fromkeys(every, torch.zeros((), dtype=torch.bool))
        for one, two in pairs:
            parts = (one, *(torch.where(numbers >> place & 1 == half, two, one) for half in (0, 1)))
            for made, at, *halves in zip(moved, *(seen(moved, part) for part in parts), strict=True):
                rows = math.prod(at.shape[:-1]), at.shape[-1]
                moved[made] = moved[made] | torch.stack([(half != at).reshape(rows).any(0) for half in halves])
            moved = {k: m for k, m in moved.items() if bool((m[0] ^ m[1]).any())}
            if not moved:
                return {}
        alone = {k: alone.get(k, torch.ones((), dtype=torch.bool)) & (m[0] ^ m[1]) for k, m in moved.items()}
        owners = {
            k: owners.get(k, torch.zeros((), dtype=torch.long)) + (m[1].long() << place) for k, m in moved.items()
        }
        every = {k: m for k, m in moved.items() if int(alone[k].sum()) >= least}
        if not every:
            return {}
    return {k: torch.where(alone[k], found, -1) for k, found in owners.items()}


def categories(task: Task) -> Bool[Tensor, " d"]:
    """Which numbers of an example stand for a category or a token."""
    return torch.cat([torch.full((math.prod(part.shape),), part.whole) for part in task.layout.inputs.values()])


@dataclass(frozen=True, eq=False)
class NetworkFront:
    """What the layers of a network read, as a function of one example.

    An update that explains itself by an example to rounding proves what layers read of it, and no more: a frame that a
    stride leaves out, a colour that is averaged away and the sign of what is squared may be anything.
    """

    graph: Graph

    @cached_property
    def affine(self) -> Bool[Tensor, "*shape"]:
        """Numbers that follow, together, from what layers read of the input by affine maps."""
        learned = {node for name, node in self.graph.trace.nodes.items() if name.startswith("p:")}
        first = [term for term in self.terms if term.activation and not ancestors(term.activation.node) & learned]
        found = torch.zeros(self.shape.numel(), dtype=torch.bool)
        with suppress(*FOREIGN):  # what somebody's network raises on other inputs
            for terms in (first, self.terms if len(found) <= MOST else ()):
                found = found if bool(found.all()) or not terms else self._solved(terms)
        return found.view(self.shape)

    def tells(self, inputs: Float[Tensor, "n *shape"]) -> Bool[Tensor, " n"]:
        """Which normalised examples layers tell from all others: each number follows by an affine map, or is the only
        one that some entries are made of, which no other value of it makes."""
        left, flat = ~self.affine.flatten(), inputs.flatten(1).double().cpu()
        told = torch.full((len(inputs),), not bool(left.any()))
        with suppress(*FOREIGN):  # what somebody's network raises on other inputs
            owners = self._owners.values() if bool(left.any()) and len(left) <= MOST else ()
            if owners and bool(torch.isin(left.nonzero()[:, 0], torch.cat(list(owners))).all()):
                told = torch.tensor([self._alone(one, left) for one in flat])
        return torch.tensor([bool(own) and not self._exchanged(one) for own, one in zip(told, flat, strict=True)])

    @cached_property
    def shape(self) -> torch.Size:
        """Of an example."""
        return torch.Size(self.graph.inputs.meta["val"].shape[1:])

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """Of all products, one for each tensor that is read."""
        found = {t.activation.node: t for p in self.graph.products for t in p.terms if t.activation is not None}
        return tuple(found.values())

    @cached_property
    def within(self) -> Range:
        """What each number is between, normalised."""
        return Range.of(self.graph)

    def rows(self, terms: Iterable[Term], flat: Float[Tensor, " d"]) -> list[Tensor]:
        """What is read of an example beside one of zeros: some networks do not run on one."""
        operands = [(t, t.activation) for t in terms if t.activation is not None]
        made = self._made([operand.node for _, operand in operands], flat)
        return [self.graph.matrices(t, o, v, 2).flatten() for (t, o), v in zip(operands, made, strict=True)]

    def _made(self, nodes: list[fx.Node], flat: Float[Tensor, " d"]) -> list[Tensor]:
        graph, pair = self.graph, torch.stack([flat, torch.zeros_like(flat)]).view(2, *self.shape)
        return graph.trace.evaluate(nodes, graph.double, probe(graph.double, 2), given={graph.inputs: pair})

    def _exchanged(self, flat: Float[Tensor, " d"]) -> bool:
        """Whether another example has the same gradient: with its numbers in other places or turned over, as a picture
        has and its mirror image where a network adds up both."""
        with suppress(*FOREIGN):  # nothing is exchanged of what has no slope
            for other in self._exchanges(flat):
                gaps = zip(self._made(self._ends, flat), self._made(self._ends, other), strict=True)
                if all(bool((a - b).norm() <= FOLLOWS * a.norm()) for a, b in gaps):
                    return True
        return False

    def _exchanges(self, flat: Float[Tensor, " d"]) -> Iterator[Float[Tensor, " d"]]:
        """Others that may have it. Two numbers that slopes do not tell apart at a blank example are exchanged, and with
        them what has to be: slopes tell more where these are marked, and where those are that are told by then."""
        size, half, least = len(flat), self.within.at(0.5) - self.within.low, 4 / LEVELS
        share, marks = (flat - self.within.low) / half - 1, torch.linspace(1, 0, 2 * size + 1).double().expand(2, -1)
        signed, pairs = torch.cat([share, -share]), list[tuple[int, int, int]]()
        for one, *others in self._alike:
            unlike = [two for two in others if abs(signed[two] - signed[one]) > least]
            unlike.sort(key=lambda two: two != one + size)  # itself turned over
            pairs += [(k, one, two) for k, two in enumerate(unlike)]
        for _, *pair in sorted(pairs)[:EXCHANGED]:
            marked, told, orders = torch.tensor(pair)[:, None], 0, torch.zeros(2, 0, dtype=torch.long)
            while marked.shape[1] > told:
                points, told = torch.zeros_like(marks[:, 1:]).scatter_add(1, marked, marks), marked.shape[1]
                kinds = _kinds(torch.cat([self._slopes(at[:size] - at[size:]) for at in points])).view(2, -1)
                orders = kinds.argsort(dim=1, stable=True)
                found, others = kinds.gather(1, orders)
                if torch.equal(found, others):
                    marked = torch.cat([marked[:, :1], orders[:, kinds.flatten().bincount()[found] == 2]], 1)
            other = signed.scatter(0, orders[1], signed[orders[0]])[:size]
            if bool(((other - share).abs() > least).any()):
                yield self.within.low + half * (1 + other)

    @cached_property
    def _alike(self) -> list[list[int]]:
        """Numbers, and behind them all turned over, in which slopes are the same at a blank example, to rounding."""
        shares = self._drawn(1)[0] * torch.tensor([[0.0], [1.0]])
        kinds = _kinds(torch.cat([self._slopes(share) for share in shares]))[: 2 * shares.shape[1]]
        return [(kinds == kind).nonzero().flatten().tolist() for kind in (kinds.bincount() > 1).nonzero()]

    @cached_property
    def _ends(self) -> list[fx.Node]:
        return [node for node in self.graph.trace.gradients.values() if node is not None]

    def _slopes(self, share: Float[Tensor, " d"]) -> Float[Tensor, " signed"]:
        """Of a random sum of the gradients in each number and in what it is turned over, in shares of half its range
        from its middle on."""
        at, draw = share.requires_grad_(), torch.Generator().manual_seed(0)
        with torch.enable_grad():
            made = torch.cat([end.flatten() for end in self._made(self._ends, self.within.at(0.5 + 0.5 * at))])
            (slopes,) = torch.autograd.grad(made @ torch.randn(made.shape, generator=draw, dtype=made.dtype), at)
        return torch.cat([slopes, -slopes])

    def _units(self, share: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        """Numbers in units of their parts, categories as whole numbers."""
        data = self.graph.task.data
        parts = self.graph.task.layout.raw_inputs((data.low + data.range * share).view(1, *self.shape))
        return torch.cat([part.double().flatten() for part in parts.values()])

    def _drawn(self, count: int) -> Float[Tensor, "count two d"]:
        draw = torch.Generator().manual_seed(0)
        return torch.rand((count, 2, self.shape.numel()), generator=draw, dtype=torch.float64)

    def _solved(self, terms: Iterable[Term]) -> Bool[Tensor, " d"]:
        affine = {t: torch.ones((), dtype=torch.bool) for t in terms}
        share = self._drawn(PAIRS)
        spots = share < torch.linspace(0, 1, 2 * PAIRS, dtype=share.dtype).view(PAIRS, 2, 1)
        for one, two in self.within.at(torch.cat([share[:1], spots[1:].double()])):
            points = (self.rows(affine, at) for at in (one, two, 0.3 * one + 0.7 * two))
            for term, (a, b, c) in zip(affine, zip(*points, strict=True), strict=True):
                affine[term] = affine[term] & ((c - 0.3 * a - 0.7 * b).abs() <= AFFINE * c.norm())
        kept = {term: which for term, which in affine.items() if bool(which.any())}
        if not kept:
            return torch.zeros(self.shape.numel(), dtype=torch.bool)
        point = self.within.at(torch.full((self.shape.numel(),), 0.5, dtype=torch.float64))

        def read(point: Float[Tensor, " d"]) -> Tensor:
            return torch.cat([row[which] for row, which in zip(self.rows(kept, point), kept.values(), strict=True)])

        (_, operator), follows = jacobian(read, point), torch.ones(len(point), dtype=torch.bool)
        for wanted in 1 + 2 * self._drawn(SOLVED)[:, 0]:  # one alone may by chance have nothing of what is lost
            found = lsmr(operator, operator @ wanted.numpy(), atol=1e-12, btol=1e-12, conlim=0, maxiter=ITERATIONS)[0]
            follows &= (torch.from_numpy(found) - wanted).abs() < FOLLOWS
        return follows

    @cached_property
    def _owners(self) -> dict[Term, Int[Tensor, " m"]]:
        """For every entry the only number that moves it, as `movers` has it."""
        return movers(self.rows, self.terms, self.within.at(self._drawn(MOVES)))

    def _alone(self, flat: Float[Tensor, " d"], wanted: Bool[Tensor, " d"]) -> bool:
        """Whether no value beyond the next of `LEVELS` makes the entries of a wanted number as they are; between two
        levels what comes nearer than it moves there may be met."""
        terms, within = {t: o for t, o in self._owners.items() if bool((o >= 0).any())}, self.within
        owner = torch.cat(list(terms.values()))

        def seen(share: float | None) -> Tensor:
            at = flat if share is None else torch.where(wanted, within.at(share), flat)
            return torch.cat(self.rows(terms, at))[owner >= 0]

        def size(gap: Tensor) -> Float[Tensor, " d"]:
            return torch.zeros_like(flat).index_add_(0, owner[owner >= 0], gap.square())

        here, at, before = (flat - within.low) / (within.high - within.low), seen(None), seen(0.0)
        own, whole = self._units(here), categories(self.graph.task)
        for level in range(1, LEVELS + 1):
            after, ends = seen(level / LEVELS), [torch.full_like(here, (level - k) / LEVELS) for k in (0, 1)]
            others = [torch.where(whole, self._units(end) != own, (end - here).abs() > 2 / LEVELS) for end in ends]
            far = others[0] & others[1]
            gap = torch.minimum(size(before - at), size(after - at))
            met = gap <= torch.where(whole, 0.0, size(after - before))
            if bool((far & met & wanted).any()):
                return False
            before = after
        return True


def _kinds(values: Float[Tensor, " k"]) -> Int[Tensor, " k"]:
    """Equal values as equal whole numbers, which rise with them."""
    order = values.argsort(stable=True)
    apart = values[order].diff() > ROUNDED * values.abs().amax()
    return torch.zeros_like(order).scatter(0, order[1:], apart.cumsum(0))


_front = lru_cache(maxsize=KEPT)(NetworkFront)
