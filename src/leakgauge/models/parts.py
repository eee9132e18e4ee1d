"""Models of several inputs behind the one tensor that an example is."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.errors import require

Shape = tuple[int, ...]


def split_parts(flat: Float[Tensor, "n numbers"], shapes: Sequence[Shape]) -> tuple[Tensor, ...]:
    """The inputs of a model, cut out of one row an example, in order."""
    sizes = [math.prod(shape) for shape in shapes]
    return tuple(p.unflatten(1, shape) for p, shape in zip(flat.flatten(1).split(sizes, 1), shapes, strict=True))


def of_parts(module: nn.Module, *shapes: Shape) -> nn.Module:
    """A copy of a module of several inputs that takes them in one row of numbers: parameters keep their names.

    Args:
        module: its ``forward`` takes as many tensors as there are shapes.
        shapes: of one example's inputs, in order; an example is the row of their numbers.

    Raises:
        InputError: no shape, or an empty one.
    """
    require(bool(shapes) and all(map(math.prod, shapes)), "shapes", f"are {shapes}", "give each input's shape")

    def forward(self: nn.Module, flat: Tensor) -> Any:
        return kind.forward(self, *split_parts(flat, shapes))

    kind, made = type(module), copy.deepcopy(module)
    made.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
    return made
