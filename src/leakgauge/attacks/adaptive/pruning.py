"""Counters to defences that leave entries out."""

from __future__ import annotations

from leakgauge.attacks.adaptive.counter import counters
from leakgauge.attacks.matching import Matching
from leakgauge.defenses import Prune, RandomK, Soteria, TopK
from leakgauge.observation import Observation


@counters(
    TopK,
    RandomK,
    Prune,
    Soteria,
    name="support-mask",
    because="which entries were left out is plain to see, and what was sent is exact: only that is compared",
)
def against_omission(attack: Matching, defense: TopK | RandomK | Prune | Soteria, observation: Observation) -> Matching:
    """The attack as it is: the support is part of every simulation by one who knows the defence.

    That entries left out by top-k are no larger than the smallest that was sent adds nothing: as a hinge beside the
    squared distance, 17.9 dB against 17.8 without it and 10.2 of the naive attack (keep 1 %, untrained LeNet, two
    CIFAR-10 pictures, one seed, 300 evaluations of bounded L-BFGS).
    """
    del defense, observation
    return attack
