"""Layers that hold a single direction."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from leakgauge.registry import RULES
from leakgauge.servers.inspection.matrices import WIDE, Layer, layers, too_small
from leakgauge.servers.inspection.rule import Measurement, Part, Received

MIN_SIDE, DIRECTIONS, CAP = 24, 1, 12.0


@RULES.register("low-rank")
@dataclass(frozen=True)
class LowRank:
    """Share of a layer's energy outside its strongest direction.

    Statistic: max over layers of −log₁₀(1 − e₁), at most 12, with e₁ = σ₁²/Σ σᵢ² by a randomised range finder
    (Halko et al., 2011) of 9 vectors and one power iteration, which finds at most the true e₁. Judged where both
    sides have 24 or more. Two directions or more are honest: factorised layers have few. Invariant under a factor
    of the layer.
    """

    needs: tuple[Part, ...] = (Part.STATE,)
    meaning: str = (
        "A layer of one direction answers the same in all units: what differs between gradient rows is then which "
        "examples woke them, not what they saw. Honest reasons: a layer that weight decay has collapsed."
    )

    def measure(self, received: Received) -> Measurement:
        found, unjudged = layers(received.state)
        scored: list[tuple[float, Layer, float]] = []
        for layer in found:
            if reason := too_small(layer, units=MIN_SIDE, inputs=MIN_SIDE):
                unjudged.append(reason)
                continue
            left = _left(layer)
            if left is not None:
                scored.append((min(CAP, -math.log10(max(left, 1e-12))), layer, left))
        if not scored:
            return Measurement(0.0, (), "No layer to judge.", tuple(unjudged))
        scored.sort(key=lambda s: -s[0])
        top, layer, left = scored[0]
        evidence = (
            f"One direction holds {100 * (1 - left):.4g} % of the energy of {layer.name} "
            f"({layer.units} × {layer.inputs})."
        )
        return Measurement(
            top, tuple(s[1].name for s in scored if s[0] >= max(1.0, top / 2)), evidence, tuple(unjudged)
        )


def _left(layer: Layer) -> float | None:
    """Share of energy outside the strongest directions; `None` of a zero matrix."""
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn((layer.inputs, DIRECTIONS + 8), generator=generator)
    size = max(float(part.abs().max()) for part in layer.chunks())
    if size == 0:
        return None
    energy = sum((float(part.norm()) / size) ** 2 for part in layer.chunks())
    probe = probe / size
    image = torch.cat([part @ probe.to(part) for part in layer.chunks(WIDE)])
    basis = torch.linalg.qr(image).Q
    back = _transposed(layer, basis, size) / size
    basis = torch.linalg.qr(torch.cat([part @ back for part in layer.chunks(WIDE)])).Q
    strongest = torch.linalg.svdvals(_transposed(layer, basis, size).double())[:DIRECTIONS]
    return min(1.0, max(0.0, 1 - float((strongest**2).sum()) / energy))


def _transposed(layer: Layer, basis: torch.Tensor, size: float) -> torch.Tensor:
    """Wᵀ·basis/size, some rows at a time."""
    total, start = basis.new_zeros((layer.inputs, basis.shape[1])), 0
    for part in layer.chunks(WIDE):
        total += part.to(basis).T @ basis[start : start + len(part)]
        start += len(part)
    return total / size
