"""Entries that no training leaves behind: not finite, or of enormous size."""

from __future__ import annotations

from dataclasses import dataclass

from leakgauge.registry import RULES
from leakgauge.servers.inspection.matrices import layers, working
from leakgauge.servers.inspection.rule import Measurement, Part, Received


@RULES.register("not-finite")
@dataclass(frozen=True)
class NotFinite:
    """Statistic: number of entries in all tensors that are NaN or infinite."""

    needs: tuple[Part, ...] = (Part.STATE,)
    meaning: str = (
        "One such entry makes every output and every update NaN: a broken model, or a way to switch clients off or "
        "to switch off what compares updates. Honest reasons: training diverged."
    )

    def measure(self, received: Received) -> Measurement:
        counts = {
            name: int((~working(tensor).isfinite()).sum())
            for name, tensor in received.state.items()
            if tensor.is_floating_point() and not bool(working(tensor).sum().isfinite())
        }
        worst = sorted((n for n, c in counts.items() if c), key=lambda n: -counts[n])
        if not worst:
            return Measurement(0.0, (), "Every entry is finite.")
        evidence = f"{sum(counts.values())} entries are NaN or infinite, {counts[worst[0]]} of them in {worst[0]}."
        return Measurement(float(sum(counts.values())), tuple(worst), evidence)


@RULES.register("huge-weights")
@dataclass(frozen=True)
class HugeWeights:
    """Statistic: largest absolute entry of any weight matrix. Not scale-free: inputs are taken to be near 1."""

    needs: tuple[Part, ...] = (Part.STATE,)
    meaning: str = (
        "A weight that outshouts all others makes its unit a threshold on one feature (feature fishing). Honest "
        "reasons: outlier features of large language models, unnormalised inputs."
    )

    def measure(self, received: Received) -> Measurement:
        found, unjudged = layers(received.state)
        tops = {layer.name: max(float(part.abs().max()) for part in layer.chunks()) for layer in found}
        if not tops:
            return Measurement(0.0, (), "No layer to judge.", tuple(unjudged))
        worst = sorted(tops, key=lambda n: -tops[n])
        largest = min(tops[worst[0]], 1e30)
        where = tuple(n for n in worst if tops[n] >= largest / 3)[:3]
        return Measurement(largest, where, f"The largest entry of {worst[0]} is {largest:.4g}.", tuple(unjudged))
