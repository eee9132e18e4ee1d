"""The same attack by one who knows the defence and by one who does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch

from cases import batch, task
from leakgauge.attacks.adaptive import COUNTERS, Adapted, Naive, NoneKnown, counter_to, counters
from leakgauge.attacks.effort import Effort
from leakgauge.attacks.matching import Adam, BoundedLBFGS, JointSoftLabels, Matching, TotalVariation
from leakgauge.attacks.recipes import Auto, ci_net, dlg, idlg, inverting_gradients, qian_hansen, rog
from leakgauge.attacks.recipes.auto import Search
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget
from leakgauge.data import Samples
from leakgauge.data.source import spec
from leakgauge.defenses import Clip, Compose, Defense, NoDefense, Quantise, Sign, TopK, noise, parts_of
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR
from leakgauge.models import lenet, mlp
from leakgauge.observation import Attack, Knowledge, Observation, Reconstruction, Status
from leakgauge.task import Task
from leakgauge.tensors import Tensors

PLAIN = Matching(minimiser=Adam(steps=6))


@dataclass(frozen=True)
class Doubling(Defense):
    """Sends twice the update: a defence that no counter is registered for."""


@dataclass(frozen=True)
class Adding(Defense):
    """Does nothing."""


@pytest.fixture
def fakes() -> Iterator[None]:
    """Counters that write what they do into the prior's weight, which shows their order."""

    @counters(Doubling, name="twice", because="it is a test")
    def twice(attack: Matching, defense: Defense, observation: Observation) -> Matching:
        return replace(attack, prior=TotalVariation(2 * weight(attack)))

    @counters(Adding, name="plus", because="it is a test")
    def plus(attack: Matching, defense: Defense, observation: Observation) -> Matching:
        return replace(attack, prior=TotalVariation(weight(attack) + 0.5))

    yield
    for kind in (Doubling, Adding):
        del COUNTERS[kind]


def weight(attack: Matching) -> float:
    return getattr(attack.prior, "weight", 0.0)


def seen(defense: Defense | None = None, *, known: Defense | None = None, draws: Draws | None = None) -> Observation:
    truth = batch(1)
    t = task("smooth")
    update = client_update(t, FedSGD(), truth, Draws(3), defense=defense)
    knowledge = Knowledge(truth.labels, 1, FedSGD(), defense=known, draws=draws)
    return Observation(t, update, knowledge)


def run(attack: Attack, observation: Observation) -> Reconstruction:
    return attack.reconstruct(observation, torch.Generator().manual_seed(1), budget=Budget(gradient_evaluations=30))


def same(a: Reconstruction, b: Reconstruction) -> bool:
    assert a.inputs is not None
    assert b.inputs is not None
    return torch.equal(a.inputs, b.inputs) and a.objective == b.objective


@pytest.mark.parametrize("defense", [TopK(keep=0.3), noise(relative=0.5)], ids=repr)
def test_the_naive_attacker_gives_the_same_whatever_is_known_of_the_defence(defense: Defense) -> None:
    naive = Naive(attack=PLAIN)
    told = run(naive, seen(defense, known=defense, draws=Draws(3)))
    misled = run(naive, seen(defense, known=Clip(norm=1.0)))
    untold = run(naive, seen(defense))
    assert same(told, untold)
    assert same(misled, untold)
    assert same(untold, run(PLAIN, seen(defense)))


def test_knowing_the_support_is_worth_something_so_that_naive_has_something_to_forget() -> None:
    defense = TopK(keep=0.3)
    assert not same(run(PLAIN, seen(defense, known=defense)), run(Naive(attack=PLAIN), seen(defense, known=defense)))


def test_the_adapted_attacker_who_knows_no_defence_says_what_is_missing() -> None:
    found = run(Adapted(attack=PLAIN), seen(TopK(keep=0.3)))
    assert found.status is Status.NOT_APPLICABLE
    assert "knows: defense" in found.message
    assert found.cost.gradient_evaluations == 0


@pytest.mark.parametrize("none", [NoDefense(), Compose((NoDefense(), NoDefense()))], ids=repr)
@pytest.mark.parametrize("attack", [PLAIN, Auto(smooth_steps=6)], ids=lambda a: type(a).__name__)
def test_against_no_defence_it_is_the_attack_itself(attack: Attack, none: Defense) -> None:
    observation = seen(none, known=none)
    assert parts_of(none) == ()
    assert same(run(Adapted(attack=attack), observation), run(attack, observation))


def test_counters_apply_in_the_order_of_the_defences(fakes: None) -> None:
    base = replace(PLAIN, prior=TotalVariation(0.25))
    first, second = Compose((Doubling(), Adding())), Compose((Compose((Adding(),)), NoDefense(), Doubling()))
    for defense, expected in ((first, 1.0), (second, 1.5), (Doubling(), 0.5)):
        observation = seen(known=defense)
        by_hand = replace(base, prior=TotalVariation(expected), counters=False)
        assert same(run(base, observation), run(by_hand, observation))
    assert not same(*(run(base, seen(known=d)) for d in (first, second)))


