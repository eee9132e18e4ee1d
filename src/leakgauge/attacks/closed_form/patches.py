"""The only example behind an update, where other gradients tell the error signals: patches of a transformer, say; and
what is read of batches whose parts enter attention one by one, brought to what the update says."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.closed_form.places import places_in, read_parts
from leakgauge.attacks.closed_form.proof import NamedLabels, improved, name_labels, simulated, tried_labels
from leakgauge.attacks.closed_form.single import CERTAIN, CHECKS, DEVIATIONS, rounds_entries
from leakgauge.attacks.effort import Effort, SearchingAttack
from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.errors import FOREIGN, said
from leakgauge.observation import Observation, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.view.axes import shape_of
from leakgauge.view.entries import SentTensor, noise_of, one_factor
from leakgauge.view.front import AFFINE
from leakgauge.view.graph import Graph, OuterSum, followed
from leakgauge.view.trace import probe

LARGEST = 1 << 24  # entries of a system that is solved for an input
SAME = 1e-9  # rows that differ by a smaller share are one
DRAWS = 32  # of noise, by which it is seen how far noise moves an input
TOKENS = "a layer that reads the input, at whose output a parameter's gradient shows the error signals place by place"


@ATTACKS.register("patches", needs=f"one example, and {TOKENS}; or attention that parts of examples enter one by one")
@dataclass(frozen=True)
class PatchRead(SearchingAttack):
    """The only example, by least squares, where another gradient shows a first layer's error signals; or a batch whose
    parts enter attention one by one (`read_parts`).

    In a vision transformer the gradient of an additive position embedding is Δ, that of the patch layer's output, and
    the patch layer's weight gradient is G = ΔᵀX: X = lstsq(Δᵀ, G) are the patches. A bias shows Δ of a linear layer.
    Both parameters, and the linear map from the input to X, are found in the graph of the gradient. Certified where the
    simulated update explains the observed one, or where noise of a known deviation explains what is left, and can have
    moved no input by more than half a grey level of 8 bits.

    Of several examples only sums of Δ are shared, which determine no input. A batch is brought to what the update says
    by Gauss–Newton, and certified like the only example.

    Source: ours; kin of APRIL (Lu et al., CVPR 2022)."""

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        """`EXACT` when certified, `CONVERGED` for a read that does not explain the update."""
        found = self._read(observation.origin, effort)
        if found.inputs is None and observation.view is not observation.origin:  # weights that are computed, say
            found = self._read(observation.view, effort)
        return found.with_view(observation)

    def _read(self, observation: Observation, effort: Effort) -> Reconstruction:
        generator = effort.generator
        if isinstance(graph := followed(observation.task), str):
            return Reconstruction.not_applicable(graph)
        known = _known_signals(graph, lambda name: observation.values(name).cpu())
        try:
            if observation.examples != 1:
                return self._by_places(observation, graph, effort)
            layer, found = next(((one, flat) for one in known if (flat := one.solved()) is not None), (None, None))
            if found is None:
                other = self._by_places(observation, graph, effort)
                return other if other.inputs is not None else replace(other, message=f"needs {TOKENS}")
            doubt = None if layer is None else _doubt_by_noise(observation, layer, found)
        except FOREIGN as error:
            return Reconstruction.not_applicable(f"the network cannot be followed for such a batch ({said(error)})")
        inputs = observation.task.data.denormalise(found.view(1, *observation.task.data.shape))
        origin = observation.origin
        return simulated(origin, inputs, name_labels(origin, generator, inputs), generator, doubt=doubt)

    @staticmethod
    def _by_places(observation: Observation, graph: Graph, effort: Effort) -> Reconstruction:
        if observation.examples is None or observation.gradient is None or observation.task.stochastic:
            return Reconstruction.not_applicable(
                "needs the examples' number, one gradient and a net that draws nothing"
            )
        found = read_parts(graph, observation)
        if isinstance(found, str):
            return Reconstruction.not_applicable(found)
        observation = observation.origin
        named, explainer = NamedLabels(None, why="the batch has others"), Explainer.of(observation, effort.generator)
        (inputs, ways), ended = found, None
        if len(inputs) == observation.examples:
            named = tried_labels(observation, inputs)
        with suppress(*FOREIGN):  # a gradient may have no derivative; the read stands
            if named.labels is not None:
                inputs, ended = improved(explainer, inputs, named.labels, effort, ways)
        result = simulated(observation, inputs, named, effort.generator, explainer)
        return result if ended is None or result.status is Status.EXACT else replace(result, status=ended)


@dataclass(frozen=True, eq=False)
class KnownSignals:
    """A weight of which all error signals are known, where there is one example."""

    graph: Graph
    name: str
    sent: Tensor  # its gradient
    signals: Mapping[OuterSum, Float[Tensor, "blocks rows outputs"]]  # of the products that this is made of
    tensors: frozenset[str]  # whose gradients were read, its own among them

    def solved(self) -> Float[Tensor, " d"] | None:
        """The normalised example, flat; `None` where the gradient does not determine it."""
        shape = self.graph.inputs.meta["val"].shape[1:]
        (product, signals), *others = self.signals.items()
        places = None if others or product.weight != self.name else places_in(self.graph, product)
        if places is not None and int((seen := places[:, 0] >= 0).sum()) <= product.shape[1]:
            size = signals.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
            slope = product.matrices(self.sent)[0] / size
            patches = torch.linalg.lstsq((signals[0, seen] / size).T, slope, driver="gelsd").solution
            flat = torch.zeros(shape.numel(), dtype=torch.float64)
            flat[places[seen].flatten()] = patches.flatten()
            return flat
        if self.system is None or not bool(self.sent.any()):
            return None
        (system, shift), size = self.system, self.sent.norm()
        found = torch.linalg.lstsq(system / size, (self.sent.flatten() - shift) / size, driver="gelsd")
        solution: Tensor = found.solution
        return solution if int(found.rank) == shape.numel() else None

    @cached_property
    def system(self) -> tuple[Float[Tensor, "entries d"], Float[Tensor, " entries"]] | None:
        """What each number of the input adds to the weight's gradient, and what is there of zeros; `None` where that is
        too large, or too little for one input."""
        shape = self.graph.inputs.meta["val"].shape[1:]
        if shape.numel() * self.sent.numel() > LARGEST or self.sent.numel() < shape.numel():
            return None
        units = torch.eye(shape.numel() + 1, shape.numel()).roll(1, 0).double()
        shift, *steps = (self.made(step.view(1, *shape)) for step in units)
        return torch.stack([step - shift for step in steps], 1), shift

    def made(self, hidden: Tensor) -> Float[Tensor, " entries"]:
        """The weight's gradient where the input is another and the signals stay."""
        graph, task = self.graph, self.graph.double
        node = graph.trace.gradients[self.name]
        assert node is not None
        held = {p.node: p.tensor(s.mT @ graph.read(p, hidden, task)) for p, s in self.signals.items()}
        return graph.trace.evaluate([node], task, probe(task, 1), given=held)[0].flatten()


