"""Equations and unknowns as Qian & Hansen count them (Propositions 2, 3). `leakgauge count` has the corrected count."""

from __future__ import annotations

import math
from dataclasses import dataclass

from leakgauge.errors import require
from leakgauge.risk.counting import OneHidden


@dataclass(frozen=True)
class Tally:
    """A count of the whole system."""

    equations: int
    unknowns: int


def paper_tally(net: OneHidden, batch: int) -> Tally:
    """Equations n₂ + q·n₂ + n₁ + n₁·c against unknowns B·n₂ + B·q + B·D, as Qian & Hansen count.

    Source: Proposition 2 (linear layer). It takes the output errors p − y and the hidden activations for unknowns of
    their own, although both are functions of the inputs.
    """
    require(batch > 0, "batch", f"is {batch}", "give a positive number of examples")
    equations = net.classes + net.classes * net.hidden + net.rows + net.rows * net.columns
    return Tally(equations, batch * (net.classes + net.hidden + net.inputs))


def paper_rows(net: OneHidden, batch: int) -> float:
    """Hidden units or filters that Qian & Hansen ask for.

    Source: Proposition 2: n₁ ≥ [B(d + n₂) − n₂] / (d + n₂ + 1 − B), infinite for B > d + n₂; a little above B at
    the B that their own experiments use (4.002 for 4, 8.045 for 8). Proposition 3: h = (d/d')²·B·C = B·D/d'².
    """
    require(batch > 0, "batch", f"is {batch}", "give a positive number of examples")
    if net.positions > 1:
        return batch * net.inputs / net.positions
    left = net.inputs + net.classes + 1 - batch
    return (batch * (net.inputs + net.classes) - net.classes) / left if left > 0 else math.inf


def paper_applies(net: OneHidden, batch: int) -> bool:
    """Whether a network and a batch are within what Qian & Hansen's count assumes.

    Source: Proposition 2 for B < d + n₂ + 1; Proposition 3 for 1 < B < n₂ and h·d'² ≥ n₂(B − 1)/(n₂ − B), so that the
    hidden activations follow from the last layer's gradient. Their own experiments take Proposition 3 for B = 1 too.
    """
    require(batch > 0, "batch", f"is {batch}", "give a positive number of examples")
    if net.positions == 1:
        return batch <= net.inputs + net.classes
    return 1 < batch < net.classes and net.hidden * (net.classes - batch) >= net.classes * (batch - 1)