def test_a_counter_holds_for_subclasses_unless_they_have_their_own(fakes: None) -> None:
    class Tripling(Doubling):
        """Another."""

    assert counter_to(Tripling()) is COUNTERS[Doubling]


def test_a_defence_without_a_counter_is_attacked_through_its_view_alone() -> None:
    assert isinstance(counter_to(Doubling()), NoneKnown)
    observation = seen(known=Doubling())
    assert same(run(PLAIN, observation), run(replace(PLAIN, counters=False), observation))


def test_auto_is_adapted_through_its_own_choice(fakes: None) -> None:
    auto, observation = Auto(smooth_steps=6), seen(known=Doubling())
    budget = Budget(gradient_evaluations=30)
    assert run(auto, observation).tried[0].name == "closed-form"
    one, two = (torch.Generator().manual_seed(1) for _ in range(2))
    chosen = Search(auto).chosen(observation, Effort(one, budget))
    by_hand = replace(chosen, prior=TotalVariation(2 * weight(chosen)), counters=False)
    expected = by_hand.reconstruct(observation, one, budget=budget)
    assert same(Search(auto).reconstruct(observation, two, budget=budget), expected)


EVERY = [
    Matching(minimiser=Adam(steps=6), labels=JointSoftLabels()),
    inverting_gradients(steps=6),
    dlg(restarts=1, steps=6),
    idlg(restarts=1, steps=6),
    ci_net(width=8, steps=6),
    rog(steps=6, factor=2),
    qian_hansen(minimiser=BoundedLBFGS(steps=6)),
    Auto(smooth_steps=6),
]


@pytest.mark.parametrize("attack", EVERY, ids=lambda a: f"{type(a).__name__}-{EVERY.index(a)}")
def test_an_attack_that_is_given_the_defence_uses_it_and_the_naive_reading_is_asked_for_by_name(attack: Attack) -> None:
    """It called no counter, so an audit that knew the defence reported the reading that flatters it."""
    defense = noise(relative=1.0)
    observation = seen(defense, known=defense)
    found = run(attack, observation)
    assert same(found, run(Adapted(attack=attack), observation))
    assert not same(found, run(Naive(attack=attack), observation))


def test_under_heavy_noise_auto_by_default_recovers_what_the_naive_reading_does_not() -> None:
    photos = Samples(size=32)
    torch.manual_seed(0)
    t = Task.of(lenet(classes=photos.classes), spec(photos))
    for defense in (noise(relative=1.0), Sign()):
        b = photos.read([1])
        update = client_update(t, FedSGD(), b, Draws(1), defense=defense)
        observation = Observation(t, update, Knowledge(b.labels, 1, FedSGD(), defense=defense))
        scores = {}
        for attack in (Auto(), Naive(attack=Auto())):
            generator = torch.Generator().manual_seed(0)
            found = attack.reconstruct(observation, generator, budget=Budget(gradient_evaluations=40))
            assert found.inputs is not None
            scores[type(attack)] = float(PSNR()(found.inputs, b.inputs))
        assert scores[Auto] > scores[Naive] + 1


@pytest.mark.parametrize(
    "defense", [Clip(norm=1.0), noise(relative=1e-3), Quantise(levels=127), TopK(keep=0.5)], ids=repr
)
def test_who_knows_the_defence_reads_as_much_in_closed_form_as_who_does_not(defense: Defense) -> None:
    """The adapted attacker went straight to the search: under clipping 27 dB beside 149."""
    photos = Samples(size=16)
    torch.manual_seed(0)
    t = Task.of(mlp(classes=photos.classes, shape=(3, 16, 16)), spec(photos))
    b = photos.read([0])
    update = client_update(t, FedSGD(), b, Draws(1), defense=defense)
    observation = Observation(t, update, Knowledge(labels=b.labels, defense=defense))
    scores = {}
    for attack in (Naive(attack=Auto()), Auto()):
        found = attack.reconstruct(
            observation, torch.Generator().manual_seed(0), budget=Budget(gradient_evaluations=100)
        )
        assert found.inputs is not None
        scores[type(attack)] = float(PSNR()(found.inputs, b.inputs))
    assert scores[Auto] > scores[Naive] - 2.5


class Unheard(Defense):
    """A defence of somebody's own, to which nobody has a counter."""

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        return tensors


def test_a_defence_without_a_counter_is_told() -> None:
    t, b = task("smooth"), batch(1)
    for defense, told in ((Unheard(), True), (Clip(norm=1.0), False)):
        known = Knowledge(b.labels, 1, FedSGD(), defense=defense)
        seen = Observation(t, client_update(t, FedSGD(), b, Draws(0), defense=defense), known)
        attack = Adapted(attack=Matching(minimiser=Adam(steps=1)))
        found = attack.reconstruct(seen, torch.Generator().manual_seed(0), budget=Budget(gradient_evaluations=1))
        assert ("no counter to Unheard is known" in found.message) is told
