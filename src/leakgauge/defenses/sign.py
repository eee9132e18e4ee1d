"""Signs in place of values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.defenses.defense import Defense
from leakgauge.defenses.quantise import straight_through
from leakgauge.defenses.steps import DefenseStep, EntryGrid
from leakgauge.registry import DEFENSES
from leakgauge.tensors import Tensors, map_tensors

SOFTNESS = 0.1
"""Temperature of the logistic likelihood of a sign, in root mean squares of the simulated tensor."""


@runtime_checkable
class SignScale(Protocol):
    """What the signs of a tensor are multiplied by: tensor → scalar."""

    def __call__(self, t: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class UnitMagnitude:
    """1, as in signSGD. Nothing of the length is sent."""

    def __call__(self, t: Tensor) -> Tensor:
        return t.new_ones(())


@dataclass(frozen=True)
class MeanMagnitude:
    """mean|g| of the tensor, 0 of an empty one: the scaled sign of EF-signSGD."""

    def __call__(self, t: Tensor) -> Tensor:
        return t.abs().mean() if t.numel() else t.new_zeros(())


@dataclass(frozen=True, kw_only=True)
class Sign(Defense):
    """Sends sign(g), times a scale a tensor.

    Sources: Bernstein et al., *signSGD*, ICML 2018, and Eq. 5 of ROG: sign(0) = 0. Where `zero_is_positive`, zeros
    are sent as +1, as a compressor that the ROG release holds, and does not use, has it. About half of the entries of
    a ReLU network's gradient are exactly zero. Scaled: Karimireddy et al., *Error feedback fixes signSGD*, ICML 2019,
    without its error feedback, which needs a memory between rounds. A not-a-number stays one (with a scale, the whole
    tensor becomes it); an empty tensor stays.

    No guarantee: a sign is a bit an entry, and there are far more entries than pixels.
    """

    scale: SignScale = field(default_factory=UnitMagnitude)
    zero_is_positive: bool = False

    def _sent(self, t: Tensor) -> Tensor:
        signs = torch.where(t == 0, torch.ones_like(t), t.sign()) if self.zero_is_positive else t.sign()
        # torch.sign(NaN) is 0.
        return torch.where(t.isnan(), t, signs * self.scale(t))

    def on_update(self, tensors: Tensors, generator: torch.Generator | None) -> Tensors:
        return map_tensors(self._sent, tensors)

    def steps(self) -> tuple[DefenseStep, ...]:
        return (
            EntryGrid(
                how=lambda raw: map_tensors(lambda t: straight_through(self._sent, t), raw),
                density=_likelihood,
                numbers=0 if isinstance(self.scale, UnitMagnitude) else 1,
                zeros=not self.zero_is_positive,
            ),
        )


def _likelihood(raw: Tensors, sent: Tensors, _noise: Tensors) -> Tensor:
    """Σ log σ(sign·g/τ), with τ a tenth of the root mean square of the simulated tensor, so that the length of the
    update, which was not sent, does not matter. Entries sent as zero are zero: they count as if either sign had been
    seen, half each."""
    misfits = [sign_misfit(g, sent[name].to(g).sign(), g.square().mean()) for name, g in raw.items()]
    return -torch.stack(misfits).sum()


def sign_misfit(g: Tensor, sign: Tensor, mean_square: Tensor, softness: float = SOFTNESS) -> Tensor:
    """−Σ log σ(sign·g/τ), τ = `softness` · √`mean_square`; a sign of zero counts as either sign, half each."""
    z = g / (softness * mean_square.clamp_min(torch.finfo(g.dtype).tiny).sqrt())
    either = (F.softplus(z) + F.softplus(-z)) / 2
    return torch.where(sign == 0, either, F.softplus(-sign * z)).sum()


@DEFENSES.register("sign")
def sign(*, scaled: bool = False, zero_is_positive: bool = False) -> Sign:
    """The signs of the update, or scaled: times the mean magnitude of each tensor."""
    return Sign(scale=MeanMagnitude() if scaled else UnitMagnitude(), zero_is_positive=zero_is_positive)
