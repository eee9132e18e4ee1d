"""ROG's pattern and natural starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.rog.starts import Natural, Tiled  # noqa: E402

from leakgauge.data import Samples  # noqa: E402
from leakgauge.errors import InputError  # noqa: E402
from leakgauge.task import DataSpec  # noqa: E402

WIDE = DataSpec((3, 16, 12), 10, mean=(0.5,), std=(0.25,))


def test_tiles_repeat_and_differ_between_examples() -> None:
    raw = WIDE.denormalise(Tiled(tile=5)(3, WIDE, torch.Generator().manual_seed(0)))
    assert raw.shape == (3, 3, 16, 12)
    torch.testing.assert_close(raw[..., 5:, :], raw[..., :-5, :])
    torch.testing.assert_close(raw[..., 5:], raw[..., :-5])
    assert not torch.allclose(raw[0], raw[1])
    assert WIDE.low <= float(raw.min()) < float(raw.max()) <= WIDE.high


def test_natural_starts_are_the_given_pictures_resized() -> None:
    photos = Samples(size=48).read([0, 1, 2]).inputs
    data = DataSpec((3, 24, 24), 10, mean=(0.5,), std=(0.25,))
    start = data.denormalise(Natural(pictures=photos)(6, data, torch.Generator().manual_seed(0)))
    small = F.avg_pool2d(photos.double(), 2)
    near = torch.cdist(start.flatten(1), small.flatten(1)) / small[0].numel() ** 0.5
    assert float(near.min(1).values.max()) < 0.05
    assert len(near.argmin(1).unique()) > 1
    with pytest.raises(InputError, match="channels"):
        Natural(pictures=photos[:, :1])(1, data, torch.Generator())
