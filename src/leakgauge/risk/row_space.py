"""Which vectors lie in the row space of an integer matrix: exactly, by p-adic lifting, never by a tolerance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leakgauge.errors import InputError

PRIMES = (1048573, 1048571, 1048559, 1048549, 1048517, 1048507, 1048447, 1048433)
"""Below 2^20, so that products of one with small entries sum up exactly in double precision."""

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RationalSpan:
    """Span over the rationals of the rows of an integer matrix.

    A set of rows that is independent modulo a prime p is independent over the rationals. With M its columns at the
    pivots, invertible modulo p, every vector b of the span is y·basis with y = b_P·M⁻¹, whose denominators p does not
    divide. So y has digits in base p (Dixon, *Exact solution of linear equations using p-adic expansions*, 1982), and
    b − y·basis vanishes exactly if it vanishes modulo a power of p above Hadamard's bound of its numerators."""

    basis: Integers
    pivots: tuple[int, ...]  # a column for each of them
    inverse: Integers  # M⁻¹ modulo `prime`
    reduced: Integers  # inverse·basis modulo `prime`, the reduced row echelon form
    prime: int

    @staticmethod
    def of(matrix: Integers) -> RationalSpan:
        """Tries primes until what vanishes modulo one is shown to vanish: rows that depend on others, and pivots whose
        row of the echelon form has no other entry. Raises `InputError` where all primes divide what matters, as only
        made-up weights do."""
        for prime in PRIMES:
            rows, pivots, reduced = _echelon(matrix, prime)
            basis, size = matrix[rows], len(rows)
            inverse = _echelon(np.hstack([basis[:, pivots], np.eye(size, dtype=np.int64)]), prime)[2][:, size:]
            space = RationalSpan(basis, pivots, inverse, reduced, prime)
            rest = np.delete(np.arange(len(matrix)), rows)
            units = np.eye(matrix.shape[1], dtype=np.int64)[space.lone]
            if bool(space.contain(matrix[rest]).all()) and bool(space.contain(units).all()):
                return space
        raise InputError("weights", f"are multiples of {PRIMES[0]} and seven other primes", "divide them")

    @property
    def free(self) -> NDArray[np.int64]:
        return np.setdiff1d(np.arange(self.basis.shape[1]), self.pivots)

    @property
    def lone(self) -> Integers:
        """Columns whose unit vector is in the span: pivots with no other entry in their row of the echelon form."""
        others = (self.reduced[:, self.free] != 0).any(1)
        columns: Integers = np.asarray(self.pivots, dtype=np.int64)[~others]
        return columns

    def contain(self, vectors: Integers, without: tuple[int, ...] = ()) -> NDArray[np.bool_]:
        """Which of `vectors` are in the span, or would be if the columns `without`, none of them a pivot, were free."""
        checked = np.setdiff1d(np.arange(self.basis.shape[1]), without)
        basis, pivots = self.basis[:, checked], np.searchsorted(checked, self.pivots)
        rest = vectors[:, checked]
        inside = np.ones(len(vectors), dtype=bool)
        if len(pivots) == len(checked):
            return inside
        for _ in range(self._digits(vectors)):
            digits = _product(_modulo(rest[:, pivots], self.prime), self.inverse, self.prime)
            left = rest - _times(digits, basis)
            inside &= (left % self.prime == 0).all(1)
            rest = np.where(inside[:, None], left, 0) // self.prime
            if not rest.any():
                break
        return inside

    def fixes(self, column: int, without: tuple[int, ...]) -> bool:
        """Whether the unit vector of a column would be in the span if the columns `without` were free."""
        return bool(self.contain(np.eye(1, self.basis.shape[1], column, dtype=np.int64), without)[0])

    def with_pivot(self, row: int, column: int) -> RationalSpan:
        """The same space with another pivot in `row`, which must not be zero at `column` modulo the prime."""
        entries = self.reduced[:, column]
        first = self.inverse[row] * pow(int(entries[row]), -1, self.prime) % self.prime
        inverse = (self.inverse - entries[:, None] * first) % self.prime
        inverse[row] = first
        pivots = (*self.pivots[:row], column, *self.pivots[row + 1 :])
        reduced = _product(inverse, _modulo(self.basis, self.prime), self.prime)
        return RationalSpan(self.basis, pivots, inverse, reduced, self.prime)

    def _digits(self, vectors: Integers) -> int:
        """Digits in base p after which zero is zero: Hadamard's bound of a minor with one of `vectors` as a row."""
        lengths = sum(math.log2(max(1, _squared(row))) / 2 for row in self.basis)
        longest = max((math.log2(max(1, _squared(v))) / 2 for v in vectors), default=0.0)
        return math.ceil((lengths + longest + 2) / math.log2(self.prime)) + 1


def _modulo(matrix: Integers, prime: int) -> Integers:
    """As 64-bit integers, also where the matrix holds Python's."""
    return (matrix % prime).astype(np.int64)


def _squared(row: Integers) -> int:
    return sum(int(v) ** 2 for v in row[row != 0])


def _echelon(matrix: Integers, prime: int) -> tuple[list[int], tuple[int, ...], Integers]:
    """Modulo `prime`: rows that are independent, as many as there are, a pivot column of each, and the reduced row
    echelon form."""
    left, order = _modulo(matrix, prime), np.arange(len(matrix))
    pivots: list[int] = []
    for column in range(left.shape[1]):
        done = len(pivots)
        found = np.flatnonzero(left[done:, column])
        if not len(found):
            continue
        at = done + int(found[0])
        left[[done, at]], order[[done, at]] = left[[at, done]], order[[at, done]]
        left[done] = left[done] * pow(int(left[done, column]), -1, prime) % prime
        others = np.flatnonzero(left[:, column])
        others = others[others != done]
        left[others] = (left[others] - left[others, column][:, None] * left[done]) % prime
        pivots.append(column)
    return order[: len(pivots)].tolist(), tuple(pivots), left[: len(pivots)]


def _product(left: Integers, right: Integers, prime: int) -> Integers:
    """Modulo `prime`, of factors below it, in blocks whose sums a double holds exactly."""
    block = 2**53 // prime**2
    total = np.zeros((left.shape[0], right.shape[1]), dtype=np.int64)
    for first in range(0, left.shape[1], block):
        part = left[:, first : first + block].astype(float) @ right[first : first + block].astype(float)
        total = (total + part.astype(np.int64)) % prime
    return total


def _times(digits: Integers, basis: Integers) -> Integers:
    """Exact product: in double precision where no sum exceeds its integers, else with Python's."""
    largest = int(digits.max(initial=0)) * int(np.abs(basis).max(initial=0)) * max(1, basis.shape[0])
    exact = largest < 2**53
    product: Integers = digits.astype(float if exact else object) @ basis.astype(float if exact else object)
    return product.astype(np.int64) if exact else product
