"""The linear map from a hidden tensor to the rows that a layer multiplies with its weight, and back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Unfolding:
    """Which pixels of a hidden map [channels, pixels] each place of a layer sees.

    Attributes:
        index: pixel of each offset of each place; `pixels` itself stands for padding, which is zero.
        pixels: of the map.
        channels: of the map.
    """

    index: Int[Tensor, "places offsets"]
    pixels: int
    channels: int

    @property
    def places(self) -> int:
        """How many rows one example gives."""
        return len(self.index)

    @property
    def columns(self) -> int:
        """Length of a row."""
        return self.index.shape[1] * self.channels

    @property
    def cover(self) -> Float[Tensor, " pixels"]:
        """How many places see each pixel."""
        seen = torch.bincount(self.index.flatten(), minlength=self.pixels + 1)
        return seen[: self.pixels].double()

    def only(self, used: Tensor) -> Unfolding:
        """The same layer at some of its places."""
        return Unfolding(self.index[used], self.pixels, self.channels)

    def rows(self, maps: Float[Tensor, "n c pixels"]) -> Float[Tensor, "n places columns"]:
        """What the layer multiplies, offsets before channels."""
        padded = torch.cat([maps, maps.new_zeros(*maps.shape[:2], 1)], 2).transpose(1, 2)
        return padded[:, self.index].flatten(2)

    def maps(self, rows: Float[Tensor, "n places columns"]) -> Float[Tensor, "n c pixels"]:
        """The adjoint of `rows`: what the places say of each pixel, summed."""
        out = rows.new_zeros(len(rows), self.pixels + 1, self.channels)
        out.index_add_(1, self.index.flatten(), rows.reshape(len(rows), -1, self.channels))
        return out[:, : self.pixels].transpose(1, 2)


def convolution(
    size: Sequence[int],
    channels: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Unfolding:
    """The unfolding of a convolution with zero padding, in any number of dimensions, over a map of spatial `size`."""
    whole = tuple(size)
    axes = []
    for long, k, s, p, d in zip(whole, kernel, stride, padding, dilation, strict=True):
        starts = torch.arange((long + 2 * p - d * (k - 1) - 1) // s + 1) * s - p
        axes.append(starts[:, None] + torch.arange(k) * d)
    dims = len(whole)
    index = torch.zeros((*(len(a) for a in axes), *kernel), dtype=torch.long)
    outside = torch.zeros(index.shape, dtype=torch.bool)
    for axis, at in enumerate(axes):
        shape = [1] * (2 * dims)
        shape[axis], shape[dims + axis] = at.shape
        at = at.view(shape)
        index = index + at * math.prod(whole[axis + 1 :])
        outside = outside | (at < 0) | (at >= whole[axis])
    index = index.masked_fill(outside, math.prod(whole))
    return Unfolding(index.reshape(math.prod(index.shape[:dims]), -1), math.prod(whole), channels)


def overlap(unfolding: Unfolding) -> int:
    """Most offsets that two places share: without any, rows say nothing of each other."""
    seen = [set(row) for row in unfolding.index.tolist()]
    near = itertools.pairwise(seen)
    return max((len((a & b) - {unfolding.pixels}) for a, b in near), default=0)
