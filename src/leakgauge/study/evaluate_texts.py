"""Texts beside what was read of them, as `leakgauge.study.evaluate` does for numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from leakgauge.data.source import InWords, Lent
from leakgauge.metrics.assignment import one_to_one
from leakgauge.metrics.labels import counts_of, frequent_tokens, token_agreement, uncovered
from leakgauge.observation import Reconstruction, Status, TokenCounts
from leakgauge.study.evaluate import EXPLAINED, STRANGERS, Evaluation, Truth, label_scores
from leakgauge.study.judging.scores import MeanImage, NearestPublic, Nulls, OtherClients, Scores, TokenScores, Words
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
        constant = _line_up(_frequent(public, data.shape[0]), truth, data)
        nothing = Nulls(MeanImage((), constant(own)[0].count(1)), NearestPublic(()), None)
        return Evaluation(None, labels, nothing, (None,) * n)
    kept = _spoken(read, data)
    line_up = _line_up(kept, truth, data)
    constant = _line_up(_frequent(public, int((kept.sum(0) > 0).sum())), truth, data)
    ranks, left, slots = line_up(own)
    guesses, bar, _ = constant(own)
    texts = truth.batch.inputs.round().long()
    scores = Scores(
        psnr=(None,) * n,
        ssim=None,
        mse=(None,) * n,
        lpips=None,
        likeness=None,
        rank=tuple(ranks),
        identified=tuple(rank == 1 for rank in ranks),
        recovered=tuple(rank == 1 and a <= EXPLAINED * b for rank, a, b in zip(ranks, left, bar, strict=True)),
        exact=tuple(
            read.order is not None and slot is not None and torch.equal(read.order[slot].to(text), text)
            for slot, text in zip(slots, texts, strict=True)
        ),
        trained_psnr=None,
        certified=n if reconstruction.status is Status.EXACT else 0,
        gallery=len(truth.gallery),
        whole=len(truth.gallery) if truth.whole is None else truth.whole,
    )
    controls = Nulls(MeanImage((), guesses.count(1)), NearestPublic(()), _others(line_up, constant, truth, data))
    tokens = _tokens(read, kept.sum(0), own.sum(0), frequent_tokens(public, n), texts, slots, data)
    return Evaluation(scores, labels, controls, tuple(slots), tokens)


def _tokens(
    read: TokenCounts,
    found: Int[Tensor, " vocabulary"],
    true: Int[Tensor, " vocabulary"],
    guess: Int[Tensor, " vocabulary"],
    texts: Int[Tensor, "n length"],
    slots: list[int | None],
    data: DataSpec,
) -> TokenScores:
    precision, recall, f1 = token_agreement(found, true)
    places = None
    if read.order is not None:
        said = torch.ones_like(texts, dtype=torch.bool) if data.padding is None else texts != data.padding
        mine = torch.stack([torch.full_like(texts[0], -1) if s is None else read.order[s].to(texts) for s in slots])
        places = round(float((mine == texts)[said].double().mean()), 4)
    return TokenScores(
        precision=round(precision, 4),
        recall=round(recall, 4),
        f1=round(f1, 4),
        constant_f1=round(token_agreement(guess, true)[2], 4),
        exact_set=torch.equal(found > 0, true > 0),
        exact_counts=torch.equal(found, true),
        counted=read.counted,
        in_place=places,
    )


def _counts(texts: Tensor | Lent, data: DataSpec) -> Int[Tensor, "n vocabulary"]:
    return counts_of(texts.whole() if isinstance(texts, Lent) else texts, data.vocabulary, data.padding)


def _spoken(read: TokenCounts, data: DataSpec) -> Int[Tensor, "k vocabulary"]:
    """How often each token was read, padding left out."""
    counts = read.counts.cpu().clone()
    if data.padding is not None:
        counts[:, data.padding] = 0
    return counts


def _frequent(public: Int[Tensor, "k vocabulary"], most: int) -> Int[Tensor, "1 vocabulary"]:
    total = public.sum(0)
    chosen = total.argsort(descending=True, stable=True)[:most]
    return torch.zeros_like(total).scatter_(0, chosen, total[chosen])[None]


Place = Callable[[Int[Tensor, "n vocabulary"]], tuple[list[int], list[float], list[int | None]]]
"""Rank of each text, what its read lacks of it, and which read that is: one for all, or each its own."""


def _line_up(read: Int[Tensor, "k vocabulary"], truth: Truth, data: DataSpec) -> Place:
    """Reads of one client beside the texts of strangers. Ties count against identification; a stranger of the same
    tokens steps out."""
    strangers = _counts(truth.gallery, data)
    lacks = uncovered(read, strangers)

    def place(own: Int[Tensor, "n vocabulary"]) -> tuple[list[int], list[float], list[int | None]]:
        slots: list[int | None] = [0] * len(own) if len(read) == 1 else one_to_one(uncovered(read, own).T)
        ranks, left = [], []
        for text, slot in zip(own, slots, strict=True):
            mine = 1.0 if slot is None else float(uncovered(read[slot][None], text[None]))
            other = (strangers != text).any(1)
            nearer = torch.ones_like(other) if slot is None else lacks[slot] <= mine + 1e-9
            ranks.append(1 + int((nearer & other).sum()))
            left.append(mine)
        return ranks, left, slots

    return place


def _others(line_up: Place, constant: Place, truth: Truth, data: DataSpec) -> OtherClients | None:
    """The same reads held against other clients' texts. Who holds a text of the same tokens is no other client."""
    n, own = len(truth.batch), _counts(truth.batch.inputs, data)
    public = truth.public.whole() if isinstance(truth.public, Lent) else truth.public
    held = [_counts(x, data) for x in (*(b.inputs for b in truth.others), *public.split(n)) if len(x) == n]
    clients = [x for x in held if not bool((x[:, None] == own).all(2).any())][: max(2, STRANGERS // n)]
    if not clients:
        return None
    seen, back = [], []
    for texts in clients:
        ranks, left, _ = line_up(texts)
        bar = constant(texts)[1]
        seen.append(sum(rank == 1 for rank in ranks))
        back.append(sum(r == 1 and a <= EXPLAINED * b for r, a, b in zip(ranks, left, bar, strict=True)))
    return OtherClients((), tuple(seen), tuple(back))


def in_words(
    source: InWords,
    data: DataSpec,
    batch: Batch,
    reconstruction: Reconstruction,
    order: tuple[int | None, ...],
    *,
    counts_only: bool,
) -> Words:
    """What is true and what was read of each example, and the share of its words that was read.

    For texts, the read is the text itself where its order is known (`form` says so), else its tokens in the order of
    the alphabet, each as often as it was read.
    """
    true, read = source.in_words(batch.inputs), reconstruction.tokens
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
    same = _in_common if data.is_text else _in_place
    shares = [round(same(own, one or []) / max(len(own), 1), 4) for own, one in zip(true, reads, strict=True)]
    if counts_only:
        return Words(match=shares)
    return Words(columns=tuple(source.columns), true=true, read=reads, match=shares, form=form)


def _in_place(true: list[str], read: list[str]) -> int:
    return sum(a == b for a, b in zip(true, read, strict=bool(read)))


def _in_common(true: list[str], read: list[str]) -> int:
    return (Counter(true) & Counter(read)).total()
