"""`leakgauge audit`, `report`, `gate`, `lint` and `frontier`: run a plan, write its pages, decide by them;
what a plan gives away before it runs; and what defences leave beside what they cost."""

import json
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from leakgauge import __version__
from leakgauge.cli.options import PATH, SOURCE, into, to_json, with_workers, write_json
from leakgauge.errors import InputError, printable, require
from leakgauge.files import json_text, write_whole
from leakgauge.study.grammar import example_text, read_yaml

if TYPE_CHECKING:
    from leakgauge.risk.lint import LintFinding
    from leakgauge.study.store import Store


@click.command()
@click.argument("plan", required=False, type=PATH)
@into("audit-out")
@with_workers("Trials at a time, one thread each.")
@click.option("--device", default="cpu", show_default=True, help="A torch device.")
@click.option("--memory", metavar="GB", type=float, help="Most for a worker's step; else a share of what is free.")
@click.option("--ray", metavar="ADDRESS", help="Run trials on this Ray cluster instead: host:6379, or auto.")
@click.option("--store", metavar="URL", envvar="LEAKGAUGE_STORE", help="Database: postgresql+psycopg://user@host/name.")
@click.option("--counts-only", is_flag=True, help="Write no image, and hashes for file names.")
@click.option("--anew", is_flag=True, help="Set older results in the folder aside and start again.")
@click.option("--fail-on-gate", is_flag=True, help="Exit 1 if the plan's gate does not pass.")
@click.option("--junit", type=PATH, help="Also write the gate's decision as a JUnit file.")
@click.option("--sarif", type=PATH, help="Also write it as SARIF, for code scanning.")
@click.option("--example", is_flag=True, help="Print the plan that runs when none is given, and stop.")
def audit(
    plan: Path | None,
    output: Path,
    example: bool,
    fail_on_gate: bool,
    junit: Path | None,
    sarif: Path | None,
    **options: Any,
) -> None:
    """Runs an audit and writes report.html and report.json.

    Without PLAN it runs the embedded example on the photos that ship with scikit-image. Killed and run
    again, it goes on where it was; a finished audit does no work.
    """
    if example:
        click.echo(example_text(), nl=False)
        return

    asked = fail_on_gate or junit is not None or sarif is not None
    if asked and read_yaml(plan).get("gate") is None:  # before anything runs
        raise NO_GATE
    from leakgauge.study.session import run_audit

    run_audit(plan, output, **options)
    if asked:
        passed = write_decision(output, junit=junit, sarif=sarif, plan=plan).passed
        sys.exit(0 if passed or not fail_on_gate else 1)


@click.command()
@click.argument("folder", required=False, type=PATH)
@click.option("--schema", is_flag=True, help="Print the JSON Schema of report.json, and stop.")
@click.option("--pdf", is_flag=True, help="Print the sheet to sign as sheet.pdf, through a browser that is installed.")
@click.option("--by", default="", help="Who audited, on the sheet.")
@click.option("--for", "to", default="", help="For whom, on the sheet.")
def report(folder: Path | None, schema: bool, pdf: bool, by: str, to: str) -> None:
    """Writes report.html, report.json and sheet.html of FOLDER again, from what is stored.

    sheet.html is one page in plain words, for a signature.
    """
    from leakgauge.report.html import browser, print_pdf
    from leakgauge.study.document import REPORT
    from leakgauge.study.document import schema as schema_of
    from leakgauge.study.session import PAGE, SHEET, write_reports
    from leakgauge.study.store import Store

    if schema:
        click.echo(json.dumps(schema_of(), indent=1, ensure_ascii=False))
        return
    if folder is None:
        raise InputError("folder", "is missing", "give the folder of an audit, or --schema")
    write_reports(Store.open(folder), by=by, to=to)
    for name in (PAGE, REPORT, SHEET):
        click.echo(folder / name)
    if pdf:
        command, target = browser(), (folder / SHEET).with_suffix(".pdf")
        printed = command is not None and print_pdf(folder / SHEET, target, command)
        click.echo(target if printed else f"no browser printed it: open {folder / SHEET} and print it on one A4 page")


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


