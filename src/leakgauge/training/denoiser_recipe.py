"""How a denoiser is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from leakgauge.errors import require
from leakgauge.training.degradations import Degradation, Shuffled


@dataclass(frozen=True, kw_only=True)
class DenoiserRecipe:
    """Adam on L1 + `adversarial` × the discriminator's verdict, both networks with one learning rate.

    The generator minimises ``mean |D(x̃) − x| + λ·mean softplus(−d(D(x̃)))``, the discriminator ``mean softplus(−d(x))
    + mean softplus(d(D(x̃)))``, with d the logits: the losses of Goodfellow et al., 2014, in their non-saturating form.

    Source: ROG, section 4, which names the two losses and not their weights. Differs: lr is 5e-4, falling to 0 along a
    cosine, where the paper has 1e-5 throughout, because a run of some thousand steps would not arrive; Adam's β₁ is .5
    (Radford et al., 2016).

    Attributes:
        steps: updates of the generator.
        adversarial: λ. 0 trains on L1 alone, which leaves the pictures blurred.
        alone: share of the steps in which L1 acts alone, before the discriminator comes in.
        every: steps between two checkpoints; part of the recipe, because each such leg draws from its own generator.
        bfloat16: convolutions in bfloat16.
    """

    steps: int = 3000
    batch_size: int = 32
    lr: float = 5e-4
    adversarial: float = 0.01
    alone: float = 0.2
    every: int = 250
    bfloat16: bool = False
    degradation: Degradation = field(default_factory=Shuffled)

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "lr", "every"):
            require(getattr(self, name) > 0, name, f"is {getattr(self, name)}", "give a positive number")
        require(self.adversarial >= 0, "adversarial", f"is {self.adversarial}", "give a number ≥ 0")
        require(0 <= self.alone <= 1, "alone", f"is {self.alone}", "give a share of the steps, in [0, 1]")

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        return self.lr * (1 + math.cos(math.pi * step / self.steps)) / 2

    def weight(self, step: int) -> float:
        """λ of a step, counted from 0."""
        return self.adversarial if step >= self.alone * self.steps else 0.0
