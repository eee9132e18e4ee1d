"""Local training: one gradient of the batch (FedSGD), SGD (FedAvg), or any loop that people write; and its losses."""

from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from leakgauge.clients.optimisers import SGD, CosineRate, Optimiser, OptimiserState, RateSchedule, linear_steps, root
from leakgauge.clients.protocol import GradientRule, GradientSum, Protocol
from leakgauge.draws import Draws
from leakgauge.errors import Checked, limited, not_negative, positive, require
from leakgauge.registry import CLIENTS, TRAINING_LOSSES
from leakgauge.task import Batch, Loss, Task, cross_entropy
from leakgauge.tensors import Tensors, map_tensors, squared_norm
from leakgauge.update import UpdateKind


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(Checked):
    """``torch.nn.CrossEntropyLoss``, mean over the batch; `weights` of the classes, empty for equal ones."""

    label_smoothing: float = limited(0.0, lambda share: 0 <= share <= 1, "give a number from 0 to 1")
    weights: tuple[float, ...] = limited((), lambda each: all(w >= 0 for w in each), "give one a class, each ≥ 0")

    def __call__(self, logits: Float[Tensor, "n classes"], labels: Tensor) -> Float[Tensor, ""]:
        fits = len(self.weights) in (0, logits.shape[-1])
        problem = f"has {len(self.weights)} values for {logits.shape[-1]} outputs"
        require(fits, "loss.weights", problem, "give one an output of the model")
        weights = torch.tensor(self.weights, dtype=logits.dtype, device=logits.device) if self.weights else None
        return F.cross_entropy(logits, labels, weights, label_smoothing=self.label_smoothing)


@TRAINING_LOSSES.register("cross-entropy")
def made_cross_entropy(*, label_smoothing: float = 0.0, weights: tuple[float, ...] = ()) -> Loss:
    """Soft-max cross-entropy, with label smoothing and weights of the classes."""
    plain = not label_smoothing and not weights
    return cross_entropy if plain else CrossEntropy(label_smoothing=label_smoothing, weights=weights)


@TRAINING_LOSSES.register("bce-with-logits")
@dataclass(frozen=True, kw_only=True)
class BCEWithLogits:
    """``torch.nn.BCEWithLogitsLoss`` of each class on its own, as for several labels; mean over batch and outputs.
    `positive`: weights of each output's positive examples (``pos_weight``); empty for 1."""

    positive: tuple[float, ...] = ()

    def __call__(self, logits: Float[Tensor, "n classes"], labels: Tensor) -> Float[Tensor, ""]:
        classes = torch.arange(logits.shape[-1], device=labels.device)  # as one_hot, which does not run under vmap
        shares = labels if labels.is_floating_point() else (labels[..., None] == classes).to(logits)
        weights = torch.tensor(self.positive, dtype=logits.dtype, device=logits.device) if self.positive else None
        return F.binary_cross_entropy_with_logits(logits, shares, pos_weight=weights)


