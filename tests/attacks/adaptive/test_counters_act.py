"""No counter is silently off: it changes the attack, or its view tells something, or it says what it lacks."""

from __future__ import annotations

import pytest
import torch

from cases import batch, task
from leakgauge.attacks.adaptive import counter_to
from leakgauge.attacks.adaptive.counter import Counter
from leakgauge.attacks.matching import Matching
from leakgauge.clients import FedAvg, FedSGD, Protocol, SecureAggregation, client_update, cohort_view
from leakgauge.defenses import (
    DPSGD,
    QSGD,
    ClientDP,
    Compose,
    Defense,
    MixUp,
    Precode,
    Prune,
    Quantise,
    RandomK,
    Sign,
    Soteria,
    TopK,
    noise,
    parts_of,
)
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation

DEFENSES: tuple[Defense, ...] = (
    TopK(keep=0.3),
    RandomK(keep=0.3),
    Prune(rate=0.5),
    Soteria(prune=50.0),
    Quantise(levels=3),
    QSGD(levels=3),
    Sign(),
    noise(sigma=0.01),
    ClientDP(norm=1.0, noise_multiplier=0.1),
    DPSGD(norm=1.0, noise_multiplier=0.1),
    MixUp(),
    Precode(size=8),
)

ONE, COHORT = FedSGD(), SecureAggregation(cohort=2)


def observed(defense: Defense, client: Protocol, examples: int) -> Observation:
    b = batch(examples)
    own = defense.on_task(task("smooth"))
    update = client_update(task("smooth"), client, b, Draws(0), defense=defense)
    known = Knowledge(labels=b.labels, example_count=examples, local_training=client, defense=defense)
    return Observation(own, update, known)


def acts(part: Defense, found: Counter, seen: Observation) -> bool:
    known = seen.knowledge
    assert known.defense is not None
    view = cohort_view(known.local_training or ONE, known.defense, seen.update, None)
    tells = any(getattr(view, name) is not None for name in TELLS)
    attack = Matching()
    return tells or found.adapt(attack, part, seen) != attack


TELLS = ("support", "noise_scale", "log_likelihood")


@pytest.mark.parametrize("behind", [None, noise(sigma=0.01)], ids=["last", "before noise"])
@pytest.mark.parametrize(
    ("defense", "client", "examples"),
    [
        (defense, client, examples)
        for defense in DEFENSES
        for client, examples in ((ONE, 1), (ONE, 4), (ONE, 16), (COHORT, 4))
        if not (isinstance(defense, Soteria) and client == COHORT)  # refused
    ],
    ids=str,
)
def test_a_counter_acts_or_says_what_it_lacks(
    defense: Defense, client: Protocol, examples: int, behind: Defense | None
) -> None:
    whole = defense if behind is None else Compose((defense, behind))
    seen = observed(whole, client, examples)
    for part in parts_of(whole):
        found = counter_to(part)
        assert isinstance(found, Counter)
        if not found.lacks(seen):
            assert acts(part, found, seen), part


@pytest.mark.parametrize(
    ("defense", "client", "examples", "lacks"),
    [
        (Quantise(levels=3), COHORT, 4, "the grid"),
        (Compose((Quantise(levels=3), noise(sigma=0.1))), ONE, 1, ""),
        (Compose((Quantise(levels=3), noise(sigma=0.1))), COHORT, 4, "the grid"),
        (Compose((Quantise(levels=3), TopK(keep=0.5), noise(sigma=0.1))), ONE, 1, "the grid"),
        (TopK(keep=0.3), COHORT, 4, "zeros on the wire"),
        (Compose((TopK(keep=0.3), noise(sigma=0.1))), ONE, 1, "zeros on the wire"),
        (MixUp(), ONE, 16, "two to 8 examples"),
        (TopK(keep=0.3), FedAvg(epochs=2, lr=0.1), 4, ""),
        (Quantise(levels=3), ONE, 1, ""),
    ],
)
def test_what_covers_a_mechanism_is_named(defense: Defense, client: Protocol, examples: int, lacks: str) -> None:
    part = parts_of(defense)[0]
    found = counter_to(part)
    assert isinstance(found, Counter)
    said = found.lacks(observed(defense, client, examples))
    assert lacks in said
    assert bool(lacks) == bool(said)


def test_the_words_are_right_for_an_update_of_zeros_too() -> None:
    """As a frontier's page asks, before any client has trained."""
    for defense in (TopK(keep=0.3), Quantise(levels=3), RandomK(keep=0.3), Prune(rate=0.5)):
        seen = observed(defense, ONE, 1)
        for tensor in seen.update.tensors.values():
            torch.nn.init.zeros_(tensor)
        found = counter_to(defense)
        assert isinstance(found, Counter)
        assert found.lacks(seen) == ""
