"""What the hunt once found and what has been mended since: each must hold for good. The newest last."""

from __future__ import annotations

from hunt.names import *  # noqa: F403

REGRESSIONS: dict[str, Pair] = {}  # noqa: F405
