"""MKOR on VGG16 at 224 px (tables 3 and 4, figure 10, time) and on the "modified" network."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F

from leakgauge.data import Parquet
from leakgauge.defenses import Defense, NoDefense, noise
from leakgauge.draws import Draws
from leakgauge.models import vgg16
from leakgauge.observation import Knowledge, Observation, Reconstruction
from leakgauge.servers.convolutions import PublishedTaps
from leakgauge.servers.mkor import MKOR, Crafter, Decoy, FeatureMap, LossTreatment, NLLRaw
from leakgauge.servers.server import Broadcast
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.update import Update
from reproduce.item import Inputs
from reproduce.mkor.batches import few_class_batches
from reproduce.mkor.identity import IdentityTaps, modified_lenet5
from reproduce.mkor.scoring import Tally, common_scores, paper_scores
from reproduce.mkor.shortcut import shortcut_update
from reproduce.rows import Row

SIZE = 224


@dataclass(frozen=True)
class Target:
    """A network at 224 px and MKOR's taps for it."""

    name: str
    classes: int

    @property
    def taps(self) -> Crafter[FeatureMap]:
        return PublishedTaps() if self.name == "VGG16" else IdentityTaps()

    def honest(self) -> Task:
        """Untrained, weights from seed 0; only what is not read depends on them."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            build = vgg16 if self.name == "VGG16" else modified_lenet5
            return Task.of(build(classes=self.classes, channels=3, size=SIZE), DataSpec((3, SIZE, SIZE), self.classes))


@cache
def sent(target: Target, loss: LossTreatment) -> Broadcast:
    """What the server broadcasts; kept, as VGG16 takes seconds to build."""
    return MKOR(taps=target.taps, loss=loss).broadcast(target.honest(), Draws(0).generator("server"))


def reconstructed(
    target: Target,
    loss: LossTreatment,
    batch: Batch,
    *,
    defense: Defense | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> Reconstruction:
    """One batch through the shortcut's update, the defence, and the server's read."""
    broadcast = sent(target, loss)
    if device != "cpu":
        broadcast = replace(broadcast, task=broadcast.task.to(torch.empty((), device=device)))
        batch = Batch(batch.inputs.to(device), batch.labels.to(device))
    assert broadcast.crafting is not None
    update = shortcut_update(broadcast.task, broadcast.crafting.map, batch)
    defense = defense or NoDefense()
    update = Update(defense.on_update(update.tensors, Draws(seed).generator("update")), update.header)
    labels = None if isinstance(defense, NoDefense) else batch.labels
    known = Knowledge(labels=labels, example_count=len(batch), defense=defense, crafting=broadcast.crafting)
    seen = Observation(broadcast.task, update, known)
    return broadcast.crafting.reconstruct(seen, Draws(seed).generator("attack"))


def cifar(data: Path) -> Parquet:
    """CIFAR-10's test photos."""
    return Parquet(path=str(data / "cifar10-test.parquet"))


def read(source: Parquet, indices: Sequence[int], size: int = SIZE) -> torch.Tensor:
    """Photos, resized bilinearly as the release does; a sharper filter costs 1.0 dB on CIFAR at 224 px."""
    return F.interpolate(source.read(indices).inputs, size, mode="bilinear", antialias=True).clamp(0, 1)


def unique(source: Parquet, start: int, classes: int = 100) -> Batch:
    """A run of images, image i with label i: labels mean nothing to a crafted network."""
    return Batch(read(source, range(start, start + classes)), torch.arange(classes))


LOSSES: tuple[tuple[str, LossTreatment], ...] = (("MKOR", NLLRaw()), ("MKOR, cross-entropy with decoy", Decoy()))


def table3(inputs: Inputs) -> Iterator[Row]:
    """Unique batches of 100."""
    source, batches = cifar(inputs.data), 1 if inputs.quick else 10
    for name in ("VGG16", "modified"):
        for attack, loss in LOSSES:
            run = partial(_unique, source, name, attack, loss, batches, inputs)
            yield from inputs.once(name, attack, run)
        sent.cache_clear()


