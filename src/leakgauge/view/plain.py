"""Stretches of a network that come to a linear layer whose gradient the update tells, and the network with these."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn
from torch.nn import functional

from leakgauge.batch import DataSpec
from leakgauge.step.training import cross_entropy
from leakgauge.tensors import Tensors
from leakgauge.view.axes import shape_of
from leakgauge.view.graph import FEWER, Graph, OuterSum
from leakgauge.view.layer import RECOVERED, Effective, OneProduct, leaves_of, single_numbers
from leakgauge.view.trace import Instead, ancestors, blank, operation, writes

MOST = 2**26  # entries of a layer that is solved for
PART = 2**18  # the same of a layer that is determined in part, which takes several such solutions to find
SEPARATE = 1e-5
"""Share of the largest singular value of what is lost below which a combination of rows has lost nothing."""
CHUNK = 1024

PENALISED = "plain_penalised"
"""Name in a network of what stands for the parts that are penalised. What it has beside the user's modules is called so
that no module is."""

ONE = 1e-12  # relative error up to which an activation is one number of a hidden tensor

Rows = Callable[[Float[Tensor, "n d"]], Float[Tensor, "n units"]]


def effective_layer(graph: Graph, given: tuple[fx.Node, ...], output: fx.Node) -> Effective | None:
    """The layer from `given` to `output`, an affine map of them; `None` where the update does not determine its
    gradient, or, where it reads the input, any part of it."""
    return next(filter(None, shown_layers(graph, given, output)), None)


def shown_layers(graph: Graph, given: tuple[fx.Node, ...], output: fx.Node) -> Iterator[Effective | None]:
    """The same, of all layers that products of the gradient show; `None` for one that these do not determine and show
    all there is of."""
    names = tuple(sorted(graph.colours.parameters[output].difference(*(graph.colours.parameters[h] for h in given))))
    if not names or set(names) != between(graph, given, output):
        return
    if not all(by_rows(graph, node) for node in (output, *given)):
        return
    count, task = graph.trace.examples, graph.double
    units, width = numbers_of(graph, output), sum(numbers_of(graph, h) for h in given)
    entries = sum(graph.task.parameters[k].numel() for k in names)
    products = [p for p in graph.products if len(p.terms) == 1 and set(p.parameters) <= set(names)]
    reads, enough = given == (graph.inputs,), FEWER * entries >= units * width
    signals = ((p, p.terms[0].signal.node.meta["val"].numel()) for p in products)
    reads &= all(numbers == count * p.shape[0] * p.shape[1] for p, numbers in signals)  # one for each example
    written = (n for n in graph.trace.code.graph.nodes if writes(n) and n not in graph.colours.data)
    reads &= not any(written)  # a weight that changes by being used
    if units * width > MOST or not (enough or reads):
        return
    paths = [graph.behind(p.terms[0].signal.node) for p in products]
    paths = [[s for s in reversed(path) if shape_of(s) == shape_of(output)] for path in paths]
    common = [s for path in paths[:1] for s in path if all(s in other for other in paths)]
    roots = tuple(dict.fromkeys((*common, *(path[0] for path in paths if path))))
    for root in roots:
        parts = [_part(graph, p, given, root, units) for p in products]
        known = tuple(p for p in parts if p is not None)
        nodes = {p.product.node for p in known}
        behind = {k: {p.node for p in graph.products if k in p.parameters} for k in names}
        used = tuple(k for k in names if behind[k] and behind[k] <= nodes)
        if not used:
            continue

        def layer_of(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n units"]:
            one = _held(graph, given, rows)
            return graph.trace.evaluate([output], task, blank(task, len(rows)), given=one)[0].reshape(-1, units)

        with torch.no_grad():
            weight, bias = _affine(layer_of, width)
        weight = weight.to_dense() if weight.is_sparse else weight
        for moves in (True, False):
            if not moves and any(bool(p.shift.any()) for p in known if p.product.activation is not None):
                continue
            layer = Effective(graph, given, output, weight, bias, moves, names, used, known)
            if _is_right(layer):
                found = layer if enough and layer.determined else None
                found = found or (_in_part(layer) if reads or layer.projections else None)
                if found is not None or used == names:
                    yield found


def _is_right(layer: Effective) -> bool:
    """Whether the gradients of the parameters are those of the stretch where random signals are at its end."""
    graph, task, draw = layer.graph, layer.graph.double, torch.Generator().manual_seed(0)
    rows, signals = (torch.randn(3, n, generator=draw, dtype=torch.float64) for n in layer.weight.shape[::-1])
    (own, leaves), held = leaves_of(graph, layer.used), _held(graph, layer.given, rows)
    with torch.enable_grad():
        made = graph.trace.evaluate([layer.output], own, blank(task, len(rows)), given=held)[0]
        found = torch.autograd.grad((made.reshape(len(rows), -1) * signals).sum(), list(leaves.values()))
    moved = torch.cat([rows, torch.full((len(rows), 1), float(layer.moves), dtype=torch.float64)], 1)
    with torch.no_grad():
        told = layer.gradients(signals.T @ moved)
    return all(torch.allclose(told[k], one, rtol=1e-6, atol=1e-9) for k, one in zip(leaves, found, strict=True))


def by_rows(graph: Graph, node: fx.Node) -> bool:
    """Whether a tensor has a row an example, behind axes of length one."""
    shape = shape_of(node) if isinstance(node.meta.get("val"), Tensor) else ()
    return next((s for s in shape if s != 1), 0) == graph.trace.examples


def numbers_of(graph: Graph, node: fx.Node) -> int:
    """Of one example."""
    return math.prod(shape_of(node)) // graph.trace.examples


def enough(graph: Graph, given: fx.Node, node: fx.Node) -> bool:
    """Whether a layer from one tensor to another has no more entries than the parameters between them."""
    names = graph.colours.parameters[node] - graph.colours.parameters[given]
    entries = sum(graph.task.parameters[name].numel() for name in names)
    return numbers_of(graph, node) * numbers_of(graph, given) <= entries


def is_read(graph: Graph, given: fx.Node) -> bool:
    """Whether a weight is multiplied with all numbers of a tensor, in whatever places, each times one factor."""
    base, task = graph.same[given], graph.double
    if not by_rows(graph, given):
        return True
    own = (p.terms[0] for p in graph.products if p.weight and len(p.terms) == 1 == p.shape[0])
    whole = (t.activation for t in own if t.activation and not t.activation.hot and t.signal.windows is None)
    reads = {graph.same[a.node] for a in whole if graph.bases.get(a.node) is given and by_rows(graph, a.node)}
    if base in reads:
        return True
    width = numbers_of(graph, given)

    def of(node: fx.Node, row: Tensor) -> Tensor:
        held = {given: of_rows(graph, given, row[None])}
        return graph.trace.evaluate([node], task, blank(task, 1), given=held)[0].flatten()

    for node in reads:
        if (one := single_numbers(lambda row, n=node: of(n, row), width, ONE)) is None:  # type: ignore[misc]
            continue
        places, scale = one[0][one[1] != 0], one[1][one[1] != 0]
        alike = len(places.unique()) == width and bool((scale / scale.amax() - 1).abs().max() <= ONE)
        if alike and float(scale[0]) > 0:
            return True
    return False


def of_rows(graph: Graph, node: fx.Node, rows: Float[Tensor, "n d"]) -> Tensor:
    """Rows in the shape of a tensor that has one an example."""
    shape = shape_of(node)
    first = shape.index(graph.trace.examples)
    return rows.reshape(*shape[:first], len(rows), *shape[first + 1 :])


def between(graph: Graph, given: tuple[fx.Node, ...], output: fx.Node) -> set[str]:
    """Parameters between, of which no other part of the forward pass makes use."""
    inside = ancestors(output, lambda n: n not in given)
    held = {n: graph.colours.parameters[n] for n in inside if n.op == "placeholder"}
    shared = {
        name
        for n in inside - {output}
        for u in n.users
        if u not in inside and u not in graph.colours.behind and u in graph.forward
        for name in graph.colours.parameters[n]
    }
    return set().union(*held.values()) - shared if held else set()


def _part(graph: Graph, product: OuterSum, given: tuple[fx.Node, ...], root: fx.Node, units: int) -> OneProduct | None:
    term = product.terms[0]
    if root not in graph.behind(term.signal.node) or product.shape[0] != 1:
        return None
    task = graph.double
    one = of_rows(graph, root, torch.eye(units, dtype=torch.float64))
    rows = graph.rows(term, term.signal, task, blank(task, units), {root: one})
    if rows.shape[1] % units:
        return None
    places = rows[0].view(units, -1, rows.shape[2])
    live = places.abs().amax((0, 2)).nonzero().flatten()
    if len(live) != 1 and term.activation is not None:  # several positions
        return None
    left: Tensor | None = places.sum(1).T
    if left is not None and left.shape[0] == units and torch.equal(left, torch.eye(units, dtype=torch.float64)):
        left = None
    if (activation := term.activation) is None:
        return OneProduct(product, left, None, torch.zeros(1, dtype=torch.float64))
    if not _follows(graph, activation.node, given):
        return None

    def read(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n inputs"]:
        found = graph.rows(term, activation, task, blank(task, len(rows)), _held(graph, given, rows))[0]
        return found.view(len(rows), -1, found.shape[1])[:, live[0]]

    return OneProduct(product, left, *_affine(read, sum(numbers_of(graph, h) for h in given)))


def _follows(graph: Graph, node: fx.Node, given: tuple[fx.Node, ...]) -> bool:
    """Whether a tensor is an affine map of the given ones alone."""
    passed = ancestors(node, lambda n: n in graph.colours.data and n not in given)
    if graph.trace.nodes["inputs"] in {*given, *passed}:
        return False
    base = graph.bases.get(node, node)
    return node in given or base in given or base in {graph.bases.get(h) for h in given}


def _held(graph: Graph, given: tuple[fx.Node, ...], rows: Float[Tensor, "n d"]) -> dict[fx.Node, Tensor]:
    """Rows as values of the given tensors, side by side."""
    parts = rows.split([numbers_of(graph, h) for h in given], 1)
    return {h: of_rows(graph, h, part) for h, part in zip(given, parts, strict=True)}


def _affine(function: Rows, width: int) -> tuple[Float[Tensor, "units d"], Float[Tensor, " units"]]:
    """Matrix and shift of an affine map of rows; sparse where each number that it makes is one that it is given times
    something."""
    shift = function(torch.zeros(1, width, dtype=torch.float64))[0]
    single = single_numbers(lambda row: function(row[None])[0] - shift, width, ONE)
    if single is not None:
        places = torch.stack([torch.arange(len(shift)), single[0]])
        size = len(shift), width
        found = torch.sparse_coo_tensor(places, single[1], size, check_invariants=False, is_coalesced=True)
        return found, shift
    units = (functional.one_hot(part, width).double() for part in torch.arange(width).split(CHUNK))
    return torch.cat([function(part) - shift for part in units]).T, shift


def _in_part(layer: Effective) -> Effective | None:
    """The combinations of its rows that the gradients determine, as the factors of a low rank do; `None` for none.

    Those of its `projections`; else what is lost of random gradients tells: combinations that no loss has a part in are
    determined.
    """
    if layer.projections:
        _, sizes, sides = torch.linalg.svd(torch.cat([p.left for p in layer.projections if p.left is not None]))
        rows = sides[: int((sizes > SEPARATE * sizes[0]).sum())] if bool(sizes[0] > 0) else sides[:0]
        found = replace(layer, rows=rows) if 0 < len(rows) < len(layer.weight) else None
        return found if found is None or not found.moves or found.shift is not None else None
    if layer.weight.numel() > PART:
        return None
    generator = torch.Generator().manual_seed(1)
    several = 2 + len(layer.weight) // layer.weight.shape[1]  # together they have a part in all that can be lost
    lost = torch.cat([_lost(layer, generator)[0] for _ in range(several)], 1)
    sides, sizes, _ = torch.linalg.svd(lost)
    rows = sides[:, int((sizes > SEPARATE * sizes[0]).sum()) :].T
    if not 0 < len(rows) < len(layer.weight):
        return None
    left, size = _lost(layer, generator)
    return replace(layer, rows=rows) if float((rows @ left).norm()) <= RECOVERED * size else None


def _lost(layer: Effective, generator: torch.Generator) -> tuple[Tensor, float]:
    """What of a random gradient is not found again in what it makes of the parameters' gradients, and its length."""
    truth, sent = layer.drawn(generator)
    return layer.solved(sent) - truth, float(truth.norm())


