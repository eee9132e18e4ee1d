"""`leakgauge gate`: the decision of a finished audit, for pipelines."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import click
from rich.console import Console

from leakgauge import __version__
from leakgauge.cli.options import PATH, to_json, write_json
from leakgauge.errors import InputError
from leakgauge.files import json_text, write_whole
from leakgauge.study.grammar import read_yaml

if TYPE_CHECKING:
    from leakgauge.study.store import Store

NO_GATE = InputError("gate", "the plan has none", "add e.g. `gate: {identified: {max: 0.05}}` to it")


@click.command()
@click.argument("folder", type=PATH)
@to_json("the decision")
@click.option("--junit", type=PATH, help="Also write it as a JUnit file.")
@click.option("--sarif", type=PATH, help="Also write it as SARIF, for code scanning.")
@click.option("-v", "--verbose", is_flag=True, help="Every reason, not the gravest of each setting alone.")
def gate(folder: Path, json_file: Path | None, junit: Path | None, sarif: Path | None, verbose: bool) -> None:
    """Exit 0 if the audit in FOLDER passes its plan's gate, 1 with the reasons if not."""
    judged, width = write_decision(folder, junit=junit, sarif=sarif), Console().width
    write_json(json_file, asdict(judged))
    for reason in judged.reasons if verbose else judged.settings:
        # Names stay whole: what follows a line is set in, so that each reason still begins one.
        for line in wrap(reason, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False):
            click.echo(line)
    click.echo(f"gate passed\n{judged.decision}" if judged.passed else "gate failed")
    sys.exit(0 if judged.passed else 1)


def require_gate(plan: Path | None) -> None:
    """Raises `InputError` before anything runs where the plan has no gate to decide by."""
    if read_yaml(plan).get("gate") is None:
        raise NO_GATE


def write_decision(
    folder: Path, *, junit: Path | None = None, sarif: Path | None = None, plan: Path | None = None
) -> Judged:
    """Writes what is asked for, and returns the decision."""
    from leakgauge.study.document import gate_of
    from leakgauge.study.store import Store

    store = Store.open(folder)
    if gate_of(json.loads(store.audit.config)) is None:
        raise NO_GATE
    judged = Judged.of(store)
    store.close()
    if junit is not None:
        write_junit(junit, judged)
    if sarif is not None:
        write_sarif(sarif, judged, str(plan or folder))
    return judged


SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True)
class Judged:
    """The gate's decision on an audit.

    Attributes:
        passed: `None` where the plan has no gate and all trials have run.
        reasons: each a line a person can act on; empty if it passed.
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
        from leakgauge.study.document import summary, verdict_of

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
    """A failed test for each reason against passing, a passed one for each row without any; skipped without a gate."""
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
    return write_whole(path, json_text(whole))


def _printable(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(c if c in "\t\n" or (c >= " " and c not in "\ufffe\uffff") else "?" for c in text)
