"""GIAS: gradient inversion with a generative prior."""

from __future__ import annotations

from torch import nn

from leakgauge.attacks.labels import CountsFromLastLayer
from leakgauge.attacks.matching import Adam, Matching, TotalVariation
from leakgauge.attacks.matching.generator import Pretrained
from leakgauge.attacks.matching.in_turn import InTurn, Turn
from leakgauge.attacks.matching.on_support import CosineOnSupport
from leakgauge.registry import ATTACKS


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
