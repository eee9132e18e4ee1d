"""Learned perceptual distance (LPIPS), without torchvision."""

from __future__ import annotations

import importlib
from collections.abc import Callable
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
class _Conv:
    """A convolution and the pooling before it; `stage` ends in a feature map that LPIPS compares."""

    index: int
    stride: int = 1
    padding: int = 1
    pool: tuple[int, int] | None = None
    stage: bool = False


ALEX = (
    _Conv(0, stride=4, padding=2, stage=True),
    _Conv(3, padding=2, pool=(3, 2), stage=True),
    _Conv(6, pool=(3, 2), stage=True),
    _Conv(8, stage=True),
    _Conv(10, stage=True),
)
VGG = tuple(
    _Conv(i, pool=(2, 2) if i in (5, 10, 17, 24) else None, stage=i in (2, 7, 14, 21, 28))
    for i in (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)
)


@dataclass(frozen=True, kw_only=True)
class _Perceptual:
    data_range: float = 1.0
    low: float = 0.0

    name: ClassVar[str] = "lpips"
    higher_means: ClassVar[str] = LESS
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))
    needs_truth: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.data_range > 0, "data_range", f"is {self.data_range}", "give the width of the data's range")

    def defined_for(self, spec: DataSpec) -> bool:
        """For pictures of one or three channels."""
        return spec.is_image

    @property
    def distance(self) -> Callable[[Tensor, Tensor], Tensor]:
        """LPIPS of colour images in [−1, 1], at least `SMALLEST` pixels a side."""
        raise NotImplementedError

    def __call__(self, x_hat: Float[Tensor, "n c h w"], x: Float[Tensor, "n c h w"]) -> Float[Tensor, " n"]:
        a, b = prepare(x_hat, x, data_range=self.data_range, low=self.low)
        if a.ndim != 4 or a.shape[1] not in (1, 3):
            raise InputError("lpips", f"is not defined for examples of shape {tuple(a.shape[1:])}", "give pictures")
        pairs = zip(self._ready(a).split(CHUNK), self._ready(b).split(CHUNK), strict=True)
        with torch.no_grad():
            return torch.cat([self.distance(p, q).double().reshape(-1) for p, q in pairs])

    def _ready(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n 3 height width"]:
        x = (2 * (x - self.low) / self.data_range - 1).float().expand(-1, 3, -1, -1)
        height, width = x.shape[-2:]
        if min(height, width) >= SMALLEST or not len(x):
            return x
        grow = SMALLEST / min(height, width)
        return F.interpolate(x, (round(height * grow), round(width * grow)), mode="bilinear", align_corners=False)


@METRICS.register("lpips", needs="a weights file")
@dataclass(frozen=True, kw_only=True)
class LPIPS(_Perceptual):
    """LPIPS v0.1 per image, with an AlexNet or a VGG-16 backbone, as the weights say. Range [0, ∞), usually below 1.

    Source: Zhang et al., CVPR 2018: features of five stages, normalised over channels, squared differences weighted
    by the linear heads, averaged over space, summed over stages. Weights are a safetensors file with torchvision's
    names (``features.N.weight``) and the heads (``linK.model.1.weight``); half precision is converted.

    Differs: images whose shorter side is under 64 px are enlarged to 64 (bilinear), so 32 px scores compare among
    themselves only; one channel is repeated to three; inputs are clamped.

    Attributes:
        weights: path of the file.
    """

    weights: str

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            Path(self.weights).is_file(), "lpips.weights", f"no file '{self.weights}'", "give the path of LPIPS weights"
        )
        require(
            bool(self._state), "lpips.weights", f"'{self.weights}' is empty", "give LPIPS v0.1 of AlexNet or VGG-16"
        )

    @staticmethod
    def through_torchmetrics(*, data_range: float = 1.0, low: float = 0.0) -> TorchmetricsLPIPS:
        """The same score by torchmetrics, which takes its AlexNet from torchvision.

        Raises:
            InputError: torchmetrics or a working torchvision is missing.
        """
        return TorchmetricsLPIPS(data_range=data_range, low=low)

    @cached_property
    def _state(self) -> dict[str, Tensor]:
        try:
            loaded = load_file(self.weights)
        except (SafetensorError, OSError) as error:
            raise InputError(
                "lpips.weights", f"cannot read '{self.weights}' ({error})", "give a safetensors file"
            ) from error
        state = {name: tensor.float() for name, tensor in loaded.items()}
        first = state.get("features.0.weight")
        layers = VGG if first is not None and first.shape[-1] == 3 else ALEX
        needed = {f"features.{layer.index}.{part}" for layer in layers for part in ("weight", "bias")}
        missing = sorted((needed | {f"lin{k}.model.1.weight" for k in range(5)}) - set(state))
        require(
            not missing,
            "lpips.weights",
            f"'{self.weights}' lacks {missing[:3]}",
            "give LPIPS v0.1 of AlexNet or VGG-16",
        )
        return state

    @property
    def distance(self) -> Callable[[Tensor, Tensor], Tensor]:
        return self._distance

    def _distance(self, a: Float[Tensor, "n 3 h w"], b: Float[Tensor, "n 3 h w"]) -> Float[Tensor, " n"]:
        total = a.new_zeros(len(a))
        for k, (p, q) in enumerate(zip(self._features(a), self._features(b), strict=True)):
            head = self._state[f"lin{k}.model.1.weight"]
            total = total + F.conv2d((_unit(p) - _unit(q)).square(), head).mean((1, 2, 3))
        return total

    def _features(self, x: Float[Tensor, "n 3 h w"]) -> list[Tensor]:
        x = (x - x.new_tensor(SHIFT).view(3, 1, 1)) / x.new_tensor(SCALE).view(3, 1, 1)
        maps = []
        for layer in VGG if self._state["features.0.weight"].shape[-1] == 3 else ALEX:
            x = x if layer.pool is None else F.max_pool2d(x, *layer.pool)
            weight, bias = (self._state[f"features.{layer.index}.{part}"] for part in ("weight", "bias"))
            x = F.conv2d(x, weight, bias, layer.stride, layer.padding).relu()
            if layer.stage:
                maps.append(x)
        return maps


def _unit(features: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    """Scaled to length one over the channels; zero where all are off."""
    return features / (features.square().sum(1, keepdim=True).sqrt() + 1e-10)


@dataclass(frozen=True, kw_only=True)
class TorchmetricsLPIPS(_Perceptual):
    """LPIPS v0.1 (AlexNet) by torchmetrics; see `LPIPS.through_torchmetrics`.

    Differs: its ε stands under the root. torchvision may download the backbone.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.distance is not None, "lpips", "has no network", "pip install 'leakgauge[lpips]'")

    @cached_property
    def distance(self) -> Callable[[Tensor, Tensor], Tensor]:
        try:
            importlib.import_module("torchvision")
            from torchmetrics.functional.image.lpips import _LPIPS

            network: Any = _LPIPS(pretrained=True, net="alex")
        except (ImportError, RuntimeError, OSError) as error:
            # Beside a CPU build of torch, torchvision raises RuntimeError; OSError is a download that failed.
            problem = f"torchmetrics and torchvision do not work here ({error})"
            raise InputError("lpips", problem, "pip install 'leakgauge[lpips]', or give lpips.weights") from error
        return lambda a, b: torch.as_tensor(network(a, b))
