"""Inverting Gradients here: networks, single runs, and rows made of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from leakgauge.attacks.matching import LBFGS, BoundedLBFGS, Matching, Normal, Pixels, SquaredL2, Uniform
from leakgauge.attacks.recipes import inverting_gradients
from leakgauge.clients import FedSGD, Protocol, client_update
from leakgauge.compute import Compute
from leakgauge.data import Parquet, spec
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR, SSIM, Metric, assign
from leakgauge.models import convnet, lenet, resnet20
from leakgauge.models.weights import load_weights, packaged
from leakgauge.observation import Attack, Knowledge, Observation
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.tensors import Tensors, inner, squared_norm
from reproduce.item import Inputs
from reproduce.rows import ItemRows, Row


@dataclass(frozen=True, kw_only=True)
class Network:
    """Untrained with weights from a seed, or with trained ones. In eval mode, as in the release.

    Attributes:
        weights: trained ones: by name of the package's, or a file.
    """

    name: str
    build: Callable[[], nn.Module]
    weights: str | Path = ""

    def task(self, data: DataSpec, seed: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Task:
        """Raises `InputError` where the weights are not there."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.build()
        if self.weights:
            file = self.weights if isinstance(self.weights, Path) else packaged(self.weights)
            load_weights(module, file, "weights")
        return Task.of(module, data).to(torch.empty((), dtype=dtype, device=device))


LENET = Network(name="LeNet untrained", build=lenet)
LENET_TRAINED = Network(name="LeNet trained", build=lenet, weights="lenet-cifar10")
RESNET = Network(name="ResNet20-4 untrained", build=lambda: resnet20(width=16))
RESNET_TRAINED = Network(name="ResNet20-4 trained", build=lambda: resnet20(width=16), weights="resnet20-cifar10")
CONVNET = Network(name="ConvNet-16", build=lambda: convnet(width=16))


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An attack under the name of its row."""

    name: str
    attack: Attack
    dtype: torch.dtype = torch.float32
    doubt: str = ""


def proposed(tv: float, steps: int = 4800, *, name: str = "proposed", lr: float = 0.1, signed: bool = True) -> Attempt:
    """The paper's attack; its other steps are said in the row's doubt."""
    short = "" if steps == 4800 else f"{steps} of 4 800 steps"
    return Attempt(name=name, attack=inverting_gradients(tv=tv, steps=steps, lr=lr, signed=signed), doubt=short)


def euclidean(steps: int, restarts: int, *, name: str = "Euclidean + L-BFGS") -> Attempt:
    """Squared distance by L-BFGS without line search, N(0, 1) starts, no box, no prior; labels given."""
    attack = Matching(
        objective=SquaredL2(), canvas=Pixels(first=Normal(), box=False), minimiser=LBFGS(steps=steps), restarts=restarts
    )
    return Attempt(name=name, attack=attack, doubt=f"best of {restarts} starts, {steps} iterations")


def bounded(steps: int, restarts: int) -> Attempt:
    """Squared distance by L-BFGS-B: a line search, the data's range, float64."""
    minimiser = BoundedLBFGS(steps=steps, scale=1e6, tolerance=0.0)
    attack = Matching(objective=SquaredL2(), canvas=Pixels(first=Uniform()), minimiser=minimiser, restarts=restarts)
    starts = "one start" if restarts == 1 else f"best of {restarts} starts"
    return Attempt(
        name="Euclidean + L-BFGS-B", attack=attack, dtype=torch.float64, doubt=f"{starts}, {steps} evaluations"
    )


@dataclass(frozen=True, eq=False)
class Trial:
    """What one attack on one client came to. An attack without an answer gives grey pictures."""

    pictures: Tensor
    truth: Batch
    update: Tensors
    answered: bool
    evaluations: int
    seconds: float
    message: str

    def scores(self, metric: Metric) -> list[float]:
        """One an image; a picture stands for an image of its own label, one to one."""
        mates = assign(self.pictures, self.truth.inputs, labels_hat=self.truth.labels, labels=self.truth.labels)
        return metric(mates.take(self.pictures), self.truth.inputs).tolist()


def trial(
    task: Task, truth: Batch, attack: Attack, seed: int, *, protocol: Protocol | None = None, told: bool = True
) -> Trial:
    """Labels and number of images are known; so is the local training, if `told`."""
    like = next(iter(task.parameters.values()))
    batch, protocol = Batch(truth.inputs.to(like), truth.labels.to(like.device)), protocol or FedSGD()
    update = client_update(task, protocol, batch, Draws(0))
    known = Knowledge(labels=batch.labels, example_count=len(batch), local_training=protocol if told else None)
    began = time.perf_counter()
    found = attack.reconstruct(
        Observation(task, update, known),
        Draws(seed).generator("attack"),
        compute=Compute(device=str(like.device), dtype=like.dtype),
    )
    seconds = time.perf_counter() - began
    pictures = torch.full_like(batch.inputs, 0.5) if found.inputs is None else found.inputs.to(batch.inputs)
    answered, evaluations = found.inputs is not None, found.cost.gradient_evaluations
    batch = Batch(batch.inputs.cpu(), batch.labels.cpu())
    return Trial(pictures.clamp(0, 1).cpu(), batch, update.tensors, answered, evaluations, seconds, found.message)


