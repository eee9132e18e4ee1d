"""Taking a span of non-negative maps apart by their zeros."""

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from scipy.linalg import qr
from scipy.optimize import linprog
from torch import Tensor

from leakgauge.attacks.features.null_space import combined

PLACES = 6000  # of the pixels that candidates are told by; more tell the same
CONSTRAINTS = 2000  # of the pixels that a linear programme asks to be no less than zero
PASSES, ROUNDS = 24, 24  # sets of corners, each of half of the pixels, and reweightings of a guess
SAME = 1 - 1e-9  # cosine of two vectors that are one
CHOSEN = 2.0  # more pixels than a mixture can be chosen to have at zero in one direction: one
NEAR = 1 - 1e-4  # cosine at which a guess is given up as one that is known: its own would have left by then
ZEROS = 0.5  # a map has at least this share of the zeros of the one that has most


@dataclass(frozen=True, eq=False)
class Unmixed:
    """Maps of single examples, each up to its scale."""

    maps: Float[Tensor, "k n"]  # non-negative but for noise
    # share of the pixels that some map lights which each map's hyperplane holds; 1 of a single map. Where it is small,
    # as of two nearly equal maps, a few pixels decide which of their mixtures was found.
    held: Float[Tensor, " k"]
    # root of the share of those pixels that hold the hyperplane where it is held least, the errors of the span over
    # which are those of its map
    firm: Float[Tensor, " k"]
    floor: Float[Tensor, " k"]  # largest negative entry of each, as a share of its largest: what noise leaves of a zero


def unmixed(span: Float[Tensor, "k n"], generator: torch.Generator, *, noise: float) -> Unmixed:
    """The maps of a span that have most zeros and no negative entries.

    Behind a ReLU each example's map is zero at about half of its entries, where a mixture is not: it is a hyperplane of
    the span that holds many of the pixels. Pixels that one example alone lights are the corners of the cone of all
    pixels; successive projections (Gillis and Vavasis, 2014) find some, and their inverse is a first guess of the
    hyperplanes. Each goes to the nearest local minimum of the mean |w·pixel|, by reweighted least squares from its
    own pixels. Mixtures that are local minima too have fewer zeros, or negative entries.

    `noise` is the relative error of the span: what is this near to zero may be one.
    """
    count = len(span)
    basis = torch.linalg.qr(span.T)[0].T.contiguous()
    size = basis.norm(dim=0)
    points = basis[:, size > 1e-3 * size.max()]
    if count > 1 and points.shape[1] > PLACES:
        points = points[:, torch.randperm(points.shape[1], generator=generator)[:PLACES]]
    units = points / points.norm(dim=0)
    found: list[tuple[float, Tensor]] = [(1.0, basis.new_ones(1))] if count == 1 else []
    for index in range(PASSES):
        if len(found) == count:
            break
        if index % 3 == 2:
            guesses = _edges(points, [v for _, v in found], generator)
        else:
            guesses = _corners(points[:, torch.rand(points.shape[1], generator=generator) < (0.5 if index else 1.0)])
        for guess in guesses:
            vector, share = _plane(units, guess, noise, [v for _, v in found])
            made = _upright((vector @ basis)[None])[0]
            negative = float((-made.min()).clamp_min(0) / made.max())
            if negative < max(1e-4, 30 * noise) and all(abs(float(vector @ v)) < SAME for _, v in found):
                found.append((share, vector))
        found = _independent(found, count)
    vectors = torch.stack([v for _, v in found]) if found else basis.new_zeros(0, count)
    maps = _upright(vectors @ basis)
    firm = basis.new_tensor([_firmness(units, vector, noise) for vector in vectors])
    floor = ((-maps).amax(1).clamp_min(0) / maps.amax(1)).clamp_min(max(noise, 1e-12))
    return Unmixed(maps, basis.new_tensor([share for share, _ in found]), firm, floor)


def _firmness(units: Float[Tensor, "k n"], vector: Tensor, noise: float) -> float:
    """How firmly the points on a hyperplane hold it, in the direction in which they hold it least, 0 to 1. Zero where a
    mixture could have as many there: those that it is chosen by, and others that come as near by chance."""
    near, (count, points) = 10 * max(noise, 1e-9), units.shape
    if count == 1:  # a single map is told from nothing
        return 1.0
    on = units[:, (vector @ units).abs() < near]
    least = float(torch.linalg.eigvalsh(on @ on.T)[1])
    by_chance = 2 * near * count**0.5 * points
    return 0.0 if least < CHOSEN + by_chance else float((least / points) ** 0.5)


