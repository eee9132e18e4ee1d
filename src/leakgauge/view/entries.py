"""How far the entries of an update may be from those of an exact client: the one error model.

What is exact is a sum of the products that the client multiplied, and a defence that only scales it or leaves entries
out. A client computes in a type of unit roundoff v, writes its update in one of unit roundoff u, and a delta is taken
of parameters that every step rounded. So of one product |sent − exact| ≤ (u + γ)·|sent| + a + (T + 1)·v·|θ| (Higham,
*Accuracy and Stability*, §3.1): a bounds what underflows, γ = n·v/(1 − n·v) stands for n operations in a row, and the
last term for a delta of T steps. What a defence added beside has a known deviation (noise) or a largest error (a grid).

Of sums whose terms cancel (several examples, several steps) the rounding can be larger: who knows the terms counts it
(`operations=0`), and what is else unexplained is beyond the bound. So is what a defence does in a way of its own, and
in a cohort a sparsifier, whose mask is another for each client.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.clients import FedSGD, cohort_view
from leakgauge.clients.optimisers import linear_steps
from leakgauge.defenses import AttackerView, steps_of
from leakgauge.defenses.defense import kept_factor, without_idle_clips
from leakgauge.defenses.steps import DefenseStage, EntryMask, Noise, Nonlinear, Scale
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation
from leakgauge.tensors import Tensors, Wire, entries, fits_every_type, map_tensors, squared_norm
from leakgauge.update import Update, UpdateKind
from leakgauge.view.plain import PlainNetwork

OPERATIONS, STEP_OPERATIONS = 8, 4  # roundings in a row of an entry that is computed, and more of them a local step
UNKNOWN_STEPS = 64  # local steps that a delta is taken to have where nobody says how many
HARD = 2.0  # an error that cannot exceed its bound counts as a standard error of so much less
BLOCK = 1 << 16  # entries whose digits are looked at together
HALVES = (torch.bfloat16, torch.float16)  # types that weights travel in besides their own

SWEEPS, WORK = 1000, 1e10
"""Most sweeps of a completion, and multiply-adds. Each takes a share of the error off: a half and more where a tenth
was sent."""
STILL, STILL_ERRORS = 2, 6.0
"""Rows without a gradient that tell how far a clip shortened the decay, and standard errors within which they agree."""


@dataclass(frozen=True, eq=False)
class Entries:
    """Some entries of one tensor of an update, and their errors."""

    value: Float[Tensor, "*shape"]  # in float64, without the factor of a known sparsifier and what weight decay adds
    bound: Float[Tensor, "*shape"]  # largest rounding of each, by client and wire
    seen: Bool[Tensor, "*shape"] | None  # which of them the client may have sent; `None` for all
    sigma: float = 0.0  # standard deviation of known noise on each
    grid: float = 0.0  # largest error of each by a defence that rounds to known steps
    # others may have been left out besides, and nothing tells which: the defence is not known, or what came after it
    # filled its zeros
    hides: bool = False

    def sent_beyond(self, error: Tensor) -> Bool[Tensor, "*shape"]:
        """Entries that the client did send: of what may hide left-out ones, those larger than an error."""
        sent = self.value.abs() > error if self.hides else torch.ones_like(self.value, dtype=torch.bool)
        return sent if self.seen is None else sent & self.seen

    @property
    def hard(self) -> Float[Tensor, "*shape"]:
        """Largest error, noise apart."""
        return self.bound + self.grid

    @property
    def error(self) -> Float[Tensor, "*shape"]:
        """Standard error of each entry, of those that were sent."""
        return self.hard / HARD + self.sigma

    @property
    def unsure(self) -> Float[Tensor, "*shape"]:
        """The same; of one that was left out as much as the largest that was sent. Not of a whole row: the others say
        what they say without it."""
        if self.seen is None or bool(self.seen.all()):
            return self.error
        rows = self.seen.flatten(1).any(1) if self.seen.ndim > 1 else self.seen
        lost = ~self.seen & rows.view(-1, *[1] * (self.seen.ndim - 1))
        return torch.where(lost, self.value.abs().max(), self.error)


@dataclass(frozen=True, eq=False)
class SentTensor:
    """One tensor of an update; `tensor[part]` are its `Entries` there. It may be all of the model, so that nothing is
    made of it but the part that is asked for."""

    sent: Tensor
    wire: Wire
    step: float  # v: unit roundoff of a client's operation
    arithmetic: float  # γ
    parameter: Tensor | None  # θ of a delta; `None` of a gradient
    moves: int  # T + 1
    factor: float = 1.0  # which a known sparsifier multiplied the entries with that it kept
    support: Tensor | None = None  # entries that the client may have sent, as far as it is known to have left some out
    smallest: bool = False  # entries outside it are no larger than those inside
    sigma: float = 0.0  # sigma, grid: before the factor is taken off
    grid: float = 0.0
    decay: float = 0.0  # share of the parameter that is taken off, see `sent_decay`
    hides: bool = False
    rounding: Tensor | None = None  # largest, of what was solved for, after the factor is taken off

    @staticmethod
    def of(
        observation: Observation,
        name: str,
        *,
        operations: int = OPERATIONS,
        view: AttackerView | None = None,
        decay: float | None = None,
    ) -> "SentTensor":
        """As task, update and knowledge have it. `operations`: roundings in a row of an entry, beside those of local
        steps; 0 leaves arithmetic to the caller. `view` and `decay`: `noise_of` and `sent_decay` of the observation,
        where several tensors are asked for."""
        sent, own = observation.update.tensors[name].detach(), observation.task.parameters[name].detach()
        known, examples = observation.knowledge, observation.examples
        delta, client = observation.update.header.kind is UpdateKind.DELTA, known.local_training
        steps = 1 if not delta else UNKNOWN_STEPS if client is None or examples is None else client.steps(examples)
        wire = Wire.of(sent)
        step = max(torch.finfo(own.dtype).eps / 2, wire.arithmetic)
        count = (operations + STEP_OPERATIONS * steps) * step if operations else 0.0
        view = noise_of(observation) if view is None else view
        scale, grid = (None if errors is None else float(errors[name]) for errors in (view.noise_scale, view.rounding))
        shown = _shown(observation, view)
        decay = sent_decay(observation) if decay is None else decay
        return SentTensor(
            sent,
            wire,
            step,
            count / (1 - count) if count < 1 else math.inf,
            own if delta else None,
            steps + 1,
            kept_factor(known.defense, sent),
            None if shown.support is None else shown.support[name].bool(),
            shown.support is not None and shown.unsent_small and not decay,
            scale or 0.0,
            grid or 0.0,
            decay or 0.0,
            _hides(known, shown),
            _solved(observation, operations).get(name),
        )

    def __getitem__(self, part: Any) -> Entries:
        value = self.sent[part].double()
        bound = self.wire.errors(value) + self.arithmetic * value.abs()
        if self.rounding is not None:
            bound = self.wire.errors(value) + self.factor * self.rounding[part].to(value)
        elif self.parameter is not None:
            moved = self.parameter[part].to(value).abs() + value.abs()
            bound = bound + self.moves * self.step * moved
        seen, f = None if self.support is None else self.support[part], self.factor
        value = value / f
        if self.parameter is not None and self.decay:
            value = value - self.decay * self.parameter[part].to(value) * (1 if seen is None else seen)
        return Entries(value, bound / f, seen, self.sigma / f, self.grid / f, self.hides)


@lru_cache(maxsize=1)
def _solved(view: Observation, operations: int) -> Tensors:
    """Largest rounding of weights in a view that the update was solved for: what that of the update comes to."""
    network, found = view.task.module, dict[str, Tensor]()
    layers = network.plain_form.layers if view.origin is not view and isinstance(network, PlainNetwork) else {}
    for name, layer in layers.items():
        if not layer.given:
            of = partial(SentTensor.of, view.origin, operations=operations, view=AttackerView(), decay=0.0)
            found |= layer.tensors(name, layer.spread({k: of(k)[...].bound for k in layer.used}))
    return found


def undecayed(observation: Observation) -> Observation:
    """The same client in plainer words, as attacks are given it.

    A cohort of one client is that client, and a last clip beyond what it sent is none (who knows the client's draws
    replays it as it was). What weight decay adds to one step is a known share of the broadcast parameters, and is
    taken off; what is left is zero where it is no more than rounding. Not of texts, whose reader does so itself, nor
    where a defence changes the update.
    """
    known, examples = observation.knowledge, observation.examples
    if known.local_training is None:
        return observation
    client, update, told = known.local_training.alone, observation.update, None
    if known.defense is not None and known.draws is None and not client.aggregates:
        known = replace(known, defense=without_idle_clips(known.defense, update))
        observation = replace(observation, knowledge=known)
    if examples is not None and not observation.task.data.is_text:
        told = None if known.defense is not None and known.defense.acts_on_update else client.linear(examples)
    if examples is not None and told is not None and told.decay and len(told.weights) == 1:
        client, left = client.without_decay(examples), dict[str, Tensor]()
        for name, sent in update.tensors.items():
            entry = SentTensor.of(observation, name, operations=0, view=AttackerView(), decay=told.decay)[...]
            still = (sent == 0) | (entry.value.abs() <= entry.bound)
            left[name] = torch.where(still, 0.0, entry.value).to(sent.dtype)
        update = replace(update, tensors=left)
    if client is known.local_training:
        return observation
    return replace(observation, knowledge=replace(known, local_training=client), update=update)


def wire_of(observation: Observation, *names: str) -> Wire:
    """The format that some tensors came in."""
    return Wire.of(*(observation.update.tensors[name] for name in names))


def summed(wire: Wire, terms: Tensor, sizes: Tensor) -> Tensor:
    """Standard error of sums of so many terms, of such sizes together, that are rounded after each addition."""
    return wire.arithmetic * terms.sqrt() * sizes


def _shown(observation: Observation, view: AttackerView) -> AttackerView:
    """What is known of left-out entries: with the client's draws, where they are known."""
    known = observation.knowledge
    return view if known.draws is None or known.defense is None else noise_of(observation, known.draws)


