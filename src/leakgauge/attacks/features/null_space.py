"""The maps whose rows all lie in given row spaces: the smallest eigenvectors of a symmetric operator, matrix free; and
their sign and scale, by the gradient of a shift."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.optimize import minimize
from torch import Tensor

from leakgauge.attacks.features.inside import Unfolding
from leakgauge.attacks.matching.problem import UNLIMITED, Meter

Block = Float[Tensor, "k n"]


@dataclass(frozen=True, eq=False)
class SpanOfRows:
    """What one layer's gradient says of its rows: they lie in the span of `basis`."""

    unfolding: Unfolding  # of the places that the loss reaches
    basis: Float[Tensor, "rank columns"]  # orthonormal
    maps: int  # as many as its dimension says, zero where it is no multiple of the places
    batches: int  # whose statistics take one dimension off each
    noise: float  # share by which the gradient's errors turn a row out of it, in the mean over its directions
    # only differences of an example's rows lie in it, since the layer's signals sum to nothing over the places (batch
    # statistics behind the layer)
    centred: bool = False
    short: bool = False  # whether it may lack some directions of the maps' rows, as where filters are dead

    def outside(self, rows: Float[Tensor, "k places columns"]) -> Float[Tensor, "k places columns"]:
        """The part of rows that lies outside, an orthogonal projection."""
        own = self.own(rows)
        return own - (own @ self.basis.T) @ self.basis

    def own(self, rows: Float[Tensor, "k places columns"]) -> Float[Tensor, "k places columns"]:
        """What of each map's rows is to lie in it."""
        return rows - rows.mean(1, keepdim=True) if self.centred else rows


@dataclass(frozen=True, eq=False)
class NullSpace:
    """Maps that fit the row spaces, and how clearly they stand out from those that do not."""

    maps: Float[Tensor, "k c pixels"]  # a basis, one map a row
    # squared share of each that lies outside, in [0, 1]; the rounding of the gradient makes it no zero
    values: Float[Tensor, " k"]
    following: float  # the same of the best map beside them, below 1
    # squared share of what lies outside that errors of no preferred direction leave in the maps: unknowns over
    # equations
    reaching: float

    @property
    def error(self) -> float:
        """Relative error of the maps at most: the root of what lies outside, over that of the gap."""
        return float((self.values.abs().max() / max(self.following, 1e-300)).sqrt()) if len(self.values) else 1.0

    @property
    def typical(self) -> float:
        """The same of errors that prefer no direction."""
        return min(float((self.reaching * self.values.abs().max()).sqrt()), self.error) if len(self.values) else 1.0

    def typical_of(self, mixtures: Float[Tensor, "m n"]) -> Float[Tensor, " m"]:
        """The same of mixtures of the maps, each of which brings its own."""
        maps = self.maps.flatten(1)
        energy = torch.linalg.lstsq(maps.T, mixtures.T).solution.T.square() * maps.square().sum(1)
        outside: Tensor = (energy * self.values.abs()).sum(1) / mixtures.square().sum(1)
        return (self.reaching * outside).sqrt()


PRODUCTS = 1200  # most applications of an operator
TOLERANCE = 1e-9  # residual at which eigenvectors have converged
SPREAD = 4.0  # times what errors leave that maps of a short row space may
FLOOR = 1e-14  # squared share of a map that rounding leaves outside
LARGE, DEGREE, EDGE = 20_000, 4, 0.1
"""Unknowns beyond which operators go through a polynomial and no short row space is narrowed; the polynomial's degree,
and from where on it is flat."""
GAP = 30.0  # the first map that does not fit lies outside so many times as much as the last that does (squared)


