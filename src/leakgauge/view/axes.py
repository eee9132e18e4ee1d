"""Where axes of a tensor go when it is reshaped, permuted, summed and cut; which tensors are affine maps of which."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor, fx
from torch.nn import functional as F

from leakgauge.view.trace import TracedGradient, draws, operation


class Atom:
    """One stretch of an axis that no reshaping has cut yet. Cut, it stands for its parts, the outermost first."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.parts: tuple[Atom, ...] = ()

    def whole(self) -> "tuple[Atom, ...]":
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
    one, two = node.meta.get("val"), node.args[0].meta.get("val")
    if not isinstance(one, Tensor) or not isinstance(two, Tensor):  # sparse tensors have none
        return False
    return bool(one.dtype == two.dtype or (one.is_floating_point() and two.is_floating_point()))


def fresh(shape: Sequence[int]) -> Dims:
    return tuple((Atom(s),) if s != 1 else () for s in shape)


def cut(dims: Dims) -> Dims:
    """The same with every atom that was cut replaced by its parts."""
    return tuple(tuple(p for a in axis for p in a.whole()) for axis in dims)


def atoms(dims: Dims) -> list[Atom]:
    """What the axes consist of now."""
    return [a for axis in cut(dims) for a in axis]


def order_of(node: fx.Node) -> list[int]:
    """Which axis of its argument each axis of a permuted tensor is."""
    axes, args = list(range(len(shape_of(node)))), cast(Any, node.args)
    if operation(node) == "permute":
        return [a % len(axes) for a in args[1]]
    one, two = (0, 1) if operation(node) == "t" else args[1:3]
    if len(axes) > 1:
        axes[one], axes[two] = axes[two], axes[one]
    return axes


def regrouped(dims: Dims, shape: Sequence[int]) -> Dims | None:
    """The atoms in the axes of another shape with as many entries, some cut; `None` where they cannot be."""
    left = atoms(dims)
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
        given = cast(Any, node.args[1]) if len(node.args) > 1 else None
        over = {a % len(dims) for a in given or range(len(dims))}
        return regrouped(tuple(axis for k, axis in enumerate(dims) if k not in over), shape_of(node))
    return None


def pulled(node: fx.Node, dims: Dims) -> tuple[fx.Node, Dims]:
    """The tensor that a node is a view of, and its axes by those of the node."""
    while True:
        name = operation(node)
        below = node.args[0] if node.args else None
        if not isinstance(below, fx.Node):
            return node, cut(dims)
        found: Dims | None = None
        if copied(node):
            found = dims
        elif name in RESHAPED:
            found = regrouped(dims, shape_of(below))
        elif name in PERMUTED:
            back = sorted(range(len(dims)), key=order_of(node).__getitem__)
            found = tuple(dims[k] for k in back)
        elif name == "expand":
            first = len(dims) - len(shape_of(below))
            found = tuple(() if s == 1 else axis for s, axis in zip(shape_of(below), dims[first:], strict=True))
        if found is None:
            return node, cut(dims)
        node, dims = below, found


@dataclass(frozen=True)
class Windows:
    """What each place of a convolution reads, a linear map of the tensor that it slides over."""

    kernel: tuple[int, ...]  # kernel, stride, padding, dilation: one number for each axis that it slides along
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    places: tuple[int, ...]  # how many along each of them

    def __call__(self, hidden: Float[Tensor, "n channels *size"]) -> Float[Tensor, "n channels *kernel_and_places"]:
        """Every place's window: axes of the example, the channel, the kernel's and then those of the places."""
        axes = len(self.kernel)
        found = F.pad(hidden, [p for pad in reversed(self.padding) for p in (pad, pad)])
        for k in range(axes):
            length = self.dilation[k] * (self.kernel[k] - 1) + 1
            found = found.unfold(2 + k, length, self.stride[k])[..., :: self.dilation[k]]
            found = found.narrow(2 + k, 0, self.places[k])
        return found.permute(0, 1, *range(2 + axes, 2 + 2 * axes), *range(2, 2 + axes))


_SUMS = {
    *SAME,
    *RESHAPED,
    *PERMUTED,
    *("expand", "slice", "select", "split", "split_with_sizes", "chunk", "unbind", "getitem", "cat", "stack"),
    *("neg", "sum", "mean", "add", "sub", "rsub"),
}
"""The commonest of those that are linear in all their tensors together, but for a constant."""
_PIECES = {"split", "split_with_sizes", "chunk", "unbind"}
_FACTORS = {"mul", "mm", "bmm", "mv", "dot", "convolution", "addmm", "baddbmm"}
"""Linear in each of their tensors, the last two of them in the last two, to which the first is added."""

