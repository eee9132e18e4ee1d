"""PRECODE: a variational bottleneck before the classifier, whose sampling hides the features."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.defenses.defense import Defense
from leakgauge.errors import require
from leakgauge.registry import DEFENSES
from leakgauge.step.training import watched
from leakgauge.task import Task
from leakgauge.tensors import Tensors

DRAW = "draw"
"""Name of the bottleneck's buffer for ε."""


class VariationalBottleneck(nn.Module):
    """b = μ + σ·ε with (μ, ρ) = encoder(x), σ = softplus(ρ), ε ~ N(0, I), then decoder(b).

    It samples in eval mode too: a client trains on what it computes, in whichever mode BatchNorm is.

    Attributes:
        encoder: Linear(features → 2·size); its output is what the penalty reads.
        decoder: Linear(size → features).
        draw: a buffer, empty: ε is drawn from torch's global generator. Filled, by whoever guesses it: ε itself,
            broadcast to ``(n, size)``. No part of the state dict.
    """

    draw: Tensor

    def __init__(self, features: int, size: int = 256) -> None:
        super().__init__()
        self.encoder = nn.Linear(features, 2 * size)
        self.decoder = nn.Linear(size, features)
        self.register_buffer(DRAW, torch.empty(0), persistent=False)

    def forward(self, x: Float[Tensor, "*n features"]) -> Float[Tensor, "*n features"]:
        mean, std = moments(self.encoder(x))
        # Drawn in one precision, so that whoever knows the draw repeats it in any other.
        draw = self.draw if self.draw.numel() else torch.randn(mean.shape, dtype=torch.float64).to(mean)
        return cast(Tensor, self.decoder(mean + std * draw))


def moments(encoded: Float[Tensor, "*n encoded"]) -> tuple[Float[Tensor, "*n size"], Float[Tensor, "*n size"]]:
    """μ, the first half, and σ, the soft-plus of the rest."""
    mean, rest = encoded.chunk(2, dim=-1)
    return mean, F.softplus(rest)


@dataclass(frozen=True)
class BitsToStandardNormal:
    """weight · KL(N(μ, σ²) ‖ N(0, I)) in bits: ½ Σ (μ² + σ² − 1 − ln σ²) ÷ ln 2 over the bottleneck, batch mean.

    A `Penalty` on the encoder's output.
    """

    part: str
    weight: float

    def __call__(self, output: Float[Tensor, "*n encoded"], /) -> Float[Tensor, ""]:
        mean, std = moments(output)
        tiny = torch.finfo(std.dtype).tiny
        nats = (mean.square() + std.square() - 1).sum(-1) / 2 - std.clamp_min(tiny).log().sum(-1)
        return self.weight * nats.mean() / math.log(2)


class Bottlenecked(nn.Module):
    """A layer that reads what the bottleneck makes of its input."""

    def __init__(self, bottleneck: VariationalBottleneck, layer: nn.Linear) -> None:
        super().__init__()
        self.bottleneck, self.layer = bottleneck, layer

    def forward(self, x: Float[Tensor, "*n features"]) -> Float[Tensor, "*n outputs"]:
        return cast(Tensor, self.layer(self.bottleneck(x)))


@DEFENSES.register("precode", needs="a linear layer")
@dataclass(frozen=True, kw_only=True)
class Precode(Defense):
    """Puts a `VariationalBottleneck` before a linear layer, and adds ``beta`` times its KL term to the client's loss.

    Source: Scheliga, Mäder and Seeland, *PRECODE*, WACV 2022, as ROG evaluates it (Yue et al., 2023): K = 256,
    β = 1e-3, KL in bits. Placement: between feature extractor and classifier. Its parameters train, so
    they are part of the broadcast model and of the update; server and attacker see the changed task. ε is drawn
    afresh in every step, from the client's stream for the model.

    No guarantee. Every layer below the bottleneck sends its gradient, and the bottleneck sends its own: with one
    example, encoder weight gradient ÷ encoder bias gradient *is* the feature vector, and decoder weight ÷ decoder
    bias gradient is b, hence ε. With several, ε is a variable like the pixels. See the counter ``sampled-bottleneck``.

    Attributes:
        size: K, the width of the bottleneck.
        beta: weight of the KL term, ≥ 0.
        layer: name of the linear layer that reads the bottleneck; by default the last in the order of computation.
        seed: of the bottleneck's first weights (PyTorch's default), which the server broadcasts.
    """

    size: int = 256
    beta: float = 1e-3
    layer: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.size > 0, "size", f"is {self.size}", "give a positive width, e.g. 256")
        require(self.beta >= 0 and math.isfinite(self.beta), "beta", f"is {self.beta}", "give a number ≥ 0, e.g. 0.001")

    def on_task(self, task: Task) -> Task:
        """The task with the bottleneck. Raises `InputError` where it has no such layer."""
        name = _bottlenecked_layer(task, self.layer)
        module = copy.deepcopy(task.module)
        module.load_state_dict({**task.parameters, **task.buffers}, strict=False)
        layer = cast(nn.Linear, module.get_submodule(name))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            bottleneck = VariationalBottleneck(layer.in_features, self.size)
            wrapped = Bottlenecked(bottleneck.to(layer.weight), layer)
            if name:
                parent, _, own = name.rpartition(".")
                setattr(module.get_submodule(parent), own, wrapped)
            else:
                module = wrapped
            made = task.of_module(module, name=f"precode({task.name})")
        prefix = f"{name}." if name else ""
        penalty = BitsToStandardNormal(f"{prefix}bottleneck.encoder", self.beta)
        return replace(made, stochastic=True, penalties=(*task.penalties, penalty))


def bottlenecks(task: Task) -> dict[str, VariationalBottleneck]:
    """The bottlenecks of a model by name."""
    return {name: part for name, part in task.module.named_modules() if isinstance(part, VariationalBottleneck)}


def mean_draws(task: Task) -> Tensors:
    """Buffers that put every bottleneck of a model at its mean: ε = 0, nothing is drawn."""
    like = next(iter(task.parameters.values()))
    return {f"{name}.{DRAW}" if name else DRAW: like.new_zeros(1) for name in bottlenecks(task)}


def _bottlenecked_layer(task: Task, layer: str) -> str:
    order: list[str] = []
    module = copy.deepcopy(task.module)
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    like = next(iter(task.parameters.values()))
    probe = like.new_full((2, *task.data.shape), (task.data.low + task.data.high) / 2)
    with (
        torch.random.fork_rng(devices=[]),
        torch.no_grad(),
        watched(module, linear, lambda name, *_: order.append(name)),
    ):
        replace(task, module=module).logits(task.parameters, task.buffers, probe)
    require(bool(order), "model", "computes no linear layer, which precode needs", "give a model with one")
    known = ", ".join(repr(n) for n in dict.fromkeys(order))
    require(not layer or layer in order, "layer", f"'{layer}' is no linear layer of the model", f"name one of {known}")
    return layer or order[-1]
