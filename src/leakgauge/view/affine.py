"""Which tensors of a forward pass are affine maps of which others."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor, fx

from leakgauge.view.axes import PERMUTED, RESHAPED, SAME, copied, order_of, shape_of
from leakgauge.view.products import Colours
from leakgauge.view.trace import TracedGradient, operation

_PLACED = {
    *SAME,
    *RESHAPED,
    *PERMUTED,
    *("expand", "slice", "select", "split", "split_with_sizes", "chunk", "unbind", "getitem", "cat", "stack", "flip"),
    *("roll", "constant_pad_nd", "im2col", "col2im", "index", "index_select", "gather", "neg", "sum", "mean", "repeat"),
    *("avg_pool2d", "_adaptive_avg_pool2d", "avg_pool3d", "_adaptive_avg_pool3d", "avg_pool1d", "reflection_pad2d"),
    *("replication_pad2d", "upsample_nearest2d", "upsample_bilinear2d", "cumsum", "diagonal", "unfold", "as_strided"),
    *("slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter"),
    *("add", "sub", "rsub", "tril", "triu", "movedim", "pixel_shuffle", "pixel_unshuffle", "index_add", "scatter_add"),
}
"""Linear in all their tensors together, but for a constant."""
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


def affine_bases(traced: TracedGradient, colours: Colours) -> dict[fx.Node, fx.Node]:
    """For every tensor that depends on the examples, and is not behind the loss, the deepest tensor of which it is an
    affine map."""
    found: dict[fx.Node, fx.Node] = {}
    called = model_input(traced)
    for node in traced.code.graph.nodes:
        if node not in colours.data or node in colours.behind:
            continue
        given = [n for n in node.all_input_nodes if n in colours.data]
        bases = {found[n] for n in given}
        name = operation(node).rstrip("_")  # in place or not
        affine = name in _PLACED and _of_values(node, given)
        affine &= name != "getitem" or found[given[0]] is not given[0] or operation(given[0]) in _PIECES
        factors = node.args[1:] if name in ("addmm", "baddbmm") else node.args
        affine |= name in _FACTORS and sum(a in given for a in factors) <= 1
        affine |= name == "div" and len(given) == 1 and node.args[0] is given[0] and "rounding_mode" not in node.kwargs
        affine |= name in _NORMS and len(given) == 1 and _NORMS[name] not in node.args[5:6]
        values = node.meta.get("val")
        whole = isinstance(values, Tensor) and not values.is_floating_point()
        found[node] = bases.pop() if affine and not whole and len(bases) == 1 and node is not called else node
    return found


def _of_values(node: fx.Node, given: list[fx.Node]) -> bool:
    """Whether what is given are values, not places to look at."""
    if operation(node) in ("index", "gather", "index_select"):
        return given == [node.args[0]] and all(n is node.args[0] or n not in given for n in node.all_input_nodes)
    if operation(node) in ("index_add", "scatter_add"):
        return node.args[2] not in given
    return True


def representatives(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """For every node the first one that computes the same from the same, copies and views of views being seen
    through."""
    found: dict[fx.Node, fx.Node] = {}
    first: dict[Hashable, fx.Node] = {}
    for node in graph.nodes:
        name = operation(node)
        below = node.args[0] if node.args else None
        if copied(node) and isinstance(below, fx.Node):
            found[node] = found[below]
            continue
        if node.op != "call_function" or name in (
            "rand",
            "randn",
            "bernoulli",
            "rand_like",
            "randn_like",
            "native_dropout",
        ):
            found[node] = node
            continue
        if name in RESHAPED and isinstance(below, fx.Node):
            while (copied(below) or operation(below) in RESHAPED) and isinstance(below.args[0], fx.Node):
                below = below.args[0]
            if shape_of(below) == shape_of(node):
                found[node] = found[below]
                continue
            key: Hashable = ("view", found[below], shape_of(node))
        elif name in PERMUTED and isinstance(below, fx.Node):
            below, order = below, order_of(node)
            while (copied(below) or operation(below) in PERMUTED) and isinstance(below.args[0], fx.Node):
                order = [order_of(below)[a] for a in order] if operation(below) in PERMUTED else order
                below = below.args[0]
            if order == list(range(len(order))):
                found[node] = found[below]
                continue
            key = ("permute", found[below], tuple(order))
        else:
            args = fx.node.map_arg((node.args, node.kwargs), lambda n: found[n])
            key = (node.target, _frozen(args))
        found[node] = first.setdefault(key, node)
    return found


def _frozen(value: object) -> Hashable:
    if isinstance(value, list | tuple):
        return tuple(_frozen(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, _frozen(v)) for k, v in value.items())
    if isinstance(value, slice):
        return ("slice", value.start, value.stop, value.step)
    return value if isinstance(value, Hashable) else id(value)
