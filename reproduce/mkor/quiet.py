"""MKOR that is less easy to see: quieter taps, honest-looking rows, and plain cross-entropy without a decoy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.errors import InputError, require
from leakgauge.observation import Observation
from leakgauge.servers.mkor.convolutions import PublishedTaps, crafted_convolutions
from leakgauge.servers.mkor.mkor import UnitsPlan, crafted, idle_rows, planned, wire
from leakgauge.servers.mkor.network import NetworkLayer
from leakgauge.servers.mkor.parts import CraftedFeatures, CraftedHead, LossTreatment, Routes, Separated, negative
from leakgauge.servers.mkor.pooling import ConvolutionStep
from leakgauge.task import Task
from leakgauge.tensors import Tensors
from leakgauge.update import UpdateKind

ALIKE = 1e-3
"""Relative distance up to which two classes' rows count as the same vector."""
NEAR = 0.05
"""Absent classes have a total within this share of the largest one; one example lowers it by a share N/K."""
WHOLE = 0.25
"""Class counts within that distance of whole numbers count as these."""


@dataclass(frozen=True, kw_only=True)
class QuietTaps:
    """The same construction, less easy to see: channels in random order, taps of ordinary size, no exact zeros.

    What is not written or read keeps its weights and biases. MKOR proposes shuffling, a gain β and noise; its
    release has none of them.

    Attributes:
        shuffle: channels are drawn at random.
        beta: a tap as a multiple of the layer's largest honest weight; `None` sets taps to 1. Features then
            have the product of all taps as their scale (2e-21 in a default-initialised VGG16 at 1), which the map
            undoes.
        noise: standard deviation of what stands for zeros, relative to that of the layer's honest weights.
            The map does not undo it: in VGG16 .01, .03 and .1 give 0.9, 2.7 and 9 % relative feature error at
            taps of 1 (16 images, one draw). With small `beta` the signal shrinks from layer to layer and the
            noise, which reads channels that do not, drowns it: .01 costs 1.4 % at β = 30 and everything at 10.
        directions: four-direction layers, `None` for as many as fit.
        smooth: smooth the images as the release does.
    """

    shuffle: bool = True
    beta: float | None = None
    noise: float = 0.0
    directions: int | None = None
    smooth: bool = True

    def __post_init__(self) -> None:
        require(self.beta is None or self.beta > 0, "beta", f"is {self.beta}", "give a positive number")
        require(self.noise >= 0, "noise", f"is {self.noise}", "give a number of at least 0")

    def craft(self, task: Task, generator: torch.Generator) -> CraftedFeatures:
        def noisy(step: ConvolutionStep, weight: Tensor) -> Tensor:
            rows = weight[step.writes]
            draw = torch.randn(rows.shape, generator=generator, dtype=torch.float64)
            return (draw * self.noise * float(weight.std())).to(rows)

        return crafted_convolutions(
            task,
            noisy if self.noise else PublishedTaps().rows,
            generator,
            directions=self.directions,
            smooth=self.smooth,
            shuffle=self.shuffle,
            beta=self.beta,
        )


