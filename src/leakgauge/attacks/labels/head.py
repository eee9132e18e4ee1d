"""The classifier's outputs on inputs that stand in for the client's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import vmap

from leakgauge.clients.protocol import Protocol, mean_gradient
from leakgauge.draws import Draws
from leakgauge.observation import Observation
from leakgauge.task import Batch, DataSpec, Loss, Task, cross_entropy
from leakgauge.tracing import LinearLayer, without_dropout
from leakgauge.update import UpdateKind

ENOUGH = 64
"""From that many public examples on, nothing is made up."""


def stand_ins(observation: Observation, count: int, generator: torch.Generator) -> Float[Tensor, "m *shape"]:
    """At most `count` public examples if the attacker has enough of them, else `count` made-up ones."""
    public = observation.knowledge.public_data
    like = next(iter(observation.task.parameters.values()))
    if public is not None and len(public) >= ENOUGH:
        return public[torch.randperm(len(public), generator=generator)[:count]].to(like)
    return made_up(observation.task.data, count, generator).to(like)


def made_up(data: DataSpec, count: int, generator: torch.Generator) -> Float[Tensor, "count *shape"]:
    """Random inputs in the data's range.

    Images are Gaussian fields with an amplitude spectrum 1/f^α, α ~ U(.7, 1.7), of random mean and contrast
    and with correlated channels, which is how photographs vary to second order (Field, 1987). Anything else is
    uniform noise.
    """
    if not data.is_image:
        return torch.rand(count, *data.shape, generator=generator) * data.range + data.low
    channels, height, width = data.shape
    frequency = (torch.fft.fftfreq(height)[:, None] ** 2 + torch.fft.rfftfreq(width)[None] ** 2).sqrt()
    frequency[0, 0] = 1.0
    alpha = 0.7 + torch.rand(count, 1, 1, 1, generator=generator)
    grey = torch.randn(count, 1, height, width, generator=generator)
    colour = torch.randn(count, channels, height, width, generator=generator)
    field = torch.fft.irfft2(torch.fft.rfft2(0.9 * grey + 0.45 * colour) * frequency**-alpha, s=(height, width))
    field = field - field.mean((2, 3), keepdim=True)
    field = field / field.flatten(1).std(1).clamp_min(1e-6)[:, None, None, None]
    mean = 0.5 + 0.18 * torch.randn(count, 1, 1, 1, generator=generator)
    mean = mean + 0.07 * torch.randn(count, channels, 1, 1, generator=generator)
    contrast = 0.08 + 0.2 * torch.rand(count, 1, 1, 1, generator=generator)
    images: Tensor = (mean + contrast * field).clamp(0, 1)
    return images * data.range + data.low


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


def head_task(weight: Tensor, bias: Tensor | None, tangent: Tensor, client: Task) -> Task:
    """A task whose examples are features, with the client's loss; parameters that do not move are left out."""
    outputs, width = weight.shape
    kind = next(iter(client.parameters.values())).dtype

    def in_its_type(logits: Tensor, labels: Tensor) -> Tensor:
        return client.loss_of(logits.to(kind), labels).to(logits)  # it may hold tensors of its own

    loss: Loss = client.loss if client.loss is cross_entropy else in_its_type
    task = Task.of(_Head(weight, bias, tangent), DataSpec(shape=(width,), classes=outputs), loss=loss, name="head")
    return task.to(weight)


def tangent_below(
    observation: Observation, layer: LinearLayer, inputs: Float[Tensor, "m *shape"], most: int
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
        moved = {
            n: (task.parameters[n] + fraction * update.tensors[n].to(task.parameters[n])).detach().requires_grad_(grad)
            for n in below
        }
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
