"""What tables of pictures and labels have in common, wherever their rows lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Int
from torch import Tensor

from leakgauge.errors import InputError, require
from leakgauge.task import Batch

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "fine_label", "labels")


@dataclass(frozen=True, kw_only=True)
class PictureTable(ABC):
    """Rows of a picture and an integer label, in two columns.

    Attributes:
        path: where the rows lie.
        size: side of the square that pictures are centre-cropped and resized to; `None` keeps them.
        channels: 3 (colour) or 1 (grey); 0 takes those of the first picture.
        image_column, label_column: where not `image` or `img`, and `label` or `fine_label`.
    """

    path: str
    size: int | None = None
    channels: int = 0
    image_column: str = ""
    label_column: str = ""
    normalise: bool = True
    low = 0.0
    high = 1.0

    def __post_init__(self) -> None:
        require(self.channels in (0, 1, 3), "channels", f"is {self.channels}", "give 1 (grey) or 3 (colour)")
        require(self.size is None or self.size > 0, "size", f"is {self.size}", "give the side of the square in pixels")
        require(len(self) > 0, "data.source", f"'{self.path}' holds no rows", "give one with examples")
        require(
            int(self.labels.min()) >= 0,
            "data.source",
            f"'{self.path}' has unlabelled rows (label −1)",
            "use a labelled split",
        )

    @property
    @abstractmethod
    def labels(self) -> Int[Tensor, " n"]:
        """Of all rows."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of one picture."""
        if self.size is not None:
            return (self._channels, self.size, self.size)
        return tuple(self.read([0]).inputs.shape[1:])

    @cached_property
    def _channels(self) -> int:
        return self.channels or self._channels_of_first()

    @abstractmethod
    def _channels_of_first(self) -> int: ...

    @abstractmethod
    def read(self, indices: Sequence[int]) -> Batch:
        """Rows as examples."""

    @abstractmethod
    def __len__(self) -> int: ...

    def _columns_of(self, present: Sequence[str]) -> tuple[str, str]:
        """Of pictures and of labels."""
        return _column(present, IMAGE_COLUMNS, self.image_column), _column(present, LABEL_COLUMNS, self.label_column)


def _column(present: Sequence[str], wanted: Sequence[str], given: str) -> str:
    """The column named in the plan, else the first of `wanted` that is present.

    Raises:
        InputError: there is none.
    """
    names = (given,) if given else wanted
    for name in names:
        if name in present:
            return name
    raise InputError(
        "data.source",
        f"has no column '{names[0]}', only {sorted(present)}",
        "set data.image_column and data.label_column",
    )
