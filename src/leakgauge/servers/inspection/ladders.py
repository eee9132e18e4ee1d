"""Biases that follow a rule: ladders of thresholds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.registry import RULES
from leakgauge.servers.inspection.matrices import Layer, finite, layers, working
from leakgauge.servers.inspection.rule import Measurement, Part, Received

MIN_UNITS = 8
CHANCE = 2 * math.log(2) - 1
SPREAD = 0.28
"""Mean and standard deviation of min(g, h)/max(g, h) for two independent exponential gaps g, h."""


@RULES.register("bias-ladder")
@dataclass(frozen=True)
class BiasLadder:
    """Tests whether neighbouring gaps between sorted biases are alike.

    Statistic: max over layers of √(n − 2)·(r − 0.386)/0.28, at least 0, with r the mean over neighbouring gaps
    g, h of the sorted biases of min(g, h)/max(g, h). Independent draws from any smooth distribution have r ≈ 0.386
    (neighbouring gaps are exponential with one rate), a ladder on equal steps or on the quantiles of
    any smooth distribution r ≈ 1, in whatever order. Ties, as quantised biases have, count as r = 0. Taken of
    biases, biases over their row's sum, and biases over their row's norm. Invariant under scale and shift.
    """

    needs: tuple[Part, ...] = (Part.STATE,)
    meaning: str = (
        "Units whose thresholds climb in even steps count how many examples lie above each step; differences of "
        "neighbours isolate single examples (imprint). Honest reasons: none known to us."
    )

    def measure(self, received: Received) -> Measurement:
        found, unjudged = layers(received.state)
        scored: list[tuple[float, str, float, int]] = []
        for name, values in _candidates(found, received.state):
            ratio = evenness(values)
            scored.append((max(0.0, math.sqrt(len(values) - 2) * (ratio - CHANCE) / SPREAD), name, ratio, len(values)))
        worst = sorted(scored, key=lambda s: -s[0])
        if not worst:
            return Measurement(0.0, (), f"No layer has {MIN_UNITS} biases.", tuple(unjudged))
        top, name, ratio, n = worst[0]
        evidence = (
            f"Neighbouring gaps between the {n} sorted thresholds of {name} agree to {ratio:.2f} on average; "
            f"chance gives {CHANCE:.2f}, a ladder 1."
        )
        return Measurement(top, tuple(dict.fromkeys(s[1] for s in worst if s[0] > 5)), evidence, tuple(unjudged))


def evenness(values: Float[Tensor, " n"]) -> float:
    """Mean of min/max over neighbouring gaps of the sorted values; gaps of ties and of rounding error give 0."""
    ordered = values.double().sort().values
    gaps = ordered.diff()
    # Gaps near the resolution of float32 are rounding, not structure.
    gaps = gaps.where(gaps > 1e-6 * ordered.abs().max(), torch.zeros_like(gaps))
    low, high = gaps[:-1].minimum(gaps[1:]), gaps[:-1].maximum(gaps[1:])
    return float((low / high.where(high > 0, torch.ones_like(high))).mean())


def _candidates(found: list[Layer], state: Mapping[str, Tensor]) -> Iterator[tuple[str, Float[Tensor, " n"]]]:
    for layer in found:
        if layer.bias is None or layer.bias_name is None or layer.units < MIN_UNITS:
            continue
        bias = working(layer.bias)
        yield layer.bias_name, bias
        rows = [(part.sum(1), part.norm(dim=1)) for part in layer.chunks()]
        for scale in (torch.cat([s for s, _ in rows]), torch.cat([n for _, n in rows])):
            if bool((scale != 0).all()):
                yield layer.bias_name, bias / scale
    for name, bias in state.items():
        weight = state.get(name.removesuffix("bias") + "weight")
        normed = name.endswith("bias") and weight is not None and weight.dim() == 1 and bias.shape == weight.shape
        if normed and bias.dim() == 1 and len(bias) >= MIN_UNITS and bias.is_floating_point() and finite(bias):
            yield name, working(bias)
