"""Laplace noise on the update, in the three units of Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.defenses.defense import AttackerView, Defense
from leakgauge.defenses.noise import Scale, noise
from leakgauge.registry import DEFENSES
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import Update


@dataclass(frozen=True, kw_only=True)
class LaplaceNoise(Defense):
    """Adds Laplace noise of standard deviation σ to every entry: density exp(−|x|/b)/2b with b = σ/√2.

    σ comes from `scale`, as for `GaussianNoise`: per coordinate, so that both disturb an update alike.

    Guarantee: the noise is independent of the data given σ. No differential privacy by itself: ε = (L1 sensitivity)/b,
    and without clipping the sensitivity is unbounded; a relative σ depends on the data. Clipped in the Euclidean norm
    C, an update of N entries has an L1 norm of up to C·√N.
    """

    scale: Scale

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        return self._added(tensors, _standard(tensors, generator))

    def _added(self, tensors: Tensors, standard: Tensors) -> Tensors:
        return map_tensors(lambda t, sigma, x: t + sigma * x.to(t), tensors, self.scale.of(tensors), standard)

    def attacker_view(self, update: Update, draw: torch.Generator | None) -> AttackerView:
        """σ, and log p = −Σ|sent − g|/b. Its gradient jumps where they are equal."""
        if draw is not None:
            standard = _standard(update.tensors, draw)
            return AttackerView(simulate=lambda raw: self._added(raw, standard))
        sigma = self.scale.seen(update.tensors)

        def log_likelihood(raw: Tensors) -> Tensor:
            terms = [
                ((update.tensors[k].to(s) - s).abs() * 2**0.5 / sigma[k].to(s).clamp_min(1e-30)).sum()
                for k, s in raw.items()
            ]
            return -torch.stack(terms).sum()

        return AttackerView(noise_scale=sigma, log_likelihood=log_likelihood)


def _standard(tensors: Tensors, generator: torch.Generator) -> Tensors:
    """Laplace draws of unit variance, by the inverse distribution function."""

    def one(t: Tensor) -> Tensor:
        # Drawn in one precision, so that whoever knows the draw repeats it in any other.
        u = torch.rand(t.shape, generator=generator, dtype=torch.float64) - 0.5
        return -u.sign() * (1 - 2 * u.abs()).clamp_min(2.0**-53).log() / 2**0.5

    return map_tensors(one, tensors)


@DEFENSES.register("laplace")
def laplace(
    *, sigma: float | None = None, relative: float | None = None, tensor_std: float | None = None
) -> LaplaceNoise:
    """Laplace noise: one of sigma, relative (to the update's norm), tensor_std (to each tensor's spread), all stds."""
    return LaplaceNoise(scale=noise(sigma=sigma, relative=relative, tensor_std=tensor_std).scale)
