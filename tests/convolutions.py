"""Small convolutional networks whose updates show their hidden tensors."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakgauge.clients import SGD, FedSGD, LocalTraining, Protocol, client_update
from leakgauge.defenses import NoDefense
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Batch, DataSpec, Task


class Block(nn.Module):
    """Two convolutions and a shortcut, behind a stem of stride 2."""

    def __init__(self, width: int, norm: bool = True, act: type[nn.Module] = nn.ReLU, dims: int = 2) -> None:
        super().__init__()
        conv, batch = {1: (nn.Conv1d, nn.BatchNorm1d), 2: (nn.Conv2d, nn.BatchNorm2d), 3: (nn.Conv3d, nn.BatchNorm3d)}[
            dims
        ]
        self.act = act()
        self.stem = conv(2, 16, 3, stride=2, padding=1, bias=not norm)
        self.first = conv(16, width, 3, padding=1, bias=not norm)
        self.second = conv(width, width, 3, padding=1, bias=not norm)
        self.norms = nn.ModuleList([batch(n) if norm else nn.Identity() for n in (16, width, width)])
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        x = self.act(self.norms[0](self.stem(x)))
        x = self.act(self.norms[1](self.first(x)))
        x = self.act(self.norms[2](self.second(x)) + x)
        return self.head(x.flatten(2).mean(2))


def observed(module, inputs, labels, mode="eval", defense=None):
    shape = tuple(inputs.shape[1:])
    task = Task.of(module, DataSpec(shape, 4), mode=mode)
    update = client_update(task, FedSGD(), Batch(inputs, labels), Draws(0), defense=defense or NoDefense())
    return Observation(task, update, Knowledge(example_count=len(inputs), defense=defense))


def made(count, size=8, dims=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(count, 2, *[size] * dims, generator=draw), torch.arange(count) % 4


def given(module: nn.Module, batch: Batch, mode: str, layer: str, client: Protocol) -> Tensor:
    """What a layer is given at all steps of all clients [passes, channels, pixels], by torch's own SGD."""
    seen: list[Tensor] = []
    inputs, labels = batch.inputs, batch.labels
    for part, count in client.clients(len(batch)):
        net = copy.deepcopy(module).train(mode == "train")
        net.get_submodule(layer).register_forward_pre_hook(lambda _m, it: seen.append(it[0].detach()))
        sgd = None
        if isinstance(part, LocalTraining) and isinstance(part.optimiser, SGD):
            rule = part.optimiser
            sgd = torch.optim.SGD(net.parameters(), rule.lr, momentum=rule.momentum, weight_decay=rule.weight_decay)
        first = 0
        for size in part.parts(count):
            rows = torch.arange(first, first + size) % count
            first += size
            net.zero_grad()
            F.cross_entropy(net(inputs[rows]), labels[rows]).backward()
            if sgd is not None:
                sgd.step()
        inputs, labels = inputs[count:], labels[count:]
    every = torch.cat(seen)
    return every.reshape(*every.shape[:2], -1).double()