def _hides(known: Knowledge, shown: AttackerView) -> bool:
    """Whether a defence may leave out entries beside those that its view shows. Behind noise zeros do not show any:
    those that are there still are others."""
    steps = [step for step in steps_of(known.defense) if step.stage is not DefenseStage.BATCH]
    steps.sort(key=lambda step: step.stage)
    masks = [step for step in steps if isinstance(step, EntryMask)]
    drawn = known.draws is not None and all(mask.masks is not None for mask in masks)
    noises = [k for k, step in enumerate(steps) if isinstance(step, Noise)]
    filled = not drawn and bool(masks and noises) and steps.index(masks[0]) < noises[-1]
    told = sum(isinstance(step, EntryMask) and step.support is not None for step in shown.steps)
    return known.defense is None or filled or told < len(masks) or any(isinstance(step, Nonlinear) for step in steps)


def surely_sent(observation: Observation, tolerance: float) -> Tensors | None:
    """Entries that the client did send, name → bool, `None` where it sent all; of what may hide left-out ones, those
    larger than a share of the update's root mean square."""
    update, view = observation.update, _shown(observation, noise_of(observation))
    if not (hides := _hides(observation.knowledge, view)) and view.support is None:
        return None
    mean = float(squared_norm(update.tensors)) / max(entries(update.tensors), 1)
    least = tolerance * mean**0.5 if hides else -1.0
    loud = map_tensors(lambda t: t.detach().abs() > least, update.tensors)
    return loud if view.support is None else map_tensors(lambda a, b: a & b.bool(), loud, view.support)


