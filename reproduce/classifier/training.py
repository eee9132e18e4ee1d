"""Training of a classifier, with the papers' schedules and random changes of pictures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.errors import require
from leakgauge.task import Batch, DataSpec
from leakgauge.tensors import fingerprint
from leakgauge.training import read_checkpoint, save_checkpoint


@runtime_checkable
class Augmentation(Protocol):
    """Images to images of the same shape; draws from `generator` alone."""

    def __call__(self, images: Float[Tensor, "n c h w"], generator: torch.Generator) -> Float[Tensor, "n c h w"]: ...


@dataclass(frozen=True)
class NoAugmentation:
    """The images as they are."""

    def __call__(self, images: Float[Tensor, "n c h w"], generator: torch.Generator) -> Float[Tensor, "n c h w"]:
        del generator
        return images


@dataclass(frozen=True, kw_only=True)
class CropFlip:
    """A crop of the image padded by `padding` pixels of the data's zero, then a horizontal flip of every other image.

    Source: He et al., 2016, section 4.2, as used for the trained networks of Inverting Gradients.
    """

    padding: int = 4

    def __post_init__(self) -> None:
        require(self.padding >= 0, "padding", f"is {self.padding}", "give a number of pixels ≥ 0")

    def __call__(self, images: Float[Tensor, "n c h w"], generator: torch.Generator) -> Float[Tensor, "n c h w"]:
        n, _, height, width = images.shape
        padded = F.pad(images, (self.padding,) * 4)
        top, left = torch.randint(2 * self.padding + 1, (2, n), generator=generator)
        flipped = torch.rand(n, generator=generator) < 0.5
        columns = left[:, None] + torch.arange(width)
        columns = torch.where(flipped[:, None], columns.flip(1), columns)
        rows = top[:, None] + torch.arange(height)
        which = torch.arange(n)[:, None, None]
        return padded[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


@runtime_checkable
class Decay(Protocol):
    """Share of the epochs that have passed, in [0, 1) → factor of the learning rate."""

    def __call__(self, passed: float) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Drops:
    """Multiplied by `factor` at each of `at`, shares of the epochs, so that a shorter run keeps the schedule's form."""

    at: tuple[float, ...] = (44 / 120, 74 / 120, 105 / 120)
    factor: float = 0.1

    def __post_init__(self) -> None:
        require(self.factor > 0, "factor", f"is {self.factor}", "give a positive number")
        require(all(0 < d < 1 for d in self.at), "drops", f"are {self.at}", "give shares of the epochs in (0, 1)")

    def __call__(self, passed: float) -> float:
        return float(self.factor ** sum(passed + 1e-9 >= drop for drop in self.at))


@dataclass(frozen=True)
class HalfCosine:
    """From 1 to nearly 0 along half a cosine. Better than drops where there are few epochs: a ResNet-20 of width 16
    had .823 on CIFAR-10's test images after 12 epochs with `Drops`; see the packaged one for this."""

    def __call__(self, passed: float) -> float:
        return (1 + math.cos(math.pi * passed)) / 2


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """SGD with Nesterov momentum; defaults are those of Inverting Gradients' trained networks.

    Their 120 epochs drop the learning rate at 44, 74 and 105.

    Attributes:
        lr: multiplied by what `decay` says.
        warmup: epochs over which the rate rises linearly from a tenth of `lr`.
        bfloat16: forward passes in bfloat16 (weights, gradients and statistics stay in float32).
    """

    epochs: int = 120
    batch_size: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    decay: Decay = field(default_factory=Drops)
    warmup: int = 0
    bfloat16: bool = False
    augmentation: Augmentation = field(default_factory=CropFlip)

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "lr"):
            require(getattr(self, name) > 0, name, f"is {getattr(self, name)}", "give a positive number")
        require(0 <= self.momentum < 1, "momentum", f"is {self.momentum}", "give a number in [0, 1)")
        require(self.weight_decay >= 0, "weight_decay", f"is {self.weight_decay}", "give a number ≥ 0")
        require(self.warmup >= 0, "warmup", f"is {self.warmup}", "give a number ≥ 0")

    def rate(self, epoch: int) -> float:
        """Learning rate of an epoch, counted from 0."""
        if epoch < self.warmup:
            return self.lr * (0.1 + 0.9 * epoch / self.warmup)
        return self.lr * self.decay(epoch / self.epochs)

    def optimiser(self, module: torch.nn.Module) -> torch.optim.SGD:
        """For the module's trainable parameters."""
        trained = [p for p in module.parameters() if p.requires_grad]
        nesterov = self.momentum > 0
        return torch.optim.SGD(
            trained, self.lr, momentum=self.momentum, weight_decay=self.weight_decay, nesterov=nesterov
        )


