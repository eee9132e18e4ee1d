"""Distances between the simulated and the observed update: the data term of a matching attack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.defenses.defense import AttackerView
from leakgauge.registry import OBJECTIVES
from leakgauge.tensors import Tensors, inner, squared_norm


@runtime_checkable
class Objective(Protocol):
    """``(simulated, observed, view) → scalar``, differentiable in the first, usable under vmap.

    Attributes:
        scale_free: whether the update's length is ignored. One that is not needs to know how the
            client trained.
    """

    @property
    def scale_free(self) -> bool: ...

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]: ...


@OBJECTIVES.register("l2")
@dataclass(frozen=True)
class SquaredL2:
    """‖g − g*‖², summed over all tensors.

    Source: Zhu et al., Deep Leakage from Gradients, NeurIPS 2019, Eq. 4.
    """

    scale_free: ClassVar[bool] = False

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]:
        return squared_norm({k: simulated[k] - observed[k] for k in observed})


@OBJECTIVES.register("cosine")
@dataclass(frozen=True)
class Cosine:
    """1 − ⟨g, g*⟩ / (‖g‖·‖g*‖), one global cosine over the concatenation of all tensors, in [0, 2].

    Source: Geiping et al., Inverting Gradients, NeurIPS 2020, Eq. 4. A zero update has cosine 0 here
    rather than a division by zero.
    """

    scale_free: ClassVar[bool] = True

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]:
        tiny = torch.finfo(next(iter(observed.values())).dtype).tiny
        norms = squared_norm(simulated).clamp_min(tiny).sqrt() * squared_norm(observed).clamp_min(tiny).sqrt()
        return 1 - inner(simulated, observed) / norms
