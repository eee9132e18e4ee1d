"""The staged interface of defences, and several of them as one."""

import math
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import reduce
from operator import attrgetter
from typing import TypeVar

import torch
from torch import Tensor

from leakgauge.defenses.steps import AttackerView, DefenseStage, DefenseStep, EntryMask, Mix, Nonlinear, Scale
from leakgauge.draws import Draws
from leakgauge.errors import Checked, require
from leakgauge.registry import DEFENSES
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, map_tensors, squared_norm
from leakgauge.update import Update

T = TypeVar("T")


class Defense(Checked):
    """A client-side defence: any of five stages, each the identity unless a subclass says otherwise.

    Guarantees that tests hold: names, shapes and dtypes are kept; the result is deterministic given
    the generator; `steps_on` reads the update and nothing else, so it reveals nothing about the
    data beyond what the wire shows."""

    def on_task(self, task: Task) -> Task:
        """Changes the architecture (PRECODE); server and attacker see the changed one."""
        return task

    def on_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Changes the examples before training (MixUp)."""
        return batch

    def for_batch(self, task: Task, batch: Batch) -> "Defense":
        """This defence for one batch, where later stages need to look at the data (Soteria's mask).

        Called by the client alone, after `on_task` and `on_batch`: `batch` is what it trains on. What comes
        back never leaves the client; attackers know the defence that was asked."""
        return self

    def on_example_gradients(self, per_example: Tensors, generator: torch.Generator) -> Tensors:
        """Changes each example's gradient, stacked as ``(n, *shape)``, before they are averaged (DP-SGD)."""
        return per_example

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        """Changes the raw update before it is sent (clip, top-k, noise)."""
        return tensors

    def overrides(self, stage: str) -> bool:
        """Whether that method is more than the identity."""
        return getattr(type(self), stage) is not getattr(Defense, stage)

    @property
    def acts_on_examples(self) -> bool:
        """Whether the client must compute per-example gradients."""
        return self.overrides("on_example_gradients")

    @property
    def acts_on_update(self) -> bool:
        """Whether the update is sent otherwise than it is."""
        return self.overrides("on_update")

    def steps(self) -> tuple[DefenseStep, ...]:
        """What it does; a stage of one's own without steps is `Nonlinear`. Ask through `steps_of`."""
        stages = zip(DefenseStage, ("on_batch", "on_example_gradients", "on_update"), strict=True)
        own = tuple(Nonlinear(stage=stage) for stage, method in stages if self.overrides(method))
        return (*own, Nonlinear(looks=True)) if self.overrides("for_batch") else own

    def steps_on(self, update: Update, draw: torch.Generator | None) -> tuple[DefenseStep, ...]:
        """The steps with what a sent update shows of them, to one who has the client's `draw` of the update stage or
        not. Ask through `view_of`."""
        return tuple(step.on(update, draw) for step in steps_of(self))

    def without_noise(self) -> "Defense":
        """This defence less what `on_example_gradients` draws, for who does not know the draws: noise of one's own
        would only add to the client's. Of the update stage, simulations go through `view_of`."""
        return self


_stage = attrgetter("stage")


def steps_of(defense: Defense | None) -> tuple[DefenseStep, ...]:
    """What a defence does, in turn; nothing for none. A class that derives from a defence and changes one of its
    stages, or what they call, keeps none of its steps."""
    if defense is None:
        return ()
    kind = type(defense)
    base = next(one for one in kind.__mro__ if "steps" in vars(one))
    if base is not Defense and _changed_since(kind, base):
        own = (step for step in Defense.steps(defense) if isinstance(step, Nonlinear))
        said: tuple[DefenseStep, ...] = tuple(replace(step, derived=True) for step in own)
    else:
        said = defense.steps()
    acting = (step for step in said if not (isinstance(step, EntryMask) and step.keep == 1))
    return tuple(step if step.by else replace(step, by=kind.__name__) for step in acting)


def _changed_since(kind: type, base: type) -> bool:
    """Whether a class writes anew what stages of its base are, or call."""
    kinds = kind.__mro__
    settings = {field.name for field in fields(base)} if is_dataclass(base) else set()
    own = {name for one in kinds[: kinds.index(base)] for name in vars(one) if not name.startswith("__")}
    return bool(own & (set(dir(base)) - settings))


def leaves_gradients(defense: Defense | None) -> bool:
    """Whether the update is what the client's training came to, if on other examples than its own."""
    return all(step.stage is DefenseStage.BATCH for step in steps_of(defense))


def mixes_examples(defense: Defense | None) -> bool:
    """Whether the client trains on mixtures of its examples."""
    return any(isinstance(step, Mix) and step.several for step in steps_of(defense))


def kept_factor(defense: Defense | None, tensor: Tensor) -> float:
    """What entries of a tensor that were not left out were multiplied by, as far as that is known."""
    return math.prod((step.factor(tensor) for step in steps_of(defense) if isinstance(step, EntryMask)), start=1.0)


def child_generator(generator: torch.Generator) -> torch.Generator:
    """A new stream drawn from `generator`, for one of several users of it."""
    return torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=generator)))


