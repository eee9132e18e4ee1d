"""Weights from files and from the package."""

from __future__ import annotations

import pickle
from importlib.resources import files
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from leakgauge.errors import InputError, did_you_mean, require


def read_state(path: Path, field: str) -> dict[str, Tensor]:
    """A state dict from safetensors, or from a torch checkpoint read weights-only (no code is run).

    Raises:
        InputError: missing, truncated, or a pickle that holds more than tensors.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            field, f"weights {path.name} hold more than tensors", "save module.state_dict() alone, or use safetensors"
        ) from error
    except (
        OSError,
        SafetensorError,
        RuntimeError,
        EOFError,
        ValueError,
        # What torch's reader raises on text and on cut files.
        KeyError,
        IndexError,
        AttributeError,
        TypeError,
        AssertionError,
    ) as error:
        raise InputError(
            field,
            f"weights {path.name} cannot be read ({str(error).partition(chr(10))[0] or type(error).__name__})",
            "give a state dict",
        ) from error
    require(
        isinstance(state, dict) and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items()),
        field,
        f"weights {path.name} are not a state dict",
        "save module.state_dict()",
    )
    return dict(state)


def load_weights(module: nn.Module, path: Path, field: str) -> None:
    """Loads a state dict; every name and shape must agree."""
    state, own = read_state(path, field), module.state_dict()
    wrong = [f"missing {k}" for k in own if k not in state] + [f"unknown {k}" for k in state if k not in own]
    wrong += [f"shape of {k}" for k in own if k in state and own[k].shape != state[k].shape]
    require(
        not wrong, field, f"weights {path.name} do not fit: {', '.join(wrong[:6])}", "give the weights of this model"
    )
    module.load_state_dict(state)


PREFIX = "packaged:"


def packaged_names() -> tuple[str, ...]:
    """All of them, e.g. ``resnet20-cifar10``."""
    return tuple(sorted(path.stem for path in _folder().glob("*.safetensors")))


def packaged(name: str, field: str = "weights") -> Path:
    """The file of a name.

    Raises:
        InputError: no such weights; names `field`.
    """
    known = packaged_names()
    require(name in known, field, f"no packaged weights '{name}'", did_you_mean(name, known))
    return _folder() / f"{name}.safetensors"


def weights_path(text: str, field: str = "weights") -> Path:
    """``packaged:NAME`` or a path, as plans write it."""
    return packaged(text.removeprefix(PREFIX), field) if text.startswith(PREFIX) else Path(text)


def _folder() -> Path:
    return Path(str(files("leakgauge"))) / "weights"
