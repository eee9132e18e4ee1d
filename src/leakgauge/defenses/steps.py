"""What a defence does to batch, example gradients and entries, in typed steps that compose by concatenation; what an
attacker who knows them can do about it, a fold over them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.tensors import Tensors, map_tensors, squared_norm
from leakgauge.update import Update, UpdateKind


class DefenseStage(IntEnum):
    """When a step acts. All steps of a stage come before those of the next."""

    BATCH = 0
    EXAMPLES = 1
    UPDATE = 2


Act = Callable[[Tensors], Tensors]  # raw update → what is made of it, differentiable and usable under vmap
Drawn = Callable[[Tensors, torch.Generator], Tensors]  # the same with a client's draw


@dataclass(frozen=True, kw_only=True)
class DefenseStep:
    """One thing that a defence does, and what an attacker who knows it can use."""

    stage: DefenseStage = DefenseStage.UPDATE
    blind: bool = True  # does the same to an entry whatever its tensor is called and wherever in it the entry stands
    # Names of tensors → those that it looks at together, where it asks no more of their names.
    together: Callable[[Iterable[str]], Mapping[str, list[str]]] | None = None
    looks: bool = False  # at the batch again
    by: str = ""  # the defence's name
    how: Act | None = None  # what it makes of a raw update; `None` for nothing, or where only the client's draw says
    drawn: Drawn | None = None  # the same of a step at random, for whoever knows the draw

    @property
    def silent(self) -> bool:
        """Whether it changes an update and no attacker can know how: hiding it is then what stops them."""
        return self.stage is DefenseStage.UPDATE and self.how is None and self.drawn is None

    @property
    def told(self) -> bool:
        """Whether it is known what it does to an update after it has been seen `on` one."""
        return self.stage is not DefenseStage.UPDATE or self.how is not None

    def on(self, update: Update, draw: torch.Generator | None) -> "DefenseStep":
        """With what a sent update shows of it, to one who has the client's `draw` or not. Reads nothing else."""
        if (stage := self.drawn) is None or draw is None:
            return self
        kept = draw.clone_state()
        return replace(self, how=lambda raw: stage(raw, kept.clone_state()))

    def sent(self, raw: Tensors) -> Tensors:
        """The raw update after this step, as far as that is known."""
        return raw if self.how is None else self.how(raw)


def shortened(tensors: Tensors, squared: Float[Tensor, "*n"], bound: float) -> Tensors:
    """Tensors, or rows of them, times min(1, bound/‖·‖), by squared norms over all; zero where these are not finite.
    Differentiable at zero too."""
    counts, factor = torch.isfinite(squared), bound / squared.clamp_min(torch.finfo(squared.dtype).tiny).sqrt()

    def shorter(t: Tensor) -> Tensor:
        each = squared.shape + (1,) * (t.ndim - squared.ndim)
        return torch.where(counts.view(each), t * factor.clamp_max(1.0).view(each), torch.zeros_like(t))

    return map_tensors(shorter, tensors)


@dataclass(frozen=True, kw_only=True)
class Scale(DefenseStep):
    """The whole update times one factor of at most one, so that its Euclidean norm is at most `bound`; zero where it is
    not finite."""

    bound: float
    silent = False
    told = True

    def sent(self, raw: Tensors) -> Tensors:
        return shortened(raw, squared_norm(raw), self.bound)


@dataclass(frozen=True, kw_only=True)
class PerExampleScale(DefenseStep):
    """Each example's gradient times a factor of its own of at most one: its norm is at most `bound`, over all tensors
    or `by_layer`."""

    bound: float
    by_layer: bool = False
    stage: DefenseStage = DefenseStage.EXAMPLES


@dataclass(frozen=True, kw_only=True)
class EntryMask(DefenseStep):
    """Entries are left out, the others sent as they are, or times a known factor of their tensor."""

    # Tensors as sent → which of their entries were sent; `None` where they do not say, as noise fills zeros.
    shows: Callable[[Tensors], Tensors | None] | None = None
    masks: Drawn | None = None  # the same from the draw of a step at random
    smallest: bool = False  # those left out are no larger than the others, so that zero is a good guess of them
    keep: float | None = None  # share of each tensor's entries that is sent; `None` where tensors differ
    factor: Callable[[Tensor], float] = lambda _: 1.0  # of the kept entries, tensor by tensor
    lengthens: bool = False  # that factor may exceed one
    support: Tensors | None = None  # which entries were sent, name → bool, once seen

    @property
    def silent(self) -> bool:
        return self.shows is None and self.support is None and super().silent

    @property
    def told(self) -> bool:
        return self.support is not None or super().told

    def on(self, update: Update, draw: torch.Generator | None) -> DefenseStep:
        if draw is not None and self.masks is not None:
            return replace(self, support=self.masks(update.tensors, draw))
        shown = self.shows(update.tensors) if self.shows is not None else None
        return self if shown is None else replace(self, support=shown, how=None)

    def sent(self, raw: Tensors) -> Tensors:
        if self.support is None:
            return super().sent(raw)
        return map_tensors(lambda t, s: t * self.factor(t) * s, raw, self.support)


