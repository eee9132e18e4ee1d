"""Gaussian and Laplace noise on an update."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakgauge.defenses.defense import Defense
from leakgauge.defenses.steps import DefenseStep, Noise, NoiseScale
from leakgauge.errors import Checked, limit, require
from leakgauge.registry import DEFENSES
from leakgauge.tensors import Tensors, entries, map_tensors, squared_norm


def _fixed(scale: NoiseScale) -> float | None:
    """σ, where it does not follow the data."""
    return scale.sigma if type(scale) is Absolute else None


def normal_like(t: Tensor, generator: torch.Generator) -> Tensor:
    """N(0, 1) in the shape of `t`, drawn in one precision, so that whoever knows the draw repeats it in any other."""
    return torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)


def laplace_like(t: Tensor, generator: torch.Generator) -> Tensor:
    """Laplace draws of unit variance as `normal_like`, by the inverse distribution function."""
    u = torch.rand(t.shape, generator=generator, dtype=torch.float64) - 0.5
    return (-u.sign() * (1 - 2 * u.abs()).clamp_min(2.0**-53).log() / 2**0.5).to(t)


POSITIVE = limit(lambda value: 0 < value < math.inf, "give a positive number, or leave the noise out")


@dataclass(frozen=True)
class Absolute(Checked):
    """σ per coordinate, whatever the update."""

    sigma: float = field(metadata=POSITIVE)

    def of(self, raw: Tensors) -> Tensors:
        return map_tensors(lambda t: t.new_tensor(self.sigma), raw)

    def seen(self, sent: Tensors) -> Tensors:
        return self.of(sent)


@dataclass(frozen=True)
class RelativeToNorm(Checked):
    """E‖noise‖² = relative²·‖update‖²: one σ = relative·‖g‖/√entries for all tensors."""

    relative: float = field(metadata=POSITIVE)

    def of(self, raw: Tensors) -> Tensors:
        sigma = self.relative * (squared_norm(raw) / max(entries(raw), 1)).sqrt()
        return map_tensors(lambda t: sigma.to(t), raw)

    def seen(self, sent: Tensors) -> Tensors:
        return map_tensors(lambda s: s * (1 + self.relative**2) ** -0.5, self.of(sent))


@dataclass(frozen=True)
class RelativeToTensorStd:
    """σ of each tensor = `ratio` × that tensor's standard deviation (MKOR's "normalised std").

    A tensor of one element has no spread and gets no noise. Not comparable over architectures.
    """

    ratio: float

    def __post_init__(self) -> None:
        holds, hint = POSITIVE["limit"]
        require(holds(self.ratio), "tensor_std", f"is {self.ratio}", hint)

    def of(self, raw: Tensors) -> Tensors:
        return map_tensors(lambda t: self.ratio * t.std(correction=0) if t.numel() > 1 else t.new_zeros(()), raw)

    def seen(self, sent: Tensors) -> Tensors:
        return map_tensors(lambda s: s * (1 + self.ratio**2) ** -0.5, self.of(sent))


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Defense):
    """Adds N(0, σ²) to every entry of the update, with σ from `scale`.

    Guarantee: the noise is independent of the data given σ. No differential privacy by itself: the
    update's sensitivity is unbounded without clipping, and a relative σ depends on the data.
    """

    scale: NoiseScale

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        return map_tensors(lambda t, s: t + s * normal_like(t, generator), tensors, self.scale.of(tensors))

    def steps(self) -> tuple[DefenseStep, ...]:
        return (Noise(sigma=_fixed(self.scale), scale=self.scale, drawn=self.on_update),)


@DEFENSES.register("noise")
def noise(
    *, sigma: float | None = None, relative: float | None = None, tensor_std: float | None = None
) -> GaussianNoise:
    """Gaussian noise on the update: one of sigma, relative (to its norm), tensor_std (to each tensor's spread)."""
    ways: dict[str, tuple[Callable[[float], NoiseScale], float | None]] = {
        "sigma": (Absolute, sigma),
        "relative": (RelativeToNorm, relative),
        "tensor_std": (RelativeToTensorStd, tensor_std),
    }
    given = {name: (scale, level) for name, (scale, level) in ways.items() if level is not None}
    problem = "stand together" if given else "is missing, and so are relative and tensor_std"
    hint = "give exactly one of sigma, relative, tensor_std"
    require(len(given) == 1, " and ".join(given) or "sigma", problem, hint)
    ((scale, level),) = given.values()
    return GaussianNoise(scale=scale(level))


@dataclass(frozen=True, kw_only=True)
class LaplaceNoise(Defense):
    """Adds Laplace noise of standard deviation σ to every entry: density exp(−|x|/b)/2b with b = σ/√2.

    σ comes from `scale`, as for `GaussianNoise`: per coordinate, so that both disturb an update alike.

    Guarantee: the noise is independent of the data given σ. No differential privacy by itself: ε = (L1 sensitivity)/b,
    and without clipping the sensitivity is unbounded; a relative σ depends on the data. Clipped in the Euclidean norm
    C, an update of N entries has an L1 norm of up to C·√N.
    """

    scale: NoiseScale

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        return map_tensors(lambda t, s: t + s * laplace_like(t, generator), tensors, self.scale.of(tensors))

    def steps(self) -> tuple[DefenseStep, ...]:
        return (Noise(sigma=_fixed(self.scale), scale=self.scale, drawn=self.on_update, gaussian=False),)


@DEFENSES.register("laplace")
def laplace(
    *, sigma: float | None = None, relative: float | None = None, tensor_std: float | None = None
) -> LaplaceNoise:
    """Laplace noise: one of sigma, relative (to the update's norm), tensor_std (to each tensor's spread), all stds."""
    return LaplaceNoise(scale=noise(sigma=sigma, relative=relative, tensor_std=tensor_std).scale)
