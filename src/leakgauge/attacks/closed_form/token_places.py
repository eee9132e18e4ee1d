"""Which token stands where in one text: what enters a layer lies in the span of its weight gradient's rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from leakgauge.observation import Observation
from leakgauge.task import Task
from leakgauge.tensors import Wire
from leakgauge.update import UpdateKind

CHUNK = 1024
"""Texts sent through the model at a time."""
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
    observation: Observation, occur: Bool[Tensor, " vocabulary"] | None, generator: torch.Generator
) -> Iterator[Int[Tensor, "1 length"]]:
    """The tokens of the only text in order, as each layer that shows them has them. Nothing here proves them.

    ∂L/∂W = Σ_t ε_t·x_tᵀ, so every input x_t lies in the span of its rows, and other tokens at that place do not, while
    the text has fewer tokens than the layer has inputs. Places that no token fits are padding.

    Args:
        occur: the tokens of the text, all of which must be found; `None` where any may occur.
    """
    data = observation.task.data
    tokens = torch.arange(data.vocabulary) if occur is None else occur.nonzero().flatten()
    if data.padding is not None:
        tokens = tokens[tokens != data.padding]
    for left, allowed in _outside(observation, tokens, generator):
        least, chosen = left.min(0)
        order = tokens[chosen]
        fits = least <= allowed.gather(0, chosen[None])[0] if occur is None else least < OUTSIDE
        if data.padding is not None:
            order = torch.where(fits, order, torch.full_like(order, data.padding))
        if bool(fits.any()) and (occur is None or set(order.tolist()) >= set(tokens.tolist())):
            yield order[None]


def fitting(observation: Observation, generator: torch.Generator) -> Bool[Tensor, "length vocabulary"] | None:
    """Which tokens may stand at each place, as any layer that tokens enter one by one has it; `None` without such.

    Where places are only added to tokens these are more than stand there: with two tokens at one place, and the first
    of them at another, the second fits there as well. A layer may miss some: a query with a single key has no gradient.
    """
    data = observation.task.data
    each = [left <= allowed for left, allowed in _outside(observation, torch.arange(data.vocabulary), generator)]
    return torch.stack(each).any(0).T if each else None


def _outside(
    observation: Observation, tokens: Int[Tensor, " k"], generator: torch.Generator
) -> Iterator[tuple[Float[Tensor, "k length"], Float[Tensor, "k length"]]]:
    """`Span.outside` of tokens at every place, by each layer that tokens enter one by one and that is wide enough."""
    length = observation.task.data.shape[0]
    for carrier in _carriers(observation.task, generator):
        span = Span.of(observation, carrier.weight)
        if not len(span.rows) or span.full:
            continue
        parts = []
        for some in tokens.split(CHUNK):
            given = entering(observation.task, carrier, some[:, None].expand(-1, length))
            parts += [] if given is None else [span.outside(given.double()[:, carrier.first : carrier.first + length])]
        if parts:
            left, allowed = (torch.cat(some) for some in zip(*parts, strict=True))
            yield left, allowed


def _carriers(task: Task, generator: torch.Generator) -> list[Carrier]:
    """All such layers, the first ones first."""
    one, other = torch.randint(task.data.vocabulary, (2, 2, *task.data.shape), generator=generator)
    length = task.data.shape[0]
    kept = torch.rand(length, generator=generator) < 0.5
    other = torch.where(kept, one, other)
    differs = (one != other).any(0)
    found = []
    for name, weight in weights_of(task, generator):
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


def weights_of(task: Task, generator: torch.Generator) -> list[tuple[str, str]]:
    """Layers that multiply what they are given, once for all texts, by a trained weight; with the name of that."""
    kinds = {nn.Linear: "weight", nn.MultiheadAttention: "in_proj_weight"}
    named = {name: f"{name}.{kinds[type(m)]}" for name, m in task.module.named_modules() if type(m) in kinds and name}
    named = {name: weight for name, weight in named.items() if weight in task.parameters}
    calls = dict.fromkeys(named, 0)

    def count(name: str) -> None:
        calls[name] += 1

    handles = [
        task.module.get_submodule(name).register_forward_pre_hook(lambda _, __, name=name: count(name))
        for name in named
    ]
    try:
        _send(task, torch.randint(task.data.vocabulary, (2, *task.data.shape), generator=generator))
    finally:
        for handle in handles:
            handle.remove()
    return [(name, weight) for name, weight in named.items() if calls[name] == 1]


class _Seen(Exception):
    """The layer has been given its input, and the rest of the model need not run."""


def entering(task: Task, carrier: Carrier, texts: Int[Tensor, "n length"]) -> Float[Tensor, "n places width"] | None:
    """What a layer is given for texts, texts first; `None` where it is not given rows of vectors, or there are none."""
    seen: list[Tensor] = []
    if not len(texts):
        return None

    def keep(_: nn.Module, args: tuple[object, ...], named: dict[str, object]) -> None:
        given = args[0] if args else named.get("query", next(iter(named.values())))
        seen.extend([given.detach().cpu()] if isinstance(given, Tensor) else [])
        raise _Seen

    handle = task.module.get_submodule(carrier.module).register_forward_pre_hook(keep, with_kwargs=True)
    try:
        with suppress(_Seen):
            _send(task, texts)
    finally:
        handle.remove()
    if len(seen) != 1 or seen[0].ndim != 3:
        return None
    given = seen[0]
    return given.transpose(0, 1) if given.shape[0] != len(texts) and given.shape[1] == len(texts) else given


def _send(task: Task, texts: Int[Tensor, "n length"]) -> None:
    with torch.no_grad():
        task.logits(task.parameters, task.buffers, texts.to(next(iter(task.parameters.values()))))
