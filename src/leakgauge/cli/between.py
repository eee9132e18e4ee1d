"""`leakgauge between`: an update of two files, as a round that `leakgauge captured` audits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from leakgauge.cli.options import PATH, SPEC
from leakgauge.errors import refusing, require
from leakgauge.registry import MODELS

REPLIES = ("parameters", "delta", "gradient")


@click.command()
@click.argument("before", type=PATH)
@click.argument("after", type=PATH)
@click.option("--examples", type=click.IntRange(min=1), help="How many the client trained on.")
@click.option(
    "--holds",
    type=click.Choice(REPLIES),
    default="parameters",
    show_default=True,
    help="What AFTER is: parameters after training, how far they moved, or a gradient.",
)
@click.option(
    "--model", type=SPEC, help="The architecture, where arrays have no names: they are in the order of its state dict."
)
@click.option("-o", "--output", type=PATH, required=True, help="Where the round's folder goes.")
def between(before: Path, after: Path, examples: int | None, holds: str, model: Any, output: Path) -> None:
    """Makes a captured round of the parameters BEFORE local training and what the client replied, AFTER.

    Files are state dicts as .safetensors, checkpoints of torch.save (tensors only), or NumPy archives, named or as
    Flower saves lists of arrays. Prints the round's folder, for `leakgauge captured`.
    """
    from leakgauge.capture import Recorder
    from leakgauge.models.weights import read_model
    from leakgauge.update import UpdateKind

    names = None if model is None else _names(model)
    sent, reply = read_model(before, "BEFORE", names), read_model(after, "AFTER", names)
    nameless = next((k for k in sent if k.isdigit() or k.startswith("arr_")), None)
    require(nameless is None, "BEFORE", "holds arrays without names", "give --model, whose state dict names them")
    sends = None if holds == "parameters" else UpdateKind(holds)
    click.echo(Recorder(folder=output, sends=sends).keep(sent, reply, round_="0", node="file", count=examples))


def _names(model: Any) -> list[str]:
    from leakgauge.resolve import resolve

    with refusing("--model", "gives no module", "name a function that returns one", AttributeError, TypeError):
        return list(resolve(MODELS, model, "--model").value.state_dict())
