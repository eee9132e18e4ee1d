"""The tokens of a client's texts, off the rows of the embedding that its update moved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.attacks.closed_form.proof import NamedLabels, name_labels, noise_share, tried_labels
from leakgauge.attacks.closed_form.token_rows import (
    MovedRows,
    TokenTable,
    counts_of_pooled,
    moved_rows,
    other_texts,
    token_table,
)
from leakgauge.attacks.closed_form.token_spans import UNHEARD, fitting, narrow, read_places, read_texts, text_layers
from leakgauge.attacks.closed_form.unmixing import read_apart
from leakgauge.attacks.effort import ReadingAttack
from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.defenses.dp import only_scales
from leakgauge.defenses.steps import Noise
from leakgauge.observation import Cost, Observation, Reconstruction, Status, TokenCounts
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch, DataSpec
from leakgauge.tensors import Tensors
from leakgauge.view.graph import followed

NEEDS = "a trained embedding of the input's tokens"
LIKELY = 2
"""Tokens that are tried at a place that only the loss hears, for each token: shared tables move for these too."""
MOST_TRIED = 1024  # tokens of a vocabulary of which every one is tried there
MOST_FITTING = 1024  # tokens that fit at the places of all texts, each of which is tried by itself in each round
CHANCE = 0.5  # tokens that did not enter a layer and are expected to look as if, at most, where it names any
ROUNDS, SKETCH = 4, 2**14  # of least squares for texts of such tokens, and how many sums of entries these look at


@ATTACKS.register("tokens", needs=f"texts; {NEEDS}")
@dataclass(frozen=True)
class TokenRead(ReadingAttack):
    """Which tokens a client's texts hold, without a search.

    The row of a token that does not occur has gradient zero: it moves not at all, or by weight decay. Rows that moved
    otherwise are the tokens that occur, whatever the number of texts and local steps, and for Adam. It proves that they
    occur unless the defence is unknown, and that no others do where random texts move every row of theirs and no
    defence leaves entries out.

    How often they occur is read where a model adds a text's embeddings up (`token_rows`), and of one gradient where
    fewer tokens reach a layer than it shows directions: texts in order, certified by simulating the client
    (`token_spans`), one through any attention, several where no token sees a later one, where what the network's own
    symmetry binds in each text tells them apart (`unmixing`), or where few tokens fit at a place. Elsewhere each token
    counts once, and the message says why.

    Texts in order need no embedding that shows its tokens: where it is frozen, shared with the output layer or absent
    (one-hot vectors) all tokens are tried at every place. Where tokens explain the update in another order too, they
    are proved without one; where nothing does, those whose inputs lie in a layer's span are named, not proved.

    Behind Gaussian or Laplace noise of known σ the tokens are the rows that moved by more than noise moves any; behind
    other noise, and where it is below rounding, they are read as without it. Nothing is proved then.

    Source: Melis et al., *Exploiting Unintended Feature Leakage in Collaborative Learning*, 2019, for the rows; Petrov
    et al., *DAGER*, NeurIPS 2024, for the span of a layer's inputs. Differs: what decay moves is taken off by
    simulation; the counts of pooled texts, and what is bound in a text, are ours.
    """

    def read(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """`EXACT` where every token is proved to occur. Costs the evaluations that certify an order."""
        observation = observation.origin
        task, defense = observation.task, observation.knowledge.defense
        if not task.data.is_text:
            return Reconstruction.not_applicable("the examples are no texts")
        others = defense is not None and other_texts(task, defense, observation.examples, generator)
        table = token_table(task)
        if table is None and isinstance(why := followed(task), str):
            return Reconstruction.not_applicable(why)
        named = name_labels(observation, generator)
        moved = f"needs {NEEDS}" if table is None else moved_rows(observation, table, generator)
        if isinstance(moved, MovedRows) and not bool(moved.rows.any()):
            why = f"no row of the embedding moved{' by more than the noise' * moved.noisy}"
            return Reconstruction(None, None, Status.FAILED, why)
        if table is not None and isinstance(moved, MovedRows):
            found, labels, spent, message = _counted(observation, table, moved, named.labels, generator)
        else:
            found, labels, spent, message = _ordered(observation, None, named.labels, generator)
        if others and (found is None or found.order is None):
            return Reconstruction.not_applicable("the defence trains on other texts than the client holds")
        noisy = moved.noisy if isinstance(moved, MovedRows) else not only_scales(defense, own=True)
        proved = found is not None and defense is not None and not (others or noisy)
        if found is None:
            found, words = _spanned(observation, generator)
            message = f"{moved}{message}{words}"
        if found is None:
            return replace(Reconstruction.not_applicable(message), cost=Cost(spent))
        found = replace(found, counts=found.counts[:, : task.data.vocabulary])
        status, alone = Status.EXACT if proved else Status.CONVERGED, observation.examples == 1
        told = Reconstruction(None, labels, status, message, cost=Cost(spent), paired=alone, tokens=found)
        return replace(told, label_confidence=named.confidence)


def _counted(
    observation: Observation, table: TokenTable, moved: MovedRows, labels: Tensor | None, generator: torch.Generator
) -> tuple[TokenCounts | None, Tensor | None, int, str]:
    """What is read, the labels, the evaluations that it cost, and all in words."""
    rows = moved.rows
    once = TokenCounts(rows.long()[None], False, moved.whole)
    named = f"{int(rows.sum())} of {len(rows)} rows moved{' beyond the noise' * moved.noisy}: these tokens occur"
    named += ", and no others" if moved.whole else ", others may"
    pooled = counts_of_pooled(observation, table, rows) if _plain(observation) else None
    if pooled is not None:
        return replace(once, counts=pooled, counted=True), labels, 0, f"{named}; counted text by text"
    found, labels, spent, why = _ordered(observation, rows | moved.always, labels, generator)
    return found or once, labels, spent, f"{named}; {why}" if found else f"{named}; how often is not read{why}"


def _plain(observation: Observation) -> bool:
    """Whether the entries of a tensor are those of gradients, but for their length and noise."""
    return only_scales(observation.knowledge.defense, Noise, own=True) and not observation.rescaled


def _ordered(
    observation: Observation, occur: Bool[Tensor, " v"] | None, labels: Tensor | None, generator: torch.Generator
) -> tuple[TokenCounts | None, Tensor | None, int, str]:
    """Texts in order, of tokens that `occur` (`None`: any), that explain the update; the labels that are given or that
    the update shows for them; their price; what hinders it."""
    task = observation.task
    explainer = Explainer.of(observation, generator)
    if not _plain(observation) or observation.examples is None or noise_share(observation) > explainer.tolerance:
        return None, labels, 0, ""
    dropped = "the network drops at random what its layers are given"
    if isinstance(why := dropped if task.stochastic else followed(task), str):
        return None, labels, 0, f": {why}"
    layers, reasons = text_layers(observation, generator), list[str]()
    for way in (read_places, read_texts) if observation.examples == 1 else (read_texts, read_apart, None):
        if way is not None:
            tried, why = way(observation, layers, occur)
        elif labels is None:
            continue
        else:
            fits = fitting(observation, layers, occur=occur)
            tried, why = _arranged(explainer, labels, fits, task.data.padding), ""
        for texts in (whole for some in tried for whole in _filled(explainer, some, labels)):
            why = "the update does not prove the texts found"
            own = labels is None or len(texts) > 1
            tried_ones = tried_labels(observation, texts.double()) if own else NamedLabels(None)
            explainer.spent += tried_ones.cost
            if (whose := labels if tried_ones.labels is None else tried_ones.labels) is None:
                continue
            batch = Batch(texts.double(), whose)
            counts, order = _proved(explainer, batch, task.data, each=occur is None or way is not read_texts)
            if counts is not None:
                what = "the text in order, which explains the update"
                if len(texts) > 1:
                    what = f"{len(texts)} texts in order, which explain the update"
                if not order:
                    among = " and in whichever text" * (len(counts) < len(texts))
                    what = f"tokens explain the update, in whatever order{among}"
                return TokenCounts(counts, True, True, texts if order else None), whose, explainer.spent, what
        reasons.append(why)
    return None, labels, explainer.spent, f": {'; '.join(filter(None, dict.fromkeys((reasons[0], narrow(layers)))))}"


def _arranged(
    explainer: Explainer, labels: Tensor, fits: Bool[Tensor, "length v"] | None, padding: int | None
) -> Iterator[Int[Tensor, "n length"]]:
    """Texts of tokens that fit at their places, or are padding, if they explain the update.

    A token at one place of one text changes the update almost by itself. So least squares say which share of each such
    change makes the update up; the token of the largest is put there, and again from what that makes."""
    if fits is None:
        return
    if padding is not None:
        fits[:, padding] = True
    count = len(labels)
    if not bool(fits.any(1).all()) or count * int(fits.sum()) > MOST_FITTING:
        return
    found = torch.stack([row.nonzero().flatten()[torch.arange(count) % int(row.sum())] for row in fits], 1)
    sizes, draw = [sent.numel() for sent in explainer.simulator.observed.values()], torch.Generator().manual_seed(0)
    into, least = torch.randint(2 * SKETCH, (sum(sizes),), generator=draw), float("inf")
    seen = _sketched(explainer.simulator.observed, into)
    for _ in range(ROUNDS):
        left = explainer.left(Batch(found.double(), labels))
        if left <= explainer.tolerance:
            yield found
        if not left < least:  # or not a number
            return
        least, every = left, [(row, *cell) for row in range(count) for cell in fits.nonzero().tolist()]
        cells = [cell for cell in every if found[cell[:2]] != cell[2]]
        changed = found.repeat(len(cells) + 1, 1, 1)
        for each, (row, place, token) in zip(changed, cells, strict=False):
            each[row, place] = token
        explainer.spent += len(changed) * explainer.simulator.cost(count)
        with torch.no_grad():
            sent = (explainer.simulator(Batch(each.double(), labels)) for each in changed)
            made = torch.stack([_sketched(one, into) for one in sent], 1)
        made[:, :-1] -= made[:, -1:]
        *shares, whole = torch.linalg.lstsq(made, seen[:, None], driver="gelsd").solution.flatten().tolist()
        best = torch.full(found.shape, whole, dtype=torch.float64)
        for share, cell in zip(shares, cells, strict=True):
            best[cell[:2]] -= share
        for share, cell in sorted(zip(shares, cells, strict=True)):
            if share > best[cell[:2]]:
                found[cell[:2]] = cell[2]


def _sketched(tensors: Tensors, into: Int[Tensor, " entries"]) -> Float[Tensor, " m"]:
    """Sums of entries with random signs, `SKETCH` in all, that keep distances; `into` which, with either sign."""
    entries = torch.cat([tensors[name].flatten() for name in sorted(tensors)]).cpu()
    plus, minus = entries.new_zeros(2 * SKETCH).index_add(0, into, entries).chunk(2)
    return plus - minus


def _filled(
    explainer: Explainer, texts: Int[Tensor, "n length"], labels: Tensor | None
) -> Iterator[Int[Tensor, "n length"]]:
    """Texts with tokens at the places that are `UNHEARD`: targets of places before, perhaps. First those in whose rows
    the update of the texts with token 0 there differs, then every token of a vocabulary of at most `MOST_TRIED`."""
    open_ = texts == UNHEARD
    if not bool(open_.any()):
        yield texts
    if labels is None or not bool(open_.any()):
        return
    vocabulary, places = explainer.simulator.task.data.vocabulary, open_.nonzero().tolist()
    explainer.spent += explainer.simulator.cost(len(texts))
    with torch.no_grad():
        made = explainer.simulator.exact(Batch(texts.masked_fill(open_, 0).double(), labels))
    moved = torch.zeros(vocabulary, dtype=torch.float64)
    for name, sent in explainer.simulator.observed.items():
        for axis in (a for a, size in enumerate(sent.shape) if size == vocabulary):
            gap = (sent - made[name]).detach().movedim(axis, 0).flatten(1)
            moved = torch.maximum(moved, gap.norm(dim=1).cpu())
    by_rows = [*moved.argsort(descending=True)[: LIKELY * texts.numel()].tolist(), 0] if bool(moved.any()) else []
    for tokens in (list(dict.fromkeys(by_rows)), list(range(vocabulary)) if vocabulary <= MOST_TRIED else []):
        if not tokens:
            continue
        found = texts.masked_fill(open_, 0)
        for row, place in places * min(len(places), 2):  # what one adds to the update does not depend on the others
            tried = found.expand(len(tokens), -1, -1).clone()
            tried[:, row, place] = torch.tensor(tokens)
            found = min(tried, key=lambda some: explainer.left(Batch(some.double(), labels)))
        yield found


def _counts(texts: Float[Tensor, "n length"], vocabulary: int) -> Int[Tensor, "n vocabulary"]:
    return torch.stack([torch.bincount(text, minlength=vocabulary) for text in texts.long()])


def _proved(
    explainer: Explainer, batch: Batch, data: DataSpec, *, each: bool
) -> tuple[Int[Tensor, "k vocabulary"] | None, bool]:
    """How often texts hold each token, one row for all where the update does not say which text does, and whether it
    proves their order: they explain it to its rounding, and other texts near them do not. `None` where those have
    other tokens. In `each` text by itself tokens are exchanged, or in all at once."""
    if explainer.left(batch) > explainer.tolerance:
        return None, False
    counts, order = _counts(batch.inputs, data.vocabulary), True
    for other in _near(batch.inputs, data, each=each):
        if explainer.left(Batch(other, batch.labels)) <= 10 * explainer.tolerance:
            others, order = _counts(other, data.vocabulary), False
            if not torch.equal(others.sum(0), counts.sum(0)):
                return None, False
            if len(others) == len(counts) and not torch.equal(others, counts):
                counts = counts.sum(0, keepdim=True)
    return counts, order


def _spanned(observation: Observation, generator: torch.Generator) -> tuple[TokenCounts | None, str]:
    """Tokens whose input lies in the span of what a layer was sent. They may occur; nothing is proved."""
    if not _plain(observation) or isinstance(followed(observation.task), str):
        return None, ""
    layers = [layer for layer in text_layers(observation, generator) if not layer.span.short]
    fits = fitting(observation, layers, CHANCE)
    if fits is None or not bool(fits.any()) or bool(fits.all(1).any()):
        return None, ""
    found = fits.any(0)
    words = f"; the inputs of {int(found.sum())} of {len(found)} tokens lie in the span of a layer's gradient"
    return TokenCounts(found.long()[None], False, False), f"{words}: these may occur"


def _near(texts: Float[Tensor, "n length"], data: DataSpec, *, each: bool) -> Iterator[Float[Tensor, "n length"]]:
    """Texts with another token at a place, two neighbours exchanged, or those of two texts at a place, or a last token
    less or twice (without places the same to a network that takes the mean)."""
    (count, length), fill = texts.shape, 0 if data.padding is None else data.padding
    for some in [[i] for i in range(count)] if each else [list(range(count))]:
        for place in range(length):
            other = texts.clone()
            other[some, place] = (other[some, place] + 1) % data.vocabulary
            yield other
            turned = texts.clone()
            turned[some, place - 1], turned[some, place] = texts[some, place], texts[some, place - 1]
            if place and not torch.equal(turned, texts):
                yield turned
    for pair, place in product(combinations(range(count if each else 0), 2), range(length)):
        if texts[pair, place].unique().numel() > 1:
            other = texts.clone()
            other[pair, place] = texts[pair[::-1], place]
            yield other
    for index, text in enumerate(texts):
        size = int(((text != fill) * torch.arange(1, length + 1)).max())
        for place, token in ((size - 1, fill), (size, text[size - 1])) if size else ():
            if place < length:
                other = texts.clone()
                other[index, place] = token
                yield other
