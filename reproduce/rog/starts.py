"""ROG's pattern and natural starts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.matching.parts import Start
from leakgauge.errors import require
from leakgauge.task import DataSpec


@dataclass(frozen=True, kw_only=True)
class Tiled(Start):
    """One uniform random tile of side `tile` an example, repeated over the picture and cut at its edges.

    Attributes:
        tile: side in pixels of the canvas.
    """

    tile: int = 4

    def __post_init__(self) -> None:
        require(self.tile > 0, "tile", f"is {self.tile}", "give a side in pixels")

    def __call__(self, examples: int, data: DataSpec, generator: torch.Generator) -> Float[Tensor, "n *shape"]:
        require(len(data.shape) == 3, "first", f"a tile has no meaning for shape {data.shape}", "use a uniform start")
        channels, height, width = data.shape
        tiles = torch.rand((examples, channels, self.tile, self.tile), generator=generator, dtype=torch.float64)
        down, across = -(-height // self.tile), -(-width // self.tile)
        picture = tiles.repeat(1, 1, down, across)[..., :height, :width]
        return data.normalise(data.low + data.range * picture)


@dataclass(frozen=True, eq=False, kw_only=True)
class Natural(Start):
    """For each example one of the attacker's own pictures, drawn at random and resized to the canvas (bilinear).

    Attributes:
        pictures: raw, of any size, with the data's channels. They must be other pictures than the client's.
    """

    pictures: Float[Tensor, "m c y x"]

    def __post_init__(self) -> None:
        fits = self.pictures.ndim == 4 and len(self.pictures) > 0
        require(fits, "pictures", f"have shape {tuple(self.pictures.shape)}", "give at least one picture")

    def __call__(self, examples: int, data: DataSpec, generator: torch.Generator) -> Float[Tensor, "n *shape"]:
        channels = self.pictures.shape[1]
        fits = len(data.shape) == 3 and data.shape[0] == channels
        require(fits, "pictures", f"have {channels} channels, the data have shape {data.shape}", "make them agree")
        drawn = self.pictures[torch.randint(len(self.pictures), (examples,), generator=generator)].double()
        resized = F.interpolate(drawn, data.shape[1:], mode="bilinear", align_corners=False, antialias=True)
        return data.normalise(resized.clamp(data.low, data.high))
