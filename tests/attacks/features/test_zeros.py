"""Units at zero, whose side the client's rounding decided."""

import pytest
import torch
from torch.nn import functional as F

from convolutions import Block, made, observed
from leakgauge.attacks.features.fits import nudged, zero_of
from leakgauge.attacks.features.read import HiddenTensors
from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.task import Batch


@pytest.mark.parametrize("side", [1, -1])
def test_examples_move_to_the_side_of_zero_that_the_update_shows(side: int) -> None:
    """One unit is nearer to zero than examples are exact: all that these leave unexplained is its signal."""
    torch.manual_seed(0)
    module, (inputs, labels) = Block(24, norm=False), made(3)
    with torch.no_grad():
        seen = F.conv2d(inputs.double(), module.stem.weight.double(), stride=2, padding=1)
        module.stem.bias[3] = 3e-7 * side - seen[1, 3, 2, 2]
        at = F.conv2d(inputs.double(), module.stem.weight.double(), module.stem.bias.double(), stride=2, padding=1)
    assert float(at[1, 3, 2, 2]) * side > 0
    observation = observed(module, inputs, labels)
    hidden, draw = HiddenTensors.of(observation, 3), torch.Generator().manual_seed(0)
    explainer = Explainer.of(observation, draw)
    off = inputs.double() + 1e-7 * torch.randn(inputs.shape, generator=draw, dtype=torch.float64)
    off[1, :, 3:6, 3:6] -= 1e-6 * side * module.stem.weight[3].double().detach().sign()
    assert explainer.left(Batch(off, labels)) > 10 * explainer.tolerance
    moved = nudged(hidden.inside, hidden.gradients, Batch(off, labels), 1e-4)
    assert explainer.left(Batch(moved, labels)) < explainer.tolerance
    assert 0 < float((moved - off).abs().max()) < 1e-5
    again = nudged(hidden.inside, hidden.gradients, Batch(moved, labels), 1e-4)
    assert torch.allclose(again, moved, rtol=0, atol=1e-9)


@pytest.mark.parametrize("error", [1e-9, 1e-6, 1e-4])
@pytest.mark.parametrize("seed", range(5))
def test_zeros_end_at_the_widest_gap(error: float, seed: int) -> None:
    """A floor of errors below zero had left true zeros above it."""
    draws = torch.Generator().manual_seed(seed)
    true = torch.randn(1, 8, 16, 16, generator=draws, dtype=torch.float64).clamp_min(0)
    true = torch.where(true < 30 * error, 0.0, true)
    full = true + error * torch.randn(true.shape, generator=draws, dtype=torch.float64)
    assert torch.equal(full > zero_of(full), true > 0)
