"""Further variables of a search: draws that were not sent, and labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.registry import LABELS
from leakgauge.tensors import Tensors

BUFFER = "buffer."
"""Variables of this prefix, from a canvas or a hidden part, stand for the buffer of the model that they name."""


def buffers_in(variables: Tensors) -> Tensors:
    """Buffers that variables stand for, by their names in the model."""
    return {name.removeprefix(BUFFER): value for name, value in variables.items() if name.startswith(BUFFER)}


@LABELS.register("joint")
@dataclass(frozen=True)
class JointSoftLabels:
    """Labels are optimised together with the examples, as logits through a soft-max (DLG).

    The label returned is the arg-max of the *optimised* logits, never of the start.

    Attributes:
        uniform: logits start as U(0, 1), else as N(0, 1).
    """

    uniform: bool = False

    def start(self, examples: int, classes: int, generator: torch.Generator) -> Float[Tensor, "n classes"]:
        """First logits."""
        draw = torch.rand if self.uniform else torch.randn
        return draw((examples, classes), generator=generator, dtype=torch.float64)
