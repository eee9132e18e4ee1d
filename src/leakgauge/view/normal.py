"""A task in its plainest words: the layers that it comes to, by the user's own names.

Readers know linear layers and convolutions as modules. `look_at` finds them in the graph of the gradient
(`leakgauge.view.graph`): what reads the input and what makes the outputs as the linear layers that they come to
(`leakgauge.view.plain`), however they are spelt, and in between whatever one parameter is multiplied with.
"""

import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial

import torch
from torch import Tensor, fx, nn

from leakgauge.batch import DataSpec
from leakgauge.errors import FOREIGN, few, said
from leakgauge.task import Task
from leakgauge.tensors import Tensors
from leakgauge.view.graph import KEPT, Graph, answers_as, followed
from leakgauge.view.layer import Effective
from leakgauge.view.plain import PENALISED, PlainNetwork, by_rows, effective_layer, enough, is_read, shown_layers
from leakgauge.view.probed import hidden_layer, output_layer, probed_layer
from leakgauge.view.trace import ancestors, operation, probe
from leakgauge.view.tracer import trace
from leakgauge.view.weights import computed_weights

DRAWN = 3  # further traces of a model that draws at random
PARTS = 8  # parts of a stretch that are tried where the whole is not to be kept, the longest ones
NAMED = 3  # parameters that a sentence names
CLOSE = 1e-3  # gradients of both forms agree to so much of their largest entry
NOTHING = 1e-6  # share of the largest entry of all that rounding makes of a gradient that is zero


@dataclass(frozen=True, eq=False)
class NormalForm:
    """A task in plain layers."""

    task: Task  # with the same inputs, outputs and loss
    network: PlainNetwork
    # every tensor of an update of it holds the entries of one of the original's, so that what is done to entries or
    # tensors, and several local steps, are the same in both
    exact: bool
    # every entry is one of the original's, whichever tensor it stands in, so that what is done to all entries alike is
    # the same in both
    entrywise: bool

    @cached_property
    def copies(self) -> Mapping[str, tuple[str, float]] | None:
        """Tensor → the original's that holds the same entries, in some order and with some signs, and the length of
        its own in shares of that one's; `None` where some tensor is no such copy."""
        draw, found = torch.Generator().manual_seed(0), dict[str, tuple[str, float]]()
        originals = self.network.plain_form.graph.task.parameters
        sent = {k: torch.randn(v.shape, generator=draw, dtype=torch.float64) for k, v in originals.items()}
        sizes = {k: v.abs().flatten().sort().values for k, v in sent.items()}
        for name, tensor in self.tensors(sent).items():
            own = tensor.abs().flatten().sort().values
            alike = ((k, float(own.norm() / its.norm())) for k, its in sizes.items() if its.shape == own.shape)
            same = next((one for one in alike if torch.allclose(own, one[1] * sizes[one[0]], rtol=1e-6)), None)
            if same is None:
                return None
            found[name] = same
        return found

    @cached_property
    def narrower(self) -> "tuple[NormalForm, ...]":
        """Forms that leave more of the layers as they are spelt: every layer whose entries are the original's, wherever
        they stand; and those whose tensors hold the original's. What is not the same of one layer keeps none of these.
        """
        graph, made = self.network.plain_form.graph, list[NormalForm]()
        for keep in (lambda layer: layer.entrywise, lambda layer: layer.whole):
            with suppress(*FOREIGN):
                form = _made(graph, keep)
                made += [form] if isinstance(form, NormalForm) else []
        return tuple(made)

    def tensors(self, sent: Tensors) -> Tensors:
        """Tensors of an update of the original as they would be of this one."""
        found = {k: t for k, t in sent.items() if k not in self.network.plain_gone}
        for name, layer in self.network.plain_form.layers.items():
            like, made = sent[layer.used[0]], layer.tensors(name, layer.solved(sent))
            found |= {k: t.to(like).contiguous() for k, t in made.items()}
        return {k: found[k] for k in self.task.parameters}


@dataclass(frozen=True)
class Obstacle:
    """Why readers of layers see less of a network than there may be."""

    sentence: str
    opaque: bool = True  # the network is not understood, so that what they do not find says nothing


@dataclass(frozen=True, eq=False)
class Look:
    """What came of looking for a task's normal form."""

    form: NormalForm | None = None  # `None` where the task is in plain layers already, or no such form is found
    obstacles: tuple[Obstacle, ...] = ()


_LOOKED: weakref.WeakSet[Task] = weakref.WeakSet()


def looked(task: Task) -> Look | None:
    """What came of looking, where somebody has: it costs nothing."""
    return look_at(task) if task in _LOOKED else None


