"""What a network's gradient is made of is found whatever words the network is written in."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from leakgauge import models
from leakgauge.batch import Batch, DataSpec
from leakgauge.task import Mode, Task
from leakgauge.view.axes import Atom, Dims, cut
from leakgauge.view.derivatives import _names_only
from leakgauge.view.graph import Graph, answers_as, followed, traced
from leakgauge.view.products import Term
from leakgauge.view.trace import probe

INPUTS, UNITS, CLASSES = 16, 12, 4
FLAT = DataSpec((INPUTS,), CLASSES)
Words = Callable[["Spelt", Tensor], Tensor]


class Spelt(nn.Module):
    """A perceptron whose first layer is written in some words."""

    def __init__(self, words: Words, shape: tuple[int, ...] = (UNITS, INPUTS)) -> None:
        super().__init__()
        self.words = words
        self.w, self.b = nn.Parameter(torch.randn(shape) / 4), nn.Parameter(torch.randn(UNITS) / 10)
        self.head = nn.Linear(UNITS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.words(self, x.flatten(1)).relu())
        return out


class Product(torch.autograd.Function):
    """A linear layer with a gradient of its own."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return x @ w.t() + b

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]  # noqa: ARG004
        ctx.save_for_backward(inputs[0], inputs[1])

    @staticmethod
    def backward(ctx, g):  # type: ignore[no-untyped-def]
        x, w = ctx.saved_tensors
        return g @ w, g.t() @ x, g.sum(0)


def decided(s: Spelt, x: Tensor) -> Tensor:
    h = F.linear(x, s.w, s.b)
    return h * 2 if float(h.detach().abs().max()) < 0 else h


def halves(s: Spelt, x: Tensor) -> Tensor:
    return x[:, :8] @ s.w[:, :8].T + x[:, 8:] @ s.w[:, 8:].T + s.b


def written(x: Tensor) -> Tensor:
    """As circular padding writes what it is given."""
    out = x.new_empty(x.shape)
    out[:, :8], out[:, 8:] = x[:, :8], x[:, 8:]
    return out


def added(s: Spelt, x: Tensor) -> Tensor:
    """A bias, in place, through a view in another order: the way back writes all of a tensor at once."""
    h = F.linear(x, s.w).view(len(x), -1, 2)
    h.transpose(1, 2).add_(s.b.view(-1, 2).T).mul_(1.0)
    return h.flatten(1)


PLAIN: dict[str, Words] = {
    "F.linear": lambda s, x: F.linear(x, s.w, s.b),
    "a product plus a bias": lambda s, x: s.b + x @ s.w.T,
    "the other way round": lambda s, x: (s.w @ x.T).T + s.b,
    "einsum": lambda s, x: torch.einsum("oi,ni->no", s.w, x) + s.b,
    "inner": lambda s, x: torch.inner(x, s.w) + s.b,
    "tensordot": lambda s, x: torch.tensordot(x, s.w, dims=([1], [1])) + s.b,
    "entries and a sum": lambda s, x: (x[:, None] * s.w).sum(-1) + s.b,
    "baddbmm": lambda s, x: torch.baddbmm(
        s.b.expand(len(x), 1, UNITS), x[:, None], s.w.t().expand(len(x), INPUTS, UNITS)
    )[:, 0],
    "example by example": lambda s, x: torch.stack([torch.mv(s.w, r) + s.b for r in x]),
    "vmap": lambda s, x: torch.vmap(lambda r: s.w @ r + s.b)(x),
    "a small convolution": lambda s, x: F.conv2d(x[..., None, None], s.w[..., None, None], s.b).flatten(1),
    "in place": lambda s, x: F.linear(x, s.w).add_(s.b),
    "in place through a view": added,
    "by slices": lambda s, x: F.linear(written(x), s.w, s.b),
    "a function of one's own": lambda s, x: Product.apply(x, s.w, s.b),
    "checkpointed": lambda s, x: checkpoint(lambda z: F.linear(z, s.w, s.b).relu(), x, use_reentrant=False),
    "if a value says so": decided,
    "a sign": lambda s, x: F.linear(-x, s.w, s.b),
}
MAPPED: dict[str, Words] = {
    "halves": halves,
    "scaled": lambda s, x: F.linear(x, s.w * 2, s.b),
    "chunks": lambda s, x: torch.cat([F.linear(x, c) for c in s.w.chunk(3)], 1) + s.b,
    "twice": lambda s, x: F.linear(F.linear(x, s.w, s.b) @ s.w, s.w, s.b),
    "normalised": lambda s, x: F.linear(x, F.normalize(s.w), s.b),
}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = x.view(-1, 4, 4)
        out: Tensor = self.head(self.attention(h, h, h, need_weights=False)[0].flatten(1))
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.cells(x.view(-1, 4, 4))[0][:, -1])
        return out


