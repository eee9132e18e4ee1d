"""Texts in order: what enters a layer lies in the span of the rows of its weight's gradient.

∂L/∂W = Σ_t ε_t·x_tᵀ over all tokens of the batch. While the batch has fewer tokens than W shows directions, the inputs
of other tokens, or of other beginnings, lie outside the span. Weights that multiply the same input (q, k and v, or
their low-rank factors) are read as one. Nothing here proves a text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, combinations_with_replacement, islice

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.batch import Batch
from leakgauge.observation import Observation
from leakgauge.view.entries import SentTensor
from leakgauge.view.graph import Graph, OuterSum, traced

CHUNK = 1024  # texts sent through the model at a time
UNHEARD = -1  # stands for the token of a place that no token fits
OUTSIDE = 0.05  # share of a layer's input outside the span from which on it did not enter the layer
SPREAD = 0.6
"""Twice the deviation of roundings that are uniform up to half of their bound. What independent ones of that size make
of a matrix is no direction of its inputs."""
PROBES, TWICE, FAINT = 4, 2, 1e-5
"""Random texts that show what a layer sees; inputs of random texts that show in how many directions they lie, for each
number of an input; and the share of the largest below which they lie in no further one."""
BRANCHES = 4  # beginnings kept at a time, for each text: more, and the layer does not tell them apart
SAFE = 1e-2
"""Share of an input outside the span that rounding may explain at most; where it may explain more, nothing is read."""
CLEAR = 10  # times its rounding that the weakest direction must exceed for none to be hidden beneath it
CHOICES = 128  # batches of the texts read that are tried where these are more or fewer than the batch has


@dataclass(frozen=True, eq=False)
class Span:
    """Directions of a layer's input that gradients show beyond their rounding."""

    rows: Float[Tensor, "r width"]  # orthonormal
    values: Float[Tensor, " r"]  # singular values, falling, in units of what rounding makes
    blur: float  # what rounding makes outside the span, in the same units
    most: int  # directions of which it must have fewer, so that not all may lie in it: error signals may sum to zero
    entering: int  # tokens of which the gradients may be a sum
    wide: int  # directions in which inputs of random texts lie
    taken: list[int]  # ranks of the weights that clearly show as many directions, each alone

    @property
    def full(self) -> bool:
        return len(self.rows) >= self.most

    @property
    def short(self) -> bool:  # whether tokens may be more than it tells apart, some beneath the rounding
        return self.full or (self.entering >= self.most and bool((self.values[-1:] < CLEAR).any()))

    def outside(self, inputs: Float[Tensor, "*n width"]) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"]]:
        """Share of inputs outside the span, all of one that is zero, and how much of it rounding explains: what is
        weak is known less well."""
        size = inputs.norm(dim=-1)
        along = inputs @ self.rows.T
        left = torch.where(size > 0, (inputs - along @ self.rows).norm(dim=-1) / size, 1.0)
        return left, self.blur * (along / self.values).norm(dim=-1) / size


