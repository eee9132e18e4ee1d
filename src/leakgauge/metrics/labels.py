"""How well labels and tokens were recovered, as multisets, and how well a guess without the update does."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from scipy.stats import binom
from torch import Tensor

from leakgauge.errors import require
from leakgauge.metrics.likeness import classes_of


def _counts(labels: Tensor, classes: int) -> Int[Tensor, " classes"]:
    hard = torch.tensor(classes_of(labels), dtype=torch.int64)
    inside = not len(hard) or (int(hard.min()) >= 0 and int(hard.max()) < classes)
    require(inside, "labels", f"are not all in [0, {classes})", "give the number of classes of the task")
    return torch.bincount(hard, minlength=classes)


def label_f1(labels_hat: Int[Tensor, " m"] | None, labels: Tensor, classes: int) -> float:
    """F1 of two multisets, 2·Σ min(ĉ, c) / (m + n) over the counts ĉ, c of each class, in [0, 1]; higher is more
    leakage. Order does not matter. No recovered labels score 0."""
    if labels_hat is None:
        return 0.0
    return token_agreement(_counts(labels_hat, classes), _counts(labels, classes))[2]


def label_f1_by_prior(labels: Tensor, prior: Float[Tensor, " classes"], guesses: int | None = None) -> float:
    """Exact expectation of `label_f1` for `guesses` labels drawn independently from the class prior.

    Linear in E min(B, c) = Σ_{j≤c} P(B ≥ j) with B ~ Binomial(guesses, prior of the class), so nothing is simulated.
    `guesses` is the number of true labels unless given. Raises `InputError`: the prior is no distribution.
    """
    true, p, m = _against(labels, prior, guesses)
    overlap = sum(float(binom.sf(j, m, q)) for c, q in zip(true, p, strict=True) for j in range(c))
    total = m + sum(true)
    return 2 * overlap / total if total else 0.0


def best_constant(prior: Float[Tensor, " classes"], guesses: int) -> Int[Tensor, " guesses"]:
    """The labels that an attacker would guess of every client alike: those with the largest expected `label_f1` over
    clients whose labels are drawn from the prior.

    A j-th copy of class k adds P(Binomial(guesses, pₖ) ≥ j), which falls with j, so the `guesses` largest of all are
    the best. For two equal classes and four examples it is two of each. Raises `InputError`: the prior is no
    distribution.
    """
    _, p, m = _against(torch.zeros(0, dtype=torch.int64), prior, guesses)
    gains = sorted((-float(binom.sf(j, m, q)), j, k) for k, q in enumerate(p) for j in range(m))
    return torch.tensor(sorted(k for _, _, k in gains[:m]), dtype=torch.int64)


def _against(labels: Tensor, prior: Tensor, guesses: int | None) -> tuple[list[int], list[float], int]:
    p = [float(q) for q in prior.double().tolist()]
    is_distribution = bool(p) and min(p) >= 0 and abs(sum(p) - 1) < 1e-6
    require(is_distribution, "prior", "is not a distribution", "give non-negative shares that sum to one")
    return _counts(labels, len(p)).tolist(), p, len(labels) if guesses is None else guesses


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
    """Precision, recall and F1 of two multisets, each in [0, 1]; higher is more leakage.

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