@dataclass(frozen=True, kw_only=True)
class EntryGrid(DefenseStep):
    """Entries are rounded to few values: `levels` steps on each side of zero, `None` for signs alone.

    `how` rounds with the gradient of the identity. `density` is ``(raw, sent, noise)`` → log p(sent | raw) up to a
    constant, `noise` the deviation of Gaussian noise before or after the rounding, by name."""

    levels: int | None = None
    density: Callable[[Tensors, Tensors, Tensors], Tensor] | None = None
    beside: bool = False  # the density holds beside noise too; else `noise` is empty
    width: Callable[[Tensors], Tensors] | None = None  # tensors as sent → largest error of an entry of each
    numbers: int = 1  # sent beside each tensor, such as its norm

    @property
    def silent(self) -> bool:
        return self.density is None and super().silent

    @property
    def told(self) -> bool:
        return self.density is not None or super().told

    def on(self, update: Update, draw: torch.Generator | None) -> DefenseStep:
        known = super().on(update, draw)
        return known if known is self else replace(self, how=known.how, density=None, width=None)


@runtime_checkable
class NoiseScale(Protocol):
    """How large the noise is: raw update → standard deviation per coordinate of each tensor."""

    def of(self, raw: Tensors) -> Tensors: ...

    def seen(self, sent: Tensors) -> Tensors:
        """The same from the noisy update, as an attacker estimates it."""


@dataclass(frozen=True, kw_only=True)
class Noise(DefenseStep):
    """Independent noise on every entry.

    In the example stage, `on_mean` is examples of a step → deviation on their mean, `None` where it follows the data or
    a number of examples that is not known; `multiplier` is ``(examples of a step, layers)`` → noise on the sum over the
    most that one example moves it, or why there is none."""

    sigma: float | None = None  # deviation on the update; `None` where it follows the data or the number of examples
    scale: NoiseScale | None = None  # what that is; in the example stage, where it follows the data
    gaussian: bool = True  # else its density is exp(−√2·|x|/σ), Laplace's
    on_mean: Callable[[int | None], float | None] | None = None
    multiplier: Callable[[int | None, int | None], float | str] | None = None
    deviation: Tensors | None = None  # on each tensor of the update, once seen

    @property
    def silent(self) -> bool:
        return self.scale is None and self.deviation is None and super().silent

    @property
    def told(self) -> bool:
        return self.deviation is not None or self.how is not None

    def on(self, update: Update, draw: torch.Generator | None) -> DefenseStep:
        """Noise of single steps adds up in a delta by the local training, which is not on the wire."""
        if draw is not None:
            return super().on(update, draw)
        if self.stage is DefenseStage.EXAMPLES:
            if update.header.kind is not UpdateKind.GRADIENT:
                return self
            sigma = None if self.on_mean is None else self.on_mean(update.header.example_count)
            if sigma is not None:
                return replace(self, deviation={k: t.new_tensor(sigma) for k, t in update.tensors.items()})
            if not update.header.example_count:
                return self
        return self if self.scale is None else replace(self, deviation=self.scale.seen(update.tensors))

    def log_likelihood(self, raw: Tensors, sent: Tensors) -> Tensor:
        """log p(sent | raw), up to a constant. Laplace's gradient jumps where they are equal."""
        assert self.deviation is not None
        terms = []
        for name, own in raw.items():
            off = (sent[name].to(own) - own) / self.deviation[name].to(own).clamp_min(1e-30)
            terms.append((off.square() / 2 if self.gaussian else off.abs() * 2**0.5).sum())
        return -torch.stack(terms).sum()


@dataclass(frozen=True, kw_only=True)
class Mix(DefenseStep):
    """The client trains on other examples: each made of one of its own, or of `several`."""

    several: bool
    stage: DefenseStage = DefenseStage.BATCH


@dataclass(frozen=True, kw_only=True)
class Nonlinear(DefenseStep):
    """Anything else; `derived` where a class changes what the defence that it derives from does."""

    blind: bool = False
    derived: bool = False

    @property
    def silent(self) -> bool:
        # What a class makes of a base's example stage is not what the base's `without_noise` runs.
        return (self.derived and self.stage is DefenseStage.EXAMPLES) or super().silent


def commutes(step: DefenseStep) -> bool:
    """Whether a linear map of the tensors and this step may change places, but for the size of its bound."""
    whole = isinstance(step, Scale) or (isinstance(step, PerExampleScale) and not step.by_layer)
    return whole or step.stage is DefenseStage.BATCH


def by_tensor(step: DefenseStep, update: Update) -> bool:
    """Whether what a step does to an entry of a sent update depends on the others of its tensor."""
    if isinstance(step, Noise):
        seen = step.on(update, None)
        scales = seen.deviation if isinstance(seen, Noise) else None
        return scales is not None and len({float(s.detach().amax()) for s in scales.values()}) > 1
    return isinstance(step, EntryMask | EntryGrid | Nonlinear)


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
        here: `None`."""
        steps = [step for step in self.steps if _acts(step) or _random(step) or not step.told or step in self._masks]
        first = next((i for i, step in enumerate(steps) if _random(step)), len(steps))
        last = steps[first:]
        if not last or not all(map(_random, last)) or not all(step.told for step in steps):
            return None
        noises = tuple(step for step in last if isinstance(step, Noise))
        grids = [step for step in last if isinstance(step, EntryGrid)]
        unlike = len(last) > 1 and not all(step.gaussian for step in noises)
        if unlike or len(grids) > 1 or (noises and not all(grid.beside for grid in grids)):
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
