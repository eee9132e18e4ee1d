"""A training run on disk, replaced whole after each round."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakgauge.errors import InputError, require
from leakgauge.files import replacing


def save_checkpoint(path: Path, identity: str, state: dict[str, Tensor], records: list[Any]) -> None:
    """Replaces the file at once: a reader or a kill never sees half of it.

    Raises:
        InputError: it cannot be written.
    """
    try:
        with replacing(path) as fresh:
            torch.save({"identity": identity, "state": state, "records": records}, fresh)
    except (OSError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            "output", f"{path} cannot be written ({reason})", "free space, then run the same command"
        ) from error


def load_checkpoint(path: Path, identity: str) -> tuple[dict[str, Tensor], list[Any]]:
    """State and records of the run called `identity`.

    Raises:
        InputError: it cannot be read, or belongs to another run.
    """
    try:
        found = torch.load(path, weights_only=True)
    except (OSError, RuntimeError, EOFError, LookupError, ValueError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError("checkpoint", f"{path} cannot be read ({reason})", "remove it to start again") from error
    require(
        isinstance(found, dict) and found.get("identity") == identity,
        "checkpoint",
        f"{path} belongs to a run with other settings",
        "remove it, or give another output",
    )
    return found["state"], found["records"]
