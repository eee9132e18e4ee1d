"""Texts taken apart where every token sees every other: what a network's own symmetry binds is bound in each text.

Scores q·k are the same for queries Gᵀq and keys G⁻¹k. So in every text by itself Σ q·(∂L/∂q)ᵀ = Σ (∂L/∂k)·kᵀ, summed
over its places. Random texts show which outputs of a layer are bound like that, by whatever symmetry of the network.

A layer's gradient gives a basis of all rows that entered it, and in that basis their error signals and outputs. The
rows of one text are a projection of it, for which what is bound is linear: solutions are the projections onto single
texts, and their combinations. It is diagonal for rows that are known one by one, and any matrix for the others. Rows of
several texts have unknown signals in each; they are left out, with all that they could add, and found again in each
text by what it lacks. Nothing here proves a text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from leakgauge.attacks.closed_form.entered import EnteredLayer
from leakgauge.attacks.closed_form.token_spans import CHUNK, OUTSIDE, UNHEARD, fitting, repeated
from leakgauge.errors import FOREIGN
from leakgauge.observation import Observation
from leakgauge.view.entries import SentTensor
from leakgauge.view.trace import probe

TEXTS, EQUAL = 3, 1e-9  # random texts that show what is bound, and the relative difference up to which sums are equal
MOST = 72  # dimensions of rows that are not known one by one: there are as many unknowns as their square
CLEAR = 100.0  # times the eigenvalue of the last text that the next one is at least
BESIDE, MORE, TURNED = 1e-12, 8, 6  # of inverse iteration: what is added to eigenvalues, vectors more, and turns
ROUNDED = 1e-15  # eigenvalues that are rounding
DEPENDENT = 1e-3  # share of a row in a combination that is zero from which on it is not determined
PART = 0.1  # share of what a text lacks without a row up to which the row explains it
FITTING = 2**11  # tokens that fit at their places, over which none is told from others
TRIED, TURNS = 16, 2  # combinations of solutions; changes of each place in search of the best


@dataclass(frozen=True, eq=False)
class Law:
    """Sums over the places of any text that are equal: Σ other_b·δ_a = Σ output_a·ε_b for all a and b."""

    left: Int[Tensor, "2 a"]  # where δ_a stands among the error signals, and output_a among the outputs
    right: Int[Tensor, "2 b"]  # ε_b and other_b

    def sides(self, mixed: Mixed) -> list[tuple[Tensor, Tensor]]:
        """δ_a and output_a, ε_b and other_b of a basis, without what rows in `common` might add."""
        sides = [(signals, outputs, _outside(mixed.common[:, outputs])) for signals, outputs in (self.left, self.right)]
        return [(mixed.signals[:, i] @ left, mixed.outputs[:, j] @ left) for i, j, left in sides]


def _outside(rows: Float[Tensor, "c n"]) -> Float[Tensor, "n r"]:
    """An orthonormal basis of what has no part in some rows."""
    _, sizes, sides = torch.linalg.svd(rows)
    found: Tensor = sides[int((sizes > DEPENDENT * sizes[:1]).sum()) :].T
    return found


def _shifts(layer: EnteredLayer) -> dict[str, str]:
    """Weight → the parameter that is added to its outputs: its gradient is the sum of their error signals. One whose
    signals sum to zero in every text may be any such: nothing that is bound depends on it."""
    graph, batch, found = layer.graph, probe(layer.graph.double, TEXTS), dict[str, str]()
    others = [p for p in graph.products if p.weight and p not in layer.products]
    with suppress(*FOREIGN), torch.no_grad():  # an operation that does not run in double precision, say
        made = graph.trace.evaluate([p.node for p in others], graph.double, batch)
        for one in layer.products:
            signals = layer.signals(one, graph.double, batch).flatten(0, 1)
            near = EQUAL * float(signals.abs().sum(0).norm())
            for other, value in zip(others, made, strict=True):
                fits = value.numel() == signals.shape[1]
                if fits and float((value.flatten() - signals.sum(0)).norm()) <= near:
                    found.setdefault(one.weight or "", other.weight or "")
    return found


def _laws(layer: EnteredLayer, weight: Float[Tensor, "outputs width"], bias: Float[Tensor, " outputs"]) -> list[Law]:
    """As random texts show them."""
    graph, size = layer.graph, len(weight)
    batch = probe(graph.double, TEXTS)
    try:
        with torch.no_grad():
            rows = layer.read(graph.double, batch).cpu()
            sent = torch.cat([layer.signals(one, graph.double, batch).cpu() for one in layer.products], 2)
    except FOREIGN:  # an operation that does not run in double precision, say
        return []
    pair = rows @ weight.T + bias, sent
    sums, sizes = (torch.einsum("tpo,tps->ost", *each) for each in (pair, [part.abs() for part in pair]))
    told = (sums.abs() > EQUAL * sizes).all(2)
    order = sums[told][:, 0].argsort()
    where, sums, sizes = told.nonzero()[order], sums[told][order], sizes[told][order]
    equal = (sums.diff(dim=0).abs() <= EQUAL * sizes[1:]).all(1)
    if not bool(equal.any()):
        return []
    # An edge joins two couples of an error signal and an output; all of one half of a law's are joined to all others.
    (outputs, signals), (others, theirs) = where[:-1][equal].T, where[1:][equal].T
    ends, edges = torch.cat([signals * size + others, theirs * size + outputs]).unique(return_inverse=True)
    one, other = edges.chunk(2)
    joined = csr_array((torch.ones(len(edges)), (edges, torch.cat([other, one]))), shape=(len(ends), len(ends)))
    count, which = connected_components(joined, directed=False)
    found = list[Law]()
    for own in (torch.from_numpy(which == k).nonzero().flatten() for k in range(count)):
        near = torch.from_numpy(joined[[int(own[0])]].indices).long()
        far = own[~torch.isin(own, near)]
        if int(torch.isin(one, own).sum()) == len(near) * len(far):
            found.append(Law(*(torch.stack([ends[side] // size, ends[side] % size]) for side in (far, near))))
    return found


@dataclass(frozen=True, eq=False)
class Mixed:
    """Rows of several texts in a basis of their span."""

    laws: list[Law]
    basis: Float[Tensor, "r width"]
    outputs: Float[Tensor, "r outputs"]  # of the basis
    signals: Float[Tensor, "r outputs"]  # sums over rows of their coordinates times their error signals
    cells: Int[Tensor, "k 2"]  # places and tokens whose rows lie in the span
    rows: Float[Tensor, "k r"]  # their coordinates
    common: Float[Tensor, "l outputs"]  # outputs of rows that are left out, as their signals in each text are unknown
    open: Int[Tensor, "c 2"]  # places and tokens of these, where rows are of tokens
    texts: int  # at most

    @staticmethod
    def of(layer: EnteredLayer) -> Mixed:
        """What the gradient of a layer says of all rows that entered it."""
        basis, parameters = layer.span.rows, layer.graph.double.parameters
        sent, weights, biases, sums = list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor]()
        shifts = _shifts(layer)

        def told(name: str) -> Tensor:
            return SentTensor.of(layer.observation, name, operations=layer.entering)[...].value.cpu()

        for one in layer.products:
            name = one.weight or ""
            shift = shifts.get(name)
            sent.append(one.matrices(told(name))[0] @ basis.T)
            weights.append(one.matrices(parameters[name].detach())[0].cpu())
            none = basis.new_zeros(one.shape[1])
            biases.append(none if shift is None else parameters[shift].detach().cpu().flatten())
            sums.append(none + torch.nan if shift is None else told(shift).flatten())
        weight, bias, signals, total = torch.cat(weights), torch.cat(biases), torch.cat(sent), torch.cat(sums)
        # A vector whose product with the coordinates of each row is one, as the gradients of biases have it.
        seen = ~total.isnan()
        one_ = torch.linalg.lstsq(signals[seen], total[seen, None]).solution if bool(seen.any()) else basis[:, :1] * 0
        outputs, none = basis @ weight.T + one_ * bias, basis[:0] @ basis.T
        laws, cells = _laws(layer, weight, bias), torch.zeros(0, 2, dtype=torch.long)
        of = layer.observation.examples or 1
        return Mixed(laws, basis, outputs, signals.T, cells, none, outputs[:0], cells, of)

    def known(self, layer: EnteredLayer, fits: Bool[Tensor, "length vocabulary"]) -> Mixed:
        """The same with the rows that fit."""
        cells, length = fits.nonzero(), len(fits)
        tokens, which = cells[:, 1].unique(return_inverse=True)
        given = torch.cat([layer.given(some[:, None].expand(-1, length)) for some in tokens.split(CHUNK)])
        return replace(self, cells=cells, rows=given[which, cells[:, 0]] @ self.basis.T)

    def apart(self) -> Iterator[Mixed]:
        """Single texts, as far as they are told apart."""
        counts = self.cells[:, 0].bincount()[self.cells[:, 0]]
        if bool((counts == 1).all()):
            yield self
            return
        for several in (counts < 1, counts == 1, counts < counts.max()):
            if len(parts := list(self._without(several)._parts())) > 1:
                yield from (text for part in parts for text in part.apart())
                return

    def _without(self, several: Bool[Tensor, " k"]) -> Mixed:
        """What is left of the span without rows that may be of several texts."""
        one = self.beside(self.rows[several])
        cells, open_ = self.cells[~several], torch.cat([self.open, self.cells[several]])
        return replace(one, cells=cells, rows=one.rows[~several], open=open_)

    def beside(self, rows: Float[Tensor, "c r"]) -> Mixed:
        """What is left of the span without some rows."""
        left = _outside(rows)
        basis, outputs, signals = (left.T @ each for each in (self.basis, self.outputs, self.signals))
        common = torch.cat([self.common, rows @ self.outputs])
        return replace(self, basis=basis, outputs=outputs, signals=signals, rows=self.rows @ left, common=common)

    def singles(self, size: int) -> Iterator[Mixed]:
        """Single examples of so many rows each, none of which is known."""
        if len(self.basis) == size:
            yield self
        elif len(parts := list(self._parts())) > 1:
            for one in parts:
                yield from one.singles(size)

    def _split(self) -> tuple[Mixed, int]:
        """The same in a basis whose first vectors are rows that are sure to have entered, and how many they are; others
        may fit because some do, where places are only added to tokens."""
        sides, sizes, _ = torch.linalg.svd(self.rows)
        rank = int((sizes > DEPENDENT * sizes[:1]).sum())
        sure = (sides[:, rank:].norm(dim=1) <= DEPENDENT) & (rank == len(self.outputs))
        others = torch.linalg.svd(self.rows[~sure])[2][: len(self.outputs) - int(sure.sum())]
        basis = torch.cat([self.rows[sure], others])
        cells = torch.cat([self.cells[sure], self.cells[~sure]])
        rows = torch.linalg.lstsq(basis.T, torch.cat([self.rows[sure], self.rows[~sure]]).T).solution.T
        signals = torch.linalg.lstsq(basis.T, self.signals).solution
        own = replace(
            self, basis=basis @ self.basis, outputs=basis @ self.outputs, signals=signals, cells=cells, rows=rows
        )
        return own, int(sure.sum())

    def _parts(self) -> Iterator[Mixed]:
        """Of each of the projections that the laws allow, what it projects onto; none where these are not clear."""
        own, sure = self._split()
        size, free = len(own.outputs), len(own.outputs) - sure
        if free > MOST or not self.laws or size < 2:
            return
        pairs = torch.block_diag(torch.eye(sure), torch.ones(free, free)).nonzero().T
        equations = torch.zeros(pairs.shape[1], pairs.shape[1], dtype=torch.float64)
        for law in self.laws:
            equations += _squares(law.sides(own), *pairs)
        scale = equations.diagonal().sqrt().clamp_min(torch.finfo(equations.dtype).tiny)
        count = min(self.texts, pairs.shape[1] - 1)
        values, vectors = _smallest(equations / scale / scale[:, None], count + 1)
        ratios = values[1:] / values[:-1].clamp_min(ROUNDED)
        if ratios.max() < CLEAR or (parts := 1 + int(ratios.argmax())) < 2:
            return
        solutions = vectors[:, :parts].T / scale
        drawn = torch.randn(TRIED, parts, generator=torch.Generator().manual_seed(0), dtype=solutions.dtype) @ solutions
        each = [(one[:sure], one[sure:].view(free, free)) for one in drawn]
        groups = [_groups(torch.cat([one, torch.linalg.eigvals(block).real]), parts) for one, block in each]
        (one, block), (means, _) = max(zip(each, groups, strict=True), key=lambda pair: pair[1][1])
        unit, whose = torch.eye(free, dtype=block.dtype), torch.linalg.eigvals(block).real
        nearest, rank = ((each[:, None] - torch.tensor(means)).abs().argmin(1) for each in (one, whose))
        for k, mean in enumerate(means):
            here = nearest == k
            onto = unit
            for other in means[:k] + means[k + 1 :]:
                onto = onto @ (block - other * unit) / (mean - other)
            basis = torch.linalg.svd(onto)[0][:, : int((rank == k).sum())]
            rest = own.rows[:, sure:]
            near = (rest - rest @ basis @ basis.T).norm(dim=1) <= OUTSIDE * rest.norm(dim=1)
            near[:sure] = here
            yield replace(
                own,
                basis=torch.cat([own.basis[:sure][here], basis.T @ own.basis[sure:]]),
                outputs=torch.cat([own.outputs[:sure][here], basis.T @ own.outputs[sure:]]),
                signals=torch.cat([own.signals[:sure][here], basis.T @ onto @ own.signals[sure:]]),
                cells=own.cells[near],
                rows=torch.cat([own.rows[near][:, :sure][:, here], rest[near] @ basis], 1),
                texts=self.texts - parts + 1,
            )

    def completed(self) -> Int[Tensor, "places 2"]:
        """The cells of a single text, with those of rows left out that explain what it lacks."""
        free = ~torch.isin(self.open[:, 0], self.cells[:, 0])
        cells, outputs = self.open[free], self.common[free]
        places = [(cells[:, 0] == place).nonzero().flatten().tolist() for place in cells[:, 0].unique()]

        def left(rows: Iterable[int | None]) -> float:
            some, lacks = replace(self, common=outputs[[row for row in rows if row is not None]]), list[float]()
            for law in self.laws:
                (delta, output), (epsilon, other) = law.sides(some)
                lacks.append(float((delta.T @ other - output.T @ epsilon).norm()))
            return math.hypot(*lacks)

        best: list[int | None] = [None] * len(places)
        for _ in range(TURNS * len(places)):  # what explains most, at one place after the other
            moves = [(place, row) for place, rows in enumerate(places) for row in rows]
            best = min(([*best[:place], row, *best[place + 1 :]] for place, row in moves), key=left)
        told = [row for row in best if left(best) < PART * left([other for other in best if other != row])]
        return torch.cat([self.cells, cells[[row for row in told if row is not None]]])


def _smallest(matrix: Float[Tensor, "p p"], count: int) -> tuple[Float[Tensor, " count"], Float[Tensor, "p count"]]:
    """Least eigenvalues, rising, with a column for each, by inverse iteration on a few vectors more."""
    draw, unit = torch.Generator().manual_seed(0), torch.eye(len(matrix), dtype=matrix.dtype)
    found = torch.randn(len(matrix), min(count + MORE, len(matrix)), generator=draw, dtype=matrix.dtype)
    factors = torch.linalg.lu_factor(matrix + BESIDE * unit)
    for _ in range(TURNED):
        found = torch.linalg.qr(torch.linalg.lu_solve(*factors, found))[0]
    values, turned = torch.linalg.eigh(found.T @ matrix @ found)
    return values[:count], found @ turned[:, :count]


def _squares(sides: list[tuple[Tensor, Tensor]], i: Int[Tensor, " p"], j: Int[Tensor, " p"]) -> Float[Tensor, "p p"]:
    """The normal equations of one law for entries i, j of a projection."""
    (delta, output), (epsilon, other) = sides
    cross = (other @ epsilon.T)[i][:, j] * (delta @ output.T)[j][:, i]
    found = (other @ other.T)[i][:, i] * (delta @ delta.T)[j][:, j]
    return found + (output @ output.T)[i][:, i] * (epsilon @ epsilon.T)[j][:, j] - cross - cross.T


def _groups(values: Float[Tensor, " r"], count: int) -> tuple[list[float], float]:
    """Means of values in so many groups, and how far apart these are beside their width."""
    values = values.sort().values
    gaps, cuts = values.diff().topk(count - 1)
    groups = values.tensor_split((cuts + 1).sort().values)
    width = max(float(group.max() - group.min()) for group in groups)
    return [float(group.mean()) for group in groups], float(gaps.min()) / max(width, ROUNDED)


def read_apart(
    observation: Observation, layers: list[EnteredLayer], occur: Bool[Tensor, " vocabulary"] | None
) -> tuple[Iterator[Int[Tensor, "n length"]], str]:
    """Batches of texts whose tokens fit at their places, as layers that tokens enter one by one tell texts apart.

    Other places are padding, or `UNHEARD`, one a text at most, where there is none."""
    data, examples = observation.task.data, observation.examples or 1

    def batches() -> Iterator[Int[Tensor, "n length"]]:
        for layer in (layer for layer in layers if layer.alone and not layer.span.short):
            fits = fitting(observation, [layer], occur=occur)
            if (
                fits is None
                or not 0 < int(fits.sum()) <= FITTING
                or not (found := list(Mixed.of(layer).known(layer, fits).apart()))
            ):
                continue
            texts = torch.full((len(found), *data.shape), UNHEARD if data.padding is None else data.padding)
            for text, one in zip(texts, found, strict=True):
                cells = one.completed()
                text[cells[:, 0]] = cells[:, 1]
            if int((texts == UNHEARD).sum()) <= len(texts):
                yield from repeated(texts, texts[:0], examples)

    return batches(), ""
