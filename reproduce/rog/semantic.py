"""ROGS with a small generator of CIFAR-10's classes, trained here; and what of its score the generator brings along."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.attacks.recipes import rog
from leakgauge.data import Parquet
from leakgauge.draws import Draws
from leakgauge.metrics import LPIPS, PSNR
from leakgauge.task import Batch
from reproduce.item import Inputs
from reproduce.metrics import Jaccard
from reproduce.rog.ablations import SMALL
from reproduce.rog.rogs import ROGS, Distance
from reproduce.rog.runs import Client, Sheet
from reproduce.rows import Row

CODE, CLASSES = 64, 10


class Drawer(nn.Module):
    """(codes, labels) → pictures of 32 px in (−1, 1): nearest upsampling from 4×4, the label beside the code."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.width = width
        self.first = nn.Linear(CODE + CLASSES, 4 * width * 16)
        blocks: list[nn.Module] = []
        for before, after in ((4 * width, 2 * width), (2 * width, width), (width, width)):
            blocks += [nn.Upsample(scale_factor=2), nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
        self.blocks = nn.Sequential(*blocks, nn.Conv2d(width, 3, 3, padding=1), nn.Tanh())

    def forward(self, codes: Tensor, labels: Tensor) -> Tensor:
        joint = torch.cat([codes, F.one_hot(labels, CLASSES).to(codes)], 1)
        drawn: Tensor = self.blocks(F.relu(self.first(joint)).view(-1, 4 * self.width, 4, 4))
        return drawn


def trained(folder: Path, *, examples: int, steps: int) -> tuple[Drawer, float]:
    """The decoder of a conditional variational autoencoder, and the last hundred steps' mean squared error in [0, 1].

    Trained on the first pictures of CIFAR-10's training set, mirrored at random; Adam on a half cosine.
    """
    source = Parquet(path=str(folder / "cifar10-train.parquet")).read(range(examples))
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        drawer = Drawer()
        reader = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128 * 16, 2 * CODE),
        )  # fmt: skip
    parameters = [*drawer.parameters(), *reader.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    errors = []
    for _ in range(steps):
        index = torch.randint(examples, (64,), generator=generator)
        x, y = source.inputs[index] * 2 - 1, source.labels[index]
        x = torch.where(torch.rand(64, 1, 1, 1, generator=generator) < 0.5, x.flip(-1), x)
        mean, spread = reader(x).chunk(2, 1)
        codes = mean + spread.clamp(-8, 8).div(2).exp() * torch.randn(mean.shape, generator=generator)
        error = F.mse_loss(drawer(codes, y), x)
        away = (mean.square() + spread.clamp(-8, 8).exp() - spread - 1).sum(1).mean() / 2
        optimiser.zero_grad(set_to_none=True)
        (error + 4e-4 * away).backward()
        optimiser.step()
        schedule.step()
        errors.append(float(error.detach()) / 4)
    return drawer.eval(), sum(errors[-100:]) / len(errors[-100:])


def one_a_class(folder: Path, count: int) -> Batch:
    """The first test picture of each of the first classes to appear, so that no two can change places."""
    source = Parquet(path=str(folder / "cifar10-test.parquet"))
    first: dict[int, int] = {}
    for index, label in enumerate(source.labels[:200].tolist()):
        first.setdefault(label, index)
    return source.read(list(first.values())[:count])


def perceptual(weights: Path) -> Distance | None:
    """LPIPS of raw pictures, enlarged as the metric does; nothing where the weights are not."""
    if not weights.is_file():
        return None
    network = LPIPS(weights=str(weights)).distance

    def distance(a: Tensor, b: Tensor) -> Tensor:
        a, b = (F.interpolate(2 * x - 1, (64, 64), mode="bilinear", align_corners=False) for x in (a, b))
        return network(a, b).reshape(-1)

    return distance


def semantic(inputs: Inputs) -> Iterator[Row]:
    """ROG, ROGS of it, and three pictures of the generator that hold nothing of the update but the labels."""
    sheet = Sheet("semantic", inputs)
    client: Client = replace(SMALL, examples=8)
    truth = one_a_class(inputs.data, client.examples)
    drawer, error = trained(inputs.data, examples=10_000, steps=600 if inputs.quick else 3000)
    inputs.say(f"semantic generator: mean squared error {error:.4f}")
    attack = ROGS(
        generator=drawer,
        code=(CODE,),
        distance=perceptual(inputs.data.parent / "weights" / "lpips-alex-v0.1.safetensors"),
        steps=150 if inputs.quick else 1000,
    )
    seed = inputs.seed(0)
    seen, generator = client.observe(truth, seed, inputs.device), Draws(seed).generator("attack")
    found = rog().reconstruct(seen, generator, compute=inputs.compute())
    assert found.inputs is not None
    blurred, data = found.inputs.cpu().clamp(0, 1), seen.task.data
    with torch.no_grad():
        codes = torch.randn((len(truth), CODE), generator=generator)
        drawn = (drawer(codes, truth.labels) + 1) / 2
    wrong = truth.labels.roll(1)
    shown = {
        "ROG": blurred,
        "ROGS": attack.closest(blurred, truth.labels, data, generator),
        "ROGS, of another picture": attack.closest(blurred.roll(1, 0), truth.labels, data, generator),
        "ROGS, labels wrong": attack.closest(blurred, wrong, data, generator),
        "the generator alone": drawn,
        "another picture": truth.inputs.roll(1, 0),
    }
    setting = f"{client.name}, one a class"
    metrics = {"PSNR": PSNR(), "Jaccard": Jaccard()}
    weights = inputs.data.parent / "weights" / "lpips-alex-v0.1.safetensors"
    for name, pictures in shown.items():
        for metric, score in (metrics | ({"LPIPS": LPIPS(weights=str(weights))} if weights.is_file() else {})).items():
            row = sheet.row(
                setting, name, metric, [score(pictures, truth.inputs).tolist()],
                doubt=f"this generator gives pictures back with a mean squared error of {error:.4f}",
            )  # fmt: skip
            inputs.say(f"{name}, {metric}: {row.record()['measured']}")
            yield row
