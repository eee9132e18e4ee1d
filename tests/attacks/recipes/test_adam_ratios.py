"""Two steps of Adam: decoded exactly, searched from there, refused elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from leakgauge.attacks.matching import BoundedLBFGS, Matching, Pixels, Uniform
from leakgauge.attacks.recipes.adam_ratios import AdamRatios, decoded, refuses
from leakgauge.attacks.recipes.auto import Auto
from leakgauge.clients import FedAvg, client_update
from leakgauge.clients.local_training import LocalTraining
from leakgauge.clients.optimisers import Adam
from leakgauge.clients.protocol import Protocol, mean_gradient
from leakgauge.compute import Budget
from leakgauge.defenses import NoDefense
from leakgauge.draws import Draws
from leakgauge.models import lenet
from leakgauge.observation import Knowledge, Observation, Status
from leakgauge.task import Batch, DataSpec, Task

ADAM = LocalTraining(optimiser=Adam(lr=0.001), epochs=2)


def psnr(inputs: torch.Tensor, batch: Batch) -> float:
    return float(-10 * (inputs - batch.inputs).square().mean().log10())


def setting(protocol: Protocol = ADAM, *, n: int = 1, size: int = 12) -> tuple[Observation, Batch]:
    torch.manual_seed(0)
    spec = DataSpec((3, size, size), classes=4)
    task = Task.of(lenet(classes=4, size=size), spec)
    ramp = torch.linspace(0, 1, size)
    pictures = [torch.stack([ramp.expand(size, size), ramp.expand(size, size).T, torch.full((size, size), 0.2 * i)])
                for i in range(1, n + 1)]  # fmt: skip
    batch = Batch(torch.stack(pictures), torch.arange(n) % 4)
    update = client_update(task, protocol, batch, Draws(0))
    return Observation(task, update, Knowledge(example_count=n, local_training=protocol, defense=NoDefense())), batch


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.8, 0.99)])
def test_signs_and_ratios_are_those_of_the_two_gradients(betas: tuple[float, float]) -> None:
    adam = Adam(lr=0.001, betas=betas)
    observation, batch = setting(LocalTraining(optimiser=adam, epochs=2))
    task = observation.task
    signs, ratios = decoded(observation.update.tensors, adam)
    nobody = torch.Generator()

    def gradient(parameters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return mean_gradient(task, parameters, task.buffers, batch, None, nobody)[0]

    first = gradient(task.parameters)
    second = gradient({k: v - adam.lr * first[k].sign() for k, v in task.parameters.items()})
    for name, sign in signs.items():
        live = first[name].abs() > 1e-5
        assert torch.equal(sign[live], first[name][live].sign().double())
        true = (second[name] / first[name])[live].double()
        clear = true < betas[1] / betas[0] - 0.1  # near the peak of the step's size its slope is 0
        near = (ratios[name][live][clear] - true[clear]).abs() < 0.02
        assert not len(near) or near.double().mean() > 0.97


def test_auto_reads_two_steps_of_adam() -> None:
    observation, batch = setting()
    found = Auto(smooth_steps=400).reconstruct(observation, torch.Generator().manual_seed(0))
    assert found.tried[-1].name == "adam-ratios"
    assert found.inputs is not None
    through = Matching(minimiser=BoundedLBFGS(steps=400), canvas=Pixels(first=Uniform()))
    plain = through.reconstruct(observation, torch.Generator().manual_seed(0), budget=Budget(800))
    assert plain.inputs is not None
    assert psnr(found.inputs, batch) > max(16, 3 + psnr(plain.inputs, batch))
    assert found.labels is not None
    assert found.labels.tolist() == batch.labels.tolist()
    assert found.cost.gradient_evaluations <= 800


@pytest.mark.parametrize(
    ("protocol", "word"),
    [
        (FedAvg(lr=0.01), "Adam"),
        (replace(ADAM, epochs=3), "took 3"),
        (replace(ADAM, epochs=1), "took 1"),
        (replace(ADAM, epochs=1, batch_size=1), "took 2"),
        (replace(ADAM, clip=1.0), "clipping"),
        (replace(ADAM, optimiser=Adam(lr=0.001, weight_decay=0.1)), "decay"),
    ],
)
def test_other_clients_are_refused_with_the_reason(protocol: Protocol, word: str) -> None:
    observation, _ = setting(protocol, n=2)
    assert word in refuses(observation)
    found = AdamRatios().reconstruct(observation, torch.Generator(), budget=Budget(10))
    assert found.status is Status.NOT_APPLICABLE
