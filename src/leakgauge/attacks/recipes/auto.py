"""The engine's own choice."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakgauge.attacks.closed_form.linear import LinearRead
from leakgauge.attacks.matching import (
    Adam,
    BoundedLBFGS,
    Cosine,
    Given,
    Matching,
    NoPrior,
    Pixels,
    Prior,
    Scheduled,
    TotalVariation,
    Uniform,
    falling,
)
from leakgauge.attacks.matching.canvases import Start
from leakgauge.attacks.smoothness import is_smooth
from leakgauge.clients import FedSGD
from leakgauge.compute import Budget, Compute
from leakgauge.errors import require
from leakgauge.observation import Observation
from leakgauge.reconstruction import OnStep, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Task


@ATTACKS.register("auto", needs="example_count")
@dataclass(frozen=True, kw_only=True)
class Auto:
    """Closed form where it is certain, else a matching attack that suits network and budget, as measured.

    Smooth networks (`is_smooth` measures it): bounded L-BFGS in float64 with a smoothed total variation that
    falls over the run, see `falling_variation`. Others: signed Adam with lr 0.03 and total variation 1e-3,
    whose schedule fits the budget. Both from a uniform start inside the data's range, cosine distance, labels
    counted from the last layer.

    Attributes:
        restarts: independent starts; the lowest distance is kept.
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
        evaluations: int | None = None,
        examples: int = 1,
    ) -> Matching:
        """The matching attack for a task.

        Args:
            first: a start better than a uniform one, if there is one.
            evaluations: that the budget allows each restart.
            examples: in the batch.
        """
        image = task.data.is_image
        canvas, objective = Pixels(first=first or Uniform()), Cosine()
        if is_smooth(task, generator):
            steps = self.smooth_steps if evaluations is None else max(min(self.smooth_steps, evaluations), 1)
            prior: Prior = falling_variation(max(steps // examples, 1), near=first is not None) if image else NoPrior()
            minimiser = BoundedLBFGS(steps=self.smooth_steps)
            return Matching(
                objective=objective, prior=prior, canvas=canvas, minimiser=minimiser, restarts=self.restarts
            )
        prior = TotalVariation(1e-3) if image else NoPrior()
        adam = Adam(steps=self.rough_steps, lr=0.03)
        return Matching(objective=objective, prior=prior, canvas=canvas, minimiser=adam, restarts=self.restarts)

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
        read = LinearRead().reconstruct(observation, generator)
        if read.status is Status.EXACT:
            return read
        # Images read from a batch come in no order, so they are no start for labels that have one.
        first = Given(read.inputs) if read.inputs is not None and observation.example_count == 1 else None
        evaluations = affordable(observation, budget, self.restarts)
        examples = observation.example_count or 1
        attack = self.choice(observation.task, generator, first, evaluations=evaluations, examples=examples)
        return attack.reconstruct(observation, generator, budget=budget, compute=compute, on_step=on_step)


def falling_variation(steps: int, *, near: bool = False) -> Scheduled:
    """Smoothed total variation for a smooth network and a cosine data term, from 3e-2 down (1e-3 if the start is near).

    It ends at 1e-3 · (150 / steps)², `steps` counted for each example, because a short run needs the prior to its
    end; between 1e-5 and 3e-2. It is never below a hundredth of the relative misfit √(2·data), so that noise, whether
    known or not, is not explained by the image.
    """
    first = 1e-3 if near else 3e-2
    last = min(max(1e-3 * (150 / steps) ** 2, 1e-5), first)
    return falling(prior=TotalVariation(first, smoothing=1e-6), to=last / first, misfit=1e-2 / first)


def affordable(observation: Observation, budget: Budget, restarts: int) -> int | None:
    """Evaluations of one restart that a budget allows; a candidate costs as many as the client took steps."""
    if budget.gradient_evaluations is None:
        return None
    protocol = observation.knowledge.local_training or FedSGD()
    return budget.gradient_evaluations // (restarts * max(protocol.steps(observation.example_count or 1), 1))
