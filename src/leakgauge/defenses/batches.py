"""Defences that train on mixtures of examples: MixUp and InstaHide."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from scipy.special import betaincinv
from torch import Tensor

from leakgauge.defenses.defense import Defense
from leakgauge.defenses.steps import DefenseStep, Mix
from leakgauge.errors import positive, require
from leakgauge.registry import DEFENSES
from leakgauge.task import Batch, Task


def soft_labels(labels: Tensor) -> Float[Tensor, "n classes"]:
    """Labels as distributions, in as many columns as the batch needs: a `Task` gives the outputs beyond no weight."""
    if labels.is_floating_point():
        return labels
    width = int(labels.max()) + 1 if len(labels) else 1
    return F.one_hot(labels, width).to(torch.get_default_dtype())


@DEFENSES.register("mixup", needs="several examples; one has nothing to be mixed with")
@dataclass(frozen=True, kw_only=True)
class MixUp(Defense):
    """x̃ᵢ = λxᵢ + (1−λ)x_π(i), labels alike, with a random permutation π of the client's batch and λ ~ Beta(α, α).

    Source: Zhang et al., *mixup*, ICLR 2018, algorithm of Fig. 1. π and λ are drawn once a round, over
    all of the client's examples, before local training.

    No guarantee. One example, or a fixed point of π, is sent unmixed: each of n with chance 1/n, so that a client of
    two is mixed every other time; and who knows the labels can undo the mixing, see the counter ``unmixing``.

    `alpha` is α: small ones mix little, 1 is uniform."""

    alpha: float = positive(1.0, "number, e.g. 1.0")

    def weights(self, examples: int, generator: torch.Generator) -> Float[Tensor, "n"]:
        """λ of each example, the same for all, float64: the inverse distribution function at a uniform draw."""
        draws = torch.rand(1, generator=generator, dtype=torch.float64)
        lam: Tensor = torch.from_numpy(betaincinv(self.alpha, self.alpha, draws.numpy()))
        return lam.expand(examples)

    def steps(self) -> tuple[DefenseStep, ...]:
        return (Mix(several=True),)

    def on_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        n = len(batch)
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


@DEFENSES.register("instahide", needs="centre: the mean that the model subtracts from the data")
@dataclass(frozen=True, kw_only=True)
class InstaHide(Defense):
    """x̃ᵢ = sᵢ ∘ Σⱼ wᵢⱼ·x_πⱼ(i) in model-input units, with a sign mask sᵢ ∈ {±1} per entry; labels mixed with w.

    Source: Huang et al., *InstaHide*, ICML 2020, Algorithm 1. k of the client's own examples are mixed, by random
    permutations (the first is the identity); the paper also mixes public ones in. The weights are uniform, scaled to
    sum to one, and drawn anew until none exceeds `largest`. Mask, weights and partners are fresh every round; the paper
    also encodes anew every epoch.

    The sign is taken of what the model sees, (x − mean) ÷ std; std cancels, so only the mean is asked for. The
    encoding leaves the data's raw range.

    No guarantee: broken from the encodings of a whole training set by Carlini et al., *Is Private Learning
    Possible with Instance Encoding?*, IEEE S&P 2021. Signs are no secret of a picture: ``|x̃|`` shows its
    outlines. One example alone is not mixed, only masked.

    Attributes:
        k: how many examples make one.
        largest: of the weights, in (1/k, 1]; 0.65 in the paper. Ignored for k = 1.
        centre: the data's mean per channel, as the model subtracts it (`DataSpec.mean`).
    """

    k: int = 2
    largest: float = 0.65
    centre: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        require(self.k > 0, "k", f"is {self.k}", "give how many examples are mixed, e.g. 2")
        # Near 1/k nearly every draw would be rejected.
        least = 1 / self.k + (1 - 1 / self.k) / 10
        fits = self.k == 1 or least - 1e-9 <= self.largest <= 1
        require(fits, "largest", f"is {self.largest}", f"give a weight from {least:.3g} to 1")

    def on_task(self, task: Task) -> Task:
        """The task of encodings, which lie as far on either side of the mean as examples do on one. Raises `InputError`
        where its mean is not `centre`, about which signs are hidden."""
        channels = max(len(task.data.mean), len(self.centre))
        ours, theirs = (torch.tensor(c * (channels if len(c) == 1 else 1)) for c in (self.centre, task.data.mean))
        same = ours.shape == theirs.shape and bool(torch.allclose(ours, theirs, atol=1e-6))
        require(same, "centre", f"is {self.centre}, the model subtracts {task.data.mean}", "make them agree")
        low, high = task.data.low, task.data.high
        mirrored = [2 * float(c) - edge for c in theirs for edge in (low, high)]
        return replace(task, data=replace(task.data, low=min(low, *mirrored), high=max(high, *mirrored)))

    def weights(self, examples: int, generator: torch.Generator) -> Float[Tensor, "n k"]:
        """Rows of positive weights that sum to one, float64."""
        rows: list[Tensor] = []
        while len(rows) < examples:
            row = torch.rand(self.k, generator=generator, dtype=torch.float64)
            row = row / row.sum()
            if self.k == 1 or float(row.max()) <= self.largest:
                rows.append(row)
        return torch.stack(rows)

    def steps(self) -> tuple[DefenseStep, ...]:
        return (Mix(several=True),)

    def on_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        n = len(batch)
        if not n:
            return batch
        weights = self.weights(n, generator)
        matrix = torch.zeros(n, n, dtype=torch.float64)
        for j in range(self.k):
            order = torch.randperm(n, generator=generator) if j else torch.arange(n)
            matrix[torch.arange(n), order] += weights[:, j]
        made = mixed(batch, matrix)
        mask = torch.randint(2, made.inputs.shape, generator=generator).to(made.inputs) * 2 - 1
        centre = made.inputs.new_tensor(self.centre).view(-1, *([1] * (made.inputs.ndim - 2)))
        return Batch(centre + mask * (made.inputs - centre), made.labels)