def low_rank(
    value: Float[Tensor, "n d"], seen: Bool[Tensor, "n d"], start: Float[Tensor, "k d"], sweeps: int, anchor: float
) -> tuple[Float[Tensor, "n k"], Float[Tensor, "k d"]]:
    """The factors c, h of the matrix c·h of rank k that has the entries which were seen: least squares for one given
    the other, in turn, from a first h on; zero where none was seen. `anchor`: weight of the first h beside one mean
    row: it decides what no row shows."""
    mask, h, unit = seen.double(), start.double(), torch.eye(len(start)).double()
    known = value.double() * mask

    def fitted(sent: Tensor, told: Tensor, other: Tensor, pull: Tensor | float = 0.0) -> Tensor:
        squares = (sent @ (other[:, :, None] * other[:, None]).flatten(1)).view(-1, *unit.shape)
        solved: Tensor = torch.linalg.lstsq(squares + pull * unit, told[..., None], driver="gelsd").solution
        return solved[..., 0]

    for _ in range(sweeps):
        c = fitted(mask, known @ h.T, h.T)
        pull = anchor * c.square().mean(0)
        moved = fitted(mask.T, known.T @ c + pull * start.double().T, c, pull).T
        still, h = bool((moved - h).norm() <= 1e-15 * moved.norm()), moved
        if still:
            break
    return fitted(mask, known @ h.T, h.T), h


