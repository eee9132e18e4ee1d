"""The only example behind an update: off a linear layer with bias or without."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from scipy.optimize import minimize_scalar
from torch import Tensor

from leakgauge.attacks.closed_form.proof import name_labels, simulated
from leakgauge.attacks.effort import Effort, SearchingAttack
from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.defenses import parts_of, steps_of
from leakgauge.defenses.steps import EntryMask, Scale
from leakgauge.observation import Observation, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch, DataSpec
from leakgauge.tracing import LinearLayer, input_layers
from leakgauge.update import UpdateKind
from leakgauge.view.entries import Entries, SentTensor, filled, noise_of

CERTAIN = 1 / 510  # largest error of a certified input, in shares of the data's range: half a grey level of 8 bits
DEVIATIONS = 6.0  # standard deviations of a sum of rounding errors that its bound allows
ROUNDED_UP = 1.01
"""Of the smallest sent entry, for its own rounding and the bias's, which half precision makes the largest."""
CHECKS = 8  # least entries beyond one an input that must agree before the others are taken as they were sent
BLOCK = 1 << 19  # entries of the layer that are worked on at a time


@dataclass(frozen=True, eq=False)
class OuterProductRead:
    """What a layer's gradient says of the only example."""

    x: Float[Tensor, "1 d"]  # normalised; inputs that no sent entry shows (not `seen`) are grey
    unexplained: float  # share of ‖∂W‖² that one outer product does not explain
    error: float  # largest error of an input that rounding can have made, in shares of the data's range
    fits: bool  # whether rounding can have made what is unexplained
    seen: Bool[Tensor, " d"]
    rounded: bool  # whether entries were rounded by the defence, as far as it or the entries tell
    ambiguous: bool  # left-out entries could look like this, as nothing tells which were (`Entries.hides`)
    # the defence left entries out and changed no other, and `CHECKS` entries bear it out: any input fits one row
    selected: bool
    # largest absolute value, normalised, that an input can have which no sent entry shows; infinite where the defence
    # does not leave out the smallest
    unseen_below: float

    def limits(self, data: DataSpec) -> tuple[Float[Tensor, "1 *shape"], Float[Tensor, "1 *shape"]] | None:
        """Least and largest raw value of each input, where entries were only left out: inputs that were seen are what
        was read. `None` elsewhere."""
        if not self.selected or self.rounded or not self.fits or self.error > CERTAIN:
            return None
        ends = (torch.where(self.seen, self.x, end) for end in (-self.unseen_below, self.unseen_below))
        low, high = (data.denormalise(end.view(1, *data.shape)).clamp(data.low, data.high) for end in ends)
        return low, high

    @property
    def certain(self) -> bool:
        sound = self.fits and self.error <= CERTAIN
        return sound and bool(self.seen.all()) and not (self.rounded or self.ambiguous)

    @property
    def message(self) -> str:
        shown = f"{int(self.seen.sum())} of {len(self.seen)} inputs seen"
        rounded = "; entries were rounded, which certifies nothing" if self.rounded else ""
        silent = "; entries may have been left out, as nothing tells which were sent" if self.ambiguous else ""
        coarse = f"; rounding may have moved inputs by {self.error:.0%} of the range" if self.error > CERTAIN else ""
        return f"{shown}, {self.unexplained:.1e} of the layer's gradient unexplained{rounded}{silent}{coarse}"


def gradients(observation: Observation, layer: LinearLayer) -> tuple[Entries, Entries]:
    """Weight and bias, without the factors of a known random-k, which differ, as k is rounded up. Of several examples
    entries that a known defence left out follow from the others: the two together have no higher rank than there are
    examples. A row that shows no more than so many is unsure."""
    weight, bias = (SentTensor.of(observation, name or "")[...] for name in (layer.weight, layer.bias))
    count = observation.examples or 1
    if count == 1 or weight.seen is None or bias.seen is None:
        return weight, bias
    seen = torch.cat([weight.seen, bias.seen[:, None]], 1)
    both = filled(torch.cat([weight.value, bias.value[:, None]], 1), seen, count)
    off = torch.where(seen.sum(1) > count, bias.bound, torch.inf)
    return replace(weight, value=both[:, :-1]), replace(bias, value=both[:, -1], bound=off)