def _known_signals(graph: Graph, sent: Callable[[str], Tensor]) -> Iterator[KnownSignals]:
    """Weights of the first layers whose error signals another gradient tells where there is one example."""
    told = [p for p in graph.products if p.activation is None and p.weight and len(p.terms) == 1]
    count, batches = graph.trace.examples, [probe(graph.double, 1, seed) for seed in (0, 1)]
    unclear, reading = set(graph.unexplained), {p for group in graph.first for p in group.products}
    for name in graph.task.parameters:
        found, read = dict[OuterSum, Tensor](), {name}
        products = [p for p in graph.products if name in p.parameters]
        if not products or name in unclear or not all(p in reading and len(p.terms) == 1 for p in products):
            continue
        for product, one in itertools.product(products, told):
            term, node = product.terms[0], one.terms[0].signal.node
            if product not in found and math.prod(shape_of(node)) == count * math.prod(one.shape):
                held = {node: one.signal(sent(one.weight or ""), count)}
                first, other = (graph.rows(term, term.signal, graph.double, batch, held) for batch in batches)
                if torch.equal(first, other):
                    found[product] = first
                    read.add(one.weight or "")
        if len(found) == len(products):
            yield KnownSignals(graph, name, sent(name), found, frozenset(read))


def _doubt_by_noise(observation: Observation, layer: KnownSignals, flat: Float[Tensor, " d"]) -> float | None:
    """How far noise of a known deviation can have moved an input, in shares of the data's range: by `DRAWS` draws.
    `None` beyond half a grey level, where noise does not explain what the read leaves, with `CHECKS` entries beyond one
    an input, where something else changed entries, or tensors by factors of their own, where the gradient is no affine
    map of the input, or where the target is no class."""
    view, data, sent = noise_of(observation), observation.task.data, observation.update.tensors
    if not observation.task.of_classes or view.noise_scale is None or observation.rescaled:
        return None
    system = layer.system if bool(layer.sent.any()) else None
    if system is None or len(system[0]) < len(flat) + CHECKS:
        return None
    entries = {name: SentTensor.of(observation, name, view=view)[...] for name in sent}
    changed = any(one.seen is not None or one.hides or one.grid for one in entries.values())
    if changed or not one_factor(observation, layer.tensors):
        return None
    draw, shape = torch.Generator().manual_seed(0), layer.graph.inputs.meta["val"].shape[1:]
    for other in torch.randn((2, *flat.shape), generator=draw, dtype=torch.float64):
        made = layer.made(other.view(1, *shape))
        if not bool((made - system[1] - system[0] @ other).norm() <= AFFINE * made.norm()):
            return None
    if rounds_entries(observation, sent[layer.name]):
        return None
    point = flat.view(1, *shape)

    def noisy(name: str) -> Tensor:
        one, shape = entries[name], entries[name].value.shape
        rounding = 2 * one.bound.cpu() * (2 * torch.rand(shape, generator=draw, dtype=torch.float64) - 1)
        noise = one.sigma * torch.randn(shape, generator=draw, dtype=torch.float64)
        return observation.values(name).cpu() + noise + rounding

    left, others = layer.sent.flatten() - layer.made(point), list[Tensor]()
    for _ in range(DRAWS):
        other = next(one for one in _known_signals(layer.graph, noisy) if one.name == layer.name)
        others.append(other.sent.flatten() - other.made(point) - left)
    moved = torch.stack(others, 1)
    size = moved.square().mean(1).sqrt()
    most = 2 * DEVIATIONS * size.clamp_min(float(size.median()))  # noise may have long tails
    if not bool((left.abs() <= most).all()) or float(left.norm()) > 2 * float(moved.norm(dim=0).mean()):
        return None
    off = torch.linalg.lstsq(system[0] / layer.sent.norm(), moved / layer.sent.norm(), driver="gelsd")
    spread = float(off.solution.square().mean(1).sqrt().max())
    doubt = DEVIATIONS * spread * max(data.std) / data.range
    return doubt if doubt <= CERTAIN and int(off.rank) == len(flat) else None


