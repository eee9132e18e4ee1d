"""What a capture costs a round: processor seconds of a client's round without and with it, median of some rounds.

``python benchmarks/capture_overhead.py [ROUNDS]``: 64 examples of 32 px, one epoch in batches of 16.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from leakgauge.capture import Examples, Recorder, watching
from leakgauge.models import lenet, resnet18


def trained(net: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
    for x, y in zip(inputs.split(16), labels.split(16), strict=True):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main(rounds: int = 5) -> None:
    torch.set_num_threads(1)
    inputs, labels = torch.rand(64, 3, 32, 32), torch.arange(64) % 10
    for name, make in (("lenet", lenet), ("resnet18", resnet18)):
        net = make(classes=10).train()
        before = {k: v.clone() for k, v in net.state_dict().items()}
        plain, watched, written = [], [], []
        trained(net, inputs, labels)
        for number in range(rounds):
            plain.append(seconds(lambda: trained(net, inputs, labels)))
            kept: list[Examples] = []

            def heard() -> None:
                with watching(listen=True) as examples:
                    trained(net, inputs, labels)
                kept.append(examples)

            watched.append(seconds(heard))
            with TemporaryDirectory() as folder:
                recorder, state = Recorder(folder=Path(folder)), net.state_dict()
                said = {"round_": str(number), "node": "0", "count": 64, "examples": kept[0]}
                written.append(seconds(lambda: recorder.keep(before, state, **said)))
        a, b, c = (statistics.median(v) for v in (plain, watched, written))
        size = sum(v.numel() * v.element_size() for v in before.values()) / 1e6
        print(f"{name} ({size:.1f} MB): round {a:.3f} CPU s, heard {b:.3f}, written {c:.3f}", end=": ")
        print(f"capture adds {100 * (b + c - a) / a:.1f} %", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
