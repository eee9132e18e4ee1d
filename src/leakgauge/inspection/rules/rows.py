"""Rules about rows that differ by one example, and rows that are constant."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.inspection.matrices import Layer, Omission, layers, too_small
from leakgauge.inspection.rule import Measurement, Part, Received
from leakgauge.inspection.rules.own_data import NEEDS, OWN, own_drives
from leakgauge.registry import RULES


@RULES.register("row-differences", needs=f"{NEEDS}: four or more; a linear layer below the answering one")
@dataclass(frozen=True)
class RowDifferences:
    """Examples left by the difference of two rows of a gradient, of the first linear layer.

    Statistic in [0, 1]: share of examples e for which two rows of the layer get the same drive from all others, at
    least two of which do drive them (to 10⁻⁵ of each example's largest drive), but a different one from e. Weights
    above an honest layer differ from row to row, so that no two rows agree.
    """

    needs: tuple[Part, ...] = OWN
    meaning: str = (
        "Bins: units with the same weights and rising thresholds, whose neighbouring rows differ by one example "
        "(Robbing the Fed). Honest reasons: duplicated units, which do not alarm unless a threshold tells them apart."
    )

    def measure(self, received: Received) -> Measurement:
        found = own_drives(received)
        layer = next((layer for layer in found.hidden if layer.linear), None)
        if layer is None or layer.signed is None:
            reason = Omission(
                "model", "has no linear layer below the answering one whose units answer once per example"
            )
            return Measurement(0.0, (), "Not judged.", (reason, *found.remarks))
        if int(found.erring.sum()) < 4:
            few = Omission("batch", f"has {int(found.erring.sum())} examples that err; 4 are needed")
            return Measurement(0.0, (), "Not judged.", (few, *found.remarks))
        isolated = isolated_examples(layer.signed[found.erring].double())
        names = isolated.nonzero()[:, 0].tolist()
        evidence = f"{len(names)} of {len(isolated)} examples are the whole difference of two rows of {layer.name}."
        return Measurement(float(isolated.double().mean()), (layer.name,) if names else (), evidence, found.remarks)


def isolated_examples(drive: Float[Tensor, "n rows"], tolerance: float = 1e-5) -> Bool[Tensor, " n"]:
    """Examples that two rows differ by, with the same drive from the others, two of them at least."""
    # Each example's entries are brought to unit size: a strong example must not hide differences in weak ones.
    scaled = drive / drive.abs().amax(1, keepdim=True).clamp_min(1e-300)
    steps = (scaled / tolerance).round()
    alone = torch.zeros(len(drive), dtype=torch.bool)
    for e in range(len(drive)):
        others = torch.cat([steps[:e], steps[e + 1 :]])
        # One other example alone agrees by chance where there are many rows.
        kept = (others != 0).sum(0) >= 2
        if int(kept.sum()) < 2:
            continue
        _, group = others[:, kept].unique(dim=1, return_inverse=True)
        low = torch.full((int(group.max()) + 1,), torch.inf, dtype=drive.dtype)
        own = scaled[e, kept]
        high = (-low).scatter_reduce(0, group, own, "amax")
        low = low.scatter_reduce(0, group, own, "amin")
        alone[e] = bool((high - low > 1e-3).any())
    return alone


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
