"""`leakgauge fit classifier`: from names on the command line to a weights file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor

from leakgauge.checkpoint import Scores, keep_weights
from leakgauge.compute import Compute
from leakgauge.data import Source, open_source
from leakgauge.data.source import spec
from leakgauge.errors import InputError, require
from leakgauge.models.weights import PREFIX, load_weights, weights_path
from leakgauge.registry import MODELS
from leakgauge.resolve import read_option, split
from leakgauge.study.model_spec import ModelSpec, fitted
from leakgauge.task import DataSpec, Task
from leakgauge.training.fit import (
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


def source_of(text: str, field: str, **defaults: Any) -> Source:
    """``parquet:PATH`` or ``'{source: parquet:PATH, size: 32}'``, as under ``data`` in a plan; `defaults` are
    parameters where the text gives none."""
    given = read_option(text, field)
    options = {"source": given} if isinstance(given, str) else given
    require(isinstance(options, dict) and "source" in options, field, f"cannot read '{text}'", "write {source: …, …}")
    try:
        options = defaults | options
        return open_source(options.pop("source"), **options)
    except InputError as error:
        raise InputError(f"--{field}", f"{error.field} {error.problem}", error.hint) from error


def without_folder(name: str) -> str:
    """``parquet:cifar10-train.parquet``: a file that is passed on does not tell where it was made."""
    kind, colon, path = name.partition(":")
    return f"{kind}:{Path(path).name}" if colon else kind


def check_output(path: Path) -> None:
    """Raises `InputError` where no weights file can be written, before hours are spent."""
    require(path.suffix == ".safetensors", "output", f"is {path}", "name a .safetensors file")
    require(path.absolute().parent.is_dir(), "output", f"no folder '{path.parent}'", "make it first")
    require(not path.is_dir(), "output", f"'{path}' is a folder", "name a file")


def halved(state: dict[str, Tensor], half: bool) -> dict[str, Tensor]:
    """The tensors as they are written, floats in half precision if `half`."""
    kept = {k: v.contiguous() for k, v in state.items()}
    return {k: v.half() if v.is_floating_point() else v for k, v in kept.items()} if half else kept


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
    name, arguments = split(read_option(model, "model"), "model")
    entry = MODELS[name]
    module = ModelSpec(entry.build, name, fitted(entry.parameters, data_spec) | arguments, None, "model").module(seed)
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
