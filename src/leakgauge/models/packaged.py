"""Trained weights that come with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from leakgauge.errors import did_you_mean, require

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
