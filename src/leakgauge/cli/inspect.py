"""`leakgauge inspect`: the client's check of a received model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from leakgauge.cli.options import NEW_FILE, PATH, SOURCE, SPEC, to_json, write_json
from leakgauge.files import write_whole


@click.command()
@click.argument("state", type=PATH)
@click.option(
    "--model", type=SPEC, help="The architecture: a name, package.module:function, or '{name: {parameter: value}}'."
)
@click.option("--reference", type=PATH, help="A model of the same architecture that you trust.")
@click.option("--previous", type=PATH, help="The model of the round before.")
@click.option(
    "--data",
    type=SOURCE,
    help="Your own examples: a folder, folder:PATH, or '{source: …, size: 32}'. Needs --model.",
)
@click.option("--hash", "hashes", multiple=True, help="A fingerprint that another client saw; may be repeated.")
@to_json("the result")
@click.option("-o", "--output", "page", type=NEW_FILE, help="Also write an HTML page.")
@click.option("-v", "--verbose", is_flag=True, help="Show every rule's measurement, and what was not judged.")
def inspect(
    state: Path, hashes: tuple[str, ...], json_file: Path | None, page: Path | None, verbose: bool, **given: Any
) -> None:
    """Checks a received model before you train on it: does STATE look crafted to give your data away?

    STATE is a state dict as .safetensors or from torch.save (no code in it is run). Tensors alone are
    enough for most rules; with --model and --data the rules also watch what the model does with made-up
    pictures of your data's format.

    Exit code 0: no rule reached its limit; 1: one did; 2: the input cannot be used. Prints a fingerprint: clients
    of a round that compare theirs (--hash) notice a server that sends each of them another model.
    """
    from leakgauge.inspection.rule import Limits, read_hashes, received
    from leakgauge.inspection.verdict import CheckLevel, lines, render
    from leakgauge.inspection.verdict import inspect as inspected
    from leakgauge.models.weights import fingerprint

    others = read_hashes(hashes)
    found = received(state, **given, option="--")
    result = inspected(found, Limits.packaged(), name=state.name, fingerprint=fingerprint(found.state), hashes=others)
    # Before anything is printed: whoever reads only the head of the output gets whole files.
    write_json(json_file, result.to_json())
    if page is not None:
        write_whole(page, render(result))
    for line in lines(result, verbose=verbose):
        click.echo(line)
    sys.exit(1 if result.alarms else 2 if result.level is CheckLevel.NOT_JUDGED else 0)
