"""Rules about biases: extreme ones, ladders, and a classifier that favours a class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.inspection.matrices import Omission, WeightTensor, finite, head, layers, too_small, working
from leakgauge.inspection.rule import Measurement, Part, Received
from leakgauge.registry import RULES

EXTREME_CAP = 1e6
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


MIN_UNITS = 8
CHANCE = 2 * math.log(2) - 1
SPREAD = 0.28
"""Mean and standard deviation of min(g, h)/max(g, h) for two independent exponential gaps g, h."""


@RULES.register("bias-ladder")
@dataclass(frozen=True)
class BiasLadder:
    """Whether neighbouring gaps between sorted biases are alike.

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


def _candidates(found: list[WeightTensor], state: Mapping[str, Tensor]) -> Iterator[tuple[str, Float[Tensor, " n"]]]:
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


CLASS_CAP = 40.0
PRUNED, SURVIVORS, FAR = 0.6, 4, 1e4


@RULES.register("uneven-classes")
@dataclass(frozen=True)
class UnevenClasses:
    """Compares the rows of the last linear layer in size.

    Statistic: max over rows of |log₂(‖w_row‖/typical)|, at most 40. Typical is the median over rows, or the largest row
    where the median row is zero; a layer of zeros gives 0. Where under 60 % of the entries of the rows that are not
    zero are left, the layer is pruned, and rows with fewer than 4 entries are left out: pruning by size empties the
    rows of rare classes, and a few survivors have any size. Honest classifiers stay within a few powers of two. Judged
    from 3 rows on. Invariant under a factor of the layer.
    """

    needs: tuple[Part, ...] = (Part.STATE,)
    meaning: str = (
        "With the other classes' rows at zero or one class's row enlarged, the gradient holds the examples of one "
        "class alone (class fishing). Honest reasons: classes that were never trained or were removed."
    )

    def measure(self, received: Received) -> Measurement:
        found, unjudged = layers(received.state)
        layer = head(found)
        if layer is None:
            return Measurement(0.0, (), "The model has no linear layer.", tuple(unjudged))
        if reason := too_small(layer, units=3, inputs=1):
            return Measurement(0.0, (), "The last linear layer has too few rows to compare.", (*unjudged, reason))
        rows = norms = torch.cat([part.norm(dim=1) for part in layer.chunks()])
        largest, middle = float(norms.max()), float(norms.median())
        if largest == 0:
            return Measurement(0.0, (), f"All rows of {layer.name} are zero.", tuple(unjudged))
        zero = int((norms <= 2**-CLASS_CAP * largest).sum())
        filled = sum(int((part != 0).sum()) for part in layer.chunks())
        if filled < PRUNED * layer.inputs * (layer.units - zero):
            entries = torch.cat([(part != 0).sum(1) for part in layer.chunks()])
            norms = norms[entries >= SURVIVORS]
            if len(norms) < 3:
                reason = Omission(layer.name, f"pruned to under {SURVIVORS} entries in nearly all rows")
                return Measurement(0.0, (), "The last linear layer is pruned.", (*unjudged, reason))
            middle, largest = float(norms.median()), float(norms.max())
        typical = middle if middle > 2**-CLASS_CAP * largest else largest
        ratios = torch.log2((norms / typical).clamp(2**-CLASS_CAP, 2**CLASS_CAP))
        worst = int(ratios.abs().argmax())
        at = int((rows == norms[worst]).nonzero()[0, 0])
        evidence = f"Row {at} of {layer.name} has {math.pow(2, float(ratios[worst])):.3g} times the typical size"
        evidence += f"; {zero} of {layer.units} rows are zero." if zero else "."
        return Measurement(float(ratios[worst].abs()), (layer.name,), evidence, tuple(unjudged))


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
