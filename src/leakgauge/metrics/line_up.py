"""Whether a reconstruction singles out its original among strangers, by structure rather than by squared error."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.data.source import AT_ONCE
from leakgauge.errors import require
from leakgauge.metrics.assignment import likeness, one_to_one, pairwise_mse, plain_likeness
from leakgauge.metrics.metric import clamped

TWIN = 0.05  # share of a picture's structure up to which another may differ and still be the same to the eye
STRUCTURE = 2  # ways to compare that are by structure: the first ones, or the only one
TIE = 1e-9  # relative difference below which two distances count as equal
EXPLAINED = 0.5  # a recovered example has at most this share of the residual that a guess without the update has
CLOSE = 0.02  # share of the data's range up to which two values agree


@dataclass(frozen=True, eq=False)
class Placed:
    """How each true example fares in the line-up."""

    # for each true example the read that is held against it; `None` where there are too few
    slots: tuple[int | None, ...]
    # 1 is nearest; the number of candidates for a truth without a read. The best of all ways to compare.
    ranks: Int[Tensor, " n"]
    # what the read leaves, in each way: a share of the structure, or the squared error of data that are no pictures; 1
    # without a read
    residuals: Float[Tensor, "ways n"]
    nearest: Bool[Tensor, "ways n"]  # whether nobody in the line-up is nearer, in each way
    candidates: int  # gallery and one truth together

    @property
    def identified(self) -> Bool[Tensor, " n"]:
        """Whose true example is strictly nearer than everybody else in the line-up."""
        return self.ranks == 1

    def recovered(self, bars: Float[Tensor, "some n"]) -> Bool[Tensor, " n"]:
        """Which examples came back: nearest in the line-up, with at most `EXPLAINED` of what a guess without the update
        leaves (`bars`), by the same comparison; one of the first ways to compare."""
        some = slice(len(bars))
        return (self.nearest[some] & (self.residuals[some] <= EXPLAINED * bars)).any(0)


@dataclass(frozen=True, eq=False)
class LineUp:
    """Reads of one client beside pictures of strangers.

    Pictures are compared by structure alone, each channel around its own mean: in place and at full size
    (`plain_likeness`), and up to shift, mirror, turn and light (`likeness`); and by how many of their values agree
    (`agreement`), for reads that are right in part and black elsewhere. Being nearest in any way counts, so a guess
    among exchangeable candidates is right up to three times as often as 1 in `candidates`, and a one-to-one assignment
    helps it further: what chance gives is measured by holding the same reads against other clients' examples. Other
    data are compared by squared error, and by the values that agree, each counted in bits by how few strangers share
    it: a record of which an income is read to the cent and nothing else is nobody else's.
    """

    reads: Float[Tensor, "m ..."]
    gallery: Float[Tensor, "g ..."]
    data_range: float = 1.0
    low: float = 0.0
    _strangers: list[Tensor] = field(init=False, repr=False)
    _bits: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require(len(self.gallery) > 0, "gallery", "is empty", "give distractors, see leakgauge.data.gallery")
        if self.reads.ndim != 4:
            shared = torch.stack([torch.stack([c.sum(0) for c in self._close(s)]) for s in self._chunks()]).sum(0)
            object.__setattr__(self, "_bits", -((shared + 1) / (len(self.gallery) + 1)).log2())
        parts = [self._left_of(chunk) for chunk in self._chunks()]
        object.__setattr__(self, "_strangers", [torch.cat(way, 1) for way in zip(*parts, strict=True)])

    def _chunks(self) -> tuple[Tensor, ...]:
        """The gallery in pieces that fit in memory in float64."""
        return torch.split(self.gallery, max(1, AT_ONCE // (8 * max(1, self.reads[:1].numel()))))

    def _left_of(self, x: Float[Tensor, "n ..."]) -> list[Float[Tensor, "m n"]]:
        ways = residuals(self.reads, x, data_range=self.data_range, low=self.low)
        if x.ndim == 4:
            return ways
        shares = [close @ bits / bits.sum() for close, bits in zip(self._close(x), self._bits, strict=True)]
        return [*ways, 1 - torch.stack(shares).nan_to_num(0.0)]

    def _close(self, x: Float[Tensor, "n ..."]) -> list[Float[Tensor, "n d"]]:
        """For each read which values of each example agree with its own."""
        p, q = (clamped(t, data_range=self.data_range, low=self.low).flatten(1) for t in (self.reads, x))
        return [((q - read).abs() < CLOSE * self.data_range).double() for read in p]

    def identify(self, *clients: Float[Tensor, "n ..."], paired: bool = False) -> list[Placed]:
        """For each client's examples the read of each and its rank.

        Reads are assigned one to one so that the least is left in all, beside what they leave of strangers. Ties count
        against identification: a read that is as near to a stranger identifies nobody. Strangers that look like the
        truth itself (`TWIN`), as the next frame of a film does, step out: to single out either is the same.

        Args:
            paired: read i belongs to example i; nothing is assigned.
        """
        together, sizes = torch.cat(clients), [len(x) for x in clients]
        ways = torch.stack(self._left_of(together))
        beside = ways / torch.stack(self._strangers).mean(2, keepdim=True)
        least = beside.nan_to_num(1.0).amin(0).split(sizes, 1)
        slots = [list(range(n)) if paired else one_to_one(cost.T) for n, cost in zip(sizes, least, strict=True)]
        flat = [slot for client in slots for slot in client]
        held = [i for i, slot in enumerate(flat) if slot is not None]
        reads = [slot for slot in flat if slot is not None]
        left = torch.ones(len(ways), len(together), dtype=torch.float64)
        left[:, held] = ways[:, reads, held].to(left)
        # Who in the gallery is, to the eye, an example itself, is no stranger to it.
        same = torch.cat([twins(together, c, data_range=self.data_range, low=self.low) for c in self._chunks()], 1)
        nearer = torch.stack(self._strangers)[:, reads] <= left[:, held, None] * (1 + TIE) + 1e-15
        ranks = torch.full((len(ways), len(together)), len(self.gallery) + 1)
        ranks[:, held] = 1 + (nearer & ~same[held]).sum(-1)
        parts = zip(slots, ranks.split(sizes, 1), left.split(sizes, 1), strict=True)
        return [Placed(tuple(s), r.amin(0), part, r == 1, len(self.gallery) + 1) for s, r, part in parts]


def twins(
    x: Float[Tensor, "n ..."], others: Float[Tensor, "m ..."], *, data_range: float = 1.0, low: float = 0.0
) -> Bool[Tensor, "n m"]:
    """Which of the others are, to the eye, each example itself: the same bits, or pictures that differ by `TWIN`."""
    own, there = x.flatten(1), others.to(x).flatten(1)
    rows = max(1, AT_ONCE // max(1, own[:1].numel() * own.element_size()))
    same = own[:, :1] == there[:, :1].T  # the first number tells nearly all apart
    for pairs in same.nonzero().split(rows):
        i, j = pairs.T
        same[i, j] = (own[i] == there[j]).all(1)
    if x.ndim == 4:
        same |= 1 - plain_likeness(x, others, data_range=data_range, low=low).square() <= TWIN
    return same


def residuals(
    x_hat: Float[Tensor, "m ..."], x: Float[Tensor, "n ..."], *, data_range: float = 1.0, low: float = 0.0
) -> list[Float[Tensor, "m n"]]:
    """What each read leaves of each picture, for each way to compare; 0 is a copy, 1 is nothing in common. Of data that
    are no pictures the mean squared error."""
    if x.ndim == 4:
        ways = (like(x_hat, x, data_range=data_range, low=low) for like in (plain_likeness, likeness))
        return [*(1 - way.square() for way in ways), 1 - agreement(x_hat, x, data_range=data_range, low=low)]
    return [pairwise_mse(x_hat, x, data_range=data_range, low=low)]


def agreement(
    x_hat: Float[Tensor, "m ..."], x: Float[Tensor, "n ..."], *, data_range: float = 1.0, low: float = 0.0
) -> Float[Tensor, "m n"]:
    """Share of values within `CLOSE` of the range, for every pair, beyond those within it of the read's mean colour."""
    p, q = (clamped(t, data_range=data_range, low=low).flatten(2) for t in (x_hat, x))

    def close(read: Tensor) -> Tensor:
        return ((q - read).abs() < CLOSE * data_range).double().mean((1, 2))

    rows = [(close(read) - close(read.mean(1, keepdim=True))).clamp_min(0) for read in p]
    return torch.stack(rows) if rows else q.new_zeros(0, len(q))
