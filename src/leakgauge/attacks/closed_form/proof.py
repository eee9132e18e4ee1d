"""Labels for examples that were read, and the proof by simulation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.attacks.labels import CountsFromLastLayer, Unknown
from leakgauge.attacks.labels.tried import tried_labels
from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.observation import Cost, Observation, Reconstruction, Status
from leakgauge.task import Batch


@dataclass(frozen=True, eq=False)
class NamedLabels:
    """Labels of examples.

    Attributes:
        labels: `None` where nothing tells them.
        confidence: as in `Reconstruction`; `None` where they are known, or the update's fit is to say it.
        cost: gradient evaluations.
        why: what hinders.
    """

    labels: Int[Tensor, " n"] | None
    confidence: float | None = None
    cost: int = 0
    why: str = ""


def name_labels(
    observation: Observation, generator: torch.Generator, inputs: Float[Tensor, "n *shape"] | None = None
) -> NamedLabels:
    """Those that are known, else counted off the last layer, else tried on the raw inputs, if these are given."""
    if observation.knowledge.labels is not None:
        return NamedLabels(observation.knowledge.labels)
    guess = CountsFromLastLayer().infer(observation, generator)
    if not isinstance(guess, Unknown):
        return NamedLabels(guess.labels, guess.confidence)
    tried = None if inputs is None else tried_labels(observation, inputs)
    if tried is None:
        return NamedLabels(None, why=guess.message)
    return NamedLabels(tried.labels, 1.0 - min(tried.unexplained, 1.0), tried.cost)


def simulated(
    observation: Observation,
    inputs: Float[Tensor, "n *shape"],
    named: NamedLabels,
    generator: torch.Generator,
    explainer: Explainer | None = None,
) -> Reconstruction:
    """Raw examples as a result: `EXACT` where the simulated update explains the observed one and proves them all,
    else `CONVERGED`; without labels nothing is simulated.

    Args:
        explainer: one that has spent already.
    """
    kind = torch.promote_types(next(iter(observation.task.parameters.values())).dtype, torch.float32)
    if named.labels is None:
        return Reconstruction(inputs.to(kind), None, Status.CONVERGED, f"read, not certified: {named.why}")
    explainer = explainer or Explainer.of(observation, generator)
    batch = Batch(inputs, named.labels)
    left, certified = explainer.left(batch), explainer.certified(batch, generator)
    fitted = None if observation.knowledge.labels is not None else 1.0 - min(left, 1.0)
    return Reconstruction(
        inputs.to(kind),
        named.labels,
        Status.EXACT if bool(certified.all()) else Status.CONVERGED,
        f"{left:.1e} of the update's length unexplained",
        label_confidence=fitted if named.confidence is None else named.confidence,
        cost=Cost(explainer.spent + named.cost),
        certified=certified,
    )
