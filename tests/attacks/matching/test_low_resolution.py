"""The small canvases and the starts that suit them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from reproduce.rog.autoencoder import Autoencoder, Decoder
from reproduce.rog.runs import ceiling
from torch import nn
from torch.func import grad, vmap

from cases import SPEC
from leakgauge.attacks.matching import LowResolution, Matching, Pixels, SquaredL2, Uniform
from leakgauge.attacks.matching.adam import AnnealedAdam
from leakgauge.attacks.matching.canvases import Canvas
from leakgauge.clients import FedSGD, client_update
from leakgauge.data import Samples
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Batch, DataSpec, Task

WIDE = dataclasses.replace(SPEC, shape=(3, 16, 12), low=-1.0, high=3.0)


def cubic(x: float, a: float = -0.75) -> float:
    """Keys' kernel, with PyTorch's a."""
    x = abs(x)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def kernel_matrix(small: int, large: int) -> torch.Tensor:
    """Enlargement along one axis, from the definition: pixel centres at halves, edges repeated."""
    matrix = torch.zeros(large, small, dtype=torch.float64)
    for i in range(large):
        at = (i + 0.5) * small / large - 0.5
        base = int(at // 1)
        for k in range(base - 1, base + 3):
            matrix[i, min(max(k, 0), small - 1)] += cubic(at - k)
    return matrix


def test_decode_is_bicubic_enlargement_of_the_latents(generator: torch.Generator) -> None:
    canvas = LowResolution()
    z = canvas.start(2, WIDE, generator)["latents"]
    assert z.shape == (2, 3, 4, 3)
    assert 0 <= float(z.min()) < 0.1 < 0.9 < float(z.max()) <= 1
    raw = WIDE.denormalise(canvas.decode({"latents": z}, WIDE))
    torch.testing.assert_close((raw + 1) / 4, F.interpolate(z, scale_factor=4.0, mode="bicubic", align_corners=False))
    by_hand = kernel_matrix(4, 16) @ z @ kernel_matrix(3, 12).T
    torch.testing.assert_close((raw + 1) / 4, by_hand, atol=1e-6, rtol=1e-6)


@settings(max_examples=10)
@given(factor=st.integers(1, 9), height=st.integers(1, 20), width=st.integers(1, 20))
def test_every_size_comes_back_whole(factor: int, height: int, width: int) -> None:
    data, canvas = DataSpec((1, height, width), 3), LowResolution(factor=factor)
    z = canvas.start(2, data, torch.Generator().manual_seed(0))
    assert z["latents"].shape == (2, 1, -(-height // factor), -(-width // factor))
    picture = canvas.decode({"latents": torch.full_like(z["latents"], 0.3)}, data)
    torch.testing.assert_close(picture, torch.full((2, 1, height, width), 0.3, dtype=torch.float64))


def test_a_factor_of_one_is_pixels(generator: torch.Generator) -> None:
    z = LowResolution(factor=1).start(2, WIDE, generator)
    first = Uniform()(2, WIDE, torch.Generator().manual_seed(0))
    torch.testing.assert_close(LowResolution(factor=1).decode(z, WIDE), first)


def decoder() -> Decoder:
    torch.manual_seed(0)
    net = Autoencoder(code=4, width=4, halvings=2)
    return Decoder(module=net.decoder, encoder=net.encoder, code=(4, 4, 3))


@pytest.mark.parametrize("canvas", [LowResolution(), LowResolution(box=True), decoder()], ids=repr)
def test_canvases_work_under_vmap_and_are_differentiable_twice(canvas: Canvas) -> None:
    starts = [canvas.start(2, WIDE, torch.Generator().manual_seed(s)) for s in (0, 1)]
    (name,) = starts[0]
    stacked = torch.stack([s[name] for s in starts])

    def value(v: torch.Tensor) -> torch.Tensor:
        return canvas.decode({name: v}, WIDE).square().sum()

    together = vmap(grad(value))(stacked)
    alone = torch.stack([torch.func.grad(value)(s[name]) for s in starts])
    torch.testing.assert_close(together, alone)
    assert torch.autograd.gradcheck(value, starts[0][name].clone().requires_grad_(), fast_mode=True)
    assert torch.autograd.gradgradcheck(value, starts[0][name].clone().requires_grad_(), fast_mode=True)


def test_a_box_holds_latents_and_without_one_there_is_none() -> None:
    low, high = LowResolution(box=True).bounds(WIDE)["latents"]
    assert low.shape[1:] == (3, 4, 3)
    assert (float(low.min()), float(high.max())) == (0.0, 1.0)
    assert LowResolution().bounds(WIDE) == {}
    overshoot = torch.zeros(1, 3, 4, 3, dtype=torch.float64)
    overshoot[..., 2:, :] = 1
    raw = WIDE.denormalise(LowResolution().decode({"latents": overshoot}, WIDE))
    assert float(raw.max()) > WIDE.high + 0.05


def test_the_ceiling_is_what_the_canvas_shows_of_a_picture_and_nothing_shows_much_more() -> None:
    data = DataSpec((3, 32, 32), 10)
    truth = Samples(size=32).read(range(8)).inputs.double()
    canvas = LowResolution()
    shown = ceiling(canvas, truth, data)
    m = kernel_matrix(8, 32)
    inverse = torch.linalg.pinv(m)
    best = m @ (inverse @ truth @ inverse.T) @ m.T
    own, optimal = ((t - truth).square().mean() for t in (shown, best))
    assert optimal < own < 1.3 * optimal


def test_recordings_are_refused() -> None:
    data = DataSpec((1, 256), 2)
    assert "spatial" in LowResolution().refuses(data)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(256, 4), nn.Linear(4, 2))
    batch = Batch(torch.rand(1, 1, 256), torch.zeros(1, dtype=torch.long))
    task = Task.of(net, data)
    seen = Observation(task, client_update(task, FedSGD(), batch, Draws(0)), Knowledge(labels=batch.labels))
    found = Matching(canvas=LowResolution()).reconstruct(seen, torch.Generator())
    assert found.status.value == "not_applicable"
    with pytest.raises(InputError, match="factor"):
        LowResolution(factor=0)


@pytest.mark.parametrize("make", [LowResolution, Pixels])
def test_a_start_suits_both_canvases(make, generator: torch.Generator) -> None:
    canvas: Canvas = make(first=Uniform())
    data = DataSpec((3, 16, 16), 10, mean=(0.4,), std=(0.3,))
    raw = data.denormalise(canvas.decode(canvas.start(2, data, generator), data))
    assert raw.shape == (2, 3, 16, 16)
    assert float(raw.min()) > -0.6
    assert float(raw.max()) < 1.6


def test_a_decoder_starts_at_the_code_of_a_guess_and_its_weights_stay() -> None:
    canvas = decoder()
    codes = canvas.start(2, WIDE, torch.Generator().manual_seed(3))["codes"]
    guess = (WIDE.denormalise(Uniform()(2, WIDE, torch.Generator().manual_seed(3))) + 1) / 4
    torch.testing.assert_close(codes.float(), canvas.encoder(guess.float()), atol=1e-5, rtol=1e-4)
    raw = WIDE.denormalise(canvas.decode({"codes": codes}, WIDE))
    assert -1 <= float(raw.min()) < float(raw.max()) <= 3
    assert not any(p.requires_grad for p in canvas.module.parameters())
    plain = Decoder(module=canvas.module, code=(4, 4, 3))
    assert abs(float(plain.start(50, WIDE, torch.Generator().manual_seed(0))["codes"].std()) - 1) < 0.05
    with pytest.raises(InputError, match="module"):
        plain.decode({"codes": torch.zeros(1, 4, 2, 2)}, WIDE)


def test_the_rate_is_a_cosine_that_waits_one_step() -> None:
    adam = AnnealedAdam()
    rates = [adam.rate(step, 100) for step in range(101)]
    torch_rates = []
    optimiser = torch.optim.Adam([torch.zeros(1)], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 100, eta_min=0.005)
    for step in range(101):
        torch_rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        if step >= 1:
            schedule.step()
    assert rates == pytest.approx(torch_rates)
    assert rates[0] == rates[1] == 0.05 > rates[2]


def test_the_unit_of_the_objective_plays_no_part() -> None:
    """A delta at a small local rate, or a sum over millions of entries: Adam's ε must not see it."""

    class Scaled(SquaredL2):
        def __call__(self, *given) -> torch.Tensor:
            return 1e-9 * super().__call__(*given)

    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    task = Task.of(net.double(), SPEC)
    batch = Batch(torch.rand(2, 3, 8, 8, dtype=torch.float64), torch.tensor([1, 3]))
    seen = Observation(task, client_update(task, FedSGD(), batch, Draws(0)), Knowledge(labels=batch.labels))
    results = [
        Matching(objective=o, canvas=LowResolution(factor=2), minimiser=AnnealedAdam(steps=12)).reconstruct(
            seen, torch.Generator().manual_seed(1)
        )
        for o in (SquaredL2(), Scaled())
    ]
    assert results[0].inputs is not None
    torch.testing.assert_close(results[0].inputs, results[1].inputs, atol=1e-3, rtol=1e-3)
    assert results[0].cost.gradient_evaluations == 12
