"""Label flipping: the last layer's rows change classes, so that a trained model is wrong again."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from leakgauge.attacks.recipes import Auto
from leakgauge.errors import require
from leakgauge.observation import Attack
from leakgauge.registry import SERVERS
from leakgauge.servers.blocks import classifier_of
from leakgauge.servers.server import Broadcast, Change
from leakgauge.task import Task


@SERVERS.register("label-flip", needs="a last linear layer; a trained model")
@dataclass(frozen=True, kw_only=True)
class LabelFlip:
    """Class i gets the last layer's row of class (i + shift) mod classes: a confident model becomes confidently wrong.

    Source: Geiping et al., *Inverting Gradients*, NeurIPS 2020, the dishonest server of the appendix that permutes
    the last layer to make a trained model's gradients larger. An example that the model knew has ∂L/∂z ≈ 0
    before and of norm ≈ √2 after.
    No gain on an untrained model, where one assignment of rows is as good as another. The magnitude helps where
    noise, rounding or other examples cover the gradient; an attack by cosine on one exact gradient gains less.

    Attributes:
        shift: classes by which rows move; with `negate` 0 is best, since it makes the right class the least likely.
        permutation: class i gets the row of ``permutation[i]``; `shift` is then not used.
        negate: rows (and moved biases) change sign too.
        biases: whether biases move with their rows.
        then: the attack that reads the update, by simulating the flipped model.
    """

    shift: int = 1
    permutation: tuple[int, ...] | None = None
    negate: bool = False
    biases: bool = True
    then: Attack = field(default_factory=Auto)

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        """Raises `InputError` where there is no linear classifier, or the rows stay as they are."""
        del generator
        head, order = classifier_of(task), self._order(task)
        sign = -1.0 if self.negate else 1.0
        names = [head.weight] + ([head.bias] if head.bias is not None and self.biases else [])
        state = {}
        for name in names:
            rows = task.parameters[name].clone()
            rows[: len(order)] = sign * rows[order.to(rows.device)]
            state[name] = rows
        return Broadcast(task.with_state(state), self.then, (Change.PARAMETERS,))

    def _order(self, task: Task) -> torch.Tensor:
        classes = task.data.classes
        if self.permutation is not None:
            fits = sorted(self.permutation) == list(range(classes))
            require(fits, "permutation", f"{self.permutation} does not permute {classes} classes", "name each once")
            order = torch.tensor(self.permutation)
        else:
            order = (torch.arange(classes) + self.shift) % classes
        moved = self.negate or bool((order != torch.arange(classes)).any())
        field_name = "shift" if self.permutation is None else "permutation"
        require(moved, field_name, "leaves every row in its place", "give another one, or negate: true")
        return order
