"""What the report shows of one example."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A true image and what an attack made of it, as PNG files; `slot` indexes the trial's lists of scores."""

    name: str
    slot: int
    original: bytes | None
    reconstruction: bytes | None
