"""Smeared masks: the network's own values and slopes, and a derivative of its masks that is not zero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from leakgauge.attacks.matching import Adam, Cosine, Matching, NoPrior, Normal, Pixels
from leakgauge.attacks.matching.adam import SmearedMasks
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget
from leakgauge.data import Samples, spec
from leakgauge.draws import Draws
from leakgauge.models import resnet20
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Task

CALLS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "functional": (F.relu, 0.0),
    "torch": (torch.relu, 0.0),
    "method": (lambda x: x.relu(), 0.0),
    "module": (nn.ReLU(), 0.0),
    "module in place": (lambda x: nn.ReLU(inplace=True)(x * 1), 0.0),
    "method in place, answer unused": (lambda x: _unused(x * 1), 0.0),
    "leaky": (lambda x: F.leaky_relu(x, 0.2), 0.2),
    "leaky module in place": (lambda x: nn.LeakyReLU(0.3, inplace=True)(x * 1), 0.3),
}


def _unused(x: Tensor) -> Tensor:
    x.relu_()
    return x


def points() -> Tensor:
    return torch.linspace(-2, 2, 41, dtype=torch.float64)


@pytest.mark.parametrize("call", CALLS)
def test_values_and_slopes_are_the_networks_and_the_masks_derivative_is_a_hat(call: str) -> None:
    act, low = CALLS[call]
    x, width = points(), 0.5

    def slope(x: Tensor) -> Tensor:
        return grad(lambda x: (act(x) * torch.arange(1.0, 42.0, dtype=x.dtype)).sum())(x)

    def second(x: Tensor) -> Tensor:
        return grad(lambda x: slope(x).sum())(x)

    plain, first, zero = act(x), slope(x), second(x)
    with SmearedMasks(width=width, weight=0.3).active():
        assert torch.equal(act(x), plain)
        assert torch.equal(slope(x), first)
        hat = second(x)
    assert not zero.any()
    half = width * x.std(correction=0)
    expected = 0.3 * (1 - low) * torch.arange(1.0, 42.0, dtype=x.dtype) * (1 - x.abs() / half).clamp_min(0) / half
    torch.testing.assert_close(hat, expected, rtol=1e-9, atol=1e-9)


def test_each_restart_has_a_width_of_its_own() -> None:
    def second(x: Tensor) -> Tensor:
        return grad(lambda x: grad(lambda x: F.relu(x).square().sum())(x).sum())(x)

    both = torch.stack([points(), 10 * points()])
    with SmearedMasks(weight=1.0).active():
        torch.testing.assert_close(vmap(second)(both), torch.stack([second(x) for x in both]))


def test_a_flat_input_changes_nothing() -> None:
    def second(x: Tensor) -> Tensor:
        return grad(lambda x: grad(lambda x: F.relu(x).sum())(x).sum())(x)

    flat = torch.ones(5)
    with SmearedMasks(weight=1.0).active():
        assert torch.equal(second(flat), torch.zeros(5))


def test_a_search_on_a_relu_network_comes_nearer() -> None:
    source = Samples(size=16)
    near: dict[SmearedMasks | None, list[float]] = {None: [], SmearedMasks(weight=0.3): []}
    for seed in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            task = Task.of(resnet20(width=4), spec(source))
        batch = source.read([seed])
        update = client_update(task, FedSGD(), batch, Draws(seed))
        seen = Observation(task, update, Knowledge(batch.labels, 1, FedSGD()))
        attack = Matching(
            objective=Cosine(), prior=NoPrior(), canvas=Pixels(first=Normal()), minimiser=Adam(steps=25, decay=(1.43,))
        )
        for masks, found in near.items():
            generator = torch.Generator().manual_seed(seed)
            answer = replace(attack, masks=masks).reconstruct(seen, generator, budget=Budget())
            assert answer.objective is not None
            found.append(answer.objective)
    assert all(smeared < sharp for sharp, smeared in zip(*near.values(), strict=True)), near