class Adapted(nn.Module):
    def __init__(self, merged: bool) -> None:
        super().__init__()
        self.base, self.head, self.merged = nn.Linear(INPUTS, UNITS), nn.Linear(UNITS, CLASSES), merged
        self.base.requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(3, INPUTS) / 4), nn.Parameter(torch.randn(UNITS, 3) / 4)

    def forward(self, x: Tensor) -> Tensor:
        merged = F.linear(x, self.base.weight + self.b @ self.a, self.base.bias)
        out: Tensor = self.head((merged if self.merged else self.base(x) + x @ self.a.T @ self.b.T).relu())
        return out


class Looked(nn.Module):
    """Rows of a table, looked up in some words."""

    def __init__(self, words: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.table, self.head, self.words = nn.Parameter(torch.randn(9, 5)), nn.Linear(5, CLASSES), words

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.words(x[:, :6].long(), self.table).mean(1))
        return out


LOOKED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "F.embedding": F.embedding,
    "an index": lambda ids, t: t[ids],
    "gather": lambda ids, t: torch.gather(t, 0, ids.reshape(-1, 1).expand(-1, 5)).view(*ids.shape, 5),
    "ones and zeros": lambda ids, t: F.one_hot(ids, 9).to(t) @ t,
    "index_select": lambda ids, t: torch.index_select(t, 0, ids.flatten()).view(*ids.shape, 5),
    "bags": lambda ids, t: F.embedding_bag(ids, t, mode="mean").unsqueeze(1),
}


