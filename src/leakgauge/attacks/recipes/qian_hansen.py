"""What Can We Learn from Gradients (Qian & Hansen)."""

from __future__ import annotations

from leakgauge.attacks.matching import (
    Adam,
    ByBatch,
    JointSoftLabels,
    Matching,
    Minimiser,
    Orthogonality,
    Pixels,
    SquaredL2,
    SquaredNorm,
    Uniform,
    decaying,
)
from leakgauge.registry import ATTACKS


@ATTACKS.register("qian-hansen", needs="example_count; local_training for deltas; a smooth network")
def qian_hansen(
    *,
    weight: float = 0.1,
    factor: float = 0.9,
    every: int = 2000,
    minimiser: Minimiser = Adam(steps=200_000, lr=0.01, signed=False, decay=()),
    restarts: int = 1,
) -> Matching:
    """Qian & Hansen: squared distance, examples and soft labels together, and a prior that decays.

    Source: their Algorithms 1 and 2, Eqs. 2 and 3: uniform start, of label logits too; λ = 0.1, times 0.9 every
    2000 iterations; λ‖x‖² for one example, λ·Σ(x_k · x_k')² over ordered pairs for several. Their Algorithm 2 prints
    ``i//m == 0``, which would shrink λ at every one of the first m iterations; ``i % m == 0`` is meant and done.
    Differs: Adam's learning rate, which the paper does not give, is 0.01.

    The prior is large at the true batch (see `Orthogonality`), so a run much shorter than the decay ends where the
    prior wants it. For short runs take a small constant weight (`factor` 1), or a `minimiser` of a higher order.
    """
    return Matching(
        objective=SquaredL2(),
        prior=decaying(
            prior=ByBatch(one=SquaredNorm(weight), several=Orthogonality(weight)), factor=factor, every=every
        ),
        canvas=Pixels(first=Uniform(), box=False),
        minimiser=minimiser,
        labels=JointSoftLabels(uniform=True),
        restarts=restarts,
    )
