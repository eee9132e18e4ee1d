"""Counters to quantisers and signs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from cases import batch, task
from leakgauge.attacks.adaptive import Adapted, Naive, counter_to
from leakgauge.attacks.adaptive.counter import Counter, Likelihood, Signs, against_rounding, against_signs
from leakgauge.attacks.matching import BoundedLBFGS, Matching, TotalVariation
from leakgauge.clients import FedAvg, FedSGD, Protocol, SecureAggregation, client_update, raw_update
from leakgauge.defenses import QSGD, AttackerView, Compose, Defense, NoDefense, Quantise, Sign, TopK, noise
from leakgauge.defenses.steps import EntryMask
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation
from leakgauge.tensors import map_tensors

BASE = Matching(prior=TotalVariation(1e-3))


def seen(defense: Defense, protocol: Protocol = FedSGD(), *, training: bool = True) -> Observation:
    t, b = task("smooth"), batch(1)
    known = Knowledge(b.labels, 1, protocol if training else None, defense=defense)
    return Observation(t, client_update(t, protocol, b, Draws(3), defense=defense), known)


@pytest.mark.parametrize("defense", [Quantise(), QSGD(), Sign()], ids=repr)
def test_each_has_a_named_counter_that_changes_objective_and_prior_alone(defense: Defense) -> None:
    counter = counter_to(defense)
    assert isinstance(counter, Counter)
    adapted = counter.adapt(BASE, defense, seen(defense))
    assert type(adapted.objective) is (Signs if isinstance(defense, Sign) else Likelihood)
    assert adapted.prior != BASE.prior
    for part in ("canvas", "minimiser", "labels", "polish", "restarts"):
        assert getattr(adapted, part) == getattr(BASE, part)


def test_the_length_of_the_update_is_not_needed() -> None:
    delta = FedAvg(epochs=1, lr=0.1)
    for defense, against, objective in ((Quantise(), against_rounding, Likelihood), (Sign(), against_signs, Signs)):
        adapted = against(BASE, defense, seen(defense, delta, training=False)).objective
        assert isinstance(adapted, objective)
        assert adapted.scale_free


def test_where_a_later_stage_has_covered_the_grid_the_attack_stays() -> None:
    both = Compose((Quantise(), TopK(keep=0.5), noise(sigma=0.1)))
    assert against_rounding(BASE, Quantise(), seen(both)) is BASE


def test_signs_against_a_twin_and_finite_differences() -> None:
    sent = {"w": torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)}
    raw = torch.tensor([0.2, 0.1, -0.3], dtype=torch.float64)
    tau = 0.1 * math.sqrt((0.04 + 0.01 + 0.09) / 3)

    def cost(z: float) -> float:
        return math.log1p(math.exp(-z))

    expected = (cost(0.2 / tau) + cost(-0.1 / tau) + (cost(0.3 / tau) + cost(-0.3 / tau)) / 2) / 3
    assert float(Signs()({"w": raw}, sent, AttackerView())) == pytest.approx(expected)
    assert torch.autograd.gradcheck(lambda t: Signs()({"w": t}, sent, AttackerView()), raw.clone().requires_grad_())


def test_signs_read_no_length_and_are_least_at_the_truth_among_flips() -> None:
    observation = seen(Sign())
    raw = raw_update(observation.task, FedSGD(), batch(1), Draws(3), NoDefense())[0]
    sent = observation.update.tensors
    at_truth = float(Signs()(raw, sent, AttackerView()))
    assert at_truth == pytest.approx(float(Signs()(map_tensors(lambda t: 7 * t, raw), sent, AttackerView())))
    assert at_truth == pytest.approx(float(Signs()(raw, map_tensors(lambda t: 7 * t, sent), AttackerView())))
    for name in raw:
        assert float(Signs()({**raw, name: -raw[name]}, sent, AttackerView())) > at_truth


@pytest.mark.parametrize("defense", [Quantise(levels=1), QSGD(levels=1), Sign()], ids=repr)
def test_the_adapted_attack_is_closer_to_the_picture_than_the_naive_one(defense: Defense) -> None:
    """A smooth picture, 8 px, 60 evaluations each, in mean squared error."""
    t, b = task("smooth"), batch(1)
    ramp = torch.linspace(0, 1, 8, dtype=torch.float64)
    b.inputs.copy_((ramp[:, None] * ramp).expand_as(b.inputs))
    known = Knowledge(b.labels, 1, FedSGD(), defense=defense)
    observation = Observation(t, client_update(t, FedSGD(), b, Draws(3), defense=defense), known)
    base = Matching(prior=TotalVariation(1e-3, smoothing=1e-6), minimiser=BoundedLBFGS(steps=60))
    errors = []
    for attack in (Naive(attack=base), Adapted(attack=base)):
        found = attack.reconstruct(observation, torch.Generator().manual_seed(1))
        assert found.inputs is not None
        errors.append(float((found.inputs - b.inputs).square().mean()))
    assert errors[1] < errors[0]


def test_where_the_objective_would_see_no_likelihood_the_attack_stays() -> None:
    told = seen(QSGD())
    two = replace(told.knowledge, local_training=SecureAggregation(cohort=2), labels=None, example_count=2)
    mean = replace(told.update, header=replace(told.update.header, example_count=2))
    assert against_rounding(BASE, QSGD(), replace(told, knowledge=two, update=mean)) is BASE
    told = replace(told, knowledge=replace(told.knowledge, draws=Draws(3)))
    assert against_rounding(BASE, QSGD(), told) is BASE


def test_signs_that_were_left_out_at_random_are_not_compared() -> None:
    """Not so those that top-k left out: they are small."""
    w = torch.tensor([1.0, 2.0, -3.0, 4.0], dtype=torch.float64)
    sent = {"w": torch.tensor([1.0, 0.0, -1.0, 0.0], dtype=torch.float64)}
    kept = {"w": sent["w"] != 0}
    other = {"w": torch.tensor([1.0, 20.0, -3.0, -7.0], dtype=torch.float64)}
    blind = AttackerView((EntryMask(support=kept),))
    assert float(Signs()({"w": w}, sent, blind)) == pytest.approx(float(Signs()(other, sent, blind)))
    alone = float(Signs()({"w": w[[0, 2]]}, {"w": sent["w"][[0, 2]]}, AttackerView()))
    assert 4 * float(Signs()({"w": w}, sent, blind)) == pytest.approx(2 * alone + 2 * math.log(2))
    small = AttackerView((EntryMask(support=kept, smallest=True),))
    assert float(Signs()({"w": w}, sent, small)) == float(Signs()({"w": w}, sent, AttackerView()))
