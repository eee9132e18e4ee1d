"""From a hidden tensor that is known towards the input, one system a tensor: linear, or smooth where error signals
depend on the tensor itself."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.fx import Node
from torch.nn import functional as F

from leakgauge.attacks.features.fits import SmoothSystem, System, behind, by_input, rectified, turned, zero_of
from leakgauge.attacks.features.inside import Inside, Layer
from leakgauge.attacks.features.read import BLURRED, HiddenRead, HiddenTensors
from leakgauge.attacks.features.signals import KnownInside
from leakgauge.attacks.matching.problem import UNLIMITED, Meter, Over
from leakgauge.view.trace import operation

LARGEST = 4500  # unknowns of one channel that a dense system is solved for
SPARE = 1.5  # equations for each number of a smooth system, at first
SMOOTH = 1100  # of one channel, that a smooth system is solved for
SCALELESS = 1e-6  # what twice a fitted tensor leaves, squared, where nothing behind it tells its scale

DENIED = 1e-4  # share of a shift's gradient that channels of what was solved for may miss in the mean
NEAR = 30.0  # times the size of a zero: what may be one
TOLD_APART = 0.1  # in correlation, by which each example is nearer to itself than to any other one
CHANCE = 5.0  # deviations of the correlation of numbers that have nothing to do with each other
ALIKE = 10.0  # reads whose errors are within that ratio begin together


@dataclass(eq=False)
class Descent:
    """What is known of a network's hidden tensors and error signals, and how to know more."""

    hidden: HiddenTensors  # what was read of the update
    error: float  # estimated relative error of what is known
    state: KnownInside
    meter: Meter = UNLIMITED
    patient: bool = False  # whether systems are solved where signals stand still too, or change by jumps alone
    _failed: dict[Node, int] = field(default_factory=dict)
    _found: dict[Node, tuple[Tensor, Tensor]] = field(default_factory=dict)  # what is behind a ReLU, and sizes of zeros
    _untold: set[Node] = field(default_factory=set)  # of these, whose zeros no signal has told yet
    _read: set[Node] = field(default_factory=set)  # signals that came with a start
    _fitted: set[Node] = field(default_factory=set)  # tensors that signals depend on, which were tried

    @staticmethod
    def of(hidden: HiddenTensors, starts: Sequence[HiddenRead], meter: Meter = UNLIMITED) -> "Descent":
        """Down from hidden tensors that were read to scale, as long as equations determine one more and the meter
        lasts; of several examples from the most exact one, and from others where their order is told."""
        made, least = Descent(hidden, 0.0, KnownInside(hidden.inside), meter), min(start.error for start in starts)
        exact = [start for start in starts if start.error <= ALIKE * least]
        for start in reversed(exact if hidden.inside.examples == 1 else [min(exact, key=lambda one: one.error)]):
            made._begin(start)
        made.run()
        for start in reversed(starts):  # errors of a faint read turn zeros: only where nothing else led
            if start.hidden not in made.state.values and (ordered := made._ordered(start)) is not None:
                made._begin(ordered)
                made.run()
        return made

    def _ordered(self, start: HiddenRead) -> HiddenRead | None:
        """Its examples in the order of those that are known: what is in front of a tensor makes it, beside what nobody
        knows, and examples differ in it as they differ there. `None` where that tells no order."""
        count = self.inside.examples
        if count == 1:
            return start
        own, order = start.layers[0].hidden_of(start.maps), list(self.inside.graph.trace.code.graph.nodes)
        for node, value in self.state.values.items():
            behind = order.index(node) > order.index(start.hidden)
            known = {start.hidden: own} if behind else self.state.values
            (made,) = self.inside.run([node if behind else start.hidden], known)
            one, two = ((t - t.mean(0)).flatten(1) for t in (made, value if behind else own))
            alike = (F.normalize(one, dim=1) @ F.normalize(two, dim=1).T).nan_to_num()
            alike = alike.T if behind else alike  # [known, read]
            rows, columns = linear_sum_assignment(-alike.numpy())
            chosen = torch.zeros_like(alike, dtype=torch.bool)
            chosen[rows, columns] = True
            least = max(TOLD_APART, CHANCE / one.shape[1] ** 0.5)
            if float(alike[chosen].min()) > least + float(alike[~chosen].max()):
                return start.reordered(torch.from_numpy(columns))
        return None

    def _begin(self, start: HiddenRead) -> None:
        """Takes a read with its signals, or neither where shifts deny it."""
        error, sent = self.error, dict(self.state.sent)
        self.error = max(error, start.error)
        for one in start.layers:
            self.state.sent[one.output] = self.inside.output_of(one, start.signals[one.weight])
            self.state.lifted(one.output)
        if self._keep(start.layers[0], start.raw, clean=start.maps if start.sparse else None):
            self._read |= set(self.state.sent) - set(sent)
        else:
            self.error, self.state.sent = error, sent

    @property
    def inside(self) -> Inside:
        return self.hidden.inside

    def further(self) -> bool:
        """Goes on where known signals alone determine nothing too; whether that led anywhere."""
        before, self.patient = len(self.state.values), True
        self._fitted.clear()
        self.fit()
        return len(self.state.values) > before

    def fit(self) -> None:
        """Goes on where signals depend on the tensor behind which they are asked for, as through a batch's statistics.
        That takes seconds a tensor."""
        going = True
        with suppress(Over):
            while going:
                for layer in self.inside.layers:  # of known input, whose signals do not follow from what is behind
                    gradient, asked = self.hidden.gradients.get(layer.weight), layer.output in self._read
                    if gradient is None or asked or not self.inside.open(layer.output, self.state.given):
                        continue
                    if (found := by_input(self.state, layer, gradient.matrix)) is not None:
                        self._read.add(layer.output)
                        if found[1] <= self._allowed(gradient.share):
                            self.state.sent[layer.output] = self.inside.output_of(layer, found[0])
                            self.state.lifted(layer.output)
                self.run()
                going = self._fit_one()

    def run(self) -> None:
        with suppress(Over):
            while self._step():
                pass

    def _fit_one(self) -> bool:
        """The first smooth system that has a solution, of those that were not tried; what was read comes first."""
        given, found, open_ = self.state.given, dict[Node, list[Layer]](), set[Node]()
        for layer in self.inside.layers:
            known = layer.hidden in self.state.values or not self.inside.open(layer.hidden, self.state.values)
            if known or layer.hidden in self._fitted or layer.weight not in self.hidden.gradients:
                continue
            if not self.inside.open(layer.output, {**given, layer.hidden: None}):
                found.setdefault(layer.hidden, []).append(layer)
                open_ |= {layer.hidden} if self.inside.open(layer.output, given) else set()
        found = {hidden: layers for hidden, layers in found.items() if hidden in open_ or self.patient}
        read = {one.hidden: one for one in self.hidden.reads if one.told and len(one.maps) == self.inside.examples}
        deepest = [hidden for hidden in reversed(found) if hidden in read]
        for hidden in deepest + [hidden for hidden in reversed(found) if hidden not in read]:
            layers = found[hidden]
            self._fitted.add(hidden)
            fit, bent = SmoothSystem.of(self.state, layers, self.hidden.gradients), self.state.bent(hidden)
            noise = min(self.hidden.gradients[layer.weight].share for layer in layers)
            large = layers[0].unfolding.pixels * self.inside.examples > SMOOTH
            line = bent is None or bent.straight  # the example itself, say
            if large or bent is None or line or not fit.determined(1.0 if self.patient else SPARE) or noise > BLURRED:
                continue
            relu, start = bent.below == 0, self._start(layers[0], read.get(hidden))
            if hidden in open_ and not self.patient and fit.jumps(start):
                continue
            full, left = fit.solved(fit.sized(start), self.meter, rectified=relu)
            if left**0.5 <= self._allowed(noise) and relu and fit.left(2 * full) < SCALELESS:
                full, left = fit.solved(self._to_scale(hidden, full), self.meter, rectified=relu)
                full = self._to_scale(hidden, full)  # rounding lets it drift
            if left**0.5 > self._allowed(noise):
                continue
            self.error = max(self.error, noise)
            if self._keep(layers[0], layers[0].unfolding.of_hidden(full), zero_of(full)):
                return True
        return False

    def _allowed(self, noise: float) -> float:
        """Relative residual of a system that errors of what is known, and of its gradients, explain."""
        return max(1e-5, 20 * self.error, 2 * noise)

    def _start(self, layer: Layer, read: HiddenRead | None) -> Tensor:
        """What was read, if not to scale, or else numbers at random."""
        if read is not None:
            return layer.hidden_of(read.maps)
        shape = (self.inside.examples, *layer.shape)
        return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).abs()

    def _to_scale(self, hidden: Node, full: Tensor) -> Tensor:
        """A solution to scale, where a norm behind it takes the scale off. The gradient of the shift in front tells it:
        the signals that reach that fall as 1/scale, but for the constant that keeps the norm finite."""
        on = full > zero_of(full)
        for step in (1.0, 0.1, 0.01):
            missed = []
            for factor in (1.0, 1.0 + step):
                values = {**self.state.values, hidden: rectified(factor * full, on)}
                passed = self._passed(hidden, replace(self.state, values=values, sent=dict(self.state.sent)))
                if passed is None or full.ndim == 1 or len(passed[1]) != full.shape[1]:
                    return full
                missed.append(passed[1] - (passed[0] * on).transpose(0, 1).flatten(1).sum(1))
            own = (missed[1] - missed[0]) * (1 + step) / step
            live = own.abs() > 1e-9 * own.abs().max()
            shares = 1 + missed[0][live] / own[live]
            off = (shares - shares.median()).abs()
            near = off <= 10 * off.median()  # one wrong zero is a whole signal of its channel
            weights = own[live][near].square()
            share = float((shares[near] * weights).sum() / weights.sum()) if bool(live.any()) else 0.0
            full = full / share if share > 0 else full
        return full

    def equations(self) -> list[tuple[Layer, Tensor]]:
        """Layers whose signals are known and whose inputs are not, with these signals [n, places, filters]."""
        found = []
        for layer in self.inside.layers:
            if layer.hidden in self.state.values or layer.weight not in self.hidden.gradients:
                continue
            if (signal := self.state.signal(layer.output)) is not None:
                found.append((layer, self.inside.signals(layer.product, signal)))
        return found

    def _step(self) -> bool:
        self.meter.tick()
        for hidden in reversed([n for n in self.inside.graph.trace.code.graph.nodes if n in self._untold]):
            self._told(hidden)  # before signals are sent through it
        found = self.equations()
        for hidden in dict.fromkeys(layer.hidden for layer, _ in reversed(found)):
            pairs = [one for one in found if one[0].hidden is hidden]
            if self._failed.get(hidden, 0) < len(pairs) and self._solve(pairs):
                return True
            self._failed[hidden] = len(pairs)
        return False

    def _solve(self, pairs: Sequence[tuple[Layer, Tensor]]) -> bool:
        first = pairs[0][0]
        pixels, channels, count = first.unfolding.pixels, first.unfolding.channels, self.inside.examples
        if pixels * count > LARGEST:
            return False
        blocks, sides, owners, filters = [], [], [], 0
        for layer, signal in pairs:
            gradient = self.hidden.gradients[layer.weight].matrix
            gradient = gradient.reshape(len(gradient), -1, channels)
            size = gradient.norm().clamp_min(1e-300)
            blocks.append(layer.unfolding.design(signal) / size)
            sides.append(gradient.flatten(0, 1) / size)
            owners.append(filters + torch.arange(len(gradient)).repeat_interleave(gradient.shape[1]))
            filters += len(gradient)
        design, side, owner = torch.cat(blocks), torch.cat(sides), torch.cat(owners)
        if design.shape[0] < design.shape[1]:
            return False
        system = System.of(design, side)
        if not system.determined:
            return False
        system, odd = system.firm(owner)
        maps, residual = system.dense()
        noise = min(self.hidden.gradients[layer.weight].share for layer, _ in pairs)
        solved, errors = maps.view(channels, count, pixels).transpose(0, 1), system.errors(residual, count)
        blurred = errors > BLURRED * solved.flatten(1).norm(dim=1)
        if residual > self._allowed(noise) or noise > BLURRED or bool(blurred.any()):
            return False
        self.error = max(self.error, noise)
        if odd:
            for layer, _ in pairs:
                self._turned(layer, layer.unfolding.rows(solved).flatten(0, 1))
        return self._keep(first, solved, errors=errors)

    def _turned(self, layer: Layer, rows: Float[Tensor, "m columns"]) -> None:
        """Turns zeros behind a layer of known input that its gradient denies."""
        passed = behind(self.inside, layer, self._found)
        signal = None if passed is None else self.state.signal(passed[0])
        if passed is None or signal is None:
            return
        (above, hidden), gradient = passed, self.hidden.gradients[layer.weight]
        known = KnownInside(self.inside, self.state.values, {above: signal}, self.state._bends)
        full, floor = self._found[hidden]
        on = turned(known, layer, gradient, rows, hidden, full, full.abs() < NEAR * floor)
        self.state.values[hidden] = rectified(full, on)
        order = [*self.inside.graph.trace.code.graph.nodes]
        for node in [n for n in self.state.sent if n not in self._read and order.index(n) > order.index(above)]:
            del self.state.sent[node]

    def _keep(
        self,
        layer: Layer,
        raw: Float[Tensor, "n c pixels"],
        least: float = 0.0,
        clean: Tensor | None = None,
        errors: Float[Tensor, " n"] | None = None,
    ) -> bool:
        """Takes maps as what a layer reads, a ReLU's zeros as zeros, of which some may reach `least`, or as far above
        as others are below, in `errors` of each example; not what the gradient of a shift denies."""
        hidden, full = layer.hidden, layer.hidden_of(raw)
        bent = self.state.bent(hidden)
        if bent is None or bent.below != 0:
            self.state.values[hidden] = full
            return True
        sizes = full.new_ones(len(full)) if errors is None else errors / errors.max().clamp_min(1e-300)
        sizes = sizes.clamp_min(1e-12).view(-1, *[1] * (full.ndim - 1))
        below = torch.minimum((-full / sizes).max() * sizes, (-full).max()).clamp_min(1e-12 * float(full.abs().max()))
        floor = (1.5 * below).clamp_min(least).expand_as(full)
        self.state.values[hidden] = rectified(full, layer.hidden_of(clean) > 0 if clean is not None else full > floor)
        self._found[hidden] = full, floor
        self._untold.add(hidden)
        before = dict(self.state.sent)
        if allowed := self._told(hidden):
            return True
        del self.state.values[hidden], self._found[hidden]
        self.state.sent = before  # none that went through it
        return allowed

    def _told(self, hidden: Node) -> bool:
        """Whether signals, where they are known, allow these zeros, a few of them turned."""
        passed, (full, floor) = self._passed(hidden, self.state), self._found[hidden]
        if passed is None or full.ndim == 1 or len(passed[1]) != full.shape[1]:
            return True
        self._untold.remove(hidden)
        on, left = mend(full, self.state.values[hidden] > 0, *passed, floor, self.error)
        self.state.values[hidden] = rectified(full, on)
        return left <= max(DENIED, 3 * self.error)

    def _passed(self, hidden: Node, known: KnownInside) -> tuple[Tensor, Tensor] | None:
        """The signals at a ReLU's output, and the gradient of the shift in front of it, the sum of those it passes."""
        graph = self.inside.graph
        for product in graph.products:
            node = product.terms[0].signal.node
            shift = self.hidden.shifts.get(product.weight or "")
            if product.activation is not None or shift is None or len(product.terms) > 1:
                continue
            above = [n for n in node.all_input_nodes if n in graph.colours.behind]
            masks = [graph.same[n] for n in node.all_input_nodes if n in graph.colours.data and n not in above]
            if len(above) == 1 and masks == [graph.same[hidden]] and operation(node):
                signal = known.signal(above[0])
                if signal is not None:
                    return signal, shift
        return None


