"""Equations and unknowns of a model by layer, the highest rank that its Jacobian can have, and the numerical one."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, fx
from torch.func import jvp, vjp, vmap

from leakgauge.clients import FedSGD, raw_update
from leakgauge.defenses import NoDefense
from leakgauge.draws import Draws
from leakgauge.errors import require
from leakgauge.task import Batch, Task, cross_entropy
from leakgauge.tensors import BLOCK, entries, forward_mode
from leakgauge.view.graph import Graph, OuterSum, followed
from leakgauge.view.trace import probe


def low_rank(rows: int, columns: int, rank: int) -> int:
    """Dimension of the matrices of at most that rank: r·(rows + columns − r)."""
    r = min(rows, columns, rank)
    return r * (rows + columns - r)


def highest_rank(
    *, rows: int, columns: int, hidden: int, inputs: int, later: int, batch: int, free: int = 0, bias: bool = True
) -> int:
    """The largest rank that the Jacobian of an update can have, for a network that reads its input in one layer.

    Let z be what that layer gives for the batch. Everything but ∂L/∂W of it depends on the examples through z alone:
    the later layers' gradients (`later` equations), ∂L/∂b, and also ∂L/∂W·Wᵀ = Σ δ zᵀ, which is rows·min(rows,
    columns) numbers of ∂L/∂W. So at most R = min(B·q + free, later + bias + rows·min(rows, columns))
    directions are seen through z, and the rest of ∂L/∂W adds rows·(columns − min(rows, columns)).

    Derived here. For a linear layer it is n₁·(d + B − n₁) below n₁ = B (and n₁ ≤ d), so that (B − n₁)·(d − n₁)
    directions stay open: n₁ ≥ B is needed. That it is enough is numerical only. `free`: unknowns besides the examples,
    B·(n₂ − 1) for soft labels.
    """
    repeated = rows * min(rows, columns)
    seen = min(batch * hidden + free, later + rows * bias + repeated)
    return min(batch * inputs + free, seen + rows * columns - repeated)


SUMS_TO_ZERO = 1e-5  # share of the error signals' length that their sum over the outputs of a soft-max may have


@dataclass(frozen=True, kw_only=True)
class LayerCount:
    """What one layer's gradient gives, and what enters the layer."""

    name: str  #: of the module that holds its weight, or of the weight
    kind: str  #: ``linear`` or ``convolution``; empty for parameters that are used in other ways.
    equations: int
    #: of these at most so many say something of their own, as ∂L/∂[W b] is a sum of one rank-one term an example and
    #: position
    independent: int
    unknowns: int  #: numbers of the batch that enter it; for the first layer the examples themselves.


@dataclass(frozen=True, kw_only=True)
class ModelCount:
    """All layers in the order in which they run."""

    layers: tuple[LayerCount, ...]
    gate: bool  #: whether the input reaches the loss through the first layer alone
    unknowns: int  #: numbers in the examples, and B·(n₂ − 1) for soft labels
    bound: int  #: a rank that the update's Jacobian cannot exceed

    @property
    def equations(self) -> int:
        return sum(layer.equations for layer in self.layers)


Counted = tuple[LayerCount, tuple[int, ...], int, bool]
"""A layer, (groups, outputs, inputs) of its weight, positions of an example, and whether it has a bias."""