def _unique(
    source: Parquet, name: str, attack: str, loss: LossTreatment, batches: int, inputs: Inputs
) -> Iterator[Row]:
    tally = Tally("mkor", "table3", name, attack)
    for u in range(batches):
        batch = unique(source, 100 * u)
        found = reconstructed(Target(name, 100), loss, batch, device=inputs.device)
        tally.add(0, paper_scores(found, batch) | common_scores(found, batch), found)
    inputs.say(f"table3 {name} {attack}")
    yield from tally.rows((0,))


def table4(inputs: Inputs) -> Iterator[Row]:
    """1 000 photos in one batch: one a class, then with labels drawn at random."""
    source = Parquet(path=str(inputs.data / "imagenet-sample-256.parquet"))
    count = 200 if inputs.quick else 1000
    seeds = inputs.seeds((0,) if inputs.quick else (0, 1, 2))
    for name in ("VGG16", "modified"):
        target = Target(name, count)
        for arrangement in ("unique", "random"):
            for ratio in (0.0, 0.1):
                defense = noise(tensor_std=ratio) if ratio else None
                setting = f"{name}, {arrangement}" + (", noise 1e-1" if ratio else "")
                some = seeds if arrangement == "random" or ratio > 0 else seeds[:1]
                run = partial(_thousand, source, target, setting, arrangement, defense, some, inputs)
                yield from inputs.once(setting, "MKOR", run)
        sent.cache_clear()


def _thousand(
    source: Parquet,
    target: Target,
    setting: str,
    arrangement: str,
    defense: Defense | None,
    seeds: Sequence[int],
    inputs: Inputs,
) -> Iterator[Row]:
    tally, count = Tally("mkor", "table4", setting, "MKOR"), target.classes
    photos = read(source, range(count))
    for seed in seeds:
        batch = Batch(photos, _labels(arrangement, count, seed))
        found = reconstructed(target, NLLRaw(), batch, defense=defense, seed=seed, device=inputs.device)
        tally.add(seed, paper_scores(found, batch, scored=count), found)
    inputs.say(f"table4 {setting}")
    yield from tally.rows(seeds)


def _labels(arrangement: str, count: int, seed: int) -> torch.Tensor:
    if arrangement == "unique":
        return torch.arange(count)
    return torch.randint(count, (count,), generator=torch.Generator().manual_seed(seed))


def figure10(inputs: Inputs) -> Iterator[Row]:
    """Quality against the number of classes of a batch of 100, with labels drawn from that many."""
    source = cifar(inputs.data)
    target, seeds = Target("VGG16", 100), inputs.seeds((0,) if inputs.quick else (0, 1, 2))
    for classes in (1, 2, 5, 10, 20, 50, 100):
        if not inputs.wants(f"{classes} classes", "MKOR"):
            continue
        tally = Tally("mkor", "figure10", f"{classes} classes", "MKOR")
        for seed in seeds:
            generator = torch.Generator().manual_seed(seed)
            pool = torch.arange(100).repeat_interleave(100)
            (indices,) = few_class_batches(pool, classes, 100, 1, generator)
            photos = read(source, torch.randperm(len(source), generator=generator)[:100].tolist())
            batch = Batch(photos, pool[indices])
            found = reconstructed(target, NLLRaw(), batch, device=inputs.device)
            tally.add(seed, paper_scores(found, batch), found)
        inputs.say(f"figure10 {classes} classes")
        yield from tally.rows(seeds)


def seconds(inputs: Inputs) -> Iterator[Row]:
    """Reading and inverting 100 pictures, without the gradient."""
    broadcast = sent(Target("VGG16", 100), NLLRaw())
    assert broadcast.crafting is not None
    batch = unique(cifar(inputs.data), 0)
    update = shortcut_update(broadcast.task, broadcast.crafting.map, batch)
    seen = Observation(broadcast.task, update, Knowledge(example_count=100, crafting=broadcast.crafting))
    tally = Tally("mkor", "time", "VGG16", "MKOR", "without the gradient; one thread")
    for _ in range(3):
        began = time.perf_counter()
        found = broadcast.crafting.reconstruct(seen, torch.Generator())
        tally.add(0, {"seconds": time.perf_counter() - began}, found)
    yield from tally.rows((0,))
