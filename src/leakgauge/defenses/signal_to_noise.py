"""Signal-to-noise ratios of a defended gradient, in dB."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from leakgauge.errors import require
from leakgauge.tensors import entries, squared_norm


def snr_db(clipped: Mapping[str, Tensor], sigma: float) -> float:
    """10·log₁₀(‖g‖² / (D·σ²)): the power of a clipped gradient over the expected power of noise N(0, σ²).

    Over all D entries of all tensors together. ROG (2024, Section 5.2) names the ratio without saying whether it is
    meant by layer, by example or over all; give the tensors of one example, or of the mean with its noise.
    """
    power = float(squared_norm(clipped))
    require(power > 0, "clipped", "is zero", "a gradient without power has no signal-to-noise ratio")
    require(sigma > 0, "sigma", f"is {sigma}", "give a positive number")
    return float(10 * (squared_norm(clipped) / (entries(clipped) * sigma**2)).log10())


def sigma_for_snr(clipped: Mapping[str, Tensor], snr: float) -> float:
    """The σ per entry with `snr_db(clipped, σ)` = `snr`; divided by C it is Fed-CDP's noise multiplier."""
    power = float(squared_norm(clipped))
    require(power > 0, "clipped", "is zero", "a gradient without power has no signal-to-noise ratio")
    return float((power / entries(clipped)) ** 0.5 * 10 ** (-snr / 20))