def _corners(points: Float[Tensor, "k n"]) -> Float[Tensor, "k k"]:
    """A guess of each map's hyperplane: none where the pixels have no k corners. The order in which a factorisation
    takes its pivots is that of successive projections."""
    count = len(points)
    if points.shape[1] < count:
        return points.new_zeros(0, count)
    toward = combined(points, points.norm(dim=0)[None])[0]
    height = toward @ points
    inside = height > 1e-2 * height.max()
    cone = points[:, inside] / height[inside]
    corners = cone[:, qr(cone.numpy(), mode="r", pivoting=True)[1][:count]]
    if cone.shape[1] < count or float(torch.linalg.cond(corners)) > 1e8:
        return points.new_zeros(0, count)
    return cast(Tensor, torch.linalg.inv(corners))


def _plane(units: Float[Tensor, "k n"], guess: Tensor, noise: float, known: list[Tensor]) -> tuple[Tensor, float]:
    """The hyperplane through many points that is nearest to a guess, or a known one, and the share of points on it."""
    vector, least = guess / guess.norm(), max(noise, 1e-9)
    near = max(float((vector @ units).abs().quantile(0.1)), least)
    for _ in range(ROUNDS):
        weight, before = 1 / ((vector @ units).square() + near**2), vector
        vector = torch.linalg.eigh((units * weight) @ units.T)[1][:, 0]
        again = next((v for v in known if abs(float(vector @ v)) > NEAR), None)
        if again is not None and abs(float(before @ again)) > NEAR:
            return again, 0.0
        if near == least and 1 - abs(float(vector @ before)) < 1e-14:
            break
        near = max(min(near / 2, float((vector @ units).abs().quantile(0.1))), least)
    on = (vector @ units).abs() < 10 * least
    for _ in range(ROUNDS):  # those that hold it may bring further ones near
        if int(on.sum()) < len(units):
            break
        vector, before = torch.linalg.eigh(units[:, on] @ units[:, on].T)[1][:, 0], on
        on = (vector @ units).abs() < 10 * least
        if torch.equal(on, before):
            break
    return vector, float(on.double().mean())


def _edges(points: Float[Tensor, "k n"], known: list[Tensor], generator: torch.Generator) -> Float[Tensor, "m k"]:
    """Guesses of the maps beside known ones: of all non-negative maps that hold a share of what these lack, the least,
    by a linear programme."""
    count = len(points)
    lacks = torch.linalg.svd(torch.stack(known), full_matrices=True)[2][len(known) :] if known else torch.eye(count)
    few = points[:, torch.randperm(points.shape[1], generator=generator)[:CONSTRAINTS]].numpy()
    guesses = []
    for _ in range(max(count - len(known), 1)):
        toward = torch.randn(len(lacks), generator=generator, dtype=torch.float64) @ lacks.double()
        for side in (toward, -toward):
            made = linprog(
                few.sum(1), A_ub=-few.T, b_ub=0 * few[0], A_eq=side[None].numpy(), b_eq=[1.0], bounds=(None, None)
            )
            if made.status == 0 and float((made.x**2).sum()) > 0:
                guesses.append(torch.from_numpy(made.x))
    return torch.stack(guesses) if guesses else points.new_zeros(0, count)


def _independent(found: list[tuple[float, Tensor]], count: int) -> list[tuple[float, Tensor]]:
    """Those of most zeros first, each told from those before it."""
    kept: list[tuple[float, Tensor]] = []
    most = max((share for share, _ in found), default=0.0)
    for share, vector in sorted(found, key=lambda one: -one[0]):
        if len(kept) == count or share < ZEROS * most:
            break
        if float(torch.linalg.svdvals(torch.stack([*(v for _, v in kept), vector]))[-1]) > 1e-6:
            kept.append((share, vector))
    return kept


def _upright(maps: Float[Tensor, "k n"]) -> Float[Tensor, "k n"]:
    """Turned so that the sum is positive."""
    return torch.where(maps.sum(1, keepdim=True) < 0, -maps, maps)
