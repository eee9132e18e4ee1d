"""Everything behind `leakgauge compare`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from leakgauge.files import write_whole
from leakgauge.study.pipeline.compare import Comparison, Pairing, Setting, compare, read_report


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
    for pair in found.pairs:
        console.print()
        for line in lines(pair):
            console.print(Text(line))
    _alone(console, found)


def lines(pair: Pairing) -> list[str]:
    """A pair of settings in words."""
    same = pair.first == pair.second
    title = [_words(pair.first)] if same else [f"A: {_words(pair.first)}", f"B: {_words(pair.second)}"]
    a, b = pair.identified
    said = f"identified: {a} of {pair.examples} in A, {b} of {pair.examples} in B"
    if pair.only_first or pair.only_second:
        said += f" (only in A {pair.only_first}, only in B {pair.only_second}; p = {pair.p_value:.2g})"
    if pair.difference is None:
        return [*title, f"  {said}", "  PSNR: no example has one in both"]
    ends = "" if pair.interval is None else f" [{pair.interval[0]:+.1f}, {pair.interval[1]:+.1f}]"
    return [*title, f"  {said}", f"  PSNR, B less A: {pair.difference:+.1f} dB{ends}, mean over examples"]


def _words(setting: Setting) -> str:
    model, client, defense, attack = setting
    return f"{attack} on {model}, {client}, {defense}"


def _alone(console: Console, found: Comparison) -> None:
    for name, settings in (("A", found.alone_first), ("B", found.alone_second)):
        for setting in settings:
            console.print(Text(f"only in {name}: {_words(setting)}"))
