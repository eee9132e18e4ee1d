"""The files of a finished audit: report.json, which has all that it knows, and what pipelines show of its gate."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from leakgauge import __version__
from leakgauge.files import write_whole, written_whole
from leakgauge.risk.lint import NOT_RUN, SENT, read_lint
from leakgauge.study.grammar import GateConfig
from leakgauge.study.judging.gate import Reason, Why
from leakgauge.study.judging.records import Trial
from leakgauge.study.judging.statement import signed
from leakgauge.study.judging.verdict import VERDICT, Verdict, verdict
from leakgauge.study.store import Store

SCHEMA_VERSION = 3
"""3: flags say `kind` and `sentence` alone. 2: shares have intervals over clients, no longer over images; trials and
findings have the fields that the changelog names."""
REPORT = "report.json"
FREE_SPACE = "free space, then `leakgauge report` the folder"


@dataclass(frozen=True)
class AuditReport:
    """The parts of report.json; trials are written one by one."""

    schema_version: Literal[3]
    leakgauge_version: str
    created_at: str
    config: dict[str, Any]
    environment: dict[str, Any]
    counts_only: bool
    decision: dict[str, Any]
    trials: list[Trial]
    verdict: Verdict


def schema() -> dict[str, Any]:
    """The JSON Schema that every report.json follows."""
    return TypeAdapter(AuditReport).json_schema(mode="serialization")


def gate_of(config: dict[str, Any]) -> GateConfig | None:
    """The gate that a stored plan asks for."""
    return None if config.get("gate") is None else GateConfig.model_validate(config["gate"])


def summary(store: Store, judged: Verdict) -> dict[str, Any]:
    """The report without its trials and its verdict.

    Args:
        judged: the store's `verdict_of`.
    """
    audit = store.audit
    config = json.loads(audit.config)
    return {
        "schema_version": SCHEMA_VERSION,
        "leakgauge_version": audit.version,
        "created_at": audit.created_at,
        "config": config,
        "environment": json.loads(audit.environment),
        "counts_only": audit.counts_only,
        "decision": signed(
            judged,
            gate=gate_of(config),
            config=config,
            contents=json.loads(audit.contents),
            lint=read_lint(store.folder, audit.identity),
        ),
    }


def verdict_of(store: Store) -> Verdict:
    """What the finished trials say together; they are read one by one, and kept as far as the verdict asks. While some
    have not run, no lint of this audit lies beside them, or running statistics travel, no gate passes.

    Raises:
        InputError: an earlier version wrote them, or what the lint found beside them is damaged.
    """
    trials = [trial.judged for trial in store.trials()]
    lint, left = read_lint(store.folder, store.audit.identity), store.missing()
    proof = next((f"{f.where}: {f.evidence}" for f in lint if f.rule == "exact-read"), "")
    lacking = [Reason(Why.FAILED, "unfinished", "", f"{left} trials have not run")] if left else []
    lacking += [Reason(Why.FAILED, "lint", "", f.evidence) for f in lint if f.rule == NOT_RUN]
    gate = gate_of(json.loads(store.audit.config))
    if gate is not None:
        sent = [f for f in lint if f.rule == SENT]
        lacking += [Reason(Why.STATISTICS, "statistics", f.where, f"{f.evidence}: {f.hint}") for f in sent]
    return verdict(trials, gate, proof, lacking)


def write_json(store: Store, told: Mapping[str, Any], judged: Verdict) -> Path:
    """Writes report.json beside the store, whole or not at all.

    Byte-equal between runs of the same plan on the same machine once every ``seconds`` and ``created_at`` is deleted;
    trials are sorted by id; no number in it is infinite or NaN.

    Args:
        told, judged: the `summary`, and the `verdict_of` it is of.
    """
    path = store.folder / REPORT
    with written_whole(path, FREE_SPACE) as file:
        for part in _parts(told, store.each(), judged):
            file.write(part)
    return path


def _parts(told: Mapping[str, Any], trials: Iterable[Mapping[str, Any]], judged: Verdict) -> Iterator[str]:
    """`json.dumps` of the document with an indent of one, piece by piece."""
    yield _text(told)[: -len("\n}")] + ',\n "trials": ['
    between = "\n  "
    for trial in trials:
        yield between + _text(trial).replace("\n", "\n  ")
        between = ",\n  "
    yield ("]" if between == "\n  " else "\n ]") + ',\n "verdict": '
    yield _text(VERDICT.dump_python(judged, mode="json")).replace("\n", "\n ") + "\n}\n"


def _text(value: Any) -> str:
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)


SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True)
class Judged:
    """The gate's decision on an audit.

    Attributes:
        audit: its name.
        passed: `None` where the plan has no gate and all trials have run.
        reasons: each a line a person can act on; empty if it passed.
        level: of the verdict.
        decision: the page's first words and their reason.
        held: rows of the table against which no reason speaks.
        settings: the gravest reason of each setting, and how many more there are.
    """

    audit: str
    passed: bool | None
    reasons: tuple[str, ...]
    level: str
    decision: str = ""
    held: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    @staticmethod
    def of(store: Store) -> Judged:
        judged = verdict_of(store)
        report, gate = summary(store, judged), judged.gate
        by_setting: dict[str, list[str]] = {}
        for reason in gate.reasons:
            by_setting.setdefault(reason.setting, []).append(reason.text)
        own = [(f.attack, f.scenario.words) for f in judged.findings if not f.control]
        spoken = {(reason.attack, reason.setting) for reason in gate.reasons}
        held = [f"{attack} on {s}" for attack, s in own if not {(attack, s), ("", s)} & spoken]
        return Judged(
            audit=str(report["config"].get("name", "audit")),
            passed=False if gate.reasons else gate.passed,
            reasons=tuple(reason.text for reason in gate.reasons),
            level=judged.level.value,
            decision=f"{report['decision']['title']}: {report['decision']['reason']}",
            held=tuple(held) if gate.passed is not None or gate.reasons else (),
            settings=tuple(
                texts[0] + f" (and {len(texts) - 1} more)" * (len(texts) > 1) for texts in by_setting.values()
            ),
        )


def write_junit(path: Path, judged: Judged) -> Path:
    """One test a reason against passing, each failed, and one that passed for each row that no reason names; skipped
    without a gate."""
    failed = list(judged.reasons)
    skipped = judged.passed is None and not failed
    tests, failures = str(max(1, len(failed) + len(judged.held))), str(len(failed))
    counts = {"tests": tests, "failures": failures, "errors": "0", "skipped": str(int(skipped))}
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": f"leakgauge gate: {judged.audit}", **counts})
    for name in (*failed, *judged.held) or ("all limits hold",):
        case = ET.SubElement(suite, "testcase", {"classname": "leakgauge.gate", "name": _printable(name)})
        if name in failed:
            ET.SubElement(case, "failure", {"message": _printable(name)}).text = _printable(name)
        elif skipped:
            ET.SubElement(case, "skipped", {"message": "the plan has no gate"})
    ET.indent(suites)
    return write_whole(path, ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n")


def write_sarif(path: Path, judged: Judged, plan: str) -> Path:
    """Each reason against passing as a result of SARIF 2.1.0, at the plan's file, for code scanning.

    Args:
        plan: the plan's path in the repository; where it is not known, the folder of the audit.
    """
    kinds = [reason.partition(":")[0] for reason in judged.reasons]
    rules = [{"id": kind, "shortDescription": {"text": f"the gate's limit on {kind}"}} for kind in dict.fromkeys(kinds)]
    place = {"physicalLocation": {"artifactLocation": {"uri": plan}, "region": {"startLine": 1}}}
    results = [
        {"ruleId": kind, "level": "error", "message": {"text": _printable(reason)}, "locations": [place]}
        for kind, reason in zip(kinds, judged.reasons, strict=True)
    ]
    tool = {"driver": {"name": "leakgauge", "version": __version__, "rules": rules}}
    run = {"tool": tool, "automationDetails": {"id": f"leakgauge gate/{judged.audit}"}, "results": results}
    whole = {"$schema": SARIF, "version": "2.1.0", "runs": [run]}
    return write_whole(path, json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


def _printable(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(c if c in "\t\n" or (c >= " " and c not in "\ufffe\uffff") else "?" for c in text)
