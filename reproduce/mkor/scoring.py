"""How MKOR's paper scores a batch, and our common set beside it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from leakgauge.metrics import PSNR, SSIM, Metric, assign
from leakgauge.observation import Reconstruction
from leakgauge.task import Batch
from reproduce.metrics import PSNRPeak, SSIMCropped
from reproduce.rows import Row

SCORED = 100
"""The release scores the first 100 images of a batch."""


def paper_scores(found: Reconstruction, truth: Batch, *, scored: int = SCORED) -> dict[str, float]:
    """max/avg SSIM and PSNR of a batch, as the release computes them.

    Each of the first `scored` images is compared with the picture of its class, however many share it; a class
    that was not read gives a black picture. SSIM without the outer five pixels, PSNR with the image's own
    maximum as its peak. An exact copy counts 300 dB.
    """
    x, labels = truth.inputs[:scored], truth.labels[:scored]
    pictures = torch.zeros_like(x)
    if found.inputs is not None and found.labels is not None:
        slot = {int(label): i for i, label in enumerate(found.labels)}
        for i, label in enumerate(labels.tolist()):
            if label in slot:
                pictures[i] = found.inputs[slot[label]].to(x)
    return _summary(pictures, x)


def matched_scores(found: Reconstruction, truth: Batch, *, scored: int = SCORED) -> dict[str, float]:
    """The same four numbers for an attack that gives one picture an image: best assignment within equal labels."""
    if found.inputs is None:
        return _summary(torch.zeros_like(truth.inputs[:scored]), truth.inputs[:scored])
    mates = assign(found.inputs.to(truth.inputs), truth.inputs, labels_hat=found.labels, labels=truth.labels)
    pictures = torch.zeros_like(truth.inputs)
    pictures[list(mates.matched)] = mates.take(found.inputs.to(truth.inputs))
    return _summary(pictures[:scored], truth.inputs[:scored])


def baseline_scores(found: Reconstruction, truth: Batch, *, scored: int = SCORED) -> dict[str, float]:
    """`matched_scores`, and what the same pictures score by two rules that papers use for their baselines.

    *Best of a label* compares each true image with the picture of its label that scores best, so that one picture may
    stand for many. *Unclamped* leaves values outside [0, 1] as they are, which costs an attack without a box tens of
    decibels; MKOR's own pictures are clamped.
    """
    found_scores = matched_scores(found, truth, scored=scored)
    if found.inputs is None or found.labels is None:
        return found_scores
    pictures, x = found.inputs.to(truth.inputs), truth.inputs
    mates = assign(pictures, x, labels_hat=found.labels, labels=truth.labels)
    own = torch.zeros_like(x)
    own[list(mates.matched)] = mates.take(pictures)
    best: dict[str, list[float]] = defaultdict(list)
    for image, label in zip(x[:scored], truth.labels[:scored], strict=True):
        rivals = pictures[found.labels.to(label.device) == label]
        target = image.expand_as(rivals).contiguous()
        for name, metric in RULES.items():
            best[name].append(float(metric(rivals, target).max()) if len(rivals) else 0.0)
    unclamped = UNCLAMPED(own[:scored], x[:scored])
    found_scores |= {"max PSNR, unclamped": float(unclamped.max()), "avg PSNR, unclamped": float(unclamped.mean())}
    for name, values in best.items():
        said = "best of a label, unclamped" if name == "unclamped" else "best of a label"
        word = "PSNR" if name == "unclamped" else name
        found_scores |= {f"max {word}, {said}": max(values), f"avg {word}, {said}": statistics.fmean(values)}
    return found_scores


UNCLAMPED = PSNRPeak(data_range=2e6, low=-1e6)
"""Its peak is the image's own, so that a wide range only leaves out the clamping."""

RULES: dict[str, Metric] = {"SSIM": SSIMCropped(), "PSNR": PSNRPeak(), "unclamped": UNCLAMPED}


def single_scores(found: Reconstruction, image: torch.Tensor) -> dict[str, float]:
    """Of an attack that catches one image: only the maxima exist."""
    whole = _summary(torch.zeros_like(image) if found.inputs is None else found.inputs[:1].to(image), image)
    return {name: value for name, value in whole.items() if name.startswith("max")}


def common_scores(found: Reconstruction, truth: Batch) -> dict[str, float]:
    """Ours: one picture an image at most, windowed SSIM, PSNR with the data's range, and how many got one."""
    if found.inputs is None:
        return {"share with a picture": 0.0}
    mates = assign(found.inputs.to(truth.inputs), truth.inputs, labels_hat=found.labels, labels=truth.labels)
    x_hat, x = mates.take(found.inputs.to(truth.inputs)), truth.inputs[list(mates.matched)]
    return {
        "SSIM, one to one": float(SSIM()(x_hat, x).mean()),
        "PSNR, one to one": float(PSNR()(x_hat, x).mean()),
        "share with a picture": len(mates.matched) / len(truth),
    }


def filled_scores(found: Reconstruction, truth: Batch) -> dict[str, float]:
    """Over all images of a batch, mid-grey standing for those that the attack has no picture of."""
    pictures = torch.full_like(truth.inputs, 0.5)
    share = 0.0
    if found.inputs is not None:
        mates = assign(found.inputs.to(truth.inputs), truth.inputs, labels_hat=found.labels, labels=truth.labels)
        pictures[list(mates.matched)] = mates.take(found.inputs.to(truth.inputs))
        share = len(mates.matched) / len(truth)
    return {
        "PSNR, grey for none": float(PSNR()(pictures, truth.inputs).mean()),
        "SSIM, grey for none": float(SSIM()(pictures, truth.inputs).mean()),
        "share with a picture": share,
    }


def _summary(pictures: torch.Tensor, x: torch.Tensor) -> dict[str, float]:
    ssim, psnr = SSIMCropped()(pictures, x), PSNRPeak()(pictures, x)
    return {
        "max SSIM": float(ssim.max()),
        "avg SSIM": float(ssim.mean()),
        "max PSNR": float(psnr.max()),
        "avg PSNR": float(psnr.mean()),
    }


@dataclass
class Tally:
    """Scores of one setting and attack as they come in, and the rows that they make."""

    paper: str
    item: str
    setting: str
    attack: str
    doubt: str = ""
    scores: dict[str, dict[int, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    evaluations: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, seed: int, scores: dict[str, float], found: Reconstruction) -> None:
        """One batch of one seed; batches come in the same order in every seed."""
        for metric, value in scores.items():
            self.scores[metric][seed].append(value)
        self.evaluations.append(found.cost.gradient_evaluations)
        self.seconds.append(found.cost.seconds)

    def rows(self, seeds: Sequence[int]) -> list[Row]:
        """One row a metric; a batch is the unit of the intervals."""
        made = []
        for metric, by_seed in self.scores.items():
            per_batch = [list(values) for values in zip(*(by_seed[s] for s in seeds), strict=True)]
            made.append(
                Row(
                    paper=self.paper,
                    row=self.item,
                    setting=self.setting,
                    attack=self.attack,
                    metric=metric,
                    claimed=None,
                    per_image=per_batch,
                    seeds=list(seeds),
                    gradient_evaluations=round(statistics.fmean(self.evaluations)),
                    seconds=round(statistics.fmean(self.seconds), 3),
                    doubt=self.doubt,
                )
            )
        return made
