"""Certificates of hidden tensors over random networks: `benchmarks/convolution_draws.py --data F --out rows.jsonl`.

Draw n takes all from a generator of seed n: network, weights, norm, activation, batch, mode and photos. A certificate
is wrong where a layer's input is further off than it says, and further than float32 leaves of the client's own pass. A
row is written after each draw, and a draw whose row is there is not repeated. `--table` prints what is there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from convolution_reads import errors, held
from torch import Tensor, nn

from leakgauge.attacks.features.read import HiddenTensors
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Compute
from leakgauge.data import Parquet, spec
from leakgauge.defenses import NoDefense
from leakgauge.draws import Draws
from leakgauge.models import resnet18
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Task

PHOTOS, FIRST, DRAWS = range(8000, 9000), 700_000, 1000
FLOAT = 1e-6  # what float32 leaves of the client's own pass
NORMS = {
    "none": nn.Identity,
    "batch": nn.BatchNorm2d,
    "group": lambda width: nn.GroupNorm(4, width),
    "instance": lambda width: nn.InstanceNorm2d(width, affine=True),
}


class Chain(nn.Module):
    """Convolutions of 16 to 96 filters, some beside an identity, behind a stem that makes places fewer."""

    def __init__(self, draw: torch.Generator) -> None:
        super().__init__()

        def one(*among: Any) -> Any:
            return among[int(torch.randint(len(among), (), generator=draw))]

        self.norm, width = one(*NORMS), one(32, 48, 64, 96)
        self.act, self.skips = one(nn.ReLU(), nn.ReLU(), nn.LeakyReLU(0.1), nn.GELU()), one(True, False)
        before, layers = 3, []
        for stride in one((4, 2, 1), (2, 4, 1), (4, 2, 1, 1), (8, 1, 1)):
            after, kernel = width if stride == 1 else one(16, width), one(3, 3, 5)
            plain = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=one(True, False))
            layers.append(nn.Sequential(plain, NORMS[self.norm](after)))
            before = after
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(before, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            made = layer(x)
            x = self.act(made + x if self.skips and made.shape == x.shape else made)
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


def drawn(seed: int, source: Parquet) -> dict[str, Any]:
    """One draw."""
    draw = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    small, mode = seed % 4 != 0, ("eval", "train")[seed // 4 % 2]
    batch = int(torch.randint(1, 7 if small else 17, (), generator=draw))
    width = int(torch.randint(1, 5, (), generator=draw)) * 16
    net = Chain(draw) if small else resnet18(width=width)
    photos = [PHOTOS[i] for i in torch.randperm(len(PHOTOS), generator=draw)[:batch].tolist()]
    examples = source.read(photos)
    task = Task.of(net, spec(source), mode=mode)
    update = client_update(task, FedSGD(), examples, Draws(seed))
    known = Knowledge(example_count=batch, local_training=FedSGD(), defense=NoDefense())
    hidden = HiddenTensors.of(Observation(task, update, known), batch).read(draw, most=2**13)
    truth = held(task, examples, [one.layers[0].weight for one in hidden.reads])
    layers = []
    for read in hidden.reads:
        weight = read.layers[0].weight
        off = errors(read.maps, truth[weight]) if read.maps[0].numel() == truth[weight].shape[1] else 0.0
        layers.append([weight, len(read.maps), read.certified, float(f"{read.error:.1e}"), float(f"{off:.1e}")])
    name = f"chain, {net.norm}, {type(net.act).__name__}" if isinstance(net, Chain) else f"ResNet-18, {width}"
    return {"seed": seed, "network": name, "batch": batch, "mode": mode, "layers": layers}


def wrong(layer: list[Any]) -> bool:
    """Whether a certificate says less than the layer's input is off."""
    _, _, certified, stated, off = layer
    return bool(certified) and off > max(FLOAT, min(stated, 1e-3))


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What was certified, by kind of network."""
    yield "| network | draws | layers read | certified | wrong |"
    yield "|---|---|---|---|---|"
    for kind in ("chain", "ResNet-18"):
        own = [row for row in rows if row["network"].startswith(kind)]
        layers = [layer for row in own for layer in row["layers"]]
        yield f"| {kind} | {len(own)} | {len(layers)} | {sum(x[2] for x in layers)} | {sum(map(wrong, layers))} |"


def main() -> None:
    """Runs what is missing, or prints the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, help="CIFAR-10's test file")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--first", type=int, default=FIRST)
    options.add_argument("--draws", type=int, default=DRAWS)
    options.add_argument("--table", action="store_true")
    asked = options.parse_args()
    rows = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    if asked.table:
        print("\n".join(table(rows)))
        return
    Compute(threads=1).apply()
    done, source = {row["seed"] for row in rows}, Parquet(path=str(asked.data))
    for seed in range(asked.first, asked.first + asked.draws):
        if seed not in done:
            row = drawn(seed, source)
            with asked.out.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(json.dumps(row), "WRONG" if any(map(wrong, row["layers"])) else "", flush=True)


if __name__ == "__main__":
    main()
