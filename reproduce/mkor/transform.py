"""Random transformations of the pictures that a client trains on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.defenses import Defense
from leakgauge.defenses.steps import DefenseStep, Mix
from leakgauge.errors import InputError, require
from leakgauge.task import Batch, Task


def _uniform(generator: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))


def _whole(generator: torch.Generator, low: int, high: int) -> int:
    """Uniform from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=generator))


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
