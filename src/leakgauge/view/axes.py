"""Where the axes of a tensor go when it is reshaped, permuted, summed and cut into windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, fx
from torch.nn import functional as F

from leakgauge.view.trace import operation


class Atom:
    """One stretch of an axis that no reshaping has cut yet. Cut, it stands for its parts, the outermost first."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.parts: tuple[Atom, ...] = ()

    def whole(self) -> tuple[Atom, ...]:
        """Itself, or what it was cut into."""
        return tuple(a for part in self.parts for a in part.whole()) if self.parts else (self,)


Dims = tuple[tuple[Atom, ...], ...]
"""For every axis of a tensor the atoms that it consists of; none for an axis of length 1."""

SAME = {"detach", "alias", "clone", "_to_copy", "contiguous", "lift_fresh_copy", "lift_fresh"}
RESHAPED = {"view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "flatten"}
PERMUTED = {"t", "transpose", "permute"}


def shape_of(node: fx.Node) -> tuple[int, ...]:
    return tuple(int(s) for s in node.meta["val"].shape)


def copied(node: fx.Node) -> bool:
    """Whether a node holds the same values in the same axes as what it is given, in a float type perhaps another."""
    if operation(node) not in SAME or not isinstance(node.args[0], fx.Node):
        return False
    one, two = node.meta["val"].dtype, node.args[0].meta["val"].dtype
    return bool(one == two or (one.is_floating_point and two.is_floating_point))


def fresh(shape: Sequence[int]) -> Dims:
    return tuple((Atom(s),) if s != 1 else () for s in shape)


def cut(dims: Dims) -> Dims:
    """The same with every atom that was cut replaced by its parts."""
    return tuple(tuple(p for a in axis for p in a.whole()) for axis in dims)


def argument(node: fx.Node, place: int) -> Any:
    """An argument that is not a tensor, of whichever type the operation has there."""
    return node.args[place]


def order_of(node: fx.Node) -> list[int]:
    """Which axis of its argument each axis of a permuted tensor is."""
    axes = list(range(len(shape_of(node))))
    if operation(node) == "permute":
        return [a % len(axes) for a in argument(node, 1)]
    one, two = (0, 1) if operation(node) == "t" else (argument(node, 1), argument(node, 2))
    if len(axes) > 1:
        axes[one], axes[two] = axes[two], axes[one]
    return axes


def regrouped(dims: Dims, shape: Sequence[int]) -> Dims | None:
    """The atoms in the axes of another shape with as many entries, some cut; `None` where they cannot be."""
    left = [a for axis in cut(dims) for a in axis]
    if not math.prod(shape) or math.prod(a.length for a in left) != math.prod(shape):
        return None
    found = []
    for length in shape:
        axis, need = [], length
        while need > 1:
            atom = left.pop(0)
            if need % atom.length == 0:
                axis.append(atom)
                need //= atom.length
            elif atom.length % need == 0:
                atom.parts = (Atom(need), Atom(atom.length // need))
                axis.append(atom.parts[0])
                left.insert(0, atom.parts[1])
                need = 1
            else:
                return None
        found.append(tuple(axis))
    return tuple(found)


def moved(node: fx.Node, dims: Dims) -> Dims | None:
    """Axes of a node by those of what it reshapes, permutes or sums; `None` where it does something else."""
    name = operation(node)
    if copied(node):
        return dims
    if name in RESHAPED:
        return regrouped(dims, shape_of(node))
    if name in PERMUTED:
        return tuple(dims[a] for a in order_of(node))
    if name == "sum":
        count = len(dims)
        over = {a % count for a in argument(node, 1)} if len(node.args) > 1 and node.args[1] else set(range(count))
        kept = tuple(axis for k, axis in enumerate(dims) if k not in over)
        return regrouped(kept, shape_of(node))
    return None


def pulled(node: fx.Node, dims: Dims) -> tuple[fx.Node, Dims]:
    """The tensor that a node is a view of, and its axes by those of the node."""
    while True:
        name = operation(node)
        below = node.args[0] if node.args else None
        if not isinstance(below, fx.Node):
            return node, cut(dims)
        if copied(node):
            found: Dims | None = dims
        elif name in RESHAPED:
            found = regrouped(dims, shape_of(below))
        elif name in PERMUTED:
            back = sorted(range(len(dims)), key=order_of(node).__getitem__)
            found = tuple(dims[k] for k in back)
        elif name == "expand":
            first = len(dims) - len(shape_of(below))
            found = tuple(() if s == 1 else axis for s, axis in zip(shape_of(below), dims[first:], strict=True))
        else:
            found = None
        if found is None:
            return node, cut(dims)
        node, dims = below, found


@dataclass(frozen=True)
class Windows:
    """What each place of a convolution reads, a linear map of the tensor that it slides over.

    Attributes:
        kernel, stride, padding, dilation: one number for each axis that it slides along.
        places: how many places along each of them; empty for as many as there is room for.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    places: tuple[int, ...] = ()

    def over(self, places: tuple[int, ...]) -> Windows:
        """The same with so many places."""
        return Windows(self.kernel, self.stride, self.padding, self.dilation, places)

    def __call__(self, hidden: Float[Tensor, "n channels *size"]) -> Float[Tensor, "n channels *kernel_and_places"]:
        """Every place's window: axes of the example, the channel, the kernel's and then those of the places."""
        axes = len(self.kernel)
        found = F.pad(hidden, [p for pad in reversed(self.padding) for p in (pad, pad)])
        for k in range(axes):
            length = self.dilation[k] * (self.kernel[k] - 1) + 1
            found = found.unfold(2 + k, length, self.stride[k])[..., :: self.dilation[k]]
            if self.places:
                found = found.narrow(2 + k, 0, self.places[k])
        order = (0, 1, *range(2 + axes, 2 + 2 * axes), *range(2, 2 + axes))
        return found.permute(order)
