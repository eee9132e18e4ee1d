"""How alike reads and examples are: which read is held against which true example, whether it singles that out among
strangers, and the null baselines: what an attacker reaches without any update."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakgauge.data.source import AT_ONCE
from leakgauge.errors import require
from leakgauge.metrics.metric import clamped, classes_of


@dataclass(frozen=True)
class Assignment:
    """One-to-one: no reconstruction serves two truths."""

    #: for each true example the index of its reconstruction; `None` where there are too few.
    slots: tuple[int | None, ...]

    @property
    def matched(self) -> tuple[int, ...]:
        return tuple(i for i, slot in enumerate(self.slots) if slot is not None)

    def take(self, x_hat: Float[Tensor, "m ..."]) -> Float[Tensor, "k ..."]:
        """The reconstructions of `matched`, in that order."""
        return x_hat[[slot for slot in self.slots if slot is not None]]


ALIKE = 1e-6  # mean squared error, in shares of the squared range, of what is the same picture: 60 dB


def assign(
    x_hat: Float[Tensor, "m ..."],
    x: Float[Tensor, "n ..."],
    *,
    labels_hat: Int[Tensor, " k"] | None = None,
    labels: Tensor | None = None,
    data_range: float = 1.0,
    low: float = 0.0,
) -> Assignment:
    """The assignment with the least total squared error (Hungarian), first of examples that came back to `ALIKE`, then
    within equal labels, then among the rest. So one that is far off takes no exact one's place.

    Without labels on either side all are one group. Soft labels count as their largest class. Both sides are clamped to
    the data's range first. Raises `InputError`: examples differ in shape, or labels in number."""
    shapes = f"has examples of shape {tuple(x_hat.shape[1:])}, the truth {tuple(x.shape[1:])}"
    require(x_hat.shape[1:] == x.shape[1:], "x_hat", shapes, "reconstruct in the shape of the data")
    cost = pairwise_mse(x_hat, x, data_range=data_range, low=low).T / data_range**2
    slots: list[int | None] = [None] * len(x)
    stages = [cost <= ALIKE]
    if labels_hat is not None and labels is not None:
        guessed, true = (torch.tensor(classes_of(one)) for one in (labels_hat, labels))
        counts = len(guessed) == len(x_hat) and len(true) == len(x)
        require(counts, "labels", "are not one an example", "give one label an example")
        stages.append(true[:, None] == guessed)
    for allowed in (*stages, torch.ones_like(cost, dtype=torch.bool)):
        truths, free = [i for i in range(len(x)) if slots[i] is None], [j for j in range(len(x_hat)) if j not in slots]
        part, fits = cost[truths][:, free], allowed[truths][:, free]
        # A pair that fits is better than none, so as many are made as there can be.
        worth = part if bool(fits.all()) else torch.where(fits, part - len(x) * part.amax() - 1, 0.0)
        for i, j in enumerate(one_to_one(worth)):
            if j is not None and fits[i, j]:
                slots[truths[i]] = free[j]
    return Assignment(tuple(slots))


def one_to_one(cost: Float[Tensor, "n m"]) -> list[int | None]:
    """For each row its column, so that the sum is least; `None` where there are too few."""
    columns = dict(zip(*(found.tolist() for found in linear_sum_assignment(cost.numpy())), strict=True))
    return [columns.get(row) for row in range(len(cost))]


