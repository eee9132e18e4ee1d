"""The cosine on the entries that were sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.matching.objectives import Cosine
from leakgauge.defenses.defense import AttackerView
from leakgauge.registry import OBJECTIVES
from leakgauge.tensors import Tensors, map_tensors


@OBJECTIVES.register("cosine-on-support")
@dataclass(frozen=True)
class CosineOnSupport:
    """`Cosine` with the simulated update set to zero wherever the observed one is exactly zero.

    Source: GIAS's code for compressed gradients. It needs no knowledge of the mechanism. Where the client sent
    everything, exact zeros are dead units; masking them forgets that they are dead.
    """

    scale_free: ClassVar[bool] = True

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]:
        sent = map_tensors(lambda s, o: s * (o != 0), simulated, observed)
        return Cosine()(sent, observed, view)
