"""Training states and weights on disk, written whole."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from leakgauge.errors import InputError, require
from leakgauge.files import replacing


def fingerprint(*tensors: Tensor) -> str:
    """Of inputs and labels, bit by bit and in order: other data of the same size have another one."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def save_checkpoint(path: Path, identity: str, state: dict[str, Any]) -> None:
    """Replaces the file at once, so that a run killed while it writes loses nothing. `identity` says whose it is.

    Raises:
        InputError: it cannot be written.
    """
    try:
        with replacing(path) as fresh:
            torch.save({"identity": identity, **state}, fresh)
    except (OSError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError("output", f"{path} cannot be written ({reason})", "free space, then run again") from error


def read_checkpoint(path: Path | None, identity: str) -> dict[str, Any] | None:
    """What was saved; `None` where there is no file.

    Raises:
        InputError: it cannot be read, or belongs to a run of another `identity`.
    """
    if path is None or not path.exists():
        return None
    try:
        state = torch.load(path, weights_only=True)
    except (OSError, RuntimeError, EOFError, LookupError, ValueError, pickle.UnpicklingError) as error:
        raise InputError(
            "checkpoint",
            f"{path} cannot be read ({str(error).partition(chr(10))[0] or type(error).__name__})",
            "remove it to start again",
        ) from error
    require(
        isinstance(state, dict) and state.get("identity") == identity,
        "checkpoint",
        f"{path} belongs to a run with other settings or data",
        "remove it, or give another output",
    )
    return dict(state)


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