@CLIENTS.register("local-training")
@dataclass(frozen=True, kw_only=True)
class LocalTraining(Checked, Protocol):
    """Local steps of any optimiser from the broadcast θ₀; the update is the delta θ_τ − θ₀, unrolled differentiably.

    Buffers are carried from step to step. A step's gradient is, in this order: accumulated over minibatches, with the
    proximal term added, clipped, handed to the optimiser.

    Attributes:
        optimiser: `SGD`, `Adam`, or one of your own (`leakgauge.clients.optimisers.Optimiser`).
        schedule: factors of its learning rate, one a step, the last for all later ones; or a `CosineRate`, in a plan
            ``{cosine: 10, least: 0.1}``. Empty for a rate that stays.
        ema: decay of the average of the weights that is sent in their place, as
            ``torch.optim.swa_utils.AveragedModel`` with ``get_ema_multi_avg_fn`` after each step: it begins at the
            first step's weights. Buffers are the last step's. `None`: the last step's weights are sent.
        batch_size: examples of a minibatch; the last one of an epoch may be smaller. `None`: all examples.
        shuffle: draw a new order every epoch. Sequential otherwise.
        drop_last: leave out an epoch's last minibatch where it is smaller.
        accumulate: minibatches whose gradients make one step, each divided by this number, as training loops do; an
            epoch's last step may have fewer.
        clip: greatest norm of a step's gradient over all tensors, as ``torch.nn.utils.clip_grad_norm_``. No privacy
            guarantee: it bounds the batch's gradient, not an example's.
        proximal: FedProx's μ (Li et al., 2020): μ/2·‖θ − θ₀‖² is added to the loss.
    """

    optimiser: Optimiser = field(default_factory=SGD)
    schedule: CosineRate | tuple[float, ...] = ()
    ema: float | None = limited(None, lambda decay: 0 <= decay < 1, "give a decay in [0, 1)")
    epochs: int = positive(1)
    batch_size: int | None = positive(None)
    shuffle: bool = False
    drop_last: bool = False
    accumulate: int = positive(1)
    clip: float | None = positive(None, "norm")
    proximal: float = not_negative(0.0)

    kind: ClassVar[UpdateKind] = UpdateKind.DELTA

    def __post_init__(self) -> None:
        super().__post_init__()
        rates = () if isinstance(self.schedule, CosineRate) else self.schedule
        require(all(r >= 0 for r in rates), "schedule", f"is {list(rates)}", "give factors ≥ 0, or {cosine: 10}")

    def steps(self, examples: int) -> int:
        return len(self.parts(examples))

    def parts(self, examples: int) -> tuple[int, ...]:
        return tuple(n for step in self._epoch(examples) for n in step) * self.epochs

    def _epoch(self, examples: int) -> list[tuple[int, ...]]:
        """Examples of each minibatch of each step."""
        size = self.batch_size or max(examples, 1)
        sizes = (min(size, examples - first) for first in range(0, examples, size))
        kept = tuple(n for n in sizes if n == size or not self.drop_last)
        require(bool(kept), "batch_size", f"is {size} and drop_last leaves {examples} examples no step", "lower it")
        return [kept[i : i + self.accumulate] for i in range(0, len(kept), self.accumulate)]

    def linear(self, examples: int) -> GradientSum | None:
        """`None` where a step's examples count unlike (minibatches of unequal size that are accumulated), some are left
        out, a proximal force acts, clipping acts or weights are averaged at several steps, or the optimiser is not
        linear."""
        parts, steps = self.parts(examples), self._epoch(examples) * self.epochs
        uneven = self.accumulate > 1 and len(set(parts)) > 1
        several = len(steps) > 1 and bool(self.proximal or self.clip is not None or self.ema is not None)
        if uneven or sum(parts) < examples * self.epochs or several:
            return None
        told = linear_steps(self._stepping, len(steps))
        if told is None:
            return None
        weights = tuple(weight * len(sizes) / self.accumulate for weight, sizes in zip(told[0], steps, strict=True))
        bound = None if self.clip is None else abs(told[0][0]) * self.clip
        return GradientSum(weights, tuple(map(sum, steps)), told[1], bound)

    @property
    def loop(self) -> "LocalTraining":
        return self

    @property
    def _stepping(self) -> Optimiser:
        return RateSchedule(optimiser=self.optimiser, schedule=self.schedule) if self.schedule else self.optimiser

    def order(self, examples: int, draws: Draws) -> list[torch.Tensor]:
        """Indices of the examples of each minibatch, epoch after epoch."""
        sizes = [n for step in self._epoch(examples) for n in step]
        batches: list[torch.Tensor] = []
        for epoch in range(self.epochs):
            everyone = torch.arange(examples)
            if self.shuffle:
                everyone = torch.randperm(examples, generator=draws.generator("order", epoch))
            batches += everyone[: sum(sizes)].split(sizes)
        return batches

    def local_training(self, task: Task, batch: Batch, draws: Draws, gradient: GradientRule) -> tuple[Tensors, Tensors]:
        parameters, buffers, state, average = task.parameters, task.buffers, OptimiserState(), None
        minibatches = enumerate(self.order(len(batch), draws))
        for sizes in self._epoch(len(batch)) * self.epochs:
            shares: list[Tensors] = []
            for i, index in islice(minibatches, len(sizes)):
                model = draws.generator("model", i) if task.stochastic else None
                minibatch = batch.take(index.to(batch.labels.device))
                g, buffers = gradient(task, parameters, buffers, minibatch, model, draws.generator("example", i))
                shares.append(map_tensors(lambda t: t / self.accumulate, g) if self.accumulate > 1 else g)
            g = map_tensors(lambda first, *others: sum(others, first), *shares)
            if self.proximal:
                g = map_tensors(lambda gi, p, p0: gi + self.proximal * (p - p0), g, parameters, task.parameters)
            if self.clip is not None:
                factor = (self.clip / (root(squared_norm(g)) + 1e-6)).clamp(max=1.0)  # torch's own 1e-6
                g = map_tensors(partial(torch.mul, factor), g)
            parameters, state = self._stepping.step(g, parameters, state)
            if self.ema is not None:
                mixing = partial(torch.lerp, weight=1 - self.ema)
                average = parameters if average is None else map_tensors(mixing, average, parameters)
        return map_tensors(torch.sub, average or parameters, task.parameters), buffers


@CLIENTS.register("fedsgd")
@dataclass(frozen=True)
class FedSGD(Protocol):
    """Sends the gradient of the mean loss over a batch (McMahan et al., 2017)."""

    kind: ClassVar[UpdateKind] = UpdateKind.GRADIENT

    def local_training(self, task: Task, batch: Batch, draws: Draws, gradient: GradientRule) -> tuple[Tensors, Tensors]:
        model = draws.generator("model") if task.stochastic else None
        return gradient(task, task.parameters, task.buffers, batch, model, draws.generator("example"))

    def steps(self, examples: int) -> int:
        return 1

    def linear(self, examples: int) -> GradientSum:
        return GradientSum((1.0,), (examples,))


@CLIENTS.register("fedavg")
def FedAvg(
    *,
    epochs: int = 1,
    batch_size: int | None = None,
    lr: float = 0.01,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    shuffle: bool = False,
    schedule: CosineRate | tuple[float, ...] = (),
) -> LocalTraining:
    """Local SGD from the broadcast θ₀; the update is the delta θ_τ − θ₀, unrolled differentiably.

    Momentum and weight decay follow ``torch.optim.SGD``. Buffers are carried from step to step.
    Differs from the ROG release, which unrolls from θ_τ; see *known defects* in the docs.

    Args:
        epochs, batch_size, schedule: as in `LocalTraining`.
        lr, momentum, dampening, nesterov, weight_decay: as in ``torch.optim.SGD``.
        shuffle: draw a new order every epoch. Sequential otherwise, as in Inverting Gradients' experiments.
    """
    sgd = SGD(lr=lr, momentum=momentum, dampening=dampening, nesterov=nesterov, weight_decay=weight_decay)
    return LocalTraining(optimiser=sgd, schedule=schedule, epochs=epochs, batch_size=batch_size, shuffle=shuffle)
