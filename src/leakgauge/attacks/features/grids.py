"""Examples number by number, where each known value hangs on one of them: splines, bins, powers, waves of an input."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.features.inversion import Residuals
from leakgauge.view.front import movers

DRAWS = 6  # pairs of examples by which it is seen which number moves a value
LEVELS = 1024  # of a number, that are tried all over the data's range
FINER, ZOOMS = 8, 12  # levels to each side in a step of the last grid, and how often


def number_by_number(residuals: Residuals, generator: torch.Generator) -> Float[Tensor, "n *shape"] | None:
    """Raw examples of which every number fits best what is known of it alone; `None` where some value is known of no
    number alone. A descent would stop at the next bend of such a function, since its slope says nothing beyond."""
    numbers, count = residuals.shape[1:].numel(), residuals.shape[0]

    def seen(share: Float[Tensor, "n numbers"], of: Residuals = residuals) -> Tensor:
        with torch.no_grad():
            return of.differences(of.raw(share.view(of.shape)))[0]

    one = residuals.only(torch.zeros(1, dtype=torch.long))
    drawn = torch.rand((DRAWS, 2, 1, numbers), generator=generator, dtype=torch.float64)
    owners = movers(lambda _, share: [seen(share, one)], ["known"], drawn, numbers).get("known")
    if owners is None or len(owners[owners >= 0].unique()) < numbers:
        return None

    def misfit(share: Float[Tensor, "n numbers"]) -> Float[Tensor, "n numbers"]:
        gaps = seen(share)[:, owners >= 0].square()
        return torch.zeros(count, numbers, dtype=gaps.dtype).index_add_(1, owners[owners >= 0], gaps)

    best, least, step = torch.zeros(count, numbers, dtype=torch.float64), torch.tensor(torch.inf), 1 / LEVELS
    for level in range(LEVELS + 1):
        tried = torch.full_like(best, level * step)
        left = misfit(tried)
        best, least = torch.where(left < least, tried, best), torch.minimum(left, least)
    for _ in range(ZOOMS):
        middle, step = best, step / FINER
        for level in range(-FINER, FINER + 1):
            tried = (middle + level * step).clamp(0, 1)
            left = misfit(tried)
            best, least = torch.where(left < least, tried, best), torch.minimum(left, least)
    return residuals.raw(best.view(residuals.shape))
