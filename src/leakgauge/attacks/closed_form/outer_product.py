"""The only example behind a linear layer's gradient: least squares over its rows, and a certificate."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.defenses import parts_of, steps_of
from leakgauge.defenses.steps import EntryMask, Scale
from leakgauge.observation import Observation
from leakgauge.task import DataSpec
from leakgauge.tracing import LinearLayer
from leakgauge.update import UpdateKind
from leakgauge.view.entries import Entries, SentTensor, noise_of

CERTAIN = 1 / 510
"""Largest error of a certified input, in shares of the data's range: half a grey level of 8 bits."""
DEVIATIONS = 6.0
"""Standard deviations of a sum of rounding errors that its bound allows."""
ROUNDED_UP = 1.01
"""Of the smallest sent entry, for its own rounding and the bias's, which half precision makes the largest."""
CHECKS = 8
"""Least entries beyond one an input that must agree before the others are taken as they were sent."""
BLOCK = 1 << 19
"""Entries of the layer that are worked on at a time."""


@dataclass(frozen=True, eq=False)
class OuterProductRead:
    """What a layer's gradient says of the only example.

    Attributes:
        x: normalised; inputs that no sent entry shows are grey.
        unexplained: share of ‖∂W‖² that one outer product does not explain.
        error: largest error of an input that rounding can have made, in shares of the data's range.
        fits: whether rounding can have made all that is unexplained.
        seen: whether each input is shown.
        rounded: whether entries were rounded by the defence, as far as it or the entries tell.
        ambiguous: left-out entries could look like this, as nothing tells which were (`Entries.hides`).
        selected: the defence left entries out and changed no other, and `CHECKS` entries bear it out: where one row
            alone was sent, any input fits it.
        unseen_below: largest absolute value, normalised, that an input can have which no sent entry shows; infinite
            where the defence does not leave out the smallest.
    """

    x: Float[Tensor, "1 d"]
    unexplained: float
    error: float
    fits: bool
    seen: Bool[Tensor, " d"]
    rounded: bool
    ambiguous: bool
    selected: bool
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
    """Weight and bias, without the factors of a known random-k, which differ, as k is rounded up."""
    assert layer.bias is not None
    weight, bias = (SentTensor.of(observation, name)[...] for name in (layer.weight, layer.bias))
    return weight, bias


def ratio_errors(weight: Entries, bias: Entries) -> Float[Tensor, " rows"]:
    """Of W_i/b_i, relative to its length, row by row."""
    length, off = (torch.linalg.vector_norm(t, dim=1) for t in (weight.value, weight.hard))
    found: Tensor = off / length + bias.hard / bias.value.abs()
    return found


def read_one(observation: Observation, layer: LinearLayer) -> OuterProductRead:
    """Least squares over the entries that were sent, x_j = Σ_i b_i·W_ij / Σ_i b_i², and what rounding did to it.

    With W_ij = β_i·x_j + d_ij and b_i = β_i + e_i, the read is off by Σ_i b_i·(d_ij − e_i·x_j) / Σ_i b_i². Its bound
    takes |d_ij| and |e_i| at their largest (`Entries`): the sum of all, or, if less, six standard deviations of
    independent errors that are uniform within them; rows of equal size are rounded alike and count as one. Known noise
    adds six of its deviations, and the share by which noise in b lengthens Σ b². An entry
    fits where |W_ij − b_i·x_j| is within the bounds of d_ij, e_i·x_j and b_i times the read's own error.

    Of an input that no sent entry shows, a defence that leaves out the smallest (top-k) says |x_j| ≤ min|W| / max|b|,
    over what was sent, with what rounding may hide added to the first.
    """
    assert layer.bias is not None
    view = noise_of(observation)
    weight, offset = (SentTensor.of(observation, name, view=view) for name in (layer.weight, layer.bias))
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
    data = observation.task.data
    grey = _grey(data).to(b) * (units[1] / units[0])
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
        _one_size(weight.sent, observation) or _rounds(observation),
        weight.hides and ambiguous,
        selects and weight.support is not None and spare >= CHECKS,
        ROUNDED_UP * (least + hidden) * units[0] / units[1],
    )


def _grey(data: DataSpec) -> Float[Tensor, " d"]:
    middle = torch.full((1, *data.shape), (data.low + data.high) / 2)
    return data.normalise(middle).flatten()


def _one_size(weight: Float[Tensor, "rows d"], observation: Observation) -> bool:
    """Whether all entries but zeros are equally large, as signs are and quantisers with one level.

    Of a delta from an optimiser that nobody names, half of them nearly so is enough: Adam's first steps are like that.
    """
    if int(weight.count_nonzero()) < 2:
        return False
    if observation.update.header.kind is UpdateKind.DELTA and observation.knowledge.local_training is None:
        sizes = weight[weight != 0].double().abs_()
        return bool(sizes.median() / 0.9 >= sizes.max())
    ends = [
        (float(s.min()), float(s.max())) for p in weight.flatten().split(BLOCK) if len(s := p[p != 0].double().abs_())
    ]
    return min(low for low, _ in ends) / (1 - 1e-6) >= max(high for _, high in ends)


def _rounds(observation: Observation) -> bool:
    """Whether a part of the known defence states a likelihood that is neither of added noise nor of steps of known
    size. Each is asked by itself: what another adds or rounds says nothing of its error."""
    known = observation.knowledge
    parts = () if known.defense is None else parts_of(known.defense)
    views = (noise_of(replace(observation, knowledge=replace(known, defense=part))) for part in parts)
    return any(v.log_likelihood is not None and v.noise_scale is None and v.rounding is None for v in views)
