"""What is said before anybody attacks: `leakgauge inspect`, the client's check of a received model; `leakgauge count`,
equations against unknowns of one update; `leakgauge cohort`, updates that sums of secure aggregation give away."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from leakgauge.cli.options import NEW_FILE, PATH, SOURCE, SPEC, show, to_json, write_json
from leakgauge.errors import InputError, count_of, require
from leakgauge.files import write_whole
from leakgauge.registry import MODELS, typed

if TYPE_CHECKING:
    from leakgauge.data import Source
    from leakgauge.risk.cohort import Cohort
    from leakgauge.task import DataSpec, Mode, Task


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
    held = None if source is None else source.read(client_batches(source, batch, 1)[0])
    examples = held or random_batch(task, batch, generator)
    found = Count.of(task, examples, generator, soft_labels=soft_labels)
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


SHOWN = 20  # lines of each list that the terminal shows; the JSON file has all


@click.command()
@click.argument("log", type=PATH)
@click.option(
    "--read-up-to",
    "largest",
    type=click.IntRange(min=1),
    help="Largest batch of which a layer of the network gives all features away: leakgauge count says it.",
)
@click.option(
    "--examples",
    type=click.IntRange(min=1),
    help="Examples of a client in a round, each counted at every step, where the log has no such column.",
)
@to_json("the result")
def cohort(log: Path, largest: int | None, examples: int | None, json_file: Path | None) -> None:
    """Which single updates do the sums of secure aggregation give away, and which sums all examples' features?

    LOG says who took part in which round: a CSV file with the header round,client,weight,examples, or JSON lines with
    these keys. A client's update follows from the sums if a combination of rounds cancels all others; this is decided
    exactly. JSON lines may also list the coordinates that a client sent. A sum is one more batch: with --read-up-to,
    sums of no more examples are named, as a layer gives the features of each away.

    Exit code 0: neither follows; 1: one does; 2: the log cannot be used.
    """
    from leakgauge.risk.cohort import read_cohort, read_log

    found, console = read_cohort(read_log(log), largest or 0, examples), Console()
    write_json(json_file, cohort_record(found))
    show(cohort_verdict(found), f"rank of the participation matrix: {found.rank} of {found.clients} clients")
    if found.determined:
        table = Table("client", "rounds combined", "drift enters × ", box=None, pad_edge=False)
        for d in found.determined[:SHOWN]:
            alone = d.alone_in is not None
            read = f"none: alone in round {d.alone_in}" if alone else str(d.rounds)
            table.add_row(d.client, read, "–" if alone else f"{d.drift_gain:.1f}")
        console.print(table)
    console.print(*map(Text, _cohort_lines(found, asked=largest is not None)), sep="\n")
    sys.exit(1 if found.determined or found.alone or found.combined or found.whole else 0)


def _cohort_lines(found: Cohort, *, asked: bool) -> Iterator[str]:
    yield from _rest(found.determined)
    lists = {
        "pairs of which one combination is known:": [f"{a} and {b}" for a, b in found.pairs],
        "entries that one client alone sent, so that they are in clear in the sum:": [
            f"round {name}, client {client}: {count}" for (name, client), count in found.alone.items()
        ],
        "entries that follow from several rounds, as not all clients sent them in all:": [
            f"client {client}: {count}" for client, count in found.combined.items()
        ],
        "sums of which a layer gives the features of all examples away, and how many, each counted at every step:": [
            f"{name}: {count}" for name, count in found.whole.items()
        ],
    }
    for title, each in lists.items():
        if each:
            yield title
            yield from (f"  {line}" for line in each[:SHOWN])
            yield from _rest(each)
    if found.unread:
        yield f"entries that were not combined over rounds, being too unlike: {found.unread}"
    if found.uncounted:
        yield f"sums not compared with --read-up-to: {found.uncounted}; give examples in the log, or --examples"
    if not found.determined and not found.pairs:
        yield f"smallest group found: {', '.join(found.group.clients[:SHOWN])}"
    yield (
        "Updates that stay the same over the rounds are the worst case. Where they vary from round to round by noise "
        "of size s, a read is off by s times the factor above; a round with one client is read as it is."
    )
    sums = "what else a sum shows of its examples" if asked else "what a sum shows of its examples (--read-up-to)"
    yield f"Not covered: what several clients tell the server, and {sums}."


def _rest(each: Sequence[object]) -> Iterator[str]:
    if len(each) > SHOWN:
        yield f"  and {len(each) - SHOWN} more: --json FILE has all"


def cohort_record(found: Cohort) -> dict[str, object]:
    alone = [{"round": name, "client": client, "entries": count} for (name, client), count in found.alone.items()]
    assumes = "updates stay the same over the rounds"
    return asdict(found) | {"alone": alone, "assumes": assumes, "verdict": cohort_verdict(found)}


def cohort_verdict(found: Cohort) -> str:
    lonely = [d for d in found.determined if d.alone_in is not None]
    size = f"{found.clients} clients in {found.rounds} rounds"
    none = f"No whole update follows from the sums of {size}, but"
    if lonely:
        return f"{count_of(len(lonely), 'update')} can be read off a round with a single client ({size})."
    if found.determined:
        several = count_of(len(found.determined), "single update")
        return f"{several} can be computed from the sums of {size}, if updates stay the same over the rounds."
    if found.alone:
        return f"{none} {count_of(len(found.alone), 'update')} sent entries that nobody else sent."
    if found.combined:
        return f"{none} entries of {count_of(len(found.combined), 'update')} do, from several rounds."
    if found.whole:
        return f"{none} a layer gives the features of all examples away in {count_of(len(found.whole), 'sum')}."
    least = len(found.group.clients)
    bound = f"exactly {least}" if found.group.smallest else f"at least 3, {least} found"
    return f"No single update follows from the sums of {size}. Smallest group whose combination is known: {bound}."
