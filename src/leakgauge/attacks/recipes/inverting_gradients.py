"""Inverting Gradients."""

from __future__ import annotations

from leakgauge.attacks.labels import CountsFromLastLayer
from leakgauge.attacks.matching import Adam, Cosine, Matching, Normal, Pixels, TotalVariation
from leakgauge.registry import ATTACKS


@ATTACKS.register("inverting-gradients", needs="example_count; data with two spatial axes")
def inverting_gradients(
    *, tv: float = 1e-2, steps: int = 4800, lr: float = 0.1, signed: bool = True, box: bool = True, restarts: int = 1
) -> Matching:
    """Inverting Gradients: cosine distance and total variation, signed Adam with step decay, in the data's range.

    Source: Geiping et al., NeurIPS 2020, Eq. 4; FedAvg by unrolling the client's steps (Eq. 5, with the
    gradients at θ^{k+m−1}: the paper's index is off by one).
    Differs: the best point by total objective is kept, not the last; labels that are not known are
    counted from the last layer (the paper assumes them); lr is 0.1 for FedAvg too (paper: 1, measured level: table2
    and table2-lr in docs/reference/measured.md).
    """
    return Matching(
        objective=Cosine(),
        prior=TotalVariation(tv),
        canvas=Pixels(first=Normal(), box=box),
        minimiser=Adam(steps=steps, lr=lr, signed=signed),
        labels=CountsFromLastLayer(),
        restarts=restarts,
    )
