"""Everything behind `leakgauge inspect`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from leakgauge.errors import InputError
from leakgauge.files import write_whole
from leakgauge.inspection.page import lines, render
from leakgauge.inspection.received import read_hashes, received
from leakgauge.inspection.result import CheckLevel
from leakgauge.inspection.rule import Limits
from leakgauge.inspection.verdict import inspect
from leakgauge.models.weights import fingerprint


def inspect_command(
    state: Path,
    *,
    model: str | None = None,
    reference: Path | None = None,
    previous: Path | None = None,
    data: str | None = None,
    json_file: Path | None = None,
    page: Path | None = None,
    hashes: tuple[str, ...] = (),
    verbose: bool = False,
) -> int:
    """Prints what the rules found and writes what was asked for.

    Returns:
        0 if no rule reached its limit, 1 if one did, 2 if no weight could be judged.

    Raises:
        InputError: input that cannot be used; the command line turns it into exit code 2.
    """
    others = read_hashes(hashes)
    for file, option in ((json_file, "--json"), (page, "-o")):
        if file is not None and not file.absolute().parent.is_dir():
            raise InputError(option, f"no folder '{file.parent}'", "make it first")
        if file is not None and file.is_dir():
            raise InputError(option, f"'{file}' is a folder", "name a file")
    found = received(state, model=model, reference=reference, previous=previous, data=data)
    result = inspect(found, Limits.packaged(), name=state.name, fingerprint=fingerprint(found.state), hashes=others)
    text = json.dumps(result.to_json(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    if json_file is not None or page is not None:
        # Before anything is printed: whoever reads only the head of the output gets whole files.
        if json_file is not None:
            write_whole(json_file, text)
        if page is not None:
            write_whole(page, render(result))
    for line in lines(result, verbose=verbose):
        click.echo(line)
    return 1 if result.alarms else 2 if result.level is CheckLevel.NOT_JUDGED else 0
