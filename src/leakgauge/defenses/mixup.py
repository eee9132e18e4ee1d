"""MixUp: training on convex combinations of pairs of examples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from scipy.special import betaincinv
from torch import Tensor

from leakgauge.defenses.defense import Defense
from leakgauge.errors import require
from leakgauge.registry import DEFENSES
from leakgauge.task import Batch


def soft_labels(labels: Tensor, classes: int = 0) -> Float[Tensor, "n classes"]:
    """Labels as distributions: one-hot of indices, soft ones as they are.

    Without `classes`, as many columns as the batch needs; a `Task` gives the outputs beyond no weight.
    """
    if labels.is_floating_point():
        return labels
    width = classes or (int(labels.max()) + 1 if len(labels) else 1)
    return F.one_hot(labels, width).to(torch.get_default_dtype())


@DEFENSES.register("mixup", needs="several examples; one has nothing to be mixed with")
@dataclass(frozen=True, kw_only=True)
class MixUp(Defense):
    """x̃ᵢ = λxᵢ + (1−λ)x_π(i), labels alike, with a random permutation π of the client's batch and λ ~ Beta(α, α).

    Source: Zhang et al., *mixup*, ICLR 2018, algorithm of Fig. 1. π and λ are drawn once a round, over
    all of the client's examples, before local training.

    No guarantee. One example, or a fixed point of π, is sent unmixed: each of n with chance 1/n, so that a client of
    two is mixed every other time; and who knows the labels can undo the mixing, see the counter ``unmixing``.

    Attributes:
        alpha: α; small ones mix little, 1 is uniform.
        per_example: draw a λ for each example rather than one for the batch.
    """

    alpha: float = 1.0
    per_example: bool = False

    def __post_init__(self) -> None:
        require(self.alpha > 0, "alpha", f"is {self.alpha}", "give a positive number, e.g. 1.0")

    def weights(self, examples: int, generator: torch.Generator) -> Float[Tensor, "n"]:
        """λ of each example, float64: the inverse distribution function at uniform draws."""
        draws = torch.rand(examples if self.per_example else 1, generator=generator, dtype=torch.float64)
        lam: Tensor = torch.from_numpy(betaincinv(self.alpha, self.alpha, draws.numpy()))
        return lam.expand(examples)

    def on_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        n = len(batch)
        if not n:
            return batch
        order = torch.randperm(n, generator=generator)
        lam = self.weights(n, generator)
        matrix = torch.diag(lam)
        matrix[torch.arange(n), order] += 1 - lam
        return mixed(batch, matrix)


def mixed(batch: Batch, matrix: Float[Tensor, "m n"]) -> Batch:
    """Each example Σⱼ matrix[i, j]·xⱼ, with labels alike."""
    matrix = matrix.to(batch.inputs)
    soft = soft_labels(batch.labels).to(batch.inputs)
    return Batch(torch.einsum("mn,n...->m...", matrix, batch.inputs), matrix @ soft)
