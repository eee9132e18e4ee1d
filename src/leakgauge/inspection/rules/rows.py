"""Rules about rows that few examples drive, and rows that are constant."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.inspection.drives import Drives, LayerDrive
from leakgauge.inspection.matrices import Layer, layers, too_small
from leakgauge.inspection.rule import Measurement, Part, Received
from leakgauge.inspection.rules.own_data import NEEDS, OWN, own_drives
from leakgauge.registry import RULES

ALONE = 0.99
"""Share of a row's total drive from which it belongs to one example or class."""
LEAST = 8
"""Examples needed: with n examples that drive half of all rows at random, n/2ⁿ of the rows are driven by one."""
PRIOR = 2
"""Rows added to a layer's count that are not alone, so that a handful of rows cannot reach a high share."""


def _watched_layers(found: Drives) -> list[LayerDrive]:
    """The first linear layer below the answering one, if any."""
    return [layer for layer in found.hidden if layer.linear][:1]


def driven(rows: Float[Tensor, "n rows"]) -> Bool[Tensor, "n rows"]:
    """Which example drives which row: by more than (1 − ALONE) of the row's total, in rows that are driven at all."""
    total = rows.sum(0)
    live = total > 1e-6 * total.max()
    return (rows > (1 - ALONE) * total) & live


def _unjudged(found: Drives, layers: list[LayerDrive]) -> tuple[str, ...]:
    reasons = [] if layers else ["model: has no linear layer below the one that answers"]
    if int(found.erring.sum()) < LEAST:
        reasons.append(
            f"batch: has {int(found.erring.sum())} examples that err; {LEAST} are needed, since few share rows"
        )
    return (*reasons, *found.remarks)


@RULES.register("example-rows", needs=f"{NEEDS}: eight or more; a linear layer below the answering one")
@dataclass(frozen=True)
class ExampleRows:
    """Rows of the first linear layer that one example drives.

    Statistic in [0, 1): share of the driven rows that take 99 % of their drive from one example, of (driven rows + 2).
    Honest first layers answer about half of all examples with each unit, so that few rows are alone from eight
    examples on.
    """

    needs: tuple[Part, ...] = OWN
    meaning: str = (
        "The gradient of a row that one example drives is that example's input, times a number: trap weights and "
        "bins make many such rows. Honest reasons: few examples, or a layer with very sparse activations."
    )

    def measure(self, received: Received) -> Measurement:
        found = own_drives(received)
        layers = _watched_layers(found)
        reasons = _unjudged(found, layers)
        if not layers or int(found.erring.sum()) < LEAST:
            return Measurement(0.0, (), "Not judged.", reasons)
        layer = layers[0]
        on = driven(layer.rows[found.erring].double())
        alone, live = on.sum(0) == 1, on.any(0)
        shown = int(on[:, alone].any(1).sum())
        evidence = (
            f"Of {int(live.sum())} driven rows of {layer.name}, {int(alone.sum())} are driven by one example alone; "
            f"they show {shown} of {len(on)} examples."
        )
        return Measurement(float(alone.sum()) / (float(live.sum()) + PRIOR), (layer.name,), evidence, reasons)


@RULES.register("class-rows", needs=f"{NEEDS}: eight or more, of three or more classes")
@dataclass(frozen=True)
class ClassRows:
    """Rows of the first linear layer that several examples drive, all of one class.

    Statistic in [0, 1): share of such rows in (rows that two or more examples drive + 2). Classes with more than half
    of the examples do not count: their members meet by chance.
    """

    needs: tuple[Part, ...] = OWN
    meaning: str = (
        "A row that one class drives holds the mean picture of that class's examples (MKOR's wiring). Honest reasons: "
        "a trained network whose first linear layer is its last hidden one, with units that stand for classes."
    )

    def measure(self, received: Received) -> Measurement:
        found = own_drives(received)
        layers = _watched_layers(found)
        reasons = list(_unjudged(found, layers))
        labels = found.labels[found.erring].long()
        members = F.one_hot(labels, int(found.labels.max()) + 1).double()
        sizes = members.sum(0)
        minor = (sizes >= 2) & (sizes <= len(members) / 2)
        if int((sizes > 0).sum()) < 3 or not bool(minor.any()):
            reasons.append("batch: needs three classes, one of them with two examples and at most half of all")
        if not layers or int(found.erring.sum()) < LEAST or len(reasons) > len(_unjudged(found, layers)):
            return Measurement(0.0, (), "Not judged.", tuple(reasons))
        layer = layers[0]
        rows = layer.rows[found.erring].double()
        shared = driven(rows).sum(0) >= 2
        per_class = members.T @ rows
        owned = (per_class[minor] > ALONE * rows.sum(0)).any(0) & shared
        evidence = (
            f"Of {int(shared.sum())} rows of {layer.name} that several examples drive, {int(owned.sum())} are driven "
            f"by examples of one class only."
        )
        return Measurement(float(owned.sum()) / (float(shared.sum()) + PRIOR), (layer.name,), evidence, tuple(reasons))


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
        layers = [layer for layer in _watched_layers(found) if layer.signed is not None]
        if not layers or int(found.erring.sum()) < 4:
            reason = "model: has no linear layer below the answering one whose units answer once per example"
            few = f"batch: has {int(found.erring.sum())} examples that err; 4 are needed"
            return Measurement(0.0, (), "Not judged.", (reason if not layers else few, *found.remarks))
        layer = layers[0]
        assert layer.signed is not None
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
