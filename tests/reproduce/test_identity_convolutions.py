"""Pixels that pass through convolutions to a linear layer, and come back."""

from __future__ import annotations

import pytest
import torch
from reproduce.inverting_gradients.identity_convolutions import IdentityConvolutions
from torch import nn

from cases import SPEC, batch, task
from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedAvg, FedSGD, client_update
from leakgauge.compute import Budget
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.metrics.metric import PSNR
from leakgauge.models import convnet, lenet, resnet20
from leakgauge.observation import Knowledge, Observation, Status
from leakgauge.servers.last_layer import ClassFishing
from leakgauge.task import Batch, DataSpec, Mode, Task


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
    known = Knowledge(example_count=len(b), local_training=protocol, crafting=sent.crafting)
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


def test_a_range_other_than_the_unit_interval() -> None:
    spec = DataSpec((3, 8, 8), 5, low=-1.0, high=3.0, mean=(0.2, 0.0, -0.5), std=(1.5, 0.7, 1.0))
    x = batch(1).inputs * 4 - 1
    found = read(made("plain", spec=spec), Batch(x, torch.tensor([3])))
    assert found.status is Status.EXACT
    assert torch.allclose(found.inputs, x, atol=1e-8)


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


def test_pooling_is_never_called_exact() -> None:
    b = batch(1)
    b = Batch(nn.functional.interpolate(b.inputs[:, :, :3, :3], 8, mode="bilinear"), b.labels)
    found = read(made("pooled"), b, budget=1)
    assert found.status is not Status.EXACT
    assert "0 of 192 pixels" in found.message
    grey = float(PSNR()(torch.full_like(b.inputs, 0.5), b.inputs))
    assert float(PSNR()(found.inputs.double(), b.inputs)) > grey + 5


def test_fishing_on_top_reads_one_example_of_a_batch() -> None:
    b = Batch(batch(8).inputs, torch.tensor([0, 1, 2, 3, 4, 0, 1, 3]))
    found = read(made("strided"), b, IdentityConvolutions(fish=ClassFishing(target=2)))
    assert found.status is Status.EXACT
    assert found.labels.tolist() == [2]
    assert float(PSNR()(found.inputs, b.inputs[2:3])) > 150
    alone = read(made("strided"), b)
    assert alone.status is not Status.EXACT


def test_several_local_steps_keep_the_ratio_of_one_example_roughly() -> None:
    b = batch(1)
    one = read(made("strided"), b, protocol=FedAvg(lr=0.01))
    assert one.status is Status.EXACT
    many = read(made("strided"), b, protocol=FedAvg(epochs=4, lr=0.01))
    assert float(PSNR()(many.inputs, b.inputs)) > 15


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


def test_the_search_alone_is_what_a_batch_of_a_bare_classifier_gets() -> None:
    """No row is one example's: whatever comes back is not certified."""
    found = read(made("strided"), batch(4), IdentityConvolutions(then=Auto(smooth_steps=5)))
    assert found.status is not Status.EXACT


@pytest.mark.parametrize("net", [lenet, convnet])
def test_the_papers_networks_are_accepted(net) -> None:
    torch.manual_seed(0)
    t = Task.of(net(**({"width": 16} if net is convnet else {})), DataSpec((3, 32, 32), 10))
    crafting = IdentityConvolutions().broadcast(t, torch.Generator().manual_seed(0)).crafting
    assert int(crafting.exact.sum()) == (768 if net is lenet else 0)


def test_what_does_not_fit_is_refused_with_the_layer() -> None:
    g = torch.Generator()

    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(256, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.conv(x).relu().flatten(1))

    def of(*layers: nn.Module) -> Task:
        return Task.of(nn.Sequential(*layers), SPEC)

    refused = (
        (Task.of(resnet20(width=4, classes=5), SPEC), "alone"),
        (Task.of(Functional(), SPEC), "'out' .Linear. does not take the output of 'conv' alone"),
        (task("flat"), "no convolution"),
        (task("normed", Mode.TRAIN), "normalises by the batch"),
        (of(nn.Conv2d(3, 6, 3, groups=3), nn.Flatten(), nn.Linear(216, 5)), "grouped"),
        (of(nn.Conv2d(3, 6, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(216, 5)), "no bias"),
        (of(nn.Conv2d(3, 6, 3), nn.GELU(), nn.Flatten(), nn.Linear(216, 5)), "GELU"),
        (of(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 5, bias=False)), "no bias"),
        (of(nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.Flatten(), nn.Linear(216, 5)), "GroupNorm"),
    )
    for t, reason in refused:
        with pytest.raises(InputError, match=reason):
            IdentityConvolutions().broadcast(t, g)
