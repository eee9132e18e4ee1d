"""Classes that were swapped in the last layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.registry import RULES
from leakgauge.servers.inspection.matrices import head, layers, working
from leakgauge.servers.inspection.rule import Measurement, Part, Received

MOST = 4096
MEANING = (
    "With classes swapped every example is wrong, so the update is large and of features rather than of mistakes "
    "(label flipping). Honest reasons: the classes were put in another order."
)


@RULES.register("relabelled-reference")
@dataclass(frozen=True)
class RelabelledSinceReference:
    """Rows of the last layer that are another class's row of the reference. Statistic: see `_relabelled`."""

    needs: tuple[Part, ...] = (Part.STATE, Part.REFERENCE)
    meaning: str = MEANING

    def measure(self, received: Received) -> Measurement:
        assert received.reference is not None
        return _relabelled(received.state, received.reference, "the reference")


@RULES.register("relabelled-previous")
@dataclass(frozen=True)
class RelabelledSincePrevious:
    """Rows of the last layer that are another class's row of the round before. Statistic: see `_relabelled`."""

    needs: tuple[Part, ...] = (Part.STATE, Part.PREVIOUS)
    meaning: str = MEANING

    def measure(self, received: Received) -> Measurement:
        assert received.previous is not None
        return _relabelled(received.state, received.previous, "the previous round")


def _relabelled(state: Mapping[str, Tensor], known: Mapping[str, Tensor], words: str) -> Measurement:
    """Number of classes whose row has cosine > 0.9 with another's old row, at least 0.2 more than with its own."""
    layer = head(layers(state)[0])
    if layer is None or layer.name not in known:
        return Measurement(0.0, (), "The model has no linear layer to compare.")
    if not 2 <= layer.units <= MOST:
        reason = f"{layer.name}: {layer.units} rows, compared from 2 to {MOST}"
        return Measurement(0.0, (), "The last linear layer has too few or too many rows to compare.", (reason,))
    new = torch.nn.functional.normalize(layer.rows, dim=1)
    old = torch.nn.functional.normalize(working(known[layer.name]).reshape(layer.units, -1).to(new), dim=1)
    cosine = new @ old.T
    own = cosine.diagonal().clone()
    best, other = cosine.fill_diagonal_(-1.0).max(1)
    moved = torch.nonzero((best > 0.9) & (best > own + 0.2))[:, 0]
    if not len(moved):
        return Measurement(0.0, (), f"No class carries another class's row of {words}.")
    shown = ", ".join(f"{int(i)} has {int(other[i])}'s" for i in moved[:4])
    return Measurement(
        float(len(moved)), (layer.name,), f"{len(moved)} classes carry another's row of {words}: {shown}."
    )
