"""What `auto` chooses, and that the choice pays."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest
import torch
from torch import nn

from cases import Passed, batch, task
from leakgauge.attacks.adaptive.noise import _heavier
from leakgauge.attacks.closed_form import LinearRead, RankOneRead
from leakgauge.attacks.effort import Effort
from leakgauge.attacks.matching import (
    Adam,
    Balanced,
    BoundedLBFGS,
    Given,
    NoPrior,
    Normal,
    Pixels,
    Proportional,
    Scheduled,
)
from leakgauge.attacks.matching.priors import Falling
from leakgauge.attacks.recipes import Auto, Features, inverting_gradients
from leakgauge.attacks.recipes.auto import LEAST, Search, affordable, falling_variation
from leakgauge.clients import FedAvg, FedSGD, Protocol, client_update
from leakgauge.compute import Budget
from leakgauge.data import Samples, spec
from leakgauge.defenses import Defense, Quantise, RandomK, TopK, noise
from leakgauge.defenses.dp import laplace
from leakgauge.draws import Draws
from leakgauge.metrics.metric import PSNR
from leakgauge.models import lenet, mlp
from leakgauge.observation import Attack, Knowledge, Observation, Status
from leakgauge.task import Batch, DataSpec, Task


def seen(protocol=None, n: int = 1, seed: int = 0) -> Observation:
    protocol = protocol or FedSGD()
    t, b = task("smooth", seed=seed), batch(n)
    known = Knowledge(labels=b.labels, example_count=n, local_training=protocol)
    return Observation(t, client_update(t, protocol, b, Draws(seed)), known)


def last(weighted: Scheduled) -> float:
    assert isinstance(weighted, Falling)
    return weighted.prior.weight * weighted.to


def test_the_weight_ends_lower_where_there_is_more_to_spend() -> None:
    ends = [last(falling_variation(n)) for n in (1, 20, 75, 150, 300, 600, 1500, 10**6)]
    assert all(b <= a for a, b in pairwise(ends))
    assert ends[0] == pytest.approx(3e-2)
    assert last(falling_variation(150)) == pytest.approx(1e-3)
    assert last(falling_variation(600)) == pytest.approx(1e-3 / 16)
    assert ends[-1] == pytest.approx(1e-7)


def test_a_near_start_is_not_blurred_first() -> None:
    far, near = falling_variation(600), falling_variation(600, near=1.0)
    assert near.prior.weight < far.prior.weight
    assert last(near) == pytest.approx(last(far))


def test_noise_holds_the_weight_at_a_hundredth_of_itself() -> None:
    weighted = falling_variation(600)
    for relative in (0.01, 0.03, 0.1):
        floor = weighted.prior.weight * weighted.at(599, 600, relative**2 / 2)
        assert relative / 100 <= floor < 2.1 * relative / 100


def test_the_least_weight_on_kinks_is_that_of_the_paper_or_more_far_away_and_far_less_near() -> None:
    least = LEAST.at
    assert least(0, 10, float("inf")) == least(5, 10, 0.04) == least(5, 10, 1.0) > 1e-2
    assert least(5, 10, 1e-3) == pytest.approx(1.5e-5)
    assert least(5, 10, 2e-3) == pytest.approx(4 * least(5, 10, 1e-3))


def test_noise_of_known_scale_keeps_the_weight_from_falling() -> None:
    own = LEAST
    for weight in (1e-4, 5e-3, 0.4):
        assert _heavier(Balanced(prior=own), weight) == Balanced(prior=_heavier(own, weight))
        heavier = _heavier(own, weight)
        assert isinstance(heavier, Scheduled)
        assert heavier.at(9, 10, 0.0) * heavier.prior.weight == pytest.approx(weight)
        assert heavier.at(9, 10, 0.5) == max(own.at(9, 10, 0.5), weight)
        assert _heavier(heavier, weight) is heavier
        assert _heavier(heavier, weight / 2) is heavier


def test_the_network_decides_the_minimiser_and_the_data_the_prior() -> None:
    g = torch.Generator().manual_seed(0)
    smooth, rough = (Auto().choice(task(m), g) for m in ("smooth", "relu"))
    assert isinstance(smooth.minimiser, BoundedLBFGS)
    assert isinstance(smooth.prior, Scheduled)
    assert isinstance(rough.minimiser, Adam)
    assert isinstance(rough.prior, Balanced)
    assert isinstance(rough.prior.prior, Scheduled)
    assert isinstance(rough.prior.prior, Proportional)
    assert rough.canvas == Pixels(first=Normal())
    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Sigmoid(), torch.nn.Linear(4, 2))
    assert isinstance(Auto().choice(Task.of(module, DataSpec((6,), 2)), g).prior, NoPrior)
    near = Auto().choice(task("smooth"), g, Given(batch(1).inputs))
    assert near.prior == falling_variation(600, near=1.0)
    read = Given(batch(1).inputs)
    near = Auto().choice(task("relu"), g, read)
    assert near.canvas == Pixels(first=read)
    assert near.minimiser.lr < rough.minimiser.lr


def test_signed_adam_spends_most_of_any_run_at_full_speed() -> None:
    adam = Auto().choice(task("relu"), torch.Generator().manual_seed(0)).minimiser
    assert isinstance(adam, Adam)
    for steps in (20, 100, 600, 2400):
        first, second = adam.milestones(steps)
        assert 0.65 * steps <= first <= 0.7 * steps
        assert 0.85 * steps <= second <= 0.91 * steps


def test_the_budget_and_the_batch_decide_the_weight() -> None:
    g = torch.Generator().manual_seed(0)
    assert Auto().choice(task("smooth"), g, evaluations=150).prior == falling_variation(150)
    assert Auto().choice(task("smooth"), g, evaluations=10**6).prior == falling_variation(10**6)
    assert Auto(smooth_steps=600).choice(task("smooth"), g, evaluations=10**6).prior == falling_variation(600)
    assert Auto().choice(task("relu"), g, evaluations=9000).minimiser.steps == 9000, "no limit below the budget"
    assert Auto().choice(task("smooth"), g, evaluations=600, examples=4).prior == falling_variation(150)
    assert Auto().choice(task("smooth"), g, examples=4).minimiser.steps == 4 * 600, "steps grow with the batch"


def test_the_budget_is_shared_by_restarts_and_local_steps() -> None:
    assert affordable(seen(), Budget(), 1) is None
    assert affordable(seen(), Budget(gradient_evaluations=600), 1) == 600
    assert affordable(seen(), Budget(gradient_evaluations=600), 4) == 150
    stepped = seen(FedAvg(epochs=2, batch_size=2, lr=0.1), n=4)
    assert affordable(stepped, Budget(gradient_evaluations=600), 1) == 150


def score(attack: Attack, observation: Observation, truth: torch.Tensor, seed: int, evaluations: int) -> float:
    budget = Budget(gradient_evaluations=evaluations)
    found = attack.reconstruct(observation, torch.Generator().manual_seed(seed), budget=budget)
    assert found.inputs is not None
    return float(PSNR()(found.inputs.double(), truth.double()).mean())


def test_at_equal_evaluations_it_beats_the_published_recipe() -> None:
    truth = batch(1).inputs
    ours, published = (
        [score(a, seen(seed=s), truth, s, 120) for s in range(3)] for a in (Auto(), inverting_gradients())
    )
    assert statistics.median(ours) > statistics.median(published) + 3


@pytest.mark.parametrize("n", [1, 2])
def test_on_a_network_with_kinks_too(n: int) -> None:
    """At least as good at every weight of total variation that the paper uses."""
    photos = Samples(size=16)
    pool = (nn.MaxPool2d(2), nn.Flatten(), nn.Linear(192, spec(photos).classes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, 2, 1), nn.ReLU(), *pool)
    t = Task.of(net, spec(photos))

    def mean(attack: Attack) -> float:
        scores = []
        for first in (0, 2, 5):
            truth = photos.read(range(first, first + n))
            known = Knowledge(labels=truth.labels, example_count=n, local_training=FedSGD())
            observation = Observation(t, client_update(t, FedSGD(), truth, Draws(0)), known)
            scores.append(score(attack, observation, truth.inputs, 0, 60))
        return statistics.fmean(scores)

    assert mean(Auto()) > max(mean(inverting_gradients(steps=60, tv=tv)) for tv in (1e-2, 1e-3, 0.0))


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("known", [True, False], ids=["defence known", "defence unknown"])
@pytest.mark.parametrize("defense", [noise(relative=3e-3), noise(relative=0.1), laplace(relative=3e-3)], ids=str)
def test_the_search_does_not_spoil_a_good_read(activation: str, defense: Defense, known: bool) -> None:
    """Under little noise the closed form has nearly everything, and a prior of fixed weight cost 20 to 40 dB."""
    photos = Samples(size=16)
    torch.manual_seed(0)
    t = Task.of(mlp(classes=photos.classes, shape=(3, 16, 16), activation=activation), spec(photos))
    b = photos.read([0])
    update = client_update(t, FedSGD(), b, Draws(1), defense=defense)
    observation = Observation(t, update, Knowledge(labels=b.labels, defense=defense if known else None))
    read = LinearRead().reconstruct(observation, torch.Generator())
    assert read.inputs is not None
    least = float(PSNR()(read.inputs, b.inputs))
    assert score(Auto(), observation, b.inputs, 0, 100) > least - 2.5


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("defense", [TopK(keep=0.2), TopK(keep=0.02), RandomK(keep=0.02)], ids=str)
def test_what_sent_entries_show_stays_and_the_rest_gains(activation: str, defense: Defense) -> None:
    photos = Samples(size=16)
    torch.manual_seed(0)
    t = Task.of(mlp(classes=photos.classes, shape=(3, 16, 16), activation=activation), spec(photos))
    gains = []
    for photo in range(4):
        b = photos.read([photo])
        update = client_update(t, FedSGD(), b, Draws(1), defense=defense)
        observation = Observation(t, update, Knowledge(labels=b.labels, defense=defense))
        read = LinearRead().reconstruct(observation, torch.Generator())
        assert read.inputs is not None
        gains.append(score(Auto(), observation, b.inputs, 0, 100) - float(PSNR()(read.inputs.clamp(0, 1), b.inputs)))
    assert min(gains) > 0


@pytest.mark.parametrize("defense", [noise(relative=0.5), Quantise(levels=7)], ids=["noise", "rounding"])
def test_where_the_read_explains_more_than_the_search_found_it_is_the_answer(defense: Defense) -> None:
    photos = Samples(size=16)
    torch.manual_seed(2)
    t = Task.of(mlp(classes=photos.classes, shape=(3, 16, 16), bias=False), spec(photos))
    b = photos.read([2])
    update = client_update(t, FedSGD(), b, Draws(1), defense=defense)
    observation = Observation(t, update, Knowledge(labels=b.labels, example_count=1, defense=defense))
    read = RankOneRead().reconstruct(observation, torch.Generator())
    assert read.inputs is not None
    assert score(Auto(), observation, b.inputs, 0, 100) >= float(PSNR()(read.inputs, b.inputs)) - 0.01


def test_what_budget_is_left_takes_an_inversion_of_a_smooth_network_further() -> None:
    """It ended where it explained the network's inside, whatever was left."""
    torch.manual_seed(0)
    photos = Samples(size=16)
    b, t = photos.read([2]), Task.of(lenet(size=16), spec(photos))
    o = Observation(t, client_update(t, FedSGD(), b, Draws(1)), Knowledge(example_count=1, local_training=FedSGD()))
    found = [a.reconstruct(o, torch.Generator().manual_seed(0), budget=Budget(300)) for a in (Features(), Auto())]
    inside, whole = (float(PSNR()(one.inputs, b.inputs)) for one in found)
    assert found[0].status is Status.CONVERGED
    assert found[1].cost.gradient_evaluations > 290
    assert whole > inside + 5


