"""ROG's objective for signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.matching import Objective
from leakgauge.defenses import AttackerView
from leakgauge.errors import Checked, positive
from leakgauge.tensors import Tensors


@dataclass(frozen=True, kw_only=True)
class SignTanh(Checked, Objective):
    """tanh of the simulated update against the observed signs; `gain` by each tensor's size unless given.

    Σ_t ‖tanh(gain_t · g_t) − sign(g*_t)‖², over tensors t; g is the simulated update, g* the observed one.

    Source: ROG's objective for signSGD, ‖tanh(g) − sign(g*)‖². The paper has no gain: entries of a gradient are 1e-3
    and less, where tanh is linear, so that it only maximises ⟨g, sign(g*)⟩. Only signs of g* are read, so a
    compressor that sends a scaled sign is the same to it; entries that were sent as 0 pull towards 0.

    Not zero at the truth, where tanh has not saturated.

    Attributes:
        gain: the same for every tensor, in units of 1 / update: for a delta divide it by the local learning rate.
            Without, `times` / root mean square of the simulated tensor: the objective no longer knows the update's
            length. The gradient passes through the root mean square as well, so a tensor cannot gain by growing. A
            zero tensor has gain 0.
    """

    gain: float | None = positive(None)
    times: float = positive(3.0)

    scale_free: ClassVar[bool] = False

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]:
        pairs = [(simulated[name], target.sign()) for name, target in observed.items()]
        return torch.stack([(torch.tanh(self._gain(g) * g) - sign).square().sum() for g, sign in pairs]).sum()

    def _gain(self, simulated: Tensor) -> Float[Tensor, ""] | float:
        if self.gain is not None:
            return self.gain
        power = simulated.square().mean() if simulated.numel() else simulated.new_zeros(())
        dead = power <= torch.finfo(simulated.dtype).tiny
        return torch.where(dead, 0.0, self.times / torch.where(dead, 1.0, power).sqrt())
