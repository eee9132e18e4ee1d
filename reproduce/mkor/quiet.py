"""MKOR that is less easy to see: quieter taps, honest-looking rows, and plain cross-entropy without a decoy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.errors import InputError, require
from leakgauge.observation import Observation
from leakgauge.servers.convolutions import PublishedTaps
from leakgauge.servers.mkor import IDLE, Routes, Separated, negative, routes, wired
from leakgauge.servers.network import NetworkLayer
from leakgauge.task import Task
from leakgauge.tensors import Tensors
from leakgauge.update import UpdateKind
from reproduce.mkor.pooled import ScaledMap

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

    def craft(self, task: Task, generator: torch.Generator) -> tuple[Tensors, ScaledMap]:
        crafted, made = PublishedTaps(directions=self.directions, smooth=self.smooth).craft(task, generator)
        steps, scale = [], 1.0
        reads = made.steps[0].reads
        for step in made.steps:
            outputs = step.stage.outputs
            order = torch.randperm(outputs, generator=generator) if self.shuffle else torch.arange(outputs)
            steps.append(replace(step, reads=reads, writes=order[: len(step.writes)].clone()))
            reads = steps[-1].writes
        given, state = {**task.parameters, **task.buffers}, Tensors()
        for old, new in zip(made.steps, steps, strict=True):
            name, bias = new.stage.weight, new.stage.bias
            honest = given[name]
            published = crafted[name][old.writes][:, old.reads].double()
            tap = 1.0
            if self.beta is not None:
                largest = float(published.max()) if new is steps[0] else 1.0
                tap = self.beta * float(honest.abs().max()) / largest
            scale *= tap
            weight = honest.clone()
            weight[new.writes] = self._background(weight[new.writes], float(honest.std()), generator)
            there = new.writes[:, None], new.reads
            weight[there] = torch.where(published != 0, tap * published, weight[there].double()).to(weight)
            state[name] = weight
            if bias is not None:
                state[bias] = given[bias].clone()
                state[bias][new.writes] = (tap * crafted[bias][old.writes].double()).to(weight)
        return state, ScaledMap(**{**vars(made), "steps": tuple(steps), "scale": scale})

    def _background(self, rows: Tensor, spread: float, generator: torch.Generator) -> Tensor:
        """What stands beside the taps."""
        if not self.noise:
            return torch.zeros_like(rows)
        draw = torch.randn(rows.shape, generator=generator, dtype=torch.float64)
        return (draw * self.noise * spread).to(rows)


@dataclass(frozen=True, eq=False)
class PairedRoutes(Routes):
    """Class n drives the rows ``rows[n]`` of the first linear layer.

    With A_kn ≥ 0 the weight of the path from those rows to the logit (constant for ReLUs), Σ ΔW[rows] =
    Σ_k A_kn·δ_kn·z_k and Σ Δb[rows] = Σ_k A_kn·δ_kn: their ratio is weighted by A.
    """

    rows: Int[Tensor, "outputs r"]  # one line a logit, the data's classes first
    gain: float  # A where it is one number, else 1
    leak: float  # share of another class's total that a head which is not exact lets into a class's rows

    def sums(
        self, observation: Observation, positions: Int[Tensor, " f"]
    ) -> tuple[Float[Tensor, "outputs f"], Float[Tensor, " outputs"]]:
        """Σ A·δ·z and Σ A·δ per logit over `gain`, as of a gradient; NaN of what was not sent and may be large."""
        weight, bias = observation.update.tensors[self.weight], observation.values(self.bias)
        view, scale = observation.defended, 1 / self.gain
        if observation.update.header.kind is UpdateKind.DELTA:
            scale = -scale
        support = None if view.support is None else view.support[self.weight]
        rows = weight.new_zeros(len(self.rows), len(positions), dtype=torch.promote_types(weight.dtype, torch.float32))
        totals = weight.new_zeros(len(self.rows), dtype=torch.float64)
        positions = positions.to(weight.device)
        for n, own in enumerate(self.rows.to(weight.device)):
            total, pulled = bias[own].sum(), weight[own][:, positions].double().sum(0)
            if support is not None:
                seen = bias[own] @ support[own][:, positions].double()
                # What was not sent is near zero after top-k, and unknown otherwise.
                unsent = 0.0 if view.unsent_small else float("nan")
                pulled = torch.where(seen != 0, pulled * (total / seen.where(seen != 0, total)).to(pulled), unsent)
            rows[n], totals[n] = scale * pulled, scale * total
        return rows.cpu(), totals.cpu()

    def floor(self, observation: Observation, totals: Float[Tensor, " outputs"]) -> float:
        """Standard deviation of what is no signal in the totals: by the known defence or idle rows, and `leak`."""
        scale = observation.defended.noise_scale
        one = 0.0 if scale is None else float(scale[self.bias])
        bias = observation.values(self.bias)
        if len(idle := _idle(len(bias), self.rows)) >= IDLE:
            one = max(one, float(bias[idle].square().mean().sqrt()))
        return math.hypot(one * self.rows.shape[1] ** 0.5 / self.gain, self.leak * float(totals.norm()))


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
    """

    beta: float = 1.0
    noise: float = 0.0
    asleep: float | None = None

    def __post_init__(self) -> None:
        require(self.beta > 0, "beta", f"is {self.beta}", "give a positive number")
        require(self.noise >= 0, "noise", f"is {self.noise}", "give a share ≥ 0 of the honest weights")
        require(self.asleep is None or self.asleep >= 0, "asleep", f"is {self.asleep}", "give a number ≥ 0, e.g. 1000")

    def craft(self, task: Task, generator: torch.Generator) -> tuple[Tensors, Routes]:
        """See `Crafter.craft`. The generator draws which units are used."""
        layers, outputs = wired(task)
        *hidden, last = layers
        first, classes = layers[0], task.data.classes
        pair = 2 if hidden and first.relu else 1
        room = first.outputs // pair
        problem = f"has room for {room} pairs in its first linear layer, and the data have {classes} classes"
        require(room >= classes, "model", problem, "give a wider first layer")
        outputs = min(outputs, room)
        units = [_drawn(layer, outputs, pair if layer is first else 1, generator) for layer in hidden]
        units.append(torch.arange(outputs)[:, None])
        head: Tensors = {}
        gain, crossing = 1.0, 0.0
        for depth, layer in enumerate(layers):
            if layer is first:
                head |= self._first(task, layer, units[0], mirrored=pair == 2, last=layer is last)
            else:
                values, value = self._above(task, layer, units[depth], units[depth - 1], last=layer is last)
                head |= values
                # One of each pair is active; every other unit that a class owns is.
                gain *= value
                crossing += units[depth - 1].shape[1] / layer.inputs
            if self.asleep is not None and layer is not last:
                head |= self._put_to_sleep(layer, units[depth], head)
        # Noise entries over signal entries, whose sizes `_above` sets; through idle units of a sparse row twice.
        leak = self.noise / (self.beta * min(self.beta, 1.0)) * crossing**0.5
        through = routes(first, outputs)
        return head, PairedRoutes(through.weight, through.bias, outputs, units[0], gain, leak)

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
        weight[own[:, :, None], below[:, None, :]] = value
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
        bias[_idle(layer.outputs, own)] -= self.asleep or 0.0
        return {layer.bias: bias}


def _drawn(layer: NetworkLayer, outputs: int, each: int, generator: torch.Generator) -> Int[Tensor, "outputs p"]:
    """Different units for every class."""
    return torch.randperm(layer.outputs, generator=generator)[: outputs * each].view(outputs, each)


def _idle(width: int, used: Int[Tensor, "outputs p"]) -> Int[Tensor, " m"]:
    """Units that no class owns."""
    free = torch.ones(width, dtype=torch.bool)
    free[used.flatten()] = False
    return free.nonzero().flatten()


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

    Under several local steps leave the scale of `Constant` at 1: small activations silence units.

    With unequal logits (inconspicuous head) absent rows differ among themselves: refused unless absent
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
