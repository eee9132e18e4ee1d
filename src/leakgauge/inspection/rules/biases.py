"""Rules about biases: extreme ones, and a classifier that favours a class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.inspection.matrices import WeightTensor, finite, head, layers, too_small, working
from leakgauge.inspection.rule import Measurement, Part, Received
from leakgauge.registry import RULES

EXTREME_CAP, FAR = 1e6, 1e4
LEAST = 0.1
"""Least sum of a row of k weights, as a multiple of √k; torch's default initialisation gives 0.5."""


@RULES.register("extreme-bias")
@dataclass(frozen=True)
class ExtremeBias:
    """Compares biases with what the unit's weights can add up to, and with the other biases of the layer.

    Statistic: max over units of q·log(1 + z), at most 10⁶. q = |b|/max(‖w‖₁, s, √k/10), with s the median ‖w‖₁ of
    rows that are not zero and k the entries of a row, so that q > 1 means that no input in [−1, 1] changes the unit's
    sign; z = |b|/(first quartile of |b| + 10⁻³·s). A normalisation layer counts as ‖w‖₁ = max(4·|γ|, 1). Where all rows
    are zero s is 1. √k/10 stands for weights that have collapsed to nothing under decay, beside which any honest
    bias is huge; above it, the statistic is invariant under a common factor of a linear layer's weights and biases.
    """

    needs: tuple[Part, ...] = (Part.STATE,)
    meaning: str = (
        "A huge bias on one class silences the loss of all others, and very negative ones put units to sleep, so "
        "that only the units of the server's choice answer. Honest reasons: rare classes, folded normalisation."
    )

    def measure(self, received: Received) -> Measurement:
        found, unjudged = layers(received.state)
        scored: list[tuple[float, str, float, float, int]] = []
        for name, bias, sums in _pairs(found, received.state):
            typical = float(sums[sums > 0].median()) if bool((sums > 0).any()) else 1.0
            calm = float(bias.abs().sort().values[(len(bias) - 1) // 4]) + 1e-3 * typical
            share = bias.abs() / sums.clamp_min(typical)
            values = share * torch.log1p(bias.abs() / calm)
            at = int(values.argmax())
            scored.append((min(EXTREME_CAP, float(values[at])), name, float(bias[at]), float(share[at]), at))
        if not scored:
            return Measurement(0.0, (), "No layer has biases.", tuple(unjudged))
        scored.sort(key=lambda s: -s[0])
        top, name, value, ratio, at = scored[0]
        evidence = f"Bias {at} of {name} is {value:.4g}, {ratio:.2g} times what the unit's weights sum to."
        return Measurement(top, tuple(s[1] for s in scored if s[0] >= max(2.0, top / 3)), evidence, tuple(unjudged))


def _pairs(
    found: list[WeightTensor], state: Mapping[str, Tensor]
) -> Iterator[tuple[str, Float[Tensor, " n"], Float[Tensor, " n"]]]:
    """Biases with the scale of each unit."""
    for layer in found:
        if layer.bias is not None and layer.bias_name is not None:
            bias = working(layer.bias)
            sums = torch.cat([p.abs().sum(1) for p in layer.chunks()]).to(bias)
            yield layer.bias_name, bias, sums.clamp_min(LEAST * layer.inputs**0.5)
    for name, bias in state.items():
        gain = state.get(name.removesuffix("bias") + "weight")
        if not name.endswith("bias") or gain is None or gain.dim() != 1 or bias.shape != gain.shape or not len(bias):
            continue
        if bias.is_floating_point() and gain.is_floating_point() and finite(bias) and finite(gain):
            yield name, working(bias), (4 * working(gain).abs().to(working(bias))).clamp_min(1.0)


@RULES.register("decoy-class")
@dataclass(frozen=True)
class DecoyClass:
    """Compares the biases of the last linear layer with each other and with its rows.

    Statistic: max over classes of |b − median|/(median ‖w‖₂ + 3·1.4826·MAD(b) + 10⁻⁶·max|b|), at most 10⁴. Judged
    from 3 classes on. Invariant under a common factor of weights and biases, and a shift of all biases.
    """

    needs: tuple[Part, ...] = (Part.STATE,)
    meaning: str = (
        "A class whose bias towers over the others takes all probability, so the other classes' gradient rows stay "
        "apart (decoy of MKOR), or only examples of one class answer (fishing). Honest reasons: very uneven classes."
    )

    def measure(self, received: Received) -> Measurement:
        found, unjudged = layers(received.state)
        layer = head(found)
        if layer is None or layer.bias is None or layer.bias_name is None:
            return Measurement(0.0, (), "The model has no last linear layer with biases.", tuple(unjudged))
        if reason := too_small(layer, units=3, inputs=1):
            return Measurement(0.0, (), "The last linear layer has too few rows to compare.", (*unjudged, reason))
        bias = working(layer.bias).double()
        row = float(torch.cat([part.norm(dim=1) for part in layer.chunks()]).median())
        away = (bias - bias.median()).abs()
        scale = row + 3 * 1.4826 * float(away.median()) + 1e-6 * float(bias.abs().max())
        at = int(away.argmax())
        statistic = min(FAR, float(away[at]) / scale) if scale else 0.0
        evidence = (
            f"Bias {at} of {layer.bias_name} is {float(bias[at]):.4g} where the median is {float(bias.median()):.4g}: "
            f"{statistic:.2g} times the layer's scale apart."
        )
        return Measurement(statistic, (layer.bias_name,), evidence, tuple(unjudged))
