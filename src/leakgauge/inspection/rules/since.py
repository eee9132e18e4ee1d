"""Rules about what changed since a reference or the previous round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.inspection.matrices import Omission, WeightTensor, comparable, head, layers, working
from leakgauge.inspection.rule import Measurement, Part, Received
from leakgauge.registry import RULES

MIN_UNITS, MIN_INPUTS = 4, 8
COSINE = 0.5


KNOWN = {Part.REFERENCE: "the reference", Part.PREVIOUS: "the previous round"}
"""What a received model can be compared with."""


@dataclass(frozen=True)
class Since:
    """What changed against another model. Statistic: see `compare`.

    Attributes:
        since: the other model.
        meaning: of an alarm, with its honest reasons.
        compare: the received state, the other and its name give the measurement.
    """

    since: Part
    meaning: str
    compare: Callable[[Mapping[str, Tensor], Mapping[str, Tensor], str], Measurement]

    @property
    def needs(self) -> tuple[Part, ...]:
        return (Part.STATE, self.since)

    def measure(self, received: Received) -> Measurement:
        return self.compare(received.state, received.known(self.since), KNOWN[self.since])


TURNED = (
    "Fine-tuning and averaging move every row a little; crafted units replace whole rows and leave the others. "
    "Honest reasons: another architecture variant, a layer that was started afresh, very large first steps."
)


@RULES.register("replaced-reference")
def replaced_reference() -> Since:
    """Units whose rows have turned by 60° against the reference."""
    return Since(Part.REFERENCE, TURNED, _replaced)


@RULES.register("replaced-previous")
def replaced_previous() -> Since:
    """Units whose rows have turned by 60° since the last round."""
    return Since(Part.PREVIOUS, TURNED, _replaced)


def _replaced(state: Mapping[str, Tensor], known: Mapping[str, Tensor], words: str) -> Measurement:
    """Max over layers of the share of rows with cosine below ½ to their old self, of rows not zero before.

    Rows that are zero now are left out: pruning makes them.
    """
    found, unjudged = comparable(state, units=MIN_UNITS, inputs=MIN_INPUTS)
    scored: list[tuple[float, WeightTensor, int, float]] = []
    for layer in found:
        if layer.name not in known:
            unjudged.append(Omission(layer.name, f"not in {words}"))
            continue
        cosine, live, step = _turns(layer, known[layer.name])
        turned = int((live & (cosine < COSINE)).sum())
        if live.any():
            scored.append((turned / int(live.sum()), layer, turned, step))
    if not scored:
        return Measurement(0.0, (), "No layer to compare.", tuple(unjudged))
    scored.sort(key=lambda s: -s[0])
    top, layer, turned, step = scored[0]
    evidence = (
        f"{turned} of {layer.units} rows of {layer.name} point elsewhere than in {words}; the layer changed by "
        f"{100 * step:.3g} % of its size."
    )
    return Measurement(top, tuple(s[1].name for s in scored if s[0] >= max(0.1, top / 3)), evidence, tuple(unjudged))


def _turns(layer: WeightTensor, known: Tensor) -> tuple[Float[Tensor, " n"], Tensor, float]:
    """Cosine of each row with its old self, which rows were alive before, and the relative change."""
    cosines, norms, news, change, start = [], [], [], 0.0, 0
    for part in layer.chunks():
        old = working(known[start : start + len(part)]).reshape(len(part), -1).to(part)
        start += len(part)
        cosines.append(torch.nn.functional.cosine_similarity(part, old, dim=1, eps=1e-30))
        norms.append(old.norm(dim=1))
        news.append(part.norm(dim=1))
        change += float((part - old).norm()) ** 2
    norm, new = torch.cat(norms), torch.cat(news)
    live = (norm > 1e-6 * norm.max()) if bool(norm.max() > 0) else torch.zeros_like(norm, dtype=torch.bool)
    live &= new > 1e-6 * new.max()
    return torch.cat(cosines), live, (change**0.5 / max(float(norm.square().sum()) ** 0.5, 1e-30))


MOST = 4096


SWAPPED = (
    "With classes swapped every example is wrong, so the update is large and of features rather than of "
    "mistakes (label flipping). Honest reasons: the classes were put in another order."
)


@RULES.register("relabelled-reference")
def relabelled_reference() -> Since:
    """Classes that carry another class's row of the reference."""
    return Since(Part.REFERENCE, SWAPPED, _relabelled)


@RULES.register("relabelled-previous")
def relabelled_previous() -> Since:
    """Classes that carry another class's row of the last round."""
    return Since(Part.PREVIOUS, SWAPPED, _relabelled)


def _relabelled(state: Mapping[str, Tensor], known: Mapping[str, Tensor], words: str) -> Measurement:
    """Number of classes whose row has cosine > 0.9 with another's old row, at least 0.2 more than with its own."""
    layer = head(layers(state)[0])
    if layer is None or layer.name not in known:
        return Measurement(0.0, (), "The model has no linear layer to compare.")
    if not 2 <= layer.units <= MOST:
        reason = Omission(layer.name, f"{layer.units} rows, compared from 2 to {MOST}")
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