def digits_apart(a: Tensors, b: Tensors) -> float:
    """−log10(1 − cosine) of two updates in float64, at most 16."""
    return -math.log10(max(1 - float(inner(a, b) / (squared_norm(a) * squared_norm(b)).sqrt()), 1e-16))


def distinct_batches(labels: Tensor, size: int, count: int) -> list[list[int]]:
    """Consecutive images, those whose label the batch has already skipped; disjoint (the release's overlap)."""
    batches: list[list[int]] = []
    at = 0
    for _ in range(count):
        batch: dict[int, int] = {}
        while len(batch) < size:
            batch.setdefault(int(labels[at]), at)
            at += 1
        batches.append(list(batch.values()))
    return batches


@dataclass(frozen=True)
class Sheet(ItemRows):
    """The item that rows belong to, and what all its runs share."""

    metrics: Mapping[str, Metric] = field(default_factory=lambda: {"PSNR": PSNR(), "SSIM": SSIM()})

    paper: ClassVar[str] = "inverting-gradients"

    @staticmethod
    def of(item: str, inputs: Inputs, **metrics: Metric) -> Sheet:
        """With PSNR and SSIM, and other metrics by the names given."""
        return Sheet(item, inputs, {"PSNR": PSNR(), "SSIM": SSIM(), **metrics})

    @cached_property
    def source(self) -> Parquet:
        """The validation images."""
        return Parquet(path=str(self.inputs.data / "cifar10-test.parquet"))

    @cached_property
    def spec(self) -> DataSpec:
        """Their format, normalised as in the release."""
        return spec(self.source)

    def rows(
        self,
        network: Network,
        attempt: Attempt,
        batches: Sequence[Sequence[int]],
        seeds: Sequence[int] = (0,),
        *,
        setting: str = "",
        protocol: Protocol | None = None,
        told: bool = True,
        doubt: str = "",
    ) -> Iterator[Row]:
        """One row a metric over all batches and seeds (of the weights where untrained, and of the start)."""
        setting = setting or network.name
        yield from self.inputs.once(
            setting, attempt.name, lambda: self._run(network, attempt, batches, seeds, setting, protocol, told, doubt)
        )

    def _run(
        self,
        network: Network,
        attempt: Attempt,
        batches: Sequence[Sequence[int]],
        seeds: Sequence[int],
        setting: str,
        protocol: Protocol | None,
        told: bool,
        doubt: str,
    ) -> Iterator[Row]:
        made: list[list[Trial]] = []
        seeds = self.inputs.seeds(seeds)
        for seed in seeds:
            task = network.task(self.spec, seed, attempt.dtype, self.inputs.device)
            own = []
            for batch in batches:
                own.append(trial(task, self.source.read(batch), attempt.attack, seed, protocol=protocol, told=told))
                shown = ", ".join(f"{score:.1f}" for score in own[-1].scores(PSNR()))
                pace = f"{own[-1].seconds:.0f} s, {own[-1].evaluations} evaluations"
                where = f"{self.item} {setting}, {attempt.name}, seed {seed}, images {batch[0]}…"
                self.inputs.say(f"{where}: {shown} dB; {pace}")
            made.append(own)
        yield from self.scored(
            setting, attempt.name, made, seeds, doubt="; ".join(d for d in (attempt.doubt, doubt) if d)
        )

    def scored(
        self,
        setting: str,
        attack: str,
        made: Sequence[Sequence[Trial]],
        seeds: Sequence[int] = (0,),
        *,
        doubt: str = "",
    ) -> Iterator[Row]:
        """Rows from trials, seed by seed."""
        runs = [one for own in made for one in own]
        silent = sum(not one.answered for one in runs)
        if silent:
            doubt = "; ".join(d for d in (doubt, f"no answer in {silent} of {len(runs)} runs, scored as grey") if d)
        for name, metric in self.metrics.items():
            by_seed = [[score for one in own for score in one.scores(metric)] for own in made]
            yield self.row(
                setting,
                attack,
                name,
                by_seed,
                seeds,
                evaluations=sum(one.evaluations for one in runs) // len(runs),
                seconds=sum(one.seconds for one in runs) / len(runs),
                doubt=doubt,
            )
