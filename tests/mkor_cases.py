"""Small classifiers on flat pictures for the linear half of MKOR, and the mean features that it should read."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from leakgauge.clients import FedSGD, client_update
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation
from leakgauge.servers import Broadcast
from leakgauge.servers.mkor import MKOR, ClassReading, FeatureMap, MKORCrafting, NLLRaw
from leakgauge.task import Batch, DataSpec, Mode, Task
from leakgauge.tensors import Tensors


@dataclass(frozen=True, eq=False)
class FlatMap:
    """The picture itself, flattened: what the network sees where it starts with a linear layer."""

    data: DataSpec

    @property
    def remark(self) -> str:
        return "flat"

    @property
    def positions(self) -> Tensor:
        return torch.arange(prod(self.data.shape))

    def features(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(1)

    def images(self, features: Tensor) -> Tensor:
        return features.view(-1, *self.data.shape)


@dataclass(frozen=True)
class FlatTaps:
    """Nothing below the linear layers."""

    def craft(self, task: Task, generator: torch.Generator) -> tuple[Tensors, FeatureMap]:
        return {}, FlatMap(task.data)


def classifier(
    *,
    hidden: tuple[int, ...] = (40, 30),
    classes: int = 10,
    outputs: int | None = None,
    size: int = 6,
    activation: type[nn.Module] = nn.ReLU,
    drop: float = 0.0,
    biases: bool = True,
    last_activation: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Task:
    """A random stack of linear layers, honest; in train mode where it drops units; only the first surely has a bias."""
    sizes = [size * size, *hidden, outputs or classes]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Flatten()]
        for depth in range(len(sizes) - 1):
            layers.append(nn.Linear(sizes[depth], sizes[depth + 1], bias=biases or depth == 0))
            if depth < len(sizes) - 2:
                layers += [activation(), *([nn.Dropout(drop)] if drop else [])]
        if last_activation:
            layers.append(activation())
        net = nn.Sequential(*layers).to(dtype)
    mode = Mode.TRAIN if drop else Mode.EVAL
    return Task.of(net, DataSpec((1, size, size), classes), mode=mode)


def pictures(task: Task, labels: list[int] | Tensor, seed: int = 1) -> Batch:
    """Random pictures with zeros in them, as features behind a ReLU have."""
    labels = torch.as_tensor(labels)
    g = torch.Generator().manual_seed(seed)
    inputs = (torch.rand((len(labels), *task.data.shape), generator=g, dtype=torch.float64) * 1.5 - 0.5).clamp_min(0)
    return Batch(inputs.to(next(iter(task.parameters.values()))), labels)


def craft(task: Task, head, loss=NLLRaw(), seed: int = 0) -> Broadcast:
    return MKOR(taps=FlatTaps(), head=head, loss=loss).broadcast(task, torch.Generator().manual_seed(seed))


def observed(task: Task, batch: Batch, *, protocol=None, defense=None, labels=False, count=True) -> Observation:
    protocol = protocol or FedSGD()
    update = client_update(task, protocol, batch, Draws(3), defense=defense, send_example_count=False)
    knowledge = Knowledge(
        labels=batch.labels if labels else None,
        example_count=len(batch) if count else None,
        local_training=protocol,
        defense=defense,
    )
    return Observation(task, update, knowledge)


def read(built: Broadcast, batch: Batch, **options) -> ClassReading | str:
    assert isinstance(built.crafting, MKORCrafting)
    return built.crafting.classes(observed(built.task, batch, **options))


def means(batch: Batch) -> dict[int, Tensor]:
    """The oracle: mean flat picture per class."""
    flat = batch.inputs.double().flatten(1)
    return {int(c): flat[batch.labels == c].mean(0) for c in batch.labels.unique()}


def error(found: ClassReading, batch: Batch) -> float:
    """Largest relative distance of a class that was read to its oracle."""
    truth = means(batch)
    gaps = [
        (f.double() - truth[int(c)]).norm() / truth[int(c)].norm()
        for c, f in zip(found.classes, found.features, strict=True)
    ]
    return float(torch.stack(gaps).max())
