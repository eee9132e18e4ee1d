"""Training of the zoo's small networks on one core, for seconds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.task import DataSpec
from reproduce.inspection.zoo_dice import Dice
from reproduce.inspection.zoo_stock import Split, Stock


@dataclass(frozen=True, kw_only=True)
class Regime:
    """How a model was trained.

    Attributes:
        steps, batch: SGD steps and examples in each.
        examples: size of the training set; few of them with many steps reach a loss near zero.
    """

    steps: int
    batch: int
    examples: int
    optimiser: str
    lr: float
    weight_decay: float

    @staticmethod
    def drawn(dice: Dice, steps: tuple[int, int]) -> Regime:
        """Few or many examples, three optimisers, weight decay from none to strong."""
        optimiser = dice.pick(("sgd", "adam", "adamw"))
        return Regime(
            steps=dice.whole(*steps),
            batch=dice.pick((16, 32)),
            examples=dice.pick((128, 512, 2500)),
            optimiser=optimiser,
            lr=dice.scale(0.01, 0.1) if optimiser == "sgd" else dice.scale(5e-4, 4e-3),
            weight_decay=dice.pick((0.0, 5e-4, 5e-3)) if optimiser != "adamw" else dice.pick((0.01, 0.1, 0.5)),
        )

    def describe(self) -> str:
        """For a model's description."""
        return (
            f"{self.steps} steps of {self.batch} from {self.examples}, {self.optimiser} lr {self.lr:.2g} "
            f"decay {self.weight_decay:g}"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class School:
    """What a model is trained for: a data format, and a split's examples in it."""

    data: DataSpec
    split: Split
    stock: Stock

    def train(self, module: nn.Module, regime: Regime, dice: Dice) -> float:
        """Trains in place, one-cycle learning rate, mirrored colour pictures; returns the last loss (mean of 20 steps).

        A run whose loss is not finite is undone and trained with a tenth of the learning rate.
        """
        start = {k: v.clone() for k, v in module.state_dict().items()}
        batch = self.stock.examples(self.data, self.split, regime.examples, dice.generator)
        inputs, losses, lr = self.data.normalise(batch.inputs), [], regime.lr
        while True:
            parameters = [p for p in module.parameters() if p.requires_grad]
            makers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
            extra = {"momentum": 0.9} if regime.optimiser == "sgd" else {}
            optimiser = makers[regime.optimiser](parameters, lr=lr, weight_decay=regime.weight_decay, **extra)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=lr, total_steps=regime.steps + 1)
            losses.clear()
            module.train()
            with dice.torch_seeded():
                for _ in range(regime.steps):
                    pick = torch.randint(len(batch), (regime.batch,), generator=dice.generator)
                    x = inputs[pick].flip(-1) if len(self.data.shape) == 3 and dice.chance(0.5) else inputs[pick]
                    loss = F.cross_entropy(module(x), batch.labels[pick])
                    optimiser.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    nn.utils.clip_grad_norm_(parameters, 5.0)
                    optimiser.step()
                    schedule.step()
                    losses.append(float(loss.detach()))
            module.eval()
            if all(torch.isfinite(v).all() for v in module.state_dict().values()):
                tail = losses[-20:]
                return sum(tail) / max(1, len(tail))
            module.load_state_dict(start)
            lr /= 10