def test_restarts_from_what_was_read_would_be_one() -> None:
    observation = seen()
    first = Given(batch(1).inputs)
    several, one = Auto(restarts=4), Auto()
    g, budget = torch.Generator(), Budget(gradient_evaluations=80)
    assert several.choice(observation.task, g, first) == one.choice(observation.task, g, first)
    found = Search(several).chosen(observation, Effort(g, budget))
    assert found.restarts == 4


@pytest.mark.parametrize("attack", [Auto(), inverting_gradients()], ids=["auto", "inverting-gradients"])
def test_a_budget_below_one_evaluation_is_said_to_be_one(attack: Attack) -> None:
    observation = seen(FedAvg(epochs=8, lr=0.1))
    found = attack.reconstruct(observation, torch.Generator().manual_seed(0), budget=Budget(gradient_evaluations=5))
    assert found.status is Status.OUT_OF_BUDGET
    assert found.inputs is None
    assert "no evaluation" in found.message


@pytest.mark.parametrize(
    ("between", "mode", "client"),
    [
        (nn.Dropout(0.3), "train", FedSGD()),
        (nn.Dropout(0.3), "train", FedAvg(lr=0.05, epochs=2, batch_size=2)),
        (nn.Identity(), "eval", FedAvg(lr=0.05, epochs=2, batch_size=2)),
    ],
    ids=["dropout", "dropout, local steps", "local steps"],
)
def test_examples_that_rows_agree_on_are_kept_though_no_simulation_proves_them(
    between: nn.Module, mode: str, client: Protocol
) -> None:
    """They were read, and thrown away for a search that came back 80 to 110 dB below them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(108, 256), nn.ReLU(), between, nn.Linear(256, 10))
    task = Task.of(net, DataSpec((3, 6, 6), 10), mode=mode)
    batch = Batch(torch.rand((4, 3, 6, 6), generator=torch.Generator().manual_seed(1)), torch.arange(4))
    update = client_update(task, client, batch, Draws(3))
    known = Knowledge(example_count=4, local_training=client)
    found = Auto().reconstruct(Observation(task, update, known), torch.Generator().manual_seed(0), budget=Budget(100))
    assert found.inputs is not None
    assert all(float((found.inputs - x).abs().amax((1, 2, 3)).min()) < 1e-4 for x in batch.inputs)
    # Without draws, they may have been read in the client's order, which proves them.
    assert found.status is not Status.EXACT or mode == "eval", "nothing proves them"


@pytest.mark.parametrize("budget", [Budget(gradient_evaluations=60), Budget(seconds=1.0), Budget(60, 1.0)], ids=str)
@pytest.mark.parametrize("kind", ["smooth", "relu"])
def test_a_search_is_ended_by_its_budget_whatever_that_names(kind: str, budget: Budget, monkeypatch) -> None:
    """Not by the steps that a search has where none is named."""
    monkeypatch.setattr("leakgauge.attacks.recipes.auto.SMOOTH", 8)
    monkeypatch.setattr("leakgauge.attacks.recipes.auto.ROUGH", 8)
    t, b, client = task(kind), batch(2), FedAvg(epochs=2, batch_size=1, lr=0.1)
    known = Knowledge(labels=b.labels, example_count=2, local_training=client)
    observation = Observation(t, client_update(t, client, b, Draws(0)), known)
    steps: list[int] = []
    found = Search(Auto()).reconstruct(
        observation,
        torch.Generator().manual_seed(0),
        budget=budget,
        on_step=lambda step: bool(steps.append(step.gradient_evaluations)),
    )
    assert found.status in (Status.OUT_OF_BUDGET, Status.TIME_LIMIT), found.message
    assert "budget" not in found.message
    assert steps == sorted(steps)
    assert found.cost.gradient_evaluations == steps[-1]


@pytest.mark.parametrize("bend", [nn.Sigmoid, nn.ReLU], ids=["smooth", "kinks"])
@pytest.mark.parametrize("evaluations", [30, 800], ids=["descent", "Jacobian"])
def test_a_function_of_a_user_s_own_is_searched_through_as_any(bend: type[nn.Module], evaluations: int) -> None:
    """Asked for its curvature, such a network raised, and its row said "failed"."""
    found = []
    for own in (nn.Identity(), Passed()):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(12, 20), bend(), own, nn.Linear(20, 4))
        t, b = Task.of(net, DataSpec((3, 2, 2), 4)), Batch(torch.rand(2, 3, 2, 2), torch.tensor([1, 3]))
        known = Knowledge(labels=b.labels, example_count=2, local_training=FedSGD())
        seen = Observation(t, client_update(t, FedSGD(), b, Draws(0)), known)
        found.append(Search(Auto()).reconstruct(seen, torch.Generator().manual_seed(0), budget=Budget(evaluations)))
    plain, other = found
    assert plain.status is other.status
    torch.testing.assert_close(other.inputs, plain.inputs, rtol=0, atol=1e-3)
