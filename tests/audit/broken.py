"""An attack that fails."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Raises:
    """Raises whatever it is given."""

    def reconstruct(self, observation, generator, **options):
        raise RuntimeError("no luck")
