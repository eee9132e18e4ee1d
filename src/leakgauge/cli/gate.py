"""`leakgauge gate`: the decision of a finished audit, for pipelines."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import click
import yaml
from rich.console import Console

from leakgauge.cli.options import PATH, to_json, write_json
from leakgauge.errors import InputError
from leakgauge.study.grammar import example_text, read_yaml

if TYPE_CHECKING:
    from leakgauge.study.document import Judged

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
    if (yaml.safe_load(example_text()) if plan is None else read_yaml(plan)).get("gate") is None:
        raise NO_GATE


def write_decision(
    folder: Path, *, junit: Path | None = None, sarif: Path | None = None, plan: Path | None = None
) -> Judged:
    """Writes what is asked for, and returns the decision.

    Raises:
        InputError: no audit there, or one without a gate.
    """
    from leakgauge.study.document import Judged, gate_of, write_junit, write_sarif
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
