"""Searches for few numbers, by the Jacobian of the update."""

from __future__ import annotations

import math
from dataclasses import replace

from leakgauge.attacks.effort import Effort
from leakgauge.attacks.matching import BoundedLBFGS, GaussNewton, Matching, NoPrior, Pixels, Uniform
from leakgauge.defenses.defense import leaves_gradients
from leakgauge.observation import Observation, Reconstruction, Status

FEW, MOST_ENTRIES = 192, 2**24
"""Unknowns of a smooth network, and entries of their Jacobian, up to which `GaussNewton` is tried first."""

STARTS, JACOBIANS = 6, 12
"""From how many starts; and the Jacobians that half of a budget is to allow."""


def by_jacobian(attack: Matching, observation: Observation, effort: Effort) -> Reconstruction | None:
    """What half of the budget finds so, where few numbers are searched for and that is enough."""
    unknown, half = _few(observation, attack), effort.left(0, share=0.5)
    if not unknown or isinstance(half, Status):
        return None
    most = half.budget.gradient_evaluations
    if most is not None and most < JACOBIANS * unknown:
        return None
    return half.of(replace(attack, minimiser=GaussNewton(), prior=NoPrior(), restarts=STARTS), observation)


def _few(observation: Observation, attack: Matching) -> int:
    """How many numbers are searched for, where they are few on a smooth network, so that a Jacobian of the update costs
    little; else 0."""
    task, count, known = observation.task, observation.examples or 0, observation.knowledge
    targets = task.layout.sought(count) if not task.layout.of_classes and count else {}
    unknown = count * math.prod(task.data.shape) + sum(map(math.prod, targets.values()))
    entries = sum(p.numel() for p in task.parameters.values())
    plain = leaves_gradients(known.defense) and (known.local_training is not None or observation.gradient is not None)
    smooth = isinstance(attack.minimiser, BoundedLBFGS) and not task.stochastic
    fits = unknown <= min(FEW, entries) and unknown * entries <= MOST_ENTRIES
    return unknown if smooth and plain and fits and attack.canvas == Pixels(first=Uniform()) else 0
