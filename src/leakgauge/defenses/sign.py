"""Signs in place of values."""

from __future__ import annotations

from dataclasses import dataclass

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


@DEFENSES.register("sign")
@dataclass(frozen=True, kw_only=True)
class Sign(Defense):
    """Sends sign(g), or `scaled`: times the mean magnitude of each tensor.

    Sources: Bernstein et al., *signSGD*, ICML 2018, and Eq. 5 of ROG: sign(0) = 0. Where `zero_is_positive`, zeros
    are sent as +1, as a compressor that the ROG release holds, and does not use, has it. About half of the entries of
    a ReLU network's gradient are exactly zero. Scaled: Karimireddy et al., *Error feedback fixes signSGD*, ICML 2019,
    without its error feedback, which needs a memory between rounds. A not-a-number stays one (with a scale, the whole
    tensor becomes it); an empty tensor stays.

    No guarantee: a sign is a bit an entry, and there are far more entries than pixels.

    Attributes:
        scaled: times the mean magnitude of each tensor; else nothing of the length is sent.
        zero_is_positive: whether zeros are sent as +1.
    """

    scaled: bool = False
    zero_is_positive: bool = False

    def _sent(self, t: Tensor) -> Tensor:
        signs = torch.where(t == 0, torch.ones_like(t), t.sign()) if self.zero_is_positive else t.sign()
        scale = t.abs().mean() if self.scaled and t.numel() else 1.0
        return torch.where(t.isnan(), t, signs * scale)  # torch.sign(NaN) is 0

    def on_update(self, tensors: Tensors, generator: torch.Generator | None) -> Tensors:
        return map_tensors(self._sent, tensors)

    def steps(self) -> tuple[DefenseStep, ...]:
        return (
            EntryGrid(
                how=lambda raw: map_tensors(lambda t: straight_through(self._sent, t), raw),
                density=_likelihood,
                numbers=int(self.scaled),
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
