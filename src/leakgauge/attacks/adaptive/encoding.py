"""Counters to defences that change the model or the examples: PRECODE, MixUp, InstaHide, transformations."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from leakgauge.attacks.adaptive.counter import COUNTERS, NoneKnown, counters
from leakgauge.attacks.adaptive.mixup import MOST_EXAMPLES, Mixing, read_mixing, single_gradient
from leakgauge.attacks.adaptive.precode import BottleneckDraw, draw_buffer, read_draw, read_draws
from leakgauge.attacks.matching import Cosine, Matching
from leakgauge.attacks.matching.per_tensor import CosinePerTensor
from leakgauge.clients import FedAvg, FedSGD, Protocol
from leakgauge.defenses import InstaHide, MixUp, Precode, Transform
from leakgauge.defenses.precode import bottlenecks
from leakgauge.observation import Observation

UNEXPLAINED = 1e-3
"""Misfit of a mixing matrix above which it is not believed: the update was compressed or noised."""


def _first_draw(observation: Observation, name: str, examples: int) -> Tensor | None:
    labels = observation.knowledge.labels
    if examples == 1:
        return read_draw(observation, name)
    return None if labels is None else read_draws(observation, name, labels, torch.Generator().manual_seed(0))


def _whole_batches(protocol: Protocol | None, examples: int) -> bool:
    """Whether every local step sees all examples, in one order."""
    if isinstance(protocol, FedAvg):
        ordered = not protocol.shuffle or examples == 1
        return ordered and (protocol.batch_size is None or protocol.batch_size >= examples)
    return protocol is None or isinstance(protocol, FedSGD)


def _for_the_draw(defense: Precode, observation: Observation) -> str:
    del defense
    examples = observation.examples
    if examples is None:
        return "the number of examples"
    if not _whole_batches(observation.knowledge.local_training, examples):
        return "local steps that see the whole batch in one order"
    return ""


def _for_the_mixture(defense: MixUp, observation: Observation) -> str:
    del defense
    if observation.knowledge.labels is None:
        return "the labels"
    if single_gradient(observation) is None:
        return "a single gradient"
    if not 1 < len(observation.knowledge.labels) <= MOST_EXAMPLES:
        return f"a batch of two to {MOST_EXAMPLES} examples"
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

    Measured on an untrained LeNet, bounded L-BFGS, 300 evaluations, one CIFAR-10 image (the mean image: 12.5 dB):
    undefended 34.8 dB, naive 9.8, this 28.5. ε alone, from zero and with the global cosine, 19.6; each tensor alike
    alone 14.0. Two images, as many evaluations: undefended 26.4 and 27.7, this 18.9 and 17.6, not converged; from zero
    17.4 and 15.0. Where ε cannot be a variable (two images in batches of one, shuffled), matching the mean of 2 or 4
    simulations with draws of the attacker's own (`Matching.draws`) recovers no more than one draw does: 9 to 12 dB.
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


@counters(
    MixUp,
    name="unmixing",
    because="who mixed with whom, and how much, is written in the classifier's gradient, labels known",
    missing=_for_the_mixture,
)
def unmix(attack: Matching, defense: MixUp, observation: Observation) -> Matching:
    """The mixing matrix is read first (`read_mixing`), and the examples are searched for through it.

    Needs the labels and a single gradient; without them, or where the read does not explain the classifier's gradient,
    the attack stays as it is and finds mixed images. Undoing the mixture of two costs 1/(2λ − 1) in precision:
    near λ = ½ nothing is gained, at exactly ½ nothing can be.

    Measured on an untrained LeNet, bounded L-BFGS, two CIFAR-10 images each: λ = 0.74, 600 evaluations, undefended 29.6
    and 32.1 dB, naive 17.8 and 16.3, this 25.4 and 25.8; λ = 0.41, 300 evaluations, undefended 24.3 and 24.5, naive
    17.2 and 17.2, this 17.2 and 17.6.
    """
    del defense
    labels = observation.knowledge.labels
    if labels is None or observation.knowledge.draws is not None:
        return attack
    read = read_mixing(observation, labels, torch.Generator().manual_seed(0))
    if read is None or not read.misfit < UNEXPLAINED:
        return attack
    repeated = len(labels.unique()) < len(labels)
    return replace(attack, hidden=(*attack.hidden, Mixing(matrix=read.matrix, free=repeated)))


COUNTERS[InstaHide] = NoneKnown(
    "one update holds one encoding of each picture; Carlini et al. (2021) needed the encodings of many epochs, to find "
    "which share a picture and to solve for it from |encoding|, with the signs lost"
)
COUNTERS[Transform] = NoneKnown(
    "there is nothing to undo: an attack recovers the transformed picture, which shows the same thing, and only "
    "scores that compare pixel by pixel fall"
)
