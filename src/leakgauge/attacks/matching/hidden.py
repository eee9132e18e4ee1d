"""Further variables of a search: draws that were not sent, and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.registry import LABELS
from leakgauge.task import Batch, DataSpec
from leakgauge.tensors import Tensors

BUFFER = "buffer."
"""Variables of this prefix, from a canvas or a hidden part, stand for the buffer of the model that they name."""


@runtime_checkable
class Hidden(Protocol):
    """Unknown draws of an encoding (mixing weights, a bottleneck's ε) that are optimised with the examples.

    Its variables' names must not clash with the canvas's. Those that begin with `BUFFER` replace that
    buffer in the simulated client; the others `encode` uses.
    """

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        """First values in one restart, float64 on the CPU."""
        ...

    def encode(self, batch: Batch, variables: Tensors) -> Batch:
        """The candidate batch as the client would train on it, differentiable. Soft labels may have fewer columns
        than the model has outputs."""
        ...

    def penalty(self, variables: Tensors) -> Float[Tensor, ""]:
        """−log prior of the draws, scaled like the objective; it counts as part of the prior."""
        ...


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
