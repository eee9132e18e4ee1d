"""An attack that fails."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakgauge.reconstruction import Reconstruction, Status


@dataclass(frozen=True)
class Raises:
    """Raises whatever it is given."""

    def reconstruct(self, observation, generator, **options):
        raise RuntimeError("no luck")


@dataclass(frozen=True)
class Nonsense:
    """Gives back what is no answer: `kind` is shape, none or nan."""

    kind: str

    def reconstruct(self, observation, generator, **options):
        shape = {
            "shape": (1, 2, 3),
            "none": (0, *observation.task.data.shape),
            "nan": (1, *observation.task.data.shape),
        }
        inputs = torch.full(shape[self.kind], float("nan") if self.kind == "nan" else 0.5)
        return Reconstruction(inputs, None, Status.CONVERGED)
