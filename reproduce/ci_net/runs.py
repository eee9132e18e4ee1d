"""CI-Net in a setting that two cores can carry: what is attacked, how runs are watched and scored."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from leakgauge.attacks.matching import Adam, Canvas, Cosine, Generator, Matching, Minimiser, NoPrior, Objective, Prior
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Compute
from leakgauge.data import Parquet
from leakgauge.draws import Draws
from leakgauge.metrics import LPIPS, PSNR, SSIM, Metric, assign
from leakgauge.models import resnet18
from leakgauge.models.networks import CINetGenerator
from leakgauge.observation import Knowledge, Observation, Reconstruction
from leakgauge.task import Batch, DataSpec, Mode, Task
from reproduce.film import Film
from reproduce.metrics import FSIM, SSIMCropped
from reproduce.rows import ItemRows, Row

DATA = DataSpec((3, 32, 32), 10)
SEEDS = (0, 1, 2)


def narrow(width: int = 16) -> nn.Module:
    """ResNet-18 with sigmoid, 0.70 M parameters at width 16."""
    return resnet18(width=width, activation="sigmoid")


@dataclass(frozen=True, kw_only=True)
class Target:
    """Network, mode and batch of one client.

    Attributes:
        build: the network, drawn from the seed.
        examples: the first ones of the training set, as in the release.
        noise: in place of images, uniform noise.
        distinct: no label twice: the first picture of each of the first classes to appear. Else the first pictures.
    """

    name: str = "ResNet-18 of width 16, 4 labels"
    build: Callable[[], nn.Module] = narrow
    examples: int = 4
    mode: Mode = Mode.TRAIN
    noise: bool = False
    distinct: bool = True

    def batch(self, data: Path) -> Batch:
        """The client's secret."""
        source = Parquet(path=str(data / "cifar10-train.parquet"))
        first: dict[int, int] = {}
        for index, label in enumerate(source.labels[:1000].tolist()):
            first.setdefault(label, index)
        chosen = list(first.values())[: self.examples] if self.distinct else range(self.examples)
        read = source.read(chosen)
        if not self.noise:
            return read
        return Batch(torch.rand(read.inputs.shape, generator=torch.Generator().manual_seed(0)), read.labels)

    def observe(self, batch: Batch, seed: int, device: str = "cpu") -> Observation:
        """The update of a weight seed; labels and protocol are known."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            task = Task.of(self.build(), DATA, mode=self.mode).to(torch.empty((), device=device))
        batch = Batch(batch.inputs.to(device), batch.labels.to(device))
        update = client_update(task, FedSGD(), batch, Draws(seed))
        return Observation(task, update, Knowledge(labels=batch.labels, local_training=FedSGD()))


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A matching attack by its parts; the plain one is CI-Net."""

    name: str = "CI-Net"
    canvas: Canvas = field(default_factory=lambda: Generator(network=CINetGenerator(width=32)))
    objective: Objective = field(default_factory=Cosine)
    prior: Prior = field(default_factory=NoPrior)
    minimiser: Callable[[int], Minimiser] = lambda steps: Adam(steps=steps, lr=1e-3, signed=True, decay=())
    stepwise: bool = True
    dtype: torch.dtype = torch.float32

    def run(self, seen: Observation, seed: int, milestones: Sequence[int]) -> tuple[Reconstruction, dict[int, Tensor]]:
        """The answer (the best point), and the pictures as they stood at each milestone; the answer's own where the
        film has none."""
        film = Film(self.canvas, frozenset(milestones) if self.stepwise else frozenset())
        parts = Matching(
            objective=self.objective, prior=self.prior, canvas=film, minimiser=self.minimiser(max(milestones))
        )
        device = str(next(iter(seen.task.parameters.values())).device)
        generator, compute = Draws(seed).generator("attack"), Compute(device=device, dtype=self.dtype)
        found = parts.reconstruct(seen, generator, compute=compute)
        frames = dict(film.frames)
        if found.inputs is not None:
            frames.setdefault(max(milestones), found.inputs)
        return found, frames


def metrics(data: Path) -> dict[str, Metric]:
    """The paper's four under its names; SSIM as `SSIMCropped`, LPIPS where its weights lie beside the data."""
    found: dict[str, Metric] = {"SSIM": SSIMCropped(), "FSIM": FSIM(), "PSNR": PSNR()}
    weights = data.parent / "weights" / "lpips-vgg-v0.1.safetensors"
    return found | ({"LPIPS": LPIPS(weights=str(weights))} if weights.exists() else {})


