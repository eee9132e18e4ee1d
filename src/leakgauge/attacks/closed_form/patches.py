"""One picture off a vision transformer with a learned position embedding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from leakgauge.attacks.labels import CountsFromLastLayer, Unknown
from leakgauge.attacks.labels.tried import tried_labels
from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.observation import Cost, Observation, ReadingAttack, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch, Task
from leakgauge.tensors import twice_differentiable

PROBES = 2
"""Examples that are sent through the model: BatchNorm in train mode refuses one."""
TOKENS = "a patch layer whose output a learned position embedding is added to, as wide as there are patches"


@ATTACKS.register("patches", needs=f"one example; {TOKENS}")
@dataclass(frozen=True)
class PatchRead(ReadingAttack):
    """The picture behind one update of a vision transformer, by least squares.

    Of one example the gradient of an additive position embedding is Δ, that of the patch layer's output, and the patch
    layer's weight gradient is G = ΔᵀX: X = lstsq(Δᵀ, G) are the patches. Both parameters, and where a pixel lies in
    the patches, are found by sending pictures through the model, never by name. Certified where the simulated update
    explains the observed one.

    Source: ours; kin of APRIL (Lu et al., CVPR 2022). Needs no more patches than the layer is wide. Of several examples
    only sums of Δ are shared, and the equations no longer determine the patches.
    """

    def read(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """`EXACT` when certified, `CONVERGED` for a read that does not explain the update."""
        observation = observation.view
        found = find_patches(observation.task, generator)
        if found is None:
            return Reconstruction.not_applicable(f"needs {TOKENS}")
        if observation.examples != 1:
            return Reconstruction.not_applicable(
                "of several examples the position embedding's gradient is a sum, which determines no patch"
            )
        tensors, data = observation.update.tensors, observation.task.data
        delta = tensors[found.embedding].detach().cpu().double().reshape(-1, found.width)[found.first :]
        slope = tensors[found.weight].detach().cpu().double().flatten(1)
        size = delta.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
        patches = torch.linalg.lstsq(delta.T / size, slope / size, driver="gelsd").solution
        flat = patches.new_zeros(found.places.numel())
        flat[found.places.flatten()] = patches.flatten()
        inputs = data.denormalise(flat.view(1, *data.shape))
        labels, confidence, spent = observation.knowledge.labels, None, 0
        if labels is None:
            guess = CountsFromLastLayer().infer(observation, generator)
            tried = tried_labels(observation, inputs) if isinstance(guess, Unknown) else None
            if tried is not None:
                labels, confidence, spent = tried.labels, 1.0 - min(tried.unexplained, 1.0), tried.cost
            elif isinstance(guess, Unknown):
                return Reconstruction(inputs, None, Status.CONVERGED, f"read, not certified: {guess.message}")
            else:
                labels, confidence = guess.labels, guess.confidence
        explainer = Explainer.of(observation, generator)
        explainer.spent = spent
        left, certified = explainer.left(Batch(inputs, labels)), explainer.certified(Batch(inputs, labels), generator)
        return Reconstruction(
            inputs.to(torch.promote_types(next(iter(observation.task.parameters.values())).dtype, torch.float32)),
            labels,
            Status.EXACT if bool(certified.all()) else Status.CONVERGED,
            f"{left:.1e} of the update's length unexplained",
            label_confidence=confidence,
            cost=Cost(explainer.spent),
            certified=certified,
        )


@dataclass(frozen=True, eq=False)
class Patches:
    """Where a model cuts its input into patches.

    Attributes:
        weight: of the patch layer, by name.
        embedding: the position embedding, by name.
        width: of a token.
        first: rows of the embedding before those of the patches (class token).
        places: which input entry stands where in which patch.
    """

    weight: str
    embedding: str
    width: int
    first: int
    places: Int[Tensor, "tokens size"]


def find_patches(task: Task, generator: torch.Generator) -> Patches | None:
    """The patch layer and its position embedding, or `None` where there is no such pair."""
    task = task.to(torch.empty((), dtype=torch.float64))
    for name, module in task.module.named_modules():
        weight = f"{name}.weight" if name else "weight"
        if weight not in task.parameters or not isinstance(module, nn.Conv2d | nn.Linear):
            continue
        if isinstance(module, nn.Conv2d) and (module.padding_mode != "zeros" or module.groups != 1):
            continue
        places = _places(task, module)
        if places is None or len(places) > task.parameters[weight].shape[0]:
            continue
        for first in (0, 1):
            embedding = _embedding(task, module, len(places), first, generator)
            if embedding is not None:
                return Patches(weight, embedding, int(task.parameters[weight].shape[0]), first, places)
    return None


def _places(task: Task, module: nn.Module) -> Int[Tensor, "tokens size"] | None:
    """The input's entry numbers as the layer is given them; `None` unless each is given exactly once."""
    count, data = torch.Size(task.data.shape).numel(), task.data
    raw = torch.linspace(data.low, data.high, count, dtype=torch.float64)
    numbers = raw.expand(PROBES, -1).reshape(PROBES, *data.shape)
    known, order = data.normalise(numbers)[0].flatten().sort()
    seen: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    try:
        with torch.no_grad(), twice_differentiable():
            task.logits(task.parameters, task.buffers, numbers)
    finally:
        handle.remove()
    if len(seen) != 1 or len(seen[0]) != PROBES or seen[0].numel() != PROBES * count:
        return None
    given = seen[0][:1]
    if isinstance(module, nn.Conv2d):
        if module.kernel_size != module.stride or module.padding not in ((0, 0), "valid") or given.ndim != 4:
            return None
        kernel = (int(module.kernel_size[0]), int(module.kernel_size[1]))
        given = nn.functional.unfold(given, kernel, stride=kernel)[0].T
    elif given.ndim == 3:
        given = given[0]
    else:
        return None
    seen_values, places = given.flatten().sort()
    if not torch.equal(seen_values, known) or bool((known.diff() <= 0).any()):
        return None
    return torch.empty_like(order).scatter_(0, places, order).view(given.shape)


def _embedding(task: Task, module: nn.Module, tokens: int, first: int, generator: torch.Generator) -> str | None:
    """The parameter whose gradient is that of the layer's output, summed over random examples."""
    data = task.data
    x = data.low + data.range * torch.rand((PROBES, *data.shape), generator=generator, dtype=torch.float64)
    parameters = {k: v.detach().clone().requires_grad_() for k, v in task.parameters.items()}
    outputs: list[Tensor] = []

    def keep(_module: nn.Module, _args: tuple[Tensor, ...], out: Tensor) -> None:
        outputs.append(out)

    handle = module.register_forward_hook(keep)
    try:
        with twice_differentiable():
            answer = task.logits(parameters, task.buffers, x)[0]
    finally:
        handle.remove()
    loss = (answer * torch.randn(answer.shape, generator=generator, dtype=torch.float64)).sum()
    slopes = torch.autograd.grad(loss, [outputs[0], *parameters.values()], allow_unused=True, materialize_grads=True)
    out = slopes[0].sum(0)
    delta: Float[Tensor, "tokens width"] = out.flatten(1).T if isinstance(module, nn.Conv2d) else out
    for name, slope in zip(parameters, slopes[1:], strict=True):
        if slope.ndim < 2 or slope.shape[-1] != delta.shape[1] or slope.numel() != (tokens + first) * delta.shape[1]:
            continue
        if torch.allclose(slope.reshape(-1, delta.shape[1])[first:], delta, rtol=1e-6, atol=1e-12):
            return name
    return None
