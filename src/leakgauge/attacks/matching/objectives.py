"""Distances between the simulated and the observed update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.matching.parts import Objective
from leakgauge.defenses import AttackerView
from leakgauge.registry import OBJECTIVES
from leakgauge.tensors import Tensors, inner, map_tensors, squared_norm


@OBJECTIVES.register("l2")
@dataclass(frozen=True)
class SquaredL2(Objective):
    """‖g − g*‖², summed over all tensors.

    Source: Zhu et al., Deep Leakage from Gradients, NeurIPS 2019, Eq. 4.
    """

    scale_free: ClassVar[bool] = False

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]:
        return squared_norm({k: simulated[k] - observed[k] for k in observed})


@OBJECTIVES.register("cosine")
@dataclass(frozen=True)
class Cosine(Objective):
    """1 − ⟨g, g*⟩ / (‖g‖·‖g*‖), one global cosine over the concatenation of all tensors, in [0, 2].

    Source: Geiping et al., Inverting Gradients, NeurIPS 2020, Eq. 4. A zero update has cosine 0 here
    rather than a division by zero.
    """

    scale_free: ClassVar[bool] = True

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]:
        tiny = torch.finfo(next(iter(observed.values())).dtype).tiny
        norms = squared_norm(simulated).clamp_min(tiny).sqrt() * squared_norm(observed).clamp_min(tiny).sqrt()
        return 1 - inner(simulated, observed) / norms


@OBJECTIVES.register("cosine-on-support")
@dataclass(frozen=True)
class CosineOnSupport(Objective):
    """`Cosine` on the support, with the simulated update zero where the observed one is.

    Source: GIAS's code for compressed gradients. It needs no knowledge of the mechanism. Where the client sent
    everything, exact zeros are dead units; masking them forgets that they are dead.
    """

    scale_free: ClassVar[bool] = True

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]:
        sent = map_tensors(lambda s, o: s * (o != 0), simulated, observed)
        return Cosine()(sent, observed, view)


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
        cosines = [(_unit(simulated[k]) * _unit(sent)).sum() for k, sent in observed.items() if sent.numel()]
        return 1 - torch.stack(cosines).mean()


def _unit(t: Tensor) -> Tensor:
    norm: Tensor = t.square().sum().clamp_min(torch.finfo(t.dtype).tiny).sqrt()
    return t / norm
