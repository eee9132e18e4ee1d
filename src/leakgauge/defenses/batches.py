"""Defences that train on other examples: transformed pictures, MixUp and InstaHide."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Float
from scipy.special import betaincinv
from torch import Tensor

from leakgauge.defenses.defense import Defense
from leakgauge.defenses.steps import DefenseStep, Mix
from leakgauge.errors import InputError, require
from leakgauge.registry import DEFENSES
from leakgauge.task import Batch, Task


def _uniform(generator: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))


def _whole(generator: torch.Generator, low: int, high: int) -> int:
    """Uniform from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=generator))


@DEFENSES.register("transform", needs="images")
@dataclass(frozen=True, kw_only=True)
class Transform(Defense):
    """Random shift, mirror image, quarter turns and light, in this order, before the gradient is computed; one draw an
    example, which does not depend on the picture.

    In the manner of Gao et al., *Privacy-preserving Collaborative Learning with Automatic Transformation Search*,
    CVPR 2021, without its search: the policy is given, not chosen for this data and model.

    No guarantee. An attack that recovers what the gradient was computed from recovers the transformed picture,
    on which a person or object is as easily recognised; scores that compare pixel by pixel with the
    original (PSNR, SSIM) fall for the transformation's sake alone. Labels are not touched.

    Attributes:
        shift: pixels in each direction, at most; the edge is repeated.
        flip: mirror left and right in half of the cases. Keeps the label of photos, not of digits or text.
        turns: by 0, 90, 180 or 270 degrees; a picture that is not square by 0 or 180.
        brightness, contrast: largest change, each from 0 to 1: contrast times 1 ± `contrast` about the picture's mean,
            brightness plus ± `brightness` of the range, clamped.
        low, high: the data's range.
    """

    shift: int = 4
    flip: bool = True
    turns: bool = False
    brightness: float = 0.2
    contrast: float = 0.2
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        require(self.shift >= 0, "shift", f"is {self.shift}", "give a number of pixels ≥ 0")
        for name, value in (("brightness", self.brightness), ("contrast", self.contrast)):
            require(0 <= value <= 1, name, f"is {value}", "give a number from 0 to 1")
        require(self.high > self.low, "high", "must exceed low", "give the data's range")
        does = self.shift or self.flip or self.turns or self.brightness or self.contrast
        require(bool(does), "policy", "is empty", "give a transformation, or write none")

    def on_task(self, task: Task) -> Task:
        """The task itself. Raises `InputError` where light would be clamped to another range than the data's."""
        if (self.brightness or self.contrast) and (self.low, self.high) != (task.data.low, task.data.high):
            stated, own = f"{self.low:g} to {self.high:g}", f"{task.data.low:g} to {task.data.high:g}"
            hint = f"give low: {task.data.low:g} and high: {task.data.high:g}"
            raise InputError("transform", f"clamps to {stated}, the data have {own}", hint)
        return task

    def steps(self) -> tuple[DefenseStep, ...]:
        return (Mix(several=False),)

    def on_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Raises `InputError` where the examples are no pictures."""
        shape = tuple(batch.inputs.shape[1:])
        require(len(shape) == 3, "defenses", f"transform needs pictures, not examples of shape {shape}", "leave it out")
        images = [self.changed(image, generator) for image in batch.inputs]
        return Batch(torch.stack(images) if images else batch.inputs, batch.labels)

    def changed(self, image: Float[Tensor, "c h w"], generator: torch.Generator) -> Float[Tensor, "c h w"]:
        """One picture after a draw."""
        height, width = image.shape[-2:]
        if self.shift:
            rows, columns = (_whole(generator, -self.shift, self.shift) for _ in range(2))
            row = (torch.arange(height, device=image.device) - rows).clamp(0, height - 1)
            column = (torch.arange(width, device=image.device) - columns).clamp(0, width - 1)
            image = image[:, row][:, :, column]
        if self.flip and _whole(generator, 0, 1):
            image = image.flip(-1)
        if self.turns:
            turns = _whole(generator, 0, 3)
            image = image.rot90(turns if height == width else turns // 2 * 2, (-2, -1))
        if self.brightness or self.contrast:
            factor = _uniform(generator, 1 - self.contrast, 1 + self.contrast)
            step = _uniform(generator, -self.brightness, self.brightness) * (self.high - self.low)
            middle = image.mean()
            image = (middle + factor * (image - middle) + step).clamp(self.low, self.high)
        return image


def soft_labels(labels: Tensor) -> Float[Tensor, "n classes"]:
    """Labels as distributions: one-hot of indices, soft ones as they are.

    As many columns as the batch needs; a `Task` gives the outputs beyond no weight.
    """
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

    def steps(self) -> tuple[DefenseStep, ...]:
        return (Mix(several=True),)

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


@DEFENSES.register("instahide", needs="centre: the mean that the model subtracts from the data")
@dataclass(frozen=True, kw_only=True)
class InstaHide(Defense):
    """x̃ᵢ = sᵢ ∘ Σⱼ wᵢⱼ·x_πⱼ(i) in model-input units, with a sign mask sᵢ ∈ {±1} per entry; labels mixed with w.

    Source: Huang et al., *InstaHide*, ICML 2020, Algorithm 1. k examples are mixed: the client's own by random
    permutations (the first is the identity), and ``public_share`` of the k from `public`, where that is given. The
    weights are uniform, scaled to sum to one, and drawn anew until none exceeds `largest`. Public pictures have
    no label: the private weights are scaled to sum to one for the label. EntryMask, weights and partners are fresh
    every round; the paper also encodes anew every epoch.

    The sign is taken of what the model sees, (x − mean) ÷ std; std cancels, so only the mean is asked for. The
    encoding leaves the data's raw range.

    No guarantee: broken from the encodings of a whole training set by Carlini et al., *Is Private Learning
    Possible with Instance Encoding?*, IEEE S&P 2021. Signs are no secret of a picture: ``|x̃|`` shows its
    outlines. One example alone is not mixed, only masked.

    Attributes:
        k: how many examples make one.
        public_share: how many of them are public, at most k − 1; needs `public`.
        largest: of the weights, in (1/k, 1]; 0.65 in the paper. Ignored for k = 1.
        centre: the data's mean per channel, as the model subtracts it (`DataSpec.mean`).
        public: raw public examples; only code can give them.
    """

    k: int = 2
    public_share: int = 0
    largest: float = 0.65
    centre: tuple[float, ...] = (0.0,)
    public: Float[Tensor, "m *shape"] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        require(self.k > 0, "k", f"is {self.k}", "give how many examples are mixed, e.g. 2")
        require(0 <= self.public_share < self.k, "public_share", f"is {self.public_share}", f"give 0 to {self.k - 1}")
        # Near 1/k nearly every draw would be rejected.
        least = 1 / self.k + (1 - 1 / self.k) / 10
        require(
            self.k == 1 or least - 1e-9 <= self.largest <= 1,
            "largest",
            f"is {self.largest}",
            f"give a weight from {least:.3g} to 1",
        )
        require(
            self.public_share == 0 or (self.public is not None and len(self.public) > 0),
            "public",
            "is missing, and public_share asks for public examples",
            "give raw examples, or public_share: 0",
        )

    def on_task(self, task: Task) -> Task:
        """The task as it is. Raises `InputError` where its mean is not `centre`, about which signs are hidden."""
        channels = max(len(task.data.mean), len(self.centre))
        ours, theirs = (torch.tensor(c * (channels if len(c) == 1 else 1)) for c in (self.centre, task.data.mean))
        same = ours.shape == theirs.shape and bool(torch.allclose(ours, theirs, atol=1e-6))
        require(same, "centre", f"is {self.centre}, the model subtracts {task.data.mean}", "make them agree")
        return task

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
        n, private = len(batch), self.k - self.public_share
        if not n:
            return batch
        weights = self.weights(n, generator)
        matrix = torch.zeros(n, n, dtype=torch.float64)
        for j in range(private):
            order = torch.randperm(n, generator=generator) if j else torch.arange(n)
            matrix[torch.arange(n), order] += weights[:, j]
        inputs = mixed(Batch(batch.inputs, soft_labels(batch.labels)), matrix).inputs
        labels = mixed(batch, matrix / matrix.sum(1, keepdim=True)).labels
        if self.public is not None and self.public_share:
            if self.public.shape[1:] != batch.inputs.shape[1:]:
                shapes = f"are of shape {tuple(self.public.shape[1:])}, the client's {tuple(batch.inputs.shape[1:])}"
                raise InputError("public", shapes, "give public examples of the same shape")
            chosen = torch.randint(len(self.public), (n, self.public_share), generator=generator)
            lent = self.public.to(inputs)[chosen]
            inputs = inputs + torch.einsum("nk,nk...->n...", weights[:, private:].to(inputs), lent)
        mask = torch.randint(2, inputs.shape, generator=generator).to(inputs) * 2 - 1
        centre = inputs.new_tensor(self.centre).view(-1, *([1] * (inputs.ndim - 2)))
        return Batch(centre + mask * (inputs - centre), labels)
