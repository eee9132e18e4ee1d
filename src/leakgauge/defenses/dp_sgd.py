"""DP-SGD: every example's gradient is clipped, and noise added to their sum."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakgauge.defenses.clip import ClipExamples
from leakgauge.defenses.defense import AttackerView, Defense
from leakgauge.defenses.gaussian import normal_like, require_bound, require_multiplier
from leakgauge.defenses.likelihood import gaussian_view
from leakgauge.registry import DEFENSES
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import Update, UpdateKind


@DEFENSES.register("dp-sgd", needs="a model whose examples do not mix (no BatchNorm in train mode)")
@dataclass(frozen=True, kw_only=True)
class DPSGD(Defense):
    """(Σᵢ gᵢ·min(1, C/‖gᵢ‖) + N(0, (zC)²I)) / n in place of each gradient, ‖·‖ over all tensors together.

    Source: Abadi et al., *Deep Learning with Differential Privacy*, CCS 2016, Algorithm 1. The noise is drawn once
    a step, so once a local step under FedAvg. What it guarantees depends on rounds and sampling:
    `leakgauge.privacy.guarantee`.

    n is the number of examples in the step. Opacus divides by the expected batch size instead, which differs
    where batches are sampled one example at a time.

    Attributes:
        noise_multiplier: z, the noise on the sum in units of `norm`; positive. Without noise it is `clip-examples`.
        norm: C, the bound of each example's gradient; noise without it would bound nothing.
    """

    noise_multiplier: float
    norm: float

    def __post_init__(self) -> None:
        require_bound(self.norm)
        require_multiplier(self.noise_multiplier, otherwise="clip-examples")

    @property
    def acts_on_examples(self) -> bool:
        return True

    def on_example_gradients(self, per_example: Tensors, generator: torch.Generator) -> Tensors:
        """Clips each row of the stacked gradients ``(n, *shape)`` and adds one draw N(0, (zC/n)²) to all of them,
        so that it is in their mean once."""
        clipped = self.without_noise().on_example_gradients(per_example, generator)
        return map_tensors(lambda g: g + self.noise_on_mean(g.shape[0]) * normal_like(g[:1], generator), clipped)

    def noise_on_mean(self, examples: int) -> float:
        """Standard deviation on the mean gradient of one step."""
        return self.noise_multiplier * self.norm / max(examples, 1)

    def without_noise(self) -> Defense:
        return ClipExamples(norm=self.norm)

    def attacker_view(self, update: Update, draw: torch.Generator | None) -> AttackerView:
        """The noise of one gradient where the update says how many examples made it. The clipping is in the example
        stage, which a simulation runs; so is the noise for one who knows the draw, who is told nothing here.

        How noise of single steps adds up in a delta depends on the local training, which is not on the wire.
        """
        count = update.header.example_count
        if draw is not None or update.header.kind is not UpdateKind.GRADIENT or not count:
            return AttackerView()
        return gaussian_view(update, map_tensors(lambda t: t.new_tensor(self.noise_on_mean(count)), update.tensors))
