"""The cosine of every tensor by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.matching.parts import Objective
from leakgauge.defenses.defense import AttackerView
from leakgauge.registry import OBJECTIVES
from leakgauge.tensors import Tensors


@OBJECTIVES.register("cosine-per-tensor")
@dataclass(frozen=True)
class CosinePerTensor(Objective):
    """Mean over the tensors of 1 − cos(g_k, g*_k), in [0, 2].

    Unlike `Cosine` it does not let one large tensor outvote the others, and it ignores the length of each. Of use
    where a layer drowns those that hold the image: PRECODE's bottleneck has 20 to 50 times the norm of a
    convolution of LeNet. A tensor that is zero on either side has cosine 0; a scalar one tells its sign alone.
    """

    scale_free: ClassVar[bool] = True

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]:
        used = [k for k, o in observed.items() if o.numel()]
        cosines = torch.stack([(_unit(simulated[k]) * _unit(observed[k])).sum() for k in used])
        return 1 - cosines.mean()


def _unit(t: Tensor) -> Tensor:
    norm: Tensor = t.square().sum().clamp_min(torch.finfo(t.dtype).tiny).sqrt()
    return t / norm
