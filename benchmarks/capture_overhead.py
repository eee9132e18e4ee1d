"""What a capture costs a round: processor seconds of rounds without and with it, in turns, medians.

``python benchmarks/capture_overhead.py [ROUNDS]``: photos of 32 px in batches of 8, SGD; rounds of a few steps and of
about one second. Listening costs by the step; writing costs by the round and the megabyte.
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

from leakgauge.capture import Recorder, RoundExamples, watching
from leakgauge.models import lenet, mlp, resnet18

NETWORKS: tuple[tuple[str, Callable[[], nn.Module], tuple[int, ...]], ...] = (
    ("lenet", lambda: lenet(classes=10), (8, 400)),
    ("mlp", lambda: mlp(classes=10, hidden=(256, 64)), (8, 400)),
    ("resnet18", lambda: resnet18(classes=10), (2, 6)),
)
"""Name, network, steps of a short and of a long round."""


def trained(net: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, steps: int) -> float:
    """Processor seconds of a round."""
    start = time.process_time()
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()
        optimiser.step()
    return time.process_time() - start


def written(before: dict[str, torch.Tensor], net: nn.Module, examples: RoundExamples) -> float:
    """Processor seconds of writing a round."""
    with TemporaryDirectory() as folder:
        start = time.process_time()
        Recorder(folder=Path(folder)).keep(before, net.state_dict(), round_="1", node="0", examples=examples)
        return time.process_time() - start


def main(rounds: int = 9) -> None:
    torch.set_num_threads(1)
    inputs, labels = torch.rand(8, 3, 32, 32), torch.arange(8)
    for name, make, lengths in NETWORKS:
        net = make().train()
        before = {k: v.clone() for k, v in net.state_dict().items()}
        size = sum(v.numel() * v.element_size() for v in before.values()) / 1e6
        for steps in lengths:
            trained(net, inputs, labels, steps)
            plain, heard, kept = [], [], []
            for _ in range(rounds):
                plain.append(trained(net, inputs, labels, steps))
                with watching(listen=True) as examples:
                    heard.append(trained(net, inputs, labels, steps))
                kept.append(written(before, net, examples))
            a, c = statistics.median(plain), statistics.median(kept)
            extra = statistics.median(h - p for h, p in zip(heard, plain, strict=True))
            print(f"{name} ({size:.1f} MB), {steps} steps: round {a:.4f} CPU s", end="; ")
            print(f"listening adds {100 * extra / a:.1f} % ({1e6 * extra / steps:.0f} us a step)", end="; ")
            print(f"writing {1e3 * c:.1f} ms", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
