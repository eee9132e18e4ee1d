"""How labels are found: the contract, the layer that gives them away, labels that are known, one example's label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from leakgauge.errors import FOREIGN
from leakgauge.observation import Observation
from leakgauge.registry import LABELS
from leakgauge.step.training import NoLossOfLogits, watched
from leakgauge.task import Task
from leakgauge.tracing import LinearLayer, without_dropout
from leakgauge.update import UpdateKind

PROBED = 16
"""Classes at most that a loss is asked about."""


@dataclass(frozen=True, eq=False)
class LabelGuess:
    """Labels read from an update.

    Attributes:
        labels: a sorted multiset, one per example; their order says nothing about the client's.
        confidence: 0 to 1, the share of labels that the method expects to be right (an expected multiset
            F1). Each strategy's docstring says how it is computed and how well it was met when measured.
    """

    labels: Int[Tensor, " n"]
    confidence: float


@dataclass(frozen=True)
class Unknown:
    """No answer: `message` names what the observation lacks."""

    message: str


@runtime_checkable
class LabelStrategy(Protocol):
    """Finds the labels of a batch.

    Guarantees that tests hold: it reads `Knowledge.labels` only if it is `KnownLabels`; the same
    observation and seed give the same answer; what is missing is an `Unknown`, never an exception.
    """

    def infer(self, observation: Observation, generator: torch.Generator) -> LabelGuess | Unknown: ...


@LABELS.register("known", needs="labels")
@dataclass(frozen=True)
class KnownLabels:
    """Takes the labels from the attacker's knowledge, with confidence 1. Reads nothing else."""

    def infer(self, observation: Observation, generator: torch.Generator) -> LabelGuess | Unknown:
        del generator
        labels = observation.knowledge.labels
        if labels is None:
            return Unknown("the attacker was not given the labels; add labels to what it knows, or infer them")
        return LabelGuess(labels.detach().sort().values, 1.0)


def find_classifier(observation: Observation) -> LinearLayer | Unknown:
    """The linear layer that makes the logits, by type and by comparing outputs on a probe, never by position.

    Known failure: a model that ends in anything else (log-soft-max, a convolution, a weight-normalised or
    scaled product) has no such layer, and an adapter-only or frozen head sends no gradient of it.
    """
    task = observation.task
    if not task.outputs or isinstance(task.loss, NoLossOfLogits):
        return Unknown("the loss is not one of the model's logits and classes, so there is no classifier to read")
    calm = without_dropout(task)
    outputs: list[tuple[str, Tensor]] = []
    # One without parameters calls another in its place (`leakgauge.view.normal`), and so makes the same output.
    linear = [
        n for n, m in calm.module.named_modules() if isinstance(m, nn.Linear) and any(True for _ in m.parameters())
    ]
    low, high = task.data.low, task.data.high
    probe = torch.linspace(low, high, 2 * max(1, torch.Size(task.data.shape).numel())).view(2, *task.data.shape)
    with torch.no_grad(), watched(calm.module, linear, lambda name, _given, out: outputs.append((name, out))):
        logits, _ = calm.logits(calm.parameters, calm.buffers, probe.to(next(iter(task.parameters.values()))))
    found = [name for name, out in outputs if out.shape == logits.shape and torch.equal(out, logits)]
    if not found:
        return Unknown("no nn.Linear of the model makes its logits, so there is no classifier gradient to read")
    layer = calm.module.get_submodule(found[-1])
    prefix = f"{found[-1]}." if found[-1] else ""
    weight, bias = f"{prefix}weight", None if layer.bias is None else f"{prefix}bias"
    missing = [n for n in (weight, bias) if n is not None and n not in observation.update.tensors]
    if missing:
        return Unknown(f"the update does not carry {', '.join(missing)}; is the classifier frozen?")
    return LinearLayer(found[-1], weight, bias)


@LABELS.register("idlg", needs="one example")
@dataclass(frozen=True)
class IDLG:
    """The only class whose logit the update raises.

    Source: Zhao et al., *iDLG*, 2020: ∂L/∂b_i = p_i − [i = y] < 0 for i = y alone. Without a bias the rows
    ∂L/∂W_i = (p_i − [i = y])·h: the label's row has a negative inner product with every other (iDLG's own
    criterion; no sign of h is assumed), and for two outputs the negative row sum decides.
    Assumes: one example with one class, and a loss whose slope in the logits is negative for the label alone, as that
    of cross-entropy; of another loss the lowest slope is to be the label's (both are checked on random logits). Several
    local steps keep the signs.
    Differs: a delta θ_local − θ_server points the other way and is turned first.
    Confidence: the winner's share of the negative mass; 1 on an undefended update, less under noise.
    Known failure: two outputs, no bias, and features of negative sum give the other class.
    """

    def infer(self, observation: Observation, generator: torch.Generator) -> LabelGuess | Unknown:
        del generator
        observation = observation.view
        count = observation.examples
        if count != 1:
            return Unknown(f"iDLG reads the label of one example; this update has {count or 'an unknown number'}")
        layer = find_classifier(observation)
        if isinstance(layer, Unknown):
            return layer
        if not lowers_the_label(observation.task):
            return Unknown("labels are not read: under this loss the label's logit is not the one that rises most")
        evidence = _evidence(observation, layer)[: observation.task.data.classes]
        negative = (-evidence).clamp_min(0)
        if not bool(negative.sum() > 0):
            return Unknown(
                "no entry of the classifier's gradient is negative: the update is empty or was changed on its way"
            )
        return LabelGuess(negative.argmax().view(1), float(negative.max() / negative.sum()))


def lowers_the_label(task: Task) -> bool:
    """Whether the loss of one example falls fastest in its label's own logit, at random logits of every label."""
    labels = torch.arange(min(task.data.classes, PROBED))
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(labels), task.outputs, generator=generator)
    logits = logits.to(next(iter(task.parameters.values()))).requires_grad_()
    labels = labels.to(logits.device)
    try:
        total = torch.stack([task.loss_of(z[None], y[None]) for z, y in zip(logits, labels, strict=True)]).sum()
        (slope,) = torch.autograd.grad(total, logits)
    except FOREIGN:
        return False
    falls = slope.gather(1, labels[:, None])[:, 0] < 0
    return bool((falls & (slope.argmin(1) == labels)).all())


def _evidence(observation: Observation, layer: LinearLayer) -> Float[Tensor, " outputs"]:
    """A number per class, negative for the label."""
    sign = -1.0 if observation.update.header.kind is UpdateKind.DELTA else 1.0
    weight, bias = layer.of(observation.update.tensors)
    if bias is not None:
        return sign * bias
    if len(weight) == 2:
        return sign * weight.sum(1)
    # Rows are c_i·h with Σ c_i = 0 and one c_i of its own sign: the label's row opposes every other.
    gram = weight @ weight.T
    opposed = (gram.sign() < 0).sum(1)
    return torch.where(opposed == opposed.max(), -gram.diagonal(), gram.new_zeros(()))
