"""Units that pass one input on: rows with a single tap."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.registry import RULES
from leakgauge.servers.inspection.matrices import Layer, layers, too_small
from leakgauge.servers.inspection.rule import Measurement, Part, Received

MIN_INPUTS = 16
EQUAL = 0.05
"""Taps within 5 % are equal."""
SPARSE = 0.3
"""Share of exact zeros in a layer's other rows from which it counts as pruned."""


@dataclass(frozen=True)
class Counts:
    """Rows of a layer by how many of their entries exceed a quarter of the largest one."""

    none: int
    one: int
    two: int
    others: int
    zeros: float
    """Share of zeros in rows of two or more entries."""
    tap: float
    """Median size of a single tap."""
    regular: float
    """Largest share of single taps that are equal in size or stand at one place of the kernel; see `regularity`."""


@RULES.register("taps")
@dataclass(frozen=True)
class SingleTaps:
    """Counts rows in which one entry is over four times as large as any other, beyond what pruning explains.

    Statistic: max over layers of (ρ²·n₁ − e)/√n₁, with n₁ the rows of one such entry and ρ how regular these
    entries are: the larger of the share that are equal in size and the share at one place of the kernel
    (`regularity`). Taps that pass a picture on keep it in place or in scale; what decay leaves of a kernel has any size
    and place. e = 0 where the layer's other rows are dense: there this does not happen by chance. In a pruned layer
    e = b + 2√(b + 1), b² = 2·n₀·n₂ (each + ½): were the survivors spread over the rows as a Poisson mixture,
    n₁² ≤ 2·n₀·n₂ in expectation whatever the mixture (Cauchy–Schwarz). Rows below 10⁻⁶ of the layer's largest
    count as zero, so that decayed dead units do not. Invariant under a factor per layer or row.
    """

    needs: tuple[Part, ...] = (Part.STATE,)
    meaning: str = (
        "Units that copy one input carry pixels through the network unchanged, so a later layer's gradient holds "
        "the picture (MKOR). Honest reasons: identity (Dirac) initialisation."
    )

    def measure(self, received: Received) -> Measurement:
        found, unjudged = layers(received.state)
        counts: list[tuple[Layer, Counts]] = []
        for layer in found:
            reason = too_small(layer, units=1, inputs=MIN_INPUTS)
            if layer.depthwise:
                reason = f"{layer.name}: depthwise, where trained filters often have one large entry"
            if reason:
                unjudged.append(reason)
            else:
                counts.append((layer, _count(layer)))
        scored = [(_excess(c, _others(i, counts)), layer, c) for i, (layer, c) in enumerate(counts)]
        worst = sorted((s for s in scored if s[0] > 0), key=lambda s: -s[0])
        if not worst:
            return Measurement(0.0, (), "No layer has more single-tap rows than pruning explains.", tuple(unjudged))
        top, layer, c = worst[0]
        evidence = (
            f"{c.one} of {layer.units} rows of {layer.name} keep one entry (median size {c.tap:.3g}) over four times "
            f"as large as the rest of their row."
        )
        return Measurement(top, tuple(s[1].name for s in worst), evidence, tuple(unjudged))


def _count(layer: Layer) -> Counts:
    tops = torch.cat([part.abs().amax(1) for part in layer.chunks()])
    floor = float(tops.max()) * 1e-6
    sizes, zero, entries, taps, places = [], 0, 0, [], []
    kernel = layer.weight[0, 0].numel()
    for part in layer.chunks():
        magnitude = part.abs()
        top = magnitude.amax(1, keepdim=True)
        live = top[:, 0] > floor
        size = (magnitude > top / 4).to(part).sum(1) * live
        several = size >= 2
        zero += int((magnitude[several] == 0).sum()) if several.any() else 0
        entries += int(several.sum()) * layer.inputs
        taps.append(top[size == 1, 0])
        places.append(magnitude[size == 1].argmax(1) % kernel)
        sizes.append(size)
    size = torch.cat(sizes)
    tap: Tensor = torch.cat(taps)
    n0, n1, n2 = (int((size == m).sum()) for m in range(3))
    others = layer.units - n0 - n1
    share = zero / entries if entries else 0.0
    return Counts(
        n0, n1, n2, others, share, float(tap.median()) if n1 else 0.0, regularity(tap, torch.cat(places), kernel)
    )


def regularity(taps: Float[Tensor, " n"], places: Int[Tensor, " n"], kernel: int) -> float:
    """The larger of two shares: taps within 5 % of each other, and, beyond chance, taps at one of `kernel` places."""
    if not len(taps):
        return 0.0
    size = taps.double().log().sort().values
    ends = torch.searchsorted(size, size + EQUAL, right=True)
    equal = float((ends - torch.arange(len(size))).max()) / len(size)
    if kernel == 1:
        return equal
    alike = float(places.bincount().max()) / len(places)
    return max(equal, (alike - 1 / kernel) / (1 - 1 / kernel))


def _others(i: int, counts: list[tuple[Layer, Counts]]) -> float:
    """Median sparsity of the other layers, for a layer without rows of its own to tell from."""
    own = sorted(c.zeros for j, (_, c) in enumerate(counts) if j != i and c.others)
    return own[len(own) // 2] if own else 0.0


def _excess(c: Counts, elsewhere: float) -> float:
    if not c.one:
        return 0.0
    telling = c.others >= max(2, 0.05 * (c.none + c.one + c.others))
    expected = 0.0
    if (c.zeros if telling else elsewhere) >= SPARSE:
        bound = math.sqrt(2 * (c.none + 0.5) * (c.two + 0.5))
        expected = bound + 2 * math.sqrt(bound + 1)
    return max(0.0, c.regular**2 * c.one - expected) / math.sqrt(c.one)
