"""How a dishonest server reads the answer: rows, slots, classes, and the factor of the plain gradient."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.attacks.labels import CountsFromLastLayer, Unknown
from leakgauge.clients.fedavg import FedAvg
from leakgauge.defenses import NoDefense
from leakgauge.observation import Cost, Observation, Reconstruction, Status
from leakgauge.task import DataSpec, Task
from leakgauge.update import UpdateKind


def gradient_factor(observation: Observation) -> float | None:
    """What to multiply the update by to get one mean gradient at the broadcast parameters.

    1 for a gradient, −1/lr for a FedAvg delta of one local step without weight decay; `None` where several
    steps, or steps that the server does not know, are summed.
    """
    if observation.update.header.kind is UpdateKind.GRADIENT:
        return 1.0
    protocol, examples = observation.knowledge.local_training, observation.examples
    if not isinstance(protocol, FedAvg) or protocol.weight_decay or examples is None:
        return None
    return -1.0 / protocol.lr if protocol.steps(examples) == 1 else None


def sums_gradients(observation: Observation) -> bool:
    """Whether the update is a weighted sum of gradients and nothing else: no weight decay, known protocol."""
    protocol = observation.knowledge.local_training
    if observation.update.header.kind is UpdateKind.GRADIENT:
        return True
    return isinstance(protocol, FedAvg) and not protocol.weight_decay


def undefended(observation: Observation) -> bool:
    """Whether the server knows that there is no defence. One on the batch would not show in the numbers."""
    return isinstance(observation.knowledge.defense, NoDefense)


SLACK = 1e-2
"""How far outside the range a single example may be read, in shares of the range's width."""


@dataclass(frozen=True, eq=False)
class Slots:
    """Per slot Σ_n g_rn·z_n and Σ_n g_rn over the examples n that fell into it, for one or more rows r.

    Attributes:
        weight, bias: those sums; z is the model input, g the gradient at the row's output.
        driven: slots that are not empty, by a threshold that knows the layer's rounding.
        belongs: for one raw example a slot, whether it would fall into that slot.
        steadfast: the slots keep their examples over local steps, and their inputs.
    """

    weight: Float[Tensor, "slots rows d"]
    bias: Float[Tensor, "slots rows"]
    driven: Bool[Tensor, " slots"]
    belongs: Callable[[Float[Tensor, "slots d"]], Bool[Tensor, " slots"]]
    steadfast: bool = False


def expected_alone(examples: int, slots: int) -> float:
    """Expected number of examples that have a slot of their own: n·(1 − 1/k)^(n−1), all slots equally likely."""
    return examples * (1 - 1 / slots) ** (examples - 1)


def read_slots(slots: Slots, observation: Observation, generator: torch.Generator) -> Reconstruction:
    """One image a slot: the least-squares ratio Σ_r b_r·W_r / Σ_r b_r², exact where the slot has one example.

    A read is *plausible* when its rows agree on the ratio, it lies in the data's range, and it would fall into the
    slot it came from. Examples that share a slot fail the first where there are several rows; with one row
    they fail only when their weights differ in sign: a convex mixture (equal labels) passes. Plausible reads
    come first, the others, clamped to the range, last; no more are given than there are examples. Labels are
    a multiset.

    `EXACT`: all reads are plausible and there are as many driven slots as examples, fewer than slots, so that none
    is shared; the update is one gradient (or the slots are steadfast) and no defence is known. Otherwise
    `CONVERGED`, and the message counts.
    """
    began = time.perf_counter()
    data, examples = observation.task.data, observation.examples
    evidence = slots.bias.square().sum(1)
    chosen = (slots.driven & (evidence > 0)).nonzero()[:, 0]
    if not len(chosen):
        return Reconstruction(None, None, Status.FAILED, "no slot was driven: the layer's gradient is zero")
    ratios = torch.einsum("sr,srd->sd", slots.bias, slots.weight) / evidence[:, None]
    explained = slots.bias[:, :, None] * ratios[:, None]
    energy = slots.weight.square().sum((1, 2)).clamp_min(torch.finfo(slots.weight.dtype).tiny)
    agree = (slots.weight - explained).square().sum((1, 2)) / energy < (1e3 * torch.finfo(ratios.dtype).eps) ** 2
    raw = data.denormalise(ratios.nan_to_num().view(-1, *data.shape)).flatten(1)
    margin = SLACK * data.range
    inside = ((raw >= data.low - margin) & (raw <= data.high + margin)).all(1)
    plausible = (agree & inside & slots.belongs(raw))[chosen]
    strongest = evidence[chosen].argsort(descending=True)
    order = strongest[plausible[strongest].int().argsort(descending=True, stable=True)]
    chosen, plausible = chosen[order], plausible[order]

    driven, certain = int(slots.driven.sum()), int(plausible.sum())
    plain = gradient_factor(observation) is not None
    unmixed = driven == examples and driven < len(slots.driven) and certain == driven
    exact = unmixed and undefended(observation) and (plain or (slots.steadfast and sums_gradients(observation)))
    message = f"{driven} of {len(slots.driven)} slots driven"
    message += "" if examples is None else f" by {examples} examples"
    message += f", {certain} plausible reads, {len(chosen) - certain} doubtful ones (mixtures, or noise)"
    if not plain and not slots.steadfast:
        message += "; several or unknown local steps: reads are approximate"
    kept = raw[chosen][:examples].clamp(data.low, data.high)
    labels, confidence = observation.knowledge.labels, None
    if labels is None:
        guess = CountsFromLastLayer().infer(observation, generator)
        if not isinstance(guess, Unknown):
            labels, confidence = guess.labels, guess.confidence
    return Reconstruction(
        kept.view(-1, *data.shape),
        labels,
        Status.EXACT if exact else Status.CONVERGED,
        message,
        None,
        confidence,
        Cost(0, time.perf_counter() - began),
        paired=False,
    )


