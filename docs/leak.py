"""The pictures of the first screen: true photos beside what came back. `python docs/leak.py` makes them anew.

It writes `leak.png`, `leak-defended.png` and their numbers, `leak.json`, into `docs/images`. Seconds are those of the
process on one thread.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import leakgauge as lg
from leakgauge.defenses import DPSGD, Clip, Defense, NoDefense, TopK, noise
from leakgauge.models import lenet, resnet18

HERE = Path(__file__).parent / "images"
PHOTOS = lg.data.Samples(size=32)
RESNET_PHOTOS = range(8)
DEFENDED_PHOTO = 2
DEFENSES: dict[str, Defense] = {
    "no defence": NoDefense(),
    "clip": Clip(norm=1.0),
    "noise, 1/10": noise(relative=0.1),
    "top-k 5 %": TopK(keep=0.05),
    "noise, 1/1": noise(relative=1.0),
    "DP-SGD": DPSGD(norm=1.0, noise_multiplier=0.1),
}
"""Caption → defence; noise in shares of the update's norm."""


def attacked(task: lg.Task, photo: int, defense: Defense, budget: lg.Budget) -> tuple[Tensor, dict[str, Any]]:
    """What came back of one photo in one gradient, and its numbers."""
    batch = PHOTOS.read([photo])
    update = lg.clients.client_update(task, lg.clients.FedSGD(), batch, lg.Draws(seed=1), defense=defense)
    knows = lg.Knowledge(local_training=lg.clients.FedSGD(), example_count=1, defense=defense)
    began = time.process_time()
    found = lg.attack(task, update, knows=knows, budget=budget)
    seconds = time.process_time() - began
    inputs = torch.full_like(batch.inputs, 0.5) if found.inputs is None else found.inputs
    row = {"photo": photo, "db": round(float(lg.metrics.PSNR()(inputs, batch.inputs)), 1), "seconds": round(seconds, 1)}
    row |= {"certified": found.certified is not None and bool(found.certified.all())}
    row |= {"evaluations": found.cost.gradient_evaluations, "status": found.status.value}
    return inputs[0], row


def resnet() -> tuple[list[Tensor], list[dict[str, Any]]]:
    """A ResNet-18 of a quarter of its width, untrained, eval mode: one photo an update."""
    read, rows = [], []
    for photo in RESNET_PHOTOS:
        torch.manual_seed(11)
        task = lg.Task.of(resnet18(width=16, classes=PHOTOS.classes), lg.data.spec(PHOTOS))
        picture, row = attacked(task, photo, NoDefense(), lg.Budget())
        read.append(picture)
        rows.append(row)
    return read, rows


def defended() -> tuple[list[Tensor], list[dict[str, Any]]]:
    """An untrained LeNet, one photo behind each defence, which the attacker knows."""
    read, rows = [], []
    for caption, defense in DEFENSES.items():
        torch.manual_seed(0)
        task = lg.Task.of(lenet(classes=PHOTOS.classes), lg.data.spec(PHOTOS))
        picture, row = attacked(task, DEFENDED_PHOTO, defense, lg.Budget(gradient_evaluations=400))
        read.append(picture)
        rows.append({"defense": caption} | row)
    return read, rows


def shown(file: str, columns: list[list[Tensor]], words: list[str], sides: list[str]) -> None:
    """A grid of pictures, words under each column, a word beside each row."""
    figure = Figure(figsize=(0.95 * len(columns) + 0.5, 0.95 * len(sides) + 0.35), dpi=100)
    axes = figure.subplots(len(sides), len(columns), squeeze=False)
    for column, pictures in enumerate(columns):
        for line, picture in enumerate(pictures):
            axis = axes[line, column]
            axis.imshow(picture.clamp(0, 1).permute(1, 2, 0), interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            if column == 0:
                axis.set_ylabel(sides[line], fontsize=9)
        axes[-1, column].set_xlabel(words[column], fontsize=8)
    figure.subplots_adjust(left=0.06, right=0.995, top=0.99, bottom=0.19, wspace=0.06, hspace=0.06)
    figure.savefig(HERE / file, bbox_inches="tight", pad_inches=0.02)


def main() -> None:
    """Both pictures and their numbers."""
    lg.Compute(threads=1).apply()
    truth = PHOTOS.read(RESNET_PHOTOS).inputs
    read, rows = resnet()
    words = [f"{row['db']:.0f} dB, {row['seconds']:.0f} s" for row in rows]
    shown("leak.png", [[t, r] for t, r in zip(truth, read, strict=True)], words, ["true", "read back"])
    behind, others = defended()
    words = [f"{row['defense']}\n{row['db']:.0f} dB, {row['seconds']:.0f} s" for row in others]
    shown("leak-defended.png", [[one] for one in behind], words, ["read back"])
    numbers = {"resnet18, width 16": rows, "lenet": others}
    (HERE / "leak.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
