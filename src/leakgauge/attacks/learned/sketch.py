"""Updates of any size as vectors of a fixed, small one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.tensors import Tensors


@dataclass(frozen=True, eq=False)
class Sketch:
    """Count sketch, tensor by tensor: signs at random, entries summed in random buckets. Linear.

    Inner products are kept in expectation, with variance at most 2·‖a‖²·‖b‖²/buckets. A tensor of no more entries
    than buckets stays as it is.

    Source: Charikar, Chen and Farach-Colton, Finding frequent items in data streams, 2002.

    Attributes:
        places: entry → bucket, by tensor; `None` for a tensor that stays.
        signs: ±1, by tensor.
        buckets: of each tensor.
    """

    places: dict[str, Tensor | None]
    signs: Tensors
    buckets: int

    @staticmethod
    def of(shapes: Tensors, buckets: int, generator: torch.Generator) -> Sketch:
        """For updates that look like `shapes`."""
        places: dict[str, Tensor | None] = {}
        signs: Tensors = {}
        for name, tensor in shapes.items():
            n = tensor.numel()
            stays = n <= buckets
            places[name] = None if stays else torch.randint(buckets, (n,), generator=generator)
            signs[name] = torch.ones(n) if stays else torch.randint(0, 2, (n,), generator=generator) * 2.0 - 1
        return Sketch(places, signs, buckets)

    def __call__(self, update: Tensors) -> Float[Tensor, " m"]:
        """All tensors' sketches in one vector."""
        parts = []
        for name, place in self.places.items():
            flat = update[name].detach().flatten().cpu()
            if place is None:
                parts.append(flat)
                continue
            signed = flat * self.signs[name].to(flat)
            parts.append(torch.zeros(self.buckets, dtype=flat.dtype).index_add_(0, place, signed))
        return torch.cat(parts)
