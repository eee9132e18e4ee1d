"""Attacks through generators: CI-Net and GIAS."""

from __future__ import annotations

from torch import nn

from leakgauge.attacks.labels import CountsFromLastLayer
from leakgauge.attacks.matching import Adam, Cosine, Matching, TotalVariation
from leakgauge.attacks.matching.adam import InTurn, Turn
from leakgauge.attacks.matching.networks import Generator, IntoRange, Output, Pretrained
from leakgauge.attacks.matching.objectives import CosineOnSupport
from leakgauge.attacks.recipes.information import IfInformative
from leakgauge.models.generators import ByPixels, CINetGenerator, Wide
from leakgauge.registry import ATTACKS


@ATTACKS.register("ci-net", needs="example_count; pictures of at most 256 px; a client in train mode for ResNets")
def ci_net(
    *,
    width: int | None = None,
    steps: int = 5000,
    lr: float = 1e-3,
    output: Output = IntoRange(),
    restarts: int = 1,
) -> IfInformative:
    """CI-Net: the weights of an untrained generator, global cosine (Eq. 3), signed Adam without decay, no regulariser.

    Source: CI-Net (convolutional inversion network) as its published code runs it; the paper leaves network,
    optimiser and steps to a missing appendix. `width` is by the code's rule unless given.
    Differs: the generator's (−1, 1) is mapped into the data's range (theirs, `AsItIs`, is far slower: see
    `IntoRange`); asks first whether the update carries image information at all; the best point by distance is
    kept, not the last; labels that are not known are counted from the last layer (the paper assumes them).
    A ResNet in eval mode leaves float32 nothing to match, see `image_information`: the paper's client must train
    in train mode, which it does not say.
    """
    network = CINetGenerator(width=ByPixels() if width is None else Wide(width))
    matching = Matching(
        objective=Cosine(),
        canvas=Generator(network=network, output=output),
        minimiser=Adam(steps=steps, lr=lr, signed=True, decay=()),
        labels=CountsFromLastLayer(),
        restarts=restarts,
    )
    return IfInformative(attack=matching)


@ATTACKS.register("gias", needs="example_count; a pre-trained generator of such pictures")
def gias(
    *,
    generator: nn.Module,
    code: tuple[int, ...],
    code_steps: int = 500,
    weight_steps: int = 5000,
    tv: float = 1e-6,
    restarts: int = 3,
) -> Matching:
    """GIAS: the codes of a pre-trained generator (Adam 3e-2), then one copy of its weights a picture (Adam 1e-3).

    `generator` maps codes ``(1, *code)`` to pictures in (−1, 1); give a `Pretrained` canvas to `Matching` for other
    outputs. Cosine distance on the entries that were sent, total variation, unsigned, both phases with step decay.

    Source: Jeon et al., Gradient Inversion with Generative Image Prior, NeurIPS 2021, as their code runs it.
    Differs: a user's generator in place of StyleGAN2, whose style codes theirs optimises; the best point by
    total objective is kept.
    """
    turns = (
        Turn(moves=("code",), minimiser=Adam(steps=code_steps, lr=3e-2, signed=False)),
        Turn(moves=("weights.",), minimiser=Adam(steps=weight_steps, lr=1e-3, signed=False)),
    )
    return Matching(
        objective=CosineOnSupport(),
        prior=TotalVariation(tv),
        canvas=Pretrained(module=generator, code=code),
        minimiser=InTurn(turns=turns),
        labels=CountsFromLastLayer(),
        restarts=restarts,
    )
