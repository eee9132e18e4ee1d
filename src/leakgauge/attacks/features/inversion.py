"""Examples from hidden tensors that are known: feature inversion, which is continuous in the examples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from scipy.sparse.linalg import LinearOperator, lsmr
from torch import Tensor
from torch.fx import Node

from leakgauge.attacks.features.descent import Descent
from leakgauge.attacks.features.inside import Inside, Layer
from leakgauge.attacks.features.null_space import SpanOfRows
from leakgauge.attacks.features.read import BLURRED
from leakgauge.attacks.features.signals import KnownTerm
from leakgauge.attacks.matching import AnnealedAdam, BoundedLBFGS, TotalVariation
from leakgauge.attacks.matching.priors import Falling, Pull
from leakgauge.attacks.matching.problem import Meter, Over, Problem
from leakgauge.observation import Status
from leakgauge.task import Batch, DataSpec
from leakgauge.tensors import Tensors
from leakgauge.view.derivatives import jacobian

HIGH = 60.0  # added to the logarithm of a residual, which is then positive
ROUNDING = 1e-10  # squared residual to which L-BFGS brings all examples before one is brought further
TURNS = 600, 1200, 2400  # steps that each is given until then
FLOOR = 1e-11  # squared residual below which a round that gains little has met the rounding of what is known
EXPLAINED = 1e-5  # squared relative residual at which an inversion has found what it was after, of exact values
BASIN = 1e-3  # squared relative residual that a wrong basin leaves at least
ROUNDS, INNER = 12, 160  # of Levenberg–Marquardt, and iterations of LSMR in the first of them
SOLVED = 1e-3  # share of a step's linear residual at which LSMR ends
TINY = 1e-30  # keeps the size of a value, and the slope of a root, finite


@dataclass(frozen=True, eq=False)
class Residuals:
    """Examples → relative differences to what is known of the network's inside."""

    inside: Inside
    terms: tuple[KnownTerm, ...]  # known values that still depend on the examples
    held: dict[Node, Tensor]  # values that are put in where they come up, beside the term's own
    products: tuple[tuple[Layer, Tensor, Tensor], ...]  # layers with their signals and their weight's gradient
    errors: float = 0.0  # of what is known, squared, which the client's own examples leave
    spaces: tuple[tuple[Layer, SpanOfRows], ...] = ()  # layers of whose inputs the space of their rows is known

    @property
    def explained(self) -> float:
        """What is left, squared, of what an inversion was after."""
        return min(max(EXPLAINED, self.errors), BASIN)

    @staticmethod
    def of(descent: Descent) -> "Residuals":
        """All that a descent knows in front of its deepest tensors."""
        inside, values = descent.inside, descent.state.values
        every = {node: KnownTerm.of(node, value, descent.state) for node, value in values.items()}
        terms = tuple(t for node, t in every.items() if inside.open(t.node, [n for n in values if n is not node]))
        gradients = descent.hidden.gradients
        sound = [(layer, s, gradients[layer.weight]) for layer, s in descent.equations()]
        sound = [one for one in sound if one[2].share < BLURRED]
        errors = len(terms) * descent.error**2 + sum(gradient.share**2 for _, _, gradient in sound)
        products = tuple((layer, signal, gradient.matrix) for layer, signal, gradient in sound)
        return Residuals(inside, terms, dict(values), products, errors)

    def to(self, dtype: torch.dtype) -> "Residuals":
        products = tuple((layer, s.to(dtype), g.to(dtype)) for layer, s, g in self.products)
        spaces = tuple((layer, replace(space, basis=space.basis.to(dtype))) for layer, space in self.spaces)
        inside = self.inside.to(dtype)
        return self._changed(lambda value: value.to(dtype), inside=inside, products=products, spaces=spaces)

    def _changed(self, change: Callable[[Tensor], Tensor], **others: Any) -> "Residuals":
        terms = tuple(term.changed(change) for term in self.terms)
        return replace(self, terms=terms, held={n: change(v) for n, v in self.held.items()}, **others)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.inside.examples, *self.data.shape))

    @property
    def data(self) -> DataSpec:
        return self.inside.task.data

    def raw(self, share: Float[Tensor, "n *shape"]) -> Float[Tensor, "n *shape"]:
        """Examples from their places in the data's range."""
        return self.data.low + self.data.range * share

    @property
    def determined(self) -> bool:
        """Whether there are as many equations as unknowns, a ReLU's zeros not counted, and known values for half.
        Gradients alone are what a search has as well."""
        active = self._active
        equations = active + sum(min(g.numel(), s.numel() * g.shape[1] // s.shape[2]) for _, s, g in self.products)
        return equations >= self.shape.numel() <= 2 * active

    def __call__(self, inputs: Float[Tensor, "n *shape"]) -> Float[Tensor, " m"]:
        """All differences, those of a value relative to its size in each example."""
        values, products = self.differences(inputs)
        return torch.cat([values.flatten(), products])

    @property
    def differentiable(self) -> bool:
        """Whether any difference has a slope in the examples; numbers that are put into bins have none."""
        with torch.enable_grad():
            return self(torch.zeros(self.shape, dtype=torch.float64, requires_grad=True)).requires_grad

    def left(self, inputs: Float[Tensor, "n *shape"]) -> Float[Tensor, " n"]:
        """What each example leaves, squared; what the batch leaves of the products counts for each."""
        values, products = self.differences(inputs)
        return values.square().sum(1) + products.square().sum()

    def differences(self, inputs: Float[Tensor, "n *shape"]) -> tuple[Float[Tensor, "n m"], Float[Tensor, " k"]]:
        """Of each example's known values, and of the products of the batch."""
        inside, count = self.inside, len(inputs)
        layers = [layer for layer, _, _ in self.products] + [layer for layer, _ in self.spaces]
        nodes = [t.node for t in self.terms] + [layer.hidden for layer in layers]
        # A term's own value is behind its argument; no other argument needs it that does not stand behind it.
        labels = torch.zeros(count, dtype=torch.long)
        held = {n: v for n, v in self.held.items() if n not in nodes}
        made = inside.run(nodes, held, Batch(inputs, labels))
        values, products = [inputs.new_zeros(count, 0)], [inputs.new_zeros(0)]
        for term, value in zip(self.terms, (one.to(inputs) for one in made), strict=False):
            size = term.value.masked_fill(term.open, 0).reshape(count, -1).norm(dim=1, keepdim=True).clamp_min(TINY)
            values.append(term.gaps(value).reshape(count, -1) / size)
        for (layer, space), hidden in zip(self.spaces, made[len(nodes) - len(self.spaces) :], strict=True):
            rows = space.unfolding.rows(layer.unfolding.of_hidden(hidden))
            size = space.own(rows).detach().flatten(1).norm(dim=1, keepdim=True).clamp_min(TINY)
            values.append(space.outside(rows).flatten(1) / size)
        for (layer, signal, gradient), hidden in zip(self.products, made[len(self.terms) :], strict=False):
            rows = layer.unfolding.rows(layer.unfolding.of_hidden(hidden)).flatten(0, 1)
            products.append((signal.flatten(0, 1).T @ rows - gradient).flatten() / gradient.norm())
        return torch.cat(values, 1), torch.cat(products)

    def apart(self, generator: torch.Generator) -> bool:
        """Whether known values of an example hang on no other one, and are as many as its numbers."""
        drawn = self.raw(torch.rand((2, *self.shape), generator=generator, dtype=torch.float64))
        drawn[1, 1:] = drawn[0, 1:]
        with torch.no_grad():
            one, two = (self.differences(inputs)[0][1:] for inputs in drawn)
        return self._active >= self.shape.numel() and torch.allclose(one, two, rtol=1e-9, atol=1e-9)

    @property
    def _active(self) -> int:
        return sum(term.active for term in self.terms)

    def only(self, which: Int[Tensor, " k"]) -> "Residuals":
        """Some examples' known values, without the products, which are of all."""
        if len(which) == (count := self.inside.examples):
            return self

        def part(value: Tensor) -> Tensor:
            return value.reshape(count, -1, *value.shape[1:])[which].flatten(0, 1)

        return self._changed(part, inside=replace(self.inside, examples=len(which)), products=())


@dataclass(frozen=True)
class Inverted:
    """What the inversion came to."""

    inputs: Float[Tensor, "n *shape"]  # raw, in float64
    left: Float[Tensor, " n"]  # ‖differences‖² of each example, near zero where these are the client's
    status: Status
    apart: bool  # whether each example was inverted by itself

    @property
    def parts(self) -> tuple[Int[Tensor, " k"], ...]:
        """Examples that were inverted together."""
        found: tuple[Tensor, ...] = torch.arange(len(self.left)).split(1 if self.apart else len(self.left))
        return found

    @staticmethod
    def nothing(shape: torch.Size) -> "Inverted":
        left = torch.full(shape[:1], torch.inf)
        return Inverted(torch.zeros(shape, dtype=torch.float64), left, Status.OUT_OF_BUDGET, apart=False)

    def better(self, other: "Inverted", which: Int[Tensor, " k"]) -> "Inverted":
        """With what another found of the examples `which`, where it leaves less: of each, or of all."""
        less = other.left < self.left[which]
        if not other.apart:
            less = (other.left.sum() < self.left[which].sum()).expand_as(less)
        inputs, left = self.inputs.clone(), self.left.clone()
        inputs[which[less]], left[which[less]] = other.inputs[less], other.left[less]
        return replace(other, inputs=inputs, left=left)


@dataclass(frozen=True, eq=False)
class ExamplePull(Pull):
    """A pull of so large a share of each example's own, whatever the size of its pictures, times the factor in
    force."""

    def _weight(self, slope: Tensor, own: Tensor, factor: Tensor) -> Tensor:
        one, other = (t.abs().flatten(1).sum(1) for t in (slope, own))
        ratio: Tensor = factor * self.share * one / other.clamp_min(torch.finfo(own.dtype).tiny)
        return ratio.view(-1, *([1] * (slope.ndim - 1)))


@dataclass(frozen=True, kw_only=True)
class FeatureInversion:
    """√residual by unsigned Adam, with a total variation that has a falling share of its pull; then log residual by
    L-BFGS within the data's range; then Levenberg–Marquardt.

    The root keeps its slope where the residual is small, each example has its own, so that one that stalls holds up no
    other, and the total variation leads from noise to the basin: at its end the residual alone decides. Its logarithm
    makes a step as large near the end as it is far from it. What is left of the residual tells success without the
    truth.
    """

    steps: int = 300  # of Adam, and as many of L-BFGS where Adam does not get near; each a gradient evaluation
    lr: float = 0.2  # of Adam, in shares of the data's range
    share: float = 1.0  # share, last: of the total variation's pull in the residual's, first and last
    last: float = 0.03
    # deviation of the start around grey, in shares of the data's range. Units whose inputs are all alike at the start
    # would move alike.
    spread: float = 0.3
    finish: float = 1e-2  # residual below which Levenberg–Marquardt takes over

    def __call__(
        self, residuals: Residuals, meter: Meter, generator: torch.Generator, *, again: bool = False
    ) -> Inverted:
        """From noise, within the meter's budget: down to the basins side by side; then each example by itself where
        known values hold it without the others, of several only those that met one, or had stalled before: `again`."""
        begun = self.begun(residuals, meter, generator)
        far = torch.inf if again or len(begun.parts) == 1 else BASIN
        near = [k for k in begun.parts if residuals.explained < float(begun.left[k].max()) < far]
        return self.lowered(residuals, begun, meter, near)

    def begun(self, residuals: Residuals, meter: Meter, generator: torch.Generator) -> Inverted:
        """From noise down to the basins."""
        apart = residuals.apart(generator)
        alone = replace(residuals, products=()) if residuals.shape[0] > 1 and apart else residuals
        inputs, status = self._annealed(alone, meter, generator)
        return self.judged(residuals, Inverted(inputs, inputs.new_empty(len(inputs)), status, apart))

    def lowered(
        self, residuals: Residuals, found: Inverted, meter: Meter, parts: Sequence[Tensor] | None = None
    ) -> Inverted:
        """As near as L-BFGS gets, all or some parts."""
        inputs = found.inputs.clone()
        for k in found.parts if parts is None else parts:
            inputs[k] = self._lower(residuals.only(k).to(torch.float32), inputs[k], meter).double()
        return self.judged(residuals, replace(found, inputs=inputs))

    @staticmethod
    def judged(residuals: Residuals, found: Inverted) -> Inverted:
        """With what its examples leave."""
        with torch.no_grad():
            left = [residuals.only(which).left(found.inputs[which]).float() for which in found.parts]
        return replace(found, left=torch.cat(left))

    def finished(self, residuals: Residuals, found: Inverted, meter: Meter) -> Inverted:
        """As exactly as what is known allows: all in turns, then each to the end, those that have most to gain last."""
        for steps in TURNS if len(found.parts) > 1 else ():
            open_ = [k for k in found.parts if ROUNDING < float(found.left[k].max()) <= self.finish]
            found = replace(self, steps=steps).lowered(residuals, found, meter, open_) if open_ else found
        for which in found.left.argsort().split(1 if found.apart else len(found.left)):
            if float(found.left[which].max()) > self.finish:
                continue
            own, inputs = residuals.only(which), found.inputs[which]
            inputs = polished(own, inputs, meter)
            with torch.no_grad():
                left = own.left(inputs).float()
            found = found.better(replace(found, inputs=inputs, left=left), which)
        done = float(found.left.max()) < residuals.explained
        return replace(found, status=Status.CONVERGED if done else found.status)

    def _annealed(
        self, residuals: Residuals, meter: Meter, generator: torch.Generator
    ) -> tuple[Float[Tensor, "n *shape"], Status]:
        single, count = residuals.to(torch.float32), residuals.shape[0]
        prior, image = TotalVariation(1.0), residuals.data.is_image
        pull = ExamplePull(lambda variables: prior(variables["inputs"]), self.share)

        def loss(variables: Tensors) -> tuple[Tensor, Tensor]:
            parts = single.differences(single.raw(variables["inputs"]))
            roots = [one.square().sum(-1).clamp_min(TINY).sqrt().sum() for one in parts if one.numel()]
            root = torch.stack(roots).sum() / count
            return root, root

        start = (0.5 + self.spread * torch.randn(residuals.shape, generator=generator)).clamp(0, 1)
        falling = Falling(prior=prior, to=self.last / self.share, levels=40).at if image else None
        problem = Problem(loss, {"inputs": start[None]}, UNIT, meter, schedule=falling, pull=pull if image else None)
        minimum = AnnealedAdam(steps=self.steps, lr=self.lr, floor=0.02).minimise(problem)
        found = minimum.variables["inputs"][0] if minimum.variables else start
        return residuals.raw(found.double()), minimum.status

    def _lower(self, single: Residuals, inputs: Float[Tensor, "n *shape"], meter: Meter) -> Float[Tensor, "n *shape"]:
        """The residual's logarithm by L-BFGS, in float32."""

        def logarithm(variables: Tensors) -> tuple[Tensor, Tensor]:
            value = HIGH + single.left(single.raw(variables["inputs"])).clamp_min(ROUNDING).log().mean()
            return value, value

        share = ((inputs - single.data.low) / single.data.range).float()
        minimiser = BoundedLBFGS(steps=self.steps, history=50, scale=1.0, tolerance=0.0)
        minimum = minimiser.minimise(Problem(logarithm, {"inputs": share[None]}, UNIT, meter))
        return single.raw(minimum.variables["inputs"][0] if minimum.variables else share)


UNIT = {"inputs": (torch.zeros(()), torch.ones(()))}  # bounds of examples in shares of the data's range


def polished(residuals: Residuals, inputs: Float[Tensor, "n *shape"], meter: Meter) -> Float[Tensor, "n *shape"]:
    """Levenberg–Marquardt with LSMR for its steps, kept in the data's range. LSMR needs no slopes beyond float32. As
    long as it ends at `inner` and its step is good, it gets twice as many. Each product counts as a gradient
    evaluation."""
    best = float(residuals(inputs).detach().double().square().sum())
    damping, inner, data = min(1e-4, best), INNER, residuals.data
    for index in range(ROUNDS):
        meter.note(index, best)
        if meter.over(2 * inner) is not None:
            break
        try:
            step, whole = _step(residuals, inputs, damping, inner, meter)
        except Over:
            break
        before, longest = best, False
        for length in (1.0, 0.5, 0.2):
            trial = (inputs + length * step).clamp(data.low, data.high)
            with torch.no_grad():
                left = float(residuals(trial).double().square().sum())
            if left < best:
                inputs, best, longest = trial, left, length == 1.0
                break
        if longest and not whole and inner < inputs.numel():
            inner *= 2
        elif best < FLOOR and best > before / 4:
            break
        damping = max(damping / 10 if longest else damping if best < before else 10 * damping, 1e-12)
        if damping > 1:
            break
    return inputs


def _step(
    residuals: Residuals, inputs: Float[Tensor, "n *shape"], damping: float, inner: int, meter: Meter
) -> tuple[Float[Tensor, "n *shape"], bool]:
    """The step, and whether LSMR came to its end within `inner` iterations. Numbers at an end of the data's range that
    the slope leads out of it stay there: others would make up for what is cut off (Bertsekas, 1982)."""
    _, operator = jacobian(residuals.to(torch.float32), inputs.float(), meter.tick)
    with torch.no_grad():
        right = -residuals(inputs).double().numpy()
    down = torch.from_numpy(operator.rmatvec(right)).view_as(inputs)
    held = ((inputs <= residuals.data.low) & (down < 0)) | ((inputs >= residuals.data.high) & (down > 0))
    free = (~held).flatten().numpy()
    moving = LinearOperator(
        operator.shape, lambda step: operator.matvec(free * step), lambda left: free * operator.rmatvec(left)
    )
    found = lsmr(moving, right, damp=damping**0.5, atol=1e-8, btol=SOLVED, conlim=0, maxiter=inner)
    meter.spent += 2 * int(found[2]) + 1
    return torch.from_numpy(found[0]).view_as(inputs).to(inputs), int(found[2]) < inner
