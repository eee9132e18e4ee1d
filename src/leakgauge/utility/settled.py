"""A defence whose changes to the network have been made."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakgauge.defenses import Defense
from leakgauge.defenses.defense import AttackerView
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors
from leakgauge.update import Update


@dataclass(frozen=True)
class Settled(Defense):
    """`inner` without its task stage: from the second round on, the parameters that it added have been trained."""

    inner: Defense

    @property
    def acts_on_examples(self) -> bool:
        return self.inner.acts_on_examples

    @property
    def acts_on_update(self) -> bool:
        return self.inner.acts_on_update

    def on_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        return self.inner.on_batch(batch, generator)

    @property
    def fits_to_data(self) -> bool:
        return self.inner.fits_to_data

    def for_batch(self, task: Task, batch: Batch) -> Defense:
        return Settled(self.inner.for_batch(task, batch))

    def on_example_gradients(self, per_example: Tensors, generator: torch.Generator) -> Tensors:
        return self.inner.on_example_gradients(per_example, generator)

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        return self.inner.on_update(tensors, generator)

    def attacker_view(self, update: Update, draw: torch.Generator | None) -> AttackerView:
        return self.inner.attacker_view(update, draw)