def view_of(defense: Defense, update: Update, draws: Draws | None) -> AttackerView:
    """What an attacker who knows `defense` can use, and the client's `draws` unless `None`; in float32 at least: norms
    and spreads of an update in half precision vanish or overflow."""
    wide = map_tensors(lambda t: t.to(torch.promote_types(t.dtype, torch.float32)), update.tensors)
    update = replace(update, tensors=wide)
    seen = defense.steps_on(update, None if draws is None else draws.generator("update"))
    return AttackerView(tuple(sorted(seen, key=_stage)), wide)


@DEFENSES.register("none")
@dataclass(frozen=True)
class NoDefense(Defense):
    """The update is sent as it is. No guarantee."""


BEYOND = 5.0  # standard deviations of noise that no entry of it alone reaches
HIDDEN = 0.05  # share of a tensor's energy that may lie below them where its zeros are still seen
SURE = 3.0  # standard deviations by which the noise's own energy may be less than its mean


@dataclass(frozen=True)
class Compose(Defense):
    """Runs defences stage by stage: all task stages, then all batch stages, and so on, each in the stated order. Raises
    `InputError`: no defence."""

    defenses: tuple[Defense, ...]

    def __post_init__(self) -> None:
        require(bool(self.defenses), "defenses", "an empty composition", "write none")

    def overrides(self, stage: str) -> bool:
        return any(defense.overrides(stage) for defense in self.defenses)

    def _streams(self, stage: str, generator: torch.Generator) -> list[torch.Generator]:
        """One for each; where only one of them does anything in a stage, it draws as it does alone."""
        acts = [bool(parts_of(defense)) and defense.overrides(stage) for defense in self.defenses]
        if sum(acts) == 1:
            return [generator if act else generator.clone_state() for act in acts]
        return [child_generator(generator) for _ in acts]

    def _staged(self, stage: str, given: T, generator: torch.Generator) -> T:
        each = zip(self.defenses, self._streams(stage, generator), strict=True)
        return reduce(lambda value, one: getattr(one[0], stage)(value, one[1]), each, given)

    def on_example_gradients(self, per_example: Tensors, generator: torch.Generator) -> Tensors:
        return self._staged("on_example_gradients", per_example, generator)

    def on_task(self, task: Task) -> Task:
        return reduce(lambda task, defense: defense.on_task(task), self.defenses, task)

    def on_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        return self._staged("on_batch", batch, generator)

    def for_batch(self, task: Task, batch: Batch) -> Defense:
        return Compose(tuple(defense.for_batch(task, batch) for defense in self.defenses))

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        return self._staged("on_update", tensors, generator)

    def steps(self) -> tuple[DefenseStep, ...]:
        return tuple(sorted((step for defense in self.defenses for step in steps_of(defense)), key=_stage))

    def without_noise(self) -> Defense:
        return Compose(tuple(defense.without_noise() for defense in self.defenses))

    def steps_on(self, update: Update, draw: torch.Generator | None) -> tuple[DefenseStep, ...]:
        draws = [None for _ in self.defenses] if draw is None else self._streams("on_update", draw)
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
    """The defences of a composition that do something, in their order; nothing for none."""
    if isinstance(defense, Compose):
        return tuple(part for inner in defense.defenses for part in parts_of(inner))
    said = defense.steps()
    return () if isinstance(defense, NoDefense) or (said and not steps_of(defense)) else (defense,)


SHORTER = 0.99  # what was sent is surely below a bound where it is shorter than this share of it, whatever its format


def without_idle_clips(defense: Defense, update: Update) -> Defense:
    """Without the clips that come last and whose bound is beyond what one client sent: they did nothing."""
    squared, kept = squared_norm(map_tensors(lambda t: t.double(), update.tensors)), list(parts_of(defense))
    for index in reversed(range(len(kept))):
        steps = steps_of(kept[index])
        clip = steps[0] if len(steps) == 1 and isinstance(steps[0], Scale) else None
        if clip is not None and 0 < float(squared) < (SHORTER * clip.bound) ** 2:
            del kept[index]
        elif any(step.stage is DefenseStage.UPDATE for step in steps):
            break
    if len(kept) == len(parts_of(defense)):
        return defense
    return Compose(tuple(kept)) if len(kept) > 1 else kept[0] if kept else NoDefense()


def _before(steps: tuple[DefenseStep, ...], update: Update | None) -> Update | None:
    """The update as it was before a part, as far as that is seen: without the noise that a last stage added to zeros.
    `None` where it reshapes what earlier stages did.

    Entries of a tensor within `BEYOND` deviations of known noise count as zeros, if what the noise may hide among them
    is less than `HIDDEN` of the rest: noise as large as the update hides zeros too."""
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
