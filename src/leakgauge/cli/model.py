"""What a model says before anybody trains: `leakgauge inspect`, the client's check of a received one, and `leakgauge
count`, equations against unknowns of one update."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from leakgauge.cli.options import NEW_FILE, PATH, SOURCE, SPEC, to_json, write_json
from leakgauge.errors import InputError, require
from leakgauge.files import write_whole
from leakgauge.registry import MODELS, typed

if TYPE_CHECKING:
    from leakgauge.data import Source
    from leakgauge.task import Batch, DataSpec, Mode, Task


@click.command()
@click.argument("state", type=PATH)
@click.option(
    "--model", type=SPEC, help="The architecture: a name, package.module:function, or '{name: {parameter: value}}'."
)
@click.option("--reference", type=PATH, help="A model of the same architecture that you trust.")
@click.option("--previous", type=PATH, help="The model of the round before.")
@click.option(
    "--data", type=SOURCE, help="Your own examples: a folder, folder:PATH, or '{source: …, size: 32}'. Needs --model."
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

    others = read_hashes(hashes)
    result = inspected(received(state, **given, option="--"), Limits.packaged(), name=state.name, hashes=others)
    # Before anything is printed: whoever reads only the head of the output gets whole files.
    write_json(json_file, result.to_json())
    if page is not None:
        write_whole(page, render(result))
    for line in lines(result, verbose=verbose):
        click.echo(line)
    sys.exit(1 if result.alarms else 2 if result.level is CheckLevel.NOT_JUDGED else 0)


LARGER, LARGEST = 16, 1024  # larger batches are tried up to so many times the one asked for, and up to so many examples


@click.command()
@click.argument("model", type=SPEC)
@click.option("--batch", type=click.IntRange(min=1), required=True, help="Examples in the client's batch.")
@click.option("--shape", help="Of one example, e.g. 3,32,32 or 1,256. By default what the model's arguments say.")
@click.option("--classes", type=click.IntRange(min=2), help="Number of labels; 10 unless the model's arguments say.")
@click.option(
    "--data",
    type=SOURCE,
    help="Count at real examples: a source as in a plan, which says shape and classes. By default uniform noise.",
)
@click.option("--soft-labels", is_flag=True, help="Labels are unknown and may be soft.")
@click.option("--mode", type=click.Choice(("eval", "train")), default="eval", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights and examples.")
@to_json("the result")
def count(
    model: Any,
    batch: int,
    shape: str | None,
    classes: int | None,
    data: Any,
    soft_labels: bool,
    mode: str,
    seed: int,
    json_file: Path | None,
) -> None:
    """Counts what one update of MODEL says about a batch: unknowns against equations, and the numerical rank.

    MODEL is a name, package.module:function, or '{name: {parameter: value}}'. No attack is run. A full rank says
    that the update fixes the batch near the true one; that the search for it succeeds is another question.
    """
    import torch

    from leakgauge.data import client_batches, open_source
    from leakgauge.risk.count import Count
    from leakgauge.risk.jacobian import random_batch
    from leakgauge.task import Mode

    source = None
    if data is not None:
        for field, value in (("--shape", shape), ("--classes", classes)):
            require(value is None, field, "is given with --data, which has its own", "leave one of the two out")
        source = open_source(str(data["source"]), **{key: value for key, value in data.items() if key != "source"})
    generator = torch.Generator().manual_seed(seed)
    task = _task(model, source, shape, classes, Mode(mode), seed)
    held = () if source is None else client_batches(source, batch, 1)[0]
    examples = random_batch(task, batch, generator) if source is None else source.read(held)

    def more() -> "Batch":
        count = min((LARGER - 1) * batch, LARGEST - batch)
        if count <= 0:
            return examples.take(torch.arange(0))
        if source is None:
            return random_batch(task, count, generator.clone_state())
        return source.read(sorted(set(range(len(source))) - set(held))[:count])

    found = Count.of(task, examples, more, generator, soft_labels=soft_labels)
    console, counted = Console(), found.counted
    table = Table(title=f"{found.model}, batch {batch}, labels {found.labels}")
    for column in ("layer", "kind", "equations", "independent", "unknowns that enter"):
        table.add_column(column, justify="left" if column in ("layer", "kind") else "right")
    for layer in counted.layers:
        numbers = (str(n) for n in (layer.equations, layer.independent, layer.unknowns))
        table.add_row(Text(layer.name), layer.kind, *numbers)
    total = sum(layer.independent for layer in counted.layers)
    table.add_row("all", "", str(counted.equations), str(total), f"{counted.unknowns} in the batch", style="bold")
    console.print(table)
    console.print(*map(Text, found.lines), Text(found.follows, style="bold"), sep="\n")
    write_json(json_file, found.to_json())


def _task(
    model: Any, source: "Source | None", shape: str | None, classes: int | None, mode: "Mode", seed: int
) -> "Task":
    from leakgauge.data import spec
    from leakgauge.resolve import label, split
    from leakgauge.study.plan import ModelSpec, fitted

    name, arguments = split(model, "MODEL")
    format_ = _format(shape, classes, arguments, f"MODEL.{name}") if source is None else spec(source)
    arguments = fitted(MODELS[name].parameters, format_) | arguments
    try:
        return ModelSpec(name, arguments, None, "MODEL").task(seed, format_, mode, label(name, arguments))
    except InputError as error:
        here = "" if source is not None else ": here by --shape and --classes"
        raise InputError(error.field, error.problem, f"{error.hint}{here}") from error


def _stated(
    *, classes: int = 10, shape: tuple[int, ...] | None = None, channels: int = 3, size: int = 32
) -> tuple[tuple[int, ...], int]:
    """What a model's arguments say of the data; a photo of 32 pixels by default."""
    return shape or (channels, size, size), classes


def _format(text: str | None, classes: int | None, arguments: Mapping[str, object], field: str) -> "DataSpec":
    from leakgauge.data.source import FEWEST_CLASSES
    from leakgauge.task import DataSpec

    known = ("classes", "shape", "channels", "size")
    shape, labels = _stated(**{k: typed(_stated, k, v, f"{field}.{k}") for k, v in arguments.items() if k in known})
    if text is not None:
        try:
            shape = tuple(int(part) for part in text.replace("x", ",").split(","))
        except ValueError as error:
            raise InputError("--shape", f"cannot read '{text}'", "write e.g. 3,32,32") from error
    labels = labels if classes is None else classes
    where = "--shape" if text is not None else field
    require(all(n > 0 for n in shape), where, f"makes examples of shape {shape}", "give positive numbers")
    require(labels >= FEWEST_CLASSES, field, f"has {labels} classes", f"give at least {FEWEST_CLASSES}")
    return DataSpec(shape, labels)
