"""What was read of one part of a training step's batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PartScores:
    """One part of a training step's batch, what was read of it beside the truth.

    Attributes:
        kind: picture, volume, series, text, numbers, categories, or what is taught: labels, values, mask, …
        measure: `equal`, the share of its entries that are; or `error`, the mean absolute one in shares of the range.
        values: of each true example.
        guess: the same of the best guess that is the same for all, from other clients' examples.
    """

    name: str
    kind: str
    measure: str
    values: tuple[float | None, ...]
    guess: tuple[float, ...]

    @property
    def missed(self) -> tuple[float, float]:
        """What the read and the guess leave open, over the examples that were read."""
        both = [(v, g) for v, g in zip(self.values, self.guess, strict=True) if v is not None]
        left = [(1 - v, 1 - g) if self.measure == "equal" else (v, g) for v, g in both]
        return sum(v for v, _ in left), sum(g for _, g in left)