class Volumes(nn.Module):
    """A small U-Net over volumes, whose answer is averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.inner = nn.Conv3d(1, 4, 3, 2, 1), nn.Conv3d(4, 8, 3, 2, 1, dilation=1)
        self.up, self.out = nn.ConvTranspose3d(8, 4, 4, 2, 1), nn.ConvTranspose3d(8, CLASSES, 4, 2, 1)
        self.norm = nn.InstanceNorm3d(4, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        one = F.relu(self.norm(self.down(x)))
        both = torch.cat([one, F.relu(self.up(F.relu(self.inner(one))))], 1)
        out: Tensor = self.out(both).mean((2, 3, 4))
        return out


class Text(nn.Module):
    """Two blocks of a decoder whose head is its table."""

    def __init__(self, width: int = 32, blocks: int = 2, vocabulary: int = 60, length: int = 8) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(length, width) / 50)
        layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True) for _ in range(blocks)]
        self.blocks = nn.ModuleList(layers)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.table(ids) + self.places
        mask = torch.triu(torch.full((ids.shape[1],) * 2, float("-inf"), dtype=h.dtype), 1)
        for block in self.blocks:
            h = block(h, src_mask=mask)
        return h[:, -1] @ self.table.weight.T


IMAGES, SEQUENCES = DataSpec((3, 32, 32), 10), DataSpec((8,), CLASSES, 0.0, 59.0, vocabulary=60)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], DataSpec, Mode]] = {
    "attention": (Attention, FLAT, Mode.EVAL),
    "recurrent": (Recurrent, FLAT, Mode.EVAL),
    "adapted": (lambda: Adapted(False), FLAT, Mode.EVAL),
    "adapted, merged": (lambda: Adapted(True), FLAT, Mode.EVAL),
    "weight_norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(INPUTS, 9)), nn.ReLU(), nn.Linear(9, 4)),
        FLAT,
        Mode.EVAL,
    ),
    "groups": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (4, 4)), nn.Conv1d(4, 6, 2, 2, 1, 1, 2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 4)
        ),
        FLAT,
        Mode.EVAL,
    ),
    "LeNet": (lambda: models.lenet(classes=10), IMAGES, Mode.EVAL),
    "ResNet-18": (lambda: models.resnet18(classes=10, width=8), IMAGES, Mode.EVAL),
    "ResNet-18 in train mode": (lambda: models.resnet18(classes=10, width=8), IMAGES, Mode.TRAIN),
    "volumes": (Volumes, DataSpec((1, 16, 16, 16), CLASSES), Mode.EVAL),
    "text": (Text, SEQUENCES, Mode.EVAL),
}


def graph_of(module: nn.Module, data: DataSpec, mode: Mode = Mode.EVAL) -> Graph:
    return traced(Task.of(module.double(), data, mode=mode))


def remade_term(term: Term, signal: Tensor, activation: Tensor | None, sized: Callable[[int], int]) -> Tensor:
    """The sum of outer products, in its own axes, from the values of both operands."""

    def atoms(dims: Dims) -> list[Atom]:
        return [a for axis in cut(dims) for a in axis]

    operands = [o for o in (term.signal, term.activation) if o is not None]
    order = tuple(dict.fromkeys(a for o in operands for a in atoms(o.dims)))
    letters = {a: k for k, a in enumerate(order)}
    parts: list[object] = []
    for operand, value in zip(operands, (signal, activation), strict=False):
        own = tuple(a for a in order if a in atoms(operand.dims))
        parts += [operand.matrix(value, own, sized).to(signal.dtype), [letters[a] for a in own]]
    found = torch.einsum(*parts, [letters[a] for a in atoms(term.dims)])
    return found.reshape([math.prod(a.length for a in axis) for axis in cut(term.dims)])


def remade(graph: Graph, batch: Batch) -> dict[str, Tensor]:
    """The gradients of a batch put together from the error signals and activations of the products alone."""
    traced_with, made = graph.trace.examples, dict[fx.Node, Tensor]()
    operands = [o for p in graph.products for t in p.terms for o in (t.signal, t.activation) if o is not None]
    nodes = list(dict.fromkeys(o.node for o in operands))
    values = dict(zip(nodes, graph.trace.evaluate(nodes, graph.task, batch), strict=True))

    def sized(length: int) -> int:
        return length if length % traced_with else length // traced_with * len(batch)

    for p in graph.products:
        pairs = [(t, values[t.signal.node], t.activation and values[t.activation.node]) for t in p.terms]
        made[p.node] = torch.stack([remade_term(*pair, sized) for pair in pairs]).sum(0)
    wanted = {name: g for name, g in graph.trace.gradients.items() if g is not None}
    return dict(zip(wanted, graph.trace.evaluate(list(wanted.values()), graph.task, batch, given=made), strict=True))


def remade_as_autograd(graph: Graph, examples: int) -> None:
    task, batch = graph.task, probe(graph.task, examples)
    leaves = {k: v.clone().requires_grad_() for k, v in task.parameters.items()}
    loss = task(leaves, task.buffers, batch, torch.Generator().manual_seed(0))[0]
    truth = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    made = remade(graph, batch)
    largest = max(float(t.abs().max()) for t in truth if t is not None)
    for (name, value), own in zip(made.items(), (t for t in truth if t is not None), strict=True):
        torch.testing.assert_close(value, own, rtol=1e-9, atol=1e-12 * largest, msg=lambda m, n=name: f"{n}: {m}")


def test_the_same_layer_in_other_words_is_the_same_product() -> None:
    for name, words in PLAIN.items():
        torch.manual_seed(1)
        graph = graph_of(Spelt(words), FLAT)
        (group,) = graph.first
        (product,) = group.products
        assert (product.weight, product.shape, graph.unexplained) == ("w", (1, UNITS, INPUTS), ()), name
        remade_as_autograd(graph, graph.trace.examples)


@pytest.mark.parametrize("name", MAPPED)
def test_a_weight_that_is_computed_has_products_behind_a_map(name: str) -> None:
    torch.manual_seed(1)
    graph = graph_of(Spelt(MAPPED[name]), FLAT)
    (group,) = graph.first
    assert all(p.parameters == ("w",) and p.weight is None for p in group.products)
    assert graph.unexplained == ()
    remade_as_autograd(graph, 3)


@pytest.mark.parametrize("name", LOOKED)
def test_rows_of_a_table_are_a_product_with_ones_and_zeros(name: str) -> None:
    torch.manual_seed(1)
    graph = graph_of(Looked(LOOKED[name]), DataSpec((INPUTS,), CLASSES, 0.0, 8.0))
    (table,) = (p for p in graph.products if "table" in p.parameters)
    assert table.shape == (1, 5, 9)
    remade_as_autograd(graph, 3)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_remade_from_products_are_those_of_autograd(name: str) -> None:
    torch.manual_seed(1)
    make, data, mode = NETWORKS[name]
    graph = graph_of(make(), data, mode)
    assert graph.unexplained == ()
    remade_as_autograd(graph, 3)


def test_products_that_read_one_tensor_form_a_group() -> None:
    graph = graph_of(models.resnet18(classes=10, width=8), IMAGES)
    groups = {tuple(sorted(p.weight or "" for p in g.products)) for g in graph.groups}
    assert ("5.conv1.weight", "5.shortcut.0.weight") in groups


def test_what_a_group_reads_of_its_tensor_remakes_the_gradient() -> None:
    torch.manual_seed(1)
    graph = graph_of(NETWORKS["groups"][0](), FLAT)
    (group,) = graph.first
    (product,) = group.products
    batch = probe(graph.task, 5)
    rows = graph.read(product, batch.inputs)
    value = graph.trace.evaluate([product.node], graph.task, batch)[0]
    signal = graph.trace.evaluate([product.terms[0].signal.node], graph.task, batch)[0]
    signals = signal.view(5, 2, 3, -1).permute(1, 2, 0, 3).flatten(2)  # groups, outputs, examples and places
    torch.testing.assert_close(product.matrices(value), signals @ rows)
    torch.testing.assert_close(product.tensor(product.matrices(value)), value)


@pytest.mark.slow
def test_large_networks_take_seconds() -> None:
    began = time.process_time()
    cases = (
        (models.vgg16(classes=10), IMAGES),
        (Text(768, 12, 50257, 16), DataSpec((16,), 10, 0, 9, vocabulary=50257)),
    )
    for network, data in cases:
        assert traced(Task.of(network, data)).unexplained == ()
    assert time.process_time() - began < 60


class Halved(nn.Module):
    """Writes its input in two pieces that meet where no example ends."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(60, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out = x.new_empty(x.shape)
        out[:, :47], out[:, 47:] = x[:, :47], 2 * x[:, 47:]
        found: Tensor = self.head(out)
        return found


