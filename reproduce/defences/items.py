"""Every defence against an attacker who has not heard of it and one who has.

`python -m reproduce.defences.items --data FOLDER` runs what is not there yet: a row is written after every pair, so
that a stopped run goes on. `reproduce.defences.page` makes the page of the docs. One client, one photo (or four),
LeNet untrained, labels and training known. Both attackers are `auto` with the same start and the same number of
gradient evaluations; the one is wrapped in `Naive`, the other in `Adapted`.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from leakgauge.attacks.adaptive import Adapted, Naive
from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget, Compute
from leakgauge.data import Parquet
from leakgauge.data.source import spec
from leakgauge.defenses import Defense
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR, assign, mean_image
from leakgauge.models import lenet
from leakgauge.observation import Attack, Knowledge, Observation, Reconstruction
from leakgauge.resolve import resolve_defense
from leakgauge.task import Batch, DataSpec, Task

RESULTS = Path(__file__).parents[1] / "results" / "defences.jsonl"
EVALUATIONS = 200


@dataclass(frozen=True)
class Setting:
    """A defence as a plan names it, and the size of the client's batch."""

    defense: Any
    examples: int = 1

    @property
    def label(self) -> str:
        name = resolve_defense(self.defense, "defenses").label
        return name if self.examples == 1 else f"{name}, batch {self.examples}"


SETTINGS = (
    *(Setting({"topk": {"keep": keep}}) for keep in (0.01, 0.05, 0.2)),
    *(Setting({"random-k": {"keep": keep}}) for keep in (0.05, 0.2, 0.5)),
    *(Setting({"prune": {"rate": rate}}) for rate in (0.7, 0.9, 0.99)),
    *(Setting({"quantise": {"levels": levels}}) for levels in (1, 3, 7)),
    *(Setting({"qsgd": {"levels": levels}}) for levels in (1, 3, 7)),
    Setting("sign"),
    *(Setting({"clip": {"norm": norm}}) for norm in (0.1, 1.0)),
    *(Setting({"noise": {"relative": relative}}) for relative in (0.01, 0.1, 0.3, 1.0)),
    *(Setting({"laplace": {"relative": relative}}) for relative in (0.1, 0.3)),
    *(Setting({"dp-sgd": {"norm": 1.0, "noise_multiplier": z}}) for z in (0.0003, 0.003, 0.1)),
    *(Setting({"client-dp": {"norm": 1.0, "noise_multiplier": z}}) for z in (0.0003, 0.003)),
    *(Setting({"fed-cdp": {"snr": snr}}) for snr in (10.0, 0.0, -10.0)),
    *(Setting({"soteria": {"prune": prune}}) for prune in (30.0, 80.0)),
    *(Setting({"precode": {"size": size}}) for size in (64, 256)),
    *(Setting({"mixup": {"alpha": alpha}}, 4) for alpha in (0.4, 1.0)),
    Setting([{"topk": {"keep": 0.2}}, {"quantise": {"levels": 7}}]),
    Setting([{"clip": {"norm": 1.0}}, {"noise": {"sigma": 0.001}}]),
)


def psnr(found: Reconstruction, batch: Batch) -> list[float]:
    """One a true picture, mates one to one within equal labels; a failure scores 0."""
    if found.inputs is None:
        return [0.0] * len(batch)
    mates = assign(found.inputs.float(), batch.inputs, labels_hat=found.labels, labels=batch.labels)
    return [float(v) for v in PSNR()(mates.take(found.inputs.float()), batch.inputs)]


def attempt(attack: Attack, seen: Observation, seed: int) -> Reconstruction:
    """Within the common budget."""
    generator = torch.Generator().manual_seed(seed)
    return attack.reconstruct(seen, generator, budget=Budget(gradient_evaluations=EVALUATIONS))


def observe(task: Task, batch: Batch, defense: Defense | None, seed: int) -> Observation:
    """What a server sees that knows labels, training and mechanism, and not the draws."""
    update = client_update(task, FedSGD(), batch, Draws(seed), defense=defense)
    known = Knowledge(labels=batch.labels, example_count=len(batch), local_training=FedSGD(), defense=defense)
    return Observation(task if defense is None else defense.on_task(task), update, known)


def run(setting: Setting, source: Parquet, floor: torch.Tensor, image: int, seed: int) -> dict[str, Any]:
    """Naive and adapted on one client."""
    data: DataSpec = spec(source)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        task = Task.of(lenet(), data)
    first = setting.examples * image
    batch = source.read(range(first, first + setting.examples))
    defense = resolve_defense(setting.defense, "defenses").value
    seen = observe(task, batch, None if setting.defense == "none" else defense, seed)
    row: dict[str, Any] = {"defense": setting.label, "image": image, "seed": seed, "evaluations": EVALUATIONS}
    row["floor"] = [round(float(v), 3) for v in PSNR()(floor.expand_as(batch.inputs), batch.inputs)]
    attacks: dict[str, Attack] = {"ceiling": Auto()}
    if setting.defense != "none":
        attacks = {"naive": Naive(attack=Auto()), "adapted": Adapted(attack=Auto())}
    for name, attack in attacks.items():
        began = time.process_time()
        found = attempt(attack, seen, 1000 * seed + image)
        row[name] = [round(v, 3) for v in psnr(found, batch)]
        row[f"{name}_status"], row[f"{name}_message"] = found.status.value, found.message
        row[f"{name}_seconds"] = round(time.process_time() - began, 2)
    return row


def rows() -> list[dict[str, Any]]:
    """Those written so far; of equal runs the last."""
    if not RESULTS.exists():
        return []
    found = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    return list({(r["defense"], r["image"], r["seed"], r["evaluations"]): r for r in found}.values())


def measure(data: Path, images: int, seeds: int, only: str) -> None:
    """Runs what is not there yet, a seed at a time, so that a stopped run has all defences."""
    Compute().apply()
    source = Parquet(path=str(data / "cifar10-test.parquet"))
    floor = mean_image(Parquet(path=str(data / "cifar10-train.parquet")).read(range(500)).inputs, 1)
    done = {(r["defense"], r["image"], r["seed"], r["evaluations"]) for r in rows()}
    everything = (Setting("none"), Setting("none", 4), *SETTINGS)
    for image, seed, setting in product(range(images), range(seeds), everything):
        key = (setting.label, image, seed, EVALUATIONS)
        if key in done or only not in setting.label:
            continue
        row = run(setting, source, floor, image, seed)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(*key[:3], {k: row[k] for k in ("ceiling", "naive", "adapted") if k in row}, flush=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the Parquet files of CIFAR-10")
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="defences whose name holds this")
    arguments = parser.parse_args()
    measure(arguments.data, arguments.images, arguments.seeds, arguments.only)


if __name__ == "__main__":
    main()
