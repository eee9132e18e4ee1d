"""Fed-CDP against its own loop, layer by layer."""

from __future__ import annotations

import math

import pytest
import torch

from cases import batch, task
from leakgauge.clients import FedAvg, FedSGD, client_update, example_gradients
from leakgauge.defenses import FedCDP, layers_of, view_of
from leakgauge.draws import Draws
from leakgauge.tensors import Tensors

NORM = 2.6
"""Between the norms of the layers: half of them are clipped."""


def looped(n: int, norm: float) -> tuple[list[Tensors], Tensors, int]:
    """Clipped gradients example by example and layer by layer, their mean, and how many layers were clipped."""
    t = task("relu")
    rows = example_gradients(t, t.parameters, t.buffers, batch(n), None)
    clipped, count = [], 0
    for i in range(n):
        one: Tensors = {}
        for layer in ("0", "4"):
            weight, bias = rows[f"{layer}.weight"][i], rows[f"{layer}.bias"][i]
            length = math.sqrt(float((weight**2).sum() + (bias**2).sum()))
            count += length > norm
            one |= {f"{layer}.{k}": v / max(1.0, length / norm) for k, v in (("weight", weight), ("bias", bias))}
        clipped.append(one)
    return clipped, {k: sum(c[k] for c in clipped) / n for k in clipped[0]}, count


def test_with_faint_noise_it_is_a_loop_over_examples_and_layers() -> None:
    _, mean, count = looped(4, NORM)
    assert 0 < count < 8
    defense = FedCDP(noise_multiplier=1e-12, norm=NORM)
    sent = client_update(task("relu"), FedSGD(), batch(4), Draws(0), defense=defense).tensors
    assert all(torch.allclose(sent[k], mean[k], atol=1e-10) for k in mean)


def added(defense: FedCDP, n: int, norm: float, seeds: int = 30) -> torch.Tensor:
    _, mean, _ = looped(n, norm)
    t, b = task("relu"), batch(n)
    sent = [client_update(t, FedSGD(), b, Draws(s), defense=defense).tensors for s in range(seeds)]
    return torch.stack([torch.cat([(u[k] - mean[k]).flatten() for k in u]) for u in sent])


def test_noise_before_averaging_shrinks() -> None:
    defense, on_mean = FedCDP(noise_multiplier=0.2, norm=NORM), 0.2 * NORM / math.sqrt(4)
    assert float(added(defense, 4, NORM).std()) == pytest.approx(on_mean, rel=0.06)
    update = client_update(task("relu"), FedSGD(), batch(4), Draws(7), defense=defense)
    seen = view_of(defense, update, None).noise_scale
    assert seen is not None
    assert all(float(s) == pytest.approx(on_mean) for s in seen.values())
    delta = client_update(task("relu"), FedAvg(), batch(4), Draws(7), defense=defense)
    assert view_of(defense, delta, None).noise_scale is None


@pytest.mark.parametrize("snr", [0.0, -10.0])
def test_at_a_signal_to_noise_ratio_the_noise_has_that_power(snr: float) -> None:
    defense, (clipped, _, _) = FedCDP(snr=snr, norm=NORM), looped(4, NORM)
    power = sum(float(sum((v**2).sum() for v in one.values())) for one in clipped) / 16
    noise = added(defense, 4, NORM).square().sum(1).mean()
    assert 10 * math.log10(power / float(noise)) == pytest.approx(snr, abs=0.5)


def test_the_attacker_estimates_the_noise_of_one_example_from_the_wire() -> None:
    defense = FedCDP(snr=-5.0, norm=NORM)
    update = client_update(task("relu"), FedSGD(), batch(1), Draws(7), defense=defense)
    seen = view_of(defense, update, None).noise_scale
    assert seen is not None
    assert float(seen["0.weight"]) == pytest.approx(float(added(defense, 1, NORM).std()), rel=0.15)


def test_weight_and_bias_are_one_layer() -> None:
    assert layers_of(["a.0.weight", "a.0.bias", "head.weight", "scale"]) == {
        "a.0": ["a.0.weight", "a.0.bias"],
        "head": ["head.weight"],
        "scale": ["scale"],
    }
