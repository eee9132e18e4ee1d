"""Objectives, priors and canvases against hand-written twins and finite differences."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import SPEC
from leakgauge.attacks.matching import Cosine, Given, NoPrior, Normal, Pixels, SquaredL2, TotalVariation, Uniform
from leakgauge.defenses import AttackerView
from leakgauge.errors import InputError

VIEW = AttackerView()


def trees(seed: int = 0) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    g = torch.Generator().manual_seed(seed)

    def one() -> dict[str, torch.Tensor]:
        return {
            "w": torch.randn(3, 4, generator=g, dtype=torch.float64),
            "b": torch.randn(3, generator=g, dtype=torch.float64),
        }

    return one(), one()


def flat(tree: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([v.flatten() for v in tree.values()])


@pytest.mark.parametrize("objective", [SquaredL2(), Cosine()], ids=repr)
def test_objectives_pass_finite_differences(objective) -> None:
    simulated, observed = trees()

    def value(w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return objective({"w": w, "b": b}, observed, VIEW)

    leaves = [v.clone().requires_grad_() for v in simulated.values()]
    assert torch.autograd.gradcheck(value, leaves)
    assert torch.autograd.gradgradcheck(value, leaves)


def test_objectives_are_their_definitions() -> None:
    a, b = trees()
    assert float(SquaredL2()(a, b, VIEW)) == pytest.approx(float((flat(a) - flat(b)).square().sum()))
    cosine = torch.nn.functional.cosine_similarity(flat(a), flat(b), dim=0)
    assert float(Cosine()(a, b, VIEW)) == pytest.approx(1 - float(cosine))


@given(st.floats(1e-6, 1e6))
def test_cosine_ignores_length_and_l2_does_not(scale: float) -> None:
    a, b = trees()
    scaled = {k: scale * v for k, v in a.items()}
    assert float(Cosine()(scaled, b, VIEW)) == pytest.approx(float(Cosine()(a, b, VIEW)), abs=1e-9)
    assert Cosine.scale_free
    assert not SquaredL2.scale_free


def test_objectives_at_the_edges() -> None:
    a, _ = trees()
    zero = {k: torch.zeros_like(v) for k, v in a.items()}
    assert float(Cosine()(a, a, VIEW)) == pytest.approx(0, abs=1e-12)
    assert float(Cosine()({k: -v for k, v in a.items()}, a, VIEW)) == pytest.approx(2)
    assert float(Cosine()(zero, a, VIEW)) == 1
    assert float(SquaredL2()(a, a, VIEW)) == 0


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
@pytest.mark.parametrize("weight", [0.0, 0.5, 2.0])
def test_total_variation_of_a_checkerboard_is_two_steps(channels: int, weight: float) -> None:
    """Mean definition. Known defects (breaching): weight ignored, hard-wired to three channels."""
    rows = torch.arange(6)
    board = ((rows[:, None] + rows[None]) % 2).double().expand(2, channels, 6, 6)
    assert float(TotalVariation(weight)(board)) == pytest.approx(2 * weight)


def test_total_variation_is_a_loop() -> None:
    z = torch.randn(2, 3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    dx = [
        abs(float(z[n, c, i, j + 1] - z[n, c, i, j]))
        for n in range(2)
        for c in range(3)
        for i in range(4)
        for j in range(4)
    ]
    dy = [
        abs(float(z[n, c, i + 1, j] - z[n, c, i, j]))
        for n in range(2)
        for c in range(3)
        for i in range(3)
        for j in range(5)
    ]
    assert float(TotalVariation(1.0)(z)) == pytest.approx(sum(dx) / len(dx) + sum(dy) / len(dy))
    assert float(TotalVariation(1.0, smoothing=1e-12)(z)) == pytest.approx(float(TotalVariation(1.0)(z)), rel=1e-5)


def test_smoothed_total_variation_passes_finite_differences_where_the_plain_one_has_a_kink() -> None:
    z = torch.zeros(1, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(TotalVariation(0.3, smoothing=1e-2), (z,))
    assert torch.autograd.gradgradcheck(TotalVariation(0.3, smoothing=1e-2), (z,))


@pytest.mark.parametrize("smoothing", [0.0, 1e-6])
@pytest.mark.parametrize("shape", [(1, 1, 1, 8), (1, 1, 8, 1), (1, 1, 1, 1)])
def test_a_side_of_one_has_no_variation(shape: tuple[int, ...], smoothing: float) -> None:
    """The mean of nothing is not a number: recordings of shape (1, 1, length) were never attacked."""
    z = torch.arange(float(torch.Size(shape).numel())).view(shape).requires_grad_()
    found = TotalVariation(0.5, smoothing=smoothing)(z)
    assert float(found.detach()) == pytest.approx(0.5 if z.numel() > 1 else 0.0, abs=1e-3)
    (slope,) = torch.autograd.grad(found, z)
    assert bool(torch.isfinite(slope).all())


def test_no_prior_is_zero_for_any_shape() -> None:
    assert float(NoPrior()(torch.randn(2, 7))) == 0


def test_bad_weights_name_their_field() -> None:
    with pytest.raises(InputError) as error:
        TotalVariation(-1.0)
    assert error.value.field == "weight"


def test_pixels_are_boxed_in_the_true_range() -> None:
    low, high = Pixels().bounds(SPEC)["pixels"]
    assert torch.allclose(SPEC.denormalise(low), torch.zeros_like(low), atol=1e-12)
    assert torch.allclose(SPEC.denormalise(high), torch.ones_like(high))
    assert Pixels(box=False).bounds(SPEC) == {}


@pytest.mark.parametrize("first", [Normal(), Uniform()], ids=repr)
def test_starts_are_draws(first) -> None:
    canvas = Pixels(first=first)
    one, two, other = (canvas.start(3, SPEC, torch.Generator().manual_seed(s))["pixels"] for s in (1, 1, 2))
    assert bool((one == two).all())
    assert not bool((one == other).all())
    assert one.shape == (3, *SPEC.shape)
    if isinstance(first, Uniform):
        raw = SPEC.denormalise(one)
        assert 0 <= float(raw.min()) < 0.05
        assert 0.95 < float(raw.max()) <= 1


def test_a_given_start_is_decoded_as_it_was() -> None:
    inputs = torch.rand(2, *SPEC.shape)
    canvas = Pixels(first=Given(inputs))
    z = canvas.decode(canvas.start(2, SPEC, torch.Generator()), SPEC)
    assert torch.allclose(SPEC.denormalise(z), inputs.double())
