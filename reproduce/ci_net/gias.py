"""GIAS (gradient inversion with a generative image prior), a rival of CI-Net: its canvas, its phases, and the recipe.

A generator is code, so a plan names a function of your own that calls `gias` with one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from leakgauge.attacks.matching import Adam, Canvas, Cosine, Matching, Minimiser, Objective, TotalVariation
from leakgauge.attacks.matching.canvases import middle
from leakgauge.attacks.matching.problem import Minimum, Problem
from leakgauge.defenses import AttackerView
from leakgauge.errors import require
from leakgauge.observation import Status
from leakgauge.task import DataSpec
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.tensors import cast as cast_all

T = TypeVar("T")


@dataclass(frozen=True)
class CosineOnSupport(Objective):
    """`Cosine` on the support, with the simulated update zero where the observed one is.

    Source: GIAS's code for compressed gradients. It needs no knowledge of the mechanism. Where the client sent
    everything, exact zeros are dead units; masking them forgets that they are dead.
    """

    scale_free: ClassVar[bool] = True

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]:
        sent = map_tensors(lambda s, o: s * (o != 0), simulated, observed)
        return Cosine()(sent, observed, view)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pretrained(Canvas):
    """A user's generator: codes of all pictures, and for each picture its own copy of the weights. Runs in eval mode.
    The module is called with codes ``(1, *code)`` under `torch.func.vmap`; its output must have the shape of the data.
    What it answers in (−1, 1) is the data's whole range. Memory holds one copy of the weights a picture and restart."""

    module: nn.Module
    code: tuple[int, ...]  #: shape of one code; codes start at N(0, 1).

    def __post_init__(self) -> None:
        frozen = copy.deepcopy(self.module).eval().requires_grad_(False)
        object.__setattr__(self, "module", frozen)

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        codes = torch.randn((examples, *self.code), generator=generator, dtype=torch.float64)
        weights = {k: w.double().cpu().expand(examples, *w.shape).clone() for k, w in self.module.named_parameters()}
        return {"code": codes} | {f"weights.{name}": tensor for name, tensor in weights.items()}

    def decode(self, variables: Tensors, data: DataSpec) -> Float[Tensor, "n *shape"]:
        codes = variables["code"]
        buffers = cast_all(dict(self.module.named_buffers()), codes)

        def one(weights: Tensors, code: Tensor) -> Tensor:
            return cast(Tensor, functional_call(self.module, {**weights, **buffers}, (code[None],)))[0]

        weights = {k.removeprefix("weights."): v for k, v in variables.items() if k.startswith("weights.")}
        made = middle(vmap(one)(weights, codes), data)
        return data.normalise(data.low + data.range * (made + 1) / 2)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A phase: the variables whose names begin with one of `moves`, e.g. ``("code",)``, move; the others are held."""

    moves: tuple[str, ...]
    minimiser: Adam


@dataclass(frozen=True, kw_only=True)
class InTurn(Minimiser):
    """Phases, each from where the last one ended (GIAS: codes, then weights).

    Adam does not move a variable whose gradient is zero, so held ones are detached. A budget below the sum of
    steps is shared in proportion to the phases' steps.
    """

    turns: tuple[Turn, ...]

    def __post_init__(self) -> None:
        require(bool(self.turns), "turns", "is empty", "give at least one phase")

    def minimise(self, problem: Problem) -> Minimum:
        """Runs the phases; a phase that the budget allows no evaluation keeps the point it was given."""
        steps = [turn.minimiser.steps for turn in self.turns]
        point, found, pull = problem.start, None, problem.pull
        for index, turn in enumerate(self.turns):
            affordable, ceiling = problem.affordable(), problem.ceiling
            if affordable is not None and affordable < sum(steps[index:]):
                share = affordable * steps[index] // sum(steps[index:])
                ceiling = problem.meter.spent + share * problem.cost * problem.restarts
            phase = replace(
                problem,
                loss=held(problem.loss, turn.moves),
                start=point,
                ceiling=ceiling,
                pull=pull and replace(pull, prior=held(pull.prior, turn.moves)),
            )
            minimum = turn.minimiser.minimise(phase)
            if minimum.variables:
                point, found = minimum.variables, minimum
                if minimum.status in (Status.STOPPED, Status.TIME_LIMIT, Status.NON_FINITE):
                    break
        return found or minimum


def held(function: Callable[[Tensors], T], moves: tuple[str, ...]) -> Callable[[Tensors], T]:
    """The function of variables with every one detached whose name begins with none of `moves`."""

    def partly(variables: Tensors) -> T:
        return function({k: v if k.startswith(moves) else v.detach() for k, v in variables.items()})

    return partly


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
        restarts=restarts,
    )
