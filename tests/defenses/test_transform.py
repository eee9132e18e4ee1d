"""Transformations against their definitions, and the policy's draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cases import batch, task
from leakgauge.clients import FedSGD, client_update
from leakgauge.defenses import Compose, Transform, noise, view_of
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.registry import DEFENSES
from leakgauge.task import Batch, DataSpec, Task


def fresh(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def picture(rows: int = 5, columns: int = 7) -> torch.Tensor:
    return torch.arange(2.0 * rows * columns).view(2, rows, columns) / (2 * rows * columns)


def only(**settings: Any) -> Transform:
    return Transform(**{"shift": 0, "flip": False, "brightness": 0.0, "contrast": 0.0, **settings})


def shifted(image: torch.Tensor, down: int, right: int) -> torch.Tensor:
    out = torch.empty_like(image)
    height, width = image.shape[-2:]
    for i in range(height):
        for j in range(width):
            out[:, i, j] = image[:, min(max(i - down, 0), height - 1), min(max(j - right, 0), width - 1)]
    return out


def test_shift_repeats_the_edge_and_reaches_every_offset() -> None:
    image, g = picture(), fresh()
    possible = {(d, r): shifted(image, d, r) for d in range(-2, 3) for r in range(-2, 3)}
    seen = set()
    for _ in range(400):
        out = only(shift=2).changed(image, g)
        (offset,) = [k for k, v in possible.items() if torch.equal(v, out)]
        seen.add(offset)
    assert seen == set(possible)


def test_flip_is_a_fair_coin() -> None:
    image, g = picture(), fresh()
    outs = [only(flip=True).changed(image, g) for _ in range(400)]
    mirrored = sum(torch.equal(out, image.flip(-1)) for out in outs)
    assert mirrored + sum(torch.equal(out, image) for out in outs) == 400
    assert 150 < mirrored < 250


def test_quarter_turns_keep_the_shape() -> None:
    g = fresh()
    square, oblong = picture(5, 5), picture(5, 7)
    outs = {tuple(only(turns=True).changed(square, g).flatten().tolist()) for _ in range(100)}
    assert outs == {tuple(square.rot90(k, (-2, -1)).flatten().tolist()) for k in range(4)}
    outs = {tuple(only(turns=True).changed(oblong, g).flatten().tolist()) for _ in range(100)}
    assert outs == {tuple(oblong.rot90(k, (-2, -1)).flatten().tolist()) for k in (0, 2)}


def test_light_is_affine_within_its_bounds_and_clamped() -> None:
    image, g = 0.4 + 0.2 * picture(), fresh()
    for _ in range(50):
        out = only(brightness=0.1, contrast=0.3).changed(image, g)
        factor = float((out[0, 0, 1] - out[0, 0, 0]) / (image[0, 0, 1] - image[0, 0, 0]))
        step = float(out.mean() - image.mean())
        assert 0.7 - 1e-4 <= factor <= 1.3 + 1e-4
        assert abs(step) <= 0.1 + 1e-5
        assert torch.allclose(out, image.mean() + factor * (image - image.mean()) + step, atol=1e-5)
    light = only(brightness=1.0, contrast=1.0, low=-1.0, high=3.0)
    wild = torch.stack([light.changed(4 * picture() - 1, g) for _ in range(50)])
    assert float(wild.min()) == -1
    assert float(wild.max()) == 3


def test_every_example_has_its_own_draw_and_labels_stay() -> None:
    image = torch.rand(3, 8, 8, dtype=torch.float64, generator=fresh())
    b = Batch(image.expand(20, 3, 8, 8), torch.arange(20) % 5)
    out = Transform().on_batch(b, fresh(1))
    assert len({tuple(x.flatten().tolist()) for x in out.inputs}) > 10
    assert torch.equal(out.labels, b.labels)
    assert (out.inputs.shape, out.inputs.dtype) == (b.inputs.shape, b.inputs.dtype)
    assert torch.equal(out.inputs, Transform().on_batch(b, fresh(1)).inputs)
    assert not torch.equal(out.inputs, Transform().on_batch(b, fresh(2)).inputs)


def test_the_policy_runs_in_its_order() -> None:
    b = Batch(picture(5, 5)[None], torch.zeros(1, dtype=torch.long))
    g = fresh(4)
    expected = only(turns=True).changed(only(shift=2).changed(b.inputs[0], g), g)
    assert torch.equal(only(shift=2, turns=True).on_batch(b, fresh(4)).inputs[0], expected)


def test_the_client_sends_the_gradient_of_the_changed_pictures() -> None:
    t, b, draws = task(), batch(), Draws(3)
    changed = Transform().on_batch(b, draws.generator("batch"))
    one = client_update(t, FedSGD(), b, draws, defense=Transform())
    two = client_update(t, FedSGD(), changed, draws)
    assert all(torch.equal(one.tensors[k], two.tensors[k]) for k in two.tensors)
    view = view_of(Transform(), one, None)
    assert (view.acts, view.support, view.noise_scale, view.log_likelihood) == (False, None, None, None)
    both = Compose((Transform(), noise(sigma=0.1)))
    assert view_of(both, one, None).noise_scale is not None


def test_bad_policies_are_refused() -> None:
    with pytest.raises(InputError, match="empty"):
        Transform(shift=0, flip=False, brightness=0.0, contrast=0.0)
    for options in ({"shift": -1}, {"brightness": 1.5}, {"contrast": -0.1}, {"low": 2.0}):
        with pytest.raises(InputError):
            Transform(**options)
    with pytest.raises(InputError, match="needs pictures"):
        Transform().on_batch(Batch(torch.rand(2, 9), torch.zeros(2, dtype=torch.long)), fresh())
    assert DEFENSES["transform"].build is Transform


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 255.0)])
def test_data_of_another_range_are_refused_rather_than_clamped(low: float, high: float) -> None:
    bare = Task.of(nn.Sequential(nn.Flatten(), nn.Linear(192, 5)), DataSpec((3, 8, 8), 5, low=low, high=high))
    with pytest.raises(InputError, match=f"clamps to 0 to 1, the data have {low:g} to {high:g}"):
        Transform().on_task(bare)
    assert Transform(low=low, high=high).on_task(bare) is bare
    assert Transform(brightness=0.0, contrast=0.0).on_task(bare) is bare
