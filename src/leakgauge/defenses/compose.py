"""Several defences as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakgauge.defenses.defense import AttackerView, Defense, NoDefense, child_generator, inherited_view, steps_of
from leakgauge.defenses.mechanism import gaussian_view
from leakgauge.defenses.steps import DefenseStep, in_turn
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
    def tells_nothing(self) -> bool:
        return any(d.tells_nothing for d in self.defenses)

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

    def attacker_view(self, update: Update, draw: torch.Generator | None) -> AttackerView:
        draws = [None if draw is None else child_generator(draw) for _ in self.defenses]
        views: list[AttackerView] = []
        seen: Update | None = update
        for part, own in zip(reversed(self.defenses), reversed(draws), strict=True):
            view = inherited_view(part, update, own)
            if own is None and seen is not None and seen is not update and view.support is None:
                uncovered = inherited_view(part, seen, None)
                view = view if uncovered.support is None else uncovered
            views.insert(0, view)
            seen = _before(part, view, seen)
        supports = [v.support for v in views if v.support is not None]
        rounded = [v.rounding for v in views if v.rounding is not None]

        def simulate(raw: Tensors) -> Tensors:
            for view in views:
                raw = view(raw)
            return raw

        def relaxed(raw: Tensors) -> Tensors:
            for view in views:
                raw = view.relax(raw)
            return raw

        # Noise of the example stage comes before every update stage, wherever it is written.
        order = sorted(range(len(views)), key=lambda i: self.defenses[i].acts_on_update)
        in_turn = [views[i] for i in order if not views[i].is_empty]
        # Noise that its view is silent about (that of local steps, in a delta) is not the later stages' alone.
        untold = any(v.is_empty and d.without_noise() is not d for d, v in zip(self.defenses, views, strict=True))
        told = all(_is_told(part, view) for part, view in zip(self.defenses, views, strict=True))
        return AttackerView(
            simulate=simulate if any(v.simulate is not None for v in views) else None,
            relaxed=relaxed if any(v.relaxed is not None for v in views) else None,
            support=map_tensors(lambda *s: torch.stack(s).all(0), *supports) if supports else None,
            unsent_small=bool(supports) and all(v.unsent_small for v in views if v.support is not None),
            noise_scale=None if untold else _noise_scale(in_turn),
            log_likelihood=_log_likelihood(in_turn, update) if told else None,
            gaussian=all(v.gaussian for v in views if v.noise_scale is not None),
            rounding=map_tensors(lambda *one: torch.stack(one).sum(0), *rounded) if rounded else None,
        )


def parts_of(defense: Defense) -> tuple[Defense, ...]:
    """The defences of a composition, in their order; nothing for none."""
    if isinstance(defense, Compose):
        return tuple(part for inner in defense.defenses for part in parts_of(inner))
    return () if isinstance(defense, NoDefense) else (defense,)


def _before(part: Defense, view: AttackerView, update: Update | None) -> Update | None:
    """The update as it was before a part, as far as that is seen: without the noise that a last stage added to zeros.
    `None` where it reshapes what earlier stages did.

    Entries of a tensor within `BEYOND` deviations of known noise count as zeros, if what the noise may hide among them
    is less than `HIDDEN` of the rest: noise as large as the update hides zeros too.
    """
    if update is None or not part.acts_on_update:
        return update
    scale = view.noise_scale
    if scale is None or not view.gaussian or view.simulate is not None:
        return None
    return replace(update, tensors=map_tensors(_without_noise, update.tensors, scale))


def _without_noise(t: Tensor, scale: Tensor) -> Tensor:
    loud = t.abs() > BEYOND * scale
    quiet = int((~loud).sum())
    heard, rest = t[loud].square().sum(), t[~loud].square().sum()
    noise = scale.square() * (quiet - SURE * (2 * quiet) ** 0.5)
    return t * loud if bool(rest - noise <= HIDDEN * heard) else t


def _is_told(part: Defense, view: AttackerView) -> bool:
    """Whether the view says what the part does after the example stage: later noise may have covered it."""
    return not view.is_empty or not (part.acts_on_update or part.without_noise() is not part)


def _log_likelihood(views: list[AttackerView], update: Update) -> Callable[[Tensors], Tensor] | None:
    """Of the last random stage, given what the deterministic ones before it make of the raw update.

    Several random stages count as one where all of them add Gaussian noise and nothing after the first reshapes it, one
    rounding among them apart (`AttackerView.beside_noise`). Otherwise, and where a deterministic stage comes last, the
    likelihood is an integral not stated here: `None`.
    """
    random = [i for i, view in enumerate(views) if view.log_likelihood is not None or view.noise_scale is not None]
    if not random or random[-1] != len(views) - 1:
        return None
    first, last = random[0], views[-1].log_likelihood
    rounding = [view for view in views[first:] if view.beside_noise is not None]
    noises = [view for view in views[first:] if view.beside_noise is None]
    if len(rounding) == 1 and noises:
        total = _noise_scale(noises)
        if total is None or not all(view.gaussian and view.support is None for view in noises):
            return None
        last = None if rounding[0].beside_noise is None else rounding[0].beside_noise(total)
    elif len(random) > 1:
        total = _noise_scale(views)
        if total is None or not all(view.gaussian and view.support is None for view in views[first:]):
            return None
        last = gaussian_view(update, total, views[first].simulate).log_likelihood
    if last is None:
        return None
    likelihood = last

    def log_likelihood(raw: Tensors) -> Tensor:
        for view in views[:first]:
            raw = view(raw)
        return likelihood(raw)

    return log_likelihood


def _noise_scale(views: list[AttackerView]) -> Tensors | None:
    """Independent noises add in variance. Noise that a later stage reshapes (clips, say) has no known scale."""
    total: Tensors | None = None
    for view in views:
        if total is not None and view.simulate is not None:
            return None
        if view.noise_scale is not None:
            total = view.noise_scale if total is None else map_tensors(torch.hypot, total, view.noise_scale)
    return total
