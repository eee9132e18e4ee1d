"""Defences that send few entries: the largest, random ones, those of large weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from leakgauge.defenses.defense import Defense
from leakgauge.defenses.steps import DefenseStep, EntryMask
from leakgauge.errors import limit
from leakgauge.registry import DEFENSES
from leakgauge.tensors import Tensors, entries, map_tensors


def _with_largest(row: Tensor, kept: int) -> Tensor:
    """A row with zeros for all but so many of the largest, ties by position; usable under vmap."""
    size = row.detach().abs()
    places = size.argsort(descending=True, stable=True)[:kept]
    return torch.where(torch.zeros_like(size).scatter(0, places, 1.0) > 0, row, torch.zeros_like(row))


SHARE = limit(lambda share: 0 < share <= 1, "give a share in (0, 1], e.g. 0.05")


def kept_entries(share: float, total: int) -> int:
    """⌈share · total⌉, where the product is an integer but for its rounding that integer: .07 of 100 is 7, not 8."""
    return math.ceil(share * total - 1e-9)


@DEFENSES.register("topk")
@dataclass(frozen=True, kw_only=True)
class TopK(Defense):
    """Keeps the largest k = ⌈keep·n⌉ entries of each tensor, and sends zeros for the rest.

    Guarantee: exactly k entries are kept (ties by position), at their values; fewer are non-zero only
    when the tensor has fewer. No privacy guarantee: the kept entries are exact and their places tell
    the attacker where the gradient is large.

    Differs from the ROG release, which keeps k−1 (strict inequality): a bias of ten keeps none there.
    """

    keep: float = field(metadata=SHARE)

    def on_update(self, tensors: Tensors, generator: torch.Generator | None) -> Tensors:
        return map_tensors(lambda t: _with_largest(t.flatten(), kept_entries(self.keep, t.numel())).view_as(t), tensors)

    def steps(self) -> tuple[DefenseStep, ...]:
        how = partial(self.on_update, generator=None)
        return (EntryMask(smallest=True, keep=self.keep, shows=partial(_kept_of_each, share=self.keep), how=how),)


@DEFENSES.register("random-k")
@dataclass(frozen=True, kw_only=True)
class RandomK(Defense):
    """Keeps k = ⌈keep·n⌉ entries of each tensor, drawn without replacement, and sends zeros for the rest.

    Guarantee: exactly k entries are kept; where `unbiased` they are multiplied by n/k, and E[sent] = g. No privacy
    guarantee: the kept entries are exact. A not-a-number is sent if it is drawn.

    Attributes:
        unbiased: whether the kept entries are multiplied by n/k.
    """

    keep: float = field(metadata=SHARE)
    unbiased: bool = False

    def factor(self, t: Tensor) -> float:
        """By which the kept entries of a tensor are multiplied."""
        return t.numel() / kept_entries(self.keep, t.numel()) if self.unbiased and t.numel() else 1.0

    def masks(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        """Entries that are sent, name → bool."""

        def one(t: Tensor) -> Tensor:
            places = torch.randperm(t.numel(), generator=generator)[: kept_entries(self.keep, t.numel())]
            return torch.zeros(t.numel(), dtype=torch.bool).index_fill(0, places, True).view(t.shape).to(t.device)

        return map_tensors(one, tensors)

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        masks = self.masks(tensors, generator)
        return map_tensors(lambda t, m: torch.where(m, t * self.factor(t), torch.zeros_like(t)), tensors, masks)

    def steps(self) -> tuple[DefenseStep, ...]:
        """Behind noise, over the places that nobody knows, an unbiased entry is the raw one in the mean. A kept entry
        that is exactly zero passes for one that was not."""
        shows = partial(_kept_of_each, share=self.keep)
        mask = EntryMask(keep=self.keep, factor=self.factor, lengthens=self.unbiased, shows=shows, masks=self.masks)
        return (mask,)


@DEFENSES.register("prune")
@dataclass(frozen=True, kw_only=True)
class Prune(Defense):
    """Sends zeros for the ⌊rate·N⌋ smallest of all N entries: one threshold for all tensors.

    The gradient pruning of Zhu et al., *Deep Leakage from Gradients*, NeurIPS 2019, §5.2. `topk` keeps a share of each
    tensor; here whole tensors may vanish. Ties: earlier entries are kept, in the order of the tensors. A
    not-a-number counts as larger than any number, and is sent.

    Guarantee: exactly N − ⌊rate·N⌋ entries are kept, at their values. No privacy guarantee.
    """

    rate: float = field(metadata=limit(lambda rate: 0 < rate < 1, "give a share between 0 and 1, e.g. 0.9"))

    def kept(self, total: int) -> int:
        """Entries sent of `total`."""
        return kept_entries(1 - self.rate, total)

    def on_update(self, tensors: Tensors, generator: torch.Generator | None) -> Tensors:
        flat = torch.cat([t.flatten() for t in tensors.values()])
        pieces = _with_largest(flat, self.kept(len(flat))).split([t.numel() for t in tensors.values()])
        return {name: piece.view_as(t).to(t) for (name, t), piece in zip(tensors.items(), pieces, strict=True)}

    def steps(self) -> tuple[DefenseStep, ...]:
        def shows(sent: Tensors) -> Tensors | None:
            return _not_zero(sent, lambda kept: sum(int(m.sum()) for m in kept.values()) <= self.kept(entries(kept)))

        return (EntryMask(smallest=True, shows=shows, how=partial(self.on_update, generator=None)),)


def _not_zero(sent: Tensors, fits: Callable[[Tensors], bool]) -> Tensors | None:
    """Entries on the wire that are not zero, unless they are more than were sent: then a later stage (noise) has filled
    the zeros."""
    kept = map_tensors(lambda t: t != 0, sent)
    return kept if fits(kept) else None


def _kept_of_each(sent: Tensors, share: float) -> Tensors | None:
    return _not_zero(sent, lambda kept: all(int(m.sum()) <= kept_entries(share, m.numel()) for m in kept.values()))
