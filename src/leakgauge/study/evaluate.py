"""The only place where truth meets a result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.data.lent import Lent
from leakgauge.metrics.assignment import Assignment, assign
from leakgauge.metrics.identification import identify, mean_image, nearest_public
from leakgauge.metrics.labels import label_f1, label_f1_by_prior
from leakgauge.metrics.metric import Metric
from leakgauge.metrics.pixel import MSE, PSNR, is_exact
from leakgauge.metrics.ssim import SSIM
from leakgauge.observation import Reconstruction
from leakgauge.task import Batch, DataSpec


@dataclass(frozen=True, eq=False)
class Truth:
    """What the evaluator holds and no attack does.

    Attributes:
        batch: the client's examples.
        gallery: distractors for identification.
        public: examples for the null baselines.
        others: batches of other clients, for the mismatched control.
        prior: class shares, for the label baseline.
    """

    batch: Batch
    gallery: Float[Tensor, "m *shape"] | Lent
    public: Float[Tensor, "k *shape"] | Lent
    others: tuple[Batch, ...]
    prior: Float[Tensor, " classes"]


@dataclass(frozen=True, eq=False)
class Scores:
    """`record` holds status, message, scores, labels and controls of a trial as report.json has them.

    Attributes:
        order: for each true example the slot of its reconstruction, or `None`.
    """

    record: dict[str, Any]
    order: tuple[int | None, ...]


def evaluate(
    reconstruction: Reconstruction,
    truth: Truth,
    data: DataSpec,
    *,
    labels_known: bool,
    perceptual: Metric | None = None,
) -> Scores:
    """Scores every true example: its one-to-one mate, or nothing where the attack has none.

    An example without a reconstruction scores `None`, is not identified, and stays in the count: an
    attack that gives back fewer images than the client had is not better for it.
    """
    found = reconstruction.inputs
    order: tuple[int | None, ...]
    if found is None or not reconstruction.status.has_result:
        scores, controls, order = None, _nulls(truth, data), (None,) * len(truth.batch)
    else:
        # An attack that offers more than the client had would get the best of many tries.
        found = found.to(truth.batch.inputs)[: len(truth.batch)]
        labels_hat = reconstruction.labels
        if not reconstruction.paired or (labels_hat is not None and len(labels_hat) != len(found)):
            labels_hat = None
        mates = assign(
            found,
            truth.batch.inputs,
            labels_hat=labels_hat,
            labels=truth.batch.labels,
            data_range=data.range,
            low=data.low,
        )
        scores, order = _scores(found, truth, data, mates, perceptual), mates.slots
        controls = _nulls(truth, data) | {"other_client": _other_client(found, truth, data)}
    record = {
        "status": reconstruction.status.value,
        "message": reconstruction.message,
        "scores": scores,
        "labels": _labels(reconstruction, truth, data, labels_known),
        "controls": controls,
    }
    return Scores(record, tuple(order))


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _spread(values: Tensor, mates: Assignment) -> list[float | None]:
    """One value a true example; `None` for those without a mate."""
    spread: list[float | None] = [None] * len(mates.slots)
    for index, value in zip(mates.matched, values.tolist(), strict=True):
        spread[index] = _rounded(value)
    return spread


def _scores(
    found: Tensor, truth: Truth, data: DataSpec, mates: Assignment, perceptual: Metric | None
) -> dict[str, Any]:
    x_hat, x = mates.take(found), truth.batch.inputs[list(mates.matched)]
    psnr = PSNR(data_range=data.range, low=data.low)(x_hat, x)
    ssim = SSIM(data_range=data.range, low=data.low)
    ranks = identify(found, truth.batch.inputs, mates, truth.gallery, data_range=data.range, low=data.low)
    exact: list[bool] = [False] * len(mates.slots)
    for index, flag in zip(mates.matched, is_exact(psnr).tolist(), strict=True):
        exact[index] = bool(flag)
    return {
        "psnr": _spread(psnr, mates),
        "ssim": _spread(ssim(x_hat, x), mates) if ssim.defined_for(data) else None,
        "mse": _spread(MSE(data_range=data.range, low=data.low)(x_hat, x), mates),
        "lpips": _spread(perceptual(x_hat, x), mates)
        if perceptual is not None and perceptual.defined_for(data)
        else None,
        "rank": [int(r) for r in ranks.ranks.tolist()],
        "identified": [bool(i) for i in ranks.identified.tolist()],
        "exact": exact,
        "gallery": len(truth.gallery),
    }


def _nulls(truth: Truth, data: DataSpec) -> dict[str, Any]:
    """What an attacker without the update could show: the mean picture, and the closest public picture (a
    generous bar: it is chosen by the truth)."""
    x = truth.batch.inputs
    psnr = PSNR(data_range=data.range, low=data.low)
    nearest = nearest_public(x, truth.public, data_range=data.range, low=data.low)
    return {
        "mean_image": {"psnr": [_rounded(v) for v in psnr(mean_image(truth.public, len(x)), x).tolist()]},
        "nearest_public": {"psnr": [_rounded(v) for v in psnr(nearest, x).tolist()]},
        "other_client": None,
    }


def _other_client(found: Tensor, truth: Truth, data: DataSpec) -> dict[str, Any] | None:
    """This reconstruction scored against other clients' examples: what a mismatched update gives."""
    psnr = PSNR(data_range=data.range, low=data.low)
    values: list[float] = []
    for other in truth.others:
        mates = assign(found, other.inputs, data_range=data.range, low=data.low)
        values += psnr(mates.take(found), other.inputs[list(mates.matched)]).tolist()
    return {"psnr": [_rounded(v) for v in values]} if values else None


def _labels(reconstruction: Reconstruction, truth: Truth, data: DataSpec, known: bool) -> dict[str, Any] | None:
    if reconstruction.labels is None and not known:
        return None
    guesses = len(truth.batch)
    confidence = reconstruction.label_confidence
    return {
        "true_counts_f1": _rounded(label_f1(reconstruction.labels, truth.batch.labels, data.classes)),
        "baseline_f1": _rounded(label_f1_by_prior(truth.batch.labels, truth.prior, guesses)),
        "confidence": None if confidence is None else _rounded(confidence),
        "known": known,
    }


def class_prior(labels: Tensor, classes: int) -> Float[Tensor, " classes"]:
    """Shares of the classes in a source."""
    counts = torch.bincount(labels, minlength=classes).double()
    return counts / counts.sum()
