"""Measures what a federated-learning update reveals about the client's data.

``import leakgauge as lg`` gives the nouns that both sides of the wire share (`lg.Task`, `lg.Update`, …), the short ways
in (`lg.audit`, `lg.attack`, `lg.inspect`, `lg.frontier`), and the packages of parts (`lg.clients`, `lg.defenses`,
`lg.attacks`, `lg.models`, …).
"""

# `python -m leakgauge` puts the working directory first on the path, where a file called typing.py may lie beside a
# received model. No import but of modules that Python has loaded by now may stand above this.
import os
import sys

_RUN = sys.argv[:1] == ["-m"] and "leakgauge" in sys.orig_argv[-len(sys.argv)] and not sys.flags.safe_path
if _RUN and sys.path[0] != os.path.dirname(os.path.dirname(__file__)):
    del sys.path[0]

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from leakgauge.compute import Budget, Compute
    from leakgauge.draws import Draws
    from leakgauge.errors import InputError
    from leakgauge.face import attack, audit, frontier, inspect
    from leakgauge.observation import Attack, Knowledge, Observation, Reconstruction, Status
    from leakgauge.step.parts import (
        Categories,
        Classes,
        Image,
        Labels,
        Mask,
        NextToken,
        Numbers,
        Series,
        Text,
        TimeToEvent,
        Values,
        Volume,
    )
    from leakgauge.task import Batch, DataSpec, Mode, Task
    from leakgauge.update import Update, UpdateHeader, UpdateKind

__all__ = [
    "Attack",
    "Batch",
    "Budget",
    "Categories",
    "Classes",
    "Compute",
    "DataSpec",
    "Draws",
    "Image",
    "InputError",
    "Knowledge",
    "Labels",
    "Mask",
    "Mode",
    "NextToken",
    "Numbers",
    "Observation",
    "Reconstruction",
    "Series",
    "Status",
    "Task",
    "Text",
    "TimeToEvent",
    "Update",
    "UpdateHeader",
    "UpdateKind",
    "Values",
    "Volume",
    "__version__",
    "attack",
    "audit",
    "frontier",
    "inspect",
]

_PARTS = ("attacks", "clients", "data", "defenses", "metrics", "models", "servers")
"""Packages of parts."""

_HOMES = {
    "compute": ("Budget", "Compute"),
    "draws": ("Draws",),
    "errors": ("InputError",),
    "face": ("attack", "audit", "frontier", "inspect"),
    "observation": ("Attack", "Knowledge", "Observation", "Reconstruction", "Status"),
    "step.parts": (
        "Categories",
        "Image",
        "Numbers",
        "Series",
        "Text",
        "Volume",
        "Classes",
        "Labels",
        "Mask",
        "NextToken",
        "TimeToEvent",
        "Values",
    ),
    "task": ("Batch", "DataSpec", "Mode", "Task"),
    "update": ("Update", "UpdateHeader", "UpdateKind"),
}


def __getattr__(name: str) -> Any:
    # Looked up on first use, so that `leakgauge --help` does not wait for torch.
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"leakgauge.{home}"), name)
    if name in _PARTS:
        return importlib.import_module(f"leakgauge.{name}")
    raise AttributeError(f"module 'leakgauge' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, *_PARTS])
