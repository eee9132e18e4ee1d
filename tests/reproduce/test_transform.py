"""Transformations against their definitions, and the policy's draws."""

from __future__ import annotations

from typing import Any

import torch
from reproduce.mkor.transform import Transform

from cases import batch, task
from leakgauge.clients import FedSGD, client_update
from leakgauge.defenses import Compose, noise, view_of
from leakgauge.draws import Draws
from leakgauge.task import Batch


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


def test_every_example_has_its_own_draw_and_labels_stay() -> None:
    image = torch.rand(3, 8, 8, dtype=torch.float64, generator=fresh())
    b = Batch(image.expand(20, 3, 8, 8), torch.arange(20) % 5)
    out = Transform().on_batch(b, fresh(1))
    assert len({tuple(x.flatten().tolist()) for x in out.inputs}) > 10
    assert torch.equal(out.labels, b.labels)
    assert (out.inputs.shape, out.inputs.dtype) == (b.inputs.shape, b.inputs.dtype)
    assert torch.equal(out.inputs, Transform().on_batch(b, fresh(1)).inputs)
    assert not torch.equal(out.inputs, Transform().on_batch(b, fresh(2)).inputs)


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