_NORMS = {"native_batch_norm": True, "cudnn_batch_norm": True, "_native_batch_norm_legit_no_training": None}
"""With fixed statistics, affine; what the fifth argument is where the statistics are those of the batch."""


def model_input(traced: TracedGradient) -> fx.Node:
    """What the model is called with: the normalised examples, or the whole numbers of tokens."""
    node = traced.nodes["inputs"]
    for name in ("sub", "div") if any(operation(u) == "sub" for u in node.users) else ("round", "_to_copy"):
        following = [u for u in node.users if operation(u) == name]
        node = following[0] if following else node
    return node


def affine_bases(
    traced: TracedGradient,
    among: set[fx.Node],
    tried: Callable[[fx.Node, list[fx.Node]], bool],
    rejoined: Callable[[fx.Node], fx.Node | None],
) -> dict[fx.Node, fx.Node]:
    """For every tensor that depends on the examples, and is not behind the loss (`among` these), the deepest tensor of
    which it is an affine map. `tried`: whether a node is one of some that it is given, where its name does not say so.
    `rejoined`: the tensor of which a node is one by several ways that are not.
    """
    found: dict[fx.Node, fx.Node] = {}
    called = model_input(traced)
    for node in traced.code.graph.nodes:
        if node not in among:
            continue
        given = [n for n in node.all_input_nodes if n in among]
        bases, values = {found[n] for n in given}, node.meta.get("val")
        whole = isinstance(values, Tensor) and not values.is_floating_point() and not values.is_complex()
        one = len(bases) == 1 and node is not called and not whole
        straight = one and (_by_name(node, given, found) or tried(node, given))
        turned = any(_is_complex(n) for n in bases) and not _is_complex(node)  # readers read real tensors
        found[node] = bases.pop() if straight and not turned else node
        if not straight and len(given) > 1 and node is not called and (below := rejoined(node)) is not None:
            found[node] = found[below]
        if node in traced.affine and node is not called:
            found[node] = called
    return found


def _is_complex(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_complex()


def _by_name(node: fx.Node, given: list[fx.Node], found: Mapping[fx.Node, fx.Node]) -> bool:
    """Whether an operation is known to be affine in what it is given."""
    name = operation(node).rstrip("_")  # in place or not
    affine = name in _SUMS
    affine &= name != "getitem" or found[given[0]] is not given[0] or operation(given[0]) in _PIECES
    factors = node.args[1:] if name in ("addmm", "baddbmm") else node.args
    affine |= name in _FACTORS and sum(a in given for a in factors) <= 1
    affine |= name == "div" and len(given) == 1 and node.args[0] is given[0] and "rounding_mode" not in node.kwargs
    return affine or (name in _NORMS and len(given) == 1 and _NORMS[name] not in node.args[5:6])


def representatives(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """For every node the first one that computes the same from the same, copies and views of views being seen
    through."""
    found: dict[fx.Node, fx.Node] = {}
    first: dict[Hashable, fx.Node] = {}
    whole: dict[fx.Node, fx.Node] = {}  # of a reshaped tensor, what it was
    turned: dict[fx.Node, tuple[fx.Node, list[int]]] = {}  # of a permuted one, what it was and which axis each is
    for node in graph.nodes:
        name = operation(node)
        below = found[node.args[0]] if node.args and isinstance(node.args[0], fx.Node) else None
        if below is not None and copied(node):
            found[node] = below
            continue
        key: Hashable = node
        if below is not None and name in RESHAPED:
            whole[node] = whole.get(below, below)
            key = whole[node] if shape_of(whole[node]) == shape_of(node) else ("view", whole[node], shape_of(node))
        elif below is not None and name in PERMUTED and isinstance(node.meta.get("val"), Tensor):  # no sparse one
            base, before = turned.get(below, (below, list(range(len(shape_of(node))))))
            order = [before[a] for a in order_of(node)]
            turned[node] = base, order
            key = base if order == sorted(order) else ("permute", base, tuple(order))
        elif node.op == "call_function" and not draws(node):
            key = (node.target, *fx.node.map_arg((node.args, node.kwargs), lambda n: found[n]))
        found[node] = first.setdefault(key, key if isinstance(key, fx.Node) else node)
    return found
