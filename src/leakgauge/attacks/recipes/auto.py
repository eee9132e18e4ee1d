"""The engine's own choice."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from leakgauge.attacks.closed_form.linear import LinearRead
from leakgauge.attacks.closed_form.outer_product import read_one
from leakgauge.attacks.matching import (
    Adam,
    BoundedLBFGS,
    Cosine,
    Given,
    Matching,
    NoPrior,
    Normal,
    Pixels,
    Prior,
    Scheduled,
    TotalVariation,
    Uniform,
    falling,
    proportional,
)
from leakgauge.attacks.matching.canvases import Start
from leakgauge.clients import FedSGD
from leakgauge.compute import Budget, Compute
from leakgauge.defenses import MixUp, parts_of
from leakgauge.errors import require
from leakgauge.observation import Observation, OnStep, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Task
from leakgauge.tracing import input_layers, is_smooth

LATE = (1.43, 1.11)
"""The learning rate of signed Adam falls by ten after .7 and .9 of the steps: most of a short run at full speed."""

NEAR = 1e-3
"""Most weight of the total variation from a start that was read in closed form."""

MOST, MOST_DENSE = 1.5e-2, 1e-2
"""Most weight of signed Adam's total variation; the second, Inverting Gradients' own, without convolutions: the
gradient of a dense first layer holds mixtures of the images themselves, and more weight costs there."""


@ATTACKS.register("auto", needs="example_count")
@dataclass(frozen=True, kw_only=True)
class Auto:
    """Closed form where it is certain, else a matching attack that suits network and budget, as measured.

    Smooth networks (`is_smooth` measures it): bounded L-BFGS in float64 from a uniform start, with a smoothed total
    variation that falls over the run, see `falling_variation`. Others: signed Adam with lr 0.1 from N(0, 1) and a late
    decay, with a total variation that follows the distance, see `following_variation`; from a start that was read in
    closed form with lr 0.03 and a total variation of at most 1e-3, see `doubt_of`. Cosine distance, labels counted
    from the last layer.

    Measured against Inverting Gradients at equal evaluations, untrained networks, ten test images of CIFAR-10 by three
    seeds, medians in dB (docs/minimisers.md): LeNet 37.1 and 15.1, ConvNet of width 16 16.0 and 15.7 (with the paper's
    weight for it; 14.2 with the default), ResNet-20 of width 16 14.5 and 14.0. MLP with two examples, two pairs by two
    seeds: mean 31.3 and 30.3.

    Known failure: single runs of signed Adam are a decibel or two apart, so on a ResNet, where a few hundred
    evaluations recover little, Inverting Gradients wins on every second photo.

    Attributes:
        restarts: independent starts; the lowest distance is kept. One from a read start, where all would be the same.
        smooth_steps, rough_steps: most evaluations of one restart.
    """

    restarts: int = 1
    smooth_steps: int = 600
    rough_steps: int = 2400

    def __post_init__(self) -> None:
        for name in ("restarts", "smooth_steps", "rough_steps"):
            require(getattr(self, name) > 0, name, f"is {getattr(self, name)}", "give a positive number")

    def choice(
        self,
        task: Task,
        generator: torch.Generator,
        first: Start | None = None,
        *,
        doubt: float = 1.0,
        evaluations: int | None = None,
        examples: int = 1,
    ) -> Matching:
        """The matching attack for a task.

        Args:
            first: a start better than a uniform one, if there is one. All restarts would be the same from there.
            doubt: how much a prior may change it, from 0 (not at all) to 1.
            evaluations: that the budget allows each restart.
            examples: in the batch.
        """
        image, objective = task.data.is_image, Cosine()
        restarts = self.restarts if first is None else 1
        if is_smooth(task, generator):
            steps = self.smooth_steps if evaluations is None else max(min(self.smooth_steps, evaluations), 1)
            smooth = falling_variation(max(steps // examples, 1), near=None if first is None else doubt)
            return Matching(
                objective=objective,
                prior=smooth if image else NoPrior(),
                canvas=Pixels(first=first or Uniform()),
                minimiser=BoundedLBFGS(steps=self.smooth_steps),
                restarts=restarts,
            )
        # Near the truth a heavy prior leads away from it before the distance has fallen.
        rough: Prior = following_variation(task) if first is None else TotalVariation(NEAR * doubt)
        return Matching(
            objective=objective,
            prior=rough if image else NoPrior(),
            canvas=Pixels(first=first or Normal()),
            minimiser=Adam(steps=self.rough_steps, lr=0.1 if first is None else 0.03, decay=LATE),
            restarts=restarts,
        )

    def reconstruct(
        self,
        observation: Observation,
        generator: torch.Generator,
        *,
        budget: Budget = Budget(),  # noqa: B008 - frozen
        compute: Compute = Compute(),  # noqa: B008 - frozen
        on_step: OnStep | None = None,
    ) -> Reconstruction:
        """Closed form if it certifies itself, else the search; one example starts from what the closed form read."""
        defense = observation.knowledge.defense
        # A closed form would read the mixtures, which are not the client's examples.
        mixed = defense is not None and any(isinstance(part, MixUp) for part in parts_of(defense))
        attack = self.assembly(observation, generator, budget, read=not mixed)
        if isinstance(attack, Reconstruction):
            return attack
        if isinstance(attack.canvas, Pixels) and isinstance(attack.canvas.first, Given):
            # So near, 1 − cosine has no digits left in float32, and the prior alone would lead away.
            compute = replace(compute, dtype=torch.float64)
        return attack.reconstruct(observation, generator, budget=budget, compute=compute, on_step=on_step)

    def assembly(
        self, observation: Observation, generator: torch.Generator, budget: Budget, *, read: bool = True
    ) -> Matching | Reconstruction:
        """The matching attack for an observation and a budget, or the answer, where the closed form certifies one.

        Args:
            read: whether the closed form may answer or give the start.
        """
        first, doubt = None, 1.0
        if read:
            found = LinearRead().reconstruct(observation, generator)
            if found.status is Status.EXACT:
                return found
            # Images read from a batch come in no order, so they are no start for labels that have one.
            if found.inputs is not None and observation.examples == 1:
                first, doubt = Given(found.inputs), doubt_of(observation, generator)
        evaluations = affordable(observation, budget, self.restarts if first is None else 1)
        examples = observation.examples or 1
        return self.choice(observation.task, generator, first, doubt=doubt, evaluations=evaluations, examples=examples)


def doubt_of(observation: Observation, generator: torch.Generator) -> float:
    """How much a prior may change what the closed form read of one example, from 0 to 1.

    The weight of a prior beside a squared misfit goes with the power of the noise, of which the unexplained share of
    the layer's gradient is an estimate: 1 from a share of a fifth on. Inputs that were not seen (top-k) are the
    prior's, so it is never below their share; a heavy prior for a few of them would spoil the others. Of rounded
    entries the unexplained share says nothing. With a weight of 1e-3 whatever the noise, MLPs under noise of .003 of
    the update ended at 33 to 54 dB from reads of 72 to 84; with this at 74 to 86 (two photos, tanh and ReLU, 200
    evaluations).
    """
    layers = [layer for layer in input_layers(observation.task, generator) if layer.bias is not None]
    read = read_one(observation, layers[0])
    unseen = 1 - float(read.seen.double().mean())
    return 1.0 if read.rounded else min(max(5 * read.unexplained, unseen), 1.0)


def falling_variation(steps: int, *, near: float | None = None) -> Scheduled:
    """Smoothed total variation for a smooth network and a cosine data term, from 3e-2 down.

    It ends at 1e-3 · (150 / steps)², `steps` counted for each example, because a short run needs the prior to its
    end; between 1e-5 and 3e-2. It is never below a hundredth of the relative misfit √(2·data), so that noise, whether
    known or not, is not explained by the image.

    Where the start is near, with a doubt from 0 to 1, it starts at `NEAR` · doubt, and is never above.
    """
    first = 3e-2 if near is None else max(NEAR * near, 1e-12)
    last = min(max(1e-3 * (150 / steps) ** 2, 1e-5), first)
    return falling(prior=TotalVariation(first, smoothing=1e-6), to=last / first, misfit=1e-2 / first)


def following_variation(task: Task) -> Scheduled:
    """Total variation for a network with kinks: 150 · distance², at most `MOST`.

    The cosine distance comes near 1e-3 on a ConvNet, where this weight is about the 1e-4 of Inverting Gradients'
    Table 2 and the photo shows, and stays above 1e-2 on a ResNet, where less than 1e-2 leaves noise.
    """
    dense = not any(isinstance(m, nn.modules.conv._ConvNd) for m in task.module.modules())
    return proportional(prior=TotalVariation(1.0), share=150.0, power=2.0, most=MOST_DENSE if dense else MOST)


def affordable(observation: Observation, budget: Budget, restarts: int) -> int | None:
    """Evaluations of one restart that a budget allows; a candidate costs as many as the client took steps."""
    if budget.gradient_evaluations is None:
        return None
    protocol = observation.knowledge.local_training or FedSGD()
    return budget.gradient_evaluations // (restarts * max(protocol.steps(observation.examples or 1), 1))
