"""Whether an update speaks of its images: asked of networks for which the answer is known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cases import batch, task
from leakgauge.attacks.matching import Adam, Matching
from leakgauge.attacks.recipes import ci_net
from leakgauge.attacks.recipes.information import IfInformative, image_information
from leakgauge.clients import FedAvg, FedSGD, Protocol, client_update
from leakgauge.compute import Budget, Compute
from leakgauge.draws import Draws
from leakgauge.models import resnet18
from leakgauge.observation import Knowledge, Observation, Status
from leakgauge.task import Batch, DataSpec, Mode, Task

DATA = DataSpec((3, 16, 16), 10)


def observe(module: nn.Module, mode: Mode, protocol: Protocol = FedSGD()) -> Observation:
    t = Task.of(module, DATA, mode=mode)
    images = torch.rand(2, *DATA.shape, generator=torch.Generator().manual_seed(4))
    truth = Batch(images, torch.tensor([1, 2]))
    update = client_update(t, protocol, truth, Draws(0))
    return Observation(t, update, Knowledge(labels=truth.labels, local_training=protocol))


def narrow(width: int = 8) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return resnet18(width=width, activation="sigmoid")


class Deaf(nn.Module):
    """Ignores its input but for its shape."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.arange(10.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bias + 0 * x.flatten(1)[:, :1]


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_sigmoid_resnet_tells_of_its_images_in_train_mode_alone() -> None:
    eval_, train = (image_information(observe(narrow(), mode), 2, draws()) for mode in (Mode.EVAL, Mode.TRAIN))
    assert eval_.gap < 1e-6
    assert eval_.blind
    assert train.gap > 1e-3
    assert not train.blind
    assert train.sentence == ""


def test_blind_is_not_safe_and_says_so() -> None:
    """The first layer still differs from batch to batch, by far."""
    asked = image_information(observe(narrow(), Mode.EVAL), 2, draws())
    assert asked.tensor_gap > 1e-3
    assert "No proof of safety" in asked.sentence
    assert asked.tensor in asked.sentence


def test_a_network_that_ignores_its_input_says_nothing_at_all() -> None:
    asked = image_information(observe(Deaf(), Mode.EVAL), 2, draws())
    assert asked.gap == 0
    assert asked.tensor_gap == 0
    assert asked.lost(torch.float64)
    assert "no tensor" in asked.sentence


@pytest.mark.parametrize("seed", range(3))
def test_the_gap_is_one_minus_the_cosine_of_two_updates(seed: int) -> None:
    """The same made-up images, one update at a time."""
    from leakgauge.attacks.labels.strategy import made_up

    seen = observe(narrow(), Mode.TRAIN)
    asked = image_information(seen, 2, draws(seed))
    g = draws(seed)
    Draws.sample(g)
    t = seen.task.to(torch.empty((), dtype=torch.float64))
    flat = []
    for _ in range(2):
        b = Batch(made_up(DATA, 2, g).double(), seen.knowledge.labels)
        flat.append(torch.cat([v.flatten() for v in client_update(t, FedSGD(), b, Draws(0)).tensors.values()]))
    assert asked.gap == pytest.approx(1 - float(torch.cosine_similarity(*flat, dim=0)), rel=1e-6)


def test_the_question_costs_two_updates_and_counts_them() -> None:
    assert image_information(observe(narrow(), Mode.TRAIN), 2, draws()).cost == 2
    stepped = observe(narrow(), Mode.TRAIN, FedAvg(epochs=3, batch_size=1, lr=0.1))
    assert image_information(stepped, 2, draws()).cost == 12


def test_ci_net_says_that_it_is_not_applicable_before_it_runs() -> None:
    found = ci_net(steps=100_000).reconstruct(observe(narrow(), Mode.EVAL), draws())
    assert found.status is Status.NOT_APPLICABLE
    assert "no image information" in found.blind
    assert found.cost.gradient_evaluations == 2
    assert found.inputs is None


def test_in_float64_it_runs_and_keeps_the_finding() -> None:
    found = ci_net(steps=2, width=8).reconstruct(
        observe(narrow(), Mode.EVAL), draws(), compute=Compute(dtype=torch.float64)
    )
    assert found.status is Status.OUT_OF_STEPS
    assert "no image information" in found.blind


def test_an_informative_update_is_attacked_as_if_not_asked() -> None:
    truth = batch(2)
    t = task()
    seen = Observation(t, client_update(t, FedSGD(), truth, Draws(3)), Knowledge(labels=truth.labels))
    plain = Matching(minimiser=Adam(steps=20))
    found = IfInformative(attack=plain).reconstruct(seen, draws(), budget=Budget(gradient_evaluations=12))
    assert found.cost.gradient_evaluations == 12
    assert found.message == ""
    assert found.trace[0][0] == 3
    tight = IfInformative(attack=plain).reconstruct(seen, draws(), budget=Budget(gradient_evaluations=2))
    assert tight.cost.gradient_evaluations == 2


def test_everything_unknown_is_left_to_the_attack() -> None:
    t = task()
    update = client_update(t, FedSGD(), batch(2), Draws(3), send_example_count=False)
    found = ci_net(steps=2).reconstruct(Observation(t, update, Knowledge()), draws())
    assert found.status is Status.NOT_APPLICABLE
    assert "example_count" in found.message
