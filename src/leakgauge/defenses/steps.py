"""What a defence does to batch, example gradients and entries, in typed steps that compose by concatenation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import IntEnum

from torch import Tensor

from leakgauge.tensors import Tensors


class DefenseStage(IntEnum):
    """When a step acts. All steps of a stage come before those of the next."""

    BATCH = 0
    EXAMPLES = 1
    UPDATE = 2


@dataclass(frozen=True, kw_only=True)
class DefenseStep:
    """One thing that a defence does.

    Attributes:
        stage: when.
        blind: it does the same to an entry whatever its tensor is called and wherever in it the entry stands.
        looks: it looks at the batch again.
        by: the defence's name.
    """

    stage: DefenseStage = DefenseStage.UPDATE
    blind: bool = True
    looks: bool = False
    by: str = ""


@dataclass(frozen=True, kw_only=True)
class Scale(DefenseStep):
    """The whole update times one factor of at most one, so that its Euclidean norm is at most `bound`."""

    bound: float


@dataclass(frozen=True, kw_only=True)
class PerExampleScale(DefenseStep):
    """Each example's gradient times a factor of its own of at most one: its norm is at most `bound`, over all tensors
    or `by_layer`."""

    bound: float
    by_layer: bool = False
    stage: DefenseStage = DefenseStage.EXAMPLES


def _one(tensor: Tensor) -> float:
    del tensor
    return 1.0


@dataclass(frozen=True, kw_only=True)
class EntryMask(DefenseStep):
    """Entries are left out, the others sent as they are, or times a known factor of their tensor.

    Attributes:
        smallest: those left out are no larger than the others.
        keep: share of each tensor's entries that is sent; `None` where tensors differ.
        factor: of the kept entries, tensor by tensor.
        lengthens: that factor may exceed one.
    """

    smallest: bool = False
    keep: float | None = None
    factor: Callable[[Tensor], float] = _one
    lengthens: bool = False


@dataclass(frozen=True, kw_only=True)
class EntryGrid(DefenseStep):
    """Entries are rounded to few values: `levels` steps on each side of zero, `None` where steps are not alike."""

    levels: int | None = None


@dataclass(frozen=True, kw_only=True)
class Noise(DefenseStep):
    """Independent noise on every entry.

    Attributes:
        sigma: its standard deviation on the update; `None` where it follows the data or the number of examples.
        gaussian: whether it is normal.
        on_mean: of noise in the example stage: examples of a step → deviation on their mean; `None` where it follows
            the data.
        seen: tensors of an update → that deviation, as far as they show it.
        multiplier: ``(examples of a step, layers)`` → noise on the sum over the most that one example moves it, or why
            there is none.
    """

    sigma: float | None = None
    gaussian: bool = True
    on_mean: Callable[[int], float | None] | None = None
    seen: Callable[[Tensors], float] | None = None
    multiplier: Callable[[int | None, int | None], float | str] | None = None


@dataclass(frozen=True, kw_only=True)
class Mix(DefenseStep):
    """The client trains on other examples: each made of one of its own, or of `several`."""

    several: bool
    stage: DefenseStage = DefenseStage.BATCH
    blind: bool = False


@dataclass(frozen=True, kw_only=True)
class Nonlinear(DefenseStep):
    """Anything else; `derived` where a class changes what the defence that it derives from does."""

    blind: bool = False
    derived: bool = False


MEMBERS = frozenset({"attacker_view", "tells_nothing"})
"""Members of a defence that change nothing that is sent."""


def changed_since(kind: type, base: type) -> bool:
    """Whether a class writes anew what stages of its base are, or call."""
    kinds = kind.__mro__
    settings = {field.name for field in fields(base)} if is_dataclass(base) else set()
    own = {name for one in kinds[: kinds.index(base)] for name in vars(one) if not name.startswith("__")}
    return bool(own & (set(dir(base)) - settings - MEMBERS))


def named(steps: tuple[DefenseStep, ...], by: str) -> tuple[DefenseStep, ...]:
    """The steps of one defence, by its name."""
    return tuple(step if step.by else replace(step, by=by) for step in steps)


def in_turn(steps: tuple[DefenseStep, ...]) -> tuple[DefenseStep, ...]:
    """Steps of several defences stage by stage, in the stated order within each."""
    return tuple(sorted(steps, key=lambda step: step.stage))
