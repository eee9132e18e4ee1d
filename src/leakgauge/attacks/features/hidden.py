"""All hidden tensors that an update shows, layer by layer, and why the others do not come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Node

from leakgauge.attacks.features.network import Layer, Network
from leakgauge.attacks.features.reach import Reach, reaches
from leakgauge.attacks.features.read import HiddenRead, Noisy, read_hidden
from leakgauge.defenses import view_of
from leakgauge.observation import Observation
from leakgauge.tensors import Tensors, Wire
from leakgauge.update import UpdateKind

ARITHMETIC = 20.0
"""Units of rounding, of the root mean square of a gradient's entries, by which a client's arithmetic is off."""

STEPS = 4.0
"""Of the rounding of the weights, in a difference of weights."""


@dataclass(frozen=True, eq=False)
class HiddenTensors:
    """What was read of an update.

    Attributes:
        network: in float64, of as many examples as the update holds.
        layers: its products.
        gradients: of their weights.
        shifts: gradients of all parameters of one dimension.
        reach: of the layers.
        reads: hidden tensors that came out, from the input on.
        why: of the others, the condition that fails, by the first weight that reads one.
    """

    network: Network
    layers: Sequence[Layer]
    gradients: Mapping[str, Noisy]
    shifts: Mapping[str, Tensor]
    reach: Mapping[str, Reach]
    reads: Sequence[HiddenRead]
    why: Mapping[str, str]


def read_all(
    observation: Observation, count: int, generator: torch.Generator, gradient: Tensors | None = None
) -> HiddenTensors:
    """Tries every tensor that a layer reads.

    Args:
        gradient: which the update is a multiple of; `None` where it is one, or where none is known.
        count: examples that the update holds at most.

    Raises:
        Untraceable: the model cannot be written as a graph.
    """
    task = observation.task.to(torch.empty((), dtype=torch.float64))
    network = Network.of(task, count)
    layers = [layer for layer in network.layers() if layer.weight in observation.update.tensors]
    reach = reaches(network, layers, task.data, generator)
    values = observation.update.tensors if gradient is None else gradient
    raw = {layer.weight: observation.values(layer.weight) for layer in layers}
    sent = {name: values[name].detach().double() for name in raw}
    longer = {name: float(sent[name].norm() / t.norm().clamp_min(1e-300)) for name, t in raw.items()}
    errors = {name: longer[name] * error for name, error in entry_errors(observation, raw).items()}
    gradients = {layer.weight: Noisy(layer.matrix(sent[layer.weight]), errors[layer.weight]) for layer in layers}
    shifts = {k: t.detach().double() for k, t in values.items() if t.ndim == 1}
    reads, why = [], {}
    groups: dict[Node, list[Layer]] = {}
    for layer in layers:
        groups.setdefault(layer.hidden, []).append(layer)
    for group in groups.values():
        found = read_hidden(group, gradients, reach, network, generator, most=count, shifts=shifts)
        if isinstance(found, str):
            why[group[0].weight] = found
        else:
            reads.append(found)
    return HiddenTensors(network, layers, gradients, shifts, reach, reads, why)


def entry_errors(observation: Observation, sent: Mapping[str, Tensor]) -> dict[str, float]:
    """Standard deviation of what separates the entries of each tensor from the client's gradient.

    By the float types that it went through and by what is known of the defence; a difference of weights holds the
    rounding of the weights too.
    """
    knowledge, update = observation.knowledge, observation.update
    view = None if knowledge.defense is None else view_of(knowledge.defense, update, knowledge.draws)
    found = {}
    for name, value in sent.items():
        wire = Wire.of(update.tensors[name])
        size = float(value.square().mean().sqrt())
        squares = [wire.unit * size, ARITHMETIC * wire.arithmetic * size]
        if update.header.kind is UpdateKind.DELTA:
            weight = observation.task.parameters[name].detach()
            size = float(weight.double().square().mean().sqrt())
            squares.append(STEPS * torch.finfo(weight.dtype).eps * size / 12**0.5)
        own = [] if view is None else [t for t in (view.noise_scale, view.rounding) if t is not None]
        squares += [float(part[name].double().square().mean().sqrt()) for part in own if name in part]
        found[name] = sum(e * e for e in squares) ** 0.5
    return found
