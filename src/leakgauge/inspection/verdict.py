"""What a check of a received model found, what may be concluded, and how it is shown. Never "safe"."""

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from leakgauge import __version__
from leakgauge.errors import few, printable
from leakgauge.inspection.matrices import Omission, layers
from leakgauge.inspection.rule import Limits, Measurement, Part, Received, measure, rules
from leakgauge.models.weights import fingerprint
from leakgauge.report.html import page

SCHEMA_VERSION = 1
CRAFTED = 3.0  # score from which a finding counts as crafted rather than suspicious


class CheckLevel(Enum):
    """What one finding, or the check as a whole, says."""

    CRAFTED = "crafted"
    SUSPICIOUS = "suspicious"
    NOTE = "note"  # of one finding
    NOTHING_FOUND = "nothing-found"  # of the whole
    NOT_JUDGED = "not-judged"  # no weight matrix could be read, so that nothing found would say nothing

    @staticmethod
    def of(score: float, below: "CheckLevel") -> "CheckLevel":
        """`CRAFTED` or `SUSPICIOUS`, and `below` a score of 1."""
        return CheckLevel.CRAFTED if score >= CRAFTED else CheckLevel.SUSPICIOUS if score >= 1 else below


@dataclass(frozen=True)
class RuleFinding:
    """What one rule measured."""

    rule: str
    statistic: float  # ≥ 0, in the rule's own unit; larger is more suspicious.
    limit: float | None  # of the statistic on honest models; `None` for a rule without one.
    where: tuple[str, ...]
    evidence: str
    meaning: str

    @property
    def score(self) -> float:
        """Statistic ÷ limit; 0 without a limit."""
        return 0.0 if self.limit is None else self.statistic / self.limit

    @property
    def severity(self) -> CheckLevel:
        """`NOTE` below a score of 1, `SUSPICIOUS` below 3, else `CRAFTED`."""
        return CheckLevel.of(self.score, CheckLevel.NOTE)

    @property
    def alarms(self) -> bool:
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
    """The result of `leakgauge.inspection.verdict.inspect`."""

    model: str
    fingerprint: str  # of its contents, SHA-256; clients of a round compare theirs.
    tensors: int
    entries: int
    given: tuple[str, ...]
    level: CheckLevel
    headline: tuple[str, ...]
    findings: tuple[RuleFinding, ...]  # of all rules that ran, the highest score first
    skipped: tuple[Skipped, ...]
    unjudged: tuple[Unjudged, ...]
    made_by: str  # made_by, models: where the limits come from, and how many honest models they were measured on
    models: int

    @property
    def score(self) -> float:
        return self.findings[0].score if self.findings else 0.0

    @property
    def alarms(self) -> tuple[RuleFinding, ...]:
        return tuple(f for f in self.findings if f.alarms)

    def to_json(self) -> Mapping[str, Any]:
        """The document that ``leakgauge inspect --json`` writes: the same for the same input, every number finite."""
        written = TypeAdapter(Inspection).dump_python(self, mode="json")
        limits = {"made_by": written.pop("made_by"), "models": written.pop("models")}
        for found, one in zip(self.findings, written["findings"], strict=True):
            one |= {"score": found.score, "severity": found.severity.value}
        about = {"schema_version": SCHEMA_VERSION, "leakgauge_version": __version__, "score": self.score}
        return {**about, **written, "limits": limits}


NEEDED = {
    Part.STATE: "the model's weights",
    Part.MODULE: "the architecture (--model)",
    Part.TASK: "the architecture and data (--model, --data)",
    Part.REFERENCE: "a trusted model (--reference)",
    Part.PREVIOUS: "the round before (--previous)",
}
"""What a client can give so that a skipped rule runs."""

HASH_MEANING = (
    "A server that sends each client a model of its own can single one out. Honest reasons: another round, or rounding "
    "by the transport."
)


