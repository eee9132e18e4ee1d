"""What a client does with a batch before it calls ``backward``: a loss of its own, or one of the logits and labels."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from leakgauge.batch import Batch
from leakgauge.errors import FOREIGN, InputError, said
from leakgauge.step.layout import Layout
from leakgauge.step.networks import in_one_type, logits_of


@runtime_checkable
class Loss(Protocol):
    """``(logits, labels) → scalar``; labels are indices or soft."""

    def __call__(self, logits: Tensor, labels: Tensor, /) -> Tensor: ...


def cross_entropy(logits: Float[Tensor, "n classes"], labels: Tensor) -> Float[Tensor, ""]:
    """Soft-max cross-entropy, mean over the batch."""
    return F.cross_entropy(logits, labels)


def nll_raw(logits: Float[Tensor, "n classes"], labels: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """Negative log-likelihood of raw logits, no log-softmax: mean of −logit[label].

    The loss of MKOR's published code, unbounded below: a client that uses it lets the server choose its loss.
    """
    return F.nll_loss(logits, labels)


def on_logits(loss: Loss, logits: Float[Tensor, "n outputs"], labels: Tensor) -> Float[Tensor, ""]:
    """The loss; tensors that it holds follow the type of the logits."""
    if loss is cross_entropy:
        return cross_entropy(logits, labels)
    with in_one_type(logits.dtype):
        return loss(logits, labels)


@runtime_checkable
class TrainingStep(Protocol):
    """``(model, parts of a batch by name) → scalar``: what a training loop does with a batch before it calls
    ``backward``."""

    def __call__(self, model: nn.Module, batch: dict[str, Tensor], /) -> Tensor: ...


@dataclass(frozen=True)
class Supervised:
    """The step of one input and one target: a loss of the model's logits and the labels.

    Soft labels of fewer columns than the model has outputs give the others no weight.
    """

    loss: Loss
    inputs: str = "inputs"
    labels: str = "labels"

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> Float[Tensor, ""]:
        logits, labels = logits_of(model(batch[self.inputs])), batch[self.labels]
        if labels.is_floating_point() and labels.ndim == 2 and labels.shape[1] < logits.shape[1]:
            labels = F.pad(labels, (0, logits.shape[1] - labels.shape[1]))
        return on_logits(self.loss, logits, labels)


class StepModule(nn.Module):
    """A step as a module, so that parameters and buffers can be put in from outside."""

    def __init__(self, module: nn.Module, step: TrainingStep) -> None:
        super().__init__()
        self.module = module
        self._step = step

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self._step(self.module, batch)


@dataclass(frozen=True, eq=False)
class LossOfStep:
    """The loss of a step as a function of the logits alone: the step runs on a model that answers with them.

    Raises:
        InputError: the step does more with the model than ask for its logits.
    """

    step: TrainingStep
    module: nn.Module
    layout: Layout

    def __call__(self, logits: Float[Tensor, "n outputs"], labels: Tensor) -> Float[Tensor, ""]:
        model = copy.copy(self.module)

        def forward(*_given: Any, **_named: Any) -> Tensor:
            return logits

        model.forward = forward
        shape = self.layout.spec.shape
        grey = torch.full((len(logits), *shape), (self.layout.spec.low + self.layout.spec.high) / 2).to(logits)
        try:
            with in_one_type(logits.dtype):
                return self.step(model, self.layout.given(Batch(grey, labels)))
        except FOREIGN as error:
            problem = f"is not one of the logits alone ({said(error)})"
            raise InputError("loss", problem, "return logits as a tensor and work out the loss from them") from error


PROBES = 3
"""Made-up batches that a step is tried on."""


@dataclass(frozen=True, eq=False)
class TriedBatch:
    """A step on a made-up batch: logits of each call of the model, targets, loss."""

    answers: list[Tensor]
    labels: Tensor
    value: Tensor


def loss_of_step(step: TrainingStep, module: nn.Module, layout: Layout, seen: list[TriedBatch]) -> Loss:
    """The loss of a step as a function of the logits: the step on given logits, or plain cross-entropy where a network
    works that out itself; `NoLossOfLogits` where it looks at inputs too, or calls the model more than once."""
    if any(len(one.answers) != 1 for one in seen):
        return NoLossOfLogits()
    ways: list[Loss] = [LossOfStep(step, module, layout)]
    if layout.of_classes and layout.targets and seen[0].answers[0].ndim == 2:
        ways.append(cross_entropy)
    return next((way for way in ways if all(_makes(way, one) for one in seen)), NoLossOfLogits())


def _makes(loss: Loss, seen: TriedBatch) -> bool:
    try:
        with torch.no_grad():
            made = loss(seen.answers[0], seen.labels)
    except FOREIGN:
        return False
    return torch.allclose(made.double(), seen.value.double(), rtol=1e-5, atol=1e-7)


class NoLossOfLogits:
    """The loss of a step that does more than look at logits and targets."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        del logits, labels
        hint = "read inputs instead, or work the loss out from model(…) and the targets"
        raise InputError("loss", "is not one of the logits and targets alone", hint)


@runtime_checkable
class Penalty(Protocol):
    """What the output of one part of the model adds to the loss, read in the same forward pass.

    Attributes:
        part: name of the submodule whose output it is given.
    """

    @property
    def part(self) -> str: ...

    def __call__(self, output: Tensor, /) -> Float[Tensor, ""]: ...
