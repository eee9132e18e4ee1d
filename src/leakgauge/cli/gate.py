"""Everything behind `leakgauge gate` and `leakgauge compare`, and what `audit` adds to them for pipelines."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from textwrap import wrap

import click
import yaml
from rich.console import Console
from rich.text import Text

from leakgauge.errors import InputError
from leakgauge.files import write_whole
from leakgauge.study.document import gate_of
from leakgauge.study.grammar import example_text, read_yaml
from leakgauge.study.pipeline.compare import Comparison, Pairing, Setting, compare, read_report
from leakgauge.study.pipeline.gate import Judged, write_junit, write_sarif
from leakgauge.study.store import Store

NO_GATE = InputError("gate", "the plan has none", "add e.g. `gate: {identified: {max: 0.05}}` to it")


def gate_command(
    folder: Path, *, json_file: Path | None = None, junit: Path | None = None, sarif: Path | None = None
) -> int:
    """Prints the reasons and the decision. Returns the exit code: 0 passed, 1 not.

    Raises:
        InputError: no audit there, or one without a gate.
    """
    judged = write_decision(folder, json_file=json_file, junit=junit, sarif=sarif)
    width = Console().width
    for reason in judged.reasons:
        # Names stay whole: what follows a line is set in, so that each reason still begins one.
        for line in wrap(reason, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False):
            click.echo(line)
    click.echo(f"gate passed\n{judged.decision}" if judged.passed else "gate failed")
    return 0 if judged.passed else 1


def require_gate(plan: Path | None) -> None:
    """Raises `InputError` before anything runs where the plan has no gate to decide by."""
    if (yaml.safe_load(example_text()) if plan is None else read_yaml(plan)).get("gate") is None:
        raise NO_GATE


def write_decision(
    folder: Path, *, json_file: Path | None, junit: Path | None, sarif: Path | None = None, plan: Path | None = None
) -> Judged:
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
    if sarif is not None:
        write_sarif(sarif, judged, str(plan or folder))
    return judged


def compare_command(first: Path, second: Path, *, json_file: Path | None, console: Console) -> None:
    """Prints each pair of settings in a few lines.

    Raises:
        InputError: a report cannot be read, or the two have nothing in common.
    """
    found = compare(read_report(first), read_report(second))
    if json_file is not None:
        write_whole(json_file, json.dumps(asdict(found), indent=1, ensure_ascii=False) + "\n")
    console.print(Text(f"A: {first}"))
    console.print(Text(f"B: {second}"))
    if found.other:
        differ = f"the audits differ in {', '.join(found.other)} too: what differs below may be no protection"
        console.print(Text(differ))
    for pair in found.pairs:
        console.print()
        for line in lines(pair):
            console.print(Text(line))
    _alone(console, found)


def lines(pair: Pairing) -> list[str]:
    """A pair of settings in words."""
    same = pair.first == pair.second
    title = [_words(pair.first)] if same else [f"A: {_words(pair.first)}", f"B: {_words(pair.second)}"]
    if not pair.examples:
        return [*title, "  no example in common, so nothing to compare"]
    a, b = pair.identified
    said = f"identified: {a} of {pair.examples} in A, {b} of {pair.examples} in B"
    if pair.only_first or pair.only_second:
        said += f" (only in A {pair.only_first}, only in B {pair.only_second}; p = {pair.p_value:.2g})"
    lost = [f"{n} in {name}" for n, name in zip(pair.lost, "AB", strict=True) if n]
    none = [f"  without a result, which is no protection: {', '.join(lost)}"] if lost else []
    if pair.difference is None:
        return [*title, f"  {said}", *none, "  PSNR: no example has one in both"]
    ends = "" if pair.interval is None else f" [{pair.interval[0]:+.1f}, {pair.interval[1]:+.1f}]"
    return [*title, f"  {said}", *none, f"  PSNR, B less A: {pair.difference:+.1f} dB{ends}, mean over examples"]


def _words(setting: Setting) -> str:
    model, client, defense, attack = setting
    return f"{attack} on {model}, {client}, {defense}"


def _alone(console: Console, found: Comparison) -> None:
    for name, settings in (("A", found.alone_first), ("B", found.alone_second)):
        for setting in settings:
            console.print(Text(f"only in {name}: {_words(setting)}"))
