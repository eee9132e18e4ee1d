"""When an example that was read is proved to be in the batch."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from leakgauge.attacks.exact.residual import FACTOR, Examples, Residual

CHANCE = 1e-6
"""Most expected false matches among all tests, for a certificate by one row's bias entry alone."""

NEAR = 10 ** (-45 / 20)
"""Largest error of a proved example, in shares of the largest input: 45 dB."""


def certify(state: Residual, found: Examples, tests: int) -> Bool[Tensor, " k"]:
    """Which examples are proved.

    A row that is wholly explained repeats d + 1 numbers. Its own row makes an example, and one number of it tests the
    label: a test of relative width w passes a wrong candidate with a probability of about w. Each further row that the
    example drives, and that is explained, tests d + 1. That proves it where nothing of the gradient is left. Before,
    two examples that drive the same rows in one proportion (equal labels, a saturated soft-max, two classes) could
    stand as their mixture in all of them: so the test must be narrow enough that not one of all that were made
    would pass by accident; with a single explained row, that fewer than `CHANCE` would.

    The example must be known to `NEAR` besides: one whose gradient is faint may be there for certain, and blurred.
    """
    if not len(found):
        return torch.zeros(0, dtype=torch.bool, device=state.bias.device)
    drives = state.shares.abs() > FACTOR * state.error
    rows = (drives & state.explained & ~state.open).sum(1)
    near = FACTOR * found.doubt <= NEAR
    chance = found.relative * tests
    whole = bool((state.explained | state.open).all())
    return near & (((rows >= 2) & ((chance <= 1) | whole)) | ((rows == 1) & (chance <= CHANCE)))