def filled(value: Float[Tensor, "rows d"], seen: Bool[Tensor, "rows d"], rank: int) -> Float[Tensor, "rows d"]:
    """The same with entries that were not seen as a matrix of that rank has them; as it is where that takes too long,
    or none is missing of rows of which some are there."""
    sweeps, size = min(SWEEPS, int(WORK / (value.numel() * rank**2))), value.abs().max()
    if not sweeps or rank >= min(value.shape) or bool(seen[seen.any(1)].all()) or not bool(size > 0):
        return value
    small, own = (value / size).cpu(), seen.cpu()
    c, h = low_rank(small, own, torch.linalg.svd(small, full_matrices=False)[2][:rank], sweeps, 0.0)
    return torch.where(seen, value, (c @ h).to(value) * size)


def sent_decay(observation: Observation) -> float | None:
    """What weight decay adds to every entry as it was sent, over all steps, in shares of its broadcast parameter; 0
    without, `None` where it is not known.

    Behind a clip of the update the decay of one step is shortened as the gradient is. Rows without a gradient, as units
    that no example drives have them, are the parameters times that share: at least `STILL` of them must agree.
    """
    steps, told = steps_of(observation.knowledge.defense), observation.linear
    update = [step for step in steps if step.stage is DefenseStage.UPDATE]
    if told is None or not told.decay:
        return 0.0
    if not any(isinstance(step, Scale) for step in update):  # a clip of the step itself acts before the decay
        return told.decay if all(isinstance(step, Noise | EntryMask) for step in update) else None
    if len(told.weights) > 1 or not all(isinstance(step, Scale | Noise) for step in update):
        return None
    view, shares = noise_of(observation), []
    for name, sent in observation.update.tensors.items():
        own = observation.task.parameters[name].detach()
        if sent.ndim < 2:
            continue
        entries = SentTensor.of(observation, name, operations=0, view=view, decay=0.0)[...]
        own, value, error = (t.flatten(1) for t in (own.to(entries.value), entries.value, entries.error))
        size = own.square().sum(1)
        share = (own * value).sum(1) / size.clamp_min(torch.finfo(size.dtype).tiny)
        off = (value - share[:, None] * own).abs()
        part = share / told.decay
        still = (off <= STILL_ERRORS * error).all(1) & (part > 0) & (part <= 1.01)
        shares.append(torch.stack([share, error.norm(dim=1) / size.sqrt()], 1)[still & (size > 0)].cpu())
    found = torch.cat(shares) if shares else torch.zeros(0, 2)
    if len(found) < STILL:
        return None
    middle = found[:, 0].median()
    near = found[(found[:, 0] - middle).abs() <= STILL_ERRORS * found[:, 1]]
    if len(near) < max(STILL, len(found) // 2):
        return None
    weight = 1 / near[:, 1].square().clamp_min(1e-300)
    return float((near[:, 0] * weight).sum() / weight.sum())


def noise_of(observation: Observation, draws: Draws | None = None) -> AttackerView:
    """What is known of noise, grid and left-out entries by who does not know the client's draws, or does; empty where
    nothing is."""
    known, update = observation.knowledge, observation.update
    if known.defense is None:
        return AttackerView()
    counted = replace(update, header=replace(update.header, example_count=observation.examples))
    return cohort_view(known.local_training or FedSGD(), known.defense, counted, draws)


def one_factor(observation: Observation, tensors: frozenset[str] = frozenset()) -> bool:
    """Whether client and defence, as far as they are known, multiplied these tensors by one factor, if by any."""
    known, update = observation.knowledge, observation.update
    for step in steps_of(known.defense):
        groups = {} if step.together is None else step.together(update.tensors)
        own = isinstance(step, Nonlinear) or not step.blind
        if own and not (groups and any(tensors <= set(group) for group in groups.values())):
            return False
    loop = None if known.local_training is None else known.local_training.loop
    steps = update.header.kind is UpdateKind.DELTA and (loop is None or linear_steps(loop.optimiser, 1) is None)
    return known.defense is not None and not steps


def relative_rounding(observation: Observation) -> tuple[float, float]:
    """Unit of rounding of a whole update, and what rounding of the parameters makes of a delta, in shares of its norm.

    The unit is of each tensor its own, by its share of the length: the bias of a key has gradient zero but for
    rounding, whose few digits fit a type that the others do not.
    """
    sent, client, tiny = observation.update.tensors, observation.knowledge.local_training, 1e-300
    parts = torch.tensor([[Wire.of(t).unit, float(t.detach().double().norm())] for t in sent.values()]).double()
    size = float(parts[:, 1].norm())
    unit = float((parts[:, 0] * parts[:, 1]).norm()) / max(size, tiny)
    if observation.update.header.kind is UpdateKind.GRADIENT:
        return unit, 0.0
    own = observation.task.parameters
    errors = torch.tensor([torch.finfo(own[name].dtype).eps * float(own[name].norm()) for name in sent])
    steps = 1 if client is None else client.steps(observation.examples or 1)
    return unit, (steps / 12) ** 0.5 * float(errors.double().norm()) / max(size, tiny)


def rounding_norms(update: Update, parameters: Tensors, steps: int) -> dict[str, float]:
    """Norm of what rounding makes of each tensor that is sent, a delta by the weights that it was taken of.

    What fits every type, as weights of one that did not move, counts as rounded like the coarsest of the others.
    """
    norms = {name: list(_units(update, name, parameters)) for name in update.tensors}
    units = [unit for each in norms.values() for unit, _ in each if unit is not None]
    most = max(units, default=Wire.of().unit)
    return {
        name: math.hypot(*((most if unit is None else unit) * norm for unit, norm in each)) * math.sqrt(steps)
        for name, each in norms.items()
    }


def _units(update: Update, name: str, parameters: Tensors) -> Iterator[tuple[float | None, float]]:
    """Unit of rounding (`None` where any type holds the values) and norm, a block of entries at a time."""
    blocks = (t.detach().flatten().split(BLOCK) for t in (update.tensors[name], parameters[name]))
    for sent, own in zip(*blocks, strict=True):
        delta = update.header.kind is UpdateKind.DELTA
        for held in (sent, _after(own.to(sent), sent)) if delta else (sent,):
            yield None if fits_every_type(held) else Wire.of(held).unit, float(held.norm())


def _after(own: Tensor, sent: Tensor) -> Tensor:
    """Weights after training, as they were before `own` was taken from them: in half precision where they are that to
    the rounding of the difference."""
    after = own + sent
    rounding = torch.finfo(after.dtype).eps * torch.maximum(own.abs(), sent.abs())
    for kind in HALVES:
        near = after.to(kind).to(after.dtype)
        if bool(((near - after).abs() <= rounding).all()):
            return near
    return after
