"""Made-up updates that are sent through a clip-and-noise path, and what the output says about who was in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.fft
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.defenses.defense import child_generator
from leakgauge.errors import InputError, require

Send = Callable[[Float[Tensor, "n d"], torch.Generator], Float[Tensor, " d"]]
"""``(one update a row, generator) → what leaves``: clip, sum or mean, and noise."""


@dataclass(frozen=True, eq=False)
class Canaries:
    """Orthogonal updates of one length, dense in every coordinate; they are far above the clip.

    Attributes:
        directions: one a row, of length 1.
        clip: C, the stated bound of one unit's contribution.
        norm: length of each canary, in units of the clip. Above 1 it shows whether single updates are clipped at all.
    """

    directions: Float[Tensor, "m d"]
    clip: float
    norm: float = 10.0

    @staticmethod
    def draw(count: int, size: int, clip: float, generator: torch.Generator) -> Canaries:
        """Cosines of random frequencies with random signs.

        Raises:
            InputError: fewer coordinates than canaries, or a clip that is no positive number.
        """
        require(count >= 20, "canaries", f"is {count}", "give at least 20; 1000 find half of the noise missing")
        require(size >= count, "size", f"{size} coordinates are fewer than {count} canaries", "give at least as many")
        require(0 < clip < float("inf"), "clip", f"is {clip}", "give the norm that each update is clipped to")
        frequencies = torch.randperm(size, generator=generator)[:count].numpy()
        peaks = np.zeros((count, size), dtype=np.float32)
        peaks[np.arange(count), frequencies] = 1
        waves = torch.from_numpy(scipy.fft.idct(peaks, norm="ortho", axis=1, overwrite_x=True))
        signs = torch.randint(0, 2, (size,), generator=generator) * 2 - 1
        return Canaries(waves * signs, clip)

    def __len__(self) -> int:
        return int(self.directions.shape[0])

    def updates(self, rows: slice | list[int]) -> Float[Tensor, "k d"]:
        """The canaries of these rows at full length."""
        return self.directions[rows] * (self.norm * self.clip)


@dataclass(frozen=True, eq=False)
class CanaryScores:
    """How much of each canary is in the outputs, and whether it was in the input (the truth)."""

    values: Float[np.ndarray, " m"]
    present: Bool[np.ndarray, " m"]

    @property
    def gap(self) -> float:
        """Mean score of those that were in less that of the others, in standard deviations of the noise."""
        inside, outside = self.values[self.present], self.values[~self.present]
        if min(len(inside), len(outside)) < 2:
            return 0.0
        spread = np.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / 2)
        step = float(inside.mean() - outside.mean())
        return 0.0 if step == 0 else float("inf") if spread <= 1e-9 * abs(step) else step / float(spread)


def together(send: Send, canaries: Canaries, *, a_call: int, rounds: int, generator: torch.Generator) -> CanaryScores:
    """Calls with `a_call` canaries each. One that is left out is replaced by a zero update, so that the number of
    updates says nothing."""
    present = _coins(len(canaries), generator)
    values = np.empty(len(canaries))
    for first in range(0, len(canaries), a_call):
        rows = slice(first, min(first + a_call, len(canaries)))
        batch = torch.zeros(a_call, canaries.directions.shape[1])
        batch[: rows.stop - first] = canaries.updates(rows) * torch.from_numpy(present[rows])[:, None]
        out = _released(send, batch, rounds, generator)
        values[rows] = (canaries.directions[rows].double() @ out).numpy()
    return CanaryScores(values, present)


def separate(send: Send, canaries: Canaries, *, a_call: int, rounds: int, generator: torch.Generator) -> CanaryScores:
    """One call a canary. Beside it stands an update of the clip's length in the opposite direction, where a call takes
    several: clipping their sum instead of each then moves the output by twice the clip.

    What all outputs have in common is subtracted: noise that is drawn anew each time has no such part.
    """
    present = _coins(len(canaries), generator)
    own = np.empty(len(canaries))
    total = torch.zeros(canaries.directions.shape[1], dtype=torch.float64)
    for i in range(len(canaries)):
        batch = torch.zeros(a_call, canaries.directions.shape[1])
        if a_call > 1:
            batch[1] = -canaries.clip * canaries.directions[i]
        if present[i]:
            batch[0] = canaries.updates([i])[0]
        out = _released(send, batch, rounds, generator)
        own[i] = float(canaries.directions[i].double() @ out)
        total += out
    common = (canaries.directions.double() @ (total / len(canaries))).numpy()
    return CanaryScores(own - common, present)


def _coins(count: int, generator: torch.Generator) -> Bool[np.ndarray, " m"]:
    return torch.randint(0, 2, (count,), generator=generator).bool().numpy()


def _released(send: Send, batch: Tensor, rounds: int, generator: torch.Generator) -> Float[Tensor, " d"]:
    """Mean output of all rounds, in which the same units take part.

    Raises:
        InputError: not one finite number for each coordinate.
    """
    total = torch.zeros(batch.shape[1], dtype=torch.float64)
    for _ in range(rounds):
        out = send(batch.clone(), child_generator(generator))
        fits = tuple(out.shape) == (batch.shape[1],)
        require(fits, "path", f"returned shape {tuple(out.shape)} for {batch.shape[1]} coordinates", "return the sum")
        if not bool(torch.isfinite(out).all()):
            raise InputError("path", "returned NaN or infinity", "clip must leave a zero update as it is")
        total += out.double()
    return total / rounds
