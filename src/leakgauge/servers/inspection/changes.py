"""What changed against a model that the client knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.registry import RULES
from leakgauge.servers.inspection.matrices import Layer, layers, too_small, working
from leakgauge.servers.inspection.rule import Measurement, Part, Received

MIN_UNITS, MIN_INPUTS = 4, 8
COSINE = 0.5


@RULES.register("replaced-reference")
@dataclass(frozen=True)
class ReplacedSinceReference:
    """Units whose rows have turned by 60° or more against the reference.

    Statistic: see `_replaced`; rows of zeros in the reference (a fresh head) are left out.
    """

    needs: tuple[Part, ...] = (Part.STATE, Part.REFERENCE)
    meaning: str = (
        "Fine-tuning moves every row a little; crafted units replace whole rows and leave the others. Honest "
        "reasons: another architecture variant, a layer that was started afresh."
    )

    def measure(self, received: Received) -> Measurement:
        assert received.reference is not None
        return _replaced(received.state, received.reference, "the reference")


@RULES.register("replaced-previous")
@dataclass(frozen=True)
class ReplacedSincePrevious:
    """Units whose rows have turned by 60° or more since the round before.

    Statistic: see `_replaced`; rows of zeros in the previous model are left out.
    """

    needs: tuple[Part, ...] = (Part.STATE, Part.PREVIOUS)
    meaning: str = (
        "A round of averaging moves every row a little; a server that starts to cheat replaces whole rows. "
        "Honest reasons: very large steps at the start of training, a restart."
    )

    def measure(self, received: Received) -> Measurement:
        assert received.previous is not None
        return _replaced(received.state, received.previous, "the previous round")


def _replaced(state: Mapping[str, Tensor], known: Mapping[str, Tensor], words: str) -> Measurement:
    """Max over layers of the share of rows with cosine below ½ to their old self, of rows not zero before.

    Rows that are zero now are left out: pruning makes them.
    """
    found, unjudged = layers(state)
    scored: list[tuple[float, Layer, int, float]] = []
    for layer in found:
        reason = too_small(layer, units=MIN_UNITS, inputs=MIN_INPUTS)
        if reason is None and layer.name not in known:
            reason = f"{layer.name}: not in {words}"
        if reason:
            unjudged.append(reason)
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


def _turns(layer: Layer, known: Tensor) -> tuple[Float[Tensor, " n"], Tensor, float]:
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
