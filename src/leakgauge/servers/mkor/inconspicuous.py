"""A head that keeps honest-looking rows, and works."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from leakgauge.errors import InputError, require
from leakgauge.registry import HEADS
from leakgauge.servers.mkor.heads import UnitsPlan, crafted, idle_rows, planned, wire
from leakgauge.servers.mkor.network import NetworkLayer
from leakgauge.servers.mkor.parts import CraftedFeatures, CraftedHead, LossTreatment
from leakgauge.servers.mkor.wiring import Routes
from leakgauge.task import Task
from leakgauge.tensors import Tensors


@HEADS.register("inconspicuous", needs="hidden linear layers with a unit for every class, the first with two")
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
