"""One picture off a vision transformer with a learned position embedding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from leakgauge.attacks.closed_form.proof import name_labels, simulated
from leakgauge.observation import Observation, ReadingAttack, Reconstruction
from leakgauge.registry import ATTACKS
from leakgauge.view.graph import Graph, OuterSum, followed
from leakgauge.view.trace import probe

TOKENS = "a patch layer whose output a learned position embedding is added to, as wide as there are patches"


@ATTACKS.register("patches", needs=f"one example; {TOKENS}")
@dataclass(frozen=True)
class PatchRead(ReadingAttack):
    """The picture behind one update of a vision transformer, by least squares.

    Of one example the gradient of an additive position embedding is Δ, that of the patch layer's output, and the patch
    layer's weight gradient is G = ΔᵀX: X = lstsq(Δᵀ, G) are the patches. Both parameters, and where a pixel lies in
    the patches, are found in the graph of the gradient. Certified where the simulated update explains the observed one.

    Source: ours; kin of APRIL (Lu et al., CVPR 2022). Needs no more patches than the layer is wide. Of several examples
    only sums of Δ are shared, and the equations no longer determine the patches.
    """

    def read(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """`EXACT` when certified, `CONVERGED` for a read that does not explain the update."""
        observation = observation.origin
        if isinstance(graph := followed(observation.task), str):
            return Reconstruction.not_applicable(graph)
        if (found := find_patches(graph)) is None:
            return Reconstruction.not_applicable(f"needs {TOKENS}")
        if observation.examples != 1:
            return Reconstruction.not_applicable(
                "of several examples the position embedding's gradient is a sum, which determines no patch"
            )
        data, product = observation.task.data, found.product
        delta = observation.values(found.embedding).cpu().reshape(-1, product.shape[1])[found.first :]
        slope = product.matrices(observation.values(product.weight or "").cpu())[0]
        size = delta.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
        patches = torch.linalg.lstsq(delta.T / size, slope / size, driver="gelsd").solution
        flat = patches.new_zeros(found.places.numel())
        flat[found.places.flatten()] = patches.flatten()
        inputs = data.denormalise(flat.view(1, *data.shape))
        return simulated(observation, inputs, name_labels(observation, generator, inputs), generator)


@dataclass(frozen=True, eq=False)
class Patches:
    """Where a model cuts its input into patches.

    Attributes:
        product: of patches and what they drive, in the gradient of the patch layer's weight.
        embedding: the position embedding, by name.
        first: rows of the embedding before those of the patches (class token).
        places: which input entry stands where in which patch.
    """

    product: OuterSum
    embedding: str
    first: int
    places: Int[Tensor, "tokens size"]


def find_patches(graph: Graph) -> Patches | None:
    """The patch layer and its position embedding, or `None` where there is no such pair."""
    task = graph.task.to(torch.empty((), dtype=torch.float64))
    names = [name for name, node in graph.trace.gradients.items() if node is not None]
    for product in (p for group in graph.first for p in group.products):
        places = _places(graph, product) if product.weight is not None and len(product.terms) == 1 else None
        if places is None or len(places) > product.shape[1]:
            continue
        term = product.terms[0]
        delta = graph.rows(term, term.signal, {}, task, 1)[0]
        with torch.no_grad():
            every = graph.trace.evaluate([graph.trace.gradients[n] for n in names], task, probe(task, 1))  # type: ignore[misc]
        for name, slope in zip(names, every, strict=True):
            first = slope.numel() // delta.shape[1] - len(delta)
            if slope.ndim < 2 or slope.shape[-1] != delta.shape[1] or first not in (0, 1):
                continue
            if torch.allclose(slope.reshape(-1, delta.shape[1])[first:], delta, rtol=1e-6, atol=1e-12):
                return Patches(product, name, first, places)
    return None


def _places(graph: Graph, product: OuterSum) -> Int[Tensor, "tokens size"] | None:
    """Which of the input's entries each patch holds; `None` unless each stands in one place of one patch."""
    count, shape = torch.Size(graph.task.data.shape).numel(), graph.task.data.shape
    numbers = torch.arange(1, count + 1, dtype=torch.float64)
    rows = graph.read(product, numbers.view(1, *shape).to(next(iter(graph.task.parameters.values())).dtype))
    if len(rows) != 1 or rows.numel() != count or len(rows[0]) < 2:
        return None
    places = rows[0].double()
    return places.long() - 1 if torch.equal(places.flatten().sort().values, numbers) else None