def pairwise_mse(
    a: Float[Tensor, "n ..."], b: Float[Tensor, "m ..."], *, data_range: float = 1.0, low: float = 0.0
) -> Float[Tensor, "n m"]:
    """Mean squared error of every pair, in float64, after clamping. Memory is bounded in the number of `b`."""
    size = math.prod(b.shape[1:])
    p, columns = clamped(a, data_range=data_range, low=low).reshape(len(a), size), []
    for chunk in b.split(max(1, AT_ONCE // (8 * max(1, size)))):
        q = clamped(chunk, data_range=data_range, low=low).reshape(len(chunk), size)
        # The matrix-product shortcut loses the small distances, which decide who is identified.
        columns.append(torch.cdist(p, q, compute_mode="donot_use_mm_for_euclid_dist").square() / max(1, size))
    return torch.cat(columns, 1) if columns else p.new_empty((len(a), 0))


SIDE = 16  # pictures are aligned at this size at most: larger ones are averaged down first, as noise is by an eye
REACH = 4  # a quarter of the side is the farthest shift
FAINTEST = 1e-3  # standard deviation, as a share of the data's range, below which a picture counts as flat


def plain_likeness(
    x_hat: Float[Tensor, "n ..."], x: Float[Tensor, "m ..."], *, data_range: float = 1.0, low: float = 0.0
) -> Float[Tensor, "n m"]:
    """Correlation of every pair, in place and at full size, each channel around its own mean; 0 where negative.

    Range [0, 1]. A flat picture is like none, so a right mean colour alone is worth nothing.
    """
    return _correlation(_centred(_scaled(x_hat, data_range, low)), _centred(_scaled(x, data_range, low))).clamp(0, 1)


def likeness(
    x_hat: Float[Tensor, "n ..."], x: Float[Tensor, "m ..."], *, data_range: float = 1.0, low: float = 0.0
) -> Float[Tensor, "n m"]:
    """The largest |correlation| of every pair over shifts up to a quarter of the side, mirrorings and quarter turns.

    Correlation is over the part where both lie, all channels together, each around its own mean there: a brightness
    of each channel and one contrast for all, negative ones included, change nothing. Range [0, 1]; 1 − likeness² is
    the share of the squared structure that the best fit leaves. The best of some thousand tries: unrelated pictures
    reach .4 to .6, so it means something only beside the likeness to other pictures.

    Data without two spatial axes have no shift and no mirror: there it is `plain_likeness`.
    """
    if x.ndim != 4 or min(x.shape[-2:]) < 2:
        return plain_likeness(x_hat, x, data_range=data_range, low=low)
    scaled = (_scaled(one, data_range, low) for one in (x_hat, x))  # each by its own size: none is stretched to fit
    a, b = (F.interpolate(one, [min(SIDE, side) for side in one.shape[-2:]], mode="area") for one in scaled)
    turns = range(4) if a.shape[-1] == a.shape[-2] else (0, 2)  # of quarters
    turned = [side.rot90(k, (-2, -1)) for side in (a, a.flip(-1)) for k in turns]
    down, right = (side // REACH for side in a.shape[-2:])
    best = torch.zeros(len(a), len(b), dtype=torch.float64)
    for shift in itertools.product(range(-down, down + 1), range(-right, right + 1)):
        there, back = _centred(_beneath(b, *shift)), [-step for step in shift]
        own = torch.stack([_centred(_beneath(one, *back)) for one in turned])
        best = torch.maximum(best, torch.stack([_correlation(one, there).abs() for one in own]).amax(0))
    return best.clamp(0, 1)


def _beneath(x: Float[Tensor, "n c h w"], down: int, right: int) -> Float[Tensor, "n c p q"]:
    """The part of a picture that a shifted one lies over."""
    height, width = x.shape[-2:]
    return x[..., max(down, 0) : height + min(down, 0), max(right, 0) : width + min(right, 0)]


def _correlation(p: Float[Tensor, "n d"], q: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    faint = p.shape[1] * FAINTEST**2
    norms = (p.square().sum(1) + faint).sqrt()[:, None] * (q.square().sum(1) + faint).sqrt()[None]
    return p @ q.T / norms


def _scaled(x: Float[Tensor, "n ..."], data_range: float, low: float) -> Float[Tensor, "n ..."]:
    """In [0, 1], float64."""
    return (clamped(x, data_range=data_range, low=low) - low) / data_range


def _centred(x: Float[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
    """Each channel of a picture, or the whole of another example, less its mean."""
    channels = x.flatten(2) if x.ndim == 4 else x.flatten(1)[:, None]
    return (channels - channels.mean(2, keepdim=True)).flatten(1)


def mean_image(public: Float[Tensor, "m ..."], n: int) -> Float[Tensor, "n ..."]:
    """The mean of the public examples, `n` times: the constant guess with the least squared error over them. Raises
    `InputError` where there are none."""
    require(len(public) > 0, "public", "is empty", "give public examples, see leakgauge.data.public")
    return public.mean(0, keepdim=True).repeat(n, *([1] * (public.ndim - 1)))


def nearest_public(
    truth: Float[Tensor, "n ..."], public: Float[Tensor, "m ..."], *, data_range: float = 1.0, low: float = 0.0
) -> Float[Tensor, "n ..."]:
    """For each true example the public one with the least squared error.

    It is chosen by the truth, which no attacker can do: a generous bar. A reconstruction below it is less like
    the truth than some stranger's example. One public example may serve several truths. Raises `InputError` where there
    are none."""
    require(len(public) > 0, "public", "is empty", "give public examples, see leakgauge.data.public")
    return public[pairwise_mse(truth, public, data_range=data_range, low=low).argmin(1)]


TWIN = 0.05  # share of a picture's structure up to which another may differ and still be the same to the eye
STRUCTURE = 2  # ways to compare that are by structure: the first ones, or the only one
TIE = 1e-9  # relative difference below which two distances count as equal
EXPLAINED = 0.5  # a recovered example has at most this share of the residual that a guess without the update has
MATES = 16  # strangers that a network is given beside as many candidates
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
    among exchangeable candidates is right up to three times as often as 1 in all of them, and a one-to-one assignment
    helps it further: what chance gives is measured by holding the same reads against other clients' examples. Other
    data are compared by squared error, and by the values that agree, each counted in bits by how few strangers share
    it: a record of which an income is read to the cent and nothing else is nobody else's."""

    reads: Float[Tensor, "m ..."]
    gallery: Float[Tensor, "g ..."]
    data_range: float = 1.0
    low: float = 0.0
    given: Callable[[Tensor], Tensor] | None = None  # what a layer is given for examples, where `reads` are of that
    _strangers: list[Tensor] = field(init=False, repr=False)
    _bits: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require(len(self.gallery) > 0, "gallery", "is empty", "give distractors, see leakgauge.data.gallery")
        if self.reads.ndim != 4 and self.given is None:
            shared = torch.stack([torch.stack([c.sum(0) for c in self._close(s)]) for s in self._chunks()]).sum(0)
            object.__setattr__(self, "_bits", -((shared + 1) / (len(self.gallery) + 1)).log2())
        parts = [self._left_of(chunk) for chunk in self._chunks()]
        object.__setattr__(self, "_strangers", [torch.cat(way, 1) for way in zip(*parts, strict=True)])

    def _chunks(self) -> tuple[Tensor, ...]:
        """The gallery in pieces that fit in memory in float64."""
        return torch.split(self.gallery, max(1, AT_ONCE // (8 * max(1, self.reads[:1].numel()))))

    def _left_of(self, x: Float[Tensor, "n ..."]) -> list[Float[Tensor, "m n"]]:
        if self.given is not None:  # each among strangers, whose statistics a layer may share; up to a factor
            beside = self.gallery[:MATES]
            maps = torch.cat([self.given(torch.cat([part, beside]))[: len(part)] for part in x.split(MATES)])
            return [1 - (F.normalize(self.reads.to(maps).flatten(1)) @ F.normalize(maps.flatten(1)).T).square()]
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
        truth itself (`TWIN`), as the next frame of a film does, step out: to single out either is the same. Where they
        are `paired`, read i belongs to example i, and nothing is assigned."""
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
        same = torch.cat([twins(together, c, data_range=self.data_range, low=self.low) for c in self._chunks()], 1)
        nearer = torch.stack(self._strangers)[:, reads] <= left[:, held, None] * (1 + TIE) + 1e-15
        ranks = torch.full((len(ways), len(together)), len(self.gallery) + 1)
        ranks[:, held] = 1 + (nearer & ~same[held]).sum(-1)
        parts = zip(slots, ranks.split(sizes, 1), left.split(sizes, 1), strict=True)
        return [Placed(tuple(s), r.amin(0), part, r == 1) for s, r, part in parts]

    def recovered(self, placed: list[Placed], clients: list[Tensor], public: Tensor) -> list[Tensor]:
        """Which examples of each client came back, beside what the mean public picture leaves of them."""
        constant = residuals(mean_image(public, 1), torch.cat(clients), data_range=self.data_range, low=self.low)
        # Values that agree single a picture out, but of a blank one most may.
        bars = torch.stack([way[0] for way in constant[:STRUCTURE]]).split([len(x) for x in clients], 1)
        return [p.recovered(bar) for p, bar in zip(placed, bars, strict=True)]


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