def left_of_first(observation: Observation, inputs: Float[Tensor, "n *shape"]) -> float | None:
    """Share of the length of the first layers' gradients that these raw examples cannot have made, whatever the labels,
    the loss and what the network draws: an only example with the error signals that other gradients show; else each row
    is a sum of what the examples put into the layer. `None` where nothing is told: any input explains so many rows,
    entries were left out, or an optimiser rescales them."""
    observation, left, whole = observation.origin, 0.0, 0.0
    graph = followed(observation.task)
    if isinstance(graph, str) or observation.rescaled or observation.defended.support is not None:
        return None
    hidden, task = observation.task.data.normalise(inputs.detach().double().cpu()), graph.double
    with suppress(*FOREIGN):
        known = _known_signals(graph, lambda name: observation.values(name).cpu()) if len(inputs) == 1 else ()
        held = {one.name: one for one in known}
        for one in held.values():
            left += float((one.sent.flatten() - one.made(hidden)).square().sum())
            whole += float(one.sent.square().sum())
        for product in (p for group in graph.first for p in group.products):
            if product.weight is None or product.weight in held or len(product.terms) > 1:
                continue
            rows, again = (graph.read(product, hidden, task) for _ in range(2))
            sent = product.matrices(observation.values(product.weight).cpu())
            if rows.shape[1] < sent.shape[2] and torch.equal(rows, again):
                _, sizes, sides = torch.linalg.svd(rows, full_matrices=False)
                sides = sides * (sizes > SAME * sizes.amax(1, keepdim=True))[..., None]
                left += float((sent - sent @ sides.mT @ sides).square().sum())
                whole += float(sent.square().sum())
        return math.sqrt(left / whole) if whole else None
    return None
