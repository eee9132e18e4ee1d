"""The attack as a whole: examples from hidden tensors, certified by simulation alone."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from scipy.optimize import lsq_linear
from torch import Tensor, nn

from convolutions import Block, made, observed
from leakgauge.attacks.features.inversion import FeatureInversion, Residuals, polished
from leakgauge.attacks.features.read import HiddenTensors
from leakgauge.attacks.matching.problem import UNLIMITED, Meter
from leakgauge.attacks.recipes import Features
from leakgauge.attacks.recipes.features import deepest
from leakgauge.batch import Batch
from leakgauge.clients import FedAvg, FedSGD, SecureAggregation, client_update
from leakgauge.compute import Budget
from leakgauge.defenses import Clip, NoDefense
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation, Status
from leakgauge.task import DataSpec, Task
from leakgauge.view.derivatives import jacobian


def attacked(count, mode="eval", width=72, budget=Budget(), seed=0):
    torch.manual_seed(1)
    inputs, labels = made(count)
    observation = observed(Block(width), inputs, labels, mode)
    generator = torch.Generator().manual_seed(seed)
    return Features().reconstruct(observation, generator, budget=budget), inputs, labels


@pytest.mark.parametrize("count", [1, 3])
def test_examples_come_out_with_their_labels_and_are_certified(count):
    found, inputs, labels = attacked(count)
    assert found.status is Status.EXACT, found.message
    gaps = torch.cdist(inputs.flatten(1), found.inputs.flatten(1))
    assert float(gaps.amin(1).max()) < 1e-3
    assert torch.equal(found.labels[gaps.argmin(1)], labels)
    assert any(one.certified and len(one.maps) == count for one in found.features)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slopes_of_one_example_of_a_batch_are_those_of_its_differences(dtype, monkeypatch):
    """Known values of a batch are views with strides of their own, which torch's batch norm takes wrongly for one."""
    torch.manual_seed(1)
    inputs, labels = made(3)
    draw = torch.Generator().manual_seed(0)
    descent = deepest(HiddenTensors.of(observed(Block(72), inputs, labels), 3), UNLIMITED, draw)
    own = Residuals.of(descent).only(torch.tensor([1]))
    _, c, _, w = own.terms[0].value.shape
    odd = [torch.empty_strided(t.value.shape, (c, 1, c * w, c), dtype=torch.float64).copy_(t.value) for t in own.terms]
    own = replace(own, terms=tuple(replace(t, value=o) for t, o in zip(own.terms, odd, strict=True))).to(dtype)
    point, step = (torch.rand((2, *own.shape), generator=draw, dtype=torch.float64) + 0.1).to(dtype)
    monkeypatch.setattr("leakgauge.view.derivatives.OFTEN", 1)
    for words in ("leakgauge.view.derivatives.LARGE", "torch.func.linearize", ""):
        if words:  # traced, then not taken by torch.func, then never traced
            monkeypatch.setattr(words, 0 if words.endswith("LARGE") else lambda *_: 1 / 0)
        else:
            monkeypatch.setattr("leakgauge.view.derivatives.LARGE", 2**60)
        made_of, operator = jacobian(own, point)
        dual = torch.randn(len(made_of), generator=draw, dtype=torch.float64).numpy()
        along = float(dual @ operator.matvec(step.double().numpy().ravel()))
        assert along == pytest.approx(float(operator.rmatvec(dual) @ step.double().numpy().ravel()), rel=1e-3)


def test_the_same_seed_gives_the_same_answer():
    one, two = (attacked(2, budget=Budget(gradient_evaluations=60))[0] for _ in range(2))
    assert torch.equal(one.inputs, two.inputs)
    assert one.cost.gradient_evaluations == two.cost.gradient_evaluations <= 60


def test_features_stay_where_no_example_comes_out():
    found, _, _ = attacked(2, budget=Budget(gradient_evaluations=8))
    assert found.status is not Status.EXACT
    assert found.features
    assert all(len(one.maps) == 2 for one in found.features if one.certified)


def test_the_difference_of_weights_of_one_step_is_read_with_their_rounding():
    torch.manual_seed(1)
    inputs, labels = made(2)
    task, client = observed(Block(72), inputs, labels).task, FedAvg(epochs=1, batch_size=2, lr=0.1)
    update = client_update(task, client, Batch(inputs, labels), Draws(0))
    known = Knowledge(example_count=2, local_training=client, defense=NoDefense())
    observation = Observation(task, update, known)
    found = Features().reconstruct(observation, torch.Generator().manual_seed(0))
    assert found.status is Status.EXACT, found.message
    assert float(torch.cdist(inputs.flatten(1), found.inputs.flatten(1)).amin(1).max()) < 1e-2


