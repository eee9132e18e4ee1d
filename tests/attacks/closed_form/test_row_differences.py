"""Bins in a first layer, whoever put them there: as many examples are read as are alone in one."""

from __future__ import annotations

from statistics import NormalDist

import pytest
import torch
from torch import Tensor, nn

from cases import SPEC, smooth
from leakgauge.attacks.closed_form import RowDifferences
from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget
from leakgauge.draws import Draws
from leakgauge.metrics.metric import PSNR
from leakgauge.observation import Knowledge, Observation, Reconstruction, Status
from leakgauge.task import Batch, Mode, Task

BINS, PHOTOS = 128, 64


class Block(nn.Module):
    """Rows of one direction with thresholds of a normal measurement, and a way on that is the same for all of them."""

    def __init__(self, direction: Tensor, thresholds: Tensor, way: str) -> None:
        super().__init__()
        self.first, self.way = nn.Linear(direction.numel(), len(thresholds)), way
        scales = torch.linspace(0.5, 2, len(thresholds)) if way == "scaled rows" else torch.ones(len(thresholds))
        order = torch.randperm(len(thresholds), generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            self.first.weight.copy_((scales[:, None] * direction)[order])
            self.first.bias.copy_((-scales * thresholds)[order])
        if way != "mean":
            self.back = nn.Linear(len(thresholds), direction.numel())
            columns = torch.linspace(0.5, 2, len(thresholds)) if way == "unlike columns" else 1.0
            with torch.no_grad():
                self.back.weight.copy_(columns * torch.ones_like(self.back.weight) / len(thresholds))

    def forward(self, x: Tensor) -> Tensor:
        answers = self.first(x.flatten(1)).relu()
        return x + answers.mean(1)[:, None, None, None] if self.way == "mean" else self.back(answers).view_as(x)


def photos() -> Batch:
    g = torch.Generator().manual_seed(0)
    level = 0.45 + 0.1 * torch.randn((PHOTOS, 1, 1, 1), generator=g)
    inputs = level + 0.3 * (torch.rand((PHOTOS, *SPEC.shape), generator=g) - 0.5)
    return Batch(inputs.clamp(0, 1), torch.randint(SPEC.classes, (PHOTOS,), generator=g))


def scene(way: str, query: str, mode: Mode = Mode.EVAL, norm: bool = False) -> tuple[Task, Batch, Tensor]:
    """The task, the examples, and which of them share no bin."""
    torch.manual_seed(1)
    batch, d = photos(), 192
    direction = torch.ones(d) / d if query == "brightness" else torch.randn(d) / d**0.5
    measured = SPEC.normalise(batch.inputs).flatten(1) @ direction
    normal = NormalDist(float(measured.mean()), float(measured.std()))
    thresholds = torch.tensor([normal.inv_cdf((i + 0.5) / BINS) for i in range(BINS)])
    behind = nn.Sequential(*([nn.BatchNorm2d(3)] if norm else []), smooth())
    bins = torch.bucketize(measured, thresholds)
    alone = ((bins[:, None] == bins).sum(1) == 1) & (bins > 0)
    return Task.of(nn.Sequential(Block(direction, thresholds, way), behind), SPEC, mode=mode), batch, alone


def best(found: Reconstruction, batch: Batch) -> Tensor:
    assert found.inputs is not None
    return torch.stack([PSNR()(found.inputs, x.expand_as(found.inputs)) for x in batch.inputs]).amax(1)


SCENES = [
    ("mean", "brightness", Mode.EVAL, False),
    ("mean", "random", Mode.TRAIN, True),
    ("columns", "random", Mode.EVAL, False),
    ("unlike columns", "brightness", Mode.EVAL, False),
    ("scaled rows", "brightness", Mode.EVAL, False),
]


@pytest.mark.parametrize("case", SCENES, ids=str)
def test_as_many_are_read_as_are_alone_in_a_bin(case: tuple[str, str, Mode, bool]) -> None:
    task, batch, alone = scene(*case)
    update = client_update(task, FedSGD(), batch, Draws(0))
    known = Knowledge(example_count=PHOTOS, local_training=FedSGD())
    found = RowDifferences().reconstruct(Observation(task, update, known), torch.Generator().manual_seed(0))
    assert found.status is Status.CONVERGED
    assert int(alone.sum()) >= 25
    assert int((best(found, batch) > 45).sum()) >= 0.95 * int(alone.sum())


def test_examples_that_the_network_is_sure_of_are_read_beside_loud_ones() -> None:
    """Rows behind their bins are as faint as they are: the rounding of the loudest row hid them."""
    task, batch, alone = scene("mean", "brightness")
    order = SPEC.normalise(batch.inputs).mean((1, 2, 3)).argsort()
    labels = torch.zeros(PHOTOS, dtype=torch.long)
    labels[order[-8:]] = 1  # the brightest
    faint = torch.tensor([1.0, 1e-6, *[1.0] * (SPEC.classes - 2)])
    task = Task.of(task.module, SPEC, loss=nn.CrossEntropyLoss(weight=faint))
    batch = Batch(batch.inputs, labels)
    seen = Observation(task, client_update(task, FedSGD(), batch, Draws(0)), Knowledge(example_count=PHOTOS))
    found = RowDifferences(plausible=True).reconstruct(seen, torch.Generator().manual_seed(0))
    read = best(found, batch) > 40
    assert int(read[order[-8:]].sum()) >= int(alone[order[-8:]].sum()) > 0
    assert int(read.sum()) >= int(alone.sum())


def test_auto_keeps_them_beside_its_search() -> None:
    task, batch, alone = scene(*SCENES[0])
    update = client_update(task, FedSGD(), batch, Draws(0))
    known = Knowledge(example_count=PHOTOS, local_training=FedSGD())
    found = Auto().reconstruct(
        Observation(task, update, known), torch.Generator().manual_seed(0), budget=Budget(gradient_evaluations=2)
    )
    assert int((best(found, batch) > 45).sum()) >= 0.95 * int(alone.sum())
    assert found.certified is not None
    assert not bool(found.certified.any())


def test_rows_that_point_apart_are_no_bins() -> None:
    torch.manual_seed(0)
    task = Task.of(nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 5)), SPEC)
    update = client_update(task, FedSGD(), photos(), Draws(0))
    known = Knowledge(example_count=PHOTOS)
    found = RowDifferences().reconstruct(Observation(task, update, known), torch.Generator().manual_seed(0))
    assert found.status is Status.NOT_APPLICABLE
