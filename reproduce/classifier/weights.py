"""A trained network's weights file: what it may be made of, and how it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from leakgauge.cli.options import SPEC
from leakgauge.data import Source, open_source
from leakgauge.errors import InputError, require
from leakgauge.files import replacing


def source_of(text: str, field: str, **defaults: Any) -> Source:
    """``parquet:PATH`` or ``'{source: parquet:PATH, size: 32}'``, as under ``data`` in a plan; `defaults` are
    parameters where the text gives none."""
    given = SPEC.convert(text, None, None)
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


Scores = dict[str, str]


def keep_weights(
    state: Mapping[str, Tensor],
    output: Path,
    meta: Mapping[str, str],
    *,
    checkpoint: Path,
    score: Callable[[], Scores] | None,
) -> None:
    """Scores, writes weights and scores at once, and drops the checkpoint.

    Killed while it scores, the checkpoint is there and what stood at `output` still stands: it may be what the training
    started from. Where the held-out data cannot be used the weights are written without scores, and the checkpoint
    stays as well.

    Raises:
        InputError: from `score`.
    """
    try:
        scores = {} if score is None else score()
    except InputError:
        _write(state, output, meta)
        raise
    _write(state, output, {**meta, **scores})
    checkpoint.unlink()


def _write(state: Mapping[str, Tensor], output: Path, meta: Mapping[str, str]) -> None:
    with replacing(output) as fresh:
        save_file(dict(state), fresh, dict(meta))
