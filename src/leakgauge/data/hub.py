"""Data sets of the Hugging Face hub, through its own client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from leakgauge.data.image import channels_of, pixels, stack
from leakgauge.data.source import FEWEST_CLASSES
from leakgauge.data.table import PictureTable
from leakgauge.errors import InputError, require
from leakgauge.registry import DATA
from leakgauge.task import Batch


@DATA.register("hf", needs="leakgauge[hub]")
@dataclass(frozen=True, kw_only=True)
class Hub(PictureTable):
    """Pictures of a Hugging Face data set, by ``datasets.load_dataset``, which may download it.

    Attributes:
        path: the data set's name on the hub, e.g. ``uoft-cs/cifar10``.
        split: which part of it.
        config: which of its configurations; empty for the only one.
        size, channels, image_column, label_column: as in `PictureTable`.
    """

    split: str = "test"
    config: str = ""

    @cached_property
    def _rows(self) -> Any:
        try:
            import datasets
        except ImportError as error:
            raise InputError("data.source", "hf: needs the datasets package", "pip install 'leakgauge[hub]'") from error
        try:
            return datasets.load_dataset(self.path, self.config or None, split=self.split)
        except (OSError, ValueError) as error:
            # The client's own errors (unknown name, configuration or split, no network) are of these two kinds.
            raise InputError(
                "data.source", f"cannot load '{self.path}' ({error})", "check its name, split and the network"
            ) from error

    @cached_property
    def _columns(self) -> tuple[str, str]:
        return self._columns_of(list(self._rows.features))

    @property
    def name(self) -> str:
        return f"hf:{self.path}"

    @cached_property
    def labels(self) -> Int[Tensor, " n"]:
        return torch.tensor([int(v) for v in self._rows[self._columns[1]]])

    @cached_property
    def classes(self) -> int:
        """As the data set's features say, else the largest label + 1; at least two."""
        listed = getattr(self._rows.features[self._columns[1]], "num_classes", 0)
        return max(FEWEST_CLASSES, int(listed), 1 + int(self.labels.max()))

    def _channels_of_first(self) -> int:
        return channels_of(self._image(0))

    def __len__(self) -> int:
        return len(self._rows)

    def _image(self, index: int) -> Any:
        name = self.names([index])[0]
        try:
            image = self._rows[index][self._columns[0]]
        except (OSError, SyntaxError, ValueError) as error:
            raise InputError(name, f"is not a readable image ({error})", "choose other examples") from error
        require(hasattr(image, "convert"), name, f"is a {type(image).__name__}, not an image", "set data.image_column")
        return image

    def read(self, indices: Sequence[int]) -> Batch:
        images = [pixels(self._image(i), channels=self._channels, size=self.size) for i in indices]
        inputs = stack(images, self.names(indices)) if images else torch.empty(0, *self.shape)
        return Batch(inputs, self.labels[list(indices)])

    def names(self, indices: Sequence[int]) -> list[str]:
        return [f"{self.name}[{i}]" for i in indices]
