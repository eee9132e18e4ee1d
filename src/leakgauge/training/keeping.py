"""Trained weights are written whole, once they are scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from leakgauge.errors import InputError
from leakgauge.files import replacing

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