def null_space(
    spaces: Sequence[SpanOfRows], most: int, generator: torch.Generator, meter: Meter = UNLIMITED
) -> NullSpace | None:
    """The maps that all row spaces of layers that read one hidden tensor allow; `None` where more than `most` do, or
    none stands out. Each pixel is weighed by the root of how many rows hold it, so that the operator is a mean of
    projections with eigenvalues in [0, 1]. Pixels that no row holds are left at zero."""
    first, noise = spaces[0].unfolding, max(space.noise for space in spaces)
    shape = (first.channels, first.pixels)
    outside, weight, seen = _overlaps(spaces, meter)
    if first.places == 1 and bool(seen.all()):  # one row an example: the row space itself
        basis = spaces[0].basis
        found = NullSpace(first.maps(basis[:, None]), basis.new_full((len(basis),), noise**2), 1.0, 1.0)
        return found if len(basis) <= most else None
    floor = max(noise**2, FLOOR)
    pairs = least_outside(outside, shape[0] * shape[1], most + 2, generator, least=100 * floor)
    if pairs is None:
        return None
    values, vectors = pairs
    fits = values.clamp_min(floor)
    gaps = fits[1:] / fits[:-1]
    count = int(gaps.argmax()) + 1
    if float(gaps[count - 1]) < GAP or count > most:
        return None
    equations = sum(space.unfolding.places * (space.unfolding.columns - len(space.basis)) for space in spaces)
    maps = vectors[:count].view(-1, *shape) * weight
    return NullSpace(maps, values[:count], float(values[count]), min(shape[0] * shape[1] / max(equations, 1), 1.0))


def _overlaps(
    spaces: Sequence[SpanOfRows], meter: Meter
) -> tuple[Callable[[Block], Block], Float[Tensor, " pixels"], Bool[Tensor, " pixels"]]:
    """The operator, pixels' weights, and which of them rows hold."""
    first = spaces[0].unfolding
    cover = torch.stack([space.unfolding.cover for space in spaces]).sum(0)
    weight, seen = cover.clamp_min(1).rsqrt(), cover > 0

    def outside(block: Block) -> Block:
        meter.tick()
        blank = block.view(-1, first.channels, first.pixels)
        maps = blank * weight
        total = torch.zeros_like(maps)
        for space in spaces:
            total += space.unfolding.maps(space.outside(space.unfolding.rows(maps)))
        total *= weight
        total[:, :, ~seen] = blank[:, :, ~seen]
        return total.flatten(1)

    return outside, weight, seen


def narrowed_space(
    spaces: Sequence[SpanOfRows], count: int, generator: torch.Generator, meter: Meter = UNLIMITED
) -> NullSpace | None:
    """As many maps whose rows span row spaces that lack some of their directions, by variable projection (Golub and
    Pereyra, 1973) from the best of those that do not fit; `None` where these leave more than errors of the spaces do.
    """
    first, floor = spaces[0].unfolding, max(FLOOR, *(space.noise**2 for space in spaces))
    outside, weight, _ = _overlaps(spaces, meter)
    pairs = least_outside(outside, first.channels * first.pixels, count + 2, generator, least=0.0)
    if pairs is None:
        return None
    start = pairs[1][:count].view(-1, first.channels, first.pixels)
    ranks = sum(len(space.basis) for space in spaces)

    def lacks(maps: Tensor) -> Tensor:
        """Squared share of the row spaces outside the span of rows, in the mean over directions."""
        meter.tick()
        left = maps.new_zeros(())
        for space in spaces:
            rows = torch.linalg.qr(space.unfolding.rows(maps * weight).flatten(0, 1).T)[0]
            left += (space.basis - (space.basis @ rows) @ rows.T).square().sum()
        return left / ranks

    def logarithm(flat: np.ndarray) -> tuple[float, np.ndarray]:
        maps = torch.from_numpy(flat).view_as(start).requires_grad_()
        with torch.enable_grad():
            value = lacks(maps).clamp_min(1e-30).log()
        return value.item(), torch.autograd.grad(value, maps)[0].flatten().numpy().copy()

    made = minimize(
        logarithm, start.flatten().numpy(), jac=True, method="L-BFGS-B", options={"maxiter": PRODUCTS, "maxcor": 30}
    )
    if (left := math.exp(made.fun)) > SPREAD * floor:
        return None
    found = torch.linalg.qr(torch.from_numpy(made.x).view(count, -1).T)[0].T.contiguous()

    def bent(block: Block) -> Block:
        maps = found.view_as(start).clone().requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(lacks(maps), maps, create_graph=True)
        mixed: Tensor = (block.view(-1, *found.shape) @ found.T @ found).flatten(1)  # mixtures of maps fit as well
        ways = [torch.autograd.grad(slope, maps, one.view_as(maps), retain_graph=True)[0].flatten() for one in block]
        return torch.stack(ways) + mixed

    curved = smallest(bent, found.numel(), 2, generator, least=0.0)
    if curved is None:
        return None
    equations = sum(len(s.basis) * (s.unfolding.columns - count * s.unfolding.places) for s in spaces)
    share = min(found.numel() / max(equations, 1), 1.0)
    maps = found.view_as(start) * weight
    return NullSpace(maps, found.new_full((count,), left), float(curved[0][0]) / 2, share)


