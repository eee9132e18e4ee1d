"""Which reconstruction is held against which true example, how alike two pictures are up to shift and light, and the
null baselines: what an attacker reaches without any update."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakgauge.data.source import AT_ONCE
from leakgauge.errors import require
from leakgauge.metrics.metric import clamped


@dataclass(frozen=True)
class Assignment:
    """One-to-one: no reconstruction serves two truths."""

    #: for each true example the index of its reconstruction; `None` where there are too few.
    slots: tuple[int | None, ...]
    #: reconstructions left over. An attack that offers more than the truth has examples gets the best of many tries, so
    #: reports must show it.
    spare: int = 0

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
    the data's range first. Raises `InputError`: examples differ in shape, or labels in number.
    """
    shapes = f"has examples of shape {tuple(x_hat.shape[1:])}, the truth {tuple(x.shape[1:])}"
    require(x_hat.shape[1:] == x.shape[1:], "x_hat", shapes, "reconstruct in the shape of the data")
    cost = pairwise_mse(x_hat, x, data_range=data_range, low=low).T
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
        worth = part if bool(fits.all()) else torch.where(fits, part - part.amax() - 1, 0.0)
        for i, j in enumerate(one_to_one(worth)):
            if j is not None and fits[i, j]:
                slots[truths[i]] = free[j]
    return Assignment(tuple(slots), max(0, len(x_hat) - len(x)))


def one_to_one(cost: Float[Tensor, "n m"]) -> list[int | None]:
    """For each row its column, so that the sum is least; `None` where there are too few."""
    slots: list[int | None] = [None] * len(cost)
    if cost.numel():
        for row, column in zip(*linear_sum_assignment(cost.numpy()), strict=True):
            slots[int(row)] = int(column)
    return slots


def classes_of(labels: Tensor) -> list[int]:
    """Class indices of hard labels, the largest class of soft ones."""
    hard = labels if labels.ndim == 1 else labels.argmax(1)
    return [int(label) for label in hard.tolist()]


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
    a, b = _small(_scaled(x_hat, data_range, low)), _small(_scaled(x, data_range, low))
    turned, (down, right) = _turned(a), (side // REACH for side in a.shape[-2:])
    best = torch.zeros(len(a), len(b), dtype=torch.float64)
    for shift in itertools.product(range(-down, down + 1), range(-right, right + 1)):
        there, back = _centred(_beneath(b, *shift)), [-step for step in shift]
        own = torch.stack([_centred(_beneath(one, *back)) for one in turned])
        best = torch.maximum(best, torch.stack([_correlation(one, there).abs() for one in own]).amax(0))
    return best.clamp(0, 1)


def _turned(x: Float[Tensor, "n c h w"]) -> list[Float[Tensor, "n c h w"]]:
    """Mirrored or not, and turned by quarters: eight pictures of a square one, four of another."""
    turns = range(4) if x.shape[-1] == x.shape[-2] else (0, 2)
    return [side.rot90(k, (-2, -1)) for side in (x, x.flip(-1)) for k in turns]


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


def _small(x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c p q"]:
    """Each side at most `SIDE`, by averaging."""
    height, width = (min(SIDE, side) for side in x.shape[-2:])
    return x if (height, width) == tuple(x.shape[-2:]) else F.interpolate(x, (height, width), mode="area")


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
    are none.
    """
    require(len(public) > 0, "public", "is empty", "give public examples, see leakgauge.data.public")
    return public[pairwise_mse(truth, public, data_range=data_range, low=low).argmin(1)]
