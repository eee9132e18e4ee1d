"""Made-up updates that are sent through a clip-and-noise path, and what the output says about who was in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.defenses import Defense, steps_of
from leakgauge.defenses.defense import child_generator
from leakgauge.defenses.steps import PerExampleScale, Scale
from leakgauge.errors import InputError, require
from leakgauge.privacy.accounting import Unit
from leakgauge.privacy.guarantee import Mechanism, NoGuarantee, mechanism
from leakgauge.privacy.replay import Code
from leakgauge.tensors import map_tensors

Send = Callable[[Float[Tensor, "n d"], torch.Generator], Float[Tensor, " d"]]
"""``(one update a row, generator) → what leaves``: clip, sum or mean, and noise."""

NORM = 10.0
"""Length of a canary in clips. Above 1 it shows whether single updates are clipped at all."""

BESIDE = 4
"""Updates of a call that takes any number."""


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
        code = Code(function, numpy)

        def send(rows: Tensor, generator: torch.Generator) -> Tensor:
            return code.run(rows, int(torch.randint(2**62, (), generator=generator))).out

        return NoisePath(send, unit, updates)

    @staticmethod
    def of_defense(defense: Defense, examples: int | None = None) -> NoisePath:
        """The stages of a defence from one unit's update to the wire, with no network before them.

        A client's own noise (client-dp, clip + noise) is tested with one update a call, as the server sees each.

        Args:
            examples: of a step; needed where the ε depends on it (fed-cdp, clip-examples + noise).
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


def scores(
    path: NoisePath, count: int, size: int, *, clip: float, rounds: int, generator: torch.Generator
) -> CanaryScores:
    """Sends canaries of random directions one by one, each in or replaced by a zero update by a coin of its own, so
    that the number of updates says nothing.

    Beside it stand, where a call takes several, updates of zeros, as some faults grow with their number, and one of
    length C in the opposite direction: clipping their sum instead of each then moves the output by twice the clip. What
    all outputs have in common is subtracted: noise that is drawn anew each time has no such part.

    Args:
        count, size: of canaries, and of coordinates.
        clip: C, the stated bound of one unit's contribution.
        rounds: releases of the same units, of which the mean counts.
    """
    canaries = torch.nn.functional.normalize(torch.randn(count, size, generator=generator), dim=1)
    present = torch.randint(0, 2, (count,), generator=generator).bool()
    values, total = torch.empty(count, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    for i, canary in enumerate(canaries):
        batch = torch.zeros(path.updates or BESIDE, size)
        batch[0] = canary * (NORM * clip) * present[i]
        batch[1:2] = -clip * canary
        released = [path.send(batch.clone(), child_generator(generator)).double() for _ in range(rounds)]
        out = torch.stack(released).mean(0)
        finite = bool(out.isfinite().all())
        require(finite, "path", "returned NaN or infinity", "clip must leave a zero update as it is")
        values[i] = canary.double() @ out
        total += out
    return CanaryScores((values - canaries.double() @ (total / count)).numpy(), present.numpy())
