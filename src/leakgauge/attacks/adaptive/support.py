"""Counters to defences that leave entries out."""

from __future__ import annotations

from leakgauge.attacks.adaptive.counter import counters
from leakgauge.attacks.matching import Matching
from leakgauge.attacks.matching.simulator import cohort_view
from leakgauge.clients import FedSGD
from leakgauge.defenses import Defense, Prune, RandomK, Soteria, TopK
from leakgauge.observation import Observation


def _for_the_zeros(defense: Defense, observation: Observation) -> str:
    known = observation.knowledge
    view = cohort_view(known.local_training or FedSGD(), known.defense or defense, observation.update, known.draws)
    return "" if view.support is not None else "zeros on the wire, which averaging or a later stage has filled"


@counters(
    TopK,
    RandomK,
    Prune,
    Soteria,
    name="support-mask",
    because="which entries were left out is plain to see, and what was sent is exact: only that is compared",
    missing=_for_the_zeros,
)
def against_omission(attack: Matching, defense: TopK | RandomK | Prune | Soteria, observation: Observation) -> Matching:
    """The attack as it is: the support is part of every simulation by one who knows the defence.

    Where secure aggregation or a later stage has filled the zeros, every simulation still leaves entries out, by its
    own sizes, and the support is not known.

    That entries left out by top-k are no larger than the smallest that was sent adds nothing: as a hinge beside the
    squared distance, 17.9 dB against 17.8 without it and 10.2 of the naive attack (keep 1 %, untrained LeNet, two
    CIFAR-10 pictures, one seed, 300 evaluations of bounded L-BFGS).
    """
    del defense, observation
    return attack