def inspect(received: Received, limits: Limits, *, name: str, hashes: tuple[str, ...] = ()) -> Inspection:
    """Runs every rule that has what it needs. Deterministic."""
    known, measured = rules(), measure(received)
    findings = [
        RuleFinding(rule, m.statistic, limits.limits.get(rule), m.where, m.evidence, known[rule].meaning)
        for rule, m in measured.items()
    ]
    findings += _other_clients(seen := fingerprint(received.state), hashes)
    findings.sort(key=lambda f: (-f.score, f.rule))
    left_out = {name: parts for name, rule in sorted(known.items()) if (parts := received.lacks(rule.needs))}
    quiet = CheckLevel.NOTHING_FOUND if layers(received.state)[0] else CheckLevel.NOT_JUDGED
    level = CheckLevel.of(findings[0].score if findings else 0.0, quiet)
    return Inspection(
        model=name,
        fingerprint=seen,
        tensors=len(received.state),
        entries=sum(t.numel() for t in received.state.values()),
        given=tuple(part.value for part in Part if not received.lacks((part,))),
        level=level,
        headline=_headline(level, [f for f in findings if f.alarms]),
        findings=tuple(findings),
        skipped=tuple(Skipped(rule, tuple(NEEDED[part] for part in parts)) for rule, parts in left_out.items()),
        unjudged=_unjudged(measured, received.state),
        made_by=limits.made_by,
        models=limits.models,
    )


def _other_clients(own: str, hashes: tuple[str, ...]) -> list[RuleFinding]:
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
    odd = [name for name, t in state.items() if t.dim() > 1 and (t.dtype == torch.bool or t.is_complex())]
    found = {Omission(name, f"no real numbers ({state[name].dtype})"): ["every rule"] for name in odd}
    for rule, m in measured.items():
        for omission in m.unjudged:
            found.setdefault(omission, []).append(rule)
    return tuple(Unjudged(o.name, o.reason, tuple(sorted(found[o]))) for o in sorted(found))


LOOKS = {
    CheckLevel.CRAFTED: ("exposed", "Crafted"),
    CheckLevel.SUSPICIOUS: ("partial", "Suspicious"),
    CheckLevel.NOTE: ("inconclusive", "Below its limit"),
    CheckLevel.NOTHING_FOUND: ("not_recovered", "Nothing found"),
    CheckLevel.NOT_JUDGED: ("inconclusive", "Not judged"),
}
"""Colour and icon of the audit's report, and the words of a badge."""


def render(result: Inspection) -> str:
    filters = {"figure": lambda value: f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}".replace(",", " ")}
    return page("inspection", "page.html.j2", filters, result=result, looks=LOOKS, version=__version__)


WIDTH = 80  # columns of a terminal that every line of text fits into; fingerprints and names of tensors stay whole
NOTABLE = 0.5  # score from which a finding below its limit is worth a line
WHERE = 2  # further names of tensors that an alarm shows, and names of those that were not judged


def lines(result: Inspection, *, verbose: bool = False) -> Iterator[str]:
    """The result for a terminal: verdict, alarms in full, near misses, and what would let more rules run. `verbose`:
    every finding, every tensor that a rule could not judge, and the names of the rules that did not run."""
    yield f"{printable(result.model)}: {result.level.value.replace('-', ' ')}"
    for sentence in result.headline:
        yield from textwrap.wrap(sentence, WIDTH)
    shown = [f for f in result.findings if verbose or f.score >= NOTABLE]
    if shown:
        yield ""
        yield "score = measured / limit: from 1 on an alarm, from 3 on crafted"
    for f in shown:
        score = f"{f.score:.2f}" if f.score < 100 else f"{f.score:.0f}" if f.score < 1e4 else "> 9999"
        yield from _wrapped(f"{f.rule} {'no limit' if f.limit is None else score}: {f.evidence}")
        if f.alarms:
            yield from _wrapped(f"  also in {few(f.where[1:], WHERE)}") if len(f.where) > 1 else ()
            yield from _wrapped(f"  {f.meaning}")
    yield ""
    yield f"{len(result.findings)} rules ran, {len(result.skipped)} did not{'; -v shows all' * (not verbose)}"
    by_need: dict[str, list[str]] = {}
    for s in result.skipped:
        by_need.setdefault(" and ".join(s.needs), []).append(s.rule)
    for need, left_out in by_need.items():
        yield from _wrapped(f"  {len(left_out)} more with {need}" + (f": {', '.join(left_out)}" if verbose else ""))
    if result.unjudged:
        names = list(dict.fromkeys(u.tensor for u in result.unjudged))
        yield from _wrapped(f"could not be judged by some rules: {few(names, WHERE)}")
        for u in result.unjudged if verbose else ():
            yield from _wrapped(f"  {u.tensor}: {u.reason} ({', '.join(u.rules)})")
    if not result.models:
        yield "Limits are provisional: not measured on honest models."
    yield f"sha256:{result.fingerprint}"


def _wrapped(text: str) -> list[str]:
    text = printable(text)
    indent = " " * max(len(text) - len(text.lstrip()), 2)
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
