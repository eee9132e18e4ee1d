"""What a rule is, what it measures, and the rules run over a received model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

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
        unjudged: names that the rule should have judged and could not, each with the reason.
    """

    statistic: float
    where: tuple[str, ...]
    evidence: str
    unjudged: tuple[str, ...] = ()


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
    found = {name: rule.measure(received) for name, rule in rules().items() if received.has(rule.needs)}
    return {name: _sound(name, measurement) for name, measurement in found.items()}


def _sound(name: str, measured: Measurement) -> Measurement:
    """The measurement; one whose numbers ran over on this model says that it does not judge it."""
    if not math.isfinite(measured.statistic):
        where = measured.where[0] if measured.where else "the model"
        return Measurement(0.0, measured.where, "Its numbers run over here.", (f"{where}: too large to compute with",))
    if measured.statistic < 0:
        raise ValueError(f"rule '{name}' measured {measured.statistic}")
    return measured


def skipped(received: Received) -> dict[str, tuple[Part, ...]]:
    """Rules that did not run, each with the parts it lacks."""
    lacking = {name: tuple(p for p in rule.needs if not received.has((p,))) for name, rule in rules().items()}
    return {name: parts for name, parts in lacking.items() if parts}
