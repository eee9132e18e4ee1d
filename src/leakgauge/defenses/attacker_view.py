"""What an attacker who knows a defence can do about it: a fold over its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from leakgauge.defenses.steps import DefenseStep, EntryGrid, EntryMask, Noise, Nonlinear, Scale
from leakgauge.tensors import Tensors, map_tensors


@dataclass(frozen=True, eq=False)
class AttackerView:
    """What knowing a mechanism gives, computed from the wire alone; a call is the raw update as it would be sent, but
    for noise whose draw is unknown. Empty, it says nothing."""

    steps: tuple[DefenseStep, ...] = ()  # in turn, as seen `on` one update
    tensors: Tensors = field(default_factory=dict)  # of that update

    def __call__(self, raw: Tensors) -> Tensors:
        for step in self.steps:
            raw = step.sent(raw)
        return raw

    def relax(self, raw: Tensors) -> Tensors:
        """As a call, without the rounding of quantisers, which has no gradient of use. Attacks match this one."""
        for step in self.steps:
            raw = raw if isinstance(step, EntryGrid) else step.sent(raw)
        return raw

    @property
    def acts(self) -> bool:
        """Whether a call does more than leave out entries."""
        return any(map(_acts, self.steps))

    @property
    def _masks(self) -> list[EntryMask]:
        return [step for step in self.steps if isinstance(step, EntryMask) and step.support is not None]

    @cached_property
    def support(self) -> Tensors | None:
        """Entries that the client may have sent, name → bool; `None` where that is not seen."""
        masks = [step.support for step in self._masks if step.support is not None]
        return map_tensors(lambda *one: torch.stack(one).all(0), *masks) if masks else None

    @property
    def unsent_small(self) -> bool:
        """Entries outside the support are no larger than those inside (top-k), so that zero is a good guess of them;
        otherwise nothing is known of them (pruned columns)."""
        return bool(self._masks) and all(step.smallest for step in self._masks)

    @cached_property
    def noise_scale(self) -> Tensors | None:
        """Standard deviation of the noise on each tensor, name → scalar; `None` without noise, and where it is not
        known: that of local steps in a delta, or what a later step has reshaped."""
        return _total(self.steps)

    @property
    def gaussian(self) -> bool:
        """Whether that noise is Gaussian, so that several add up to one."""
        noises = [step for step in self.steps if isinstance(step, Noise) and step.deviation is not None]
        return bool(noises) and all(step.gaussian for step in noises)

    @cached_property
    def rounding(self) -> Tensors | None:
        """Largest error of an entry by rounding to a grid, name → scalar; `None` where there is none that is known."""
        grids = [s.width(self.tensors) for s in self.steps if isinstance(s, EntryGrid) and s.width is not None]
        return map_tensors(lambda *one: torch.stack(one).sum(0), *grids) if grids else None

    @cached_property
    def log_likelihood(self) -> Callable[[Tensors], Tensor] | None:
        """Raw update → log p(sent | raw), up to a constant, of the last steps at random, given what those before make
        of it: its argument is not what a call returns.

        Several noises count as one where all are Gaussian and nothing after the first reshapes it, one rounding among
        them apart (`EntryGrid.beside`). Otherwise, and where another step comes last, it is an integral not stated
        here: `None`.
        """
        steps = [step for step in self.steps if _acts(step) or _random(step) or not step.told or step in self._masks]
        first = next((i for i, step in enumerate(steps) if _random(step)), len(steps))
        last = steps[first:]
        if not last or not all(map(_random, last)) or not all(step.told for step in steps):
            return None
        noises = tuple(step for step in last if isinstance(step, Noise))
        grids = [step for step in last if isinstance(step, EntryGrid)]
        if len(last) > 1 and not all(step.gaussian for step in noises):
            return None
        if len(grids) > 1 or (noises and not all(grid.beside for grid in grids)):
            return None
        total = _total(noises)

        def log_likelihood(raw: Tensors) -> Tensor:
            for step in steps[:first]:
                raw = step.sent(raw)
            for grid in grids:
                assert grid.density is not None
                return grid.density(raw, self.tensors, total or {})
            return Noise(gaussian=noises[0].gaussian, deviation=total).log_likelihood(raw, self.tensors)

        return log_likelihood


def _acts(step: DefenseStep) -> bool:
    """Whether it reshapes what came before it, as far as is known."""
    scaled = isinstance(step, EntryMask) and step.lengthens and step.support is not None
    return isinstance(step, Scale) or step.how is not None or scaled


def _random(step: DefenseStep) -> bool:
    """Whether it has a density of its own."""
    grid = isinstance(step, EntryGrid) and step.density is not None
    return grid or (isinstance(step, Noise) and step.deviation is not None)


def _total(steps: tuple[DefenseStep, ...]) -> Tensors | None:
    """Independent noises add in variance. Noise that a later step reshapes (clips, say) has no known scale."""
    total: Tensors | None = None
    for step in steps:
        reshaped = total is not None and (_acts(step) or isinstance(step, Nonlinear))
        if reshaped or (isinstance(step, Noise) and not step.told):
            return None
        if isinstance(step, Noise) and step.deviation is not None:
            total = step.deviation if total is None else map_tensors(torch.hypot, total, step.deviation)
    return total
