"""Where the canaries go: a clip-and-noise function of the user's own, or a defence of this package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leakgauge.defenses import Defense, steps_of
from leakgauge.defenses.steps import PerExampleScale, Scale
from leakgauge.errors import FOREIGN, InputError, said
from leakgauge.privacy.canaries import Send
from leakgauge.privacy.guarantee import Mechanism, NoGuarantee, Unit, mechanism
from leakgauge.tensors import map_tensors


@dataclass(frozen=True)
class NoisePath:
    """A clip-and-noise path under test.

    Attributes:
        send: from updates, one a row, to what leaves.
        unit: whose update a row is.
        updates: rows of a call, where the path or its ε depends on their number; `None` takes any.
    """

    send: Send
    unit: Unit
    updates: int | None = None


def of_function(
    function: Callable[..., Any], unit: Unit, updates: int | None = None, *, numpy: bool = False
) -> NoisePath:
    """A function ``(updates (n, d), generator) → (d,)``, of PyTorch tensors or NumPy arrays.

    It must draw all its noise from the generator that it is given, or from one of its own that differs in every call.
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


@dataclass(frozen=True)
class DefensePath:
    """A defence as a path, with the noise multiplier that it states: noise on the sum over one unit's bound."""

    path: NoisePath
    noise_multiplier: float
    clip: float


def of_defense(defense: Defense, examples: int | None = None) -> DefensePath:
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
    assert isinstance(found, Mechanism)
    if found.unit is Unit.CLIENT:

        def send(rows: Tensor, generator: torch.Generator) -> Tensor:
            return defense.on_update({"update": rows[0]}, generator)["update"]

        return DefensePath(NoisePath(send, found.unit, 1), found.noise_multiplier, _bound(defense))

    def send_mean(rows: Tensor, generator: torch.Generator) -> Tensor:
        changed = defense.on_example_gradients({"update": rows}, generator)
        return defense.on_update(map_tensors(lambda g: g.mean(0), changed), generator)["update"]

    fixed = None if isinstance(mechanism(defense, layers=1), Mechanism) else examples
    return DefensePath(NoisePath(send_mean, found.unit, fixed), found.noise_multiplier, _bound(defense))


def _bound(defense: Defense) -> float:
    """The clip norm of the defence, to which canaries are scaled."""
    return next(step.bound for step in reversed(steps_of(defense)) if isinstance(step, Scale | PerExampleScale))
