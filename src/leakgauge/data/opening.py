"""A source by the name that a plan gives it."""

from __future__ import annotations

from typing import Any, cast

from leakgauge.data.source import Source
from leakgauge.errors import InputError, did_you_mean, require
from leakgauge.registry import DATA, typed


def open_source(text: str, **options: Any) -> Source:
    """The source that a plan names.

    One of ``samples``, ``folder:PATH``, ``npz:PATH``, ``parquet:PATH``, ``hf:NAME``, ``parts:PATH`` and
    ``your_package.module:function``; `options` become the constructor's keywords, e.g. ``size=32``.

    Raises:
        InputError: no such source or option (the hint is the nearest one), or the source's own complaint.
    """
    require(isinstance(text, str), "data.source", f"is {text!r}", "name a source, e.g. samples or folder:PATH")
    kind, colon, path = text.partition(":")
    entries = {entry.name: entry for entry in DATA}
    if kind in entries:
        entry = entries[kind]
        takes_path = "path" in entry.parameters
        if takes_path and not path:
            raise InputError("data.source", f"'{text}' names no place", f"write {kind}:PATH")
        if colon and not takes_path:
            raise InputError("data.source", f"'{kind}' takes no path", f"write {kind}")
        options |= {"path": path} if takes_path else {}
    elif colon and "." in kind:
        entry = DATA[text]
    else:
        raise InputError("data.source", f"unknown source '{kind}'", did_you_mean(kind, entries))
    for option, value in options.items():
        if option not in entry.parameters:
            raise InputError(f"data.{option}", f"is no option of '{kind}'", did_you_mean(option, entry.parameters))
        options[option] = typed(entry.build, option, value, f"data.{option}")
    return cast(Source, entry.build(**options))
