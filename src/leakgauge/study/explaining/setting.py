"""A plan's account of one round, and how close the rounds that it simulates come to an update."""

from __future__ import annotations

import itertools
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
from leakgauge.study.explaining.fit import Fit
from leakgauge.study.explaining.recorded import in_order, loop_of
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors
from leakgauge.update import Update
from leakgauge.view.entries import rounding_norms

GUESSES = 8
"""Draws of order and dropout of which the closest counts: two rounds in different orders may have little in common."""


@dataclass(frozen=True)
class Closest:
    """The closest of several simulated rounds.

    Attributes:
        fit: of that round.
        guess: its number.
        beyond: share explained of what is left of both sides without a mean; 0 where there was none.
    """

    fit: Fit
    guess: int
    beyond: float = 0.0


@dataclass(frozen=True, eq=False)
class Setting:
    """A plan's account of one round: everything that a simulated client needs, examples included.

    Attributes:
        steps: which examples made each minibatch, where that was recorded.
    """

    task: Task
    protocol: Protocol
    defense: Defense
    batch: Batch
    steps: tuple[Tensor, ...] = ()

    @property
    def client(self) -> Protocol:
        """The protocol, in the order that was recorded."""
        return in_order(self.protocol, self.steps)

    @property
    def shuffles(self) -> bool:
        """Whether an order of minibatches is drawn that nobody recorded."""
        loop = loop_of(self.protocol)
        return loop is not None and loop.shuffle and not self.steps and loop.steps(len(self.batch)) > loop.epochs

    @property
    def draws(self) -> bool:
        """Whether anything is drawn."""
        return self.shuffles or self.task.stochastic or bool(parts_of(self.defense))

    def simulated(self, update: Update, draws: Draws) -> Tensors:
        """The update as this account has it; what is drawn comes from `draws`, noise is left out.

        Raises:
            InputError: no client can train so.
        """
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

    def guessed(self, update: Update, draws: Draws, guess: int) -> Tensors:
        """The simulated round of one guess at what is drawn."""
        return self.simulated(update, draws.of("guess", guess) if guess else draws)

    def rounded(self, update: Update) -> dict[str, float]:
        """Norm of what rounding makes of each tensor that is sent, see `rounding_norms`."""
        return rounding_norms(update, self.task.parameters, max(self.client.steps(len(self.batch)), 1))

    def own_round(self, update: Update, draws: Draws) -> Update:
        """What this account's client sends, noise included; `draws` are the client's."""
        sent = client_update(self.task, self.client, self.batch, draws, defense=self.defense)
        return replace(sent, header=update.header)

    def closest(self, targets: Iterable[Update], draws: Draws, mean: Tensors | None = None) -> list[Closest]:
        """For each target the closest of `GUESSES` simulated rounds; of one where nothing is drawn, and then the
        targets are held one at a time.

        Args:
            targets: what is to be explained, one or more.
            draws: of the guesses.
            mean: what `Closest.beyond` leaves out on both sides.

        Raises:
            InputError: no client can train so.
        """
        remaining = iter(targets)
        one = next(remaining)
        plain = not parts_of(self.defense)  # a defence may be seen in the update itself, such as its zeros
        simulated, other = self.guessed(one, draws, 0), self.guessed(one, draws, 1)
        drawn = any(not torch.equal(simulated[k], other[k]) for k in one.tensors)
        del other

        def compared(target: Update, guess: int) -> Closest:
            made = simulated if plain else self.guessed(target, draws, guess)
            beyond = 0.0 if mean is None else Fit.between(made, target.tensors, mean).share
            return Closest(Fit.between(made, target.tensors), guess, beyond)

        if not drawn:
            return [compared(target, 0) for target in itertools.chain([one], remaining)]
        held = [one, *remaining]
        found = [compared(target, 0) for target in held]
        for guess in range(1, GUESSES):
            simulated = self.guessed(one, draws, guess) if plain else simulated
            new = [compared(target, guess) for target in held]
            found = [max(pair, key=lambda c: c.fit.share) for pair in zip(found, new, strict=True)]
        return found
