"""What two steps of Adam on one batch give away: the signs of the first gradient, and the second over the first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.labels import CountsFromLastLayer, Unknown
from leakgauge.attacks.matching import BoundedLBFGS, Matching, NoPrior, Pixels, TotalVariation, Uniform, falling
from leakgauge.attacks.matching.parts import Objective
from leakgauge.clients.optimisers import Adam
from leakgauge.clients.protocol import GradientRule, Protocol
from leakgauge.compute import Budget, Compute
from leakgauge.defenses import AttackerView, parts_of
from leakgauge.draws import Draws
from leakgauge.observation import Observation, OnStep, Reconstruction
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import Update, UpdateHeader, UpdateKind

DEAD = 0.2
"""Entries that moved by less than this times the learning rate had no gradient to speak of beside Adam's eps."""
SIGNS = 0.1
"""Weight of the wrong signs beside the misfit of the ratios."""
FARTHEST = 1e3
"""Ratios are read down to minus this."""


@dataclass(frozen=True, eq=False)
class TwoGradients(Protocol):
    """The gradients of both steps as one complex tensor, the first real and the second imaginary.

    The second is at weights that are known once the first one's signs are.

    Attributes:
        moved: what the first step added to the parameters.
    """

    moved: Tensors

    kind: ClassVar[UpdateKind] = UpdateKind.GRADIENT

    def steps(self, examples: int) -> int:
        return 2

    def local_training(self, task: Task, batch: Batch, draws: Draws, gradient: GradientRule) -> tuple[Tensors, Tensors]:
        def one(i: int, parameters: Tensors, buffers: Tensors) -> tuple[Tensors, Tensors]:
            model = draws.generator("model", i) if task.stochastic else None
            return gradient(task, parameters, buffers, batch, model, draws.generator("example", i))

        first, buffers = one(0, task.parameters, task.buffers)
        second, buffers = one(1, map_tensors(lambda p, m: p + m.to(p), task.parameters, self.moved), buffers)
        return map_tensors(torch.complex, first, second), buffers


@dataclass(frozen=True, eq=False)
class RatioMisfit(Objective):
    """Σ_t mean((g₂ − r·g₁)²/(1 + r²)) / mean(g₁² + g₂²), and a tenth of that for entries of g₁ with the wrong sign.

    Attributes:
        signs: of the first gradient, 0 where nothing is known.
        ratios: r = g₂/g₁.
    """

    signs: Tensors
    ratios: Tensors

    scale_free: ClassVar[bool] = True

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]:
        terms = []
        for name, both in simulated.items():
            sign, ratio = self.signs[name].to(both.real), self.ratios[name].to(both.real)
            first, second = both.real * sign.abs(), both.imag * sign.abs()
            size = (first.square() + second.square()).mean().clamp_min(torch.finfo(first.dtype).tiny)
            misfit = ((second - ratio * first).square() / (1 + ratio.square())).mean()
            terms.append((misfit + SIGNS * torch.relu(-first * sign).square().mean()) / size)
        return torch.stack(terms).sum()


@ATTACKS.register("adam-ratios", needs="two steps of Adam, each on the whole batch")
@dataclass(frozen=True, kw_only=True)
class AdamRatios:
    """Two steps of Adam, decoded, then matched.

    With r = g₂/g₁ an entry moves by −lr·sign(g₁)·(1 + φ(r)), φ(r) = (β₁ + r)/(1 + β₁)·√((1 + β₂)/(β₂ + r²)). As φ > −1,
    the sign of the move is that of −g₁, so the weights after the first step are known; as φ grows up to r = β₂/β₁, its
    size gives r. What is left is smooth in the examples: both gradients, and a ratio between them. A search through
    Adam itself has no slope, for its first step is a sign.

    Ratios above β₂/β₁, where the gradient grows, are read as smaller ones. Weight decay, clipping, accumulation, a
    proximal term, an optimiser with a past, and other numbers of steps are not decoded.

    Source: ours.

    Attributes:
        iterations: evaluations of both gradients, at most.
    """

    iterations: int = 1200

    def reconstruct(
        self,
        observation: Observation,
        generator: torch.Generator,
        *,
        budget: Budget = Budget(),
        compute: Compute = Compute(),
        on_step: OnStep | None = None,
    ) -> Reconstruction:
        """Not applicable where the update is of other clients."""
        if why := refuses(observation):
            return Reconstruction.not_applicable(why)
        adam = _adam(observation)
        assert adam is not None
        labels = observation.knowledge.labels
        if labels is None:
            guess = CountsFromLastLayer().infer(observation, generator)
            if isinstance(guess, Unknown):
                return Reconstruction.not_applicable(guess.message)
            labels = guess.labels
        signs, ratios = decoded(observation.update.tensors, adam)
        update = Update(signs, UpdateHeader(UpdateKind.GRADIENT, observation.examples))
        moved = map_tensors(lambda s: -adam.lr * s, signs)
        knowledge = replace(
            observation.knowledge, local_training=TwoGradients(moved), labels=labels, example_count=observation.examples
        )
        search = Matching(
            objective=RatioMisfit(signs, ratios),
            prior=falling(prior=TotalVariation(1e-2, smoothing=1e-6, coupled=True), to=1e-4)
            if observation.task.data.is_image
            else NoPrior(),
            canvas=Pixels(first=Uniform()),
            minimiser=BoundedLBFGS(steps=self.iterations),
        )
        decoded_observation = Observation(observation.task, update, knowledge)
        return search.reconstruct(decoded_observation, generator, budget=budget, compute=compute, on_step=on_step)


def refuses(observation: Observation) -> str:
    """Why the update cannot be decoded; empty where it can."""
    client, examples, adam = observation.knowledge.local_training, observation.examples, _adam(observation)
    if client is None or client.loop is None or adam is None:
        return "needs a client that trained with Adam, and its settings"
    if examples is None:
        return "needs the number of examples (knows: example_count)"
    if client.parts(examples) != (examples, examples) or client.loop.accumulate > 1:
        return f"needs two steps on the whole batch; the client took {client.steps(examples)}"
    if adam.weight_decay or adam.start is not None or client.loop.clip is not None or client.loop.proximal:
        return "weight decay, clipping, a proximal term or an optimiser with a past are not decoded"
    defense = observation.knowledge.defense
    return "the defence changes the update" if defense is not None and parts_of(defense) else ""


def _adam(observation: Observation) -> Adam | None:
    client = observation.knowledge.local_training
    loop = None if client is None or client.aggregates else client.loop
    return loop.optimiser if loop is not None and isinstance(loop.optimiser, Adam) else None


def decoded(delta: Tensors, adam: Adam) -> tuple[Tensors, Tensors]:
    """Signs of the first gradient, 0 for dead entries, and ratios of the second to the first."""
    one, two = adam.betas

    def size(r: Tensor) -> Tensor:
        return (one + r) / (1 + one) * ((1 + two) / (two + r.square())).sqrt()

    def ratio(t: Tensor) -> Tensor:
        moved = t.double().abs() / adam.lr - 1
        low, high = torch.full_like(moved, -FARTHEST), torch.full_like(moved, two / max(one, 1e-3))
        for _ in range(60):
            middle = (low + high) / 2
            above = size(middle) > moved
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return (low + high) / 2

    signs = map_tensors(lambda t: -t.sign().double() * (t.abs() > DEAD * adam.lr), delta)
    return signs, map_tensors(ratio, delta)
