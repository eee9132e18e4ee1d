"""What a client minimises: its loss on logits and labels, and penalties on what is inside the model."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


@runtime_checkable
class Loss(Protocol):
    """``(logits, labels) → scalar``; labels are indices or soft."""

    def __call__(self, logits: Tensor, labels: Tensor, /) -> Tensor: ...


def cross_entropy(logits: Float[Tensor, "n classes"], labels: Tensor) -> Float[Tensor, ""]:
    """Soft-max cross-entropy, mean over the batch."""
    return F.cross_entropy(logits, labels)


def nll_raw(logits: Float[Tensor, "n classes"], labels: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """Negative log-likelihood of raw logits, no log-softmax: mean of −logit[label].

    The loss of MKOR's published code. No classifier trains with it (it is unbounded below), so a client
    that uses it lets the server choose its loss.
    """
    return F.nll_loss(logits, labels)


@runtime_checkable
class Penalty(Protocol):
    """What the output of one part of the model adds to the loss, read in the same forward pass.

    Attributes:
        part: name of the submodule whose output it is given.
    """

    @property
    def part(self) -> str: ...

    def __call__(self, output: Tensor, /) -> Float[Tensor, ""]: ...
