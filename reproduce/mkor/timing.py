"""Speed and memory of MKOR on VGG16: reading and inverting a batch of 100, and the update by the shortcut.

`python -m reproduce.mkor.timing [--network]`; medians of three, one process. With ``--network`` the shortcut is
compared with the real network's forward and backward pass on two pictures.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable

import torch

from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Compute
from leakgauge.draws import Draws
from leakgauge.models import vgg16
from leakgauge.observation import Knowledge, Observation
from leakgauge.servers.mkor import MKOR
from leakgauge.task import Batch, DataSpec, Task
from reproduce.mkor.shortcut import shortcut_update


def peak() -> int:
    """Peak resident memory of this process, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def median_seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """Median wall time."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--network", action="store_true", help="also run the real network on two pictures")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    Compute(threads=given.threads).apply()
    torch.manual_seed(0)
    honest = Task.of(vgg16(classes=100), DataSpec((3, 224, 224), 100))
    sent = MKOR().broadcast(honest, torch.Generator().manual_seed(0))
    assert sent.crafting is not None
    generator = torch.Generator().manual_seed(1)
    coarse = torch.rand((100, 3, 28, 28), generator=generator)
    batch = Batch(torch.nn.functional.interpolate(coarse, 224, mode="bilinear"), torch.arange(100))
    began = time.perf_counter()
    update = shortcut_update(sent.task, sent.crafting.map, batch)
    print(f"update by the shortcut, 100 pictures: {time.perf_counter() - began:.2f} s")
    seen = Observation(sent.task, update, Knowledge(example_count=100, crafting=sent.crafting))
    before = peak()
    seconds = median_seconds(lambda: sent.crafting.reconstruct(seen, torch.Generator()))
    beyond = f"{peak() - before} MiB beyond the {before} of the update"
    print(f"reading and inverting 100 pictures: {seconds:.2f} s, {beyond}")
    if given.network:
        two = batch.take(torch.arange(2))
        real = median_seconds(lambda: client_update(sent.task, FedSGD(), two, Draws(0)), 1)
        fast = median_seconds(lambda: shortcut_update(sent.task, sent.crafting.map, two), 1)
        print(f"two pictures: network {real:.2f} s, shortcut {fast:.2f} s, ratio {real / fast:.1f}")


if __name__ == "__main__":
    main()
