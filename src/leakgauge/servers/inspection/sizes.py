"""How much the first linear layer could hold: a note, not an alarm."""

from __future__ import annotations

from dataclasses import dataclass

from leakgauge.registry import RULES
from leakgauge.servers.inspection.matrices import layers
from leakgauge.servers.inspection.rule import Measurement, Part, Received


@RULES.register("capacity")
@dataclass(frozen=True)
class Capacity:
    """Says how many units the first linear layer has. Its statistic is always 0: honest networks have wide layers.

    A unit that wakes for one example of the batch alone holds that example's input (w gradient over b gradient),
    so a layer of n units can hold up to n inputs.
    """

    needs: tuple[Part, ...] = (Part.STATE,)
    meaning: str = (
        "Train on batches well above the number of units, or clip and add noise, if this layer sees raw data."
    )

    def measure(self, received: Received) -> Measurement:
        linear = [layer for layer in layers(received.state)[0] if layer.weight.dim() == 2]
        if not linear:
            return Measurement(0.0, (), "The model has no linear layer.")
        first = linear[0]
        bias = "and a bias" if first.bias is not None else "and no bias"
        evidence = (
            f"The first linear layer, {first.name}, has {first.units} units of {first.inputs} inputs {bias}: an update "
            f"could hold the layer's input for up to {first.units} examples."
        )
        return Measurement(0.0, (first.name,), evidence)
