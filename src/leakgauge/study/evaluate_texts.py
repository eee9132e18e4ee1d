"""Texts beside what was read of them, as `leakgauge.study.evaluate` does for numbers."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from leakgauge.data.source import spec
from leakgauge.metrics.likeness import Placed, one_to_one
from leakgauge.metrics.metric import counts_of, frequent_tokens, token_agreement, uncovered
from leakgauge.observation import Reconstruction, Status, TokenCounts
from leakgauge.study.evaluate import Evaluation, Truth, label_scores, other_clients
from leakgauge.study.judging.records import Nulls, OtherClients, Scores, TokenScores, Words
from leakgauge.task import Batch, DataSpec


def evaluate_texts(reconstruction: Reconstruction, truth: Truth, data: DataSpec, *, labels_known: bool) -> Evaluation:
    """Scores a client's texts against the tokens that were read.

    A line-up of texts is by the share of a text's tokens that the read lacks: a text is identified where it lacks fewer
    of it than of every stranger's, and recovered where these are at most half of what as many frequent tokens lack.
    """
    labels = label_scores(reconstruction, truth, data, labels_known)
    read, n = reconstruction.tokens, len(truth.batch)
    public, own = _counts(truth.public, data), _counts(truth.batch.inputs, data)
    if read is None or not reconstruction.status.has_result:
        guess = _line_up(_frequent(public, data.shape[0]), truth, data)(own)
        return Evaluation(None, labels, Nulls.of((), _hits(guess), (), None), (None,) * n)
    kept = _spoken(read, data)
    line_up = _line_up(kept, truth, data)
    constant = _line_up(_frequent(public, int((kept.sum(0) > 0).sum())), truth, data)
    placed, guess, order = line_up(own), constant(own), None
    texts = truth.batch.inputs.round().long()
    if read.order is not None:
        nowhere = torch.full_like(texts[0], -1)
        order = torch.stack([nowhere if s is None else read.order[s].to(texts) for s in placed.slots])
    scores = Scores(
        psnr=(None,) * n,
        mse=(None,) * n,
        rank=tuple(placed.ranks.tolist()),
        identified=tuple(placed.identified.tolist()),
        recovered=tuple(placed.recovered(guess.residuals).tolist()),
        exact=(False,) * n if order is None else tuple((order == texts).all(1).tolist()),
        certified=n if reconstruction.status is Status.EXACT else 0,
        gallery=len(truth.gallery),
        whole=len(truth.gallery) if truth.whole is None else truth.whole,
    )
    found, true = kept.sum(0), own.sum(0)
    said = torch.ones_like(texts, dtype=torch.bool) if data.padding is None else texts != data.padding
    precision, recall, f1 = token_agreement(found, true)
    tokens = TokenScores(
        precision=round(precision, 4),
        recall=round(recall, 4),
        f1=round(f1, 4),
        constant_f1=round(token_agreement(frequent_tokens(public, n), true)[2], 4),
        exact_set=torch.equal(found > 0, true > 0),
        exact_counts=torch.equal(found, true),
        counted=read.counted,
        in_place=None if order is None else round(float((order == texts)[said].double().mean()), 4),
    )
    # Who holds a text of the same tokens is no other client.
    held = other_clients(truth, lambda x: (_counts(x, data)[:, None] == own).all(2))
    strange = [(line_up(texts), constant(texts)) for texts in (_counts(x, data) for x in held)]
    back = tuple(int(reads.recovered(bars.residuals).sum()) for reads, bars in strange)
    others = OtherClients((), tuple(_hits(reads) for reads, _ in strange), back) if strange else None
    return Evaluation(scores, labels, Nulls.of((), _hits(guess), (), others), placed.slots, tokens)


def _counts(texts: Tensor, data: DataSpec) -> Int[Tensor, "n vocabulary"]:
    return counts_of(texts, data.vocabulary, data.padding)


def _spoken(read: TokenCounts, data: DataSpec) -> Int[Tensor, "k vocabulary"]:
    counts = read.counts.cpu().clone()
    if data.padding is not None:
        counts[:, data.padding] = 0
    return counts


def _frequent(public: Int[Tensor, "k vocabulary"], most: int) -> Int[Tensor, "1 vocabulary"]:
    total = public.sum(0)
    chosen = total.argsort(descending=True, stable=True)[:most]
    return torch.zeros_like(total).scatter_(0, chosen, total[chosen])[None]


def _hits(placed: Placed) -> int:
    return int(placed.identified.sum())


def _line_up(
    read: Int[Tensor, "k vocabulary"], truth: Truth, data: DataSpec
) -> Callable[[Int[Tensor, "n vocabulary"]], Placed]:
    """Reads of one client, one for all its texts or each its own, beside the texts of strangers: what a read leaves is
    the share of the text that it lacks. Ties count against identification; a stranger of the same tokens steps out."""
    strangers = _counts(truth.gallery, data)
    lacks = torch.cat([uncovered(read, strangers), torch.zeros(1, len(strangers))])  # the last is nearest: no read

    def place(own: Int[Tensor, "n vocabulary"]) -> Placed:
        missing = uncovered(read, own)
        slots: list[int | None] = [0] * len(own) if len(read) == 1 else one_to_one(missing.T)
        at = [-1 if slot is None else slot for slot in slots]
        left = torch.cat([missing, torch.ones(1, len(own))])[at, range(len(own))]
        others = torch.stack([(strangers != text).any(1) for text in own])
        ranks = 1 + (others & (lacks[at] <= left[:, None] + 1e-9)).sum(1)
        return Placed(tuple(slots), ranks, left[None], ranks[None] == 1)

    return place


def in_words(
    source: Any, batch: Batch, reconstruction: Reconstruction, order: Sequence[int | None], *, counts_only: bool
) -> Words:
    """What is true and what was read of each example, and the share of its words that was read.

    For texts, the read is the text itself where its order is known (`form` says so), else its tokens in the order of
    the alphabet, each as often as it was read.
    """
    data, true, read = spec(source), source.in_words(batch.inputs), reconstruction.tokens
    found: Sequence[Tensor] | Tensor | None = reconstruction.inputs
    form, is_bag = None, False
    if data.is_text and read is None:
        form, found = "", None
    elif data.is_text and read is not None and read.order is not None:
        form, found = "in order", read.order.double()
    elif data.is_text and read is not None:
        form = "its tokens" if len(read.counts) == len(batch) else f"tokens of all {len(batch)} texts together"
        form, is_bag = form + ("" if read.counted else ", each once"), True
        vocabulary = torch.arange(data.vocabulary, dtype=torch.float64)
        found = [vocabulary.repeat_interleave(row) for row in _spoken(read, data)]
    reads = [None if found is None or slot is None else source.in_words(found[slot][None])[0] for slot in order]
    reads = [one and sorted(one) for one in reads] if is_bag else reads
    shares = [round(_agree(own, one or [], data) / max(len(own), 1), 4) for own, one in zip(true, reads, strict=True)]
    if counts_only:
        return Words(match=shares)
    return Words(columns=tuple(source.columns), true=true, read=reads, match=shares, form=form)


def _agree(true: list[str], read: list[str], data: DataSpec) -> int:
    """How many words of a text are in both, or cells of a table equal in their places."""
    if data.is_text:
        return (Counter(true) & Counter(read)).total()
    return sum(a == b for a, b in zip(true, read, strict=bool(read)))