@dataclass(frozen=True, eq=False)
class TextLayer:
    """Weights that multiply the same rows of vectors, a row a place, `first` places before those of the text."""

    graph: Graph
    observation: Observation
    products: list[OuterSum]
    by_text: bool  # whether the rows of a text follow each other; else those of a place do
    first: int = 0
    alone: bool = True  # a row depends on the token at its place alone; else also on those before it

    @cached_property
    def span(self) -> Span:
        """Of the gradients of its weights; random texts show in how many directions its inputs lie."""
        data, parts = self.observation.task.data, []
        tokens = (self.observation.examples or 1) * data.shape[0]
        for product in self.products:
            entries = SentTensor.of(self.observation, product.weight or "", operations=tokens)[...]
            sent, error = (product.matrices(t)[0].cpu() for t in (entries.value, entries.hard))
            noise = SPREAD * float(error.square().mean().sqrt())
            parts.append(sent / max(noise, torch.finfo(torch.float64).tiny))
        every = torch.cat(parts)
        largest, taken = [sum(size**0.5 for size in one.shape) for one in (every, *parts)], list[int]()
        for one, noise in zip(parts, largest[1:], strict=True):
            shown = int((torch.linalg.svdvals(one) > CLEAR * noise).sum())
            taken += [shown] * (shown == min(one.shape))
        count, generator = TWICE * every.shape[1] // data.shape[0] + 1, torch.Generator().manual_seed(0)
        texts = torch.randint(data.vocabulary, (count, *data.shape), generator=generator)
        wide = int(torch.linalg.matrix_rank(self.given(texts).flatten(0, 1), rtol=FAINT))
        values, rows = torch.linalg.svd(every / largest[0], full_matrices=False)[1:]
        rows, values = rows[values > 1], values[values > 1]
        blur = ((every.shape[1] - len(rows)) ** 0.5 + 1) / largest[0]
        return Span(rows, values, blur, min(wide, len(every) - 1), tokens, wide, taken)

    @property
    def name(self) -> str:
        return (self.products[0].weight or "").rpartition(".")[0]

    def too_narrow(self, layers: list[TextLayer]) -> str:
        """Why nothing is read where more tokens enter than the layer's weights tell apart, or show; else empty.

        It names the least rank that could do, with two directions more than tokens, as others lie near a span that
        lacks one; none where inputs of none of the `layers` have so many, or no weight shows as many as its rank."""
        span, count, (_, out, wide) = self.span, len(self.products), self.products[0].shape
        rows = sum(p.shape[1] for p in self.products)
        rank = span.entering + 2 if rows > wide else -(-(span.entering + 3) // count)
        does = span.entering + 1 < max(x.span.wide for x in layers) and not wide < rows <= rank
        which = f"{count} weights of rank {min(out, wide)} tell" if count > 1 else f"its rank of {min(out, wide)} tells"
        words = f"{span.entering} tokens enter {self.name}; {which} at most {span.most - 1} apart"
        if not span.short:
            words = f"{span.entering} tokens enter {self.name}; its gradients show {len(span.rows)} directions"
            others = max(len(span.rows) - sum(span.taken), 0)  # of weights whose errors have few, at any rank
            rank = -((others - span.entering - 2) // max(len(span.taken), 1))
            does = max(span.taken, default=rank) < rank <= max(x.span.wide for x in layers)
        told = f"{words}{f'; it takes rank {rank} or more' * does}"
        return told * (span.short or len(span.rows) < span.entering)

    def given(self, texts: Int[Tensor, "n length"]) -> Float[Tensor, "n length width"]:
        """What the layer is given at the places of texts."""
        return self.rows(texts)[:, self.first : self.first + texts.shape[1]]

    def rows(self, texts: Int[Tensor, "n length"]) -> Float[Tensor, "n places width"]:
        """What it is given at all places; of none where it has no row for each place of each text."""
        (term,), task, count = self.products[0].terms, self.observation.task, len(texts)
        assert term.activation is not None
        like = task.like
        batch = Batch(texts.to(like), torch.zeros(count, dtype=torch.long, device=like.device))
        with torch.no_grad():
            found = self.graph.rows(term, term.activation, task, batch)[0].detach().cpu().double()
        return self.texts(found, count)

    def texts(self, rows: Float[Tensor, "rows columns"], count: int) -> Float[Tensor, "n places columns"]:
        """Rows text by text; none where it has no row for each place of each text."""
        places = 0 if len(rows) % count else len(rows) // count
        if self.by_text:
            return rows[: count * places].view(count, places, -1)
        return rows[: count * places].view(places, count, -1).transpose(0, 1)


def text_layers(observation: Observation, generator: torch.Generator) -> list[TextLayer]:
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
    together: dict[object, list[OuterSum]] = {}
    for product in graph.products:
        given, once = product.activation, product.weight is not None and len(product.terms) == 1
        plain = given is not None and not given.hot and not given.windows and once
        if plain and given is not None and product.shape[0] == 1 and product.shape[2] > 1:
            together.setdefault((graph.same[given.node], product.shape[2]), []).append(product)
    found = []
    for products in together.values():
        for by_text in (True, False):
            layer = TextLayer(graph, observation, products, by_text)
            base, later, before, text = layer.rows(texts).split(PROBES)
            if bool((base != text)[1:].any()):
                continue  # another text moves these rows
            moved, seen = ((base != each).any(2).any(0) for each in (later, before))
            for first in range(len(moved) - length + 1):
                inside, ahead = (m[first : first + length] for m in (moved, seen))
                if torch.equal(inside, places >= middle) and not bool(ahead[: max(middle - 1, 0)].any()):
                    alone = int(seen.sum()) == 1 and int(moved.sum()) == length - middle
                    if alone or bool(ahead[middle:].any()):
                        found.append(replace(layer, first=first, alone=alone))
                    break
            break
    return found


def read_places(
    observation: Observation, layers: list[TextLayer], occur: Bool[Tensor, " vocabulary"] | None
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


def narrow(layers: list[TextLayer]) -> str:
    """`TextLayer.too_narrow` of the widest that tokens enter one by one, where each of them is."""
    alone = [layer for layer in layers if layer.alone]
    said = [(layer.span.most, layer.too_narrow(alone)) for layer in alone if len(layer.span.rows)]
    return max(said, key=lambda each: each[0])[1] if said and all(why for _, why in said) else ""


def fitting(
    observation: Observation, layers: list[TextLayer], chance: float = float("inf"), occur: Tensor | None = None
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
    observation: Observation, layers: list[TextLayer], tokens: Int[Tensor, " k"]
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
    observation: Observation, layers: list[TextLayer], occur: Bool[Tensor, " vocabulary"] | None
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


def _grown(layer: TextLayer, tokens: Bool[Tensor, "length k"], examples: int) -> tuple[Tensor, Tensor] | None:
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