@lru_cache(maxsize=KEPT)
def look_at(task: Task) -> Look:
    """Looks for the normal form, once."""
    _LOOKED.add(task)
    if _is_plain_chain(task):
        return Look()
    if isinstance(graph := followed(task), str):
        return Look(None, (Obstacle(graph),))
    names, found = [f"`{name}`" for name in graph.unexplained], tuple[Obstacle, ...]()
    if names:
        used = "parameter {} is" if len(names) == 1 else "parameters {} are"
        found = (Obstacle(f"{used.format(few(names, NAMED))} used in a way that is not understood"),)
    try:
        made = _made(graph)
    except FOREIGN as error:
        made = Obstacle(f"the network could not be rebuilt in plain layers ({said(error)})")
    return Look(None, (*found, made)) if isinstance(made, Obstacle) else Look(made, found)


def in_plain_layers(task: Task) -> Task:
    """The task in its normal form, as readers of layers see it; itself where it has none."""
    form = look_at(task).form
    return task if form is None else form.task


def _is_plain_chain(task: Task) -> bool:
    """Whether the model is a chain of torch's own layers, which need no look."""
    module = task.module
    if type(module) is not nn.Sequential or task.data.is_text:
        return False
    first = next((m for m in module if list(m.parameters())), None)
    known = (nn.Flatten, nn.Linear, nn.ReLU, nn.Sigmoid, nn.Tanh, nn.Conv2d)
    plain = all(type(m) in known and not m._forward_pre_hooks and not m._forward_hooks for m in module)
    over_all = isinstance(first, nn.Conv2d) and tuple(first.kernel_size) == tuple(task.data.shape[1:])
    return plain and not over_all


def _made(graph: Graph, keep: Callable[[Effective], bool] = lambda _: True) -> NormalForm | Obstacle | None:
    task = graph.task
    if graph.trace.outputs is None:
        return Obstacle("layers are read as they are spelt: a step of one's own has no outputs", opaque=False)
    layers = _layers(graph, keep)
    if all(_is_plain(graph, layer) for layer in layers):
        return None
    if task.stochastic and not _steady(graph):
        return Obstacle("the network could not be rebuilt in plain layers: it calls others each time that it draws")
    data, layers = _formatted(graph, layers)
    found = _rebuilt(graph, layers, data)
    if graph.trace.fixed and not task.stochastic:  # what is only so inside of a layer is gone
        free = _rebuilt(replace(graph, trace=replace(graph.trace, fixed=False)), layers, data)
        own, counts = free.task, (2, 2 * graph.trace.examples + 1)
        same = answers_as(task, lambda b: own.logits(own.parameters, own.buffers, b.inputs)[0], counts)
        found = free if same else found
    return found if _same(task, found) else Obstacle("the network rebuilt in plain layers has another gradient")


def _rebuilt(graph: Graph, layers: tuple[Effective, ...], data: DataSpec) -> NormalForm:
    """The task with these layers in place of what they come to."""
    task, network = graph.task, PlainNetwork(graph, layers, data)
    form = Task.of(network, data, mode=task.mode, loss=task.loss, name=task.name)
    penalties = tuple((f"{PENALISED}.{place}", penalty) for place, (_, penalty) in enumerate(task.penalties))
    form = replace(form, penalties=penalties, stochastic=task.stochastic)
    return NormalForm(form, network, all(v.whole for v in layers), all(v.entrywise for v in layers))