def mend(
    value: Float[Tensor, "n c ..."],
    on: Tensor,
    signal: Tensor,
    shift: Float[Tensor, " c"],
    floor: Float[Tensor, "n c ..."],
    error: float,
) -> tuple[Tensor, float]:
    """Which entries a ReLU lets through, where some are too near to zero to tell, and what the channels still miss in
    the mean. The signals that it lets through sum to the shift's gradient: of the entries near the floor those few are
    turned whose signals are what is missing."""
    values, masks, signals = (t.movedim(1, 0).flatten(1) for t in (value / floor, on, signal))
    masks, sizes = masks.clone(), signals.abs().sum(1).clamp_min(1e-300)
    missing = shift - (signals * masks).sum(1)
    # most channels have no wrong entry
    least = 2 * sizes * max(3e-7, min(3 * float((missing.abs() / sizes).median()), error))
    for c in (missing.abs() > least).nonzero()[:, 0].tolist():
        near = (values[c].abs() < NEAR).nonzero()[:, 0]
        near = near[values[c][near].abs().clamp_min(1e-9).log().abs().argsort()]
        change = torch.where(masks[c][near], -1.0, 1.0) * signals[c][near]
        for many, few in ((1, 300), (2, 40), (3, 10)):
            some = torch.combinations(torch.arange(min(few, len(near))), many)
            left = (missing[c] - change[some].sum(1)).abs()
            if len(some) and float(left.min()) < least[c]:
                masks[c, near[some[left.argmin()]]] ^= True
                missing[c] = left.min()
                break
    return masks.view(on.movedim(1, 0).shape).movedim(0, 1), float((missing.abs() / sizes).mean())
