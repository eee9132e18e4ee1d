"""Several defences as one."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakgauge.defenses.defense import AttackerView, Defense, child_generator
from leakgauge.errors import require
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import Update


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

    def attacker_view(self, update: Update, draw: torch.Generator | None) -> AttackerView:
        views = [d.attacker_view(update, None if draw is None else child_generator(draw)) for d in self.defenses]
        supports = [v.support for v in views if v.support is not None]

        def simulate(raw: Tensors) -> Tensors:
            for view in views:
                raw = view(raw)
            return raw

        return AttackerView(
            simulate=simulate if any(v.simulate is not None for v in views) else None,
            support=map_tensors(lambda *s: torch.stack(s).all(0), *supports) if supports else None,
            unsent_small=bool(supports) and all(v.unsent_small for v in views if v.support is not None),
            noise_scale=_noise_scale(views),
        )


def _noise_scale(views: list[AttackerView]) -> Tensors | None:
    """Independent noises add in variance. Noise that a later stage reshapes (clips, say) has no known scale."""
    total: Tensors | None = None
    for view in views:
        if total is not None and view.simulate is not None and view.noise_scale is None:
            return None
        if view.noise_scale is not None:
            total = view.noise_scale if total is None else map_tensors(torch.hypot, total, view.noise_scale)
    return total
