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
    """Which pixels of a hidden map [channels, pixels] each place of a layer sees."""

    # pixel of each offset of each place; `pixels` itself stands for padding, which is zero
    index: Int[Tensor, "places offsets"]
    pixels: int  # of the map
    channels: int  # of the map
    last: bool = False  # whether the hidden tensor has its channels behind its pixels; so do then the layer's columns

    @staticmethod
    def of(entries: Int[Tensor, "places columns"], shape: Sequence[int]) -> Unfolding:
        """From the entry of a hidden tensor of that shape that each column of each place is; −1 for padding.

        Channels are the first axis, or the last one, of which all columns of an offset see one pixel.
        """
        places, columns = entries.shape
        size = math.prod(shape)
        for channels, last in ((shape[0], False), (shape[-1], True)):
            if columns % channels:
                continue
            offsets, pixels = columns // channels, size // channels
            split = entries.view(places, offsets, channels) if last else entries.view(places, channels, -1).mT
            seen, step = split[..., 0], 1 if last else pixels
            every = torch.where(seen[..., None] < 0, -1, seen[..., None] + step * torch.arange(channels))
            pixel = seen // channels if last else seen
            if torch.equal(split, every) and bool((pixel < pixels).all()):
                return Unfolding(torch.where(seen < 0, pixels, pixel), pixels, channels, last)
        return Unfolding(torch.where(entries < 0, size, entries), size, 1)

    @property
    def places(self) -> int:
        """How many rows one example gives."""
        return len(self.index)

    @property
    def columns(self) -> int:
        return self.index.shape[1] * self.channels

    @property
    def cover(self) -> Float[Tensor, " pixels"]:
        """How many places see each pixel."""
        seen = torch.bincount(self.index.flatten(), minlength=self.pixels + 1)
        return seen[: self.pixels].double()

    @property
    def overlap(self) -> int:
        """Most offsets that two neighbouring places share: without any, rows say nothing of each other."""
        near = itertools.pairwise(set(row) for row in self.index.tolist())
        return max((len((a & b) - {self.pixels}) for a, b in near), default=0)

    def only(self, used: Tensor) -> Unfolding:
        return Unfolding(self.index[used], self.pixels, self.channels, self.last)

    def matrix(self, gradient: Float[Tensor, "filters columns"]) -> Float[Tensor, "filters columns"]:
        """A layer's gradient with its columns in the order of `rows`."""
        return gradient if self.last else gradient.view(len(gradient), self.channels, -1).transpose(1, 2).flatten(1)

    def rows(self, maps: Float[Tensor, "n c pixels"]) -> Float[Tensor, "n places columns"]:
        """What the layer multiplies, offsets before channels."""
        padded = torch.cat([maps, maps.new_zeros(*maps.shape[:2], 1)], 2).transpose(1, 2)
        return padded[:, self.index].flatten(2)

    def maps(self, rows: Float[Tensor, "n places columns"]) -> Float[Tensor, "n c pixels"]:
        """The adjoint of `rows`: what the places say of each pixel, summed."""
        out = rows.new_zeros(len(rows), self.pixels + 1, self.channels)
        out.index_add_(1, self.index.flatten(), rows.reshape(len(rows), -1, self.channels))
        return out[:, : self.pixels].transpose(1, 2)

    def of_hidden(self, hidden: Float[Tensor, "n *shape"]) -> Float[Tensor, "n c pixels"]:
        if self.last:
            return hidden.reshape(len(hidden), self.pixels, self.channels).transpose(1, 2)
        return hidden.reshape(len(hidden), self.channels, self.pixels)

    def hidden(self, maps: Float[Tensor, "n c pixels"], shape: Sequence[int]) -> Float[Tensor, "n *shape"]:
        """`of_hidden` back."""
        return (maps.transpose(1, 2) if self.last else maps).reshape(len(maps), *shape)
