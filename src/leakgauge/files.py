"""Writing files."""

from __future__ import annotations

from pathlib import Path

from leakgauge.errors import InputError


def write_whole(path: Path, text: str, mend: str = "free space, then write it again") -> Path:
    """Replaces a file at once, so that a reader or a kill never sees half of it.

    Raises:
        InputError: it cannot be written.
    """
    half = path.with_suffix(path.suffix + ".part")
    try:
        half.write_text(text, encoding="utf-8")
        half.replace(path)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise InputError("output", f"{path} cannot be written ({error.strerror})", mend) from error
    return path
