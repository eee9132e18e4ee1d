"""Made-up updates that are sent through a clip-and-noise path, and what the output says about who was in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.fft
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.defenses import Defense, steps_of
from leakgauge.defenses.defense import child_generator
from leakgauge.defenses.steps import PerExampleScale, Scale
from leakgauge.errors import FOREIGN, InputError, require, said
from leakgauge.privacy.accounting import Unit
from leakgauge.privacy.guarantee import Mechanism, NoGuarantee, mechanism
from leakgauge.tensors import map_tensors

Send = Callable[[Float[Tensor, "n d"], torch.Generator], Float[Tensor, " d"]]
"""``(one update a row, generator) → what leaves``: clip, sum or mean, and noise."""

NORM = 10.0
"""Length of a canary in clips. Above 1 it shows whether single updates are clipped at all."""


@dataclass(frozen=True)
class NoisePath:
    """A clip-and-noise path under test: a function of the user's own, or a defence of this package.

    Attributes:
        send: from updates, one a row, to what leaves.
        unit: whose update a row is.
        updates: rows of a call, where the path or its ε depends on their number; `None` takes any.
        noise_multiplier: that a defence states: noise on the sum over one unit's bound.
        clip: that bound, as a defence states it.
    """

    send: Send
    unit: Unit
    updates: int | None = None
    noise_multiplier: float = 0.0
    clip: float = 0.0

    @staticmethod
    def of_function(
        function: Callable[..., Any], unit: Unit, updates: int | None = None, *, numpy: bool = False
    ) -> NoisePath:
        """A function ``(updates (n, d), generator) → (d,)``, of PyTorch tensors or NumPy arrays.

        It must draw all its noise from the generator that it is given, or from one of its own that differs in every
        call.
        """

        def send(rows: Tensor, generator: torch.Generator) -> Tensor:
            seed = int(torch.randint(2**62, (), generator=generator))
            given = (rows.numpy(), np.random.default_rng(seed)) if numpy else (rows, generator.manual_seed(seed))
            try:
                return torch.as_tensor(function(*given)).detach().cpu()
            except InputError:
                raise
            except FOREIGN as error:
                hint = "it is called with updates (n, d) and a generator, and returns d numbers"
                raise InputError("path", f"raises {said(error)}", hint) from error

        return NoisePath(send, unit, updates)

    @staticmethod
    def of_defense(defense: Defense, examples: int | None = None) -> NoisePath:
        """The stages of a defence from one unit's update to the wire, with no network before them.

        A client's own noise (client-dp, clip + noise) is tested with one update a call, as the server sees each.

        Args:
            examples: of a step; needed where the ε depends on it (fed-cdp, clip-examples + noise).

        Raises:
            InputError: the defence states no ε, with the reason.
        """
        found = mechanism(defense, examples=examples, layers=1)
        if isinstance(found, NoGuarantee):
            raise InputError("defense", f"states no ε ({found.reason})", "give dp-sgd, client-dp, or clip with noise")
        bound = next(s.bound for s in reversed(steps_of(defense)) if isinstance(s, Scale | PerExampleScale))

        def send(rows: Tensor, generator: torch.Generator) -> Tensor:
            changed = defense.on_example_gradients({"update": rows}, generator)
            return defense.on_update(map_tensors(lambda g: g.mean(0), changed), generator)["update"]

        path = NoisePath(send, found.unit, 1, found.noise_multiplier, bound)
        if found.unit is Unit.CLIENT:
            return path
        return replace(path, updates=None if isinstance(mechanism(defense, layers=1), Mechanism) else examples)


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


def directions(count: int, size: int, generator: torch.Generator) -> Float[Tensor, "m d"]:
    """Orthogonal rows of length 1, dense in every coordinate: cosines of random frequencies with random signs.

    Raises:
        InputError: fewer coordinates than canaries.
    """
    require(count >= 20, "canaries", f"is {count}", "give at least 20; 1000 find half of the noise missing")
    require(size >= count, "size", f"{size} coordinates are fewer than {count} canaries", "give at least as many")
    frequencies = torch.randperm(size, generator=generator)[:count].numpy()
    peaks = np.zeros((count, size), dtype=np.float32)
    peaks[np.arange(count), frequencies] = 1
    waves = torch.from_numpy(scipy.fft.idct(peaks, norm="ortho", axis=1, overwrite_x=True))
    return waves * (torch.randint(0, 2, (size,), generator=generator) * 2 - 1)


def scores(
    path: NoisePath,
    canaries: Float[Tensor, "m d"],
    *,
    clip: float,
    rounds: int,
    alone: bool,
    generator: torch.Generator,
) -> CanaryScores:
    """Sends canaries, each in or replaced by a zero update by a coin of its own, so that the number of updates says
    nothing.

    Args:
        clip: C, the stated bound of one unit's contribution.
        alone: one call a canary, else as many in one as it takes. Beside a canary alone stands an update of length C in
            the opposite direction, where a call takes several: clipping their sum instead of each then moves the output
            by twice the clip. What all outputs have in common is subtracted: noise that is drawn anew each time has no
            such part.
    """
    m, size = canaries.shape
    present = torch.randint(0, 2, (m,), generator=generator).bool()
    a_call = path.updates or (2 if alone else m)
    values, total = torch.empty(m, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    for rows in torch.arange(m).split(1 if alone else a_call):
        batch = torch.zeros(a_call, size)
        batch[: len(rows)] = canaries[rows] * (NORM * clip) * present[rows, None]
        if alone and a_call > 1:
            batch[1] = -clip * canaries[rows[0]]
        out = _released(path.send, batch, rounds, generator)
        values[rows] = canaries[rows].double() @ out
        total += out
    if alone:
        values -= canaries.double() @ (total / m)
    return CanaryScores(values.numpy(), present.numpy())


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
        finite = bool(torch.isfinite(out).all())
        require(finite, "path", "returned NaN or infinity", "clip must leave a zero update as it is")
        total += out.double()
    return total / rounds
