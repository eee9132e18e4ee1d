"""What a client's check of a received model found, and what it may conclude. Never "safe"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from leakgauge import __version__
from leakgauge.inspection.matrices import Omission, layers
from leakgauge.inspection.rule import Limits, Measurement, Part, Received, measure, rules, skipped

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


NEEDED = {
    Part.STATE: "the model's weights",
    Part.MODULE: "the architecture (--model)",
    Part.TASK: "the architecture and data (--model, --data)",
    Part.BATCH: "own examples (--data)",
    Part.REFERENCE: "a trusted model (--reference)",
    Part.PREVIOUS: "the round before (--previous)",
}
"""What a client can give so that a skipped rule runs."""

HASH_MEANING = (
    "A server that sends each client a model of its own can single one out. Honest reasons: another round, or rounding "
    "by the transport."
)


def inspect(
    received: Received, limits: Limits, *, name: str, fingerprint: str, hashes: tuple[str, ...] = ()
) -> Inspection:
    """Runs every rule that has what it needs. Deterministic.

    Args:
        received: the model and what it is compared with.
        limits: of the rules' statistics.
        name: what to call the model.
        fingerprint: of the received state.
        hashes: fingerprints that other clients saw.
    """
    known, measured = rules(), measure(received)
    findings = [_finding(rule, known[rule].meaning, m, limits.limits.get(rule)) for rule, m in measured.items()]
    findings += _other_clients(fingerprint, hashes)
    findings.sort(key=lambda f: (-f.score, f.rule))
    level = _level(findings, judged=bool(layers(received.state)[0]))
    return Inspection(
        model=name,
        fingerprint=fingerprint,
        tensors=len(received.state),
        entries=sum(t.numel() for t in received.state.values()),
        given=tuple(part.value for part in Part if received.has((part,))),
        level=level,
        headline=_headline(level, [f for f in findings if f.alarms]),
        findings=tuple(findings),
        skipped=tuple(
            Skipped(rule, tuple(NEEDED[part] for part in parts)) for rule, parts in sorted(skipped(received).items())
        ),
        unjudged=_unjudged(measured, received.state),
        made_by=limits.made_by,
        models=limits.models,
    )


def _finding(rule: str, meaning: str, measured: Measurement, limit: float | None) -> RuleFinding:
    return RuleFinding(rule, measured.statistic, limit, measured.where, measured.evidence, meaning)


def _level(findings: list[RuleFinding], *, judged: bool) -> CheckLevel:
    score = findings[0].score if findings else 0.0
    if score >= CRAFTED:
        return CheckLevel.CRAFTED
    if score >= 1:
        return CheckLevel.SUSPICIOUS
    return CheckLevel.NOTHING_FOUND if judged else CheckLevel.NOT_JUDGED


def _other_clients(own: str, hashes: tuple[str, ...]) -> list[RuleFinding]:
    """The finding about fingerprints of other clients; none where no fingerprint was given."""
    if not hashes:
        return []
    different = sum(h != own for h in hashes)
    saw = f"{different} of {len(hashes)} other clients saw another model" if different else "All saw the same model"
    return [RuleFinding("other-clients", float(different), 1 / CRAFTED, (), f"{saw}.", HASH_MEANING)]


def _headline(level: CheckLevel, alarms: list[RuleFinding]) -> tuple[str, str]:
    if level is CheckLevel.NOT_JUDGED:
        return (
            "No rule could judge this model: it holds no weight matrix of real numbers.",
            "Ask the server for floating-point weights, or give the values that you would train with.",
        )
    if level is CheckLevel.NOTHING_FOUND:
        return (
            "No rule found anything in this model that honest models do not show.",
            "That is no proof: rules know published constructions, and a careful server can stay below their limits.",
        )
    verb = "looks crafted" if level is CheckLevel.CRAFTED else "is unusual"
    count = "1 rule alarms" if len(alarms) == 1 else f"{len(alarms)} rules alarm"
    return (
        f"This model {verb}: {count}, {alarms[0].rule} most clearly.",
        "Do not train on it before the server has explained it.",
    )


def _unjudged(measured: Mapping[str, Measurement], state: Mapping[str, Tensor]) -> tuple[Unjudged, ...]:
    """Each tensor that a rule could not judge, with the reason and the rules."""
    odd = [name for name, t in state.items() if t.dim() > 1 and (t.dtype == torch.bool or t.is_complex())]
    found = {Omission(name, f"no real numbers ({state[name].dtype})"): ["every rule"] for name in odd}
    for rule, m in measured.items():
        for omission in m.unjudged:
            found.setdefault(omission, []).append(rule)
    return tuple(Unjudged(o.name, o.reason, tuple(sorted(found[o]))) for o in sorted(found))
