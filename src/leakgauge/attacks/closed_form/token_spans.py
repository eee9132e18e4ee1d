"""Texts in order: what enters a layer lies in the span of the rows of its weight's gradient.

∂L/∂W = Σ_t ε_t·x_tᵀ over all tokens of the batch. While the batch has fewer tokens than W shows directions, the inputs
of other tokens, or of other beginnings, lie outside the span. Weights that multiply the same input (q, k and v, or
their low-rank factors) are read as one. Nothing here proves a text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, combinations_with_replacement, islice

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.attacks.closed_form.entered import EnteredLayer, Span, entered
from leakgauge.observation import Observation
from leakgauge.view.graph import OuterSum, traced

CHUNK = 1024  # texts sent through the model at a time
UNHEARD = -1  # stands for the token of a place that no token fits
OUTSIDE = 0.05  # share of a layer's input outside the span from which on it did not enter the layer
PROBES = 4  # random texts that show what a layer sees
BRANCHES = 4  # beginnings kept at a time, for each text: more, and the layer does not tell them apart
SAFE = 1e-2
"""Share of an input outside the span that rounding may explain at most; where it may explain more, nothing is read."""
CHOICES = 128  # batches of the texts read that are tried where these are more or fewer than the batch has


def text_layers(observation: Observation, generator: torch.Generator) -> list[EnteredLayer]:
    """Layers whose input at a place depends on the token there, and on none after it, in the order of the network.
    Found by changing random texts from the middle on, and the token just before it."""
    task, graph = observation.task, traced(observation.task)
    data, length = task.data, task.data.shape[0]
    one = torch.randint(data.vocabulary, (PROBES, *data.shape), generator=generator)
    other = (one + torch.randint(1, data.vocabulary, one.shape, generator=generator)) % data.vocabulary
    if data.padding is not None:
        one, other = (torch.where(x == data.padding, (data.padding + 1) % data.vocabulary, x) for x in (one, other))
    places, middle = torch.arange(length), length // 2
    single = torch.where(places == max(middle - 1, 0), other, one)
    whose = torch.where((torch.arange(PROBES) == 0)[:, None], other, one)
    texts = torch.cat([one, torch.where(places >= middle, other, one), single, whose])
    found, done = list[EnteredLayer](), list[OuterSum]()
    for layer in entered(graph, observation):
        base, later, before, text = layer.rows(texts, task).split(PROBES)
        if layer.products is done or bool((base != text)[1:].any()):
            continue  # another text moves these rows
        done = layer.products
        moved, seen = ((base != each).any(2).any(0) for each in (later, before))
        for first in range(len(moved) - length + 1):
            inside, ahead = (m[first : first + length] for m in (moved, seen))
            if torch.equal(inside, places >= middle) and not bool(ahead[: max(middle - 1, 0)].any()):
                alone = int(seen.sum()) == 1 and int(moved.sum()) == length - middle
                if alone or bool(ahead[middle:].any()):
                    found.append(replace(layer, places=length, first=first, alone=alone))
                break
    return found


def read_places(
    observation: Observation, layers: list[EnteredLayer], occur: Bool[Tensor, " vocabulary"] | None
) -> tuple[Iterator[Int[Tensor, "1 length"]], str]:
    """The tokens of the only text in order, as each layer that tokens enter one by one has them, and why there is none.

    Places that no token fits are padding. Without it a single such place is `UNHEARD`: what stands there enters no
    layer's gradient, as the last token of a text that is also the target. All tokens that `occur` must be found; `None`
    where any may."""
    data = observation.task.data
    tokens = torch.arange(data.vocabulary) if occur is None else occur.nonzero().flatten()
    if data.padding is not None:
        tokens = tokens[tokens != data.padding]

    def orders() -> Iterator[Int[Tensor, "1 length"]]:
        for _, left, allowed in _outside(observation, layers, tokens):
            least, chosen = left.min(0)
            order = tokens[chosen]
            fits = least <= allowed.gather(0, chosen[None])[0] if occur is None else least < OUTSIDE
            if data.padding is not None or int((~fits).sum()) == 1:
                order = torch.where(fits, order, UNHEARD if data.padding is None else data.padding)
            if bool(fits.any()) and (occur is None or set(order.tolist()) >= set(tokens.tolist())):
                yield order[None]

    return orders(), narrow(layers) or "no layer shows the tokens' places"


def narrow(layers: list[EnteredLayer]) -> str:
    """`EnteredLayer.too_narrow` of the widest that tokens enter one by one, where each of them is."""
    alone = [layer for layer in layers if layer.alone]
    said = [(layer.span.most, layer.too_narrow(alone)) for layer in alone if len(layer.span.rows)]
    return max(said, key=lambda each: each[0])[1] if said and all(why for _, why in said) else ""


def fitting(
    observation: Observation, layers: list[EnteredLayer], chance: float = float("inf"), occur: Tensor | None = None
) -> Bool[Tensor, "length vocabulary"] | None:
    """Which tokens, of those that `occur`, may stand at each place, as any layer that tokens enter one by one has it,
    but for those where more than `chance` are expected to fit without having entered; `None` without such.

    Where places are only added to tokens these are more than stand there: with two tokens at one place, and the first
    of them at another, the second fits there as well. A layer may miss some: a query with a single key has no gradient.
    """
    tokens, each = torch.arange(observation.task.data.vocabulary), list[Tensor]()
    for span, left, allowed in _outside(observation, layers, tokens):
        # what those that did not enter have outside points in any direction there
        half = torch.tensor((span.rows.shape[1] - len(span.rows)) / 2, dtype=left.dtype)
        if torch.special.gammainc(half, half * (allowed / left.mean(0)).square()).sum() <= chance:
            each.append((left <= allowed) & (True if occur is None else occur[tokens, None]))
    return torch.stack(each).any(0).T if each else None


def _outside(
    observation: Observation, layers: list[EnteredLayer], tokens: Int[Tensor, " k"]
) -> Iterator[tuple[Span, Float[Tensor, "k length"], Float[Tensor, "k length"]]]:
    """`Span.outside` of tokens at every place, by each layer that tokens enter one by one and that is wide enough."""
    length = observation.task.data.shape[0]
    for layer in layers:
        span = layer.span if layer.alone and len(tokens) else None
        if span is not None and len(span.rows) and not span.full:
            parts = [span.outside(layer.given(some[:, None].expand(-1, length))) for some in tokens.split(CHUNK)]
            left, allowed = (torch.cat(some) for some in zip(*parts, strict=True))
            yield span, left, allowed


def read_texts(
    observation: Observation, layers: list[EnteredLayer], occur: Bool[Tensor, " vocabulary"] | None
) -> tuple[Iterator[Int[Tensor, "n length"]], str]:
    """Batches of texts that a layer of causal attention may have seen, the likeliest first, and why there are none.

    In a causal network an input h depends on a token and those before it: a text is read from its first token on, and
    grows by the tokens that keep h in the span. Texts that are alike, or that begin as a longer one, leave no input of
    their own.

    Source: Petrov et al., *DAGER*, NeurIPS 2024, section 4.1. Differs: the tolerance follows from the singular values;
    any layer behind the first attention serves, and those that share an input serve together; where the embedding shows
    which tokens occur, all of them are tried, and those of a first filter elsewhere (`occur` is `None`)."""
    data, examples = observation.task.data, observation.examples or 0
    tokens = fitting(observation, layers) if occur is None else occur.expand(data.shape[0], -1).clone()
    if tokens is None:
        return iter(()), narrow(layers) or "no layer takes in tokens one by one"
    if data.padding is not None:
        tokens[:, data.padding] = True
    why, full = "no layer behind the first attention sees a token and those before it alone", ""
    ended = within = tokens.new_zeros(0, len(tokens), dtype=torch.long)
    for layer in [layer for layer in layers if not layer.alone]:
        if layer.span.full:
            full = full or layer.too_narrow(layers)
        elif (found := _grown(layer, tokens, examples)) is None:
            why = f"the inputs of {layer.name} do not tell texts apart"
        elif len(ended) and len(found[0]):  # those texts that both layers show, where there are any
            both = (ended[:, None] == found[0]).all(2).any(1)
            ended, within = (ended[both], found[1]) if bool(both.any()) else (ended, within)
            break
        elif len(found[0]):
            ended, within = found
            if len(ended) == examples:
                break
    return (repeated(ended, within, examples), "") if len(ended) else (iter(()), full or why)


def _grown(layer: EnteredLayer, tokens: Bool[Tensor, "length k"], examples: int) -> tuple[Tensor, Tensor] | None:
    """All texts whose every beginning lies in the span, but for a last token that none fits (`UNHEARD`), and beginnings
    that some token continues; `None` where texts are too many, or rounding hides which."""
    data = layer.observation.task.data
    alive = torch.full((1, *data.shape), 0 if data.padding is None else data.padding)
    ended, within = alive[:0], alive[:0]
    for place in range(data.shape[0]):
        here = tokens[place].nonzero().flatten()
        longer = alive[:, None].repeat(1, len(here), 1)
        longer[:, :, place] = here
        longer = longer.flatten(0, 1)
        fits = [longer.new_zeros(0, dtype=torch.bool)]
        for texts in longer.split(CHUNK) if len(longer) else ():
            left, allowed = layer.span.outside(layer.given(texts)[:, place])
            fits.append((left <= allowed) & (allowed < SAFE))
        goes_on = torch.cat(fits).view(len(alive), len(here))
        stops = ~goes_on.any(1)
        if place and data.padding is not None:
            ended = torch.cat([ended, alive[stops]])
            within = torch.cat([within, alive[~stops]])
        elif place == data.shape[0] - 1:
            alive[:, place] = UNHEARD
            ended = torch.cat([ended, alive[stops]])
        alive = longer[goes_on.flatten()]
        if len(alive) + len(ended) > BRANCHES * examples:
            return None
        if not len(alive):
            break
    return torch.cat([ended, alive]), within


def repeated(
    ended: Int[Tensor, "k length"], within: Int[Tensor, "m length"], examples: int
) -> Iterator[Int[Tensor, "n length"]]:
    """All texts once, `CHOICES` batches of them at most; where they are too few also those that a longer or equal text
    hides."""
    if len(ended) >= examples:
        for chosen in islice(combinations(range(len(ended)), examples), CHOICES):
            yield ended[list(chosen)]
        return
    every = torch.cat([ended, within.flip(0)])
    for more in islice(combinations_with_replacement(range(len(every)), examples - len(ended)), CHOICES):
        yield torch.cat([ended, every[list(more)]])
