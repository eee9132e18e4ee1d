"""How well the tokens of texts were recovered, as multisets, and how well a guess without the update does."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def counts_of(
    texts: Float[Tensor, "n length"] | Int[Tensor, "n length"], vocabulary: int, padding: int | None
) -> Int[Tensor, "n vocabulary"]:
    """How often each token occurs in each text; padding is left out, as it says nothing."""
    ids = texts.round().long()
    counts = torch.zeros(len(ids), vocabulary, dtype=torch.long)
    counts.scatter_add_(1, ids, torch.ones_like(ids))
    if padding is not None:
        counts[:, padding] = 0
    return counts


def token_agreement(read: Int[Tensor, " vocabulary"], true: Int[Tensor, " vocabulary"]) -> tuple[float, float, float]:
    """Precision, recall and F1 of two multisets of tokens, each in [0, 1]; higher is more leakage.

    Σ min(read, true) over what was read, over what is true, and over the mean of both. Nothing read scores 0.
    """
    both, m, n = (int(c.sum()) for c in (torch.minimum(read, true), read, true))
    return (both / m if m else 0.0), (both / n if n else 0.0), (2 * both / (m + n) if m + n else 0.0)


def frequent_tokens(public: Int[Tensor, "k vocabulary"], texts: int) -> Int[Tensor, " vocabulary"]:
    """The constant guess for a client of so many texts: each token as often as it occurs in as many public ones, the
    parts of a whole given to those that lack least."""
    expected = public.double().mean(0) * texts
    guess = expected.floor()
    left = int(expected.sum().round() - guess.sum())
    guess[(expected - guess).argsort(descending=True, stable=True)[:left]] += 1
    return guess.long()


def uncovered(read: Int[Tensor, "m vocabulary"], texts: Int[Tensor, "n vocabulary"]) -> Float[Tensor, "m n"]:
    """Share of each text's tokens that do not occur in each read at all, from 0 to 1; 1 for an empty text."""
    missing = texts.double() @ (read == 0).double().T
    total = texts.sum(1, keepdim=True).double()
    return torch.where(total > 0, missing / total.clamp_min(1), 1.0).T
