"""Densities and noise scales that defences and their attackers share."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from leakgauge.defenses.defense import AttackerView
from leakgauge.errors import require
from leakgauge.tensors import Tensors
from leakgauge.update import Update


def kept_entries(share: float, total: int) -> int:
    """⌈share · total⌉, where the product is an integer but for its rounding that integer: .07 of 100 is 7, not 8."""
    return math.ceil(share * total - 1e-9)


def normal_like(t: Tensor, generator: torch.Generator) -> Tensor:
    """N(0, 1) in the shape of `t`, drawn in one precision, so that whoever knows the draw repeats it in any other."""
    return torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)


def require_bound(norm: float) -> None:
    """A clipping norm C that bounds something."""
    require(0 < norm < math.inf, "norm", f"is {norm}", "give a finite norm: noise without a bound is not private")


def require_multiplier(value: float, *, otherwise: str) -> None:
    """A noise multiplier z; `otherwise` names the defence without noise."""
    fits = 0 < value < math.inf
    require(fits, "noise_multiplier", f"is {value}", f"give a positive number, or use {otherwise}")


def gaussian_view(update: Update, sigma: Tensors, simulate: Callable[[Tensors], Tensors] | None = None) -> AttackerView:
    """The view of one who knows that N(0, σ²) was added, name → σ, and not the draw.

    log p(update | s) = −½ Σ_k ‖(update_k − s_k)/σ_k‖², up to a constant; s = `simulate`(raw).
    """

    def log_likelihood(raw: Tensors) -> Tensor:
        simulated = raw if simulate is None else simulate(raw)
        terms = [
            ((update.tensors[k].to(s) - s) / sigma[k].to(s).clamp_min(1e-30)).square().sum()
            for k, s in simulated.items()
        ]
        return -0.5 * torch.stack(terms).sum()

    return AttackerView(simulate=simulate, noise_scale=sigma, log_likelihood=log_likelihood, gaussian=True)


def replaying_view(stage: Callable[[Tensors, torch.Generator], Tensors], draw: torch.Generator) -> AttackerView:
    """The view of one who knows the draw: `stage` is run again with it."""
    state = draw.get_state()

    def simulate(raw: Tensors) -> Tensors:
        again = torch.Generator()
        again.set_state(state)
        return stage(raw, again)

    return AttackerView(simulate=simulate)
