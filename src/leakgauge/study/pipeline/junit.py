"""The gate's decision as a JUnit file, which pipelines show as tests."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from leakgauge.files import write_whole
from leakgauge.study.judging.judged import Judged


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
