"""Examples that the zoo's models are trained and judged with: real pictures, and synthetic heart-beat series.

Pictures are CIFAR-10 (train) and MNIST (test) from Parquet files, or crops of the photos that come with scikit-image
where those are not at hand. The two splits of the zoo never share an example.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.data import Parquet, Samples
from leakgauge.data.source import Share
from leakgauge.task import Batch, DataSpec
from reproduce.inspection.zoo_dice import Dice

PICTURES = 6000  # of each kind; half of them a split's
CELLS = 10  # with more than ten labels each class is split by brightness


class Split(Enum):
    """Which models a number may be computed from. The value says which half of the examples is the split's."""

    CALIBRATION = 1
    EVALUATION = 2

    @property
    def seed(self) -> int:
        """Seeds the split's models.

        Evaluation models had seed 2 while rules were written; all rules are older than the first model of seed 4.
        """
        return {Split.CALIBRATION: 1, Split.EVALUATION: 4}[self]


@dataclass(frozen=True, eq=False)
class Shelf:
    """Pictures of one kind as bytes, with their ten class labels."""

    pictures: Tensor
    labels: Int[Tensor, " n"]

    @cached_property
    def bins(self) -> Int[Tensor, " n"]:
        """Tenths of the pictures by brightness, darkest first."""
        return self.pictures.float().mean((1, 2, 3)).argsort().argsort() * CELLS // len(self.labels)

    def half(self, split: Split) -> Shelf:
        """The split's own: even or odd positions."""
        return Shelf(self.pictures[split.value - 1 :: 2], self.labels[split.value - 1 :: 2])


@dataclass(frozen=True, eq=False)
class Stock:
    """Everything examples are drawn from."""

    colour: Shelf
    grey: Shelf

    @staticmethod
    def load(folder: Path | None, cache: Path, pictures: int = PICTURES) -> Stock:
        """Reads and decodes once; later calls read the cache. `folder` None: the embedded photos."""
        file = cache / f"stock-{pictures}-{'files' if folder else 'photos'}.pt"
        if not file.exists():
            cache.mkdir(parents=True, exist_ok=True)
            if folder is None:
                shelves = [_photos(pictures, channels) for channels in (3, 1)]
            else:
                shelves = [
                    _parquet(folder / name, pictures) for name in ("cifar10-train.parquet", "mnist-test.parquet")
                ]
            torch.save([(s.pictures, s.labels) for s in shelves], file)
        colour, grey = (Shelf(*pair) for pair in torch.load(file, weights_only=True))
        return Stock(colour, grey)

    def examples(self, data: DataSpec, split: Split, count: int, generator: torch.Generator) -> Batch:
        """`count` examples in the format `data`, labels below `data.classes`."""
        if len(data.shape) == 2:
            return _beats(data, count, generator)
        shelf = (self.grey if data.shape[0] == 1 else self.colour).half(split)
        index = torch.randint(len(shelf.labels), (count,), generator=generator)
        pictures = shelf.pictures[index].float() / 255
        if data.shape[1:] != pictures.shape[2:]:
            pictures = F.interpolate(
                pictures, size=data.shape[1:], mode="bilinear", align_corners=False, antialias=True
            )
        labels = shelf.labels[index] + 10 * shelf.bins[index] if data.classes > 10 else shelf.labels[index]
        return Batch(pictures.clamp(0, 1), labels % data.classes)


def _parquet(file: Path, count: int) -> Shelf:
    source = Parquet(path=str(file))
    pictures, labels = [], []
    for start in range(0, min(count, len(source)), 1000):
        batch = source.read(range(start, min(start + 1000, count, len(source))))
        pictures.append((batch.inputs * 255).round().to(torch.uint8))
        labels.append(batch.labels)
    return Shelf(torch.cat(pictures), torch.cat(labels))


def _photos(count: int, channels: int) -> Shelf:
    crops = Samples().others(frozenset({0}), Share.PUBLIC, count, torch.Generator().manual_seed(channels))
    crops = crops if channels == 3 else crops.mean(1, keepdim=True)
    return Shelf((crops * 255).round().to(torch.uint8), torch.arange(count) // 2 % 10)


def _beats(data: DataSpec, count: int, generator: torch.Generator) -> Batch:
    """Series like an electrocardiogram: the class sets the rate and the second wave's height."""
    dice = Dice(generator)
    labels = torch.randint(data.classes, (count,), generator=generator)
    share = labels.float().view(-1, 1, 1) / data.classes
    leads = torch.rand(1, data.shape[0], 1, generator=generator) + 0.5
    moment = torch.arange(data.shape[1]) / data.shape[1]
    phase = (moment * (4 + 6 * share) + torch.rand(count, 1, 1, generator=generator)) % 1
    wave: Float[Tensor, "n c t"] = torch.exp(-(((phase - 0.3) / 0.03) ** 2)) + 0.4 * share * torch.exp(
        -(((phase - 0.6) / 0.08) ** 2)
    )
    noise = dice.real(0.01, 0.05) * torch.randn(count, *data.shape, generator=generator)
    return Batch((0.3 + 0.4 * leads * wave + noise).clamp(0, 1), labels)
