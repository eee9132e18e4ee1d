"""Everything behind `leakgauge count`."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from leakgauge.attacks.exact import Peeling
from leakgauge.data import client_batches, open_source, spec
from leakgauge.data.source import FEWEST_CLASSES
from leakgauge.errors import InputError, require
from leakgauge.files import write_whole
from leakgauge.registry import MODELS, typed
from leakgauge.resolve import read_option, split
from leakgauge.risk.bracket import error_bracket, relative_noise
from leakgauge.risk.counting import needed_rows, paper_applies, paper_rows, paper_tally
from leakgauge.risk.jacobian import Rank, random_batch, update_rank
from leakgauge.risk.layers import ModelCount, count_layers
from leakgauge.risk.mask_replay import Measure, Replay, measures, replay
from leakgauge.study.model_spec import ModelSpec, fitted, model_label
from leakgauge.task import Batch, DataSpec, Mode, Task

LARGER, LARGEST = 16, 1024
"""Larger batches are tried up to so many times the one asked for, and up to so many examples."""


def count_command(
    model: str,
    *,
    batch: int,
    shape: str | None = None,
    classes: int | None = None,
    data: str | None = None,
    soft_labels: bool = False,
    mode: str = "eval",
    seed: int = 0,
    noise: float | None = None,
    json_file: Path | None = None,
    console: Console | None = None,
) -> None:
    """Prints the counts and the numerical rank, and writes them as JSON where asked.

    Raises:
        InputError: input that cannot be used; the command line turns it into exit code 2.
    """
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise InputError("--json", f"no folder '{json_file.parent}'", "make it first")
    require(not (noise and soft_labels), "--noise", "takes labels as known", "leave --soft-labels out")
    generator = torch.Generator().manual_seed(seed)
    task, examples, more = _given(model, batch, shape, classes, data, Mode(mode), seed, generator)
    counted = count_layers(task, batch, soft_labels=soft_labels)
    rank = update_rank(task, examples, generator, soft_labels=soft_labels, bound=counted.bound)
    told = replay(task, examples, generator)
    advice = measures(task, examples, more, generator) if isinstance(told, Replay) and told.read else ()
    result = report(task, counted, rank, batch, soft_labels=soft_labels, exact=_exact(told, advice))
    if noise is not None:
        bracket = error_bracket(task, examples, relative_noise(task, examples, noise, generator), generator)
        result["under_noise"] = {"noise": noise} | asdict(bracket) | {"psnr": bracket.psnr, "says": bracket.says(noise)}
    show(console or Console(), counted, result)
    if json_file is not None:
        write_whole(json_file, json.dumps(result, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def report(
    task: Task,
    counted: ModelCount,
    rank: Rank,
    batch: int,
    *,
    soft_labels: bool = False,
    exact: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The whole result as plain data."""
    return {
        "model": task.name,
        "batch": batch,
        "labels": "soft, unknown" if soft_labels else "known",
        "paper": _paper(counted, batch),
        "corrected": _corrected(counted, batch, soft_labels),
        "rank": asdict(rank) | {"exact": rank.exact, "full": rank.full},
        "layers": [asdict(layer) for layer in counted.layers],
        "equations": counted.equations,
        "unknowns": counted.unknowns,
        "exact_reads": exact,
        "under_noise": None,
        "follows": follows(counted, rank, batch),
    }


def _exact(told: Replay | str, advice: Sequence[Measure]) -> dict[str, Any]:
    if isinstance(told, str):
        return {"applies": False, "why": told}
    tried = [{"measure": m.words, "read": m.replay.read, "of": m.replay.examples} for m in advice]
    return {"applies": True} | asdict(told) | {"measures": tried}


def _exact_lines(exact: dict[str, Any] | None) -> list[str]:
    if exact is None:
        return []
    if not exact["applies"]:
        return [f"exact reads by peeling: do not apply ({exact['why']})"]
    lines = [
        f"exact reads by peeling: {exact['read']} of {exact['examples']} examples at these weights and examples, "
        f"{exact['alone']} of them at once"
    ]
    if 0 < exact["examples"] - exact["read"] <= Peeling().directions:
        lines.append("  (a search for sparse directions may read the few others)")
    return lines + [f"  with {m['measure']}: {m['read']} of {m['of']}" for m in exact["measures"]]


def _paper(counted: ModelCount, batch: int) -> dict[str, Any] | None:
    net = counted.one_hidden
    if net is None:
        return None
    asked, tally = paper_rows(net, batch), paper_tally(net, batch)
    return {
        "has": net.rows,
        "needs": asked if math.isfinite(asked) else None,
        "enough": net.rows >= asked,
        "applies": paper_applies(net, batch),
        "equations": tally.equations,
        "unknowns": tally.unknowns,
    }


def _corrected(counted: ModelCount, batch: int, soft_labels: bool) -> dict[str, Any]:
    net = counted.one_hidden
    needs = None if net is None else needed_rows(net, batch, soft_labels=soft_labels)
    enough = counted.bound == counted.unknowns
    return {
        "has": None if net is None else net.rows,
        "needs": needs,
        "enough": enough,
        "highest_rank": counted.bound,
        "unknowns": counted.unknowns,
    }


