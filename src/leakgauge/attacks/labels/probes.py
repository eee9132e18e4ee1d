"""Inputs that stand in for the client's: the attacker's own collection, or made up."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.observation import Observation
from leakgauge.task import DataSpec

ENOUGH = 64
"""From that many public examples on, nothing is made up."""


def stand_ins(observation: Observation, count: int, generator: torch.Generator) -> Float[Tensor, "m *shape"]:
    """At most `count` public examples if the attacker has enough of them, else `count` made-up ones."""
    public = observation.knowledge.public_data
    like = next(iter(observation.task.parameters.values()))
    if public is not None and len(public) >= ENOUGH:
        return public[torch.randperm(len(public), generator=generator)[:count]].to(like)
    return made_up(observation.task.data, count, generator).to(like)


def made_up(data: DataSpec, count: int, generator: torch.Generator) -> Float[Tensor, "count *shape"]:
    """Random inputs in the data's range.

    Images are Gaussian fields with an amplitude spectrum 1/f^α, α ~ U(.7, 1.7), of random mean and contrast
    and with correlated channels, which is how photographs vary to second order (Field, 1987). Anything else is
    uniform noise.
    """
    if not data.is_image:
        return torch.rand(count, *data.shape, generator=generator) * data.range + data.low
    channels, height, width = data.shape
    frequency = (torch.fft.fftfreq(height)[:, None] ** 2 + torch.fft.rfftfreq(width)[None] ** 2).sqrt()
    frequency[0, 0] = 1.0
    alpha = 0.7 + torch.rand(count, 1, 1, 1, generator=generator)
    grey = torch.randn(count, 1, height, width, generator=generator)
    colour = torch.randn(count, channels, height, width, generator=generator)
    field = torch.fft.irfft2(torch.fft.rfft2(0.9 * grey + 0.45 * colour) * frequency**-alpha, s=(height, width))
    field = field - field.mean((2, 3), keepdim=True)
    field = field / field.flatten(1).std(1).clamp_min(1e-6)[:, None, None, None]
    mean = 0.5 + 0.18 * torch.randn(count, 1, 1, 1, generator=generator)
    mean = mean + 0.07 * torch.randn(count, channels, 1, 1, generator=generator)
    contrast = 0.08 + 0.2 * torch.rand(count, 1, 1, 1, generator=generator)
    images: Tensor = (mean + contrast * field).clamp(0, 1)
    return images * data.range + data.low
