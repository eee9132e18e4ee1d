"""A client reduced to its last layer: cheap enough to simulate thousands of times.

The features that enter the classifier are held fixed and taken from stand-in inputs; everything else is the
client's own protocol, the same function that clients run, so local steps, unequal minibatches, momentum,
weight decay and secure aggregation need no formula here. Layers below move too: their effect on the logits is
linearised, z += L·u with a trained u and L·Lᵀ = J·Jᵀ, the neural tangent kernel of those layers at an average
input (on an untrained LeNet with 4 steps of lr .01 it takes the error of the simulated bias from .6 to .15 counts).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import vmap

from leakgauge.attacks.labels.classifier import Classifier, without_dropout
from leakgauge.clients.gradient import mean_gradient
from leakgauge.clients.protocol import Protocol
from leakgauge.draws import Draws
from leakgauge.observation import Observation
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.update import UpdateKind

MOVED = 0.02
"""Below that mean change of a logit through the layers below, they are held still."""
AVERAGED = 8
"""Inputs whose average the tangent kernel is taken at."""


class _Head(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor | None, tangent: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.drift = nn.Parameter(tangent.new_zeros(tangent.shape[1]))
        self.register_buffer("tangent", tangent)

    def forward(self, h: Tensor) -> Tensor:
        z = h @ self.weight.T + self.get_buffer("tangent") @ self.drift
        return z if self.bias is None else z + self.bias


Summary = Callable[[Float[Tensor, "outputs q"], Float[Tensor, " outputs"] | None], Float[Tensor, " p"]]
"""Update of weight (in the simulation's coordinates) and bias → statistics."""


@dataclass(frozen=True, eq=False)
class SimulatedHead:
    """The client's last layer with stand-in features.

    Attributes:
        basis: orthonormal rows; features and weights are expressed in them.
        features: of the stand-ins, in that basis.
    """

    task: Task
    protocol: Protocol
    basis: Float[Tensor, "q features"]
    features: Float[Tensor, "m q"]
    summary: Summary

    def __call__(self, index: Int[Tensor, "r n"], labels: Int[Tensor, "r n"]) -> Float[Tensor, "r p"]:
        """Statistics of r simulated clients; client i holds the stand-ins ``index[i]`` under
        ``labels[i]``, in that order; a shuffled protocol uses one order for all, as labels come in any order."""

        def one(h: Tensor, y: Tensor) -> Tensor:
            update, _ = self.protocol.local_training(self.task, Batch(h, y), Draws(0), mean_gradient)
            return self.summary(update["weight"], update.get("bias"))

        chunk = max(1, 4_000_000 // (self.basis.shape[0] * max(labels.shape[1], len(self.task.parameters["weight"]))))
        parts = zip(index.split(chunk), labels.split(chunk), strict=True)
        return torch.cat([vmap(one, randomness="same")(self.features[i], y) for i, y in parts])


def head_task(weight: Tensor, bias: Tensor | None, tangent: Tensor) -> Task:
    """A task whose examples are features; parameters that do not move are left out."""
    outputs, width = weight.shape
    task = Task.of(_Head(weight, bias, tangent), DataSpec(shape=(width,), classes=outputs), name="head")
    return task.to(weight)


def tangent_below(
    observation: Observation, layer: Classifier, inputs: Float[Tensor, "m *shape"], most: int
) -> Float[Tensor, "outputs k"]:
    """L with L·Lᵀ = J·Jᵀ, J = ∂(mean logits)/∂(parameters below the classifier) halfway through the update.

    One column of zeros for a gradient, where nothing moves, where logits move less than `MOVED`, and for
    more than `most` outputs, where J costs too much.
    """
    task, update = without_dropout(observation.task), observation.update
    outputs = len(task.parameters[layer.weight])
    nothing = torch.zeros(outputs, 1, dtype=torch.float64)
    below = [name for name in task.parameters if name not in (layer.weight, layer.bias)]
    if update.header.kind is UpdateKind.GRADIENT or not below or outputs > most:
        return nothing
    head = {name: p for name, p in task.parameters.items() if name not in below}
    x = inputs[:AVERAGED]

    def mean_logits(fraction: float, *, grad: bool) -> tuple[Tensor, list[Tensor]]:
        moved = {n: (task.parameters[n] + fraction * update.tensors[n]).detach().requires_grad_(grad) for n in below}
        return task.logits({**head, **moved}, task.buffers, x)[0].mean(0), list(moved.values())

    with torch.no_grad():
        change = (mean_logits(1.0, grad=False)[0] - mean_logits(0.0, grad=False)[0]).abs().mean()
    if float(change) < MOVED:
        return nothing
    z, moved = mean_logits(0.5, grad=True)
    rows = []
    for i in range(outputs):
        grads = torch.autograd.grad(z[i], moved, retain_graph=True, allow_unused=True)
        rows.append(
            torch.cat(
                [torch.zeros_like(p).flatten() if g is None else g.flatten() for g, p in zip(grads, moved, strict=True)]
            )
        )
    jacobian = torch.stack(rows).cpu().double()
    values, vectors = torch.linalg.eigh(jacobian @ jacobian.T)
    tangent: Tensor = vectors * values.clamp_min(0).sqrt()
    return tangent
