"""Two epochs of Adam on one photo, captured as a client sends it, read by `auto`: held-out clients, one line each.

``python benchmarks/adam_clients.py CIFAR10-TEST.parquet [FIRST] [COUNT] [EVALUATIONS] [NORMALISE]``; the last is 1 or 0
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

import leakgauge as lg
from leakgauge.capture import Recorder
from leakgauge.clients import Adam, LocalTraining
from leakgauge.observation import Knowledge
from leakgauge.update import UPDATE, Update


def main(photos: str, first: int = 9000, count: int = 4, evaluations: int = 1200, normalise: int = 0) -> None:
    torch.set_num_threads(1)
    source = lg.data.Parquet(path=photos, normalise=bool(normalise))  # examples/flower does not
    for index in range(first, first + count):
        torch.manual_seed(index)
        net, batch = lg.models.lenet(classes=10, size=32), source.read([index])
        spec = lg.data.spec(source)
        before = {k: v.clone() for k, v in net.state_dict().items()}
        optimiser = torch.optim.Adam(net.parameters(), lr=0.001)
        for _ in range(2):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(spec.normalise(batch.inputs)), batch.labels).backward()
            optimiser.step()
        with TemporaryDirectory() as folder:
            kept = Recorder(folder=Path(folder)).keep(before, net.state_dict(), round_="1", node=str(index), count=1)
            update = Update.load(kept / UPDATE)
        net.load_state_dict(before)
        task = lg.Task.of(net, spec, mode="train")
        knows = Knowledge(local_training=LocalTraining(optimiser=Adam(), epochs=2, batch_size=1))
        began = time.process_time()
        found = lg.attack(task, update, knows=knows, budget=lg.Budget(gradient_evaluations=evaluations))
        assert found.inputs is not None
        psnr = float(lg.metrics.PSNR()(found.inputs, batch.inputs)[0])
        print(f"{index}: {psnr:.1f} dB, {found.cost.gradient_evaluations} evaluations", end=", ")
        print(f"{time.process_time() - began:.0f} CPU s, {found.status.value}", flush=True)
        print("   ", "; ".join(f"{t.name}: {t.status.value} ({t.why})" for t in found.tried))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
