"""Images from pieces of a linear layer's gradient, each of which few examples drove."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.attacks.labels import CountsFromLastLayer, Unknown
from leakgauge.observation import Observation
from leakgauge.reconstruction import Cost, Reconstruction, Status
from leakgauge.servers.provenance import gradient_factor, sums_gradients, undefended

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
