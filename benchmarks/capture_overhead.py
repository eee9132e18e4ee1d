"""What a capture costs a round: processor seconds of a client's round without and with it, median of some rounds.

``python benchmarks/capture_overhead.py [ROUNDS] [EXAMPLES]``: 64 of 32 px, one epoch in batches of 16.
"""

from __future__ import annotations

import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from leakgauge.capture import Recorder, watching
from leakgauge.models import lenet, resnet18


def trained(net: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
    for x, y in zip(inputs.split(16), labels.split(16), strict=True):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()


def one_round(net: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> tuple[float, float, float]:
    """Processor seconds of a round as it is, of one that is listened to, and of writing what was captured."""
    before, clock = {k: v.clone() for k, v in net.state_dict().items()}, time.process_time
    times = [clock()]
    trained(net, inputs, labels)
    times.append(clock())
    with watching(listen=True) as examples:
        trained(net, inputs, labels)
    times.append(clock())
    with TemporaryDirectory() as folder:
        recorder = Recorder(folder=Path(folder))
        recorder.keep(before, net.state_dict(), round_="1", node="0", count=len(labels), examples=examples)
    times.append(clock())
    plain, heard, written = (b - a for a, b in pairwise(times))
    return plain, heard, written


def main(rounds: int = 5, examples: int = 64) -> None:
    torch.set_num_threads(1)
    inputs, labels = torch.rand(examples, 3, 32, 32), torch.arange(examples) % 10
    for name, make in (("lenet", lenet), ("resnet18", resnet18)):
        net = make(classes=10).train()
        trained(net, inputs, labels)
        found = [one_round(net, inputs, labels) for _ in range(rounds)]
        a, b, c = (statistics.median(v) for v in zip(*found, strict=True))
        size = sum(v.numel() * v.element_size() for v in net.state_dict().values()) / 1e6
        print(f"{name} ({size:.1f} MB): round {a:.3f} CPU s, heard {b:.3f}, written {c:.3f}", end=": ")
        print(f"capture adds {100 * (b + c - a) / a:.1f} %", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
