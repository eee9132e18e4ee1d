"""Examples and reads in words, as report.json has them: cells of tables, and texts."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.data.source import InWords
from leakgauge.observation import Reconstruction, TokenCounts
from leakgauge.study.judging.records import Words
from leakgauge.task import Batch, DataSpec


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
    true = source.in_words(batch.inputs)
    reads = (
        _texts(source, data, reconstruction.tokens, order) if data.is_text else _cells(source, reconstruction, order)
    )
    shares = [_in_common(t, r) if data.is_text else _equal(t, r) for t, r in zip(true, reads, strict=True)]
    if counts_only:
        return Words(match=shares)
    form = _form(reconstruction.tokens, len(batch)) if data.is_text else None
    return Words(columns=tuple(source.columns), true=true, read=reads, match=shares, form=form)


def _cells(source: InWords, reconstruction: Reconstruction, order: tuple[int | None, ...]) -> list[list[str] | None]:
    found = reconstruction.inputs
    return [None if found is None or slot is None else source.in_words(found[slot : slot + 1])[0] for slot in order]


def _texts(
    source: InWords, data: DataSpec, read: TokenCounts | None, order: tuple[int | None, ...]
) -> list[list[str] | None]:
    if read is None:
        return [None for _ in order]
    if read.order is not None:
        return [None if slot is None else source.in_words(_as_text(read.order[slot]))[0] for slot in order]
    counts = read.counts.clone()
    if data.padding is not None:
        counts[:, data.padding] = 0
    bags = [source.in_words(_as_text(torch.arange(data.vocabulary).repeat_interleave(row)))[0] for row in counts]
    return [None if slot is None else sorted(bags[slot]) for slot in order]


def _as_text(numbers: Tensor) -> Float[Tensor, "1 k"]:
    return numbers[None].double()


def _equal(true: list[str], read: list[str] | None) -> float:
    return round(sum(a == b for a, b in zip(true, read or (), strict=read is not None)) / len(true), 4)


def _in_common(true: list[str], read: list[str] | None) -> float:
    """Share of a text's tokens that are among those read."""
    left, found = list(read or ()), 0
    for word in true:
        if word in left:
            left.remove(word)
            found += 1
    return round(found / max(len(true), 1), 4)


def _form(read: TokenCounts | None, texts: int) -> str:
    """What the read of a text is, in words."""
    if read is None:
        return ""
    if read.order is not None:
        return "in order"
    often = "" if read.counted else ", each once"
    return f"its tokens{often}" if len(read.counts) == texts else f"tokens of all {texts} texts together{often}"
