"""Pixels that pass through convolutions to a linear layer, and come back."""

from __future__ import annotations

import pytest
import torch
from reproduce.inverting_gradients.identity_convolutions import IdentityConvolutions
from torch import nn

from cases import SPEC, batch, task
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget
from leakgauge.defenses import NoDefense
from leakgauge.draws import Draws
from leakgauge.metrics.metric import PSNR
from leakgauge.observation import Knowledge, Observation, Status
from leakgauge.servers.imprint import ClassFishing
from leakgauge.task import Batch, DataSpec, Task


def strided() -> nn.Module:
    """12 = 3·2² and 48 = 3·4² channels: all phases of both strides fit."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 5, 2, 2), nn.Sigmoid(), nn.Conv2d(12, 48, 3, 2, 1), nn.Tanh(), nn.Flatten(), nn.Linear(192, 5)
    )


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Conv2d(4, 8, 3, padding="same"),
        nn.BatchNorm2d(8, affine=False),
        nn.LeakyReLU(),
        nn.Flatten(),
        nn.Linear(512, 16),
        nn.ReLU(),
        nn.Linear(16, 5),
    )


def pooled() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(192, 5))


NETS = {"strided": strided, "plain": plain, "pooled": pooled}


def made(name: str, dtype: torch.dtype = torch.float64, spec: DataSpec = SPEC) -> Task:
    torch.manual_seed(0)
    net = NETS[name]().to(dtype)
    with torch.no_grad():
        for part in net.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.uniform_(-1, 1)
                part.running_var.uniform_(0.5, 2)
    return Task.of(net, spec)


def read(t: Task, b: Batch, server: IdentityConvolutions | None = None, *, protocol=None, budget: int = 20):
    protocol = protocol or FedSGD()
    sent = (server or IdentityConvolutions()).broadcast(t, torch.Generator().manual_seed(0))
    update = client_update(sent.task, protocol, b, Draws(0))
    known = Knowledge(example_count=len(b), local_training=protocol, defense=NoDefense(), crafting=sent.crafting)
    return sent.crafting.reconstruct(
        Observation(sent.task, update, known),
        torch.Generator().manual_seed(0),
        budget=Budget(gradient_evaluations=budget),
    )


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 60), (torch.float64, 150)])
@pytest.mark.parametrize("name", ["strided", "plain"])
def test_one_example_is_exact_with_and_without_strides(name: str, dtype: torch.dtype, least: float) -> None:
    b = batch(1, dtype)
    found = read(made(name, dtype), b)
    assert found.status is Status.EXACT
    assert "192 of 192 pixels" in found.message
    assert found.cost.gradient_evaluations == 0
    assert float(PSNR()(found.inputs.double(), b.inputs.double())) > least


@pytest.mark.parametrize("name", ["strided", "plain"])
def test_features_are_pixels(name: str) -> None:
    """Oracle without the path's own inverse: swapping two pixels of the picture swaps features and nothing else."""
    t = IdentityConvolutions().broadcast(made(name), torch.Generator().manual_seed(0)).task
    body = nn.Sequential(*list(t.module)[: [isinstance(m, nn.Flatten) for m in t.module].index(True) + 1])
    state = {k: v for k, v in (t.parameters | t.buffers).items() if k in body.state_dict()}

    def features(x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(body, state, (SPEC.normalise(x),))[0]

    x = batch(1).inputs
    y = x.clone()
    y[0, 1, 2, 3], y[0, 1, 5, 4] = x[0, 1, 5, 4], x[0, 1, 2, 3]
    before, after = features(x), features(y)
    changed = int((before != after).sum())
    assert 2 <= changed <= 6  # a pixel may stand in several channels
    assert changed % 2 == 0
    assert torch.allclose(before.sort().values, after.sort().values)


def test_channels_that_do_not_suffice_give_a_thumbnail_and_the_search_goes_on() -> None:
    b = batch(1)
    b = Batch(nn.functional.interpolate(b.inputs[:, :, :3, :3], 8, mode="bilinear"), b.labels)  # smooth as photos are
    t = task("smooth")  # 8 of the 12 channels that stride 2 needs
    found = read(t, b, budget=1)
    assert found.status is not Status.EXACT
    assert "128 of 192 pixels" in found.message
    start = float(PSNR()(found.inputs.double(), b.inputs))
    later = float(PSNR()(read(t, b, budget=100).inputs.double(), b.inputs))
    assert 15 < start < later


def test_fishing_on_top_reads_one_example_of_a_batch() -> None:
    b = Batch(batch(8).inputs, torch.tensor([0, 1, 2, 3, 4, 0, 1, 3]))
    found = read(made("strided"), b, IdentityConvolutions(fish=ClassFishing(target=2)))
    assert found.status is Status.EXACT
    assert found.labels.tolist() == [2]
    assert float(PSNR()(found.inputs, b.inputs[2:3])) > 150
    alone = read(made("strided"), b)
    assert alone.status is not Status.EXACT


def test_a_broadcast_is_an_ordinary_state_and_leaves_the_honest_task() -> None:
    honest = made("plain", torch.float32)
    before = {k: v.clone() for k, v in (honest.parameters | honest.buffers).items()}
    first, second = (IdentityConvolutions().broadcast(honest, torch.Generator().manual_seed(0)).task for _ in range(2))
    sent = first.parameters | first.buffers
    assert [(k, v.shape, v.dtype) for k, v in sent.items()] == [(k, v.shape, v.dtype) for k, v in before.items()]
    assert all(torch.equal(v, before[k]) for k, v in (honest.parameters | honest.buffers).items())
    assert all(torch.equal(v, second.parameters[k]) for k, v in first.parameters.items())
    assert torch.equal(sent["8.weight"], before["8.weight"])  # the linear layers are the honest ones
    kernels = sent["4.weight"].flatten(1)
    assert (kernels != 0).sum(1).tolist() == [1] * 8
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in honest.module.modules())
