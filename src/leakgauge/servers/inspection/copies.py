"""Rows of a layer that are one another's copies, multiples or mirror images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.registry import RULES
from leakgauge.servers.inspection.matrices import WIDE, Layer, head, layers, too_small
from leakgauge.servers.inspection.rule import Measurement, Part, Received

MIN_UNITS, MIN_INPUTS, MIN_SPREAD = 4, 16, 6.0
SKETCH, CANDIDATE, SAME = 64, 0.95, 1 - 1e-5
PAIRWISE = 8192
"""Up to so many rows all pairs are compared; beyond, neighbours in three sorted orders."""
EXACT = 4096
"""Candidate pairs a layer that are compared in full."""


@RULES.register("copies")
@dataclass(frozen=True)
class CopiedRows:
    """Counts rows that are parallel or antiparallel to another row of their layer.

    Statistic: max over layers of m/(1 + n/50), with m of n rows that have |cos| > 1 − 10⁻⁵ with another one
    (trained filters and units of strongly decayed layers resemble each other to 0.99, and thousands of rows that were
    cut down to rank 3 or 4 meet to 0.999 by chance). Rows are compared only where their participation ratio
    (Σw²)²/Σw⁴ exceeds 6, since pruned rows with few survivors are parallel by chance. The last linear layer is left
    out: classes that never occur have parallel rows where it started at zero.
    All pairs in a Gaussian sketch of 64 dimensions; candidates in full. Invariant under a factor per row.
    """

    needs: tuple[Part, ...] = (Part.STATE,)
    meaning: str = (
        "Units that measure the same thing with different thresholds split a batch into single examples (imprint); "
        "mirrored pairs let one unit of a pair wake for every input. Honest reasons: a network widened by copying."
    )

    def measure(self, received: Received) -> Measurement:
        found, unjudged = layers(received.state)
        scored: list[tuple[float, Layer, int, int]] = []
        last = head(found)
        for layer in found:
            reason = too_small(layer, units=MIN_UNITS, inputs=MIN_INPUTS)
            if layer is last and len(found) > 1:
                reason = f"{layer.name}: the last layer, where classes that never occur have parallel rows"
            if reason:
                unjudged.append(reason)
                continue
            same, mirrored = _copies(layer)
            scored.append((max(same, mirrored) / (1 + layer.units / 50), layer, same, mirrored))
        worst = sorted((s for s in scored if s[0] > 0), key=lambda s: -s[0])
        if not worst:
            return Measurement(0.0, (), "No layer has rows that are multiples of each other.", tuple(unjudged))
        top, layer, same, mirrored = worst[0]
        evidence = f"{same} of {layer.units} rows of {layer.name} are multiples of another row"
        evidence += f", {mirrored} of them with the opposite sign." if mirrored else "."
        return Measurement(top, tuple(s[1].name for s in worst), evidence, tuple(unjudged))


def _copies(layer: Layer) -> tuple[int, int]:
    """How many rows have a parallel or antiparallel one, and how many an antiparallel one."""
    k = layer.inputs
    generator = torch.Generator().manual_seed(0)
    plane = torch.randn((k, SKETCH), generator=generator) if k > SKETCH else torch.eye(k)
    tops, spreads = [], []
    for part in layer.chunks():
        top = part.abs().amax(1, keepdim=True)
        square = (part / top.clamp_min(1e-30)).square_()
        tops.append(top[:, 0])
        spreads.append(square.sum(1) ** 2 / square.square_().sum(1).clamp_min(1e-30))
    sketches = [part @ plane.to(part) for part in layer.chunks(WIDE)]
    size = torch.cat(tops)
    wide = torch.cat(spreads) > MIN_SPREAD
    index = torch.nonzero(wide & (size > size.max() * 1e-6))[:, 0]
    if len(index) < 2:
        return 0, 0
    sketch = torch.nn.functional.normalize(torch.cat(sketches)[index], dim=1)
    pairs = _pairs(sketch) if len(index) <= PAIRWISE else _neighbours(sketch)
    return _confirmed(layer, index, pairs)


def _pairs(sketch: Float[Tensor, "n s"]) -> Int[Tensor, "p 2"]:
    """Each row with its likeliest copy, where that is likely enough."""
    partner, value = [], []
    for start in range(0, len(sketch), 1024):
        cosine = sketch[start : start + 1024] @ sketch.T
        cosine.abs_()
        here = torch.arange(len(cosine))
        cosine[here, here + start] = 0
        best = cosine.max(1)
        partner.append(best.indices)
        value.append(best.values)
    all_values = torch.cat(value)
    rows = torch.nonzero(all_values > CANDIDATE)[:, 0]
    return torch.stack([rows, torch.cat(partner)[rows]], 1)


def _neighbours(sketch: Float[Tensor, "n s"]) -> Int[Tensor, "p 2"]:
    """The same among rows that stand near each other when sorted by a coordinate; copies do, up to their sign."""
    value = sketch.new_zeros(len(sketch))
    partner = torch.zeros(len(sketch), dtype=torch.long)
    for axis in range(3):
        signed = sketch * sketch[:, axis].sign()[:, None]
        order = signed[:, axis].argsort(stable=True)
        for step in range(1, 5):
            a, b = order[:-step], order[step:]
            cosine = (signed[a] * signed[b]).sum(1)
            for row, other in ((a, b), (b, a)):
                better = cosine > value[row]
                value[row[better]], partner[row[better]] = cosine[better], other[better]
    rows = torch.nonzero(value > CANDIDATE)[:, 0]
    return torch.stack([rows, partner[rows]], 1)


def _confirmed(layer: Layer, index: Tensor, pairs: Int[Tensor, "p 2"]) -> tuple[int, int]:
    """Counts rows of pairs that are copies in full, at most `EXACT` pairs compared and the rest scaled up."""
    if not len(pairs):
        return 0, 0
    chosen = pairs[:: max(1, -(-len(pairs) // EXACT))]
    flat = layer.weight.reshape(layer.units, -1)
    step = max(1, (1 << 23) // layer.inputs)
    cosines = []
    for start in range(0, len(chosen), step):
        a, b = index[chosen[start : start + step]].T
        x, y = flat[a].float(), flat[b].float()
        cosines.append(torch.nn.functional.cosine_similarity(x, y, dim=1))
    cosine = torch.cat(cosines)
    scale = len(pairs) / len(chosen)
    same = len(chosen[cosine.abs() > SAME, 0].unique())
    opposite = len(chosen[cosine < -SAME, 0].unique())
    return min(len(index), round(same * scale)), min(len(index), round(opposite * scale))
