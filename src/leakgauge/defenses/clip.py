"""Clipping of updates and of examples, and client-level differential privacy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.defenses.defense import Defense
from leakgauge.defenses.noise import Absolute, GaussianNoise
from leakgauge.defenses.steps import DefenseStep, PerExampleScale, Scale, clip_factor
from leakgauge.errors import require
from leakgauge.registry import DEFENSES
from leakgauge.tensors import Tensors, map_tensors


def require_bound(norm: float) -> None:
    """A clipping norm C that bounds something."""
    require(0 < norm < math.inf, "norm", f"is {norm}", "give a finite norm: noise without a bound is not private")


def require_multiplier(value: float, *, otherwise: str) -> None:
    """A noise multiplier z; `otherwise` names the defence without noise."""
    fits = 0 < value < math.inf
    require(fits, "noise_multiplier", f"is {value}", f"give a positive number, or use {otherwise}")


def squared_rows(per_example: Tensors) -> Tensor:
    """‖gᵢ‖² of stacked gradients ``(n, *shape)``, over all tensors together."""
    return torch.stack(
        [g.reshape(g.shape[0], math.prod(g.shape[1:])).square().sum(1) for g in per_example.values()]
    ).sum(0)


@DEFENSES.register("clip")
@dataclass(frozen=True, kw_only=True)
class Clip(Defense):
    """Scales the update down to a Euclidean norm of at most `norm`, over all tensors together.

    Guarantee: norm of the result ≤ `norm` (one rounding error); an update below it is untouched; a zero
    update stays zero, and one that is not finite becomes zero: noise would not hide it. No privacy guarantee: the
    direction is unchanged, and an attack on the direction (cosine) does not notice.
    """

    norm: float

    def __post_init__(self) -> None:
        require(self.norm > 0, "norm", f"is {self.norm}", "give a positive norm")

    def on_update(self, tensors: Tensors, generator: torch.Generator | None) -> Tensors:
        return Scale(bound=self.norm).sent(tensors)

    def steps(self) -> tuple[DefenseStep, ...]:
        return (Scale(bound=self.norm),)


@DEFENSES.register("clip-examples", needs="a model whose examples do not mix (no BatchNorm in train mode)")
@dataclass(frozen=True, kw_only=True)
class ClipExamples(Defense):
    """Scales every example's gradient down to `norm`, before they are averaged.

    Guarantee: each example moves the mean gradient by at most norm/n. One whose gradient is not finite counts as
    zero, or it would make the whole update not a number, which no noise hides. This is the clipping of DP-SGD;
    without noise it is not differentially private.
    """

    norm: float

    def __post_init__(self) -> None:
        require(self.norm > 0, "norm", f"is {self.norm}", "give a positive norm")

    @property
    def acts_on_examples(self) -> bool:
        return True

    def on_example_gradients(self, per_example: Tensors, generator: torch.Generator) -> Tensors:
        """Clips each row of the stacked gradients ``(n, *shape)``."""
        del generator
        squared = squared_rows(per_example)
        counts, factor = torch.isfinite(squared), clip_factor(squared, self.norm)

        def clipped(g: Tensor) -> Tensor:
            rows = -1, *([1] * (g.ndim - 1))
            return torch.where(counts.view(rows), g * factor.view(rows), torch.zeros_like(g))

        return map_tensors(clipped, per_example)

    def steps(self) -> tuple[DefenseStep, ...]:
        return (PerExampleScale(bound=self.norm),)


def layers_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Tensors by layer: the weight and the bias of one module are clipped together."""
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition(".")[0] or name, []).append(name)
    return layers


@dataclass(frozen=True, kw_only=True)
class ClipLayers(ClipExamples):
    """Scales every layer of every example's gradient down to norm at most `norm`."""

    def on_example_gradients(self, per_example: Tensors, generator: torch.Generator) -> Tensors:
        clipped: Tensors = {}
        for names in layers_of(per_example).values():
            clipped |= super().on_example_gradients({name: per_example[name] for name in names}, generator)
        return {name: clipped[name] for name in per_example}

    def steps(self) -> tuple[DefenseStep, ...]:
        return (PerExampleScale(bound=self.norm, by_layer=True, blind=False),)


@DEFENSES.register("client-dp")
@dataclass(frozen=True, kw_only=True)
class ClientDP(Defense):
    """u·min(1, C/‖u‖) + N(0, (zC)²I) for the update u, a gradient or a delta; ‖·‖ over all tensors together.

    Source: McMahan et al., *Learning Differentially Private Recurrent Language Models*, ICLR 2018, with the noise
    added by the client (local model): the server that sees one update faces z. A server that sees only the mean of
    m such updates faces noise zC/√m where a client moves the mean by at most C/m: z·√m. Where the server itself
    adds the noise, it has seen the updates without, and this defence is not what protects from it.

    Attributes:
        noise_multiplier: z, in units of `norm`; positive. Without noise it is `clip`.
        norm: C, the bound of the update; noise without it would bound nothing.
    """

    noise_multiplier: float
    norm: float

    def __post_init__(self) -> None:
        require_bound(self.norm)
        require_multiplier(self.noise_multiplier, otherwise="clip")

    @property
    def _parts(self) -> tuple[Clip, GaussianNoise]:
        return Clip(norm=self.norm), GaussianNoise(scale=Absolute(self.noise_multiplier * self.norm))

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        clip, noise = self._parts
        return noise.on_update(clip.on_update(tensors, generator), generator)

    def steps(self) -> tuple[DefenseStep, ...]:
        return tuple(step for part in self._parts for step in part.steps())
