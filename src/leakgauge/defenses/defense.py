"""The staged interface of defences, and what an attacker who knows one can do about it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from leakgauge.defenses.steps import (
    DefenseStage,
    DefenseStep,
    EntryMask,
    Mix,
    Nonlinear,
    PerExampleScale,
    Scale,
    changed_since,
    named,
)
from leakgauge.draws import Draws
from leakgauge.registry import DEFENSES
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import Update


def _identity(tensors: Tensors) -> Tensors:
    return tensors


@dataclass(frozen=True, eq=False)
class AttackerView:
    """What knowing a mechanism gives, computed from the wire alone. `None`: the mechanism gives no such thing.

    Attributes:
        simulate: raw update → update as sent, differentiable and usable under vmap; without the noise
            whose draw is unknown.
        relaxed: `simulate` without its rounding, where it rounds. Attacks match this one: a rounded value has no
            gradient of use.
        support: entries that the client may have sent, name → bool.
        unsent_small: entries outside the support are no larger than those inside (top-k), so that zero is a good
            guess of them; otherwise nothing is known of them (pruned columns).
        noise_scale: standard deviation of the noise on each tensor, name → scalar.
        gaussian: whether that noise is Gaussian, so that several add up to one.
        rounding: largest error of an entry by rounding to a grid, name → scalar.
        log_likelihood: raw update → log p(observed | raw), up to a constant: it holds whatever `simulate` and
            `support` do, so what they return is not its argument.
        beside_noise: scale of Gaussian noise before or after a rounding → the log-likelihood under both.
    """

    simulate: Callable[[Tensors], Tensors] | None = None
    relaxed: Callable[[Tensors], Tensors] | None = None
    support: Tensors | None = None
    unsent_small: bool = False
    noise_scale: Tensors | None = None
    log_likelihood: Callable[[Tensors], Tensor] | None = None
    gaussian: bool = False
    rounding: Tensors | None = None
    beside_noise: Callable[[Tensors], Callable[[Tensors], Tensor]] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing at all."""
        return all(getattr(self, f.name) is None for f in fields(self) if f.default is None)

    def __call__(self, raw: Tensors) -> Tensors:
        """The raw update as it would look on the wire, outside the support zero."""
        return self._on_support((self.simulate or _identity)(raw))

    def relax(self, raw: Tensors) -> Tensors:
        """As a call, without the rounding of quantisers."""
        return self._on_support((self.relaxed or self.simulate or _identity)(raw))

    def _on_support(self, sent: Tensors) -> Tensors:
        if self.support is None:
            return sent
        return map_tensors(lambda t, s: t * s, sent, self.support)


