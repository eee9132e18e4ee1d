"""Several defences as one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakgauge.defenses.attacker_view import AttackerView
from leakgauge.defenses.defense import Defense, NoDefense, child_generator, steps_of
from leakgauge.defenses.steps import DefenseStage, DefenseStep, EntryMask, in_turn
from leakgauge.errors import require
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import Update

BEYOND = 5.0
"""Standard deviations of noise that no entry of it alone reaches."""
HIDDEN = 0.05
"""Share of a tensor's energy that may lie below them where its zeros are still seen."""
SURE = 3.0
"""Standard deviations by which the noise's own energy may be less than its mean."""


@dataclass(frozen=True)
class Compose(Defense):
    """Runs defences stage by stage: all task stages, then all batch stages, and so on.

    Within a stage they run in the stated order.

    Raises:
        InputError: no defence, or one that consumes what another needs.
    """

    defenses: tuple[Defense, ...]

    def __post_init__(self) -> None:
        require(bool(self.defenses), "defenses", "an empty composition", "write none")

    @property
    def acts_on_examples(self) -> bool:
        return any(d.acts_on_examples for d in self.defenses)

    @property
    def acts_on_update(self) -> bool:
        return any(d.acts_on_update for d in self.defenses)

    @property
    def fits_to_data(self) -> bool:
        return any(d.fits_to_data for d in self.defenses)

    def on_example_gradients(self, per_example: Tensors, generator: torch.Generator) -> Tensors:
        for defense in self.defenses:
            per_example = defense.on_example_gradients(per_example, child_generator(generator))
        return per_example

    def on_task(self, task: Task) -> Task:
        for defense in self.defenses:
            task = defense.on_task(task)
        return task

    def on_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        for defense in self.defenses:
            batch = defense.on_batch(batch, child_generator(generator))
        return batch

    def for_batch(self, task: Task, batch: Batch) -> Defense:
        return Compose(tuple(defense.for_batch(task, batch) for defense in self.defenses))

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        for defense in self.defenses:
            tensors = defense.on_update(tensors, child_generator(generator))
        return tensors

    def steps(self) -> tuple[DefenseStep, ...]:
        return in_turn(tuple(step for defense in self.defenses for step in steps_of(defense)))

    def without_noise(self) -> Defense:
        return Compose(tuple(defense.without_noise() for defense in self.defenses))

    def steps_on(self, update: Update, draw: torch.Generator | None) -> tuple[DefenseStep, ...]:
        draws = [None if draw is None else child_generator(draw) for _ in self.defenses]
        found: tuple[DefenseStep, ...] = ()
        seen: Update | None = update
        for part, own in zip(reversed(self.defenses), reversed(draws), strict=True):
            steps = part.steps_on(update, own)
            if own is None and seen is not None and seen is not update and not _shows(steps):
                uncovered = part.steps_on(seen, None)
                steps = uncovered if _shows(uncovered) else steps
            found = (*steps, *found)
            seen = _before(steps, seen)
        return found


def _shows(steps: tuple[DefenseStep, ...]) -> bool:
    return any(isinstance(step, EntryMask) and step.support is not None for step in steps)


def parts_of(defense: Defense) -> tuple[Defense, ...]:
    """The defences of a composition, in their order; nothing for none."""
    if isinstance(defense, Compose):
        return tuple(part for inner in defense.defenses for part in parts_of(inner))
    return () if isinstance(defense, NoDefense) else (defense,)


def _before(steps: tuple[DefenseStep, ...], update: Update | None) -> Update | None:
    """The update as it was before a part, as far as that is seen: without the noise that a last stage added to zeros.
    `None` where it reshapes what earlier stages did.

    Entries of a tensor within `BEYOND` deviations of known noise count as zeros, if what the noise may hide among them
    is less than `HIDDEN` of the rest: noise as large as the update hides zeros too.
    """
    own = tuple(step for step in steps if step.stage is DefenseStage.UPDATE)
    if update is None or not own:
        return update
    view = AttackerView(own)
    if view.noise_scale is None or not view.gaussian or view.acts:
        return None
    return replace(update, tensors=map_tensors(_without_noise, update.tensors, view.noise_scale))


def _without_noise(t: Tensor, scale: Tensor) -> Tensor:
    loud = t.abs() > BEYOND * scale
    quiet = int((~loud).sum())
    heard, rest = t[loud].square().sum(), t[~loud].square().sum()
    noise = scale.square() * (quiet - SURE * (2 * quiet) ** 0.5)
    return t * loud if bool(rest - noise <= HIDDEN * heard) else t
