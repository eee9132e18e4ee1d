"""Rounding: a few values a tensor, or signs alone, deterministic or at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.defenses.defense import Defense
from leakgauge.defenses.steps import DefenseStep, EntryGrid
from leakgauge.errors import limited
from leakgauge.registry import DEFENSES
from leakgauge.tensors import Tensors, map_tensors

SOFTNESS = 0.1
"""Scale of the logistic noise that softens the edges of a cell, in steps of the grid, and of a sign, in root mean
squares of the simulated tensor."""

LOGISTIC = 3**0.5 / torch.pi  # scale of a logistic of deviation 1
OUTSIDE = 0.05  # probability of a rounding below which its log-likelihood continues as a line


def _levels() -> Any:
    return limited(3, lambda levels: levels >= 1, "give a whole number ≥ 1, e.g. 3 for seven values")


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
    which interval of width max|g|/s the true one lies.
    """

    levels: int = _levels()

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
        noise τ is at least what gives the logistic its deviation, and nothing is cut.
        """
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

    levels: int = _levels()
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
        step. A tensor that was rounded to zeros says nothing.
        """
        if self.norm is None:
            return largest(sent) / self.levels
        if not bool((sent != 0).any()):
            return sent.new_tensor(torch.inf)
        least = sent[sent != 0].abs().min()
        return least / (least / self.length(sent) * self.levels).round().clamp_min(1)


def stochastic_log_likelihood(raw: Tensors, sent: Tensors, step: Tensors) -> Tensor:
    """Σ log(1 − |g − ĝ|/Δ): the log-likelihood of g where ĝ came of it by stochastic rounding to multiples of Δ.

    Below a probability of `OUTSIDE` it continues as its tangent, so that it is finite, concave and continuously
    differentiable at any g but ĝ.
    """
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
    """Sends sign(g), or `scaled`: times the mean magnitude of each tensor.

    Sources: Bernstein et al., *signSGD*, ICML 2018, and Eq. 5 of ROG: sign(0) = 0. About half of the entries of a ReLU
    network's gradient are exactly zero. Scaled: Karimireddy et al., *Error feedback fixes signSGD*, ICML 2019, without
    its error feedback, which needs a memory between rounds. A not-a-number stays one (with a scale, the whole tensor
    becomes it); an empty tensor stays.

    No guarantee: a sign is a bit an entry, and there are far more entries than pixels.

    Attributes:
        scaled: times the mean magnitude of each tensor; else nothing of the length is sent.
    """

    scaled: bool = False

    def on_update(self, tensors: Tensors, generator: torch.Generator | None) -> Tensors:
        def signs(t: Tensor) -> Tensor:
            scale = t.abs().mean() if self.scaled and t.numel() else 1.0
            return torch.where(t.isnan(), t, t.sign() * scale)  # torch.sign(NaN) is 0

        return map_tensors(signs, tensors)

    def steps(self) -> tuple[DefenseStep, ...]:
        def how(raw: Tensors) -> Tensors:
            return straight_through(self.on_update(raw, None), raw)

        return (EntryGrid(how=how, density=_likelihood, numbers=int(self.scaled)),)


def _likelihood(raw: Tensors, sent: Tensors, _noise: Tensors) -> Tensor:
    """By the root mean square of the simulated tensor, so that the length of the update, which was not sent, does not
    matter."""
    misfits = [sign_misfit(g, sent[name].to(g).sign(), g.square().mean()) for name, g in raw.items()]
    return -torch.stack(misfits).sum()


def sign_misfit(g: Tensor, sign: Tensor, mean_square: Tensor) -> Tensor:
    """−Σ log σ(sign·g/τ), τ = `SOFTNESS` · √`mean_square`; a sign of zero counts as either sign, half each."""
    z = g / (SOFTNESS * mean_square.clamp_min(torch.finfo(g.dtype).tiny).sqrt())
    either = (F.softplus(z) + F.softplus(-z)) / 2
    return torch.where(sign == 0, either, F.softplus(-sign * z)).sum()
