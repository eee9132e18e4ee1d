"""PRECODE: its draw ε is read where one example makes the update, and is a variable of the search elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.attacks.adaptive.counter import counters
from leakgauge.attacks.adaptive.mixup import (
    FeatureSpan,
    fitted,
)
from leakgauge.attacks.labels.strategy import Unknown, find_classifier
from leakgauge.attacks.matching import Cosine, Matching
from leakgauge.attacks.matching.objectives import CosinePerTensor
from leakgauge.attacks.matching.parts import BUFFER, Hidden
from leakgauge.clients import Protocol
from leakgauge.defenses import Precode
from leakgauge.defenses.precode import DRAW, bottlenecks, moments
from leakgauge.observation import Observation
from leakgauge.task import Batch, DataSpec
from leakgauge.tensors import Tensors

UNEXPLAINED = 1e-6
"""Misfit of the classifier's gradient above which a read of several ε is not believed."""

LARGEST = 5.0
"""Bound of a read ε: one of 256 normal draws exceeds it once in seven thousand rounds."""


@dataclass(frozen=True, eq=False, kw_only=True)
class BottleneckDraw(Hidden):
    """ε of one bottleneck as a variable of shape (examples, size); a `Hidden` part.

    Attributes:
        buffer: its name in the model.
        size: width of the bottleneck.
        first: where it starts; the mean of its prior, zero, unless given.
        weight: of its prior, ½·mean ε². None by default: one draw is fixed by the decoder's gradient.
    """

    buffer: str
    size: int
    first: Float[Tensor, "n size"] | None = None
    weight: float = 0.0

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        del data, generator
        zero = torch.zeros((examples, self.size), dtype=torch.float64)
        return {BUFFER + self.buffer: zero if self.first is None else self.first.detach().cpu().double()}

    def encode(self, batch: Batch, variables: Tensors) -> Batch:
        del variables
        return batch

    def penalty(self, variables: Tensors) -> Float[Tensor, ""]:
        return self.weight * variables[BUFFER + self.buffer].square().mean() / 2


def read_draw(observation: Observation, name: str) -> Float[Tensor, "1 size"] | None:
    """ε of the one example that made the update; `None` where a layer's bias gradient is zero.

    What enters a biased linear layer is weight gradient ÷ bias gradient. So encoder and decoder tell the features f
    and b = μ(f) + σ(f)·ε, with the broadcast encoder, hence ε = (b − μ) ÷ σ. Exact for one gradient, as sampling
    hides neither; a start for several local steps or a changed update, clamped to ±5.
    """
    tensors, prefix = observation.update.tensors, f"{name}." if name else ""
    features = _layer_input(tensors, f"{prefix}encoder")
    code = _layer_input(tensors, f"{prefix}decoder")
    if features is None or code is None:
        return None
    encoder = _affine(observation.task.parameters, f"{prefix}encoder")
    if encoder is None:
        return None
    mean, std = moments(F.linear(features, *encoder))
    draw = (code - mean) / std.clamp_min(1e-6)
    return draw.nan_to_num().clamp(-LARGEST, LARGEST)[None]


def read_draws(
    observation: Observation, name: str, labels: Int[Tensor, " n"], generator: torch.Generator
) -> Float[Tensor, "n size"] | None:
    """About ε of each of several examples: (bᵢ − μ) ÷ σ with bᵢ as `read_codes` has it, and μ and σ at one mixture
    of the features, that of `read_draw`. The search does the rest.
    """
    features = _layer_input(observation.update.tensors, f"{name}.encoder")
    encoder = _affine(observation.task.parameters, f"{name}.encoder")
    codes = read_codes(observation, name, labels, generator)
    if features is None or encoder is None or codes is None:
        return None
    mean, std = moments(F.linear(features, *encoder))
    draws: Tensor = ((codes - mean) / std.clamp_min(1e-6)).nan_to_num().clamp(-LARGEST, LARGEST)
    return draws


