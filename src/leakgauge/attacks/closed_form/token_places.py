"""Which token stands where in one text: what enters a layer lies in the span of its weight gradient's rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from leakgauge.observation import Observation
from leakgauge.task import Task
from leakgauge.tensors import Wire
from leakgauge.update import UpdateKind

OUTSIDE = 0.05
"""Share of a layer's input outside the span from which on it did not enter the layer."""


@dataclass(frozen=True)
class Carrier:
    """A layer whose input at a place depends on the token there alone.

    Attributes:
        module: by name.
        weight: its parameter, by name.
        first: places of its input before those of the text.
    """

    module: str
    weight: str
    first: int


@dataclass(frozen=True, eq=False)
class Span:
    """The directions that a weight's gradient has beyond rounding, and how much of it each has.

    Attributes:
        rows: orthonormal.
        values: singular values, falling.
        rounding: the largest that rounding alone would give.
        full: whether the weight's gradient could have no more of them.
    """

    rows: Float[Tensor, "r width"]
    values: Float[Tensor, " r"]
    rounding: float
    full: bool

    @staticmethod
    def of(observation: Observation, weight: str) -> Span:
        """A difference of weights is rounded as these are."""
        sent = observation.update.tensors[weight].detach().cpu()
        values, rows = torch.linalg.svd(sent.double(), full_matrices=False)[1:]
        rounding = 4 * Wire.of(sent).unit * max(sent.shape) ** 0.5 * float(values[0])
        if observation.update.header.kind is UpdateKind.DELTA:
            own = observation.task.parameters[weight]
            error = torch.finfo(own.dtype).eps * float(own.double().square().mean().sqrt()) / 12**0.5
            rounding += 2 * error * (sent.shape[0] ** 0.5 + sent.shape[1] ** 0.5)
        kept = values > rounding
        return Span(rows[kept], values[kept], rounding, int(kept.sum()) >= min(sent.shape) - 1)

    def outside(self, inputs: Float[Tensor, "*n width"]) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"]]:
        """Share of inputs outside the span, and how much of it rounding explains: what is weak is known less well."""
        size = inputs.norm(dim=-1).clamp_min(1e-12)
        along = inputs @ self.rows.T
        left = (inputs - along @ self.rows).norm(dim=-1) / size
        return left, self.rounding * (along / self.values).norm(dim=-1) / size


def read_places(
    observation: Observation, occur: Bool[Tensor, " vocabulary"], generator: torch.Generator
) -> Int[Tensor, " length"] | None:
    """The tokens of the only text in order; `None` where no layer shows them. Nothing here proves them.

    ∂L/∂W = Σ_t ε_t·x_tᵀ, so every input x_t lies in the span of its rows, and other tokens at that place do not, while
    the text has fewer tokens than the layer has inputs. Places that no token fits are padding.
    """
    task, data = observation.task, observation.task.data
    tokens = occur.nonzero().flatten()
    if data.padding is not None:
        tokens = tokens[tokens != data.padding]
    for carrier in _carriers(task, generator):
        span = Span.of(observation, carrier.weight)
        if not len(span.rows) or span.full:
            continue
        given = entering(task, carrier, tokens[:, None].expand(-1, data.shape[0]))
        if given is None:
            continue
        left, _ = span.outside(given.double()[:, carrier.first : carrier.first + data.shape[0]])
        least, chosen = left.min(0)
        order = tokens[chosen]
        if data.padding is not None:
            order = torch.where(least < OUTSIDE, order, torch.full_like(order, data.padding))
        if set(order.tolist()) >= set(tokens.tolist()):
            return order
    return None


def _carriers(task: Task, generator: torch.Generator) -> list[Carrier]:
    """All such layers, the first ones first."""
    one, other = torch.randint(task.data.vocabulary, (2, 2, *task.data.shape), generator=generator)
    length = task.data.shape[0]
    kept = torch.rand(length, generator=generator) < 0.5
    other = torch.where(kept, one, other)
    differs = (one != other).any(0)
    found = []
    for name, weight in weights_of(task):
        a, b = (entering(task, Carrier(name, weight, 0), texts) for texts in (one, other))
        if a is None or b is None or a.shape != b.shape or a.shape[1] < length:
            continue
        moved = (a != b).any(2).any(0)
        for first in range(a.shape[1] - length + 1):
            inside = moved[first : first + length]
            if bool(moved.any()) and torch.equal(inside, differs) and int(moved.sum()) == int(differs.sum()):
                found.append(Carrier(name, weight, first))
                break
    return found


def weights_of(task: Task) -> list[tuple[str, str]]:
    """Layers that multiply what they are given by a trained weight, with the name of that weight."""
    kinds = {nn.Linear: "weight", nn.MultiheadAttention: "in_proj_weight"}
    named = [(name, f"{name}.{kinds[type(m)]}") for name, m in task.module.named_modules() if type(m) in kinds and name]
    return [(name, weight) for name, weight in named if weight in task.parameters]


def entering(task: Task, carrier: Carrier, texts: Int[Tensor, "n length"]) -> Float[Tensor, "n places width"] | None:
    """What a layer is given for texts, texts first; `None` where it is not called once on all of them."""
    seen: list[Tensor] = []

    def keep(_: nn.Module, args: tuple[object, ...], named: dict[str, object]) -> None:
        given = args[0] if args else named.get("query", next(iter(named.values())))
        seen.extend([given.detach().cpu()] if isinstance(given, Tensor) else [])

    handle = task.module.get_submodule(carrier.module).register_forward_pre_hook(keep, with_kwargs=True)
    try:
        with torch.no_grad():
            task.logits(task.parameters, task.buffers, texts.to(next(iter(task.parameters.values()))))
    finally:
        handle.remove()
    if len(seen) != 1 or seen[0].ndim != 3:
        return None
    given = seen[0]
    return given.transpose(0, 1) if given.shape[0] != len(texts) and given.shape[1] == len(texts) else given
