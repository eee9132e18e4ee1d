"""Units that add all their inputs up: rows of one value."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakgauge.registry import RULES
from leakgauge.servers.inspection.matrices import Layer, layers, too_small
from leakgauge.servers.inspection.rule import Measurement, Part, Received

MIN_INPUTS = 16
CAP = 1e4


@RULES.register("constant-rows")
@dataclass(frozen=True)
class ConstantRows:
    """Looks for rows whose entries hardly differ.

    Statistic: max over layers of the second largest |mean|/std over the entries of a row (the largest where a
    layer has one row), at most 10⁴. A row of independent entries of mean zero has about 1/√k; trained rows
    reach a few where a filter is a blob. Rows below 10⁻⁶ of the layer's largest are left out. Invariant
    under a factor per row.
    """

    needs: tuple[Part, ...] = (Part.STATE,)
    meaning: str = (
        "A unit that weighs all inputs alike has the mean of its inputs as a gradient and never sleeps; a first "
        "linear layer of such units gives each class's features away (MKOR). Honest reasons: fixed averaging filters."
    )

    def measure(self, received: Received) -> Measurement:
        found, unjudged = layers(received.state)
        scored: list[tuple[float, Layer, int]] = []
        for layer in found:
            if reason := too_small(layer, units=1, inputs=MIN_INPUTS):
                unjudged.append(reason)
                continue
            ratios = _ratios(layer).sort(descending=True).values
            if len(ratios):
                second = float(ratios[min(1, layer.units - 1)]) if len(ratios) > 1 or layer.units == 1 else 0.0
                scored.append((second, layer, int((ratios >= max(second / 2, 2.0)).sum())))
        if not scored:
            return Measurement(0.0, (), "No layer to judge.", tuple(unjudged))
        scored.sort(key=lambda s: -s[0])
        top, layer, count = scored[0]
        about = "over 10 000" if top >= CAP else f"{top:.2f}"
        evidence = f"The mean of a row is {about} times its spread in {layer.name}"
        evidence += f" ({count} of {layer.units} rows at least half of that)." if count else "."
        return Measurement(
            top, tuple(s[1].name for s in scored if s[0] >= max(top / 2, 2.0)), evidence, tuple(unjudged)
        )


def _ratios(layer: Layer) -> torch.Tensor:
    """|mean|/std of each row that is not dead."""
    means, spreads, tops = [], [], []
    for part in layer.chunks():
        top = part.abs().amax(1)
        scaled = part / top.clamp_min(1e-30)[:, None]
        mean = scaled.mean(1, keepdim=True)
        means.append(mean[:, 0].abs())
        spreads.append(scaled.sub_(mean).square_().mean(1).sqrt())
        tops.append(top)
    top = torch.cat(tops)
    live = top > top.max() * 1e-6
    return (torch.cat(means) / torch.cat(spreads).clamp_min(1.0 / CAP)).clamp_max(CAP)[live]
