"""What knowing a mild defence could be worth at most: the weight of the prior chosen with the truth at hand.

`python -m reproduce.defences.limit --data FOLDER`. Where noise is small against the update, the naive attacker's
objective is nearly the likelihood already (a cosine is the distance at the best length), and what is left to know is
how heavy the prior should be. Here it is tried at four weights for each client, and the truth picks: no attacker can,
so the gain is above that of any rule for this weight.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from leakgauge.attacks.adaptive import Adapted, Naive, noise
from leakgauge.attacks.adaptive import counter as likelihood
from leakgauge.attacks.recipes import Auto
from leakgauge.compute import Compute
from leakgauge.data import Parquet
from leakgauge.data.source import spec
from leakgauge.models import lenet
from leakgauge.resolve import resolve_defense
from leakgauge.task import Task
from reproduce.defences.items import Setting, attempt, observe, psnr

RESULTS = Path(__file__).parents[1] / "results" / "defences-limit.jsonl"
SETTINGS = (
    Setting({"noise": {"relative": 0.1}}),
    Setting({"laplace": {"relative": 0.1}}),
    Setting({"quantise": {"levels": 7}}),
    Setting({"qsgd": {"levels": 7}}),
    Setting([{"clip": {"norm": 1.0}}, {"noise": {"sigma": 0.001}}]),
)
"""Those within a few decibels of no defence."""
WEIGHTS = (0.3, 1.0, 3.0, 8.0)
"""Of the prior, in units of the counter's own."""


def run(setting: Setting, source: Parquet, image: int) -> dict[str, Any]:
    """One client, its seed the image's number modulo three."""
    seed = image % 3
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        task = Task.of(lenet(), spec(source))
    batch = source.read([image])
    seen = observe(task, batch, resolve_defense(setting.defense, "defenses").value, seed)
    number = 1000 * seed + image
    row: dict[str, Any] = {"defense": setting.label, "image": image, "seed": seed}
    row["naive"] = round(psnr(attempt(Naive(attack=Auto()), seen, number), batch)[0], 3)
    own = [(module, module.STRENGTH) for module in (noise, likelihood)]
    for weight in WEIGHTS:
        with ExitStack() as stack:
            for module, strength in own:
                stack.enter_context(patch.object(module, "STRENGTH", weight * strength))
            row[f"weight {weight:g}"] = round(psnr(attempt(Adapted(attack=Auto()), seen, number), batch)[0], 3)
    return row


def rows() -> list[dict[str, Any]]:
    """Those written so far."""
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def section() -> Iterator[str]:
    """Markdown, one line a defence."""
    found = rows()
    columns = "naive | adapted | weight by the truth | adapted − naive | by the truth − naive | of these ≥ 2"
    yield f"| defence | clients | {columns} |"
    yield "|---" * 8 + "|"
    for setting in SETTINGS:
        own = [r for r in found if r["defense"] == setting.label]
        if not own:
            continue
        naive, adapted = [r["naive"] for r in own], [r["weight 1"] for r in own]
        best = [max(r[f"weight {weight:g}"] for weight in WEIGHTS) for r in own]
        found_by = [naive, adapted, best]
        found_by += [[value - n for value, n in zip(values, naive, strict=True)] for values in (adapted, best)]
        cells = " | ".join(f"{statistics.median(values):.1f}" for values in found_by)
        yield f"| {setting.label} | {len(own)} | {cells} | {sum(value >= 2 for value in found_by[-1])} |"


def main() -> None:
    """Runs what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the Parquet files of CIFAR-10")
    parser.add_argument("--images", type=int, default=10)
    arguments = parser.parse_args()
    Compute().apply()
    source = Parquet(path=str(arguments.data / "cifar10-test.parquet"))
    done = {(r["defense"], r["image"]) for r in rows()}
    for image in range(arguments.images):
        for setting in SETTINGS:
            if (setting.label, image) in done:
                continue
            row = run(setting, source, image)
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)


if __name__ == "__main__":
    main()
