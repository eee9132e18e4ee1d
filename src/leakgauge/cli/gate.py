"""Everything behind `leakgauge gate`, and what `audit` adds to it for pipelines."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
import yaml

from leakgauge.errors import InputError
from leakgauge.files import write_whole
from leakgauge.study.document import gate_of
from leakgauge.study.grammar import example_text, read_yaml
from leakgauge.study.judging.judged import Judged
from leakgauge.study.pipeline.junit import write_junit
from leakgauge.study.store import Store

NO_GATE = InputError("gate", "the plan has none", "add e.g. `gate: {identified: {max: 0.05}}` to it")


def gate_command(folder: Path, *, json_file: Path | None = None, junit: Path | None = None) -> int:
    """Prints the reasons and the decision. Returns the exit code: 0 passed, 1 not.

    Raises:
        InputError: no audit there, or one without a gate.
    """
    judged = write_decision(folder, json_file=json_file, junit=junit)
    for reason in judged.reasons:
        click.echo(reason)
    click.echo("gate passed" if judged.passed else "gate failed")
    return 0 if judged.passed else 1


def require_gate(plan: Path | None) -> None:
    """Raises `InputError` before anything runs where the plan has no gate to decide by."""
    if (yaml.safe_load(example_text()) if plan is None else read_yaml(plan)).get("gate") is None:
        raise NO_GATE


def write_decision(folder: Path, *, json_file: Path | None, junit: Path | None) -> Judged:
    """Writes what is asked for, and returns the decision.

    Raises:
        InputError: no audit there, or one without a gate.
    """
    store = Store.open(folder)
    if gate_of(json.loads(store.audit.config)) is None:
        raise NO_GATE
    judged = Judged.of(store)
    store.close()
    if json_file is not None:
        write_whole(json_file, json.dumps(asdict(judged), indent=1, ensure_ascii=False) + "\n")
    if junit is not None:
        write_junit(junit, judged)
    return judged
