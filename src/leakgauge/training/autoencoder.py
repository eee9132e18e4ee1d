"""Training of an autoencoder on pictures like the client's."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from leakgauge.errors import require
from leakgauge.models.generator_rivals import Autoencoder


def fit_autoencoder(
    module: Autoencoder,
    pictures: Float[Tensor, "m c h w"],
    generator: torch.Generator,
    *,
    steps: int = 2000,
    batch_size: int = 64,
    lr: float = 2e-3,
    on_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Trains `module` in place to give back pictures in [0, 1], and leaves it in eval mode.

    Mean squared error, Adam on a half cosine to zero, pictures drawn with replacement and mirrored at random.

    Returns:
        The mean squared error of each step, before it.

    Raises:
        InputError: no pictures, or training diverged.
    """
    require(len(pictures) > 0, "pictures", "are none", "give some of the kind that the client has")
    optimiser = torch.optim.Adam(module.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    module.train()
    history = []
    for step in range(steps):
        some = pictures[torch.randint(len(pictures), (batch_size,), generator=generator)]
        mirrored = torch.rand(batch_size, generator=generator) < 0.5
        some = torch.where(mirrored.view(-1, 1, 1, 1), some.flip(-1), some)
        optimiser.zero_grad(set_to_none=True)
        loss = F.mse_loss(module(some), some)
        loss.backward()
        optimiser.step()
        schedule.step()
        history.append(float(loss.detach()))
        require(history[-1] == history[-1], "lr", f"training diverged in step {step}", "lower the learning rate")
        if on_step is not None:
            on_step(step, history[-1])
    module.eval()
    return history
