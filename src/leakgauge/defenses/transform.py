"""Transforming the pictures before training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.defenses.defense import Defense
from leakgauge.defenses.steps import DefenseStep, Mix
from leakgauge.errors import InputError, require
from leakgauge.registry import DEFENSES
from leakgauge.task import Batch, Task


@runtime_checkable
class Transformation(Protocol):
    """A change of one picture that a label survives. The draw does not depend on the picture."""

    def __call__(self, image: Float[Tensor, "c h w"], generator: torch.Generator) -> Float[Tensor, "c h w"]: ...


def _uniform(generator: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))


def _whole(generator: torch.Generator, low: int, high: int) -> int:
    """Uniform from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=generator))


@dataclass(frozen=True)
class Shift:
    """Moves the picture by up to `pixels` in each direction; the edge is repeated."""

    pixels: int

    def __post_init__(self) -> None:
        require(self.pixels >= 0, "shift", f"is {self.pixels}", "give a number of pixels ≥ 0")

    def __call__(self, image: Float[Tensor, "c h w"], generator: torch.Generator) -> Float[Tensor, "c h w"]:
        rows, columns = (_whole(generator, -self.pixels, self.pixels) for _ in range(2))
        height, width = image.shape[-2:]
        row = (torch.arange(height, device=image.device) - rows).clamp(0, height - 1)
        column = (torch.arange(width, device=image.device) - columns).clamp(0, width - 1)
        return image[:, row][:, :, column]


@dataclass(frozen=True)
class Flip:
    """Mirrors left and right in half of the cases. Keeps the label of photos, not of digits or text."""

    def __call__(self, image: Float[Tensor, "c h w"], generator: torch.Generator) -> Float[Tensor, "c h w"]:
        return image.flip(-1) if _whole(generator, 0, 1) else image


@dataclass(frozen=True)
class QuarterTurns:
    """Turns by 0, 90, 180 or 270 degrees; a picture that is not square by 0 or 180."""

    def __call__(self, image: Float[Tensor, "c h w"], generator: torch.Generator) -> Float[Tensor, "c h w"]:
        turns = _whole(generator, 0, 3)
        square = image.shape[-1] == image.shape[-2]
        return image.rot90(turns if square else turns // 2 * 2, (-2, -1))


@dataclass(frozen=True)
class Light:
    """Contrast times 1 ± `contrast` about the picture's mean, brightness plus ± `brightness` of the range, clamped.

    Attributes:
        brightness, contrast: largest change, each from 0 to 1.
        low, high: the data's range.
    """

    brightness: float
    contrast: float
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("brightness", self.brightness), ("contrast", self.contrast)):
            require(0 <= value <= 1, name, f"is {value}", "give a number from 0 to 1")
        require(self.high > self.low, "high", "must exceed low", "give the data's range")

    def __call__(self, image: Float[Tensor, "c h w"], generator: torch.Generator) -> Float[Tensor, "c h w"]:
        factor = _uniform(generator, 1 - self.contrast, 1 + self.contrast)
        step = _uniform(generator, -self.brightness, self.brightness) * (self.high - self.low)
        middle = image.mean()
        return (middle + factor * (image - middle) + step).clamp(self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class Transform(Defense):
    """Changes each picture by `policy`, in its order, before the gradient is computed; one draw an example.

    In the manner of Gao et al., *Privacy-preserving Collaborative Learning with Automatic Transformation Search*,
    CVPR 2021, without its search: the policy is given, not chosen for this data and model.

    No guarantee. An attack that recovers what the gradient was computed from recovers the transformed picture,
    on which a person or object is as easily recognised; scores that compare pixel by pixel with the
    original (PSNR, SSIM) fall for the transformation's sake alone. Labels are not touched.
    """

    policy: tuple[Transformation, ...]

    def __post_init__(self) -> None:
        require(bool(self.policy), "policy", "is empty", "give a transformation, or write none")

    def on_task(self, task: Task) -> Task:
        """The task itself. Raises `InputError` where light would be clamped to another range than the data's."""
        for one in self.policy:
            if isinstance(one, Light) and (one.low, one.high) != (task.data.low, task.data.high):
                stated, own = f"{one.low:g} to {one.high:g}", f"{task.data.low:g} to {task.data.high:g}"
                hint = f"give low: {task.data.low:g} and high: {task.data.high:g}"
                raise InputError("transform", f"clamps to {stated}, the data have {own}", hint)
        return task

    def steps(self) -> tuple[DefenseStep, ...]:
        return (Mix(several=False),)

    def on_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Raises `InputError` where the examples are no pictures."""
        shape = tuple(batch.inputs.shape[1:])
        require(len(shape) == 3, "defenses", f"transform needs pictures, not examples of shape {shape}", "leave it out")
        images = []
        for image in batch.inputs:
            for transformation in self.policy:
                image = transformation(image, generator)
            images.append(image)
        return Batch(torch.stack(images) if images else batch.inputs, batch.labels)


@DEFENSES.register("transform", needs="images")
def transform(
    *,
    shift: int = 4,
    flip: bool = True,
    turns: bool = False,
    brightness: float = 0.2,
    contrast: float = 0.2,
    low: float = 0.0,
    high: float = 1.0,
) -> Transform:
    """Random shift, mirror image, quarter turns and light, before the gradient is computed.

    Set `flip` and `turns` only where they keep the label: a mirrored photo yes, a mirrored digit no.

    Args:
        shift: pixels, at most.
        flip, turns: whether to mirror and to turn by multiples of 90°.
        brightness, contrast: largest change, in shares of the range and of the contrast.
        low, high: the data's range, in which light is clamped.
    """
    policy: list[Transformation] = [Shift(shift)] if shift else []
    policy += [Flip()] if flip else []
    policy += [QuarterTurns()] if turns else []
    policy += [Light(brightness, contrast, low, high)] if brightness or contrast else []
    return Transform(policy=tuple(policy))
