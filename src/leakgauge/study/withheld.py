"""Names of examples that are not to be kept."""

from __future__ import annotations

import hashlib


def withheld_name(name: str) -> str:
    """A short hash in place of a file's name, the same in every audit, so that two audits can be compared.

    Whoever can guess the name can check the guess: names that are themselves secrets should be changed in the data.
    """
    return f"#{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:12]}"
