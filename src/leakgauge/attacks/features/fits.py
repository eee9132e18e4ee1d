"""Systems whose solution is a hidden tensor: linear where all signals behind it are known, smooth least squares where
they depend on it, as behind statistics of the batch; and on which side of zero its units are that stand nearer to it
than what is known is exact."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.optimize import minimize_scalar
from scipy.sparse.linalg import LinearOperator, lsmr
from torch import Tensor
from torch.fx import Node

from leakgauge.attacks.features.inside import Inside, Layer
from leakgauge.attacks.features.null_space import signals_of
from leakgauge.attacks.features.read import Noisy
from leakgauge.attacks.features.signals import KnownInside, KnownTerm
from leakgauge.attacks.matching.problem import Meter
from leakgauge.task import Batch
from leakgauge.view.derivatives import jacobian

MARGIN = 1e-6  # of a tensor's deviation, as far as units are set from zero: beyond what float32 leaves of it
LEFT = 1e-5  # share of a filter's gradient that it may leave whose signals pass no wrong zero
GAP = 30.0  # times what numbers are below zero up to which the widest gap behind zeros is looked for
OFF = 4.0  # times as much as most that a filter leaves whose signals may pass a wrong zero


def rectified(full: Float[Tensor, "n c ..."], on: Bool[Tensor, "n c ..."]) -> Float[Tensor, "n c ..."]:
    """What a ReLU lets through; an entry that is on stays above zero where its read is below."""
    return torch.where(on, full.clamp_min(torch.finfo(full.dtype).tiny), 0.0)


def zero_of(full: Float[Tensor, "n c ..."]) -> float:
    """Up to where numbers of a tensor behind a ReLU are zeros: the widest gap above what its errors reach below."""
    least = float((-full).max().clamp_min(1e-12 * float(full.abs().max())))
    near = full[(full > least) & (full < GAP * least)].sort().values
    near = torch.cat([near.new_tensor([least]), near, near.new_tensor([GAP * least])])
    widest = int((near[1:] / near[:-1]).argmax())
    return float((near[widest] * near[widest + 1]).sqrt())


def behind(inside: Inside, layer: Layer, tensors: Collection[Node]) -> tuple[Node, Node] | None:
    """Of ReLUs' outputs the one whose zeros a layer's signals have passed last, and these signals before it."""
    graph, todo, seen = inside.graph, [layer.output], {layer.output}
    order, found = [*graph.trace.code.graph.nodes], dict[Node, tuple[Node, Node]]()
    while todo:
        node = todo.pop()
        above = [n for n in node.all_input_nodes if n in graph.colours.behind]
        masks = [n for n in tensors if any(graph.same.get(m) is graph.same[n] for m in node.all_input_nodes)]
        if len(above) == len(masks) == 1:
            found[node] = above[0], masks[0]
        else:
            todo += [n for n in above if n not in seen]
            seen |= set(above)
    last = found[max(found, key=order.index)] if found else None
    return last if last is not None and inside.value_shape(layer.output) == inside.value_shape(last[1]) else None


def turned(
    known: KnownInside,
    layer: Layer,
    gradient: Noisy,
    rows: Float[Tensor, "m columns"],
    node: Node,
    full: Float[Tensor, "n c ..."],
    near: Bool[Tensor, "n c ..."],
    batch: Batch | None = None,
) -> Bool[Tensor, "n c ..."]:
    """Which entries of a tensor behind a layer of known `rows` pass their signals. Each filter's gradient is linear in
    them: of those `near` zero those do that make it. `full`: the tensor, with what a ReLU would set to zero."""
    inside, on = known.inside, known.values[node] > 0

    def signals(mask: Tensor) -> Float[Tensor, "m filters"]:
        given = replace(known, values={**known.values, node: rectified(full, mask)}).given
        return inside.signals(layer.product, inside.run([layer.output], given, batch)[0]).flatten(0, 1)

    now, opened = signals(on), signals(torch.ones_like(on))
    left = (now.T @ rows - gradient.matrix).norm(dim=1) / gradient.matrix.norm(dim=1).clamp_min(1e-300)
    allowed = max(LEFT, OFF * float(left.median()), 3 * gradient.share)
    places = torch.arange(full.numel(), dtype=torch.float64).view(full.shape)
    entries, flat = inside.signals(layer.product, places).flatten(0, 1).long(), on.flatten()
    for k in (left > allowed).nonzero()[:, 0].tolist():
        mine, passed, target = entries[:, k], opened[:, k, None] * rows, gradient.matrix[k]
        some = near.flatten()[mine]
        missing = target - flat[mine[~some]].double() @ passed[~some]
        if 0 < int(some.sum()) <= rows.shape[1] // 2:
            found = torch.linalg.lstsq(passed[some].T, missing[:, None]).solution[:, 0] > 0.5
            if float((missing - found.double() @ passed[some]).norm()) < allowed * float(target.norm()):
                flat[mine[some]] = found
    return flat.view(full.shape)


def nudged(inside: Inside, gradients: Mapping[str, Noisy], batch: Batch, faint: float) -> Float[Tensor, "n *shape"]:
    """Raw examples, moved by as little as puts units on the side of zero that the update shows.

    Of a unit at zero the client's own rounding decides, and its whole signal shows: examples that are exact to seven
    digits explain the update to three. `faint`: share of a tensor's deviation that its units may be off.
    """
    known, batch = KnownInside(inside), Batch(batch.inputs.double(), batch.labels)
    at = {one.hidden: bent.at for one in inside.layers if (bent := known.bent(one.hidden)) and bent.below == 0}
    raw = dict(zip(at, inside.run([*at.values()], {}, batch), strict=True))
    near = {node: full.abs() < faint * full.std() for node, full in raw.items()}
    known.values.update({node: rectified(full, full > 0) for node, full in raw.items()})
    for layer in reversed(inside.layers):
        passed = behind(inside, layer, at) if layer.weight in gradients else None
        if passed is not None:
            above, node = passed
            if above not in known.sent:
                (known.sent[above],) = inside.run([above], known.given, batch)
            (hidden,) = inside.run([layer.hidden], known.values, batch)
            rows = layer.unfolding.rows(layer.unfolding.of_hidden(hidden)).flatten(0, 1)
            on = turned(known, layer, gradients[layer.weight], rows, node, raw[node], near[node], batch)
            known.values[node] = rectified(raw[node], on)
    moved = batch.inputs.clone()
    for index in range(len(moved)):
        inputs = moved[index : index + 1].clone().requires_grad_()
        with torch.enable_grad():
            made = replace(inside, examples=1).run([*at.values()], {}, Batch(inputs, batch.labels[index : index + 1]))
        slopes, steps = [], []
        for node, seen in ((n, t.flatten()) for n, t in zip(at, made, strict=True) if t.requires_grad):
            full, on = raw[node][index].flatten(), known.values[node][index].flatten() > 0
            for i in near[node][index].flatten().nonzero()[:, 0].tolist():
                slopes.append(torch.autograd.grad(seen[i], inputs, retain_graph=True)[0].flatten())
                side = MARGIN * float(raw[node].std()) * (1 if on[i] else -1)
                steps.append(0.0 if float(full[i]) / side > 1 else side - float(full[i]))
        if any(steps):
            moved[index] += (torch.linalg.pinv(torch.stack(slopes)) @ moved.new_tensor(steps)).view_as(moved[index])
    return moved


DETERMINED = 1e-6  # least eigenvalue, in shares of the largest, of a system that gradients determine, by unit columns


@dataclass(frozen=True, eq=False)
class System:
    """design · maps = side. Solved in unknowns of unit columns (van der Sluis, 1969): an example that the network is
    sure of has faint signals, and is determined as any other."""

    design: Float[Tensor, "equations unknowns"]
    side: Float[Tensor, "equations channels"]
    sizes: Float[Tensor, " unknowns"]  # of the columns
    values: Float[Tensor, " unknowns"]  # of the Gram matrix of unit columns, ascending
    vectors: Float[Tensor, "unknowns unknowns"]

    @staticmethod
    def of(design: Tensor, side: Tensor) -> System:
        sizes = design.norm(dim=0).clamp_min(1e-300)
        return System(design, side, sizes, *torch.linalg.eigh((design / sizes).T @ (design / sizes)))

    @property
    def determined(self) -> bool:
        """Whether the gradients determine it."""
        return float(self.values[0]) > DETERMINED * float(self.values[-1])

    def firm(self, owner: Int[Tensor, " equations"]) -> tuple[System, bool]:
        """Without the filters that leave more than others, as long as the rest then leaves much less: what a wrong
        zero behind one adds to its gradient no input explains. And whether there are such. `owner` is the filter of
        each equation."""
        system, odd = self, torch.zeros(int(owner.max()) + 1, dtype=torch.bool)
        while True:
            found, residual = system.dense()
            left = (self.design @ found.T - self.side).square().sum(1)
            filters = left.new_zeros(len(odd)).index_add_(0, owner, left).sqrt()
            trial = odd | (filters > OFF * filters[~odd & (filters > 0)].median())
            kept = ~trial[owner]
            if torch.equal(trial, odd) or int(kept.sum()) < self.design.shape[1]:
                return system, bool(odd.any())
            less = System.of(self.design[kept], self.side[kept])
            if not less.determined or less.dense()[1] > residual / 2:
                return system, bool(odd.any())
            system, odd = less, trial

    def dense(self) -> tuple[Tensor, float]:
        """By the normal equations, refined twice."""
        found = torch.zeros(self.design.shape[1], self.side.shape[1], dtype=torch.float64)
        for _ in range(3):
            left = self.vectors.T @ (self.design.T @ (self.side - self.design @ found) / self.sizes[:, None])
            found = found + self.vectors @ (left / self.values[:, None]) / self.sizes[:, None]
        return found.T, float((self.design @ found - self.side).norm() / self.side.norm())

    def errors(self, residual: float, count: int) -> Float[Tensor, " n"]:
        """How far off each example's part of the solution is, typically, where errors of equations are alike."""
        equations, unknowns = self.design.shape
        spread = (self.vectors.square() / self.values).sum(1) / self.sizes.square()
        own = residual * float(self.side.norm()) / max(equations - unknowns, 1) ** 0.5
        found: Tensor = own * spread.view(count, -1).sum(1).sqrt()
        return found


