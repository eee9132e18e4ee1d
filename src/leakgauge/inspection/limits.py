"""Limits of the rules' statistics, calibrated on honest models."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from leakgauge.errors import InputError, require


@dataclass(frozen=True, kw_only=True)
class Limits:
    """From which statistic on a rule alarms.

    Attributes:
        limits: rule name to limit, > 0.
        made_by: the command that measured them.
        models: on how many honest models.
    """

    limits: Mapping[str, float]
    made_by: str
    models: int

    def __post_init__(self) -> None:
        for rule, limit in self.limits.items():
            require(math.isfinite(limit) and limit > 0, f"limits.{rule}", f"is {limit}", "give a positive number")

    @staticmethod
    def packaged() -> Limits:
        """The ones that ship with the package."""
        return _read(files(__package__).joinpath("limits.json").read_text(encoding="utf-8"), "limits.json")

    @staticmethod
    def read(path: Path) -> Limits:
        """From a file of the same form: ``{"limits": {rule: number}, "made_by": command, "models": n}``."""
        try:
            return _read(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError("limits", f"{path} cannot be read", "give a JSON file of limits") from error

    def to_json(self) -> str:
        """The file's text."""
        found = {"limits": dict(sorted(self.limits.items())), "made_by": self.made_by, "models": self.models}
        return json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _read(text: str, where: str) -> Limits:
    hint = 'write {"limits": {rule: number}, "made_by": command, "models": n}'
    try:
        found: Any = json.loads(text)
        limits = {str(rule): float(limit) for rule, limit in found["limits"].items()}
        return Limits(limits=limits, made_by=str(found["made_by"]), models=int(found["models"]))
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError("limits", f"{where} is not a file of limits", hint) from error
