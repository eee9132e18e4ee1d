"""ROG's post-processing, measured: what the denoiser gains on its canvas and on reconstructions, and what it invents.

Truth stays with the measurement: the denoiser sees degraded pictures and, where it is conditional, labels.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.recipes.papers import rog
from leakgauge.clients import FedSGD, client_update
from leakgauge.data import Parquet, gallery
from leakgauge.draws import Draws
from leakgauge.metrics import LPIPS, PSNR
from leakgauge.metrics.likeness import Assignment
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Batch, DataSpec, Task
from reproduce.denoiser.degradations import shrunk
from reproduce.denoiser.polish import CONDITIONAL, Denoise
from reproduce.item import Inputs
from reproduce.metrics.identification import identify
from reproduce.rog.networks import rog_lenet
from reproduce.rows import Row

DISTRACTORS, BATCH = 200, 4
LPIPS_WEIGHTS = "lpips-alex-v0.1.safetensors"


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Held-out pictures, evenly taken from a file, and whether their labels are the conditional denoiser's."""

    file: str
    size: int
    labelled: bool

    @property
    def name(self) -> str:
        return f"{self.file.removesuffix('.parquet')}, {self.size} px"

    def read(self, folder: Path, n: int) -> tuple[Batch, Float[Tensor, "m c h w"]]:
        """The pictures and a gallery of others."""
        source = Parquet(path=str(folder / self.file), size=self.size)
        indices = list(range(0, len(source), len(source) // n))[:n]
        return source.read(indices), gallery(source, indices, DISTRACTORS, torch.Generator().manual_seed(0))


HELD_OUT = (
    Pictures(file="cifar10-test.parquet", size=32, labelled=True),
    Pictures(file="imagenet-sample-256.parquet", size=64, labelled=False),
)


def canvas(images: Float[Tensor, "n c h w"], sigma: float) -> Float[Tensor, "n c h w"]:
    """What ROG's canvas shows after a search that missed by `sigma` (standard deviation) at the small size."""
    small = shrunk(images, 4)
    small = small + sigma * torch.randn(small.shape, generator=torch.Generator().manual_seed(0))
    large = torch.nn.functional.interpolate(small, images.shape[-2:], mode="bicubic", align_corners=False)
    return large.clamp(0, 1)


def reconstructed(batch: Batch, size: int, inputs: Inputs) -> tuple[Float[Tensor, "n c h w"], float]:
    """ROG's answers to the updates of clients of four pictures each, undefended, ROG's LeNet; seconds of one."""
    classes = 1 + int(batch.labels.max())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        task = Task.of(rog_lenet(classes=classes, size=size), DataSpec(tuple(batch.inputs.shape[1:]), classes))
    task = inputs.placed(task)
    found, seconds = [], []
    for start in range(0, len(batch), BATCH):
        client = inputs.secret(batch.take(torch.arange(start, start + BATCH)))
        update = client_update(task, FedSGD(), client, Draws(start))
        observation = Observation(task, update, Knowledge(labels=client.labels, local_training=FedSGD()))
        answer = rog().reconstruct(observation, torch.Generator().manual_seed(start), compute=inputs.compute())
        assert answer.inputs is not None, answer.message
        found.append(answer.inputs.cpu().clamp(0, 1))
        seconds.append(answer.cost.seconds)
        inputs.say(f"ROG {size} px, client {start // BATCH + 1} of {len(batch) // BATCH}: {seconds[-1]:.0f} s")
    return torch.cat(found), sum(seconds) / len(seconds)


def in_order(n: int) -> Assignment:
    """Each answer stands for the truth of its own number: labels, and so the order, are known."""
    return Assignment(tuple(range(n)))


def postprocessing(inputs: Inputs) -> Iterator[Row]:
    """At 32 and 64 px, on degraded pictures and on ROG's answers: scores without, with, and with the twin.

    "mismatched" rows are the control: each answer is held against the truth of another client (the pictures moved on
    by one batch). Whoever is identified there was invented. So is what LPIPS gains where the canvas shows noise
    instead of the picture: it says how much of a gain is mere texture.
    """
    n = 16 if inputs.quick else 96
    attacked = 8 if inputs.quick else 64
    lpips = LPIPS(weights=str(inputs.data.parent / "weights" / LPIPS_WEIGHTS))
    for pictures in HELD_OUT:
        batch, others = pictures.read(inputs.data, n)
        for sigma in (0.0, 0.1):
            setting = f"{pictures.name}, canvas with noise {sigma:g}"
            yield from _rows(setting, "canvas", canvas(batch.inputs, sigma), batch, others, lpips, pictures.labelled)
        noise = torch.rand(batch.inputs.shape, generator=torch.Generator().manual_seed(1))
        setting = f"{pictures.name}, canvas of noise instead of the picture"
        yield from _rows(setting, "canvas", canvas(noise, 0.1), batch, others, lpips, pictures.labelled)
        some = batch.take(torch.arange(attacked))
        answers, seconds = reconstructed(some, pictures.size, inputs)
        setting = f"{pictures.name}, updates of ROG's LeNet, batch {BATCH}"
        yield from _rows(setting, "ROG", answers, some, others, lpips, pictures.labelled, seconds)


def _rows(
    setting: str,
    attack: str,
    given: Float[Tensor, "n c h w"],
    batch: Batch,
    others: Float[Tensor, "m c h w"],
    lpips: LPIPS,
    labelled: bool,
    seconds: float = 0.0,
) -> Iterator[Row]:
    began = time.perf_counter()
    pictures = {attack: given, f"{attack} + denoiser": Denoise()(given)}
    if labelled:
        both = Denoise(conditional=CONDITIONAL)
        pictures[f"{attack} + denoiser, half conditional"] = both(given, batch.labels)
    each = (time.perf_counter() - began) / len(given)
    truth, order = batch.inputs, in_order(len(batch))
    before = lpips(given, truth)
    for name, images in pictures.items():
        after = lpips(images, truth)
        own, strange = (identify(shown, truth, order, others) for shown in (images, images.roll(BATCH, 0)))
        found = {
            "LPIPS": after,
            "LPIPS gained, %": 100 * (1 - after / before),
            "L1": (images - truth).abs().flatten(1).mean(1),
            "PSNR": PSNR()(images, truth),
            "identified": own.identified,
            "rank": own.ranks,
            "identified, mismatched": strange.identified,
            "rank, mismatched": strange.ranks,
        }
        for metric, values in found.items():
            yield Row(
                paper="rog",
                row="postprocessing",
                setting=setting,
                attack=name,
                metric=metric,
                claimed=None,
                per_image=[[float(value)] for value in values],
                seeds=[0],
                gradient_evaluations=0,
                seconds=round(seconds + (0.0 if images is given else each), 3),
                doubt=f"{len(batch)} pictures, gallery of {len(others)}",
            )
