"""`leakgauge audit` and `leakgauge report`: run a plan, and write its pages."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from leakgauge.cli.gate import require_gate, write_decision
from leakgauge.cli.options import PATH, into, with_workers
from leakgauge.errors import require
from leakgauge.study.grammar import example_text


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
    if asked:
        require_gate(plan)
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
    require(folder is not None, "folder", "is missing", "give the folder of an audit, or --schema")
    assert folder is not None

    write_reports(Store.open(folder), by=by, to=to)
    for name in (PAGE, REPORT, SHEET):
        click.echo(folder / name)
    if pdf:
        command, target = browser(), (folder / SHEET).with_suffix(".pdf")
        printed = command is not None and print_pdf(folder / SHEET, target, command)
        click.echo(target if printed else f"no browser printed it: open {folder / SHEET} and print it on one A4 page")