def straightened(apply: Callable[[Block], Block]) -> Callable[[Block], Block]:
    """Chebyshev's polynomial of an operator with eigenvalues in [0, 1], which rises from zero as the operator itself
    and never above it, and is nearly flat from `EDGE` on: Lanczos takes `DEGREE` times fewer steps, and its cost is in
    keeping them orthogonal."""
    middle, half = (1 + EDGE) / 2, (1 - EDGE) / 2
    angle = math.acosh(middle / half)
    top, slope = math.cosh(DEGREE * angle), DEGREE * math.sinh(DEGREE * angle) / math.sinh(angle) / half

    def made(block: Block) -> Block:
        before, now = block, (middle * block - apply(block)) / half
        for _ in range(DEGREE - 1):
            before, now = now, 2 * (middle * now - apply(now)) / half - before
        return (top * block - now) / slope

    return made


def least_outside(
    outside: Callable[[Block], Block], size: int, count: int, generator: torch.Generator, *, least: float
) -> tuple[Float[Tensor, " count"], Block] | None:
    """`smallest` of a mean of projections. Of more than `LARGE` unknowns through `straightened`, which states values
    above a tenth of `EDGE` too small, so that errors, which are divided by them, are stated too large."""
    if size <= LARGE:
        return smallest(outside, size, count, generator, least=least)
    return smallest(straightened(outside), size, count, generator, least=least, products=PRODUCTS // DEGREE)


def smallest(
    apply: Callable[[Block], Block],
    size: int,
    count: int,
    generator: torch.Generator,
    *,
    least: float,
    products: int = PRODUCTS,
) -> tuple[Float[Tensor, " count"], Block] | None:
    """Smallest eigenpairs of a symmetric operator by block Lanczos in float64 with full reorthogonalisation.

    A block as wide as the eigenspace tells its dimension: SciPy's `eigsh` misses copies of one eigenvalue, and `lobpcg`
    ends when the last has converged. `None` where the first has not after `products` applications, or the last is below
    `least`.
    """
    count = min(count, size)
    block = torch.randn(size, count, dtype=torch.float64, generator=generator)
    current = torch.linalg.qr(block)[0].T.contiguous()
    steps = max(min(products, size) // count, 1)
    basis = torch.empty(steps * count, size, dtype=torch.float64)
    small = torch.zeros(steps * count, steps * count, dtype=torch.float64)
    before: Tensor | None = None
    for step in range(steps):
        low, high = step * count, (step + 1) * count
        basis[low:high] = current
        image = apply(current)
        part = image @ basis[:high].T
        small[low:high, :high], small[:high, low:high] = part, part.T
        image = image - part @ basis[:high]
        image = image - (image @ basis[:high].T) @ basis[:high]
        q, r = torch.linalg.qr(image.T)
        gone = r.diagonal().abs() < 1e-11
        if bool(gone.any()):  # the block has met an invariant space: new directions in place of its rounding
            q[:, gone] = torch.randn(size, int(gone.sum()), dtype=torch.float64, generator=generator)
            for _ in range(2):
                q = torch.linalg.qr(q - basis[:high].T @ (basis[:high] @ q))[0]
            r = torch.where(gone[:, None], torch.zeros_like(r), r)
        current = q.T.contiguous()
        last = step == steps - 1
        if step % 4 == 3 or last or high + count > size:
            values, y = torch.linalg.eigh(small[:high, :high])
            if float(values[count - 1]) < least:
                return None
            left = (r @ y[low:high, :count]).norm(dim=0)
            still = before is not None and bool((values[count - 1] - before).abs() < 2e-2 * values[count - 1])
            wanted = left[values[:count] < values[count - 1] / GAP]  # all that stand out, not the first alone
            if (bool((wanted < TOLERANCE).all()) and still) or last or high + count > size:
                return (values[:count], y[:, :count].T @ basis[:high]) if bool((wanted < 1e-6).all()) else None
            before = values[count - 1]
    return None


def signals_of(
    rows: Float[Tensor, "k places columns"], gradient: Float[Tensor, "filters columns"]
) -> Float[Tensor, "k places filters"]:
    """The signals δ of gradient = Σ δ ⊗ row, by least squares."""
    return combined(rows.flatten(0, 1), gradient).T.reshape(*rows.shape[:2], -1)


def combined(rows: Float[Tensor, "k columns"], target: Float[Tensor, "m columns"]) -> Float[Tensor, "m k"]:
    """Weights of the rows that make the target, by least squares; least ones where the rows are not independent. By
    their Gram matrix, refined twice: LAPACK's own least squares differ in the last digit from call to call."""
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    inside = values > 1e-12 * values[-1]
    inverse = (vectors[:, inside] / values[inside]) @ vectors[:, inside].T
    found: Tensor = target @ rows.T @ inverse
    for _ in range(2):
        found = found + (target - found @ rows) @ rows.T @ inverse
    return found


class MapFactors(NamedTuple):
    factors: Float[Tensor, " k"]  # what each map is to be multiplied with
    residual: float  # share of the shift's gradient that is left: a wrong map leaves more than rounding does


def by_shift(sums: Float[Tensor, "k channels"], shift: Float[Tensor, " channels"]) -> MapFactors | None:
    """Factors f of maps whose signals sum to `sums`: signals go with 1/f, so shift = Σ sums / f. `None` where there are
    no more channels than maps, so that anything fits."""
    if sums.shape[1] <= len(sums) or not bool(shift.abs().max() > 0):
        return None
    inverse = combined(sums, shift[None])[0]
    left = float((inverse @ sums - shift).norm() / shift.norm())
    return MapFactors(1 / inverse, left) if bool((inverse != 0).all()) else None


def by_mean_row(
    spaces: Sequence[SpanOfRows], maps: Float[Tensor, "k c pixels"], same: float
) -> list[tuple[Int[Tensor, " m"], Float[Tensor, " m"]]]:
    """Maps that ran together, as in one step, and their factors relative to each other, where a layer's row space holds
    but differences of the rows of one run. All of these leave the row space by the same vector, the part of their mean
    that lies outside: maps that are a factor too large leave it by as much more. Their sign is that of the sum.

    `same`: share by which two such vectors may differ in direction.
    """
    means = [(space.unfolding.rows(maps).mean(1), space.basis) for space in spaces]
    left, found = torch.cat([m - (m @ basis.T) @ basis for m, basis in means], 1), list[tuple[Tensor, Tensor]]()
    units, open_ = left / left.norm(dim=1, keepdim=True).clamp_min(1e-300), torch.ones(len(left), dtype=torch.bool)
    while bool(open_.any()):
        first = units[open_][0]
        near = open_ & ((units - (units @ first)[:, None] * first).norm(dim=1) < same)
        open_ &= ~near
        size = torch.linalg.svd(left[near], full_matrices=False)[0][:, 0]
        size = size * size.sum().sign()
        found.append((near.nonzero()[:, 0], 1 / size.where(size.abs() > 1e-12, torch.full_like(size, 1e-12))))
    return found
