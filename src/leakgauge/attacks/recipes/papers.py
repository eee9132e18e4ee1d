"""Papers as short assemblies of parts: DLG, iDLG, Inverting Gradients, Qian & Hansen, CI-Net and ROG."""

from dataclasses import replace

from leakgauge.attacks.labels import IDLG
from leakgauge.attacks.matching.adam import Adam, AnnealedAdam
from leakgauge.attacks.matching.canvases import Generator, LowResolution, Normal, Pixels, Uniform
from leakgauge.attacks.matching.curvature import LBFGS
from leakgauge.attacks.matching.engine import Matching
from leakgauge.attacks.matching.parts import Cosine, JointSoftLabels, Minimiser, Objective, Polish, SquaredL2
from leakgauge.attacks.matching.priors import ByBatch, Decaying, Orthogonality, SquaredNorm, TotalVariation
from leakgauge.attacks.recipes.information import IfInformative
from leakgauge.models.networks import CINetGenerator
from leakgauge.registry import ATTACKS


@ATTACKS.register("dlg", needs="example_count; local_training for deltas; a smooth network")
def dlg(*, restarts: int = 8, steps: int = 6000) -> Matching:
    """Deep Leakage from Gradients: examples and soft labels together, squared distance, L-BFGS, many restarts.

    Source: Zhu et al., NeurIPS 2019, Eq. 4 and Algorithm 1; N(0, 1) start, no box, no prior.
    Differs: 8 restarts, the lowest distance is kept (their code runs one start and often fails).
    """
    return Matching(
        objective=SquaredL2(),
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
    return replace(dlg(restarts=restarts, steps=steps), labels=IDLG())


@ATTACKS.register("inverting-gradients", needs="example_count; data with two spatial axes")
def inverting_gradients(
    *, tv: float = 1e-2, steps: int = 4800, lr: float = 0.1, signed: bool = True, box: bool = True, restarts: int = 1
) -> Matching:
    """Inverting Gradients: cosine distance and total variation, signed Adam with step decay, in the data's range.

    Source: Geiping et al., NeurIPS 2020, Eq. 4; FedAvg by unrolling the client's steps (Eq. 5, with the gradients at
    θ^{k+m−1}: the paper's index is off by one). Differs: the best point by total objective is kept, not the last;
    labels that are not known are counted from the last layer (the paper assumes them); lr is 0.1 for FedAvg too (paper:
    1, measured level: table2 and table2-lr in docs/reference/measured.md).
    """
    return Matching(
        objective=Cosine(),
        prior=TotalVariation(tv),
        canvas=Pixels(first=Normal(), box=box),
        minimiser=Adam(steps=steps, lr=lr, signed=signed),
        restarts=restarts,
    )


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
        prior=Decaying(
            prior=ByBatch(one=SquaredNorm(weight), several=Orthogonality(weight)), factor=factor, every=every
        ),
        canvas=Pixels(first=Uniform(), box=False),
        minimiser=minimiser,
        labels=JointSoftLabels(uniform=True),
        restarts=restarts,
    )


@ATTACKS.register("ci-net", needs="example_count; pictures of at most 256 px; a client in train mode for ResNets")
def ci_net(*, width: int | None = None, steps: int = 5000, lr: float = 1e-3, restarts: int = 1) -> IfInformative:
    """CI-Net: the weights of an untrained generator, global cosine (Eq. 3), signed Adam without decay, no regulariser.

    Source: CI-Net (convolutional inversion network) as its published code runs it; the paper leaves network, optimiser
    and steps to a missing appendix. `width` is by the code's rule unless given. Differs: the generator's (−1, 1) is
    mapped into the data's range (theirs is taken as it is, and far slower); asks first whether the update carries
    image information at all; the best point by distance is kept, not the last; labels that are not known are counted
    from the last layer (the paper assumes them). A ResNet in eval mode leaves float32 nothing to match, see
    `image_information`: the paper's client must train in train mode, which it does not say.
    """
    matching = Matching(
        objective=Cosine(),
        canvas=Generator(network=CINetGenerator(width=width)),
        minimiser=Adam(steps=steps, lr=lr, decay=()),
        restarts=restarts,
    )
    return IfInformative(attack=matching)


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

    Source: Reconstruction from Obfuscated Gradients, Eqs. 3 to 5 as its code runs them: FedAvg by unrolling τ steps, a
    compressed update matched as it was dequantised, no total variation, no box. Its objective for signs is in
    `reproduce/rog`. Differs: the release lets the client train the attacker's own model object and unrolls
    from θ_τ, 50 to 87 % off at the true batch; here, as in the paper, from θ₀. The best point is kept, not the last.
    Labels that are not known are counted from the last layer, then in no order. Where the defence is known, top-k's
    zeros are a mask on the simulated update too. The release's two post-processors, trained on ImageNet, are left to
    `polish`. Known failure: it ends below the best picture of its canvas, at a smaller distance than that
    picture has: the update of what no small picture shows pulls the search away.
    """
    return Matching(
        objective=objective,
        canvas=LowResolution(factor=factor),
        minimiser=AnnealedAdam(steps=steps, lr=lr),
        polish=polish,
        restarts=restarts,
    )