class PlainNetwork(nn.Module):
    """The traced forward pass with layers in the place of what they come to, and weights in that of what computes them;
    all else runs as it was traced. `data`: the format of what it is called with."""

    def __init__(self, graph: Graph, layers: tuple[Effective, ...], data: DataSpec) -> None:
        super().__init__()
        named = {_name(graph, layer): layer for layer in layers}
        made = ((n, k) for name, one in named.items() for n, k in _weights(name, one))
        stands = {graph.same[node]: key for node, key in made}
        alike = {n: stands[graph.same[n]] for n in graph.same if graph.same[n] in stands}
        self.plain_form = _Shared(graph, data, named, alike)
        self.plain_gone = frozenset(name for layer in layers for name in layer.parameters)  # the original's
        like, buffers = next(iter(graph.task.parameters.values())), dict(graph.task.buffers)
        kept = {k: v for k, v in graph.task.parameters.items() if k not in self.plain_gone}
        for name, layer in self.plain_form.layers.items():
            if not layer.given:
                kept |= layer.tensors(name, layer.bias[:, None])
                continue
            tensors = {key: value.to(like).contiguous() for key, value in _tensors(layer).items()}
            own: Tensors = {key: tensors.pop(key) for key in ("weight", "bias") if key in tensors}
            units, width = own["weight"].shape
            linear = nn.Linear(width, units, bias="bias" in own)
            linear.load_state_dict(own, assign=True)
            owner, last = _owner(self, name)
            owner.add_module(last, linear)
            buffers |= {f"{name}_{key}": value for key, value in tensors.items()}
        for name, value in kept.items():
            owner, last = _owner(self, name)
            owner.register_parameter(last, nn.Parameter(value.detach().to(like).clone()))
        for name, value in buffers.items():
            owner, last = _owner(self, name)
            owner.register_buffer(last, value.detach().clone())
        for place in range(len(graph.trace.penalised)):
            _owner(self, f"{PENALISED}.{place}")[0].add_module(str(place), nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        graph, data = self.plain_form.graph, self.plain_form.data
        layers, kind = self.plain_form.layers, x.dtype if x.is_floating_point() else next(self.parameters()).dtype
        if data is not graph.task.data and all(layer.given != (graph.inputs,) for layer in layers.values()):
            x = graph.task.data.normalise(data.denormalise(x))
        held = {f"p:{k}": v for k, v in self.named_parameters()} | {f"b:{k}": v for k, v in self.named_buffers()}
        given = {node: held[key] for key, node in graph.trace.nodes.items() if key in held}
        given |= {graph.trace.nodes["inputs"]: x, graph.inputs: x}
        given |= {node: held[f"p:{name}"] for node, name in self.plain_form.weights.items()}
        instead = {v.output: Instead(v.given, self._layer(name)) for name, v in layers.items() if v.given}
        end = cast(fx.Node, graph.trace.outputs)
        if operation(end) == "_log_softmax" and graph.task.loss is cross_entropy:  # which takes it again, to no effect
            end = cast(fx.Node, end.args[0])
        out, *parts = graph.trace.run([end, *graph.trace.penalised], given, len(x), kind, instead)
        for place, part in enumerate(parts):
            self.get_submodule(f"{PENALISED}.{place}")(part)
        return out

    def _layer(self, name: str) -> Any:
        held, graph, own = dict(self.named_buffers()), self.plain_form.graph, self.plain_form.layers[name]
        widths, kind = [numbers_of(graph, h) for h in own.given], own.output.meta["val"].dtype
        other = kind is not graph.trace.nodes["seed"].meta["val"].dtype  # another type than the network's own

        def layer(*given: Tensor) -> Tensor:
            linear = cast(nn.Linear, self.get_submodule(name))
            h = torch.cat([g.reshape(-1, width) for g, width in zip(given, widths, strict=True)], 1)
            out = linear(h := h.to(linear.weight))
            if f"{name}_rows" in held:
                out = out @ held[f"{name}_rows"] + h @ held[f"{name}_rest"].T
            out = out + held[f"{name}_shift"] if f"{name}_shift" in held else out
            return of_rows(graph, own.output, out.to(kind) if other else out)

        return layer


@dataclass(frozen=True, eq=False)
class _Shared:
    """What copies of a network have together."""

    graph: Graph
    data: DataSpec
    layers: dict[str, Effective]
    weights: dict[fx.Node, str]  # of which a parameter stands for each, whatever computes it again

    def __deepcopy__(self, memo: object) -> "_Shared":
        return self


def _name(graph: Graph, layer: Effective) -> str:
    """Where a layer is held: at the user's own name of the module, or of the weight."""
    owners = (name.split(".")[:-1] for name in layer.parameters)
    shared = [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*owners, strict=False))]
    largest = max(layer.used, key=lambda name: graph.task.parameters[name].numel())
    if not layer.given:
        return largest
    found = ".".join(shared) or largest.removesuffix(".weight")
    taken = {*graph.task.parameters, *graph.task.buffers} - set(layer.parameters)
    return largest.replace(".", "_") if any(name.startswith(f"{found}.") for name in taken) else found


def _weights(name: str, layer: Effective) -> Iterator[tuple[fx.Node, str]]:
    """The weights that a layer that is given nothing stands for, and the parameters that it has for them."""
    yield from zip(layer.nodes, layer.tensors(name, layer.bias[:, None]) if layer.nodes else (), strict=True)


def _tensors(layer: Effective) -> Tensors:
    """What stands for a layer. Of one that is determined in part that part trains, and the rest stays."""
    weight, bias, shift, found = layer.weight, layer.bias, layer.bias, dict[str, Tensor]()
    if layer.rows is not None:
        weight, bias = layer.rows @ weight, layer.rows @ bias
        found = {"rows": layer.rows, "rest": layer.weight - layer.rows.T @ weight}
        shift = shift - layer.rows.T @ bias * layer.moves
    if layer.moves:
        found["bias"] = bias
    if (not layer.moves or layer.rows is not None) and bool(shift.any()):
        found["shift"] = shift
    return {**found, "weight": weight}


def _owner(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that holds what has a name, made where there is none, and the name there."""
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    return root, last
