"""How alike two pictures are, up to a shift, a mirroring and another light."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from leakgauge.metrics.metric import clamped

SIDE = 16
"""Pictures are aligned at most at this size in pixels: larger ones are averaged down first, as noise is by an eye."""
REACH = 4
"""A quarter of the side is the farthest shift."""
FAINTEST = 1e-3
"""Standard deviation, as a share of the data's range, below which a picture counts as flat."""


def plain_likeness(
    x_hat: Float[Tensor, "n ..."], x: Float[Tensor, "m ..."], *, data_range: float = 1.0, low: float = 0.0
) -> Float[Tensor, "n m"]:
    """Correlation of every pair, in place and at full size, each channel around its own mean; 0 where negative.

    Range [0, 1]. A flat picture is like none, so a right mean colour alone is worth nothing.
    """
    p, q = _centred(_scaled(x_hat, data_range, low)), _centred(_scaled(x, data_range, low))
    faint = p.shape[1] * FAINTEST**2
    norms = (p.square().sum(1) + faint).sqrt()[:, None] * (q.square().sum(1) + faint).sqrt()[None]
    return (p @ q.T / norms).clamp(0, 1)


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
    if not len(a) or not len(b):
        return torch.zeros(len(a), len(b), dtype=torch.float64)
    height, width = a.shape[-2:]
    reach = height // REACH, width // REACH
    one = torch.ones(1, 1, height, width, dtype=a.dtype)
    count = _overlapping(one, one, reach)[0, 0]
    faint = a.shape[1] * count * FAINTEST**2
    totals, spread = _moments(b, one, count, reach)
    spectrum = torch.fft.rfft2(b, s=_padded(b, reach))
    best = torch.zeros(len(a), len(b), dtype=a.dtype)
    for turned in _turned(a):
        # Shifting the read by s is shifting the candidate by −s: the sums of the read run the other way.
        moved, own = (m.flip(-1, -2) for m in _moments(turned, one, count, reach))
        for i in range(len(a)):
            product = (spectrum * torch.fft.rfft2(turned[i], s=_padded(b, reach)).conj()).sum(1)
            means = torch.einsum("mcpq,cpq->mpq", totals, moved[i] / count)
            covariance = _within(torch.fft.irfft2(product, s=_padded(b, reach)), reach) - means
            found = covariance.abs() / ((own[i] + faint) * (spread + faint)).sqrt()
            best[i] = torch.maximum(best[i], found.flatten(1).amax(1))
    return best.clamp(0, 1)


def _turned(x: Float[Tensor, "n c h w"]) -> list[Float[Tensor, "n c h w"]]:
    """Mirrored or not, and turned by quarters: eight pictures of a square one, four of another."""
    turns = range(4) if x.shape[-1] == x.shape[-2] else (0, 2)
    return [side.rot90(k, (-2, -1)) for side in (x, x.flip(-1)) for k in turns]


def _moments(
    x: Float[Tensor, "n c h w"], one: Tensor, count: Tensor, reach: tuple[int, int]
) -> tuple[Float[Tensor, "n c p q"], Float[Tensor, "n p q"]]:
    """For every shift: the sum of each channel over the overlap, and the squared deviations of all of them."""
    flat = x.flatten(0, 1)[:, None]
    sums, squares = (_overlapping(v, one, reach).unflatten(0, x.shape[:2])[:, :, 0] for v in (flat, flat.square()))
    return sums, (squares - sums.square() / count).clamp_min(0).sum(1)


def _overlapping(
    x: Float[Tensor, "n c h w"], y: Float[Tensor, "k d h w"], reach: tuple[int, int]
) -> Float[Tensor, "n c p q"]:
    """Σ over u of x(u)·y(u − s) for every shift s within `reach`, nothing lying outside; n or k, c or d may be 1."""
    size = _padded(x, reach)
    product = torch.fft.rfft2(x, s=size) * torch.fft.rfft2(y, s=size).conj()
    return _within(torch.fft.irfft2(product, s=size), reach)


def _padded(x: Tensor, reach: tuple[int, int]) -> tuple[int, int]:
    """Large enough that no shift within `reach` comes round to the other side."""
    return x.shape[-2] + reach[0], x.shape[-1] + reach[1]


def _within(sums: Tensor, reach: tuple[int, int]) -> Tensor:
    """The shifts within `reach`, negative ones first."""
    rows, columns = (torch.arange(-r, r + 1) % n for r, n in zip(reach, sums.shape[-2:], strict=True))
    return sums[..., rows, :][..., columns]


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
