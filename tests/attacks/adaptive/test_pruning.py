"""The counter to defences that leave entries out."""

from __future__ import annotations

import pytest
import torch

from cases import batch, task
from leakgauge.attacks.adaptive import Adapted, Naive, counter_to
from leakgauge.attacks.adaptive.counter import Counter
from leakgauge.attacks.matching import BoundedLBFGS, Matching, TotalVariation
from leakgauge.clients import FedSGD, client_update
from leakgauge.defenses import Defense, Prune, RandomK, Soteria, TopK
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation


@pytest.mark.parametrize("defense", [TopK(keep=0.1), RandomK(keep=0.1), Prune(rate=0.9), Soteria()], ids=repr)
def test_each_has_the_support_as_its_counter(defense: Defense) -> None:
    counter = counter_to(defense)
    assert isinstance(counter, Counter)
    assert counter.name == "support-mask"


@pytest.mark.parametrize("defense", [TopK(keep=0.1), RandomK(keep=0.3), Prune(rate=0.9)], ids=repr)
def test_comparing_what_was_sent_finds_a_lower_distance_and_a_closer_picture(defense: Defense) -> None:
    """A smooth picture of 8 px, 60 evaluations each. The naive attack matches zeros that are none."""
    t, b = task("smooth"), batch(1)
    ramp = torch.linspace(0, 1, 8, dtype=torch.float64)
    b.inputs.copy_((ramp[:, None] * ramp).expand_as(b.inputs))
    known = Knowledge(b.labels, 1, FedSGD(), defense=defense)
    observation = Observation(t, client_update(t, FedSGD(), b, Draws(3), defense=defense), known)
    base = Matching(prior=TotalVariation(1e-3, smoothing=1e-6), minimiser=BoundedLBFGS(steps=60))
    naive, adapted = (
        a.reconstruct(observation, torch.Generator().manual_seed(1)) for a in (Naive(attack=base), Adapted(attack=base))
    )
    assert naive.inputs is not None
    assert adapted.inputs is not None
    assert naive.objective is not None
    assert adapted.objective is not None
    assert adapted.objective < naive.objective / 2
    errors = [float((found.inputs - b.inputs).square().mean()) for found in (naive, adapted)]
    assert errors[1] < errors[0]
