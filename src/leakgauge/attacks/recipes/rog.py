"""ROG: a picture of low resolution by squared distance."""

from __future__ import annotations

from leakgauge.attacks.labels import CountsFromLastLayer
from leakgauge.attacks.matching import Matching, Objective, SquaredL2
from leakgauge.attacks.matching.adam import AnnealedAdam
from leakgauge.attacks.matching.canvases import LowResolution
from leakgauge.attacks.matching.parts import Polish
from leakgauge.registry import ATTACKS


@ATTACKS.register("rog", needs="labels in the client's order; local_training for deltas; images")
def rog(
    *,
    steps: int = 100,
    lr: float = 0.05,
    factor: int = 4,
    objective: Objective = SquaredL2(),
    polish: tuple[Polish, ...] = (),
    restarts: int = 1,
) -> Matching:
    """ROG: a picture of a quarter of the resolution, enlarged, by squared distance; Adam on a cosine, 100 steps.

    Source: Reconstruction from Obfuscated Gradients, Eqs. 3 to 5 as its code runs them: FedAvg by unrolling τ steps,
    a compressed update matched as it was dequantised, no total variation, no box. For signSGD give `objective`
    `SignTanh` and `polish` `MaxNormalise`.
    Differs: the release lets the client train the attacker's own model object and unrolls from θ_τ, 50 to 87 % off at
    the true batch; here, as in the paper, from θ₀. The best point is kept, not the last. Labels that are not known are
    counted from the last layer, then in no order. Where the defence is known, top-k's zeros are a mask on the
    simulated update too. The release's two post-processors, trained on ImageNet, are left to `polish` (`Denoise`).
    Known failure: it ends below the best picture of its canvas, at a smaller distance than that picture has: the
    update of what no small picture shows pulls the search away.
    """
    return Matching(
        objective=objective,
        canvas=LowResolution(factor=factor),
        minimiser=AnnealedAdam(steps=steps, lr=lr),
        labels=CountsFromLastLayer(),
        polish=polish,
        restarts=restarts,
    )
