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
    TotalVariation,
    Uniform,
)
from leakgauge.attacks.matching.canvases import Start
from leakgauge.attacks.smoothness import is_smooth
from leakgauge.compute import Budget, Compute
from leakgauge.errors import require
from leakgauge.observation import Observation
from leakgauge.reconstruction import OnStep, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Task


@ATTACKS.register("auto", needs="example_count")
@dataclass(frozen=True, kw_only=True)
class Auto:
    """Closed form where it is certain, else a matching attack that suits the network, measured rather than assumed.

    Smooth networks (`is_smooth` measures it): bounded L-BFGS in float64 with a smoothed total variation of
    1e-3. Others: signed Adam with lr 0.03 and total variation 1e-3, whose schedule fits the budget.
    Both from a uniform start inside the data's range, cosine distance, labels counted from the last layer.

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

    def choice(self, task: Task, generator: torch.Generator, first: Start | None = None) -> Matching:
        """The matching attack for a task, from `first` if something better than a uniform start is at hand."""
        image = task.data.is_image
        canvas, objective = Pixels(first=first or Uniform()), Cosine()
        if is_smooth(task, generator):
            prior = TotalVariation(1e-3, smoothing=1e-6) if image else NoPrior()
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
        attack = self.choice(observation.task, generator, first)
        return attack.reconstruct(observation, generator, budget=budget, compute=compute, on_step=on_step)