class Defense:
    """A client-side defence: any of five stages, each the identity unless a subclass says otherwise.

    Guarantees that tests hold: names, shapes and dtypes are kept; the result is deterministic given
    the generator; `attacker_view` reads the update and nothing else, so it reveals nothing about the
    data beyond what the wire shows.
    """

    @property
    def acts_on_examples(self) -> bool:
        """Whether the client must compute per-example gradients for `on_example_gradients`."""
        return False

    def on_task(self, task: Task) -> Task:
        """Changes the architecture (PRECODE); server and attacker see the changed one."""
        return task

    def on_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Changes the examples before training (MixUp)."""
        del generator
        return batch

    def for_batch(self, task: Task, batch: Batch) -> Defense:
        """This defence for one batch, where later stages need to look at the data (Soteria's mask).

        Called by the client alone, after `on_task` and `on_batch`: `batch` is what it trains on. What comes
        back never leaves the client; attackers know the defence that was asked.
        """
        del task, batch
        return self

    def on_example_gradients(self, per_example: Tensors, generator: torch.Generator) -> Tensors:
        """Changes each example's gradient, stacked as ``(n, *shape)``, before they are averaged (DP-SGD)."""
        del generator
        return per_example

    @property
    def fits_to_data(self) -> bool:
        """Whether `for_batch` makes another defence of each client's data."""
        return type(self).for_batch is not Defense.for_batch

    @property
    def acts_on_update(self) -> bool:
        """Whether `on_update` is more than the identity."""
        return type(self).on_update is not Defense.on_update

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        """Changes the raw update before it is sent (clip, top-k, noise)."""
        del generator
        return tensors

    @property
    def tells_nothing(self) -> bool:
        """Whether the update is changed by a mechanism that no attacker can know: `on_update`, or what `for_batch`
        makes, without an `attacker_view` that was written for it, or `on_example_gradients` with a `without_noise` of
        the base class that does not run it. What such an attacker fails at, hiding the mechanism has stopped."""
        examples = type(self).without_noise is not Defense.without_noise
        kind = type(self)
        silent = any(_anew(kind, stage, than="attacker_view") for stage in ("on_update", "for_batch"))
        return silent or (examples and _anew(kind, "on_example_gradients", than="without_noise"))

    def steps(self) -> tuple[DefenseStep, ...]:
        """What it does; a stage of one's own without steps is `Nonlinear`. Ask through `steps_of`."""
        acts = (
            (DefenseStage.BATCH, type(self).on_batch is not Defense.on_batch),
            (DefenseStage.EXAMPLES, self.acts_on_examples),
            (DefenseStage.UPDATE, self.acts_on_update),
        )
        own = tuple(Nonlinear(stage=stage) for stage, does in acts if does)
        return (*own, Nonlinear(looks=True)) if self.fits_to_data else own

    def without_noise(self) -> Defense:
        """This defence less what `on_example_gradients` draws: what one simulates who does not know the draws.

        Noise of one's own in the simulation would only add to the client's. The update stage is not concerned:
        simulations go through `attacker_view` there.
        """
        return self

    def attacker_view(self, update: Update, draw: torch.Generator | None) -> AttackerView:
        """What an attacker who knows this mechanism can use.

        Args:
            update: as it came over the wire.
            draw: the client's own generator of the update stage, for one who knows the draw as well.
        """
        del update, draw
        return AttackerView()


def _anew(kind: type[Defense], stage: str, *, than: str) -> bool:
    """Whether a class writes a stage anew and keeps the other member of a base, which knows the base's stage alone."""
    own, other = (next(base for base in kind.__mro__ if name in vars(base)) for name in (stage, than))
    return own is not other and issubclass(own, other)


def steps_of(defense: Defense | None) -> tuple[DefenseStep, ...]:
    """What a defence does, in turn; nothing for none.

    A class that derives from a defence and changes one of its stages, or what they call, keeps none of its steps.
    """
    if defense is None:
        return ()
    kind = type(defense)
    base = next(one for one in kind.__mro__ if "steps" in vars(one))
    if base is Defense or not changed_since(kind, base):
        return named(defense.steps(), kind.__name__)
    changed = tuple(replace(step, derived=True) for step in Defense.steps(defense) if isinstance(step, Nonlinear))
    return named(changed, kind.__name__)


def only_scales(defense: Defense | None) -> bool:
    """Whether entries are multiplied by factors of at most one, and nothing else is done to them."""
    return all(isinstance(step, Scale | PerExampleScale) for step in steps_of(defense))


def shortens(defense: Defense | None) -> bool:
    """Whether the update, or examples' gradients, may lose length."""
    return any(isinstance(step, Scale | PerExampleScale) for step in steps_of(defense))


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
    """The view of an attacker who knows `defense`, and the client's `draws` unless `None`.

    It is made in float32 at least: norms and spreads of an update in half precision vanish or overflow.
    """
    wide = map_tensors(lambda t: t.to(torch.promote_types(t.dtype, torch.float32)), update.tensors)
    update = replace(update, tensors=wide)
    return inherited_view(defense, update, None if draws is None else draws.generator("update"))


def inherited_view(defense: Defense, update: Update, draw: torch.Generator | None) -> AttackerView:
    """Its `attacker_view`; that of a base whose stages it has changed says nothing of it."""
    silent = Defense.tells_nothing.fget(defense)  # type: ignore[attr-defined]
    return AttackerView() if silent else defense.attacker_view(update, draw)


@DEFENSES.register("none")
@dataclass(frozen=True)
class NoDefense(Defense):
    """The update is sent as it is. No guarantee."""
