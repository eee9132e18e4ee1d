"""`python -m reproduce.classifier.command`: trains a classifier, from names on the command line to a weights file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from leakgauge.cli import OneLine
from leakgauge.cli.options import SPEC
from leakgauge.compute import Compute
from leakgauge.data.source import spec
from leakgauge.errors import require
from leakgauge.models.weights import PREFIX, load_weights, weights_path
from leakgauge.registry import MODELS
from leakgauge.resolve import split
from leakgauge.study.plan import ModelSpec, fitted
from leakgauge.task import DataSpec, Task
from reproduce.classifier.training import (
    Augmentation,
    CropFlip,
    Drops,
    Epoch,
    HalfCosine,
    NoAugmentation,
    Recipe,
    accuracy,
    fit,
)
from reproduce.classifier.weights import Scores, check_output, halved, keep_weights, source_of, without_folder


def fit_classifier(
    model: str,
    *,
    data: str,
    held_out: str | None,
    start: str | None,
    output: Path,
    epochs: int,
    batch_size: int,
    lr: float,
    weight_decay: float,
    augment: bool | None,
    cosine: bool,
    bfloat16: bool,
    half: bool,
    threads: int,
    seed: int,
    console: Console,
) -> None:
    """Trains, writes the weights, and says how they do on held-out data.

    Without a word on `augment`, pictures are cropped and flipped and other data are left as they are.
    """
    check_output(output)
    Compute(threads=threads).apply()
    source = source_of(data, "data")
    tests = None if held_out is None else source_of(held_out, "test")
    data_spec = spec(source)
    if tests is not None:
        _same_kind(spec(tests), data_spec)
    name, arguments = split(SPEC.convert(model, None, None), "model")
    entry = MODELS[name]
    module = ModelSpec(name, fitted(entry.parameters, data_spec) | arguments, None, "model").built(seed)
    if start is not None:
        load_weights(module, weights_path(start, "start"), "start")
    Task.of(module, data_spec)
    recipe = Recipe(
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        weight_decay=weight_decay,
        bfloat16=bfloat16,
        decay=HalfCosine() if cosine else Drops(),
        augmentation=_augmentation(augment, data_spec),
    )
    if augment is None and recipe.augmentation == NoAugmentation():
        console.print("no pictures, so no crops and flips", style="dim")
    console.print(f"reading {len(source)} examples", style="dim")
    examples = source.read(range(len(source)))

    def say(epoch: Epoch) -> None:
        console.print(
            f"epoch {epoch.number}/{epochs}  loss {epoch.loss:.3f}  accuracy {epoch.accuracy:.3f}  "
            f"lr {epoch.rate:g}  {epoch.seconds:.0f} s"
        )

    checkpoint = output.with_suffix(".checkpoint")
    fit(module, data_spec, examples, recipe, seed=seed, checkpoint=checkpoint, on_epoch=say)
    state = halved(module.state_dict(), half)
    meta = {"model": f"{name} {arguments}", "recipe": repr(recipe), "seed": str(seed)}
    meta["data"] = without_folder(source.name)
    if start is not None:
        meta["start"] = start if start.startswith(PREFIX) else Path(start).name

    def scores() -> Scores:
        assert tests is not None
        module.load_state_dict(state)
        score = accuracy(module, data_spec, tests.read(range(len(tests))))
        console.print(f"accuracy on {len(tests)} held-out examples: {score:.4f}")
        return {"accuracy": f"{score:.4f}"}

    keep_weights(state, output, meta, checkpoint=checkpoint, score=None if tests is None else scores)
    console.print(str(output))


def _same_kind(tests: DataSpec, data: DataSpec) -> None:
    """Held-out data that the trained network cannot read, or would misread, are refused before it is trained."""
    for same, theirs, ours in (
        (tests.shape == data.shape, f"examples of shape {tests.shape}", f"{data.shape}"),
        (tests.classes == data.classes, f"{tests.classes} classes", f"{data.classes}"),
        ((tests.low, tests.high) == (data.low, data.high), f"values in {_range(tests)}", _range(data)),
    ):
        require(same, "--test", f"has {theirs}, --data {ours}", "give data of the same kind, with the same options")


def _range(data: DataSpec) -> str:
    return f"[{data.low:g}, {data.high:g}]"


def _augmentation(asked: bool | None, data: DataSpec) -> Augmentation:
    fits = not asked or len(data.shape) == 3
    require(fits, "--augment", f"needs pictures, but examples have shape {data.shape}", "leave it out")
    return CropFlip() if asked or (asked is None and data.is_image) else NoAugmentation()


@click.command(cls=OneLine)
@click.argument("model")
@click.option(
    "--data", required=True, help="A source as in a plan: folder:PATH, parquet:PATH, or '{source: …, size: 32}'."
)
@click.option(
    "--test",
    "held_out",
    help="Held-out data, for the accuracy that is written into the file; of the shape, classes and range of --data.",
)
@click.option("--start", help="Go on from these weights: a file, or packaged:NAME.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="A .safetensors file.")
@click.option("--epochs", type=click.IntRange(min=1), default=120, show_default=True)
@click.option("--batch-size", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--lr", type=float, default=0.1, show_default=True)
@click.option("--weight-decay", type=float, default=5e-4, show_default=True)
@click.option(
    "--augment/--no-augment",
    default=None,
    help="Random crops and flips. By default for pictures (one or three channels), not for other data.",
)
@click.option("--cosine", is_flag=True, help="Learning rate along half a cosine, better for few epochs.")
@click.option("--bfloat16", is_flag=True, help="Forward passes in bfloat16, faster where the processor has it.")
@click.option("--half", is_flag=True, help="Keep the weights in half precision: half the size.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def command(model: str, **options: Any) -> None:
    """Trains MODEL (a name, or '{name: {parameter: value}}') by SGD with Nesterov momentum, on pictures or other data.

    The learning rate falls to a tenth at 37, 62 and 88 % of the epochs, unless --cosine. Stopped and run again, it
    goes on after the last whole epoch.
    """
    fit_classifier(model, **options, console=Console(soft_wrap=True))


if __name__ == "__main__":
    command()
