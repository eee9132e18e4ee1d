"""What a rule is, what it measures, the rules run over a received model, and the limits from which they alarm."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from leakgauge.errors import InputError, require
from leakgauge.files import json_of
from leakgauge.inspection.matrices import Omission
from leakgauge.registry import RULES
from leakgauge.task import Batch, Task


class Part(Enum):
    """A part of `Received` that a rule may need; the value is the field's name."""

    STATE = "state"
    MODULE = "module"
    TASK = "task"
    BATCH = "batch"
    REFERENCE = "reference"
    PREVIOUS = "previous"


@dataclass(frozen=True, eq=False)
class Received:
    """A model as it came from the server, and what the client can compare it with. `None` is not at hand.

    Attributes:
        state: names to tensors, as received; always there.
        module: the architecture with `state` loaded, in eval mode.
        task: the same with data format, loss and mode.
        batch: some of the client's own examples with their labels.
        reference: a state dict that the client trusts, of the same architecture.
        previous: the state dict of the round before.
    """

    state: Mapping[str, Tensor]
    module: nn.Module | None = None
    task: Task | None = None
    batch: Batch | None = None
    reference: Mapping[str, Tensor] | None = None
    previous: Mapping[str, Tensor] | None = None

    def known(self, part: Part) -> Mapping[str, Tensor]:
        """The model to compare with: the reference, or that of the round before. It must be at hand."""
        found = self.reference if part is Part.REFERENCE else self.previous
        assert found is not None
        return found

    def has(self, parts: tuple[Part, ...]) -> bool:
        """Whether everything named is at hand."""
        at_hand = {f.name for f in fields(self) if getattr(self, f.name) is not None}
        return all(part.value in at_hand for part in parts)


@dataclass(frozen=True)
class Measurement:
    """What one rule saw in one model: its most suspicious place.

    Attributes:
        statistic: ≥ 0, finite, larger is more suspicious; its unit is the rule's.
        where: names of tensors or layers, the worst first.
        evidence: one sentence with the numbers that a person can check.
        unjudged: what the rule should have judged and could not.
    """

    statistic: float
    where: tuple[str, ...]
    evidence: str
    unjudged: tuple[Omission, ...] = ()


@runtime_checkable
class Rule(Protocol):
    """A test of one property. Registered in `leakgauge.registry.RULES`; a frozen dataclass without required fields.

    Guarantees: deterministic; the received model is not changed; never reads what it did not ask for.
    """

    @property
    def needs(self) -> tuple[Part, ...]:
        """Parts without which the rule is skipped, and listed as skipped."""
        ...

    @property
    def meaning(self) -> str:
        """What a server gains by it, and what an honest reason could be; for the page."""
        ...

    def measure(self, received: Received) -> Measurement: ...


def rules() -> dict[str, Rule]:
    """All registered rules by name."""
    return {entry.name: entry.build() for entry in RULES}


def measure(received: Received) -> dict[str, Measurement]:
    """What every rule saw that has what it needs, by the rule's name.

    Deterministic; `received` is not changed.

    Raises:
        ValueError: a rule broke its contract (a statistic below zero).
    """
    measured = {name: rule.measure(received) for name, rule in rules().items() if received.has(rule.needs)}
    return {name: _sound(name, measurement) for name, measurement in measured.items()}


def _sound(name: str, measured: Measurement) -> Measurement:
    """The measurement; one whose numbers ran over on this model says that it does not judge it."""
    if not math.isfinite(measured.statistic):
        omission = Omission(measured.where[0] if measured.where else "model", "too large to compute with")
        return Measurement(0.0, measured.where, "Its numbers run over here.", (omission,))
    if measured.statistic < 0:
        raise ValueError(f"rule '{name}' measured {measured.statistic}")
    return measured


def skipped(received: Received) -> dict[str, tuple[Part, ...]]:
    """Rules that did not run, each with the parts it lacks."""
    lacking = {name: tuple(p for p in rule.needs if not received.has((p,))) for name, rule in rules().items()}
    return {name: parts for name, parts in lacking.items() if parts}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """From which statistic on a rule alarms.

    Attributes:
        limits: rule name to limit, > 0.
        made_by: the command that measured them.
        models: on how many honest models.
    """

    limits: Mapping[str, float]
    made_by: str
    models: int

    def __post_init__(self) -> None:
        for rule, limit in self.limits.items():
            require(math.isfinite(limit) and limit > 0, f"limits.{rule}", f"is {limit}", "give a positive number")

    @staticmethod
    def packaged() -> Limits:
        """The ones that ship with the package."""
        return _read(files(__package__).joinpath("limits.json").read_text(encoding="utf-8"), "limits.json")

    @staticmethod
    def read(path: Path) -> Limits:
        """From a file of the same form: ``{"limits": {rule: number}, "made_by": command, "models": n}``."""
        try:
            return _read(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError("limits", f"{path} cannot be read", "give a JSON file of limits") from error

    def to_json(self) -> str:
        """The file's text."""
        found = {"limits": dict(sorted(self.limits.items())), "made_by": self.made_by, "models": self.models}
        return json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _read(text: str, where: str) -> Limits:
    hint = 'write {"limits": {rule: number}, "made_by": command, "models": n}'
    try:
        found: Any = json_of(text)
        limits = {str(rule): float(limit) for rule, limit in found["limits"].items()}
        return Limits(limits=limits, made_by=str(found["made_by"]), models=int(found["models"]))
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError("limits", f"{where} is not a file of limits", hint) from error
