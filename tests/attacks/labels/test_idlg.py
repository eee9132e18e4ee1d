"""The label of one example."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakgauge.attacks.labels import IDLG, LabelGuess, Unknown
from leakgauge.clients import FedAvg, FedSGD, Protocol, client_update
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Batch, DataSpec, Task


def observe(
    label: int, protocol: Protocol, *, bias: bool, act: nn.Module, count: int = 1, classes: int = 5
) -> Observation:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(label)
        net = nn.Sequential(nn.Linear(6, 8), act, nn.Linear(8, classes, bias=bias))
    task = Task.of(net, DataSpec(shape=(6,), classes=classes))
    inputs = torch.rand(count, 6, generator=torch.Generator().manual_seed(7))
    update = client_update(task, protocol, Batch(inputs, torch.full((count,), label)), Draws(0))
    return Observation(task, update, Knowledge())


@pytest.mark.parametrize("label", range(5))
@pytest.mark.parametrize("protocol", [FedSGD(), FedAvg(epochs=3, lr=0.05)], ids=repr)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("act", [nn.ReLU(), nn.Tanh()], ids=repr)
def test_finds_the_label(label: int, protocol: Protocol, bias: bool, act: nn.Module) -> None:
    """Also for a delta, without its learning rate, and without a bias for features of either sign."""
    guess = IDLG().infer(observe(label, protocol, bias=bias, act=act), torch.Generator())
    assert isinstance(guess, LabelGuess)
    assert guess.labels.tolist() == [label]
    assert guess.confidence == 1.0


@pytest.mark.parametrize("label", range(2))
def test_two_outputs_without_bias(label: int) -> None:
    guess = IDLG().infer(observe(label, FedSGD(), bias=False, act=nn.ReLU(), classes=2), torch.Generator())
    assert isinstance(guess, LabelGuess)
    assert guess.labels.tolist() == [label]


def test_refuses_a_batch() -> None:
    guess = IDLG().infer(observe(1, FedSGD(), bias=True, act=nn.ReLU(), count=2), torch.Generator())
    assert isinstance(guess, Unknown)
    assert "one example" in guess.message


def test_refuses_an_empty_update() -> None:
    observed = observe(1, FedSGD(), bias=True, act=nn.ReLU())
    for tensor in observed.update.tensors.values():
        tensor.zero_()
    assert isinstance(IDLG().infer(observed, torch.Generator()), Unknown)
