"""A plan's account of one round, and how close the rounds that it simulates come to an update."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakgauge.attacks.matching import Simulator
from leakgauge.clients import Protocol, client_update
from leakgauge.defenses import Defense, parts_of
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.observation import Knowledge, Observation
from leakgauge.study.explaining.rounds import in_order, loop_of
from leakgauge.study.judging.records import Cause, Explanation, TensorShare
from leakgauge.task import Batch, Task
from leakgauge.tensors import BLOCK, Tensors
from leakgauge.update import Update
from leakgauge.view.entries import rounding_norms

GUESSES = 8
"""Draws of order and dropout of which the closest counts: two rounds in different orders may have little in common."""


@dataclass(frozen=True)
class Fit:
    """The cosine between simulated and captured, −1 to 1, and ‖simulated‖ / ‖captured‖."""

    cosine: float
    norm: float

    @property
    def share(self) -> float:
        """The cosine, times the smaller norm over the larger: 1 where both are equal."""
        return self.cosine / max(self.norm, 1 / self.norm) if 0 < self.norm < math.inf else 0.0

    @property
    def left(self) -> float:
        """‖simulated − captured‖ / ‖captured‖."""
        return math.sqrt(max(self.norm**2 + 1 - 2 * self.cosine * self.norm, 0.0))

    @staticmethod
    def of(simulated: float, captured: float, inner: float) -> "Fit":
        """From the squared norms and the inner product. One that is not finite fits nothing."""
        size, other = math.sqrt(simulated), math.sqrt(captured)
        if not math.isfinite(size):
            return Fit(0.0, math.inf)
        return Fit(inner / size / other, size / other) if size and other else Fit(0.0, 0.0)

    @staticmethod
    def between(simulated: Tensors, captured: Tensors, mean: Tensors | None = None) -> "Fit":
        """Over all tensors together, in float64, of both less `mean`: a block at a time, without a copy of either."""
        return Fit.of(*products(simulated, captured, mean))


def products(a: Tensors, b: Tensors, mean: Tensors | None = None) -> tuple[float, float, float]:
    """‖a‖², ‖b‖² and a·b over the tensors of `b`, in float64, of both less `mean`."""
    found = [0.0, 0.0, 0.0]
    for name in b:
        for blocks in zip(*(t[name].detach().flatten().split(BLOCK) for t in (a, b, mean or a)), strict=True):
            x, y, m = (block.double() for block in blocks)
            x, y = (x, y) if mean is None else (x - m, y - m)
            found = [total + float(v) for total, v in zip(found, (x @ x, y @ y, x @ y), strict=True)]
    return found[0], found[1], found[2]


@dataclass(frozen=True)
class Closest:
    """The closest of several simulated rounds; `beyond` is the share explained of both sides less a mean, if any."""

    fit: Fit
    guess: int
    beyond: float = 0.0


@dataclass(frozen=True, eq=False)
class Setting:
    """A plan's account of one round: everything that a simulated client needs, examples included, and where it was
    recorded which of them made each minibatch."""

    task: Task
    protocol: Protocol
    defense: Defense
    batch: Batch
    steps: tuple[Tensor, ...] = ()

    @property
    def client(self) -> Protocol:
        return in_order(self.protocol, self.steps)

    @property
    def shuffles(self) -> bool:
        """Whether an order of minibatches is drawn that nobody recorded."""
        loop = loop_of(self.protocol)
        return loop is not None and loop.shuffle and not self.steps and loop.steps(len(self.batch)) > loop.epochs

    @property
    def draws(self) -> bool:
        return self.shuffles or self.task.stochastic or bool(parts_of(self.defense))

    def simulated(self, update: Update, draws: Draws, guess: int = 0) -> Tensors:
        """The update as this account has it; what is drawn comes from `draws` and the guess, noise is left out."""
        draws = draws.of("guess", guess) if guess else draws
        knowledge = Knowledge(example_count=len(self.batch), local_training=self.client, defense=self.defense)
        seen = Observation(self.defense.on_task(self.task), update, knowledge)
        like = next(iter(self.task.parameters.values()))
        simulator = Simulator.of(seen, like, draws.generator("explained"))
        return simulator.exact(Batch(self.batch.inputs.to(like), self.batch.labels.to(like.device)))

    def fit(self, update: Update, draws: Draws) -> Fit:
        """How this account fits; a round that cannot be simulated fits nothing."""
        try:
            return Fit.between(self.simulated(update, draws), update.tensors)
        except (InputError, RuntimeError, ValueError):
            return Fit(0.0, 0.0)

    def rounded(self, update: Update) -> dict[str, float]:
        """Norm of what rounding makes of each tensor that is sent, see `rounding_norms`."""
        return rounding_norms(update, self.task.parameters, max(self.client.steps(len(self.batch)), 1))

    def own_round(self, update: Update, draws: Draws) -> Update:
        """What this account's client sends, noise included; `draws` are the client's."""
        sent = client_update(self.task, self.client, self.batch, draws, defense=self.defense)
        return replace(sent, header=update.header)

    def closest(self, targets: Iterable[Update], draws: Draws, mean: Tensors | None = None) -> list[Closest]:
        """For each of one or more targets the closest of `GUESSES` simulated rounds; of one where nothing is drawn, and
        then the targets are held one at a time. `Closest.beyond` leaves out `mean` on both sides."""
        remaining = iter(targets)
        one = next(remaining)
        plain = not parts_of(self.defense)  # a defence may be seen in the update itself, such as its zeros
        simulated, other = self.simulated(one, draws), self.simulated(one, draws, 1)
        drawn = any(not torch.equal(simulated[k], other[k]) for k in one.tensors)
        del other

        def compared(target: Update, guess: int) -> Closest:
            made = simulated if plain else self.simulated(target, draws, guess)
            beyond = 0.0 if mean is None else Fit.between(made, target.tensors, mean).share
            return Closest(Fit.between(made, target.tensors), guess, beyond)

        if not drawn:
            return [compared(target, 0) for target in itertools.chain([one], remaining)]
        held = [one, *remaining]
        found = [compared(target, 0) for target in held]
        for guess in range(1, GUESSES):
            simulated = self.simulated(one, draws, guess) if plain else simulated
            new = [compared(target, guess) for target in held]
            found = [max(pair, key=lambda c: c.fit.share) for pair in zip(found, new, strict=True)]
        return found


ENOUGH = 0.95  # share of what the right plan would explain below which a plan counts as wrong
WHOLE = 0.98  # as much where nothing is drawn: what is left is the arithmetic of another machine or of half precision

LEAST, DEVIATIONS = 0.02, 4
"""The least share of what the right plan's pictures add that tells them from others, and the standard deviations over
rounds of the plan by which a captured one may have less."""

EXACT = 1 - 1e-6  # share of its own rounds that a plan explains of which nothing is drawn

UNORDERED = "rounds in other orders explain each other in part alone: a wrong plan could not be told from the right one"
RECORD = (
    "Record the order of the steps with the examples: CaptureMod(…, examples=True), or leakgauge.capture.seen(inputs,"
    " labels) in the training loop"
)


@dataclass(frozen=True)
class Explained:
    """Whether a plan explains its captured update."""

    fit: Fit  # of the whole update, with the closest of several orders where they are drawn
    # expected, spread: what the plan explains of its own rounds, at least and at most, and the standard deviation: less
    # than all where noise, order or dropout are drawn
    expected: tuple[float, float]
    recognisable: bool  # whether the right plan's cosine stands out of chance at all
    tensors: tuple[TensorShare, ...]
    # the likeliest first; empty where no other account explains the update clearly better.
    causes: tuple[Cause, ...] = ()
    # how much of what the plan's own pictures add to any others with their labels is in the update, and is at least in
    # the right plan's; `None` where there were no others to compare with.
    pictures: tuple[float, float] | None = None
    round: str = ""
    spread: float = 0.0
    rounding: float = math.inf  # share of the update's length that rounding may leave unexplained, generously
    # tensors that the plan explains little of beyond their rounding; none of Adam, whose steps are as large where a
    # gradient is nothing but rounding.
    odd: tuple[str, ...] = ()
    # whether rounds in other orders differ so much that no plan can be told from another, and the order of this one was
    # not recorded
    unordered: bool = False

    @property
    def its_pictures(self) -> bool:
        """Whether the update shows the plan's pictures, and not just any: where the classifier's part outweighs all
        else, every picture explains nearly all of it."""
        return self.pictures is None or self.pictures[0] >= self.pictures[1] > LEAST

    @property
    def enough(self) -> bool:
        """As much as the right plan would explain, which may be somewhat less than of the rounds that were drawn."""
        if self.expected[0] > EXACT:
            return self.fit.share >= WHOLE
        return self.fit.share >= ENOUGH * (self.expected[0] - self.spread)

    @property
    def drawn(self) -> bool:
        """Whether the right plan, too, may leave something unexplained: a wrong one may then explain enough."""
        return self.expected[0] < ENOUGH

    @property
    def leaves_more(self) -> bool:
        """Whether more is left than draws and rounding account for, for which reads that need all of an update fail."""
        return self.expected[0] > EXACT and (self.fit.left > self.rounding or bool(self.odd))

    @property
    def too_well(self) -> bool:
        """Whether the update holds clearly less noise than the plan says."""
        most = self.expected[1]
        sure = most < ENOUGH or (most < EXACT and self.fit.share > most + DEVIATIONS * self.spread)
        return sure and self.fit.share > (1 + most) / 2

    @property
    def holds(self) -> bool:
        """Whether results on this update mean what the plan says."""
        doubted = self.unordered or self.too_well or bool(self.causes)
        return self.recognisable and self.enough and self.its_pictures and not doubted

    @property
    def record(self) -> Explanation:
        return Explanation(
            round=self.round,
            holds=self.holds,
            share=_rounded(self.fit.share),
            cosine=_rounded(self.fit.cosine),
            norm=_rounded(self.fit.norm),
            expected=tuple(map(_rounded, self.expected)),
            sentence=self.sentence,
            tensors=tuple(TensorShare(t.name, *map(_rounded, (t.energy, t.cosine, t.norm))) for t in self.tensors),
            causes=tuple(replace(c, share=_rounded(c.share)) for c in self.causes),
        )

    @property
    def sentence(self) -> str:
        much = f"{100 * self.fit.share:.1f} %" if self.fit.share >= 0.0005 else "nothing"
        share = f"The plan explains {much} of {self.round or 'this update'}"
        read = f"(cosine {self.fit.cosine:.3f}, norm {self.fit.norm:.3g} of the captured)"
        if self.drawn:
            low, high = (100 * max(e, 0.0) for e in self.expected)
            read += f"; of rounds of its own it explains {low:.0f} to {high:.0f} %"
        if self.holds:
            left = f"It leaves {self.fit.left:.1e} of its length, more than the rounding of what was sent"
            return f"{share} {read}.{f' {left}: exact reads may fail for that alone.' if self.leaves_more else ''}"
        if not self.recognisable:
            return f"{share} {read}: under so much noise no plan could be told from another, so nothing is concluded."
        if self.too_well:
            return f"{share} {read}: more than its defence allows. First look at defenses: the update holds less noise."
        if self.unordered and not self.causes:
            return f"{share} {read}, and {UNORDERED}, so nothing is concluded. {RECORD}."
        if self.enough and not self.causes:
            any_others = "but other pictures with the same labels explain as much, so nothing is concluded"
            return f"{share} {read}, {any_others}. First look at data: the round's own examples (source, start, batch)."
        first = "; then at ".join(
            f"{c.key}: {c.change}" + ("" if c.share is None else f" ({100 * c.share:.1f} % explained)")
            for c in self.causes[:3]
        )
        another = self.causes and (self.causes[0].share or 0) > self.fit.share
        better = ", but another account explains clearly more" if another else ", but not every tensor"
        better = better if self.enough and self.its_pictures and not self.unordered else ""
        return f"{share} {read}{better}, so nothing is concluded. First look at {first or 'the plan'}."


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")