@dataclass(frozen=True, kw_only=True)
class Inconspicuous:
    """Shuffled units; pairs of mirrored honest rows (w, b) and (−w, −b) in the first layer; sparse rows above.

    Exactly one row of a ReLU pair is active for any input, and the class's unit in the next layer reads its pair alone,
    with positive weights, so v·|w·z + b| > 0 always passes. A used row's other entries are honest ones times
    `noise`: 0 is exact. Biases of used units above the first layer keep their size and are made positive. Sigmoid and
    tanh layers cannot die: there the first layer stays honest altogether. So does a single linear layer (behind a
    ReLU its entries take their absolute values).

    Source: the idea of MKOR, Eqs. (10)–(13), which as published do not work: they leave row n of the second layer
    honest on the untouched units, so that unit n's input is dominated by a random sum and as often negative as
    not: 50 of 100 classes are read, in the setting below, and none with their σ = 1e-5.

    Measured on layers 25088-4096-4096-100, one batch of 100 synthetic feature vectors, 100 classes, float32, nll-raw:
    largest relative error 6e-8; with `noise` .01 the median is .3 % and the largest .8 %. 2.8 % of the parameters
    change, with `asleep` 2.1 %. absent-class: median .4 %, largest 5 %, and 4e-5 and 1e-4 at `beta` .01. Still to be
    seen: mirrored rows, sparse rows or odd biases, and a gradient in rows of used units alone.

    Attributes:
        beta: size of the entries that carry the signal, per layer: 1 gives a used row the norm of an honest one.
            Small values make logits nearly equal, which absent-class needs, and the gradient small.
        noise: other entries of used rows, as a share of their honest values.
        asleep: if given, used rows stay honest on units that no class owns, and those units get a bias lower by this
            much, which must exceed any pre-activation that they can reach: dense rows for conspicuous biases.
        paths: pairs (first layer) and units (others) that a class owns. By default 1, under dropout up to 16.
    """

    beta: float = 1.0
    noise: float = 0.0
    asleep: float | None = None
    paths: int | None = None

    def __post_init__(self) -> None:
        require(self.beta > 0, "beta", f"is {self.beta}", "give a positive number")
        require(self.noise >= 0, "noise", f"is {self.noise}", "give a share ≥ 0 of the honest weights")
        require(self.asleep is None or self.asleep >= 0, "asleep", f"is {self.asleep}", "give a number ≥ 0, e.g. 1000")
        require(self.paths is None or self.paths > 0, "paths", f"is {self.paths}", "give a positive number")

    def craft(
        self, task: Task, features: CraftedFeatures, loss: LossTreatment, generator: torch.Generator
    ) -> CraftedHead:
        """See `Head.craft`. The generator draws which units are used."""
        one = planned(task, 1)
        pair = 2 if one.hidden and one.layers[0].relu else 1
        plan = planned(task, self.paths, first=pair)
        units = [_drawn(layer, plan, pair if d == 0 else 1, generator) for d, layer in enumerate(plan.hidden)]
        units.append(torch.arange(plan.outputs)[:, None])
        head: Tensors = {}
        gain, crossing = 1.0, 0.0
        for depth, layer in enumerate(plan.layers):
            last = depth == len(plan.layers) - 1
            if depth == 0:
                head |= self._first(task, layer, units[0], mirrored=pair == 2, last=last)
            else:
                values, value = self._above(task, layer, units[depth], units[depth - 1], last=last)
                head |= values
                # One of each pair is active; every other unit that a class owns is.
                active = units[depth - 1].shape[1] // (pair if depth == 1 else 1)
                gain *= value * active
                crossing += units[depth - 1].shape[1] / layer.inputs
            if self.asleep is not None and not last:
                head |= self._put_to_sleep(layer, units[depth], head)
        first = plan.layers[0]
        wiring = Routes(
            weight=first.weight,
            bias=first.bias,
            rows=units[0],
            idle=idle_rows(first.outputs, units[0]),
            gain=gain,
            loss=loss,
            lost=plan.lost,
            # Noise entries over signal entries, whose sizes `_above` sets; through idle units of a sparse row twice.
            leak=self.noise / (self.beta * min(self.beta, 1.0)) * crossing**0.5,
        )
        return CraftedHead(loss.applied(crafted(task, features, head)), wiring)

    def _first(
        self, task: Task, layer: NetworkLayer, own: Int[Tensor, "outputs p"], *, mirrored: bool, last: bool
    ) -> Tensors:
        values: Tensors = {}
        for name in (layer.weight, layer.bias):
            if name is None:
                continue
            value = task.parameters[name].clone()
            if mirrored:
                value[own[:, 1::2].flatten()] = -value[own[:, ::2].flatten()]
            elif last and layer.relu:
                value.abs_()
            values[name] = value
        return values

    def _above(
        self,
        task: Task,
        layer: NetworkLayer,
        own: Int[Tensor, "outputs p"],
        below: Int[Tensor, "outputs q"],
        *,
        last: bool,
    ) -> tuple[Tensors, float]:
        """A layer that reads used units, and the size of the entries that carry the signal."""
        honest = task.parameters[layer.weight]
        weight, rows = honest.clone(), torch.arange(len(honest)) if last else own.flatten()
        # A zero-initialised layer has no size of its own: it gets that of torch's default, rows of norm 3^(−1/2).
        norm = float(honest.norm()) or (len(honest) / 3) ** 0.5
        value = self.beta * norm / (len(honest) * below.shape[1]) ** 0.5
        if self.asleep is None:
            weight[rows] *= self.noise
        else:
            weight[rows[:, None], below.flatten()] *= self.noise
        wire(weight, own, below, value)
        values = {layer.weight: weight}
        if layer.bias is not None:
            bias = task.parameters[layer.bias].clone()
            # A logit's bias goes with its weights, so that a small β makes all logits equal.
            bias[rows] = self.beta * bias[rows] if last and not layer.relu else bias[rows].abs()
            values[layer.bias] = bias
        return values, value

    def _put_to_sleep(self, layer: NetworkLayer, own: Int[Tensor, "outputs p"], head: Tensors) -> Tensors:
        if layer.bias is None:
            raise InputError("asleep", f"needs a bias, and {layer.name} has none", "leave asleep out")
        bias = head[layer.bias].clone()
        bias[idle_rows(layer.outputs, own)] -= self.asleep or 0.0
        return {layer.bias: bias}


