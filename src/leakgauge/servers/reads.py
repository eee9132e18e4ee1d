"""How a dishonest server reads the answer: rows, slots, classes, and the factor of the plain gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.attacks.closed_form.proof import name_labels
from leakgauge.defenses import parts_of
from leakgauge.observation import Observation, Reconstruction, Status
from leakgauge.view.entries import OPERATIONS, SentTensor

CERTAIN = 1 / 510
"""Largest error of a certified input, in shares of the data's range: half a grey level of 8 bits."""


def gradient_factor(observation: Observation) -> float | None:
    """What to multiply the update by to get one mean gradient at the broadcast parameters.

    1 for a gradient, −1/lr for a delta of one local step of plain SGD; `None` where several steps, or steps that the
    server does not know, are summed.
    """
    told = observation.linear
    factor = None if told is None or told.decay else told.factor
    return None if factor is None else 1 / factor


def sums_gradients(observation: Observation) -> bool:
    """Whether the update is a weighted sum of gradients and nothing else: no weight decay, known protocol."""
    told = observation.linear
    return told is not None and not told.decay


def row_errors(observation: Observation, name: str, *, terms: int) -> Float[Tensor, " rows"]:
    """Bound on the rounding of a row's entries, each a sum of `terms`: by the client, and on the wire.

    A sum of n products is off by at most n·v of its largest partial sum, for which the row's largest entry stands
    (Higham, *Accuracy and Stability*, §3.1); a delta also as the parameter that it moved, once a step.
    """
    bound = SentTensor.of(observation, name, operations=terms + OPERATIONS)[...].bound
    return bound.reshape(len(bound), -1).amax(1)


def undefended(observation: Observation) -> bool:
    """Whether the server knows that there is no defence. One on the batch would not show in the numbers."""
    defense = observation.knowledge.defense
    return defense is not None and not parts_of(defense)


SLACK = 1e-2
"""How far outside the range a single example may be read, in shares of the range's width."""


@dataclass(frozen=True, eq=False)
class Slots:
    """Per slot Σ_n g_rn·z_n and Σ_n g_rn over the examples n that fell into it, for one or more rows r.

    Attributes:
        weight, bias: those sums; z is the model input, g the gradient at the row's output.
        error: largest rounding of an entry of `weight` and of `bias`, slot by slot.
        driven: slots that are not empty, by a threshold that knows the layer's rounding.
        belongs: for one raw example a slot, whether it would fall into that slot.
        steadfast: the slots keep their examples over local steps, and their inputs.
    """

    weight: Float[Tensor, "slots rows d"]
    bias: Float[Tensor, "slots rows"]
    error: tuple[Float[Tensor, " slots"], Float[Tensor, " slots"]]
    driven: Bool[Tensor, " slots"]
    belongs: Callable[[Float[Tensor, "slots d"]], Bool[Tensor, " slots"]]
    steadfast: bool = False


def read_slots(slots: Slots, observation: Observation, generator: torch.Generator) -> Reconstruction:
    """One image a slot: the least-squares ratio Σ_r b_r·W_r / Σ_r b_r², exact where the slot has one example.

    A read is *plausible* when its rows agree on the ratio, it lies in the data's range, and it would fall into the
    slot it came from. Examples that share a slot fail the first where there are several rows; with one row
    they fail only when their weights differ in sign: a convex mixture (equal labels) passes. Plausible reads
    come first, the others, clamped to the range, last; no more are given than there are examples. Labels are
    a multiset.

    `EXACT`: all reads are plausible and there are as many driven slots as examples, fewer than slots, so that none
    is shared; the update is one gradient (or the slots are steadfast), no defence is known, and rounding has moved
    no input by more than `CERTAIN`. Otherwise `CONVERGED`, and the message counts.

    With entries of the weight off by at most e and of the bias by f, a ratio x is off by at most
    (e + f·|x|)·Σ_r |b_r| / Σ_r b_r², and rows agree where residuals are within e + f·|x| + |b_r| times that.
    """
    data, examples = observation.task.data, observation.examples
    evidence = slots.bias.square().sum(1)
    chosen = (slots.driven & (evidence > 0)).nonzero()[:, 0]
    if not len(chosen):
        return Reconstruction(None, None, Status.FAILED, "no slot was driven: the layer's gradient is zero")
    ratios = torch.einsum("sr,srd->sd", slots.bias, slots.weight) / evidence[:, None]
    entry = slots.error[0][:, None] + slots.error[1][:, None] * ratios.abs()
    off = entry * (slots.bias.abs().sum(1) / evidence)[:, None]
    residual = (slots.weight - slots.bias[:, :, None] * ratios[:, None]).abs()
    allowed = entry[:, None] + slots.bias.abs()[:, :, None] * off[:, None]
    agree = (residual <= allowed + 1e-12 * slots.weight.abs()).flatten(1).all(1)
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
    fine = float(off[chosen].max()) * max(data.std) <= CERTAIN * data.range
    exact = unmixed and fine and undefended(observation)
    exact = exact and (plain or (slots.steadfast and sums_gradients(observation)))
    message = f"{driven} of {len(slots.driven)} slots driven"
    message += "" if examples is None else f" by {examples} examples"
    message += f", {certain} plausible reads, {len(chosen) - certain} doubtful ones (mixtures, or noise)"
    if not plain and not slots.steadfast:
        message += "; several or unknown local steps: reads are approximate"
    kept = raw[chosen][:examples].clamp(data.low, data.high)
    named = name_labels(observation, generator)
    return Reconstruction(
        kept.view(-1, *data.shape),
        named.labels,
        Status.EXACT if exact else Status.CONVERGED,
        message,
        None,
        named.confidence,
        paired=False,
    )
