"""Modules of a user's own, which a plan or an option names."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType


def own_module(name: str) -> ModuleType:
    """The module of that name, from what is installed or else from the working directory.

    The working directory is searched last, and only from the first call on: a file that lies beside a received
    model is never imported in place of an installed package, and not at all unless the user names a module.

    Raises:
        ModuleNotFoundError: there is none, or a module that it imports is missing.
    """
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    return importlib.import_module(name)