def _drawn(layer: NetworkLayer, plan: UnitsPlan, each: int, generator: torch.Generator) -> Int[Tensor, "outputs p"]:
    """Different units for every class."""
    count = plan.paths * each
    return torch.randperm(layer.outputs, generator=generator)[: plan.outputs * count].view(plan.outputs, count)


@dataclass(frozen=True)
class AbsentClass:
    """Plain cross-entropy with nothing conspicuous: rows of classes that the batch lacks are taken off.

    Where p_kn is the same for all n, absent classes hold Σ_k p_k·z_k and nothing else, so
    (ΔW[n] − ΔW[m])/(Δb[n] − Δb[m]) with m absent is the mean feature of class n, exactly. Not in the paper.
    Averaging several absent rows lowers noise. Absent are: classes outside known labels; outputs beyond the data's
    classes; classes with K_n = K/N − K·Σδ_n = 0 where all these counts are whole numbers, as they are for an unscaled
    gradient; else classes with the largest totals whose rows coincide (those of present classes differ, as their
    pictures do). Scaled totals alone do not tell: counts K_n of a batch of K and counts K_n − 1 of a batch of K − N
    give proportional ones.

    With unequal logits (inconspicuous head, dropout) absent rows differ among themselves: refused unless absent
    classes are known otherwise, and then the message says by how much they differ.
    """

    def applied(self, task: Task) -> Task:
        return task

    def separate(
        self, rows: Float[Tensor, "classes f"], totals: Float[Tensor, " classes"], observation: Observation
    ) -> Separated | str:
        absent = absent_classes(rows, totals, observation)
        if isinstance(absent, str):
            return f"cross-entropy shares only differences between classes: {absent}"
        reference, base = rows[absent].mean(0), totals[absent].mean()
        spread, uneven = (rows[absent] - reference).norm(dim=1).max(), (totals[absent] - base).abs().max()
        rows, totals = rows - reference, totals - base
        readable = negative(rows, totals) & ~absent
        if observation.knowledge.labels is None:
            readable &= -totals > torch.maximum(NEAR * base, 3 * uneven)
        remark = f"cross-entropy, relative to {int(absent.sum())} absent classes"
        if not bool(readable.any()):
            return rows, totals, readable, remark
        apart = float(spread / rows[readable].norm(dim=1).median())
        if apart > 1:
            return f"{remark}, whose rows differ by more than the examples' own signal: its logits are unequal"
        return rows, totals, readable, remark + (f", whose rows differ by {apart:.1e} of the signal" * (apart > ALIKE))


def absent_classes(
    rows: Float[Tensor, "classes f"], totals: Float[Tensor, " classes"], observation: Observation
) -> Bool[Tensor, " classes"] | str:
    """Outputs without an example in the batch, or why they cannot be told."""
    outputs, labels = torch.arange(len(totals)), observation.knowledge.labels
    if labels is not None:
        absent = ~torch.isin(outputs, labels.cpu())
        return absent if bool(absent.any()) else "every class is present"
    beyond = outputs >= observation.task.data.classes
    if bool(beyond.any()):
        return beyond
    counts = _counts(totals, observation)
    if counts is not None:
        return counts == 0 if bool((counts == 0).any()) else "every class is present"
    top = totals.argmax()
    if not bool(negative(rows, -totals)[top]) or float(totals[top]) < 100 * torch.finfo(rows.dtype).eps * float(
        rows.abs().max()
    ):
        return "every class is present equally often, and all denominators vanish"
    near = totals > (1 - NEAR) * totals[top]
    alike = (rows[near] - rows[top]).norm(dim=1) < ALIKE * rows[top].norm()
    if bool(alike.all()) and len(alike) > 1:
        return near
    return (
        "no two classes' rows coincide, so none is known to be absent (every class is present, "
        "the update is noisy, or the head's logits are unequal); labels would tell"
    )


def _counts(totals: Float[Tensor, " classes"], observation: Observation) -> Float[Tensor, " classes"] | None:
    """Examples per class, K_n = K/N − K·Σδ_n, if that comes out as whole numbers: then p = 1/N, and the gradient
    came unscaled. `None` otherwise, and where K is not known."""
    examples = observation.examples
    if examples is None or observation.update.header.kind is not UpdateKind.GRADIENT:
        return None
    counts = examples / observation.task.outputs - examples * totals
    whole = counts.round()
    fits = bool(((counts - whole).abs() < WHOLE).all()) and float(whole.min()) >= 0 and float(whole.sum()) == examples
    return whole if fits else None