def follows(counted: ModelCount, rank: Rank, batch: int) -> str:
    """One sentence on what the numbers mean for the client."""
    examples = "the example" if batch == 1 else f"the {batch} examples"
    if rank.full:
        return (
            f"The update fixes {examples} to first order (rank {rank.low} of {rank.unknowns}): no other batch near by "
            "gives the same update, so only noise, values that are not sent, or a hard search keep the data."
        )
    if rank.full is None:
        return (
            f"Open: the rank is between {rank.low} and {rank.high} of {rank.unknowns}, so the count shows neither that "
            f"the update fixes {examples} nor that it does not; audit it."
        )
    free = rank.unknowns - rank.high
    words = f"{free}" if rank.exact else f"at least {free}"
    why = ", as the count says"
    if rank.exact and rank.low < counted.bound:
        why = ", more than the count says: equations repeat each other, or units are silent at this point"
    return (
        f"The update leaves {words} of {rank.unknowns} directions open to first order{why}: {examples} cannot be had "
        f"from it exactly without prior knowledge, but it tells {rank.low} directions, and a picture may be "
        "recognised from them."
    )


def show(console: Console, counted: ModelCount, result: dict[str, Any]) -> None:
    """Prints layers, counts and the sentence."""
    batch = result["batch"]
    table = Table(title=f"{result['model']}, batch {batch}, labels {result['labels']}")
    for column in ("layer", "kind", "equations", "independent", "unknowns that enter"):
        table.add_column(column, justify="left" if column in ("layer", "kind") else "right")
    for layer in counted.layers:
        numbers = (str(n) for n in (layer.equations, layer.independent, layer.unknowns))
        table.add_row(Text(layer.name), layer.kind, *numbers)
    total = sum(layer.independent for layer in counted.layers)
    table.add_row("all", "", str(counted.equations), str(total), f"{counted.unknowns} in the batch", style="bold")
    console.print(table)
    noisy = [] if result["under_noise"] is None else result["under_noise"]["says"]
    for line in (*_lines(counted, result), *_exact_lines(result["exact_reads"]), *noisy):
        console.print(Text(line))
    console.print(Text(result["follows"], style="bold"))


def _lines(counted: ModelCount, result: dict[str, Any]) -> Sequence[str]:
    paper, corrected, rank = result["paper"], result["corrected"], result["rank"]
    if paper is None:
        yes_no = "paper's count: only for one hidden layer and a linear one after it, both with biases"
        first = [yes_no]
    else:
        what = "filters" if counted.one_hidden and counted.one_hidden.positions > 1 else "units"
        needs = "no number of" if paper["needs"] is None else f"{paper['needs']:.4g}"
        first = [
            f"paper's count: asks for {needs} {what}, has {paper['has']} "
            f"({paper['equations']} equations, {paper['unknowns']} unknowns as it counts them)"
            + ("" if paper["applies"] else "; outside of what its proposition assumes"),
            f"corrected count: asks for {corrected['needs']} {what}, has {corrected['has']}",
        ]
    ends = f"{rank['low']}" if rank["exact"] else f"{rank['low']} to {rank['high']}"
    faint = "" if rank["conditioning"] is None else f", faintest {rank['conditioning']:.1e} of the strongest"
    return [
        *first,
        f"highest rank by counting: {corrected['highest_rank']} of {corrected['unknowns']}",
        f"numerical rank: {ends} of {rank['unknowns']} ({rank['how']}{faint})",
    ]


def _given(
    model: str,
    batch: int,
    shape: str | None,
    classes: int | None,
    data: str | None,
    mode: Mode,
    seed: int,
    generator: torch.Generator,
) -> tuple[Task, Batch, Batch]:
    """Model, batch, and further examples for larger batches."""
    name, arguments = split(read_option(model, "MODEL"), "MODEL")
    entry = MODELS[name]
    found: Batch | None = None
    most = max(batch, min(LARGER * batch, LARGEST))
    if data is not None:
        for field, value in (("--shape", shape), ("--classes", classes)):
            require(value is None, field, "is given with --data, which has its own", "leave one of the two out")
        options = read_option(data, "--data")
        options = dict(options) if isinstance(options, dict) else {"source": options}
        source = open_source(str(options.pop("source", "")), **options)
        format_ = spec(source)
        first = client_batches(source, batch, 1)[0]
        found = source.read([*first, *[i for i in range(len(source)) if i not in first][: most - batch]])
    else:
        format_ = _format(shape, classes, arguments, f"MODEL.{name}")
    arguments = fitted(entry.parameters, format_) | arguments
    label = model_label(name, arguments, None)
    task = ModelSpec(entry.build, name, arguments, None, "MODEL").task(seed, format_, mode, label)
    found = found or random_batch(task, most, generator)
    return task, found.take(torch.arange(batch)), found.take(torch.arange(batch, len(found)))


def _stated(
    *, classes: int = 10, shape: tuple[int, ...] | None = None, channels: int = 3, size: int = 32
) -> tuple[tuple[int, ...], int]:
    """What a model's arguments say of the data; a photo of 32 pixels by default."""
    return shape or (channels, size, size), classes


def _format(text: str | None, classes: int | None, arguments: dict[str, Any], field: str) -> DataSpec:
    """As the command line says, else as the model's own arguments do."""
    known = inspect.signature(_stated).parameters
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
