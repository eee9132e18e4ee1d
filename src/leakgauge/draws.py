"""Randomness as a value: whoever holds the draws can repeat them."""

import hashlib
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Draws:
    """The client's random choices in one round (order, noise, dropout).

    Knowing a mechanism is not knowing its draws: `Knowledge.defense` is the first, `Knowledge.draws`
    the second. Each stage has its own stream, so that adding a stage does not change the others."""

    seed: int

    @staticmethod
    def sample(generator: torch.Generator) -> "Draws":
        return Draws(int(torch.randint(2**62, (), generator=generator)))

    def generator(self, stage: str, index: int = 0) -> torch.Generator:
        """A fresh CPU generator for the `index`-th use in `stage`; the same each time it is asked for."""
        return torch.Generator().manual_seed(self._seed(stage, index))

    def of(self, party: str, index: int) -> "Draws":
        """Draws of their own for one of several parties, such as the clients of a cohort: no two share a stream."""
        return Draws(self._seed(party, index))

    def _seed(self, name: str, index: int) -> int:
        digest = hashlib.sha256(f"{self.seed}/{name}/{index}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 2
