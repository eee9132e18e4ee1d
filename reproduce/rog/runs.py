"""ROG's clients in settings that two cores can carry: what is attacked, and how pictures are scored."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.attacks.matching import LowResolution, Matching
from leakgauge.attacks.recipes import rog
from leakgauge.clients import FedAvg, LocalTraining, client_update
from leakgauge.compute import Compute
from leakgauge.data import Parquet
from leakgauge.defenses import Defense
from leakgauge.draws import Draws
from leakgauge.metrics import LPIPS, SSIM, Metric
from leakgauge.observation import Attack, Knowledge, Observation, Reconstruction
from leakgauge.resolve import resolve_defense
from leakgauge.task import Batch, DataSpec, Task
from reproduce.denoiser.polish import Denoise
from reproduce.metrics import Jaccard, PSNRBytes, SSIMGlobal
from reproduce.rog.networks import rog_lenet
from reproduce.rog.polish import Clamp
from reproduce.rows import ItemRows, Row

SEEDS = (0, 1, 2)
LENET = "LeNet"


@dataclass(frozen=True)
class Named:
    """A defence as a plan has it, resolved when it is needed."""

    name: str = "none"
    spec: Any = "none"

    @property
    def value(self) -> Defense:
        """The defence."""
        return resolve_defense(self.spec, "defenses").value


@dataclass(frozen=True, kw_only=True)
class Client:
    """A client of ROG: one full batch, τ steps of SGD from the broadcast parameters.

    Attributes:
        build: the network, drawn from the seed, by size.
        photos: of ImageNet, resized directly, one a class; else CIFAR-10's first test pictures, with a label each
            as well: an attack cannot tell the places of pictures of one class.
        defense: on the update.
        first: the place in the file of the first picture.
    """

    size: int
    examples: int
    steps: int = 1
    lr: float = 5e-3
    network: str = LENET
    build: Callable[..., nn.Module] = rog_lenet
    photos: bool = True
    defense: Named = field(default_factory=Named)
    first: int = 0

    @property
    def name(self) -> str:
        """The setting, as rows carry it."""
        network = "" if self.network == LENET else f"{self.network}, "
        kind = "" if self.photos else "CIFAR-10 at "
        told = f"{network}{kind}{self.size} px, batch {self.examples}, τ {self.steps}, {self.defense.name}"
        return told + (f", from photo {self.first}" if self.first else "")

    @property
    def data(self) -> DataSpec:
        """Colour pictures in [0, 1], a thousand classes."""
        return DataSpec((3, self.size, self.size), 1000)

    @property
    def protocol(self) -> LocalTraining:
        """τ full-batch steps."""
        return FedAvg(epochs=self.steps, lr=self.lr)

    def batch(self, folder: Path) -> Batch:
        """The client's secret: successive pictures of the file."""
        file = "imagenet-sample-256" if self.photos else "cifar10-test"
        source = Parquet(path=str(folder / f"{file}.parquet"), size=self.size)
        read = source.read(range(self.first, self.first + self.examples))
        return read if self.photos else Batch(read.inputs, torch.arange(self.examples) * 61 % 1000)

    def strangers(self, folder: Path) -> Tensor:
        """As many pictures from the file's end, which no client here has."""
        file = "imagenet-sample-256" if self.photos else "cifar10-test"
        source = Parquet(path=str(folder / f"{file}.parquet"), size=self.size)
        return source.read(range(len(source) - self.examples, len(source))).inputs

    def observe(self, batch: Batch, seed: int, device: str = "cpu") -> Observation:
        """The update of a weight seed; labels in order, protocol and defence are known."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            task = Task.of(self.build(size=self.size), self.data).to(torch.empty((), device=device))
        batch = Batch(batch.inputs.to(device), batch.labels.to(device))
        defense = self.defense.value
        update = client_update(task, self.protocol, batch, Draws(seed), defense=defense)
        known = Knowledge(labels=batch.labels, local_training=self.protocol, defense=defense)
        return Observation(defense.on_task(task), update, known)


def ceiling(canvas: LowResolution, truth: Tensor, data: DataSpec) -> Tensor:
    """`truth`, raw, reduced (bicubic, antialiased) and enlarged again: about the best that the canvas can show."""
    size, share = canvas.small(data).shape[1:], (truth - data.low) / data.range
    latents = F.interpolate(share, size, mode="bicubic", align_corners=False, antialias=True)
    return data.denormalise(canvas.decode({"latents": latents}, data))


def raw(matching: Matching) -> Matching:
    """Without polish."""
    return replace(matching, polish=())


LARGE = 128
"""Pixels of the paper's photos, for which a post-processor of their size may lie beside the LPIPS weights."""


def denoised(pictures: Tensor, weights: Path) -> dict[str, Tensor]:
    """By the packaged post-processor, and by one for photos of 128 px where its weights lie (page *denoiser*)."""
    found = {"denoised": Denoise()(pictures)}
    large = weights / f"denoiser-{LARGE}.safetensors"
    if large.exists() and pictures.shape[-1] == LARGE:
        found[f"denoised for {LARGE} px"] = Denoise(weights=str(large))(pictures)
    return found


