"""How often the noise of a defence meets one unit's data in a single update: local steps add up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from leakgauge.clients import Protocol
from leakgauge.defenses import Defense
from leakgauge.privacy.guarantee import Mechanism, NoGuarantee, Unit, mechanism
from leakgauge.privacy.lower_bounds import epsilon_of_noise
from leakgauge.update import UpdateKind


def local_batch(client: Protocol, examples: int) -> int:
    """Examples in one local step of a client."""
    return max(client.parts(examples))


@dataclass(frozen=True)
class LocalUse:
    """What a client's local training does with each of its examples.

    Attributes:
        steps: local steps of one update that an example is in: one of every epoch.
        smallest: examples of the smallest step, in which noise on a mean counts least.
        gradient: whether the client sends the gradient of one step, not a delta.
    """

    steps: int
    smallest: int
    gradient: bool

    @staticmethod
    def of(client: Protocol, examples: int) -> LocalUse:
        """With secure aggregation: the value for the least protected client, since each client's noise covers
        only its own share of the mean.

            Raises:
                InputError: the clients of a cohort cannot share so many examples.
        """
        each = [(one.parts(n), n) for one, n in client.clients(examples)]
        steps = max(-(-sum(parts) // n) for parts, n in each)
        return LocalUse(steps, min(min(parts) for parts, _ in each), client.kind is UpdateKind.GRADIENT)


USEFUL = 1000.0
"""ε above which no number is stated: e^ε times any chance is certainty."""


@dataclass(frozen=True)
class Spent:
    """The Gaussian releases about one unit in one update.

    Attributes:
        releases: local steps that meet an example; one for a client, whose update gets its noise as a whole.
    """

    mechanism: Mechanism
    releases: int

    def epsilon(self, delta: float) -> float:
        """Exact, without sampling.

        Raises:
            InputError, OverflowError: ε is beyond use.
        """
        return epsilon_of_noise(self.mechanism.noise_multiplier, delta, self.releases)


def in_words(epsilon: float) -> str:
    """ε to three digits, or that it bounds nothing that matters: one number for it everywhere."""
    return f"{epsilon:.3g}" if epsilon < USEFUL else f"beyond use (over {USEFUL:g})"


def spent_in_one_update(
    defense: Defense, clients: Iterable[Protocol], examples: int, layers: int | None = None
) -> Spent | NoGuarantee:
    """That of the client whose update gives away most, or why one of them has none.

    Args:
        examples: that each client holds.
        layers: of the model, for fed-cdp.
    """
    found: list[Spent] = []
    for use in (LocalUse.of(client, examples) for client in clients):
        stated = mechanism(defense, examples=use.smallest, layers=layers, gradient=use.gradient)
        if isinstance(stated, NoGuarantee):
            return stated
        found.append(Spent(stated, 1 if stated.unit is Unit.CLIENT else use.steps))
    return max(found, key=lambda one: one.releases**0.5 / one.mechanism.noise_multiplier)
