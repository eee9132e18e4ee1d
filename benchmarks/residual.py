"""Networks with kinks, `auto` beside Inverting Gradients: `python benchmarks/residual.py --data F --out rows.jsonl`.

Trained and untrained ResNet-20 (width 16), ConvNet-16, and ResNet-18 on fewer photos: one photo a client, labels given,
FedSGD. Inverting Gradients runs with each weight of its total variation; the table takes the one with the best mean on
that network, which favours it. *Others*: the same read against the other photos of the grid, what a picture of the
same smoothness has without the update. A row is written after each run, and a run whose row is there is not repeated,
so it may be killed at any time; the cheap networks come first. `--table` prints what is there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leakgauge.attacks.recipes import Auto, inverting_gradients
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget
from leakgauge.data import Parquet, Source, spec
from leakgauge.draws import Draws
from leakgauge.intervals import mean_interval
from leakgauge.metrics.metric import PSNR
from leakgauge.models import convnet, resnet18, resnet20
from leakgauge.models.weights import load_weights, packaged
from leakgauge.observation import Attack, Knowledge, Observation
from leakgauge.task import Task

HELD_OUT = range(7100, 7110)
"""Photos of the table; settings of `auto` were chosen on others."""

SEEDS = (0, 1, 2)
WEIGHTS = (0.0, 1e-4, 1e-3, 1e-2, 1e-1)
"""Of Inverting Gradients' total variation."""

FEW = 4
"""Photos of ResNet-18, with one seed."""


@dataclass(frozen=True)
class Case:
    """One run; `attacker` is `auto`, or Inverting Gradients' weight."""

    network: str
    attacker: str
    photo: int
    seed: int
    evaluations: int


def trained(seed: int) -> nn.Module:
    """The packaged ResNet-20; the seed is that of the search alone."""
    del seed
    network = resnet20(width=16)
    load_weights(network, packaged("resnet20-cifar10"), "weights")
    return network


def untrained(make: Callable[[], nn.Module]) -> Callable[[int], nn.Module]:
    """First weights by the seed."""

    def made(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return make()

    return made


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "convnet-16": untrained(lambda: convnet(width=16)),
    "resnet20-16": untrained(lambda: resnet20(width=16)),
    "resnet20-16-trained": trained,
    "resnet18": untrained(resnet18),
}


ATTACKERS = ("auto", *(f"{w:g}" for w in WEIGHTS))


def cases(networks: list[str], attackers: list[str], seeds: list[int], evaluations: int) -> Iterator[Case]:
    """Photo by photo, so that a table of half of them is fair."""
    for network in networks:
        large = network == "resnet18"
        for seed in seeds[:1] if large else seeds:
            for photo in HELD_OUT[:FEW] if large else HELD_OUT:
                for attacker in attackers:
                    yield Case(network, attacker, photo, seed, evaluations)


def attack_of(case: Case) -> Attack:
    """The attacker of a case, with the steps of its schedule equal to its budget."""
    if case.attacker == "auto":
        return Auto(rough_steps=case.evaluations)
    return inverting_gradients(tv=float(case.attacker), steps=case.evaluations)


def run(source: Source, case: Case) -> dict[str, Any]:
    """One photo and one attacker."""
    photos = source.read(list(HELD_OUT))
    which = HELD_OUT.index(case.photo)
    batch = photos.take(torch.tensor([which]))
    task = Task.of(NETWORKS[case.network](case.seed), spec(source))
    update = client_update(task, FedSGD(), batch, Draws(case.seed))
    seen = Observation(task, update, Knowledge(batch.labels, 1, FedSGD()))
    generator = torch.Generator().manual_seed(case.seed)
    began = time.process_time()
    found = attack_of(case).reconstruct(seen, generator, budget=Budget(gradient_evaluations=case.evaluations))
    seconds = time.process_time() - began
    assert found.inputs is not None
    scores = PSNR()(found.inputs.double().expand_as(photos.inputs), photos.inputs.double()).tolist()
    others = [s for i, s in enumerate(scores) if i != which]
    measured = {
        "psnr": round(scores[which], 2),
        "others": round(statistics.mean(others), 2),
        "nearest": scores[which] == max(scores),
        "distance": found.objective,
        "cpu_seconds": round(seconds, 1),
    }
    return asdict(case) | measured


def table(rows: list[dict[str, Any]]) -> list[str]:
    """For each network: mean PSNR, the gain over Inverting Gradients and over other photos, 95 % over photos."""
    lines: list[str] = []
    for network in NETWORKS:
        own = [r for r in rows if r["network"] == network]
        by = {a: {(r["photo"], r["seed"]): r for r in own if r["attacker"] == a} for a in {r["attacker"] for r in own}}
        auto = by.pop("auto", {})
        shared = set(auto).intersection(*by.values()) if by else set()
        if not shared:
            continue
        mean = {a: statistics.mean(found[k]["psnr"] for k in shared) for a, found in by.items()}
        best = max(mean, key=lambda a: mean[a])
        lines.append(
            f"{network}: auto {statistics.mean(auto[k]['psnr'] for k in shared):.1f} dB, Inverting Gradients "
            f"{mean[best]:.1f} (weight {best}), {len(shared)} runs"
        )
        beside = {k: auto[k]["psnr"] - by[best][k]["psnr"] for k in shared}
        beyond = {k: auto[k]["psnr"] - auto[k]["others"] for k in shared}
        nearest = sum(auto[k]["nearest"] for k in shared)
        lines.append(f"  ahead of it by {_gain(beside)}")
        lines.append(f"  ahead of other photos by {_gain(beyond)}; nearest to its own in {nearest}")
    return lines


def _gain(gains: dict[tuple[int, int], float]) -> str:
    """Mean and its interval over photos, each the mean of its seeds."""
    photos = sorted({photo for photo, _ in gains})
    means = [statistics.mean(v for k, v in gains.items() if k[0] == photo) for photo in photos]
    around = mean_interval(means)
    between = "" if around.low is None else f" [{around.low:.1f}, {around.high:.1f}]"
    return f"{statistics.mean(means):.1f} dB{between}"


def main() -> None:
    """Runs what has no row yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--evaluations", type=int, default=2400)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--attackers", nargs="+", default=list(ATTACKERS), choices=ATTACKERS)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    done = {tuple(r[name] for name in Case.__annotations__) for r in rows}
    if not asked.table:
        source = Parquet(path=asked.data)
        for case in cases(asked.networks, asked.attackers, asked.seeds, asked.evaluations):
            if tuple(asdict(case).values()) not in done:
                rows.append(run(source, case))
                with asked.out.open("a") as out:
                    out.write(json.dumps(rows[-1]) + "\n")
    print("\n".join(table([r for r in rows if r["evaluations"] == asked.evaluations])))


if __name__ == "__main__":
    main()
