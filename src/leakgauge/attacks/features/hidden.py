"""All hidden tensors that an update shows, layer by layer, and why the others do not come out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Node

from leakgauge.attacks.features.inside import Inside, Layer
from leakgauge.attacks.features.read import HiddenRead, Noisy, Passes, read_hidden
from leakgauge.attacks.matching.problem import UNLIMITED, Meter, Over
from leakgauge.observation import Observation
from leakgauge.view.entries import Entries, SentTensor, noise_of, sent_decay


@dataclass(frozen=True, eq=False)
class HiddenTensors:
    """What was read of an update."""

    inside: Inside  # the network, in float64, of as many examples as the update holds at most
    gradients: Mapping[str, Noisy]  # of its layers' weights
    shifts: Mapping[str, Tensor]  # gradients of all parameters of one dimension
    reads: Sequence[HiddenRead]  # hidden tensors that came out, from the input on
    why: Mapping[str, str]  # of the others, the condition that fails, by the first weight that reads one
    passes: Passes  # of the client's loop


def read_all(
    observation: Observation, count: int, generator: torch.Generator, meter: Meter = UNLIMITED
) -> HiddenTensors:
    """Tries every tensor that a layer reads, from the output on, while the meter lasts; `count` examples are in the
    update at most.

    Raises what the model raises where it cannot be traced.
    """
    inside, passes = Inside.of(observation.task, count), Passes.of(observation, count)
    factor = passes.factor or 1.0
    gradients = layer_gradients(observation, inside, factor)
    flat = [name for name, tensor in observation.update.tensors.items() if tensor.ndim == 1]
    shifts = {name: entries.value / factor for name, entries in _entries(observation, flat)}
    groups: dict[Node, list[Layer]] = {}
    for layer in inside.layers:
        if layer.weight in gradients:
            groups.setdefault(layer.hidden, []).append(layer)
    found: dict[str, HiddenRead | str] = {}
    for group in reversed(groups.values()):  # the last ones are the cheapest
        try:
            meter.tick()
            read = read_hidden(group, gradients, inside, generator, shifts=shifts, passes=passes, meter=meter)
        except Over:
            read = "the budget's seconds ended before"
        found[group[0].weight] = read
    reads = [read for read in reversed(found.values()) if isinstance(read, HiddenRead)]
    why = {name: read for name, read in reversed(found.items()) if isinstance(read, str)}
    return HiddenTensors(inside, gradients, shifts, reads, why, passes)


def layer_gradients(
    observation: Observation, inside: Inside, factor: float = 1.0, *, but: str = ""
) -> dict[str, Noisy]:
    """Of the weights that were sent, `but` one, `factor` taken off, by name."""
    sent = observation.update.tensors.keys() - {but}
    layers = {layer.weight: layer for layer in inside.layers if layer.weight in sent}
    return {
        name: Noisy(layers[name].matrix(e.value / factor), layers[name].matrix(e.unsure / abs(factor)), e.hides)
        for name, e in _entries(observation, layers)
    }


def _entries(observation: Observation, names: Iterable[str]) -> Iterator[tuple[str, Entries]]:
    """Tensors as they were sent, without the client's decay."""
    decay, view = sent_decay(observation), noise_of(observation)
    for name in names:
        yield name, SentTensor.of(observation, name, view=view, decay=decay or 0.0)[...]