ROUNDS, INNER, LONGER = 16, 80, 300  # of Gauss–Newton, and iterations of LSMR in each, and in the last ones
SIZES = 3  # powers of two of a start, in deviations: much smaller ones meet what keeps a norm finite
ENOUGH = 2e-11  # what is left, squared, of a tensor that is found
STUCK, PATIENT = 0.5, 3  # share of what was left that rounds must get below, but for so many
DAMPED, WEAK = 1e-2, 1e-3  # Levenberg's damping at the start; least size of a direction, in shares of the largest
NEAR = 1e-5  # what is left, squared, where the last rounds begin
SPREAD = 30.0  # times the error of a tensor that is found over which its zeros are spread
FREE = 1e-12  # eigenvalues of the design, in shares of the largest, of directions that gradients do not tell


@dataclass(frozen=True, eq=False)
class SmoothSystem:
    """What a hidden tensor leaves of its layers' gradients, and of the known tensors that it makes with others."""

    known: KnownInside
    layers: tuple[Layer, ...]  # that read it
    gradients: tuple[Float[Tensor, "filters columns"], ...]
    terms: tuple[KnownTerm, ...]

    @staticmethod
    def of(known: KnownInside, layers: Sequence[Layer], gradients: Mapping[str, Noisy]) -> SmoothSystem:
        hidden, inside, terms = layers[0].hidden, known.inside, []
        for node, value in known.values.items():
            others, term = [n for n in known.values if n is not node], KnownTerm.of(node, value, known)
            if inside.open(term.node, others) and not inside.open(term.node, [hidden, *others]):
                terms.append(term)
        matrices = tuple(gradients[layer.weight].matrix for layer in layers)
        return SmoothSystem(known, tuple(layers), matrices, tuple(terms))

    def to(self, dtype: torch.dtype) -> SmoothSystem:
        inside = self.known.inside.to(dtype)
        values, sent = ({n: t.to(dtype) for n, t in held.items()} for held in (self.known.values, self.known.sent))
        known = replace(self.known, inside=inside, values=values, sent=sent)
        terms = tuple(term.changed(lambda value: value.to(dtype)) for term in self.terms)
        return replace(self, known=known, gradients=tuple(g.to(dtype) for g in self.gradients), terms=terms)

    def determined(self, spare: float) -> bool:
        """Whether there are so many equations for each number."""
        active = sum(term.active for term in self.terms)
        numbers = self.known.inside.examples * self.layers[0].unfolding.channels * self.layers[0].unfolding.pixels
        return active + sum(g.numel() for g in self.gradients) >= spare * numbers

    def signals(self, hidden: Tensor) -> list[Float[Tensor, "n places filters"]]:
        """At the outputs of its layers."""
        inside = self.known.inside
        given = {**self.known.given, self.layers[0].hidden: hidden}
        made = inside.run([layer.output for layer in self.layers], given)
        return [inside.signals(layer.product, one) for layer, one in zip(self.layers, made, strict=True)]

    def jumps(self, hidden: Tensor) -> bool:
        """Whether signals change with the tensor by jumps alone, as where a max-pool takes another place."""
        with torch.enable_grad():
            own = hidden.clone().requires_grad_()
            total = torch.stack([(one * one.detach()).sum() for one in self.signals(own)]).sum()
            return not total.requires_grad or not bool(torch.autograd.grad(total, own)[0].any())

    def __call__(self, hidden: Tensor) -> Float[Tensor, " m"]:
        """All differences, each gradient's and each known tensor's relative to its size."""
        found = []
        for layer, gradient, signal in zip(self.layers, self.gradients, self.signals(hidden), strict=True):
            rows = layer.unfolding.rows(layer.unfolding.of_hidden(hidden)).flatten(0, 1)
            found.append(((signal.flatten(0, 1).T @ rows - gradient) / gradient.norm()).flatten())
        nodes = [term.node for term in self.terms]
        held = {n: v for n, v in self.known.values.items() if n not in nodes}
        made = self.known.inside.run(nodes, {**held, self.layers[0].hidden: hidden})
        for term, value in zip(self.terms, made, strict=True):
            found.append(term.gaps(value).flatten() / term.value.masked_fill(term.open, 0).norm())
        return torch.cat(found)

    def left(self, hidden: Tensor) -> float:
        """Of all differences, squared."""
        with torch.no_grad():
            return float(self(hidden).square().sum())

    def sized(self, start: Tensor) -> Tensor:
        """A start times what leaves least."""
        start = start / start.square().mean().sqrt()

        def left(power: float) -> float:
            return self.left(2.0**power * start)

        best = min(range(-SIZES, SIZES + 1), key=left)
        found = minimize_scalar(left, bounds=(best - 1, best + 1), method="bounded", options={"xatol": 1e-9})
        return float(2.0**found.x) * start if found.fun < STUCK * left(0) else start  # if anything behind it tells

    def solved(self, start: Tensor, meter: Meter, *, rectified: bool) -> tuple[Tensor, float]:
        """Gauss–Newton with Levenberg's damping from a start, and what it leaves. `rectified`: a ReLU made it, which
        also tells the shift of a channel that gradients do not: its least number is zero. Raises `Over` where the meter
        ends it."""
        found, damping, single = start, DAMPED, self.to(torch.float32)
        history = [least := self.left(found)]
        for index in range(ROUNDS):
            meter.note(index, least)
            step = self._step(single, found, damping, least, meter)
            for share in (1.0, 0.5, 0.2, 0.05):
                moved = found + share * step
                if (left := self.left(moved)) < least:
                    found, least = moved, left
                    break
            else:
                share = 0.0
            damping = damping / 10 if share == 1.0 else damping if share else damping * 10
            history.append(least)
            if len(history) > PATIENT and least > STUCK * history[-1 - PATIENT]:
                break
            if least < ENOUGH and least > STUCK * history[-2]:
                break
        if rectified:
            found = self._grounded(found, least)
            least = self.left(found)
        return found, least

    def _design(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Squares of singular values, and vectors, of what gradients are of one channel where signals stand still."""
        with torch.no_grad():
            parts = [
                layer.unfolding.design(signal) / gradient.norm()
                for layer, gradient, signal in zip(self.layers, self.gradients, self.signals(hidden), strict=True)
            ]
        design = torch.cat(parts)
        values, vectors = torch.linalg.eigh(design.T @ design)
        return values.clamp_min(0), vectors

    def _step(self, single: SmoothSystem, hidden: Tensor, damping: float, left: float, meter: Meter) -> Tensor:
        """In coordinates in which a channel's design is diagonal."""
        layer, count = self.layers[0], self.known.inside.examples
        channels, shape = layer.unfolding.channels, hidden.shape
        values, vectors = self._design(hidden)
        wide = (vectors / (values + WEAK * values[-1]).sqrt()).float()

        def spread(steps: np.ndarray) -> Tensor:
            maps = torch.from_numpy(np.asarray(steps, dtype=np.float32)).view(channels, -1) @ wide.T
            return layer.hidden_of(maps.view(channels, count, -1).transpose(0, 1)).reshape(shape)

        def gathered(slopes: np.ndarray) -> np.ndarray:
            maps = layer.unfolding.of_hidden(torch.from_numpy(np.asarray(slopes, dtype=np.float32)).view(shape))
            return (maps.transpose(0, 1).reshape(channels, -1) @ wide).flatten().double().numpy()

        _, slope = jacobian(single, hidden.float(), meter.tick)
        operator = LinearOperator(
            slope.shape,
            lambda steps: slope.matvec(spread(steps).flatten().numpy()),
            lambda gaps: gathered(slope.rmatvec(gaps)),
            dtype=np.float64,
        )
        with torch.no_grad():
            right = -self(hidden).numpy()
        accurate = min(0.1, left**0.5)
        most = INNER if left > NEAR else LONGER
        solved = lsmr(operator, right, damp=damping**0.5, atol=1e-3 * accurate, btol=accurate, conlim=0, maxiter=most)
        return spread(solved[0]).double()

    def _grounded(self, hidden: Tensor, left: float) -> Tensor:
        """With zero as the least number along a direction of each channel that nothing else tells."""
        values, vectors = self._design(hidden)
        layer, free = self.layers[0], values < FREE * values[-1]
        if int(free.sum()) != 1:
            return hidden
        along = vectors[:, free][:, 0]
        along = along * along.sum().sign()
        on = along > 1e-6 * along.max()
        maps = layer.unfolding.of_hidden(hidden).transpose(0, 1).flatten(1)
        if bool((along[~on] < -1e-6).any()):
            return hidden
        heights = maps[:, on] / along[on]
        above, error = heights - heights.amin(1, keepdim=True), left**0.5 * float(heights.std())
        zeros = above <= SPREAD * error
        shift = (heights * zeros).sum(1, keepdim=True) / zeros.sum(1, keepdim=True)
        lower = maps - shift * along
        moved = layer.hidden_of(lower.view(len(maps), self.known.inside.examples, -1).transpose(0, 1))
        return moved if self.left(moved) < max(ENOUGH, 4 * left) else hidden


def by_input(
    known: KnownInside, layer: Layer, gradient: Float[Tensor, "filters columns"]
) -> tuple[Float[Tensor, "n used filters"], float] | None:
    """Error signals at a layer's output, and the share of its gradient that they leave; `None` where its input is not
    known or its rows are not independent."""
    unfolding = layer.unfolding.only(layer.used)
    if known.inside.open(layer.hidden, known.values) or unfolding.places * known.inside.examples > unfolding.columns:
        return None
    (hidden,) = known.inside.run([layer.hidden], known.values)
    rows = layer.centred(unfolding.rows(unfolding.of_hidden(hidden)))
    signals = signals_of(rows, gradient)
    return signals, float((signals.flatten(0, 1).T @ rows.flatten(0, 1) - gradient).norm() / gradient.norm())