def read_codes(
    observation: Observation, name: str, labels: Int[Tensor, " n"], generator: torch.Generator, *, tries: int = 4
) -> Float[Tensor, "n size"] | None:
    """b of each of several examples, from the gradient of the classifier that reads the bottleneck.

    ∂L/∂W = (1/n) Σᵢ (softmax(W hᵢ + c) − yᵢ) hᵢᵀ, so its n leading right singular vectors span what enters the
    classifier, hᵢ = decoder(bᵢ). Their n² coordinates are solved for by least squares (from normal draws of b); the
    decoder's least squares then give bᵢ. A classifier without bias has c = 0 and one equation an output less.
    Examples of equal labels come in any order.

    `None` where that cannot be: not one gradient, another layer behind the bottleneck, or no fit.
    """
    n, task, sent = len(labels), observation.task, observation.gradient
    classifier = find_classifier(observation)
    if sent is None or isinstance(classifier, Unknown):
        return None
    span = FeatureSpan.of(task, classifier, sent, n)
    behind = classifier.name.rpartition(".")[0] == name.rpartition(".")[0]
    decoder = _affine(task.parameters, f"{name}.decoder")
    if not behind or span is None or decoder is None:
        return None
    one_hot = F.one_hot(labels.cpu(), len(span.weight)).double()

    def misfit(v: Tensor) -> Tensor:
        return span.misfit(v.view(n, n), one_hot)

    for _ in range(tries):
        codes = torch.randn((n, decoder[0].shape[1]), generator=generator, dtype=torch.float64)
        found, cost = fitted(misfit, (F.linear(codes, *decoder) @ span.basis.T).flatten(), 60)
        if cost < UNEXPLAINED:
            solved: Tensor = torch.linalg.lstsq(decoder[0], (found.view(n, n) @ span.basis - decoder[1]).T).solution.T
            return solved
    return None


def _affine(tensors: Tensors, layer: str) -> tuple[Tensor, Tensor] | None:
    """Weight and bias of a layer in float64 on the CPU; `None` where one of them does not train."""
    found = [tensors.get(f"{layer}.{k}") for k in ("weight", "bias")]
    weight, bias = (None if t is None else t.detach().cpu().double() for t in found)
    return None if weight is None or bias is None else (weight, bias)


def draw_buffer(name: str) -> str:
    """The name of the buffer for ε of the bottleneck `name`."""
    return f"{name}.{DRAW}" if name else DRAW


def _layer_input(tensors: Tensors, layer: str) -> Float[Tensor, " features"] | None:
    """Least squares over the rows: Σ b_i·W_i ÷ Σ b_i²."""
    sent = _affine(tensors, layer)
    if sent is None:
        return None
    weight, bias = sent
    evidence = bias.square().sum()
    return (bias @ weight) / evidence if float(evidence) > 0 else None


def _first_draw(observation: Observation, name: str, examples: int) -> Tensor | None:
    labels = observation.knowledge.labels
    if examples == 1:
        return read_draw(observation, name)
    return None if labels is None else read_draws(observation, name, labels, torch.Generator().manual_seed(0))


def _whole_batches(protocol: Protocol | None, examples: int) -> bool:
    """Whether every local step sees all examples, in one order."""
    if protocol is None:
        return True
    ordered = not protocol.shuffle or examples == 1
    return ordered and all(part == examples for part in protocol.parts(examples))


def _for_the_draw(defense: Precode, observation: Observation) -> str:
    del defense
    examples = observation.examples
    if examples is None:
        return "the number of examples"
    if not _whole_batches(observation.knowledge.local_training, examples):
        return "local steps that see the whole batch in one order"
    return ""


@counters(
    Precode,
    name="sampled-bottleneck",
    because="the bottleneck's own gradient fixes what was sampled, and the layers below it are sent as they are",
    missing=_for_the_draw,
)
def know_the_draw(attack: Matching, defense: Precode, observation: Observation) -> Matching:
    """ε joins the variables, starting from what the gradient tells of it; every tensor counts alike.

    The start is exact for one example (`read_draw`), near for several of known labels (`read_draws`), else zero.

    The second matters as much: encoder and decoder have 20 to 50 times the norm of a convolution of LeNet, which
    the global cosine then hardly sees. Other objectives than the cosine are left as they are. ε is one
    variable an example, so it is shared by the steps of a FedAvg client, and left to a draw of the attacker's own
    where steps see parts of the batch.
    """
    if isinstance(attack.objective, Cosine):
        attack = replace(attack, objective=CosinePerTensor())
    examples = observation.examples
    if observation.knowledge.draws is not None or examples is None or _for_the_draw(defense, observation):
        return attack
    hidden = tuple(
        BottleneckDraw(
            buffer=draw_buffer(name),
            size=part.decoder.in_features,
            first=_first_draw(observation, name, examples),
        )
        for name, part in bottlenecks(observation.task).items()
    )
    return replace(attack, hidden=(*attack.hidden, *hidden))
