"""Rules about single rows and their biases: sign, moments, size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.inspection.matrices import WeightTensor, comparable, finite, head, layers, too_small, working
from leakgauge.inspection.rule import Measurement, Part, Received
from leakgauge.registry import RULES

MIN_UNITS, MIN_INPUTS = 8, 16
ALIVE = 1e-6
TAIL = 4.0
"""Kurtosis up to which a row counts in full; a normal distribution has 3."""


@dataclass(frozen=True)
class RowSigns:
    """What the signs of a layer's rows show.

    Attributes:
        skew: mean over rows of the skewness of their entries, in standard errors of independent entries.
        unlike: how much more the rows' skewness and size vary than those of independent entries would, at least 1.
        balanced: share of rows with exactly as many positive as negative entries.
        chance: the share expected of independent signs.
        rows: how many rows were judged.
        heavy: kurtosis of the rows' entries, as a multiple of `TAIL`, at least 1.
    """

    skew: float
    unlike: float
    balanced: float
    chance: float
    rows: int
    heavy: float


@RULES.register("trap-weights")
@dataclass(frozen=True)
class TrapWeightsRule:
    """Rows in which one sign is made to outweigh the other.

    Statistic: max over layers of two numbers, in standard errors of independent entries.

    1. |s|/(2u²): s is the mean over rows of the skewness about the row's mean, which scaling one sign changes and a
       shift, as early training makes one, does not; u ≥ 1 is how many times more the rows' skewness and size
       vary than independent entries allow, since training makes rows unlike. Halved, since training skews rows too.
    2. The excess of rows with exactly as many positive as negative entries, expected √(2/πk) of rows.

    Both are divided by h², with h = κ/4, at least 1, and κ the kurtosis of the rows' entries (mean fourth central
    moment over squared mean second one, the median over rows): a few large entries decide in pruned rows, also under
    noise or rounding, and pruning keeps the very entries that training has skewed. Rows of traps need many entries
    of one size (normal: κ = 3).

    The last linear layer is left out: training skews it. Invariant under a factor of the layer.
    """

    needs: tuple[Part, ...] = (Part.STATE,)
    meaning: str = (
        "Rows whose negative half is scaled up are silent for most inputs, so a unit that wakes holds a single "
        "example (trap weights). Honest reasons: none known to us for large values."
    )

    def measure(self, received: Received) -> Measurement:
        last = "the last layer, which training skews"
        found, unjudged = comparable(received.state, units=MIN_UNITS, inputs=MIN_INPUTS, last=last)
        scored = [(_score(signs), layer, signs) for layer in found if (signs := _signs(layer))]
        if not scored:
            return Measurement(0.0, (), "No layer to judge.", tuple(unjudged))
        scored.sort(key=lambda s: -s[0])
        top, layer, signs = scored[0]
        evidence = (
            f"Row skewness of {layer.name}: {signs.skew:+.1f} standard errors (spread {signs.unlike:.1f} × that of "
            f"fresh weights); {signs.balanced:.0%} of the rows are balanced, {signs.chance:.1%} expected."
        )
        return Measurement(
            top, tuple(s[1].name for s in scored if s[0] >= max(4.0, top / 3)), evidence, tuple(unjudged)
        )


def _signs(layer: WeightTensor) -> RowSigns | None:
    """`None` where too few rows are alive."""
    scale = max(float(part.abs().max()) for part in layer.chunks())
    if scale == 0:
        return None
    found = torch.empty((layer.units, 7))
    start = 0
    for part in layer.chunks():
        found[start : start + len(part)] = torch.stack(_moments(part / scale), 1)
        start += len(part)
    energy, m2, m3, m4, m6, even, count = found.unbind(1)
    live = (energy > ALIVE**2 * energy.max()) & (count >= MIN_INPUTS) & (m2 > 1e-9 * energy)
    rows = int(live.sum())
    if rows < MIN_UNITS:
        return None
    energy, m2, m3, m4, m6, count = (x[live].double() for x in (energy, m2, m3, m4, m6, count))
    skews = m3 / m2**1.5
    # Sampling error of a row's skewness, and of its energy, for independent entries of these moments.
    error = ((m6 - 6 * m4 * m2 + 9 * m2**3) / m2**3).clamp_min(1e-6).mean() / layer.inputs
    size_error = (m4 - m2**2).clamp_min(1e-12).mean() / m2.mean() ** 2 / layer.inputs
    slack = 1 + 2 / math.sqrt(2 * rows)
    unlike = max(float((skews.var() / error).sqrt()), float((m2.var() / m2.mean() ** 2 / size_error).sqrt())) / slack
    return RowSigns(
        skew=float(skews.mean() / (error / rows).sqrt()),
        unlike=max(1.0, unlike),
        balanced=float(even[live].double().mean()),
        chance=min(1.0, float((2 / math.pi / count).sqrt().mean())),
        rows=rows,
        heavy=max(1.0, float((m4 / m2**2).median()) / TAIL),
    )


def _moments(part: Float[Tensor, "n k"]) -> tuple[Tensor, ...]:
    """By row: mean square, central moments 2, 3, 4 and 6, whether its signs are even, and non-zero entries."""
    energy = part.square().mean(1)
    sign = part.sign()
    even, count = (sign.sum(1) == 0).to(part), sign.abs_().sum(1)
    centred = part - part.mean(1, keepdim=True)
    square = centred.square()
    m2, m3 = square.mean(1), centred.mul_(square).mean(1)
    m6 = centred.square_().mean(1)
    return energy, m2, m3, square.square_().mean(1), m6, even, count


def _score(signs: RowSigns) -> float:
    chance = max(signs.chance, 1e-9)
    spread = math.sqrt(chance * max(1 - chance, 0.01) / signs.rows + 1 / signs.rows**2)
    return max(0.0, abs(signs.skew) / (2 * signs.unlike**2), (signs.balanced - chance) / spread) / signs.heavy**2


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