def test_a_place_that_is_written_to_is_no_number_of_examples() -> None:
    task = Task.of(Halved(), DataSpec((60,), CLASSES))
    made = traced(task).trace
    assert made.examples == 47
    batch, outputs = probe(task, 2), made.outputs
    assert outputs is not None
    (found,) = made.evaluate([outputs], task, batch)
    assert torch.allclose(found, task.module(task.data.normalise(batch.inputs)), atol=1e-6)


def test_memory_that_is_not_set_is_compared_with_nothing() -> None:
    """A padding that goes round is written into memory that may hold an earlier call's values."""
    layers = nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(64, 5)
    for _ in range(4):
        graph = traced(Task.of(nn.Sequential(*layers), DataSpec(shape=(3, 4, 4), classes=5)))
        assert graph.trace.outputs in graph.colours.data
        assert graph.inputs in graph.forward


ALONE: dict[str, Callable[[Tensor], Tensor]] = {
    "turned and turned back": lambda x: x.view(-1, 4, 4).rot90(1, (1, 2)).rot90(-1, (1, 2)).flatten(1),
    "taken by places": lambda x: torch.take(x, torch.arange(x.numel()).view(x.shape)),
    "the real part of a complex row": lambda x: torch.complex(x, torch.zeros_like(x)).flatten(1).real,
    "a lower triangle": lambda x: x.view(-1, 4, 4).tril().flatten(1),
    "a bend": lambda x: torch.where(x > 1, x, 2 * x - 1),
    "cut at a bound": lambda x: x.clamp(-8, 8),
    "filled where it is no number": lambda x: x.nan_to_num(nan=1.0, posinf=None, neginf=None),
}
BENT = {"a bend", "cut at a bound", "filled where it is no number"}


