"""Training states on disk, written whole."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakgauge.errors import InputError, require
from leakgauge.files import replacing


def fingerprint(*tensors: Tensor) -> str:
    """Hash of inputs and labels, bit by bit and in order: other data of the same size have another one."""
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
