"""Everything behind `leakgauge count`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

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
from leakgauge.risk.hidden_inputs import HiddenInput, hidden_inputs, summary
from leakgauge.risk.jacobian import Rank, random_batch, update_rank
from leakgauge.risk.layers import ModelCount, count_layers
from leakgauge.risk.mask_replay import Measure, Replay, measures, replay
from leakgauge.study.model_spec import ModelSpec, fitted, model_label
from leakgauge.task import Batch, DataSpec, Mode, Task

LABELS = {False: "known", True: "soft, unknown"}
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
    json_file: Path | None = None,
    console: Console | None = None,
) -> None:
    """Prints the counts and the numerical rank, and writes them as JSON where asked.

    Raises:
        InputError: input that cannot be used; the command line turns it into exit code 2.
    """
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise InputError("--json", f"no folder '{json_file.parent}'", "make it first")
    generator = torch.Generator().manual_seed(seed)
    task, examples, more = _given(model, batch, shape, classes, data, Mode(mode), seed, generator)
    counted = count_layers(task, batch, soft_labels=soft_labels)
    rank = update_rank(task, examples, generator, soft_labels=soft_labels, bound=counted.bound)
    told = replay(task, examples, generator)
    advice = measures(task, examples, more(), generator.clone_state()) if isinstance(told, Replay) and told.read else ()
    inside = hidden_inputs(task)
    result = Count(task.name, batch, soft_labels, counted, rank, told, advice, inside)
    show(console or Console(), result)
    if json_file is not None:
        write_whole(json_file, json.dumps(result.to_json(), indent=1, allow_nan=False, ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class Count:
    """All that is counted of a model and a batch.

    Attributes:
        model: its name.
        soft_labels: whether labels are soft and unknown.
        counted, rank: equations against unknowns, and the numerical rank at the given examples.
        replay: of the peeling; why it does not apply where it does not.
        measures: what would close that channel.
        hidden: layers and the batch up to which they give their inputs away.
    """

    model: str
    batch: int
    soft_labels: bool
    counted: ModelCount
    rank: Rank
    replay: Replay | str
    measures: tuple[Measure, ...]
    hidden: tuple[HiddenInput, ...] = ()

    def to_json(self) -> dict[str, object]:
        """As the JSON file has it."""
        rank = self.rank
        tried = [{"measure": m.words, "read": m.replay.read, "of": m.replay.examples} for m in self.measures]
        exact = asdict(self.replay) | {"measures": tried} if isinstance(self.replay, Replay) else {"why": self.replay}
        return {
            "model": self.model,
            "batch": self.batch,
            "labels": LABELS[self.soft_labels],
            "corrected": {
                "enough": self.counted.bound == self.counted.unknowns,
                "highest_rank": self.counted.bound,
                "unknowns": self.counted.unknowns,
            },
            "rank": asdict(rank) | {"exact": rank.exact, "full": rank.full},
            "layers": [asdict(layer) for layer in self.counted.layers],
            "equations": self.counted.equations,
            "unknowns": self.counted.unknowns,
            "exact_reads": {"applies": isinstance(self.replay, Replay)} | exact,
            "hidden_inputs": [asdict(one) for one in self.hidden],
            "follows": follows(self.counted, rank, self.batch),
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


def show(console: Console, result: Count) -> None:
    """Prints layers, counts and the sentence."""
    counted, batch = result.counted, result.batch
    table = Table(title=f"{result.model}, batch {batch}, labels {LABELS[result.soft_labels]}")
    for column in ("layer", "kind", "equations", "independent", "unknowns that enter"):
        table.add_column(column, justify="left" if column in ("layer", "kind") else "right")
    for layer in counted.layers:
        numbers = (str(n) for n in (layer.equations, layer.independent, layer.unknowns))
        table.add_row(Text(layer.name), layer.kind, *numbers)
    total = sum(layer.independent for layer in counted.layers)
    table.add_row("all", "", str(counted.equations), str(total), f"{counted.unknowns} in the batch", style="bold")
    console.print(table)
    for line in (*_counts(result), *_exact_lines(result), *summary(result.hidden, batch)):
        console.print(Text(line))
    console.print(Text(follows(counted, result.rank, batch), style="bold"))


def _counts(result: Count) -> list[str]:
    rank = result.rank
    ends = f"{rank.low}" if rank.exact else f"{rank.low} to {rank.high}"
    faint = "" if rank.conditioning is None else f", faintest {rank.conditioning:.1e} of the strongest"
    return [
        f"highest rank by counting: {result.counted.bound} of {result.counted.unknowns}",
        f"numerical rank: {ends} of {rank.unknowns} ({rank.how}{faint})",
    ]


def _exact_lines(result: Count) -> list[str]:
    told = result.replay
    if isinstance(told, str):
        return [f"exact reads by peeling: do not apply ({told})"]
    lines = [
        f"exact reads by peeling: {told.read} of {told.examples} examples at these weights and examples, "
        f"{told.alone} of them at once"
    ]
    if 0 < told.examples - told.read <= Peeling().directions:
        lines.append("  (a search for sparse directions may read the few others)")
    return lines + [f"  with {m.words}: {m.replay.read} of {m.replay.examples}" for m in result.measures]


def _given(
    model: str,
    batch: int,
    shape: str | None,
    classes: int | None,
    data: str | None,
    mode: Mode,
    seed: int,
    generator: torch.Generator,
) -> tuple[Task, Batch, Callable[[], Batch]]:
    """Model, batch, and what gives further examples, for larger batches."""
    name, arguments = split(read_option(model, "MODEL"), "MODEL")
    entry, source = MODELS[name], None
    if data is not None:
        for field, value in (("--shape", shape), ("--classes", classes)):
            require(value is None, field, "is given with --data, which has its own", "leave one of the two out")
        options = read_option(data, "--data")
        options = dict(options) if isinstance(options, dict) else {"source": options}
        source = open_source(str(options.pop("source", "")), **options)
    format_ = _format(shape, classes, arguments, f"MODEL.{name}") if source is None else spec(source)
    arguments = fitted(entry.parameters, format_) | arguments
    made = ModelSpec(entry.build, name, arguments, None, "MODEL")
    task = made.task(seed, format_, mode, model_label(name, arguments, None))
    held = () if source is None else client_batches(source, batch, 1)[0]
    examples = random_batch(task, batch, generator) if source is None else source.read(held)

    def more() -> Batch:
        count = min((LARGER - 1) * batch, LARGEST - batch)
        if count <= 0:
            return examples.take(torch.arange(0))
        if source is None:
            return random_batch(task, count, generator.clone_state())
        return source.read(sorted(set(range(len(source))) - set(held))[:count])

    return task, examples, more


def _stated(
    *, classes: int = 10, shape: tuple[int, ...] | None = None, channels: int = 3, size: int = 32
) -> tuple[tuple[int, ...], int]:
    """What a model's arguments say of the data; a photo of 32 pixels by default."""
    return shape or (channels, size, size), classes


def _format(text: str | None, classes: int | None, arguments: Mapping[str, object], field: str) -> DataSpec:
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
