"""Several texts in order, where no token sees a later one: each next token continues what was read so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, islice

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from leakgauge.attacks.closed_form.token_places import CHUNK, Carrier, Span, entering, fitting, weights_of
from leakgauge.observation import Observation
from leakgauge.task import Task

PROBES = 4
"""Random texts that show what a layer sees."""
BRANCHES = 4
"""Beginnings kept at a time, for each text: more, and the layer does not tell them apart."""
SAFE = 1e-2
"""Share of an input outside the span that rounding may explain at most; where it may explain more, nothing is read."""
CHOICES = 128
"""Batches of the texts read that are tried where these are more or fewer than the batch has."""


@dataclass(frozen=True, eq=False)
class Beginnings:
    """What may stand in a batch: texts that no token continues, and beginnings that some do."""

    ended: Int[Tensor, "k length"]
    within: Int[Tensor, "m length"]


def read_texts(
    observation: Observation, occur: Bool[Tensor, " vocabulary"] | None, generator: torch.Generator
) -> tuple[Iterator[Int[Tensor, "n length"]], str]:
    """Batches of texts that a layer of causal attention may have seen, the likeliest first, and why there are none.

    ∂L/∂W = Σ ε·hᵀ over all tokens of the batch, so every input h of the layer lies in the span of its rows while the
    batch has fewer tokens than the layer has inputs. In a causal network h depends on a token and those before it:
    a text is read from its first token on, and grows by the tokens that keep h in the span. Nothing here proves a
    batch. Texts that are alike, or that begin as a longer one, leave no input of their own.

    Source: Petrov et al., *DAGER*, NeurIPS 2024, section 4.1. Differs: the tolerance follows from the singular values;
    any layer behind the first attention serves; where the embedding shows which tokens occur, all of them are tried,
    and those of a first filter elsewhere.

    Args:
        occur: the tokens of all texts; `None` where any may occur.
    """
    task, data, examples = observation.task, observation.task.data, observation.examples or 0
    tokens = fitting(observation, generator) if occur is None else occur.expand(data.shape[0], -1).clone()
    if tokens is None:
        return iter(()), "no layer that is wide enough takes in tokens one by one"
    if data.padding is not None:
        tokens[:, data.padding] = True
    full = "no layer behind the first attention sees a token and those before it alone"
    for layer in _causal(task, generator):
        span = Span.of(observation, layer.weight)
        if span.full:
            most = min(task.parameters[layer.weight].shape)
            full = f"as many tokens reach {layer.module} as it shows ({len(span.rows)} of {most})"
            continue
        found = _grown(task, layer, span, tokens, examples)
        if found is None:
            full = f"the inputs of {layer.module} do not tell texts apart"
        elif len(found.ended):
            return islice(_batches(found, examples), CHOICES), ""
    return iter(()), full


def _causal(task: Task, generator: torch.Generator) -> list[Carrier]:
    """Layers whose input at a place depends on the token there and some before it, and on none after it."""
    data = task.data
    one = torch.randint(data.vocabulary, (PROBES, *data.shape), generator=generator)
    other = (one + torch.randint(1, data.vocabulary, one.shape, generator=generator)) % data.vocabulary
    if data.padding is not None:
        one, other = (torch.where(x == data.padding, (data.padding + 1) % data.vocabulary, x) for x in (one, other))
    length, found = data.shape[0], []
    if length < 2:
        return []
    middle = length // 2
    later, single = one.clone(), one.clone()
    later[:, middle:] = other[:, middle:]
    single[:, middle - 1] = other[:, middle - 1]
    behind = torch.arange(length) >= middle
    for name, weight in weights_of(task, generator):
        a, b, c = (entering(task, Carrier(name, weight, 0), texts) for texts in (one, later, single))
        if a is None or b is None or c is None or a.shape[1] < length or not a.shape == b.shape == c.shape:
            continue
        moved, seen = (a != b).any(2).any(0), (a != c).any(2).any(0)
        for first in range(a.shape[1] - length + 1):
            inside = moved[first : first + length]
            ahead = seen[first : first + length]
            if torch.equal(inside, behind) and not ahead[: middle - 1].any() and bool(ahead[middle:].any()):
                found.append(Carrier(name, weight, first))
                break
    return found


def _grown(
    task: Task, layer: Carrier, span: Span, tokens: Bool[Tensor, "length k"], examples: int
) -> Beginnings | None:
    """All texts whose every beginning lies in the span; `None` where that are too many, or rounding hides which."""
    padding, length = task.data.padding, task.data.shape[0]
    fill = 0 if padding is None else padding
    alive = torch.full((1, length), fill)
    ended, within = alive[:0], alive[:0]
    for place in range(length):
        here = tokens[place].nonzero().flatten()
        longer = alive[:, None].repeat(1, len(here), 1)
        longer[:, :, place] = here
        longer = longer.flatten(0, 1)
        fits = []
        for texts in longer.split(CHUNK):
            given = entering(task, layer, texts)
            if given is None:
                return None
            left, allowed = span.outside(given[:, layer.first + place].double())
            fits.append((left <= allowed) & (allowed < SAFE))
        goes_on = torch.cat(fits).view(len(alive), -1)
        stops = ~goes_on.any(1)
        if place and padding is not None:
            ended = torch.cat([ended, alive[stops]])
            within = torch.cat([within, alive[~stops]])
        alive = longer[goes_on.flatten()]
        if len(alive) + len(ended) > BRANCHES * examples:
            return None
        if not len(alive):
            break
    return Beginnings(torch.cat([ended, alive]), within)


def _batches(found: Beginnings, examples: int) -> Iterator[Int[Tensor, "n length"]]:
    """All texts once; where they are too few also those that a longer or equal text hides."""
    ended = found.ended
    if len(ended) >= examples:
        for chosen in combinations(range(len(ended)), examples):
            yield ended[list(chosen)]
        return
    every = torch.cat([ended, found.within.flip(0)])
    for more in combinations_with_replacement(range(len(every)), examples - len(ended)):
        yield torch.cat([ended, every[list(more)]])
