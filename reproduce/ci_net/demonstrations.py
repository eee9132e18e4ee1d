"""CI-Net's two arguments about matching, shown by small computations, and the question to ask before it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from leakgauge.attacks.matching import BoundedLBFGS, Cosine, Given, Matching, Pixels, TotalVariation
from leakgauge.attacks.recipes.information import image_information
from leakgauge.clients import FedSGD, client_update
from leakgauge.data import Samples
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR
from leakgauge.models import lenet
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Batch, DataSpec, Mode, Task
from leakgauge.tensors import map_tensors, squared_norm
from reproduce.ci_net.runs import SEEDS, Sheet, Target
from reproduce.item import Inputs
from reproduce.rows import Row

PICTURES = DataSpec((3, 16, 16), 4)


def linear(classes: int = 4) -> nn.Module:
    """A linear layer on the pixels: the network of Proposition 1."""
    return nn.Sequential(nn.Flatten(), nn.Linear(PICTURES.shape[0] * 16 * 16, classes))


def twin(task: Task, batch: Batch, generator: torch.Generator) -> Batch:
    """Another batch inside the data's range with the very same update, for a linear layer and cross-entropy.

    The update is RᵀX with residuals R (examples by classes). A change D with RᵀD = 0 and D Wᵀ = 0 leaves the
    logits, hence R, and the product as they were; there is one as soon as the examples outnumber R's rank, at most
    classes − 1, and the pixels outnumber the classes. Where there is none the batch itself comes back.
    """
    weight = task.parameters["1.weight"]
    logits = task.logits(task.parameters, task.buffers, batch.inputs)[0]
    residual = logits.softmax(1) - nn.functional.one_hot(batch.labels, weight.shape[0])
    change = torch.randn(batch.inputs.flatten(1).shape, generator=generator, dtype=torch.float64)
    change = _without(_without(change.T, weight.T).T, residual)
    if float(change.norm()) < 1e-9 * change.numel() ** 0.5:
        return batch
    room = torch.minimum(batch.inputs, 1 - batch.inputs).flatten(1)
    scale = float((room / change.abs().clamp_min(1e-12)).min())
    return Batch(batch.inputs + (scale * change).view_as(batch.inputs), batch.labels)


def _digits(distance: float) -> float:
    """How many decimal digits two things share: 16, those of float64, where they are the same."""
    return -math.log10(max(distance, 1e-16))


def _without(columns: Tensor, span: Tensor) -> Tensor:
    """Columns less their part in the span of others."""
    basis = torch.linalg.svd(span, full_matrices=False)
    base = basis.U[:, 1e-9 * basis.S[0] < basis.S]
    return columns - base @ (base.T @ columns)


def proposition1(inputs: Inputs) -> Iterator[Row]:
    """Eight photos, four classes: the twin's update against the batch's, and how far the pictures are apart."""
    sheet = Sheet("proposition1", inputs)
    photos = Samples(size=16).read(range(8)).inputs.double() * 0.8 + 0.1
    batch = Batch(photos, torch.arange(8) % 4)
    updates, apart = [], []
    for seed in inputs.seeds(SEEDS):
        torch.manual_seed(seed)
        task = Task.of(linear().double(), PICTURES)
        other = twin(task, batch, torch.Generator().manual_seed(seed))
        one, two = (
            client_update(inputs.placed(task), FedSGD(), inputs.secret(b), Draws(0)).tensors for b in (batch, other)
        )
        gap = squared_norm(map_tensors(torch.sub, one, two)) / squared_norm(one)
        updates.append([_digits(float(gap.sqrt()))])
        apart.append(PSNR()(other.inputs, batch.inputs).tolist())
    setting = "linear layer, 4 classes, batch 8"
    yield sheet.row(
        setting, "twin batch", "−log10 of the relative distance of the updates", updates, inputs.seeds(SEEDS)
    )
    yield sheet.row(setting, "twin batch", "PSNR of the twin's pictures", apart, inputs.seeds(SEEDS))


def regulariser(inputs: Inputs) -> Iterator[Row]:
    """From the truth itself, LeNet, one photo at 32 px: where the total objective's minimum near it lies, by weight."""
    sheet = Sheet("regulariser", inputs)
    batch = Samples(size=32).read([0])
    batch = inputs.secret(Batch(batch.inputs.double(), batch.labels % 10))
    for weight in (0.0, 1e-5, 1e-4, 1e-3, 1e-2):
        values = []
        for seed in inputs.seeds(SEEDS):
            torch.manual_seed(seed)
            task = inputs.placed(Task.of(lenet().double(), DataSpec((3, 32, 32), 10)))
            update = client_update(task, FedSGD(), batch, Draws(0))
            seen = Observation(task, update, Knowledge(labels=batch.labels, local_training=FedSGD()))
            attack = Matching(
                objective=Cosine(),
                prior=TotalVariation(weight, smoothing=1e-6),
                canvas=Pixels(first=Given(batch.inputs)),
                minimiser=BoundedLBFGS(steps=60 if inputs.quick else 300),
            )
            found = attack.reconstruct(seen, torch.Generator(), compute=inputs.compute(torch.float64))
            values.append(PSNR()(found.inputs, batch.inputs).tolist())
        yield sheet.row(
            "LeNet, one photo", f"total variation {weight:g}", "PSNR of the minimum", values, inputs.seeds(SEEDS)
        )


def information(inputs: Inputs) -> Iterator[Row]:
    """The question of `image_information` for the narrow ResNet in both modes and for LeNet."""
    sheet = Sheet("information", inputs)
    cases = (
        Target(name="ResNet-18 of width 16, 4 labels, train mode"),
        Target(name="ResNet-18 of width 16, 4 labels, eval mode", mode=Mode.EVAL),
        Target(name="LeNet, 4 labels", build=lenet, mode=Mode.EVAL),
    )
    for target in cases:
        batch = target.batch(inputs.data)
        asked = [
            image_information(target.observe(batch, s, inputs.device), 4, torch.Generator().manual_seed(s))
            for s in inputs.seeds(SEEDS)
        ]
        yield sheet.row(target.name, "whole update", "−log10(1 − cosine)", [[_digits(a.gap)] for a in asked], SEEDS)
        yield sheet.row(
            target.name, "widest tensor", "−log10(1 − cosine)", [[_digits(a.tensor_gap)] for a in asked], SEEDS
        )
