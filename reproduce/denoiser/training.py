"""Training of the denoiser."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from leakgauge.errors import require
from leakgauge.task import Batch
from leakgauge.tensors import fingerprint
from leakgauge.training import read_checkpoint, save_checkpoint
from reproduce.denoiser.degradations import Degradation, Shuffled
from reproduce.denoiser.discriminator import PatchDiscriminator
from reproduce.denoiser.network import DenoisingUNet


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


@dataclass(frozen=True)
class Progress:
    """What the steps up to `step` gave since the last such line, as means; `seconds` is their time.

    `generator_loss` is softplus(−d) at the discriminator's answers; `discriminator_loss` is 1.39 when it cannot tell.
    Both are 0 while L1 acts alone.
    """

    step: int
    l1: float
    generator_loss: float
    discriminator_loss: float
    seconds: float


def fit_denoiser(
    network: DenoisingUNet,
    examples: Batch,
    recipe: DenoiserRecipe,
    *,
    seed: int,
    checkpoint: Path | None = None,
    on_leg: Callable[[Progress], None] | None = None,
) -> list[Progress]:
    """Trains `network` in place on raw pictures in [0, 1] and leaves it in eval mode.

    Every `recipe.every` steps draw from a generator of their own, so that a run that was stopped and resumed from
    `checkpoint` gives the same weights as one that was not.

    Raises:
        InputError: the checkpoint belongs to another run or other data, or cannot be read; training diverged; pictures
            without three channels; labels outside the network's classes.
    """
    _check(network, examples)
    torch.manual_seed(seed)
    judge = PatchDiscriminator()
    parts = {"network": network, "judge": judge}
    for module in parts.values():
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        module.train()
    optimisers = {
        name: torch.optim.Adam(module.parameters(), recipe.lr, betas=(0.5, 0.999)) for name, module in parts.items()
    }
    first = sum(float(p.detach().double().sum()) for p in network.parameters())
    given = f"{recipe} {seed} {fingerprint(examples.inputs, examples.labels)}"
    identity = f"denoiser {network.width} {network.classes} from {first:.6g} {given}"
    state = read_checkpoint(checkpoint, identity)
    history: list[Progress] = []
    if state is not None:
        for name, module in parts.items():
            module.load_state_dict(state[name])
            optimisers[name].load_state_dict(state[f"{name}.optimiser"])
        history = [Progress(int(step), *values) for step, *values in state["history"]]
    done = history[-1].step if history else 0
    while done < recipe.steps:
        until = min(done + recipe.every, recipe.steps)
        began = time.perf_counter()
        generator = torch.Generator().manual_seed(seed * 100_003 + done)
        sums = torch.zeros(3)
        for step in range(done, until):
            for optimiser in optimisers.values():
                for group in optimiser.param_groups:
                    group["lr"] = recipe.rate(step)
            sums += _step(network, judge, optimisers, examples, recipe, recipe.weight(step), generator)
        l1, generator_loss, discriminator_loss = (sums / (until - done)).tolist()
        require(
            l1 == l1 and generator_loss == generator_loss,
            "lr",
            f"training diverged before step {until}",
            "lower the rate",
        )
        history.append(Progress(until, l1, generator_loss, discriminator_loss, time.perf_counter() - began))
        done = until
        if checkpoint is not None:
            kept = {name: module.state_dict() for name, module in parts.items()}
            kept |= {f"{name}.optimiser": optimiser.state_dict() for name, optimiser in optimisers.items()}
            save_checkpoint(checkpoint, identity, kept | {"history": [list(astuple(leg)) for leg in history]})
        if on_leg is not None:
            on_leg(history[-1])
    network.eval()
    return history


def _step(
    network: DenoisingUNet,
    judge: PatchDiscriminator,
    optimisers: dict[str, torch.optim.Adam],
    examples: Batch,
    recipe: DenoiserRecipe,
    weight: float,
    generator: torch.Generator,
) -> Float[Tensor, "3"]:
    index = torch.randint(len(examples), (recipe.batch_size,), generator=generator)
    sharp = examples.inputs[index]
    mirrored = torch.rand(len(index), generator=generator) < 0.5
    sharp = torch.where(mirrored[:, None, None, None], sharp.flip(-1), sharp)
    blurred = recipe.degradation(sharp, generator).contiguous(memory_format=torch.channels_last)
    sharp = sharp.contiguous(memory_format=torch.channels_last)
    labels = examples.labels[index] if network.classes else None
    mixed = torch.autocast("cpu", torch.bfloat16, enabled=recipe.bfloat16)

    with mixed:
        made = network(blurred, labels)
    l1 = F.l1_loss(made, sharp)
    generator_loss = discriminator_loss = l1.new_zeros(())
    if weight:
        # Its parameters are left out of this backward pass; the norm's statistics see the picture either way.
        judge.requires_grad_(False)
        with mixed:
            generator_loss = F.softplus(-judge(made)).mean()
    optimisers["network"].zero_grad(set_to_none=True)
    (l1 + weight * generator_loss).backward()
    optimisers["network"].step()
    if weight:
        judge.requires_grad_(True)
        with mixed:
            discriminator_loss = F.softplus(-judge(sharp)).mean() + F.softplus(judge(made.detach())).mean()
        optimisers["judge"].zero_grad(set_to_none=True)
        discriminator_loss.backward()
        optimisers["judge"].step()
    return torch.stack([l1.detach(), generator_loss.detach(), discriminator_loss.detach()])


def _check(network: DenoisingUNet, examples: Batch) -> None:
    shape = tuple(examples.inputs.shape[1:])
    fits = len(examples) > 0 and len(shape) == 3 and shape[0] == 3 and min(shape[1:]) >= 8
    require(fits, "data", f"are {len(examples)} examples of shape {shape}", "give colour pictures of at least 8 px")
    inside = float(examples.inputs.min()) >= 0 and float(examples.inputs.max()) <= 1
    require(inside, "data", "leave the range [0, 1]", "scale them")
    if network.classes:
        whole = not examples.labels.is_floating_point() and int(examples.labels.max()) < network.classes
        require(whole, "data", f"have labels beyond the denoiser's {network.classes} classes", "give it more classes")


@torch.no_grad()
def restored(
    network: nn.Module, images: Float[Tensor, "n 3 h w"], labels: Int[Tensor, " n"] | None, *, chunk: int = 64
) -> Float[Tensor, "n 3 h w"]:
    """The network's answers, `chunk` pictures at a time."""
    if not len(images):
        return images
    given = [None] * len(images.split(chunk)) if labels is None else labels.split(chunk)
    return torch.cat([network(some, which) for some, which in zip(images.split(chunk), given, strict=True)])
