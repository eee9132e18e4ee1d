"""What the gate says of a stored audit, unfinished ones included, and as the JUnit file that pipelines show."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from leakgauge.files import write_whole
from leakgauge.study.document import summary
from leakgauge.study.store import Store


def write_junit(path: Path, judged: Judged) -> Path:
    """One test a reason against passing, each failed; one that passed where there is none, skipped without a gate."""
    failed = list(judged.reasons)
    skipped = judged.passed is None and not failed
    cases = 1 if not failed else len(failed)
    counts = {"tests": str(cases), "failures": str(len(failed)), "errors": "0", "skipped": str(int(skipped))}
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": f"leakgauge gate: {judged.audit}", **counts})
    for reason in failed:
        case = ET.SubElement(suite, "testcase", {"classname": "leakgauge.gate", "name": _printable(reason)})
        ET.SubElement(case, "failure", {"message": _printable(reason)}).text = _printable(reason)
    if not failed:
        case = ET.SubElement(suite, "testcase", {"classname": "leakgauge.gate", "name": "all limits hold"})
        if skipped:
            ET.SubElement(case, "skipped", {"message": "the plan has no gate"})
    ET.indent(suites)
    return write_whole(path, ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n")


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
    """

    audit: str
    passed: bool | None
    reasons: tuple[str, ...]
    level: str
    decision: str = ""

    @staticmethod
    def of(store: Store) -> Judged:
        report = summary(store)
        judged, page = report["verdict"], report["decision"]
        reasons = (*judged["gate"]["reasons"],)
        passed = False if reasons else judged["gate"]["passed"]
        name, words = str(report["config"].get("name", "audit")), f"{page['title']}: {page['reason']}"
        return Judged(name, passed, reasons, judged["level"], words)