def best_match(metric: Metric, pictures: Tensor, truth: Tensor) -> list[float]:
    """Each reconstruction against the true image it scores best with, as the release does: not one to one."""
    lower = metric.higher_means == "less leakage"
    found = []
    for picture in pictures:
        scores = metric(picture.expand_as(truth).contiguous(), truth)
        found.append(float(scores.min() if lower else scores.max()))
    return found


def scores(pictures: Tensor, batch: Batch, data: Path) -> dict[str, list[float]]:
    """The paper's scores, one a reconstruction, and ours one to one within equal labels, one an image."""
    pictures = pictures.to(batch.inputs).clamp(0, 1)
    found = {name: best_match(metric, pictures, batch.inputs) for name, metric in metrics(data).items()}
    mates = assign(pictures, batch.inputs, labels_hat=batch.labels, labels=batch.labels).take(pictures)
    found["SSIM, one to one"] = SSIM()(mates, batch.inputs).tolist()
    found["the paper's SSIM, one to one"] = SSIMCropped()(mates, batch.inputs).tolist()
    found["PSNR, one to one"] = PSNR()(mates, batch.inputs).tolist()
    return found


@dataclass(frozen=True)
class Sheet(ItemRows):
    """The item that rows belong to."""

    paper: ClassVar[str] = "ci-net"

    def rows(
        self,
        target: Target,
        attempt: Attempt,
        seeds: Sequence[int],
        milestones: Sequence[int],
        *,
        longer: Sequence[int] = (),
        doubt: str = "",
    ) -> Iterator[Row]:
        """Runs an attempt for all seeds; one row a metric and milestone. The first seed goes on to `longer` ones."""
        last = max((*milestones, *longer))
        if not self.inputs.wants(target.name, f"{attempt.name}, {last} steps"):
            return
        if self.inputs.done(target.name, f"{attempt.name}, {last} steps"):  # then it has them all
            for step in sorted({*milestones, *longer}):
                yield from self.inputs.done(target.name, f"{attempt.name}, {step} steps")
            return
        rows = list(self._run(target, attempt, seeds, milestones, longer, doubt))
        self.inputs.keep(rows)
        yield from rows

    def _run(
        self,
        target: Target,
        attempt: Attempt,
        seeds: Sequence[int],
        milestones: Sequence[int],
        longer: Sequence[int],
        doubt: str,
    ) -> Iterator[Row]:
        batch, where = target.batch(self.inputs.data), f"{self.item} {target.name}, {attempt.name}"
        table: dict[tuple[int, str], dict[int, list[float]]] = defaultdict(dict)
        pace, seeds = [], self.inputs.seeds(seeds)
        for seed in seeds:
            steps = (*milestones, *longer) if seed == seeds[0] else tuple(milestones)
            found, frames = attempt.run(target.observe(batch, seed, self.inputs.device), seed, steps)
            pace.append(found.cost.seconds / max(steps))
            if found.objective is not None:
                table[max(steps), "loss"][seed] = [found.objective]
            for step, pictures in frames.items():
                for metric, values in scores(pictures, batch, self.inputs.data).items():
                    table[step, metric][seed] = values
            mean = {step: statistics.fmean(table[step, "SSIM, one to one"][seed]) for step in frames}
            shown = ", ".join(f"{value:.3f} after {step}" for step, value in sorted(mean.items()))
            self.inputs.say(f"{where}, seed {seed}: SSIM {shown}; {pace[-1]:.2f} s a step")
        for (step, metric), by_seed in sorted(table.items()):
            name, seconds = f"{attempt.name}, {step} steps", step * statistics.fmean(pace)
            yield self.row(
                target.name,
                name,
                metric,
                list(by_seed.values()),
                list(by_seed),
                evaluations=step,
                seconds=seconds,
                doubt=doubt,
            )

    def grey(self, target: Target) -> Iterator[Row]:
        """What a grey picture scores: no attack below it has found anything."""
        if not self.inputs.wants(target.name, "grey picture"):
            return
        batch = target.batch(self.inputs.data)
        found: Mapping[str, list[float]] = scores(torch.full_like(batch.inputs, 0.5), batch, self.inputs.data)
        for metric, values in found.items():
            yield self.row(target.name, "grey picture", metric, [values])
