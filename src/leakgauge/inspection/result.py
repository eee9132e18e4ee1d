"""What a client's check of a received model found, and how it is written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pydantic import TypeAdapter

from leakgauge import __version__

SCHEMA_VERSION = 1
CRAFTED = 3.0
"""Score from which a finding counts as crafted rather than suspicious."""


class CheckLevel(Enum):
    """What the check as a whole says, from the worst on."""

    CRAFTED = "crafted"
    SUSPICIOUS = "suspicious"
    NOTHING_FOUND = "nothing-found"
    NOT_JUDGED = "not-judged"  # no weight matrix could be read, so that nothing found would say nothing


class Severity(Enum):
    """What one finding says."""

    CRAFTED = "crafted"
    SUSPICIOUS = "suspicious"
    NOTE = "note"


@dataclass(frozen=True)
class RuleFinding:
    """What one rule measured.

    Attributes:
        rule: its name.
        statistic: ≥ 0, in the rule's own unit; larger is more suspicious.
        limit: of the statistic on honest models; `None` for a rule without one.
        where: tensors or layers, the worst first.
        evidence: one sentence with the numbers.
        meaning: what a server gains by it, and what an honest reason could be.
    """

    rule: str
    statistic: float
    limit: float | None
    where: tuple[str, ...]
    evidence: str
    meaning: str

    @property
    def score(self) -> float:
        """Statistic ÷ limit; 0 without a limit."""
        return 0.0 if self.limit is None else self.statistic / self.limit

    @property
    def severity(self) -> Severity:
        """`NOTE` below a score of 1, `SUSPICIOUS` below 3, else `CRAFTED`."""
        if self.score >= CRAFTED:
            return Severity.CRAFTED
        return Severity.SUSPICIOUS if self.score >= 1 else Severity.NOTE

    @property
    def alarms(self) -> bool:
        """Whether the limit is reached."""
        return self.score >= 1


@dataclass(frozen=True)
class Skipped:
    """A rule that did not run, and what a client would have to give."""

    rule: str
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Unjudged:
    """A tensor that some rules could not judge."""

    tensor: str
    reason: str
    rules: tuple[str, ...]


@dataclass(frozen=True)
class Inspection:
    """The result of `leakgauge.inspection.verdict.inspect`.

    Attributes:
        model: what the received file is called.
        fingerprint: of its contents, SHA-256; clients of a round compare theirs.
        tensors, entries: how many it holds.
        given: what the rules could look at.
        headline: one or two sentences for a reader in a hurry.
        findings: of all rules that ran, the highest score first.
        made_by, models: where the limits come from, and how many honest models they were measured on.
    """

    model: str
    fingerprint: str
    tensors: int
    entries: int
    given: tuple[str, ...]
    level: CheckLevel
    headline: tuple[str, ...]
    findings: tuple[RuleFinding, ...]
    skipped: tuple[Skipped, ...]
    unjudged: tuple[Unjudged, ...]
    made_by: str
    models: int

    @property
    def score(self) -> float:
        """The highest of its findings."""
        return self.findings[0].score if self.findings else 0.0

    @property
    def alarms(self) -> tuple[RuleFinding, ...]:
        """Findings that reach their limits."""
        return tuple(f for f in self.findings if f.alarms)

    def to_json(self) -> Mapping[str, Any]:
        """The document that ``leakgauge inspect --json`` writes: the same for the same input, every number finite."""
        written = TypeAdapter(Inspection).dump_python(self, mode="json")
        limits = {"made_by": written.pop("made_by"), "models": written.pop("models")}
        for found, one in zip(self.findings, written["findings"], strict=True):
            one |= {"score": found.score, "severity": found.severity.value}
        about = {"schema_version": SCHEMA_VERSION, "leakgauge_version": __version__, "score": self.score}
        return {**about, **written, "limits": limits}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Inspection:
        """The inverse of `to_json`; derived values are computed again."""
        return TypeAdapter(Inspection).validate_python({**document, **document["limits"]})
