"""Features of MKOR's crafted convolutions without the network, by pooling alone; and features of another scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.servers.convolutions import CHUNK, ConvolutionStep, PooledMap


@dataclass(frozen=True, eq=False, kw_only=True)
class ScaledMap(PooledMap):
    """Features that are `scale` times those of a `PooledMap`."""

    scale: float = 1.0

    def bounds(
        self, features: Float[Tensor, "n f"]
    ) -> tuple[Float[Tensor, "n c h w"], Float[Tensor, "n c h w"], Bool[Tensor, "n c h w"]]:
        return super().bounds(features / self.scale)


def features(found: Any, inputs: Float[Tensor, "n c h w"]) -> Float[Tensor, "n f"]:
    """What crafted layers compute of raw images: by pooling alone, or as the map itself says.

    Bit by bit that of the network when taps are one and data not normalised.
    """
    if not isinstance(found, PooledMap):
        computed: Tensor = found.features(inputs)
        return computed
    return torch.cat([_pooled(found, part) for part in inputs.split(CHUNK)])


def _pooled(found: PooledMap, inputs: Float[Tensor, "n c h w"]) -> Float[Tensor, "n f"]:
    u = (inputs - found.data.low) / found.data.range
    x = (torch.cat([u, 1 - u], 1) if found.minima else u).clamp(min=0)
    for step in found.steps:
        x = F.max_pool2d(_shifted(step, x), step.stage.pool)
    x = x.flatten(1)
    return x * found.scale if isinstance(found, ScaledMap) else x


def _shifted(step: ConvolutionStep, x: Float[Tensor, "n i h w"]) -> Float[Tensor, "n o h w"]:
    """What the convolution writes: `x`, or `x` and its neighbours right, below and both, edges replicated.

    With zero padding the network has zeros there instead; the pool pairs them with a real value, so that what
    leaves it is the same.
    """
    if not step.directions:
        return x
    right = torch.cat([x[..., 1:], x[..., -1:]], 3)
    both = torch.cat([x, right], 1)
    return torch.cat([both, torch.cat([both[:, :, 1:], both[:, :, -1:]], 2)], 1)