def read_one(observation: Observation, layer: LinearLayer) -> OuterProductRead:
    """Least squares over the entries that were sent, x_j = Σ_i b_i·W_ij / Σ_i b_i², and what rounding did to it.

    With W_ij = β_i·x_j + d_ij and b_i = β_i + e_i, the read is off by Σ_i b_i·(d_ij − e_i·x_j) / Σ_i b_i². Its bound
    takes |d_ij| and |e_i| at their largest (`Entries`): the sum of all, or, if less, six standard deviations of
    independent errors that are uniform within them; rows of equal size are rounded alike and count as one. Known noise
    adds six of its deviations, and the share by which noise in b lengthens Σ b². An entry
    fits where |W_ij − b_i·x_j| is within the bounds of d_ij, e_i·x_j and b_i times the read's own error.

    Of an input that no sent entry shows, a defence that leaves out the smallest (top-k) says |x_j| ≤ min|W| / max|b|,
    over what was sent, with what rounding may hide added to the first."""
    view, data = noise_of(observation), observation.task.data
    weight, offset = (SentTensor.of(observation, name or "", view=view) for name in (layer.weight, layer.bias))
    bias, rows = offset[...], len(weight.sent)
    selects = all(
        isinstance(step, Scale | EntryMask) and not step.looks for step in steps_of(observation.knowledge.defense)
    )
    # In units of the largest entries squares neither vanish nor overflow.
    largest = max(float(weight.sent.max()), -float(weight.sent.min())) / weight.factor
    units = largest or 1.0, float(bias.value.abs().max()) or 1.0
    b, e = bias.value / units[1], bias.hard / units[1]
    noise = weight.sigma / weight.factor / units[0], bias.sigma / units[1]
    told = torch.ones_like(b) if bias.seen is None else bias.seen.to(b)
    alike = torch.unique(b.abs(), return_inverse=True)[1]
    middle = data.normalise(b.new_full((1, *data.shape), (data.low + data.high) / 2))
    grey = middle.flatten() * (units[1] / units[0])
    width, block = weight.sent.shape[1], max(1, BLOCK // rows)
    xs, seens, left, whole, error, fits, shown = [], [], 0.0, 0.0, 0.0, True, True
    least, hidden, spare = float("inf"), 0.0, 0
    for columns in (slice(start, start + block) for start in range(0, width, block)):
        part = weight[:, columns]  # a block at a time: the layer may be all of the model
        w, d = part.value / units[0], part.hard / units[0]
        mask = torch.ones_like(w) if part.seen is None else part.seen.to(w)
        evidence = b.square() @ mask
        seen = evidence > 0
        power = torch.where(seen, evidence, 1.0)
        x = torch.where(seen, (b @ (w * mask)) / power, grey[columns])

        def bound(each: Tensor, mask: Tensor = mask, power: Tensor = power) -> Tensor:
            sizes = b.abs()[:, None] * each * mask
            together = torch.zeros_like(sizes).index_add_(0, alike, sizes)
            deviation = (together.square().sum(0) / 3).sqrt()
            return torch.minimum(DEVIATIONS * deviation, sizes.sum(0)) / power

        off = bound(d) + x.abs() * bound(e[:, None])
        off = off + DEVIATIONS * (noise[0] + noise[1] * x.abs()) / power.sqrt() + rows * noise[1] ** 2 / power * x.abs()
        residual = (w - b[:, None] * x) * mask * told[:, None]
        allowed = d + e[:, None] * x.abs() + b.abs()[:, None] * off + DEVIATIONS * (noise[0] + noise[1] * x.abs())
        if weight.smallest and bool(b.any()):
            least = min(least, float(torch.where((mask > 0) & (w != 0), w.abs(), torch.inf).min()))
            hidden = max(hidden, float((d * (1 - mask)).max()))
        spare += int(((mask > 0) & (told[:, None] > 0) & (b[:, None] != 0)).sum()) - int(seen.sum())
        left, whole = left + float(residual.square().sum()), whole + float(w.square().sum())
        if weight.hides:
            beyond = replace(part, value=w).sent_beyond(allowed)
            shown = shown and bool(beyond[b != 0].any(0).all())
        fits = fits and bool((residual.abs() <= 1.01 * allowed)[:, seen].all())
        error = max(error, float((off * seen).max()))
        xs.append(x * (units[0] / units[1]))
        seens.append(seen)
    seen = torch.cat(seens)
    ambiguous = int((b != 0).sum()) < 2 or not shown
    return OuterProductRead(
        torch.cat(xs)[None],
        left / (whole or 1.0),
        error * units[0] / units[1] * max(data.std) / data.range,
        fits,
        seen,
        rounds_entries(observation, weight.sent),
        weight.hides and ambiguous,
        selects and weight.support is not None and spare >= CHECKS,
        ROUNDED_UP * (least + hidden) * units[0] / units[1],
    )


def _one_size(weight: Float[Tensor, "rows d"], observation: Observation) -> bool:
    """Whether all entries but zeros are equally large, as signs are and quantisers with one level. Of a delta from an
    optimiser that nobody names, half of them nearly so is enough: Adam's first steps are like that."""
    if int(weight.count_nonzero()) < 2:
        return False
    if observation.update.header.kind is UpdateKind.DELTA and observation.knowledge.local_training is None:
        sizes = weight[weight != 0].double().abs_()
        return bool(sizes.median() / 0.9 >= sizes.max())
    ends = [
        (float(s.min()), float(s.max())) for p in weight.flatten().split(BLOCK) if len(s := p[p != 0].double().abs_())
    ]
    return min(low for low, _ in ends) / (1 - 1e-6) >= max(high for _, high in ends)


def rounds_entries(observation: Observation, weight: Float[Tensor, "rows d"]) -> bool:
    """Whether a defence rounded a weight's entries in a way of its own: as they look, or a matrix as it was sent does,
    of which plain layers hold sums; or as a part of the known defence, asked by itself, states a likelihood that is
    neither of added noise nor of steps of known size: what another part adds or rounds says nothing of its error."""
    known, origin = observation.knowledge, observation.origin
    matrices = [] if origin is observation else [t for t in origin.update.tensors.values() if t.ndim > 1]
    if any(_one_size(matrix, observation) for matrix in (weight, *matrices)):
        return True
    parts = () if known.defense is None else parts_of(known.defense)
    views = (noise_of(replace(observation, knowledge=replace(known, defense=part))) for part in parts)
    return any(v.log_likelihood is not None and v.noise_scale is None and v.rounding is None for v in views)


REFINEMENTS = 60  # most evaluations of Brent's method


@ATTACKS.register("rank-one", needs="one example; a linear layer without bias that reads the input")
@dataclass(frozen=True, kw_only=True)
class RankOneRead(SearchingAttack):
    """The input of a linear layer without bias, for one example.

    ∂L/∂W = δxᵀ has rank one: its right singular vector is ±x/‖x‖. The length and the sign are found by simulating the
    update: a `grid` of lengths inside the data's range for each sign, then Brent's method in its best cell. Certified
    where the simulated update explains the observed one. Entries that a known defence left out follow from the others,
    as long as each column has one that was sent. Noise and rounding leave a start for a search, without proof.

    Source: ours; the direction is that of Geiping et al., 2020, Proposition 3.1 without the bias."""

    grid: int = 24

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        """`EXACT` when certified, `CONVERGED` for a read that does not explain the update."""
        generator = effort.generator
        observation = observation.view
        if observation.examples != 1:
            return Reconstruction.not_applicable("of several examples the gradient has no single direction")
        reading = input_layers(observation.task, generator, observation.update.tensors)
        layer = next((one for one in reading if one.bias is None), None)
        if layer is None:
            return Reconstruction.not_applicable("no linear layer without bias reads the input")
        entries = SentTensor.of(observation, layer.weight)[...]
        sent = entries.value.cpu() / entries.value.abs().max().clamp_min(torch.finfo(torch.float64).tiny).cpu()
        sent = sent if entries.seen is None else filled(sent, entries.seen.cpu(), 1)
        values, directions = torch.linalg.svd(sent, full_matrices=False)[1:]
        if not bool(values[0] > 0):
            return Reconstruction(None, None, Status.FAILED, "the layer's gradient is zero")
        direction = directions[0]
        named = name_labels(observation, generator)
        labels, data = named.labels, observation.task.data
        if labels is None:
            return Reconstruction.not_applicable(named.why)
        explainer = Explainer.of(observation, generator)
        room = effort.budget.gradient_evaluations
        # What is left for Brent's method after the grid and the four evaluations of the check.
        left = REFINEMENTS if room is None else room // explainer.simulator.cost(1) - 2 * self.grid - 4
        if left < REFINEMENTS // 4:
            return Reconstruction.not_applicable("the budget has no room for a search of the length")

        def raw(length: float) -> Tensor:
            return data.denormalise((length * direction).view(1, *data.shape))

        def misfit(length: float) -> float:
            return explainer.left(Batch(raw(length), labels))

        length = self._length(misfit, direction, data, min(left, REFINEMENTS))
        return simulated(observation, raw(length), named, generator, explainer)

    def _length(
        self, misfit: Callable[[float], float], direction: Float[Tensor, " d"], data: DataSpec, refinements: int
    ) -> float:
        """The signed length with the least misfit."""
        edge = direction.new_zeros((1, *data.shape))
        low, high = (data.normalise(edge + v).flatten() for v in (data.low, data.high))
        most = float(torch.maximum(low.abs(), high.abs()).norm())
        slack = 1e-2 * (high - low)
        cells: list[tuple[float, float, float]] = []
        for sign in (1.0, -1.0):
            along = sign * direction
            room = torch.where(along > 0, high + slack, low - slack) / along
            end = min(float(room[along.abs() > 1e-12].min()), most)
            step = end / self.grid
            cells += [(misfit(sign * step * i), sign * step * i, step) for i in range(1, self.grid + 1) if end > 0]
        _, best, step = min(cells)
        found = minimize_scalar(
            misfit,
            bounds=(best - step, best + step),
            method="bounded",
            options={"maxiter": refinements, "xatol": 1e-12 * abs(best)},
        )
        return float(found.x)
