"""What a defence did to an update, as it acts on another form of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakgauge.defenses.defense import Defense, steps_of, view_of
from leakgauge.defenses.steps import DefenseStep, EntryGrid, EntryMask, Noise, commutes
from leakgauge.task import Batch
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import Update


@dataclass(frozen=True, eq=False)
class Carried(Defense):
    """What a defence did to an update, as it acts on tensors that are a linear map of the update's: noise on any; what
    goes by entries on those that hold the same entries, each in a scale of its own; on others, entries that were not
    all sent are left out."""

    inner: Defense
    deviations: tuple[Tensors, ...]  # of each of its noises in turn, on each tensor
    support: Tensors | None = None  # entries that are made of such alone as were sent

    @staticmethod
    def of(
        defense: Defense,
        update: Update,
        copies: Mapping[str, tuple[str, float]] | None,
        moved: Callable[[Tensors], Tensors],
    ) -> "Carried | None":
        """As the linear map `moved` carries it over, `copies` being tensor → the update's own that it holds the entries
        of, and their ratio, or `None` where some is none. `None` where some step does something else to these tensors
        (a clip, whose bound is one length for all), or is not known."""
        seen = view_of(defense, update, None).steps
        masks = [s for s in seen if isinstance(s, EntryMask)] if copies is None else []
        kinds = (Noise, EntryMask) if copies is None else (Noise, EntryMask, EntryGrid)
        fits = all(commutes(s) or keeps_together(s, update, moved) or (s.blind and isinstance(s, kinds)) for s in seen)
        fits &= all(mask.support is not None and not mask.lengthens for mask in masks)
        if not fits or not all(_follows(s, update.tensors) for s in seen):
            return None
        sent = view_of(defense, update, None).support if masks else None
        whole = None if sent is None else _whole(sent, moved)
        if whole is not None and not any(bool(t.any()) for t in whole.values()):
            return None
        noises = [s.deviation for s in seen if isinstance(s, Noise) and s.deviation is not None]
        return Carried(defense, tuple(_deviation(noise, update.tensors, copies, moved) for noise in noises), whole)

    def on_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        return self.inner.on_batch(batch, generator)

    def on_example_gradients(self, per_example: Tensors, generator: torch.Generator) -> Tensors:
        return self.inner.on_example_gradients(per_example, generator)

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        return self.inner.on_update(tensors, generator)

    def overrides(self, stage: str) -> bool:
        return self.inner.overrides(stage)

    def without_noise(self) -> Defense:
        return replace(self, inner=self.inner.without_noise())

    def steps(self) -> tuple[DefenseStep, ...]:
        return steps_of(self.inner)

    def steps_on(self, update: Update, draw: torch.Generator | None) -> tuple[DefenseStep, ...]:
        found = self.inner.steps_on(update, draw)
        own = iter(self.deviations)

        def as_here(step: DefenseStep) -> DefenseStep:
            if isinstance(step, EntryMask) and self.support is not None:
                return replace(step, support=self.support, how=None, smallest=False)
            return replace(step, deviation=next(own)) if isinstance(step, Noise) else step

        return tuple(map(as_here, found))


def keeps_together(step: DefenseStep, update: Update, moved: Callable[[Tensors], Tensors]) -> bool:
    """Whether a step that goes by names looks at the same entries together in tensors that are a linear map of an
    update's, as random ones in some of its tensors alone show."""
    if step.together is None:
        return False
    draw, taken = torch.Generator().manual_seed(0), set[str]()
    drawn = {k: torch.randn(t.shape, generator=draw, dtype=torch.float64) for k, t in update.tensors.items()}
    for group in step.together(update.tensors).values():
        made = moved({k: t if k in group else torch.zeros_like(t) for k, t in drawn.items()})
        reached = {k: {bool(made[name].any()) for name in own} for k, own in step.together(made).items()}
        now = {k for k, one in reached.items() if True in one}
        if any(len(one) > 1 for one in reached.values()) or len(now) > 1 or now & taken:
            return False
        taken |= now
    return True


DRAWN = 8  # draws of noise that show what a linear map makes of it


def _deviation(
    noise: Tensors, sent: Tensors, copies: Mapping[str, tuple[str, float]] | None, moved: Callable[[Tensors], Tensors]
) -> Tensors:
    """Standard deviation of the noise on each tensor; of the entry that gets most where they differ."""
    if copies is not None:
        return {name: ratio * noise[source] for name, (source, ratio) in copies.items()}
    draw, squares = torch.Generator().manual_seed(0), dict[str, Tensor]()
    for _ in range(DRAWN):
        drawn = {k: torch.randn(t.shape, generator=draw, dtype=torch.float64) for k, t in sent.items()}
        for name, made in moved({k: noise[k].to(one) * one for k, one in drawn.items()}).items():
            squares[name] = squares.get(name, torch.zeros(())) + made.square() / DRAWN
    return {name: square.max().sqrt() for name, square in squares.items()}


EXACT = 1e-9  # share of the largest entry of a tensor that double precision may leave where nothing is


def _whole(sent: Tensors, moved: Callable[[Tensors], Tensors]) -> Tensors:
    """Which entries a linear map makes of such alone as were sent, as random ones in place of the others show."""
    draw = torch.Generator().manual_seed(0)
    drawn = {k: torch.randn(t.shape, generator=draw, dtype=torch.float64) for k, t in sent.items()}
    lost, all_ = moved({k: t * ~sent[k].bool().cpu() for k, t in drawn.items()}), moved(drawn)
    return {k: (t.abs() <= EXACT * all_[k].abs().max()).to(next(iter(sent.values())).device) for k, t in lost.items()}


def _follows(step: DefenseStep, tensors: Tensors) -> bool:
    """Whether noise is known, and the width of a grid the tensor's own."""
    if isinstance(step, Noise):
        return step.deviation is not None
    if not isinstance(step, EntryGrid) or step.width is None:
        return not isinstance(step, EntryGrid)
    one, other = step.width(tensors), step.width(map_tensors(lambda t: 2 * t, tensors))
    return all(torch.allclose(2 * one[k], other[k]) for k in one)