def write_decision(
    folder: Path, *, junit: Path | None = None, sarif: Path | None = None, plan: Path | None = None
) -> "Judged":
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
    """The gate's decision on an audit."""

    audit: str
    passed: bool | None  # `None` where the plan has no gate and all trials have run
    reasons: tuple[str, ...]
    level: str
    decision: str = ""  # the page's first words and their reason
    held: tuple[str, ...] = ()  # rows of the table against which no reason speaks
    settings: tuple[str, ...] = ()  # the gravest reason of each setting, and how many more there are

    @staticmethod
    def of(store: "Store") -> "Judged":
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
        case = ET.SubElement(suite, "testcase", {"classname": "leakgauge.gate", "name": printable(name)})
        if name in failed:
            ET.SubElement(case, "failure", {"message": printable(name)}).text = printable(name)
        elif skipped:
            ET.SubElement(case, "skipped", {"message": "the plan has no gate"})
    ET.indent(suites)
    return write_whole(path, ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n")


def write_sarif(path: Path, judged: Judged, plan: str) -> Path:
    """Each reason against passing as a result of SARIF 2.1.0, at the plan's file, for code scanning. `plan`: the plan's
    path in the repository; where it is not known, the folder of the audit."""
    kinds = [reason.partition(":")[0] for reason in judged.reasons]
    rules = [{"id": kind, "shortDescription": {"text": f"the gate's limit on {kind}"}} for kind in dict.fromkeys(kinds)]
    place = {"physicalLocation": {"artifactLocation": {"uri": plan}, "region": {"startLine": 1}}}
    results = [
        {"ruleId": kind, "level": "error", "message": {"text": printable(reason)}, "locations": [place]}
        for kind, reason in zip(kinds, judged.reasons, strict=True)
    ]
    tool = {"driver": {"name": "leakgauge", "version": __version__, "rules": rules}}
    run = {"tool": tool, "automationDetails": {"id": f"leakgauge gate/{judged.audit}"}, "results": results}
    return write_whole(path, json_text({"$schema": SARIF, "version": "2.1.0", "runs": [run]}))


HINT = "give a plan (.yaml), an update (.safetensors), or a folder with updates"
TEST = "test what it does to updates: leakgauge privacy test MODULE:FUNCTION"


@click.command()
@click.argument("target", type=PATH)
@to_json("the findings")
def lint(target: Path, json_file: Path | None) -> None:
    """What gives data away before any attack is run?

    TARGET is a plan, a captured update, or a folder of such updates. With a plan, one client of each setting is
    simulated and read by every read that certifies itself.

    Exit code 0: nothing of high severity, which is no clearance; 1: something; 2: the input cannot be used.
    """
    from leakgauge.risk.lint import LintSeverity, findings_text, sorted_findings
    from leakgauge.study.lint import print_findings

    found = sorted_findings(findings(target))
    if json_file is not None:
        write_whole(json_file, findings_text(found))
    print_findings(Console(), found)
    sys.exit(1 if any(f.severity is LintSeverity.HIGH for f in found) else 0)


def findings(target: Path) -> "Iterator[LintFinding]":
    """By what the target is. Updates of a folder are those of its files that can be read as one: other tensors
    (weights, examples) are passed by."""
    from leakgauge.risk.lint import lint_update
    from leakgauge.study.lint import lint_plan
    from leakgauge.study.plan import resolve_plan
    from leakgauge.update import Update

    require(target.exists(), str(target), "is not there", HINT)
    require(target.suffix != ".py", str(target), "is code, which nothing here reads", TEST)
    suffix = "" if target.is_dir() else target.suffix
    if suffix in (".yaml", ".yml"):
        yield from lint_plan(resolve_plan(read_yaml(target)))
    elif not target.is_dir():
        yield from lint_update(Update.load(target), target.name)
    else:
        read = 0
        for path in sorted(target.rglob("*.safetensors")):
            try:
                update = Update.load(path)
            except InputError:
                continue
            read += 1
            yield from lint_update(update, str(path.relative_to(target)))
        require(read > 0, str(target), "holds no update", HINT)


QUICK: Mapping[str, Any] = {
    "data": {"images": 4},
    "budget": {"gradient_evaluations": 100},
    "utility": {"rounds": 15, "examples": 20_000, "test_examples": 4000, "evaluate_every": 5},
}
"""What --quick changes in a plan, beside the strengths: of each family the first and the last."""


@click.command()
@click.argument("plan", required=False, type=PATH)
@into("frontier-out")
@click.option("--quick", "is_quick", is_flag=True, help="A smaller run of at most ten minutes on two cores.")
@click.option("--train", type=SOURCE, help="Training data, as in a plan: parquet:PATH. Needed to measure accuracy.")
@click.option("--test", type=SOURCE, help="Test data; also what is attacked, unless the plan names other data.")
@to_json("the report")
@with_workers("At a time.")
@click.option("--ray", metavar="ADDRESS", help="Attack on this Ray cluster instead: host:6379, or auto.")
@click.option("--example", is_flag=True, help="Print the plan that runs when none is given, and stop.")
def frontier(
    plan: Path | None,
    output: Path,
    is_quick: bool,
    train: Any,
    test: Any,
    json_file: Path | None,
    workers: int,
    ray: str | None,
    example: bool,
) -> None:
    """What each defence leaves to an attacker, beside what it costs: accuracy, bytes, time and privacy budget.

    Writes report.html and report.json with a recommendation. Killed and run again, it goes on where it was; a
    finished run does no work.
    """
    if example:
        click.echo(example_text("frontiers"), nl=False)
        return

    from leakgauge.compute import Compute
    from leakgauge.frontiers.plan import resolve_frontier
    from leakgauge.frontiers.session import Frontier, run_frontier
    from leakgauge.study.run import ProgressShown
    from leakgauge.study.session import executor_of

    console, compute = Console(), Compute()
    compute.apply()
    raw = read_yaml(plan, "frontiers")
    raw = quick(raw) if is_quick else raw
    data = {key: given for key, given in (("train", train), ("test", test)) if given is not None}
    resolved = resolve_frontier(overlaid(raw, {"utility": data}) if data else raw)
    with closing(ProgressShown(console)) as progress:
        pool = executor_of(ray, workers, compute, output)
        report = run_frontier(
            resolved, output, workers=workers, compute=compute, progress=progress.stage, executor=pool
        )
    if json_file is not None:
        report.write(json_file)
    Frontier(report, output).show(console)
    console.print(f"report: {output / 'report.html'} and report.json", soft_wrap=True)


def overlaid(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, object]:
    merged = dict(raw)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = overlaid(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def quick(raw: Mapping[str, Any]) -> dict[str, object]:
    """A plan cut down to a run of at most ten minutes on two cores, for the example's size."""
    made = overlaid(raw, QUICK)
    strengths = made.get("defenses")
    if isinstance(strengths, dict):
        made["defenses"] = {k: [v[0], v[-1]] if isinstance(v, list) and len(v) > 2 else v for k, v in strengths.items()}
    return made