DECOY_BIAS = 50.0
"""Lead of the decoy's logit. e⁻⁴⁰ would be below the rounding of float64; the rest is room for local steps."""


def decoy_of(task: Task) -> int:
    """An output that no label has, where the model has one; else class 0, whose examples are then not read."""
    return task.data.classes if task.outputs > task.data.classes else 0


@dataclass(frozen=True, eq=False)
class ClassFeatures:
    """Mean feature per class that was seen.

    Attributes:
        features: one row a class, at `classes`.
        counts: examples of each; `None` where the update's scale is unknown.
    """

    classes: Int[Tensor, " k"]
    features: Float[Tensor, "k f"]
    counts: Int[Tensor, " k"] | None


def class_features(
    observation: Observation, weight: str, bias: str, columns: slice, decoy: int
) -> ClassFeatures | None:
    """W_c ÷ b_c for every class but the decoy; `None` where no class was seen.

    The decoy's logit leads by `DECOY_BIAS`, so that softmax gives p ≈ 0 elsewhere and ∂L/∂logit_c is −1/n on the
    examples of class c and 0 on all others: the ratio is the mean feature of the class, and −n·∂L/∂b_c its count.
    """
    tensors, factor = observation.update.tensors, gradient_factor(observation)
    sign = 1.0 if observation.update.header.kind is UpdateKind.GRADIENT else -1.0
    rows, totals = tensors[weight][:, columns], tensors[bias] * sign
    seen = totals < -1e-6 * totals.abs().max()
    seen[decoy] = False
    seen[observation.task.data.classes :] = False
    classes = seen.nonzero()[:, 0]
    if not len(classes):
        return None
    counts: Tensor | None = None
    if factor is not None and observation.examples is not None:
        exact = -observation.examples * tensors[bias][classes] * factor
        whole = exact.round()
        # A defence that changed the numbers shows here.
        if bool(((exact - whole).abs() < 1e-4 * whole.clamp_min(1)).all()) and bool((whole > 0).all()):
            counts = whole.long()
    features = rows[classes] * sign / totals[classes][:, None]
    return ClassFeatures(classes, features, counts)


def inside(raw: Float[Tensor, "k *shape"], data: DataSpec) -> bool:
    """Whether all examples lie in the data's range, up to a hundredth of its width."""
    margin = 1e-2 * data.range
    return bool(((raw >= data.low - margin) & (raw <= data.high + margin)).all())


def exactly_all(found: ClassFeatures, examples: int | None) -> bool:
    """Whether every example of the batch is the only one of its class, and none is of the decoy's."""
    if found.counts is None or examples is None:
        return False
    return bool((found.counts == 1).all()) and int(found.counts.sum()) == examples


def summary(found: ClassFeatures, examples: int | None) -> str:
    """What was read, for the report."""
    shown = f"{len(found.classes)} classes read"
    if found.counts is None:
        return f"{shown}; how many examples each of them has is not known"
    alone = int((found.counts == 1).sum())
    missing = "" if examples is None else f", {examples - int(found.counts.sum())} examples of the decoy class unread"
    return f"{shown}, {alone} of them with one example, the others as means{missing}"
