"""A client's round in a loop of its own: shuffled epochs of minibatches, captured as it runs."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from leakgauge.capture import Recorder, watching
from leakgauge.data import Samples

SIZE, MOST = 12, 100
PLAN = {"sgd": {"fedavg": {"lr": 0.05}}, "adam": {"local-training": {"optimiser": {"adam": {"lr": 0.002}}}}}


def grouped() -> nn.Module:
    conv = nn.Conv2d(3, 8, 3, 2, 1)
    return nn.Sequential(conv, nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 8))


def batched() -> nn.Module:
    conv = nn.Conv2d(3, 8, 3, 2, 1)
    return nn.Sequential(conv, nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 8))


def grouped_gelu() -> nn.Module:
    net = grouped()
    net[2] = nn.GELU()
    return net


def batched_gelu() -> nn.Module:
    net = batched()
    net[2] = nn.GELU()
    return net


NETS = {"grouped": grouped, "batched": batched}


def photos(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Different photos, as a network with its own normalisation sees them, and their labels."""
    g = torch.Generator().manual_seed(3)
    source = Samples(size=SIZE)
    whole = source.read([i % len(source) for i in range(MOST)])
    noise = 0.1 * torch.randn(whole.inputs.shape, generator=g)
    inputs, labels = (whole.inputs + noise).clamp(0, 1), torch.randint(8, (MOST,), generator=g)
    return inputs[:count], labels[:count]


def train(
    net: nn.Module, optimiser: str, inputs: torch.Tensor, labels: torch.Tensor, *, epochs: int = 2, seed: int = 0
) -> None:
    """Somebody's loop over a shuffling loader."""
    made = torch.optim.Adam(net.parameters(), 0.002) if optimiser == "adam" else torch.optim.SGD(net.parameters(), 0.05)
    g = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for x, y in DataLoader(TensorDataset(inputs, labels), 8, shuffle=True, generator=g):
            made.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            made.step()


def captured_round(folder: Path, net: str, optimiser: str, count: int, *, rounds: int = 1, listen: bool = True) -> Path:
    """The folder of the last of some rounds of one client."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = NETS[net]().train()
    inputs, labels = photos(count)
    with watching() as others:  # another client's, to compare with
        others.add(*(part.flip(0) for part in (1 - inputs, labels)))
    same = {k: v + 1 for k, v in module.state_dict().items()}
    Recorder(folder=folder).keep(same, module.state_dict(), round_="0", node="8", examples=others)
    place = folder
    for number in range(rounds):
        before = {k: v.clone() for k, v in module.state_dict().items()}
        with watching(listen=listen) as examples:
            train(module, optimiser, inputs, labels, seed=number)
        kept = examples if listen else None
        recorder = Recorder(folder=folder)
        place = recorder.keep(before, module.state_dict(), round_=str(number), node="7", count=count, examples=kept)
    return place