@pytest.mark.parametrize(("name", "straight"), [(k, k not in BENT) for k in ALONE])
def test_an_operation_is_affine_where_random_numbers_show_it(name: str, straight: bool) -> None:
    """Whatever it is called: the next layer reads what the tensor before it shows."""

    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(INPUTS, 16), nn.Linear(16, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(ALONE[name](self.first(x).exp()))
            return out

    graph = traced(Task.of(Between(), FLAT))
    read = {p.weight: group.hidden[0] for group in graph.groups for p in group.products}["head.weight"]
    assert (read.target is torch.ops.aten.exp.default) is straight


def counted(x: Tensor) -> Tensor:
    """Another sum of squares of cosines for each number of examples, which comes to one."""
    k, j = torch.arange(len(x) + 1)[:, None], torch.arange(len(x))
    code = (torch.cos(torch.pi * (j + 0.5) * k / (len(x) + 1)) * (2 / (len(x) + 1)) ** 0.5).to(x)
    return torch.cat([code[:1] / 2**0.5, code[1:]])


def aged(s: Spelt, x: Tensor) -> Tensor:
    """By the last of some years, of which there are by chance as many as examples are traced with."""
    return F.linear(x, s.w, s.b) * x.new_ones(47).cumsum(0)[40] / 41


@pytest.mark.parametrize("examples", [1, 5, 60, 101])
def test_what_holds_for_one_number_of_examples_runs_with_that_number(examples: int) -> None:
    """A code that is as long as the batch, a length that is by chance the number of examples that is traced with."""
    coded = Spelt(lambda s, x: counted(x).t() @ F.linear(counted(x) @ x, s.w) + s.b)
    for net in (coded, Spelt(aged)):
        graph = traced(Task.of(net, FLAT))
        batch = probe(graph.task, examples)
        assert graph.trace.outputs is not None
        (found,) = graph.trace.evaluate([graph.trace.outputs], graph.task, batch)
        assert torch.allclose(found, net(batch.inputs), atol=1e-4)


def test_what_is_summed_over_examples_is_refused_for_other_numbers_of_them() -> None:
    graph = traced(Task.of(Spelt(aged), FLAT))
    assert graph.trace.fixed
    gradient = graph.trace.gradients["w"]
    assert gradient is not None
    with pytest.raises(ValueError, match="summed over examples"):
        graph.trace.evaluate([gradient], graph.task, probe(graph.task, 3))


def by_first_bit(s: Spelt, x: Tensor) -> Tensor:
    """ReLU by the bits of single precision, shifted."""
    h = F.linear(x, s.w, s.b)
    return h * (1 + (h.detach().view(torch.int32) >> 31))


def test_bits_are_those_of_the_type_that_the_network_is_written_in() -> None:
    graph, net = traced(Task.of(Spelt(by_first_bit), FLAT)), Spelt(lambda s, x: F.linear(x, s.w, s.b))
    net.load_state_dict(graph.task.module.state_dict())
    batch = probe(graph.double, 5)
    assert graph.trace.outputs is not None
    (found,) = graph.trace.evaluate([graph.trace.outputs], graph.double, batch)
    assert torch.allclose(found, net.double()(batch.inputs), atol=1e-6)


def test_places_that_are_the_same_whatever_examples_hold_are_no_data() -> None:
    """Of a pool of one, by which its values are put back where they were."""

    def unpooled(s: Spelt, x: Tensor) -> Tensor:
        largest, places = F.max_pool2d(x.view(-1, 1, 4, 4), 1, return_indices=True)
        return F.linear(torch.zeros_like(x).scatter(1, places.flatten(1), largest.flatten(1)), s.w, s.b)

    graph = traced(Task.of(Spelt(unpooled), FLAT))
    (read,) = (group.hidden for group in graph.groups for p in group.products if p.weight == "w")
    assert [node.target for node in read] == [operator.getitem]


def test_a_choice_among_layers_by_what_an_example_holds_is_no_constant() -> None:
    """All that random pictures show may be one choice; those that are dark or have little contrast show the other."""
    chosen = Spelt(lambda s, x: torch.where((x.mean(1, keepdim=True) > 0.06), 1.0, 2.0) * F.linear(x, s.w, s.b))
    graph = traced(Task.of(chosen, FLAT))
    assert not graph.trace.still


class Kind(Tensor):
    """What is given to a layer, by its class."""


class Doubling(Tensor):
    """Layers answer twice as much to it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        made = super().__torch_function__(func, types, args, kwargs)
        return 2 * made.as_subclass(Tensor) if func is F.linear else made


class Bare(Tensor):
    """Functions are not told of it."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class Dispatched(Tensor):
    """Operations do otherwise with it, further in."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


def test_a_class_whose_operations_are_its_own_says_more_than_what_it_holds() -> None:
    assert [_names_only(kind) for kind in (Kind, Bare, Doubling, Dispatched)] == [True, True, False, False]


@pytest.mark.parametrize("kind", [Kind, Bare, Doubling])
def test_a_tensor_of_a_class_of_its_own_is_followed_or_refused(kind: type[Tensor]) -> None:
    """Never taken for a plain one where functions do otherwise with it."""
    torch.manual_seed(0)
    net = Spelt(lambda s, x: F.linear(x.as_subclass(kind), s.w, s.b).as_subclass(Tensor))
    task = Task.of(net, DataSpec((INPUTS,), CLASSES))
    found = followed(task)
    assert isinstance(found, str) or answers_as(
        task, lambda b: found.trace.evaluate([found.trace.outputs], task, b)[0], (3,)
    )
    assert isinstance(found, Graph) or kind is Doubling
    assert type(torch.ones(2).as_subclass(kind)) is kind
