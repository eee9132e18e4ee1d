"""How an audit's database is opened, and what its trouble is called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DatabaseError, OperationalError

from leakgauge.errors import InputError

FILE = "audit.sqlite"


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Turns database trouble into one line. What was stored before stays."""
    try:
        yield
    except OperationalError as error:
        reason = str(error.orig)
        if "full" in reason or "disk I/O" in reason:
            raise InputError(
                "output",
                f"the disk of {folder} is full ({reason})",
                "free space and run the same command: finished trials are kept",
            ) from error
        if "no such" in reason or "decode" in reason:
            raise damaged(folder, reason) from error
        raise InputError(
            "output", f"{folder} cannot be written ({reason})", "give a folder that you may write to"
        ) from error
    except DatabaseError as error:
        if "malformed" in str(error.orig):
            raise damaged(folder, str(error.orig)) from error
        raise InputError("output", f"{folder / FILE} is not an audit ({error.orig})", "give another folder") from error
    except (TypeError, KeyError, ValueError) as error:  # what a value of another type makes of a row
        if isinstance(error, InputError):
            raise
        raise damaged(folder, f"{type(error).__name__}: {error}") from error


def damaged(folder: Path, reason: str) -> InputError:
    hint = "take it from a backup, or run the audit anew (--anew); nothing is read from a store that is not whole"
    return InputError("output", f"{folder / FILE} is damaged, or of another version of leakgauge ({reason})", hint)
