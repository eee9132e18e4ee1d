"""Examples number by number, where each known value hangs on one of them: splines, bins, powers, waves of an input."""

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.features.inversion import Residuals
from leakgauge.view.front import movers

DRAWS = 6  # pairs of examples by which it is seen which number moves a value
LEVELS = 1024  # of a number, that are tried all over the data's range
AT_ONCE = 2**22  # known values of levels that are tried side by side
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

    best, least = torch.zeros(count, numbers, dtype=torch.float64), torch.full((count, numbers), torch.inf).double()
    told, step = owners >= 0, 1 / LEVELS
    many = max(AT_ONCE // (count * len(owners)), 1)

    def fit(tried: Float[Tensor, "levels n numbers"]) -> None:
        nonlocal best, least
        for part in tried.clamp(0, 1).split(many):
            wide = residuals.only(torch.arange(count).repeat(len(part)))
            gaps = seen(part.flatten(0, 1), wide)[:, told].square()
            left = gaps.new_zeros(len(part) * count, numbers).index_add_(1, owners[told], gaps).view_as(part)
            best = torch.cat([best[None], part]).gather(0, torch.cat([least[None], left]).argmin(0)[None])[0]
            least = torch.minimum(least, left.amin(0))

    fit(torch.linspace(0, 1, LEVELS + 1, dtype=torch.float64).view(-1, 1, 1).expand(-1, count, numbers))
    for _ in range(ZOOMS):
        step /= FINER
        fit(best + step * torch.arange(-FINER, FINER + 1, dtype=torch.float64).view(-1, 1, 1))
    return residuals.raw(best.view(residuals.shape))
