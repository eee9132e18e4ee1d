"""Deep Leakage from Gradients, and its label-aware variant iDLG."""

from __future__ import annotations

from leakgauge.attacks.labels import IDLG
from leakgauge.attacks.matching import LBFGS, JointSoftLabels, Matching, NoPrior, Normal, Pixels, SquaredL2
from leakgauge.registry import ATTACKS


@ATTACKS.register("dlg", needs="example_count; local_training for deltas; a smooth network")
def dlg(*, restarts: int = 8, steps: int = 6000) -> Matching:
    """Deep Leakage from Gradients: examples and soft labels together, squared distance, L-BFGS, many restarts.

    Source: Zhu et al., NeurIPS 2019, Eq. 4 and Algorithm 1; N(0, 1) start, no box, no prior.
    Differs: 8 restarts, the lowest distance is kept (their code runs one start and often fails).
    """
    return Matching(
        objective=SquaredL2(),
        prior=NoPrior(),
        canvas=Pixels(first=Normal(), box=False),
        minimiser=LBFGS(steps=steps),
        labels=JointSoftLabels(),
        restarts=restarts,
    )


@ATTACKS.register("idlg", needs="one example; local_training for deltas; a smooth network")
def idlg(*, restarts: int = 8, steps: int = 6000) -> Matching:
    """Improved DLG: one label read from the last layer, then DLG on the pixels.

    Source: Zhao et al., 2020. Differs: restarts, as in `dlg`.
    """
    return Matching(
        objective=SquaredL2(),
        canvas=Pixels(first=Normal(), box=False),
        minimiser=LBFGS(steps=steps),
        labels=IDLG(),
        restarts=restarts,
    )