def test_a_few_dozen_units_tell_four_examples_apart():
    """Two clients, each clipped by itself: what enters the last layer is all that is exact."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 5))
    task, inputs = Task.of(net, DataSpec((3, 4, 4), 5)), torch.rand(4, 3, 4, 4, generator=torch.manual_seed(5))
    client, defense = SecureAggregation(cohort=2, client=FedSGD()), Clip(norm=0.1)
    update = client_update(task, client, Batch(inputs, torch.arange(4)), Draws(1), defense=defense)
    known = Knowledge(example_count=4, local_training=client, defense=defense)
    found = Features().reconstruct(Observation(task, update, known), torch.Generator().manual_seed(0))
    (features,) = found.features
    assert features.certified
    given = net[:3](inputs).detach().double()
    units = [t / t.norm(dim=1, keepdim=True) for t in (given, features.maps.flatten(1).double())]
    assert float(torch.cdist(*units).amin(1).max()) < 20 * features.error


def test_a_narrow_network_says_which_condition_fails():
    found, _, _ = attacked(4, width=12)
    assert found.status is Status.NOT_APPLICABLE
    assert "filters" in found.message


@pytest.mark.parametrize("spent", ["reading", "descent", "inversion"])
def test_the_seconds_of_a_budget_end_every_part(spent, monkeypatch):
    """A clock that goes on by an hour a look, from one part on, ends that part at its next look."""
    from leakgauge.attacks.features import descent, null_space
    from leakgauge.attacks.recipes import features

    places = {
        "reading": (null_space, "smallest"),
        "descent": (descent.Descent, "_step"),
        "inversion": (features.Features, "_inverted"),
    }
    module, name = places[spent]
    ticked, original, real = [0.0], getattr(module, name), time.perf_counter
    looks = []

    def late(*args, **kwargs):
        ticked[0] = 3600.0
        return original(*args, **kwargs)

    def clock():
        looks.append(ticked[0])
        return real() + ticked[0]

    monkeypatch.setattr(module, name, late)
    monkeypatch.setattr("time.perf_counter", clock)
    found, _, _ = attacked(2, budget=Budget(seconds=1800))
    assert found.status is not Status.EXACT
    assert 0 < sum(looked > 0 for looked in looks) < 40
    assert found.status is Status.TIME_LIMIT or spent == "reading"


def test_an_example_that_no_start_explains_holds_up_no_other(monkeypatch):
    """What is known of one of three is a little wrong: it is in its basin, and the others are brought to the end before
    anything begins again."""
    torch.manual_seed(1)
    inputs, labels = made(3)
    original, calls = Residuals.of, []

    def wrong(descent):
        residuals = original(descent)
        terms = list(residuals.terms)
        value = terms[0].value.clone()
        value[0] *= 1 + 0.02 * torch.randn(value[0].shape, generator=torch.Generator().manual_seed(3))
        return replace(residuals, terms=(replace(terms[0], value=value), *terms[1:]))

    class Noted(FeatureInversion):
        def begun(self, residuals, meter, generator):
            calls.append(("begun", residuals.shape[0]))
            return super().begun(residuals, meter, generator)

        def finished(self, residuals, found, meter):
            calls.append(("finished", residuals.shape[0]))
            return super().finished(residuals, found, meter)

    monkeypatch.setattr(Residuals, "of", staticmethod(wrong))
    observation = observed(Block(72), inputs, labels)
    found = Features(inversion=Noted(), starts=3).reconstruct(observation, torch.Generator().manual_seed(0))
    gaps = torch.cdist(found.inputs.flatten(1), inputs.flatten(1)).amin(0).sort().values
    assert calls[:3] == [("begun", 3), ("finished", 3), ("begun", 1)]
    assert float(gaps[1]) < 1e-4 < float(gaps[2]) < 0.5
    calls.clear()
    Features(inversion=Noted(), starts=1).reconstruct(observation, torch.Generator().manual_seed(0))
    assert calls == [("begun", 3), ("finished", 3)]  # nothing is brought to the end twice


def test_out_of_steps_names_the_setting():
    torch.manual_seed(1)
    inputs, labels = made(2)
    short = FeatureInversion(steps=2, finish=0.0)
    ended = Features(inversion=short, starts=1)
    found = ended.reconstruct(observed(Block(72), inputs, labels), torch.Generator().manual_seed(0))
    assert found.status is Status.OUT_OF_STEPS
    assert "starts" in found.message
    open_ended = Features(inversion=short)
    budget = Budget(gradient_evaluations=8)
    found = open_ended.reconstruct(observed(Block(72), inputs, labels), torch.Generator().manual_seed(0), budget=budget)
    assert found.status is Status.OUT_OF_BUDGET


class Bounded(Residuals):
    """A linear system of numbers between 0 and 1, some of which the best solution has at an end."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        slopes = torch.randn(40, 30, generator=draw, dtype=torch.float64) @ torch.logspace(0, -1, 30).double().diag()
        wanted = slopes @ torch.rand(30, generator=draw, dtype=torch.float64).mul(1.6).sub(0.3)
        object.__setattr__(self, "system", (slopes, wanted))

    @property
    def data(self) -> DataSpec:
        return DataSpec((1, 5, 6), 2)

    def to(self, dtype: torch.dtype) -> Residuals:
        return self

    def __call__(self, inputs: Tensor) -> Tensor:
        slopes, wanted = (part.to(inputs) for part in self.system)
        return slopes @ inputs.flatten() - wanted


def test_the_end_stays_within_the_datas_range_and_is_the_best_there() -> None:
    """Numbers at an end are held there: the others would make up for what is cut off."""
    asked = Bounded()
    start = torch.full((1, 1, 5, 6), 0.5, dtype=torch.float64)
    found = polished(asked, start, Meter(Budget()))
    best = lsq_linear(*(part.numpy() for part in asked.system), bounds=(0, 1), tol=1e-12)
    assert int((torch.from_numpy(best.x) < 1e-6).sum()) >= 3
    assert float(asked(found).square().sum()) < 2 * best.cost * 1.01
