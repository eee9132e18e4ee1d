"""Compression: few entries, few values for each, signs alone; and the bytes that an update then takes on the wire."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.defenses.defense import Defense, steps_of
from leakgauge.defenses.steps import DefenseStage, DefenseStep, EntryGrid, EntryMask, Noise
from leakgauge.errors import limit, limited
from leakgauge.registry import DEFENSES
from leakgauge.tensors import Tensors, entries, map_tensors


def _with_largest(row: Tensor, kept: int) -> Tensor:
    """A row with zeros for all but so many of the largest, ties by position; usable under vmap."""
    size = row.detach().abs()
    places = size.argsort(descending=True, stable=True)[:kept]
    return torch.where(torch.zeros_like(size).scatter(0, places, 1.0) > 0, row, torch.zeros_like(row))


SHARE = limit(lambda share: 0 < share <= 1, "give a share in (0, 1], e.g. 0.05")


def kept_entries(share: float, total: int) -> int:
    """⌈share · total⌉, where the product is an integer but for its rounding that integer: .07 of 100 is 7, not 8."""
    return math.ceil(share * total - 1e-9)


@DEFENSES.register("topk")
@dataclass(frozen=True, kw_only=True)
class TopK(Defense):
    """Keeps the largest k = ⌈keep·n⌉ entries of each tensor, and sends zeros for the rest.

    Guarantee: exactly k entries are kept (ties by position), at their values; fewer are non-zero only
    when the tensor has fewer. No privacy guarantee: the kept entries are exact and their places tell
    the attacker where the gradient is large.

    Differs from the ROG release, which keeps k−1 (strict inequality): a bias of ten keeps none there.
    """

    keep: float = field(metadata=SHARE)

    def on_update(self, tensors: Tensors, generator: torch.Generator | None) -> Tensors:
        return map_tensors(lambda t: _with_largest(t.flatten(), kept_entries(self.keep, t.numel())).view_as(t), tensors)

    def steps(self) -> tuple[DefenseStep, ...]:
        how = partial(self.on_update, generator=None)
        return (EntryMask(smallest=True, keep=self.keep, shows=partial(_kept_of_each, share=self.keep), how=how),)


@DEFENSES.register("random-k")
@dataclass(frozen=True, kw_only=True)
class RandomK(Defense):
    """Keeps k = ⌈keep·n⌉ entries of each tensor, drawn without replacement, and sends zeros for the rest.

    Guarantee: exactly k entries are kept; where `unbiased` they are multiplied by n/k, and E[sent] = g. No privacy
    guarantee: the kept entries are exact. A not-a-number is sent if it is drawn."""

    keep: float = field(metadata=SHARE)
    unbiased: bool = False

    def factor(self, t: Tensor) -> float:
        """By which the kept entries of a tensor are multiplied."""
        return t.numel() / kept_entries(self.keep, t.numel()) if self.unbiased and t.numel() else 1.0

    def masks(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        """Entries that are sent, name → bool."""

        def one(t: Tensor) -> Tensor:
            places = torch.randperm(t.numel(), generator=generator)[: kept_entries(self.keep, t.numel())]
            return torch.zeros(t.numel(), dtype=torch.bool).index_fill(0, places, True).view(t.shape).to(t.device)

        return map_tensors(one, tensors)

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        masks = self.masks(tensors, generator)
        return map_tensors(lambda t, m: torch.where(m, t * self.factor(t), torch.zeros_like(t)), tensors, masks)

    def steps(self) -> tuple[DefenseStep, ...]:
        """Behind noise, over the places that nobody knows, an unbiased entry is the raw one in the mean. A kept entry
        that is exactly zero passes for one that was not."""
        shows = partial(_kept_of_each, share=self.keep)
        mask = EntryMask(keep=self.keep, factor=self.factor, lengthens=self.unbiased, shows=shows, masks=self.masks)
        return (mask,)


@DEFENSES.register("prune")
@dataclass(frozen=True, kw_only=True)
class Prune(Defense):
    """Sends zeros for the ⌊rate·N⌋ smallest of all N entries: one threshold for all tensors.

    The gradient pruning of Zhu et al., *Deep Leakage from Gradients*, NeurIPS 2019, §5.2. `topk` keeps a share of each
    tensor; here whole tensors may vanish. Ties: earlier entries are kept, in the order of the tensors. A
    not-a-number counts as larger than any number, and is sent.

    Guarantee: exactly N − ⌊rate·N⌋ entries are kept, at their values. No privacy guarantee.
    """

    rate: float = field(metadata=limit(lambda rate: 0 < rate < 1, "give a share between 0 and 1, e.g. 0.9"))

    def kept(self, total: int) -> int:
        return kept_entries(1 - self.rate, total)

    def on_update(self, tensors: Tensors, generator: torch.Generator | None) -> Tensors:
        flat = torch.cat([t.flatten() for t in tensors.values()])
        pieces = _with_largest(flat, self.kept(len(flat))).split([t.numel() for t in tensors.values()])
        return {name: piece.view_as(t).to(t) for (name, t), piece in zip(tensors.items(), pieces, strict=True)}

    def steps(self) -> tuple[DefenseStep, ...]:
        def shows(sent: Tensors) -> Tensors | None:
            return _not_zero(sent, lambda kept: sum(int(m.sum()) for m in kept.values()) <= self.kept(entries(kept)))

        return (EntryMask(smallest=True, shows=shows, how=partial(self.on_update, generator=None)),)


def _not_zero(sent: Tensors, fits: Callable[[Tensors], bool]) -> Tensors | None:
    """Entries on the wire that are not zero, unless they are more than were sent: then a later stage (noise) has filled
    the zeros."""
    kept = map_tensors(lambda t: t != 0, sent)
    return kept if fits(kept) else None


def _kept_of_each(sent: Tensors, share: float) -> Tensors | None:
    return _not_zero(sent, lambda kept: all(int(m.sum()) <= kept_entries(share, m.numel()) for m in kept.values()))


SOFTNESS = 0.1
"""Scale of the logistic noise that softens the edges of a cell, in steps of the grid, and of a sign, in root mean
squares of the simulated tensor."""

LOGISTIC = 3**0.5 / torch.pi  # scale of a logistic of deviation 1
OUTSIDE = 0.05  # probability of a rounding below which its log-likelihood continues as a line


LEVELS = limit(lambda levels: levels >= 1, "give a whole number ≥ 1, e.g. 3 for seven values")


def largest(t: Tensor) -> Tensor:
    """max|t|, 0 of an empty tensor, not-a-number if there is one in it."""
    return t.abs().amax() if t.numel() else t.new_zeros(())


def _rounded(t: Tensor, norm: Tensor, levels: int, code: Callable[[Tensor], Tensor]) -> Tensor:
    """sign(t) · code(|t|·s/norm)/s · norm; zeros of a zero tensor; not-a-number throughout if there is one in it."""
    safe = torch.where(norm == 0, torch.ones_like(norm), norm)
    return t.sign() * (code(t.abs() / safe * levels) / levels) * norm


def straight_through(rounded: Tensors, raw: Tensors) -> Tensors:
    """The rounded values with the gradient of the identity."""
    return map_tensors(lambda r, t: t + (r - t).detach(), rounded, raw)


@DEFENSES.register("quantise")
@dataclass(frozen=True, kw_only=True)
class Quantise(Defense):
    """Rounds every entry to one of 2s+1 equally spaced values, between −max|g| and max|g|.

    s is `levels`. "3-bit" is s = 3: seven values, zero among them, as the ROG paper counts; the `quant_level` of
    its release is s + 1. Ties go to the even code. A zero or empty tensor stays; a tensor with a not-a-number becomes
    all not-a-number; a single entry stays as it is.

    Guarantee: ``|sent − g| ≤ max|g|/2s`` (one rounding error). No privacy guarantee: every sent value says in
    which interval of width max|g|/s the true one lies."""

    levels: int = field(default=3, metadata=LEVELS)

    def on_update(self, tensors: Tensors, generator: torch.Generator | None) -> Tensors:
        return map_tensors(lambda t: _rounded(t, largest(t), self.levels, torch.round), tensors)

    def steps(self) -> tuple[DefenseStep, ...]:
        grid = EntryGrid(
            levels=self.levels,
            how=lambda raw: straight_through(self.on_update(raw, None), raw),
            density=self._cells,
            beside=True,
            width=lambda sent: map_tensors(lambda t: largest(t) / (2 * self.levels), sent),
        )
        return (grid,)

    def _cells(self, raw: Tensors, sent: Tensors, noise: Tensors) -> Tensor:
        """Log-likelihood of the cell that each sent value stands for, cut at ±max|g|.

        The probability of a cell is 1 or 0; stated is that with logistic noise of scale τ = `SOFTNESS`·Δ, Δ = max|g|/s,
        before rounding: σ((g−low)/τ) − σ((g−high)/τ), which is σ((g−low)/τ)·σ((high−g)/τ) up to a constant. Beside
        noise τ is at least what gives the logistic its deviation, and nothing is cut."""
        terms = []
        for name, value in sent.items():
            g, value = raw[name], value.to(raw[name])
            most = largest(value)
            step = (most / self.levels).clamp_min(torch.finfo(g.dtype).tiny ** 0.5)
            low, high, tau = value - step / 2, value + step / 2, SOFTNESS * step
            if name in noise:
                tau = torch.maximum(tau, LOGISTIC * noise[name].to(g))
            else:
                low, high = low.clamp_min(-most), high.clamp_max(most)
            terms.append((F.logsigmoid((g - low) / tau) + F.logsigmoid((high - g) / tau)).sum())
        return torch.stack(terms).sum()


@DEFENSES.register("qsgd")
@dataclass(frozen=True, kw_only=True)
class QSGD(Defense):
    """Rounds ``|g|·s/norm`` at random to a whole number beside it; the mean is ``|g|·s/norm``.

    Source: Alistarh et al., *QSGD*, NeurIPS 2017, Eq. 4, with a norm of choice; one norm a tensor (their buckets of d
    entries are not simulated). A zero or empty tensor stays; a tensor with a not-a-number becomes all not-a-number.

    Guarantee: unbiased, E[sent] = g; the variance of an entry is at most (norm/2s)². No privacy guarantee.

    Attributes:
        levels: s; 2s+1 values a tensor.
        norm: p of (Σ|g|^p)^(1/p), 2 in the paper; `None` for the largest entry, which is then sent as it is, as in
            TernGrad and the ROG release.
    """

    levels: int = field(default=3, metadata=LEVELS)
    norm: float | None = limited(None, lambda p: p >= 1, "give p ≥ 1, or leave it out for the largest entry")

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        def rounded(t: Tensor) -> Tensor:
            # Drawn in one precision, so that whoever knows the draw repeats it in any other.
            u = torch.rand(t.shape, generator=generator, dtype=torch.float64).to(t)
            return _rounded(t, self.length(t), self.levels, lambda x: x.floor() + (u < x - x.floor()))

        return map_tensors(rounded, tensors)

    def steps(self) -> tuple[DefenseStep, ...]:
        grid = EntryGrid(
            levels=self.levels,
            drawn=lambda raw, draw: straight_through(self.on_update(raw, draw), raw),
            density=lambda raw, sent, _noise: stochastic_log_likelihood(raw, sent, map_tensors(self.step, sent)),
            width=lambda sent: map_tensors(self.step, sent),
        )
        return (grid,)

    def length(self, t: Tensor) -> Tensor:
        """The norm that entries are measured in, no smaller than the largest of them."""
        return largest(t) if self.norm is None else cast(Tensor, torch.linalg.vector_norm(t, self.norm))

    def step(self, sent: Tensor) -> Tensor:
        """The distance of two values of the grid, read off the tensor as sent; infinite where that does not say.

        QSGD sends the norm beside the codes. Here the attacker takes the smallest value that was sent for as many steps
        as the length of what was sent has it: of many levels that length is the norm, of few the smallest value is one
        step. A tensor that was rounded to zeros says nothing."""
        if self.norm is None:
            return largest(sent) / self.levels
        if not bool((sent != 0).any()):
            return sent.new_tensor(torch.inf)
        least = sent[sent != 0].abs().min()
        return least / (least / self.length(sent) * self.levels).round().clamp_min(1)


def stochastic_log_likelihood(raw: Tensors, sent: Tensors, step: Tensors) -> Tensor:
    """Σ log(1 − |g − ĝ|/Δ): the log-likelihood of g where ĝ came of it by stochastic rounding to multiples of Δ.

    Below a probability of `OUTSIDE` it continues as its tangent, so that it is finite, concave and continuously
    differentiable at any g but ĝ."""
    terms = []
    for name, t in sent.items():
        g = raw[name]
        width = step[name].to(g).clamp_min(torch.finfo(g.dtype).tiny ** 0.5)
        p = 1 - (g - t.to(g)).abs() / width
        inside = p.clamp_min(OUTSIDE).log()
        terms.append((inside + (p - OUTSIDE).clamp_max(0) / OUTSIDE).sum())
    return torch.stack(terms).sum()


@DEFENSES.register("sign")
@dataclass(frozen=True, kw_only=True)
class Sign(Defense):
    """Sends sign(g), or `scaled`: times the mean magnitude of each tensor. Else nothing of the length is sent.

    Sources: Bernstein et al., *signSGD*, ICML 2018, and Eq. 5 of ROG: sign(0) = 0. About half of the entries of a ReLU
    network's gradient are exactly zero. Scaled: Karimireddy et al., *Error feedback fixes signSGD*, ICML 2019, without
    its error feedback, which needs a memory between rounds. A not-a-number stays one (with a scale, the whole tensor
    becomes it); an empty tensor stays.

    No guarantee: a sign is a bit an entry, and there are far more entries than pixels."""

    scaled: bool = False

    def on_update(self, tensors: Tensors, generator: torch.Generator | None) -> Tensors:
        def signs(t: Tensor) -> Tensor:
            scale = t.abs().mean() if self.scaled and t.numel() else 1.0
            return torch.where(t.isnan(), t, t.sign() * scale)  # torch.sign(NaN) is 0

        return map_tensors(signs, tensors)

    def steps(self) -> tuple[DefenseStep, ...]:
        def density(raw: Tensors, sent: Tensors, _noise: Tensors) -> Tensor:
            # By the simulated root mean square: the length of the update, which was not sent, does not matter.
            misfits = [sign_misfit(g, sent[name].to(g).sign(), g.square().mean()) for name, g in raw.items()]
            return -torch.stack(misfits).sum()

        rounded = partial(self.on_update, generator=None)
        grid = EntryGrid(how=lambda raw: straight_through(rounded(raw), raw), density=density, numbers=int(self.scaled))
        return (grid,)


def sign_misfit(g: Tensor, sign: Tensor, mean_square: Tensor) -> Tensor:
    """−Σ log σ(sign·g/τ), τ = `SOFTNESS` · √`mean_square`; a sign of zero counts as either sign, half each."""
    z = g / (SOFTNESS * mean_square.clamp_min(torch.finfo(g.dtype).tiny).sqrt())
    either = (F.softplus(z) + F.softplus(-z)) / 2
    return torch.where(sign == 0, either, F.softplus(-sign * z)).sum()


@dataclass(frozen=True)
class _Coded:
    """How one tensor is coded: so many values of so many bits each, the place of each, and what is sent once."""

    sent: int
    value_bits: int | float  # log2 3 of a sign that may be zero
    place_bits: int = 0
    extra_bits: int = 0

    @property
    def bits(self) -> int:
        return math.ceil(self.sent * self.value_bits) + self.sent * self.place_bits + self.extra_bits


def wire_bytes(defense: Defense, tensors: Tensors) -> int:
    """Bytes of `tensors` as sent after `defense`, in the plainest code that the defence allows; their zeros count for
    `prune` and `sign`.

    Per tensor of n entries, rounded up to whole bytes:

    - no defence, noise, or one that changes values alone (clip, Soteria): n · element size;
    - top-k and random-k: k values and k places of ⌈log2 n⌉ bits each; pruning: the same with the entries that are not
      zero, wherever they are;
    - quantisers: ⌈log2(2s+1)⌉ bits a value and one number, the norm;
    - sign: one bit a value; where there are zeros, log2 3 bits; scaled: one number more;
    - `Compose`: in the stated order, so that a sparsifier says how many values are sent, a quantiser how long each is.

    Places of a sparse tensor are not listed where a bit a place for the whole tensor is shorter, nor is a sparse code
    used that is longer than the dense one. No entropy coding, no header, no names.
    """
    steps, total = [step for step in steps_of(defense) if step.stage is DefenseStage.UPDATE], 0
    for t in tensors.values():
        width = 8 * t.element_size()
        coded, nonzero = _Coded(t.numel(), width), int((t != 0).sum())
        for step in steps:
            coded = _after(step, coded, t.numel(), nonzero, width)
        total += math.ceil(coded.bits / 8)
    return total


def _after(step: DefenseStep, before: _Coded, entries: int, nonzero: int, width: int) -> _Coded:
    """How a tensor of so many entries, numbers of `width` bits, is coded after a step of the update."""
    if isinstance(step, Noise):  # fills the zeros and leaves the grid: all values, as numbers
        return _Coded(entries, width)
    if isinstance(step, EntryMask) and not step.looks:
        sent = min(nonzero if step.keep is None else kept_entries(step.keep, entries), before.sent)
        listed = replace(before, sent=sent, place_bits=_bits(entries))
        mapped = replace(before, sent=sent, place_bits=0, extra_bits=before.extra_bits + entries)
        return min(listed, mapped, before, key=lambda coded: coded.bits)
    if isinstance(step, EntryGrid):
        signs = math.log2(3) if nonzero < before.sent else 1.0
        bits = signs if step.levels is None else _bits(2 * step.levels + 1)
        beside = step.numbers * width if entries else 0
        return replace(before, value_bits=bits, extra_bits=before.extra_bits + beside)
    return before


def _bits(values: int) -> int:
    """⌈log2 values⌉: bits that tell so many values apart."""
    return (values - 1).bit_length() if values > 0 else 0