@dataclass(frozen=True)
class Epoch:
    """What one epoch gave: mean training loss, training accuracy on augmented images, seconds."""

    number: int
    loss: float
    accuracy: float
    rate: float
    seconds: float


def fit(
    module: nn.Module,
    data: DataSpec,
    examples: Batch,
    recipe: Recipe,
    *,
    seed: int,
    checkpoint: Path | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> list[Epoch]:
    """Trains `module` in place on raw examples and leaves it in eval mode.

    Each epoch draws from a generator of its own, so that a run that was stopped and resumed from `checkpoint`
    gives the same weights as one that was not.

    Raises:
        InputError: the checkpoint belongs to another run or other data, or cannot be read; training diverged; crops
            and flips of what are no pictures.
    """
    require(len(examples) >= recipe.batch_size, "batch_size", f"exceeds the {len(examples)} examples", "lower it")
    pictures = examples.inputs.ndim == 4
    require(
        pictures or not isinstance(recipe.augmentation, CropFlip),
        "augmentation",
        f"crops and flips pictures, but examples have shape {tuple(examples.inputs.shape[1:])}",
        "use NoAugmentation",
    )
    layout = torch.channels_last if pictures else torch.preserve_format
    module.to(memory_format=layout)  # type: ignore[call-overload]
    optimiser = recipe.optimiser(module)
    first = sum(float(p.detach().double().sum()) for p in module.parameters())
    given = f"{recipe} {seed} {data} {fingerprint(examples.inputs, examples.labels)}"
    identity = f"{given} from {first:.6g} {sorted(module.state_dict())}"
    history = _resume(checkpoint, identity, module, optimiser)
    for number in range(len(history), recipe.epochs):
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate(number)
        began = time.perf_counter()
        generator = torch.Generator().manual_seed(seed * 100_003 + number)
        loss, hits = _epoch(module, data, examples, recipe, optimiser, generator, layout)
        require(loss == loss, "lr", f"training diverged in epoch {number + 1}", "lower the learning rate")
        history.append(Epoch(number + 1, loss, hits, recipe.rate(number), time.perf_counter() - began))
        if checkpoint is not None:
            _save(checkpoint, identity, module, optimiser, history)
        if on_epoch is not None:
            on_epoch(history[-1])
    module.eval()
    return history


def _epoch(
    module: nn.Module,
    data: DataSpec,
    examples: Batch,
    recipe: Recipe,
    optimiser: torch.optim.Optimizer,
    generator: torch.Generator,
    layout: torch.memory_format,
) -> tuple[float, float]:
    module.train()
    # Dropout draws from torch's own generator.
    torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
    order = torch.randperm(len(examples), generator=generator)
    whole = len(order) // recipe.batch_size * recipe.batch_size
    total, hits = 0.0, 0
    for index in order[:whole].view(-1, recipe.batch_size):
        labels = examples.labels[index]
        images = data.normalise(recipe.augmentation(examples.inputs[index], generator))
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bfloat16):
            logits = module(images.to(memory_format=layout))
        loss = F.cross_entropy(logits.float(), labels)
        loss.backward()
        optimiser.step()
        total += float(loss.detach()) * len(index)
        hits += int((logits.argmax(1) == labels).sum())
    return total / whole, hits / whole


@torch.no_grad()
def accuracy(module: nn.Module, data: DataSpec, examples: Batch, *, chunk: int = 500) -> float:
    """Share of raw examples that the module, in eval mode, labels right."""
    module.eval()
    hits = 0
    for start in range(0, len(examples), chunk):
        images, labels = examples.inputs[start : start + chunk], examples.labels[start : start + chunk]
        hits += int((module(data.normalise(images)).argmax(1) == labels).sum())
    return hits / len(examples)


def _save(path: Path, identity: str, module: nn.Module, optimiser: torch.optim.Optimizer, history: list[Epoch]) -> None:
    state = {
        "module": module.state_dict(),
        "optimiser": optimiser.state_dict(),
        "history": [[e.number, e.loss, e.accuracy, e.rate, e.seconds] for e in history],
    }
    save_checkpoint(path, identity, state)


def _resume(path: Path | None, identity: str, module: nn.Module, optimiser: torch.optim.Optimizer) -> list[Epoch]:
    state = read_checkpoint(path, identity)
    if state is None:
        return []
    module.load_state_dict(state["module"])
    optimiser.load_state_dict(state["optimiser"])
    return [Epoch(int(n), loss, hits, rate, seconds) for n, loss, hits, rate, seconds in state["history"]]
