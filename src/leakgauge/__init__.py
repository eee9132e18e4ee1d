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
    from leakgauge.compute import Budget as Budget
    from leakgauge.compute import Compute as Compute
    from leakgauge.draws import Draws as Draws
    from leakgauge.errors import InputError as InputError
    from leakgauge.face import attack as attack
    from leakgauge.face import audit as audit
    from leakgauge.face import frontier as frontier
    from leakgauge.face import inspect as inspect
    from leakgauge.observation import Attack as Attack
    from leakgauge.observation import Knowledge as Knowledge
    from leakgauge.observation import Observation as Observation
    from leakgauge.observation import Reconstruction as Reconstruction
    from leakgauge.observation import Status as Status
    from leakgauge.step.parts import Categories as Categories
    from leakgauge.step.parts import Classes as Classes
    from leakgauge.step.parts import Image as Image
    from leakgauge.step.parts import Labels as Labels
    from leakgauge.step.parts import Mask as Mask
    from leakgauge.step.parts import NextToken as NextToken
    from leakgauge.step.parts import Numbers as Numbers
    from leakgauge.step.parts import Series as Series
    from leakgauge.step.parts import Text as Text
    from leakgauge.step.parts import TimeToEvent as TimeToEvent
    from leakgauge.step.parts import Values as Values
    from leakgauge.step.parts import Volume as Volume
    from leakgauge.task import Batch as Batch
    from leakgauge.task import DataSpec as DataSpec
    from leakgauge.task import Mode as Mode
    from leakgauge.task import Task as Task
    from leakgauge.update import Update as Update
    from leakgauge.update import UpdateHeader as UpdateHeader
    from leakgauge.update import UpdateKind as UpdateKind

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

__all__ = sorted(["__version__", *(name for names in _HOMES.values() for name in names)])


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
