"""How well labels were recovered, and how well a guess from the class prior would do."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from scipy.stats import binom
from torch import Tensor

from leakgauge.errors import require
from leakgauge.metrics.assignment import classes_of


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
    guessed, true = _counts(labels_hat, classes), _counts(labels, classes)
    total = int(guessed.sum() + true.sum())
    return 2 * int(torch.minimum(guessed, true).sum()) / total if total else 0.0


def label_f1_by_prior(labels: Tensor, prior: Float[Tensor, " classes"], guesses: int | None = None) -> float:
    """Exact expectation of `label_f1` for `guesses` labels drawn independently from the class prior.

    Linear in E min(B, c) = Σ_{j≤c} P(B ≥ j) with B ~ Binomial(guesses, prior of the class), so nothing is
    simulated. `guesses` is the number of true labels unless given.

    Raises:
        InputError: the prior is no distribution.
    """
    true, p, m = _against(labels, prior, guesses)
    overlap = sum(float(binom.sf(j, m, q)) for c, q in zip(true, p, strict=True) for j in range(c))
    total = m + sum(true)
    return 2 * overlap / total if total else 0.0


def best_constant(prior: Float[Tensor, " classes"], guesses: int) -> Int[Tensor, " guesses"]:
    """The labels that an attacker would guess of every client alike: those with the largest expected `label_f1` over
    clients whose labels are drawn from the prior.

    A j-th copy of class k adds P(Binomial(guesses, pₖ) ≥ j), which falls with j, so the `guesses` largest of all are
    the best. For two equal classes and four examples it is two of each.

    Raises:
        InputError: the prior is no distribution.
    """
    _, p, m = _against(torch.zeros(0, dtype=torch.int64), prior, guesses)
    gains = sorted((-float(binom.sf(j, m, q)), j, k) for k, q in enumerate(p) for j in range(m))
    return torch.tensor(sorted(k for _, _, k in gains[:m]), dtype=torch.int64)


def _against(labels: Tensor, prior: Tensor, guesses: int | None) -> tuple[list[int], list[float], int]:
    p = [float(q) for q in prior.double().tolist()]
    is_distribution = bool(p) and min(p) >= 0 and abs(sum(p) - 1) < 1e-6
    require(is_distribution, "prior", "is not a distribution", "give non-negative shares that sum to one")
    return _counts(labels, len(p)).tolist(), p, len(labels) if guesses is None else guesses
