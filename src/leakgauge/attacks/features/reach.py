"""At which places of a layer the loss can have a signal, and where its signals sum to nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.fx import Node

from leakgauge.attacks.features.network import Layer, Network
from leakgauge.task import DataSpec


class Centring(Enum):
    """Over which rows each filter's signals sum to nothing."""

    NONE = "none"
    BATCH = "batch"
    EXAMPLE = "example"


@dataclass(frozen=True, eq=False)
class Reach:
    """What a random input shows of a layer, whatever the client's data.

    Attributes:
        used: places that some signal can reach.
        centring: of the signals, by a normalisation behind the layer.
    """

    used: Bool[Tensor, " places"]
    centring: Centring


def reaches(
    network: Network, layers: Sequence[Layer], data: DataSpec, generator: torch.Generator
) -> Mapping[str, Reach]:
    """The reach of each layer, by its weight's name, from the slopes of a random mix of the logits."""
    shape = network.shapes[network.inputs]
    inputs = data.low + data.range * torch.rand(shape, generator=generator, dtype=torch.float64)
    outputs: list[Node] = [layer.output for layer in layers]
    with torch.enable_grad():
        *seen, logits = network.run({network.inputs: inputs.requires_grad_()}, [*outputs, network.logits])
        mix = torch.randn(logits.shape, generator=generator, dtype=torch.float64)
        slopes = torch.autograd.grad((logits * mix).sum(), seen, allow_unused=True, materialize_grads=True)
    pairs = zip(layers, slopes, strict=True)
    return {layer.weight: _reach(layer.signals(slope, network.examples)) for layer, slope in pairs}


def _reach(signals: Tensor) -> Reach:
    used = signals.abs().amax((0, 2)) > 0
    size = signals.abs().sum((0, 1)).clamp_min(1e-300)
    centring = Centring.NONE
    if float((signals.sum((0, 1)).abs() / size).max()) < 1e-6:
        alone = (signals.sum(1).abs() / signals.abs().sum(1).clamp_min(1e-300)).max()
        centring = Centring.EXAMPLE if len(signals) > 1 and float(alone) < 1e-6 else Centring.BATCH
    return Reach(used, centring)