@cache
def metrics(weights: Path) -> dict[str, Metric]:
    """The paper's three under its names, as its code defines PSNR and SSIM; and SSIM as it is usually defined."""
    found: dict[str, Metric] = {
        "PSNR": PSNRBytes(), "SSIM": SSIMGlobal(), "SSIM, windowed": SSIM(), "Jaccard": Jaccard()
    }  # fmt: skip
    file = weights / "lpips-alex-v0.1.safetensors"
    return found | ({"LPIPS": LPIPS(weights=str(file))} if file.exists() else {})


def scores(pictures: Tensor, truth: Tensor, folder: Path) -> dict[str, list[float]]:
    """Each score an image, in the client's order; LPIPS after the post-processor as well."""
    named = metrics(folder.parent / "weights")
    found = {name: metric(pictures, truth).tolist() for name, metric in named.items()}
    for how, after in denoised(pictures.clamp(0, 1), folder.parent / "weights").items():
        for name in ("PSNR", "LPIPS"):
            if name in named:
                found[f"{name}, {how}"] = named[name](after, truth).tolist()
    return found


@dataclass(frozen=True)
class Sheet(ItemRows):
    """The item that rows belong to."""

    paper: ClassVar[str] = "rog"

    def rows(
        self,
        client: Client,
        attack: Attack | None = None,
        *,
        name: str = "ROG",
        seeds: tuple[int, ...] = SEEDS[:1],
        doubt: str = "",
    ) -> Iterator[Row]:
        """Runs an attack for all seeds; one row a metric."""
        yield from self.inputs.once(
            client.name, name, lambda: self._run(client, attack or rog(), name=name, seeds=seeds, doubt=doubt)
        )

    def _run(self, client: Client, attack: Attack, *, name: str, seeds: tuple[int, ...], doubt: str) -> Iterator[Row]:
        table: dict[str, list[list[float]]] = {}
        seconds, spent, seeds = [], 0, self.inputs.seeds(seeds)
        for seed in seeds:
            found, values = self.attacked(client, attack, seed, name)
            seconds.append(found.cost.seconds)
            spent = found.cost.gradient_evaluations
            for metric, own in values.items():
                table.setdefault(metric, []).append(own)
        for metric, by_seed in table.items():
            yield self.row(
                client.name, name, metric, by_seed, seeds,
                evaluations=spent, seconds=statistics.fmean(seconds), doubt=doubt,
            )  # fmt: skip

    def attacked(
        self, client: Client, attack: Attack, seed: int, name: str
    ) -> tuple[Reconstruction, dict[str, list[float]]]:
        """One client's batch with its scores.

        Raises:
            RuntimeError: the attack has no answer.
        """
        batch, began = client.batch(self.inputs.data), time.perf_counter()
        seen = client.observe(batch, seed, self.inputs.device)
        observed = time.perf_counter() - began
        compute = Compute(device=self.inputs.device)
        found: Reconstruction = attack.reconstruct(seen, Draws(seed).generator("attack"), compute=compute)
        if found.inputs is None:
            raise RuntimeError(f"{self.item} {client.name}, {name}, seed {seed}: {found.message}")
        values = scores(found.inputs.cpu(), batch.inputs, self.inputs.data)
        shown = ", ".join(f"{metric} {statistics.fmean(own):.3f}" for metric, own in values.items())
        where = f"{self.item} {client.name}, {name}, seed {seed}"
        self.inputs.say(f"{where}: {shown}; {found.cost.seconds:.0f} s, update {observed:.0f} s")
        return found, values

    def pictures(self, setting: str, name: str, pictures: Tensor, truth: Tensor) -> Iterator[Row]:
        """What pictures score that no attack made."""
        found: Mapping[str, list[float]] = scores(pictures, truth, self.inputs.data)
        for metric, values in found.items():
            yield self.row(setting, name, metric, [values])

    def controls(self, client: Client) -> Iterator[Row]:
        """Grey, noise and other pictures, which hold nothing of the update; and the best at a quarter resolution.

        Noise after the post-processor is what that makes of nothing.
        """
        truth = client.batch(self.inputs.data).inputs
        for name, shown in self.null(client, truth).items():
            run = partial(self.pictures, client.name, name, shown, truth)
            yield from self.inputs.once(client.name, name, run)

    def null(self, client: Client, truth: Tensor) -> dict[str, Tensor]:
        """The pictures of `controls` by name."""
        canvas: Any = rog().canvas
        return {
            "grey picture": torch.full_like(truth, 0.5),
            "random noise": torch.rand(truth.shape, generator=torch.Generator().manual_seed(0)),
            "another picture": client.strangers(self.inputs.data),
            "the truth ↓4 ↑4": Clamp()(ceiling(canvas, truth, client.data)),
        }