def _counted(graph: Graph, product: OuterSum, shifts: tuple[OuterSum, ...], batch: int) -> Counted | None:
    """A weight that one tensor is multiplied with; `None` of any other."""
    weight, activation = product.weight, product.activation
    if weight is None or activation is None or activation.hot or len(product.terms) > 1 or product.shape[0] > 1:
        return None
    signal, (_, outputs, inputs) = product.terms[0].signal, product.shape
    biased = any(s.weight and s.terms[0].signal.node is signal.node and s.shape[1] == outputs for s in shifts)
    rows = graph.rows(product.terms[0], signal, graph.task, probe(graph.task, 2))[0]
    total = rows.sum(1).abs().max() <= SUMS_TO_ZERO * rows.abs().sum(1).max()
    final = graph.task.loss is cross_entropy and len(rows) == 2 and bool(total)
    equations, positions = outputs * (inputs + biased), len(rows) // 2
    owner, _, last = weight.rpartition(".")
    layer = LayerCount(
        name=(owner or "(model)") if last == "weight" else weight,
        kind="convolution" if activation.windows else "linear",
        equations=equations,
        independent=min(equations, low_rank(outputs - final, inputs + biased, batch * positions)),
        unknowns=batch * (activation.node.meta["val"].numel() // graph.trace.examples),
    )
    return layer, product.shape, positions, biased


def count_layers(task: Task, batch: int, *, soft_labels: bool = False) -> ModelCount:
    """Counts in the graph of the gradient. Parameters that are used several times, or that no tensor is multiplied
    with, are given all their entries."""
    graph = followed(task)
    layers, first = _layers(graph, batch) if isinstance(graph, Graph) else ([], None)
    missing = sum(v.numel() for v in task.parameters.values()) - sum(layer.equations for layer in layers)
    if missing:
        layers.append(LayerCount(name="others", kind="", equations=missing, independent=missing, unknowns=0))
    free = batch * (task.data.classes - 1) if soft_labels else 0  # they sum to one
    inputs = int(torch.Size(task.data.shape).numel())
    bound = min(batch * inputs + free, sum(layer.independent for layer in layers))
    if first is not None:
        layer, (_, rows, columns), positions, biased = first
        hidden, later = rows * positions, sum(other.independent for other in layers) - layer.independent
        sharper = highest_rank(
            rows=rows, columns=columns, hidden=hidden, inputs=inputs, later=later, batch=batch, free=free, bias=biased
        )
        bound = min(bound, sharper)
    return ModelCount(layers=tuple(layers), gate=first is not None, unknowns=batch * inputs + free, bound=bound)


def _layers(graph: Graph, batch: int) -> tuple[list[LayerCount], Counted | None]:
    """Layers in the order of the network, and the one that all of the input goes through."""
    every = [(group, _counted(graph, p, group.shifts, batch)) for group in graph.groups for p in group.products]
    readers = [layer for group, layer in every if graph.inputs in group.hidden]
    gate = readers[0] if len(readers) == 1 and _ends(graph) == 1 else None
    return [layer[0] for _, layer in every if layer is not None], gate


def _ends(graph: Graph) -> int:
    """Affine maps of the input, parameters in them or not, that anything else goes on from."""

    def goes_on(node: fx.Node) -> bool:
        after = [u for u in node.users if u in graph.forward]
        return node is graph.trace.outputs or any(graph.bases.get(u) is not graph.inputs for u in after)

    own = {graph.same[n] for n in graph.forward if graph.bases.get(n) is graph.inputs and goes_on(n)}
    return len(own) + (0 if all(graph.colours.parameters[n] for n in own) else 1)


DENSE = 50_000_000  # entries of a matrix that is formed: 400 MB in float64, and four times that while it is decomposed
CHUNK = 2_000_000  # entries that one group of products may take or give


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Numerical rank of ∂(update)/∂(batch) at one point."""

    rank: int
    unknowns: int  #: numbers in the batch, and B·(n₂ − 1) more where labels are soft and unknown
    equations: int  #: numbers in the update
    conditioning: float | None  #: σ_rank / σ₁: how faint the faintest thing is that the update says


def random_batch(task: Task, examples: int, generator: torch.Generator) -> Batch:
    """Examples uniform over the data's range, labels uniform over the classes."""
    require(examples > 0, "batch", f"is {examples}", "give a positive number of examples")
    data = task.data
    raw = torch.rand((examples, *data.shape), generator=generator, dtype=torch.float64)
    return Batch(data.low + data.range * raw, torch.randint(data.classes, (examples,), generator=generator))


def update_rank(task: Task, batch: Batch, generator: torch.Generator, *, soft_labels: bool = False) -> Rank | None:
    """Rank of the Jacobian of the update with respect to the examples (and soft labels), in float64, at `batch`;
    `None` where that matrix has more than `DENSE` entries.

    It is formed by JVPs or VJPs, and its singular values are all computed: they count from σ₁ · (longer side) ·
    2.2e-16. The rank is local: on ReLU networks it belongs to the linear piece that `batch` lies in.

    `batch` has class indices, or soft labels where `soft_labels`; given indices and `soft_labels`, the point is a
    random soft label. Raises `InputError`: the model draws at random, or gives an update that is not finite.
    """
    drops = "drops units at random, so its update is no function of the batch"
    require(not task.stochastic, "model", drops, "use mode: eval")
    require(len(batch) > 0, "batch", "is empty", "give at least one example")
    function, point = _update_of(task, batch, generator, soft_labels)
    equations, unknowns = entries(task.parameters), point.numel()
    if equations * unknowns > DENSE:
        return None
    short, long = sorted((equations, unknowns))
    pull = vjp(function, point)[1] if unknowns > equations else None
    product = vmap(
        lambda v: jvp(function, (point,), (v,))[1] if pull is None else pull(v)[0], chunk_size=max(1, CHUNK // long)
    )
    with forward_mode():
        tall = product(torch.eye(short, dtype=torch.float64)).detach().T
    if tall.shape[0] > 2 * tall.shape[1]:
        tall = torch.linalg.qr(tall, mode="r")[1]
    values = torch.linalg.svdvals(tall)
    threshold = float(values[0]) * long * torch.finfo(torch.float64).eps
    weights = "check its weights and the data's range"
    require(math.isfinite(threshold), "model", "gives an update that is not finite", weights)
    rank = int((values > threshold).sum())
    faintest = float(values[rank - 1] / values[0]) if rank else None
    return Rank(rank=rank, unknowns=unknowns, equations=equations, conditioning=faintest)


def _update_of(
    task: Task, batch: Batch, generator: torch.Generator, soft_labels: bool
) -> tuple[Callable[[Tensor], Tensor], Float[Tensor, " unknowns"]]:
    task = task.to(torch.empty((), dtype=torch.float64))
    inputs, draws = batch.inputs.double(), Draws.sample(generator)

    def flat_update(inputs: Tensor, labels: Tensor) -> Tensor:
        update = raw_update(task, FedSGD(), Batch(inputs, labels), draws, NoDefense())[0]
        return torch.cat([tensor.flatten() for tensor in update.values()])

    if not soft_labels:
        return lambda flat: flat_update(flat.view_as(inputs), batch.labels), inputs.flatten()
    logits = torch.randn((len(inputs), task.data.classes), generator=generator, dtype=torch.float64)
    labels = logits.softmax(1) if batch.labels.ndim == 1 else batch.labels.double()
    cut = inputs.numel()

    def with_labels(flat: Tensor) -> Tensor:
        # All but the last probability: the last one follows, and is no unknown.
        free = flat[cut:].view(len(inputs), -1)
        soft = torch.cat([free, 1 - free.sum(1, keepdim=True)], 1)
        soft = torch.nn.functional.pad(soft, (0, task.outputs - soft.shape[1]))
        return flat_update(flat[:cut].view_as(inputs), soft)

    return with_labels, torch.cat([inputs.flatten(), labels[:, :-1].flatten()])


SHOWN = 1 << 16  # entries by which values are taken for rounded


def gradient_rank(gradient: Tensor) -> int:
    """Singular values above the rounding of the gradient's own type.

    Those of a matrix A of less than float64 are the roots of AᵀA's eigenvalues, summed in float64 a block at a time:
    they are off by some 1e-8 of the largest, far below the rounding of float32, and take no copy of A.
    """
    matrix = gradient.detach()
    largest = max(float(matrix.max()), -float(matrix.min()))
    if largest == 0:
        return 0
    rounding = torch.finfo(gradient.dtype).eps * max(matrix.shape)
    if gradient.dtype is torch.float64:
        values = torch.linalg.svdvals(matrix / largest)
        return int((values > rounding * values[0]).sum())
    long = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    product = torch.zeros((long.shape[1],) * 2, dtype=torch.float64, device=long.device)
    for block in long.split(max(1, BLOCK // long.shape[1])):
        rows = block.double() / largest
        product.addmm_(rows.T, rows)
    squares = torch.linalg.eigvalsh(product)
    return int((squares > rounding**2 * squares[-1]).sum())


def rounded_levels(gradient: Tensor) -> int:
    """How many magnitudes there are but zero, where the values are a few whole multiples of one step, as signs and
    quantisers leave them; 0 where they are not. Judged by the first `SHOWN` entries in 2¹⁴ths of the largest, for steps
    of at least 32 of those."""
    sizes = gradient.detach().flatten()[:SHOWN].double().abs()
    largest = float(sizes.max())
    if largest == 0:
        return 0
    levels = (sizes / largest * 2**14).round().unique()
    levels = levels[levels > 1]
    step = float(torch.cat([levels[:1], levels.diff()]).min())
    if step < 32 or len(levels) * 4 > len(sizes):
        return 0
    step = 2**14 / round(2**14 / step)
    off = (levels / step - (levels / step).round()).abs() * step
    return len(levels) if float(off.max()) <= 2 else 0
