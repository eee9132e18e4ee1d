"""One group of variables after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.attacks.matching.adam import Adam
from leakgauge.attacks.matching.problem import Loss, Minimum, Problem
from leakgauge.errors import require
from leakgauge.reconstruction import Status
from leakgauge.registry import MINIMISERS
from leakgauge.tensors import Tensors


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A phase: the variables whose names begin with one of `moves` move, the others are held.

    Attributes:
        moves: prefixes, e.g. ``("code",)``.
        minimiser: of this phase.
    """

    moves: tuple[str, ...]
    minimiser: Adam


@MINIMISERS.register("in-turn")
@dataclass(frozen=True, kw_only=True)
class InTurn:
    """Phases, each from where the last one ended (GIAS: codes, then weights).

    Adam does not move a variable whose gradient is zero, so held ones are detached. A budget below the sum of
    steps is shared in proportion to the phases' steps.
    """

    turns: tuple[Turn, ...]

    batched: ClassVar[bool] = True
    dtype: ClassVar[torch.dtype | None] = None

    def __post_init__(self) -> None:
        require(bool(self.turns), "turns", "is empty", "give at least one phase")

    def minimise(self, problem: Problem) -> Minimum:
        """Runs the phases; a phase that the budget allows no evaluation keeps the point it was given."""
        steps = [turn.minimiser.steps for turn in self.turns]
        point, found = problem.start, None
        for index, turn in enumerate(self.turns):
            affordable = problem.affordable()
            ceiling = problem.ceiling
            if affordable is not None and affordable < sum(steps[index:]):
                share = affordable * steps[index] // sum(steps[index:])
                ceiling = problem.meter.spent + share * problem.cost * problem.restarts
            phase = Problem(
                held(problem.loss, turn.moves),
                point,
                problem.bounds,
                problem.meter,
                problem.cost,
                problem.chunk,
                ceiling=ceiling,
                schedule=problem.schedule,
            )
            minimum = turn.minimiser.minimise(phase)
            if not minimum.variables:
                continue
            point, found = minimum.variables, minimum
            if minimum.status in (Status.STOPPED, Status.TIME_LIMIT, Status.NON_FINITE):
                break
        return found if found is not None else minimum


def held(loss: Loss, moves: tuple[str, ...]) -> Loss:
    """The loss with every variable detached whose name begins with none of `moves`."""

    def partly(variables: Tensors) -> tuple[Tensor, Tensor]:
        return loss({k: v if k.startswith(moves) else v.detach() for k, v in variables.items()})

    return partly
