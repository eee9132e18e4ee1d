"""MixUp's weights: read from the classifier's gradient, and undone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import jacfwd

from leakgauge.attacks.labels.classifier import find_classifier
from leakgauge.attacks.labels.strategy import Unknown
from leakgauge.attacks.matching.parts import Hidden
from leakgauge.clients import FedAvg
from leakgauge.defenses.mixup import mixed
from leakgauge.observation import Observation
from leakgauge.task import Batch, DataSpec
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import UpdateKind

MOST_EXAMPLES = 8
"""The read has 2n² unknowns."""

MIXING = "mixing"


@dataclass(frozen=True, eq=False, kw_only=True)
class Mixing(Hidden):
    """The client trained on `matrix` times the examples; a `Hidden` part.

    The update does not tell in which order the mixed examples were, so any row permutation of the client's matrix
    is as good: the examples that come out are the client's, in the order of their labels.

    Attributes:
        matrix: rows of weights.
        free: refine it in the search, as a soft-max of logits. Needed where labels repeat, which weights of equal
            labels cannot be told by.
    """

    matrix: Float[Tensor, "n n"]
    free: bool = False

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        del examples, data, generator
        return {MIXING: self.matrix.double().clamp_min(1e-4).log()} if self.free else {}

    def encode(self, batch: Batch, variables: Tensors) -> Batch:
        return mixed(batch, variables[MIXING].softmax(1) if self.free else self.matrix)

    def penalty(self, variables: Tensors) -> Float[Tensor, ""]:
        return next(iter(variables.values())).new_zeros(())


@dataclass(frozen=True, eq=False)
class MixingRead:
    """A mixing matrix read from a gradient.

    Attributes:
        matrix: rows in an order of their own, columns in the order of the labels.
        misfit: share of the classifier's gradient that it does not explain, column by column.
    """

    matrix: Float[Tensor, "n n"]
    misfit: float


def single_gradient(observation: Observation) -> Tensors | None:
    """The client's one gradient: as sent, or −delta/lr where its local training was one step."""
    if observation.update.header.kind is UpdateKind.GRADIENT:
        return map_tensors(torch.Tensor.double, observation.update.tensors)
    client, examples = observation.knowledge.local_training, observation.examples
    if not isinstance(client, FedAvg) or examples is None or client.steps(examples) > 1 or client.weight_decay:
        return None
    lr = client.lr
    return map_tensors(lambda t: -t.double() / lr, observation.update.tensors)


def read_mixing(
    observation: Observation, labels: Int[Tensor, " n"], generator: torch.Generator, *, tries: int = 8, steps: int = 100
) -> MixingRead | None:
    """M from ∂L/∂W = (1/n) Σᵢ (softmax(W fᵢ + b) − (M Y)ᵢ) fᵢᵀ and ∂L/∂b, the classifier's, where Y is one-hot.

    The n leading right singular vectors of ∂L/∂W span the features fᵢ. In that basis unknown are their n²
    coordinates and the n(n − 1) weights, and known are outputs × (n + 1) numbers. Solved by Levenberg–Marquardt from
    the features of random inputs, `tries` times; the best fit is the answer.

    `None` where it cannot be: not one gradient, no classifier, one example, or more than `MOST_EXAMPLES` or outputs.
    """
    n, sent = len(labels), single_gradient(observation)
    if sent is None or not 1 < n <= MOST_EXAMPLES:
        return None
    classifier = find_classifier(observation)
    if isinstance(classifier, Unknown) or classifier.bias is None:
        return None
    weight, bias = classifier.of(observation.task.parameters)
    slope, offset = classifier.of(sent)
    if bias is None or offset is None or n > min(weight.shape):
        return None
    basis = torch.linalg.svd(slope, full_matrices=False).Vh[:n]
    target = torch.cat([slope @ basis.T, offset[:, None]], 1)
    size = target.norm(dim=0).clamp_min(torch.finfo(target.dtype).tiny)
    one_hot, seen = F.one_hot(labels.cpu(), len(weight)).double(), weight @ basis.T
    data, like = observation.task.data, next(iter(observation.task.parameters.values()))
    best: MixingRead | None = None
    for _ in range(tries):
        x = data.low + data.range * torch.rand((n, *data.shape), generator=generator)
        with torch.no_grad():
            guess = classifier.features(observation.task, x.to(like))[0].cpu().double() @ basis.T
        unit = guess.abs().mean(0) + torch.finfo(guess.dtype).tiny
        logits = 2 * torch.eye(n, dtype=torch.float64)
        logits = logits + 0.5 * torch.randn((n, n), generator=generator, dtype=torch.float64)

        def misfit(v: Tensor, unit: Tensor = unit) -> Tensor:
            features, matrix = v[: n * n].view(n, n) * unit, v[n * n :].view(n, n).softmax(1)
            errors = ((features @ seen.T + bias).softmax(1) - matrix @ one_hot) / n
            made = errors.T @ torch.cat([features, features.new_ones(n, 1)], 1)
            return cast(Tensor, ((made - target) / size).flatten() / (n + 1) ** 0.5)

        found, left = levenberg_marquardt(misfit, torch.cat([(guess / unit).flatten(), logits.flatten()]), steps)
        if best is None or left < best.misfit:
            best = MixingRead(found[n * n :].view(n, n).softmax(1), left)
    return best


def levenberg_marquardt(
    misfit: Callable[[Tensor], Tensor], v: Float[Tensor, " d"], steps: int
) -> tuple[Float[Tensor, " d"], float]:
    """Minimises ‖misfit‖², dense, of fewer unknowns than residuals: where it ended and the squared norm left."""
    r = misfit(v)
    damping, eye = 1e-2, torch.eye(len(v), dtype=v.dtype)
    for _ in range(steps):
        with warnings.catch_warnings():  # torch 2.13's own rules for forward derivatives
            warnings.filterwarnings("ignore", message=".*torch.jit.script", category=DeprecationWarning)
            jacobian = cast(Tensor, jacfwd(misfit)(v))
        hessian, slope = jacobian.T @ jacobian, jacobian.T @ r
        moved = False
        while not moved and damping < 1e8:
            step = torch.linalg.solve(hessian + damping * hessian.diagonal().mean() * eye, slope)
            new = misfit(v - step)
            moved = bool(new @ new < r @ r)
            if moved:
                v, r = v - step, new
            damping = max(damping / 5, 1e-14) if moved else damping * 4
        if not moved or float(r @ r) < 1e-20:
            break
    return v, float(r @ r)
