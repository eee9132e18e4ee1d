"""The soft sign objective against a hand-written twin and finite differences."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.rog.signs import SignTanh  # noqa: E402

from leakgauge.defenses import AttackerView  # noqa: E402
from leakgauge.errors import InputError  # noqa: E402

VIEW = AttackerView()


def trees(seed: int = 0) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    g = torch.Generator().manual_seed(seed)
    one, two = ({"w": torch.randn(3, 4, generator=g).double(), "b": torch.randn(3, generator=g).double()} for _ in "ab")
    two["w"][0] = 0
    return one, two


OBJECTIVE = [SignTanh(gain=0.7), SignTanh(gain=1e4), SignTanh(), SignTanh(times=10.0)]


@pytest.mark.parametrize("objective", OBJECTIVE, ids=repr)
def test_it_is_its_definition(objective: SignTanh) -> None:
    simulated, observed = trees()
    total = 0.0
    for name in observed:
        ours = simulated[name].flatten().tolist()
        rms = math.sqrt(sum(v * v for v in ours) / len(ours))
        factor = objective.times / rms if objective.gain is None else objective.gain
        for g, target in zip(ours, observed[name].flatten().tolist(), strict=True):
            sign = 0 if target == 0 else math.copysign(1, target)
            total += (math.tanh(factor * g) - sign) ** 2
    assert float(objective(simulated, observed, VIEW)) == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("objective", OBJECTIVE[::2], ids=repr)
def test_it_passes_finite_differences(objective: SignTanh) -> None:
    simulated, observed = trees()

    def value(w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return objective({"w": w, "b": b}, observed, VIEW)

    leaves = [v.clone().requires_grad_() for v in simulated.values()]
    assert torch.autograd.gradcheck(value, leaves)
    assert torch.autograd.gradgradcheck(value, leaves)


def test_a_small_gain_is_the_inner_product_with_the_signs() -> None:
    """Why the paper's objective has no use without a gain: its gradient hardly depends on the update."""
    simulated, observed = trees()
    small = {k: (1e-4 * v).requires_grad_() for k, v in simulated.items()}
    SignTanh(gain=1.0)(small, observed, VIEW).backward()
    for name, leaf in small.items():
        torch.testing.assert_close(leaf.grad, -2 * observed[name].sign(), atol=1e-2, rtol=0)


def test_only_signs_are_read_and_by_rms_only_the_pattern() -> None:
    simulated, observed = trees()
    plain = SignTanh()(simulated, observed, VIEW)
    torch.testing.assert_close(SignTanh()(simulated, {k: 7 * v for k, v in observed.items()}, VIEW), plain)
    torch.testing.assert_close(SignTanh()({k: 1e-6 * v for k, v in simulated.items()}, observed, VIEW), plain)


def test_dead_tensors_have_no_gain_and_no_infinity() -> None:
    zero = {"w": torch.zeros(2, 2, requires_grad=True), "none": torch.zeros(0, requires_grad=True)}
    observed = {"w": torch.tensor([[1.0, -1.0], [0.0, 1.0]]), "none": torch.zeros(0)}
    value = SignTanh()(zero, observed, VIEW)
    assert value.item() == 3
    value.backward()
    assert bool(torch.isfinite(zero["w"].grad).all())


def test_no_gain_is_refused() -> None:
    for name in ("gain", "times"):
        with pytest.raises(InputError, match=name):
            SignTanh(**{name: 0.0})
