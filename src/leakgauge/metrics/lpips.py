"""Learned perceptual distance (LPIPS), without torchvision."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from leakgauge.errors import InputError, require
from leakgauge.metrics.metric import LESS, prepare
from leakgauge.registry import METRICS
from leakgauge.task import DataSpec

SMALLEST = 64
"""Shorter side in pixels below which images are enlarged: AlexNet has no features left under 35."""

SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
"""ImageNet statistics for inputs in [−1, 1]."""

CHUNK = 16
"""Images in one pass through the network."""


@dataclass(frozen=True)
class _Backbone:
    """Convolutions of a feature extractor by their index, and what stands between them.

    Attributes:
        convolutions: index → stride and padding.
        pooled: those that a max pooling of this `window` (side, stride) stands before.
        stages: those that end in a feature map which LPIPS compares.
    """

    convolutions: dict[int, tuple[int, int]]
    pooled: frozenset[int]
    window: tuple[int, int]
    stages: frozenset[int]


ALEX = _Backbone(
    {0: (4, 2), 3: (1, 2)} | dict.fromkeys((6, 8, 10), (1, 1)), frozenset({3, 6}), (3, 2), frozenset({0, 3, 6, 8, 10})
)
VGG = _Backbone(
    dict.fromkeys((0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28), (1, 1)),
    frozenset({5, 10, 17, 24}),
    (2, 2),
    frozenset({2, 7, 14, 21, 28}),
)


@METRICS.register("lpips", needs="a weights file, or leakgauge[lpips]")
@dataclass(frozen=True, kw_only=True)
class LPIPS:
    """LPIPS v0.1 per image, with an AlexNet or a VGG-16 backbone, as the weights say. Range [0, ∞), usually below 1.

    Source: Zhang et al., CVPR 2018: features of five stages, normalised over channels, squared differences weighted
    by the linear heads, averaged over space, summed over stages. Weights are a safetensors file with torchvision's
    names (``features.N.weight``) and the heads (``linK.model.1.weight``); half precision is converted. ``torchmetrics``
    in their place takes torchmetrics' LPIPS, whose ε stands under the root, with torchvision's AlexNet, which may be
    downloaded.

    Differs: images whose shorter side is under 64 px are enlarged to 64 (bilinear), so 32 px scores compare among
    themselves only; one channel is repeated to three; inputs are clamped.

    Attributes:
        weights: path of the file, or ``torchmetrics``.
    """

    weights: str
    data_range: float = 1.0
    low: float = 0.0

    name: ClassVar[str] = "lpips"
    higher_means: ClassVar[str] = LESS
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))
    needs_truth: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.data_range > 0, "data_range", f"is {self.data_range}", "give the width of the data's range")
        _ = self._distance  # what is missing shows here, not in the middle of an audit

    def defined_for(self, spec: DataSpec) -> bool:
        """For pictures of one or three channels."""
        return spec.is_image

    def __call__(self, x_hat: Float[Tensor, "n c h w"], x: Float[Tensor, "n c h w"]) -> Float[Tensor, " n"]:
        a, b = prepare(x_hat, x, data_range=self.data_range, low=self.low)
        if a.ndim != 4 or a.shape[1] not in (1, 3):
            raise InputError("lpips", f"is not defined for examples of shape {tuple(a.shape[1:])}", "give pictures")
        pairs = zip(self._ready(a).split(CHUNK), self._ready(b).split(CHUNK), strict=True)
        with torch.no_grad():
            return torch.cat([self._distance(p, q).double().reshape(-1) for p, q in pairs])

    def _ready(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n 3 height width"]:
        x = (2 * (x - self.low) / self.data_range - 1).float().expand(-1, 3, -1, -1)
        height, width = x.shape[-2:]
        if min(height, width) >= SMALLEST or not len(x):
            return x
        grow = SMALLEST / min(height, width)
        return F.interpolate(x, (round(height * grow), round(width * grow)), mode="bilinear", align_corners=False)

    @cached_property
    def _distance(self) -> Callable[[Tensor, Tensor], Tensor]:
        """LPIPS of colour images in [−1, 1], at least `SMALLEST` pixels a side."""
        if self.weights == "torchmetrics":
            return _torchmetrics()
        state = _read(self.weights)
        net = VGG if state["features.0.weight"].shape[-1] == 3 else ALEX
        heads = [state[f"lin{k}.model.1.weight"] for k in range(5)]

        def distance(a: Float[Tensor, "n 3 h w"], b: Float[Tensor, "n 3 h w"]) -> Float[Tensor, " n"]:
            stages = zip(heads, _features(a, net, state), _features(b, net, state), strict=True)
            parts = [F.conv2d((_unit(p) - _unit(q)).square(), head).mean((1, 2, 3)) for head, p, q in stages]
            return torch.stack(parts).sum(0)

        return distance


def _read(file: str) -> dict[str, Tensor]:
    """Raises `InputError` where the file is not LPIPS v0.1 of either backbone."""
    require(Path(file).is_file(), "lpips.weights", f"no file '{file}'", "give the path of LPIPS weights")
    try:
        state = {name: tensor.float() for name, tensor in load_file(file).items()}
    except (SafetensorError, OSError) as error:
        raise InputError("lpips.weights", f"cannot read '{file}' ({error})", "give a safetensors file") from error
    first = state.get("features.0.weight")
    net = VGG if first is not None and first.shape[-1] == 3 else ALEX
    needed = {f"features.{index}.{part}" for index in net.convolutions for part in ("weight", "bias")}
    missing = sorted((needed | {f"lin{k}.model.1.weight" for k in range(5)}) - set(state))
    require(not missing, "lpips.weights", f"'{file}' lacks {missing[:3]}", "give LPIPS v0.1 of AlexNet or VGG-16")
    return state


def _features(x: Float[Tensor, "n 3 h w"], net: _Backbone, state: Mapping[str, Tensor]) -> list[Tensor]:
    x = (x - x.new_tensor(SHIFT).view(3, 1, 1)) / x.new_tensor(SCALE).view(3, 1, 1)
    maps = []
    for index, (stride, padding) in net.convolutions.items():
        x = F.max_pool2d(x, *net.window) if index in net.pooled else x
        weight, bias = (state[f"features.{index}.{part}"] for part in ("weight", "bias"))
        x = F.conv2d(x, weight, bias, stride, padding).relu()
        if index in net.stages:
            maps.append(x)
    return maps


def _unit(features: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    """Scaled to length one over the channels; zero where all are off."""
    return features / (features.square().sum(1, keepdim=True).sqrt() + 1e-10)


def _torchmetrics() -> Callable[[Tensor, Tensor], Tensor]:
    try:
        importlib.import_module("torchvision")
        from torchmetrics.functional.image.lpips import _LPIPS

        network: Any = _LPIPS(pretrained=True, net="alex")
    except (ImportError, RuntimeError, OSError) as error:
        # Beside a CPU build of torch, torchvision raises RuntimeError; OSError is a download that failed.
        problem = f"torchmetrics and torchvision do not work here ({error})"
        raise InputError("lpips", problem, "pip install 'leakgauge[lpips]', or give lpips.weights") from error
    return lambda a, b: torch.as_tensor(network(a, b))
