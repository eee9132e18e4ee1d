"""Label flipping, a server of Inverting Gradients' appendix; in a plan `server: reproduce.label_flip:LabelFlip`."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from leakgauge.attacks.recipes import Auto
from leakgauge.errors import require
from leakgauge.observation import Attack
from leakgauge.servers.imprint import classifier_of
from leakgauge.servers.server import Broadcast, Change
from leakgauge.task import Task


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
        negate: rows (and moved biases) change sign too.
        biases: whether biases move with their rows.
        then: the attack that reads the update, by simulating the flipped model.
    """

    shift: int = 1
    negate: bool = False
    biases: bool = True
    then: Attack = field(default_factory=Auto)

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        """Raises `InputError` where there is no linear classifier, or the rows stay as they are."""
        head, classes = classifier_of(task), task.data.classes
        moved = self.negate or self.shift % classes != 0
        require(moved, "shift", "leaves every row in its place", "give another one, or negate: true")
        state = {name: task.parameters[name].clone() for name in (head.weight, head.bias) if name is not None}
        for name, rows in state.items():
            if name == head.weight or self.biases:
                rows[:classes] = (-1.0 if self.negate else 1.0) * rows[:classes].roll(-self.shift, 0)
        return Broadcast(task.with_state(state), self.then, (Change.PARAMETERS,))
