"""What the gate says of a stored audit, unfinished ones included, and as the JUnit file that pipelines show."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakgauge import __version__
from leakgauge.files import write_whole
from leakgauge.study.document import summary
from leakgauge.study.store import Store


def write_junit(path: Path, judged: Judged) -> Path:
    """One test a reason against passing, each failed, and one that passed for each row that no reason names; skipped
    without a gate."""
    failed = list(judged.reasons)
    skipped = judged.passed is None and not failed
    tests, failures = str(max(1, len(failed) + len(judged.held))), str(len(failed))
    counts = {"tests": tests, "failures": failures, "errors": "0", "skipped": str(int(skipped))}
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": f"leakgauge gate: {judged.audit}", **counts})
    for reason in failed:
        case = ET.SubElement(suite, "testcase", {"classname": "leakgauge.gate", "name": _printable(reason)})
        ET.SubElement(case, "failure", {"message": _printable(reason)}).text = _printable(reason)
    for row in judged.held:
        ET.SubElement(suite, "testcase", {"classname": "leakgauge.gate", "name": _printable(row)})
    if not failed and not judged.held:
        case = ET.SubElement(suite, "testcase", {"classname": "leakgauge.gate", "name": "all limits hold"})
        if skipped:
            ET.SubElement(case, "skipped", {"message": "the plan has no gate"})
    ET.indent(suites)
    return write_whole(path, ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n")


SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


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


def _setting(scenario: Mapping[str, Any]) -> str:
    return f"{scenario['model']}, {scenario['client']}, {scenario['defense']}"


def _printable(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(c if c in "\t\n" or (c >= " " and c not in "\ufffe\uffff") else "?" for c in text)


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
    """

    audit: str
    passed: bool | None
    reasons: tuple[str, ...]
    level: str
    decision: str = ""
    held: tuple[str, ...] = ()

    @staticmethod
    def of(store: Store) -> Judged:
        report = summary(store)
        judged, page = report["verdict"], report["decision"]
        reasons = (*judged["gate"]["reasons"],)
        passed = False if reasons else judged["gate"]["passed"]
        name, words = str(report["config"].get("name", "audit")), f"{page['title']}: {page['reason']}"
        own = [f"{f['attack']} on {_setting(f['scenario'])}" for f in judged["findings"] if not f["control"]]
        held = tuple(row for row in own if not any(row in reason for reason in reasons))
        tested = passed is not None
        return Judged(name, passed, reasons, judged["level"], words, held if tested else ())