def _formatted(graph: Graph, layers: tuple[Effective, ...]) -> tuple[DataSpec, tuple[Effective, ...]]:
    """The data format in which the only layer that reads the input reads it entry by entry as it is, and the layers
    then. Both sides of a scale inside the network would take other steps."""
    data, first = graph.task.data, [layer for layer in layers if layer.given == (graph.inputs,)]
    bodies = [p for layer in first for p in layer.parts if p.right is not None]
    if len(first) != 1 or first[0].whole or not data.shape or len(bodies) != 1:
        return data, layers
    (body,), (layer,) = bodies, first
    scale, right = body.scale, body.right
    beside = any(u in graph.forward and graph.bases.get(u) is not graph.inputs for u in graph.inputs.users)
    if scale is None or right is None or beside:
        return data, layers
    shift = (right.T @ body.shift) / scale
    if bool((scale == 1).all()) and not bool(shift.any()):
        return data, layers
    std, mean = (
        torch.tensor(v, dtype=torch.float64).repeat_interleave(len(scale) // len(v)) for v in (data.std, data.mean)
    )
    std, mean = std / scale, mean - shift * std / scale
    channels = [v.view(data.shape[0] if len(data.shape) > 1 else 1, -1) for v in (mean, std)]
    alike = all(bool(((c - c[:, :1]).abs() <= 1e-9 * c.abs().max()).all()) for c in channels)
    if not alike or not bool((std > 0).all()):
        return data, layers
    now = replace(data, mean=tuple(channels[0][:, 0].tolist()), std=tuple(channels[1][:, 0].tolist()))
    trained = set(layer.parameters) != set(layer.used)  # some of what the input goes through
    if trained or layer.rows is not None or any(p.left is not None or p.product.weight is None for p in layer.parts):
        activation = body.product.activation
        assert activation is not None
        moved = effective_layer(graph, (activation.node,), layer.output)
        if moved is None:
            return data, layers
    else:
        part = replace(body, right=right.sign(), shift=torch.zeros_like(body.shift))
        moved = replace(
            layer,
            weight=layer.weight / scale,
            bias=layer.bias - layer.weight @ (shift / scale),
            parts=tuple(part if p is body else p for p in layer.parts),
        )
    return now, tuple(moved if one is layer else one for one in layers)


def _steady(graph: Graph) -> bool:
    """Whether a model that draws at random calls the same layers in the same order whatever it draws."""
    traces = [graph.trace]
    with torch.random.fork_rng(devices=[]):
        for seed in range(DRAWN):
            torch.manual_seed(seed)
            traces.append(trace(graph.task))
    calls = [[(n.target, [m.name for m in n.all_input_nodes]) for n in one.code.graph.nodes] for one in traces]
    return all(one == calls[0] for one in calls)


Stretch = tuple[tuple[fx.Node, ...], fx.Node]
"""From some tensors to one that is an affine map of them."""


def _layers(graph: Graph, keep: Callable[[Effective], bool]) -> tuple[Effective, ...]:
    """The layers that read the input, the one that makes the outputs, and others whose input no weight reads as it is,
    of each the longest stretch that `keep` takes; and weights that are computed, of others."""
    found, failed = list[Effective](), list[BaseException]()
    output = graph.trace.outputs
    assert output is not None
    while operation(output) in ("_log_softmax", "detach") and isinstance(output.args[0], fx.Node):
        output = output.args[0]

    def held() -> set[str]:
        return {k for layer in found for k in layer.parameters}

    def add(made: Callable[[], Effective | None]) -> None:
        try:
            layer = made()
        except FOREIGN as error:  # an operation of the way back that has no derivative, say
            failed.append(error)
            return
        if layer is not None and keep(layer) and held().isdisjoint(layer.parameters):
            found.append(layer)

    given, (whole_ends, hidden) = tuple(dict.fromkeys(_sources(graph, output))), _stretches(graph, output)
    for one, end in (*([] if output in given else [(given, output)]), *whole_ends):
        add(partial(_nearest, graph, one, end, keep))
    if all(layer.output is not output for layer in found):
        add(partial(output_layer, graph, output))
    reading = [layer for layer in found if layer.given == (graph.inputs,)]
    whole = reading and all(layer.moves or set(layer.used) == set(layer.parameters) for layer in reading)
    slid = any(t.activation and t.activation.windows for g in graph.first for p in g.products for t in p.terms)
    with suppress(*FOREIGN):  # a network that does not run on other examples
        probed = None if whole or slid else probed_layer(graph)
        if probed is not None and keep(probed):
            others = [layer for layer in found if layer not in reading]
            if not any(set(layer.parameters) & set(probed.parameters) for layer in others):
                found = [*(layer for layer in found if not set(layer.parameters) & set(probed.parameters)), probed]
        computed = [one for one in computed_weights(graph, held()) if keep(one)]
        theirs = {k for one in computed for k in one.parameters}
        for one, end in hidden:
            if not graph.colours.parameters[end] - graph.colours.parameters[one[0]] <= theirs:
                add(partial(_hidden, graph, one, end))
        failed.clear()
        return (*found, *(one for one in computed if held().isdisjoint(one.parameters)))
    if failed:
        raise failed[0]
    return tuple(found)


def _stretches(graph: Graph, output: fx.Node) -> tuple[list[Stretch], list[Stretch]]:
    """Stretches that begin at the model's input, the whole ones first, and such as begin at a tensor inside that no
    weight reads as it is."""
    ends, parted, hidden = list[Stretch](), list[Stretch](), list[Stretch]()
    read = cache(partial(is_read, graph))
    for node in graph.trace.code.graph.nodes:
        base, own = graph.bases.get(node), node in graph.forward and graph.colours.parameters[node]
        if not own or node is output or base is None or base is node:
            continue
        users = [u for u in node.users if u in graph.forward]
        whole = any(graph.bases.get(u) is not base for u in users)
        if base is not graph.inputs:
            hidden += [((base,), node)] if whole and not read(base) else []
        elif whole:
            ends.append(((base,), node))
        elif len(users) > 1 and by_rows(graph, node) and enough(graph, base, node):
            parted.insert(0, ((base,), node))
    return [*ends, *parted], hidden


def _nearest(
    graph: Graph, given: tuple[fx.Node, ...], end: fx.Node, keep: Callable[[Effective], bool]
) -> Effective | None:
    """The layer up to an end, or the longest part of it that is to be kept."""
    layer = effective_layer(graph, given, end)
    if layer is not None and keep(layer) and (layer.whole or given == (graph.inputs,)):
        return layer
    if layer is None:
        return None
    if given == (graph.inputs,):
        inside = ancestors(end, lambda n: graph.bases.get(n) is graph.inputs and bool(graph.colours.parameters[n]))
        order = [n for n in graph.trace.code.graph.nodes if n in inside and n is not end]
        shorter = (effective_layer(graph, given, n) for n in order[: -PARTS - 1 : -1])
        return next((part for part in shorter if part is not None and keep(part)), None)
    bodies = [(p, p.product.activation.node) for p in layer.parts if p.product.activation is not None]
    mixed = any(p.scale is None for p, _ in bodies)  # else a scale in front stays there
    if len(bodies) == 1 and not (mixed and keep(layer)):
        nearer = effective_layer(graph, (bodies[0][1],), end)
        layer = nearer if nearer is not None and nearer.whole else layer
    return layer if keep(layer) else None


def _hidden(graph: Graph, given: tuple[fx.Node, ...], end: fx.Node) -> Effective | None:
    """The layer from a tensor inside to another one."""
    shown = list[Effective | None]()
    with suppress(*FOREIGN):  # of complex numbers, say
        shown += shown_layers(graph, given, end)
    return next(filter(None, shown), None) if shown else hidden_layer(graph, given, end)


def _sources(graph: Graph, node: fx.Node) -> list[fx.Node]:
    """The tensors of which a node is an affine map."""
    base = graph.bases.get(node)
    if base is not node and base is not None:
        return [base]
    if operation(node) in ("add", "sub", "cat") and node is not graph.inputs:
        return [s for n in node.all_input_nodes if n in graph.colours.data for s in _sources(graph, n)]
    return [node]


def _is_plain(graph: Graph, layer: Effective) -> bool:
    """Whether a layer is an `nn.Linear` that is given what the layer reads, as it is."""
    body = next((p for p in layer.parts if p.right is not None), None)
    name = None if body is None else body.product.weight
    if body is None or body.right is None or body.scale is None or not layer.whole or name is None:
        return False
    in_order = bool((body.scale == 1).all()) and torch.equal(*body.right.indices())
    owner, _, last = name.rpartition(".")
    own = type(graph.task.module.get_submodule(owner)) is nn.Linear and last == "weight"
    own &= all(other.rpartition(".")[0] == owner for other in layer.parameters)
    output = graph.trace.outputs
    ends = output is not None and graph.same[output] is graph.same[layer.output]
    return in_order and own and (ends or layer.given == (graph.inputs,))


def _same(task: Task, form: NormalForm) -> bool:
    """Whether both have the same loss and the same gradient on random examples."""
    batch = probe(task, 2)

    def gradient(of: Task) -> tuple[Tensor, Tensors]:
        own = {k: p.detach().requires_grad_() for k, p in of.parameters.items()}
        with torch.enable_grad():
            value = of(own, of.buffers, batch, torch.Generator().manual_seed(0))[0]  # the same draws for both
        slopes = torch.autograd.grad(value, list(own.values()), allow_unused=True, materialize_grads=True)
        return value.detach(), dict(zip(own, slopes, strict=True))

    (one, first), (other, second) = gradient(task), gradient(form.task)
    moved = form.tensors(first)
    if {n: t.shape for n, t in moved.items()} != {n: t.shape for n, t in second.items()}:
        return False
    sizes = {n: max(float(moved[n].abs().max()), float(second[n].abs().max())) for n in moved}
    nothing = NOTHING * max(sizes.values(), default=0.0)
    alike = (float((moved[n] - second[n]).abs().max()) <= CLOSE * size + nothing for n, size in sizes.items())
    return bool((one - other).abs() <= CLOSE * one.abs()) and all(alike)
