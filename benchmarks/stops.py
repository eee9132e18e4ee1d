"""What stops each exact read: `python benchmarks/stops.py --data cifar10-test.parquet --out rows.jsonl [--table]`.

One undefended FedSGD update a row in float32, the defence known: weights by seed, photos 8000 + 40·seed and on, texts
`examples/texts/fortunes.csv` from 40·seed on. What stops it is found by bisection over `ladders.LADDERS`. A row is
written after each run; a run whose row is there is not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from exposed import Transformer
from ladders import reads_of
from torch import nn

from leakgauge.data import Parquet, Source, open_source
from leakgauge.frontiers.plan import resolve_frontier
from leakgauge.models import mlp

TEXTS = Path(__file__).parent.parent / "examples" / "texts"
sys.path.insert(0, str(TEXTS))
from classifier import Classifier  # noqa: E402

Net = Callable[[Source], nn.Module]


def classifier(source: Source) -> nn.Module:
    """That of the example, for the texts' vocabulary."""
    return Classifier(source.vocabulary, source.shape[0], source.classes)  # type: ignore[attr-defined]


ROWS: dict[str, tuple[Net, int]] = {
    "patches": (lambda _: Transformer(), 1),
    "rank-one": (lambda _: mlp(hidden=(64,), bias=False), 1),
    "peeling and sparse directions": (lambda _: mlp(hidden=(64,)), 12),
    "span-read": (lambda _: mlp(hidden=(64, 64), activation="sigmoid"), 8),
    "tokens of texts": (classifier, 1),
    "tokens of texts, four": (classifier, 4),
}
"""Name of the read → network, batch."""


def run(photos: Source, name: str, seed: int) -> list[dict[str, Any]]:
    """Every read of one client."""
    build, batch = ROWS[name]
    words = name.startswith("tokens")
    source = open_source(f"text:{TEXTS / 'fortunes.csv'}", target="kind", length=24) if words else photos
    torch.manual_seed(seed)
    plan = {
        "data": {"source": source, "batch": batch, "images": batch, "start": (0 if words else 8000) + 40 * seed},
        "model": build(source),
        "client": "fedsgd",
        "attack": "auto",
        "gallery": 10,
        "budget": {"gradient_evaluations": 4000},
        "defenses": {"top-k": [{"topk": {"keep": 0.5}}]},
    }
    began = time.process_time()
    found = [asdict(read) for read in reads_of(resolve_frontier(plan))]
    seconds = round(time.process_time() - began, 1)
    return [{"row": name, "seed": seed, "cpu_seconds": seconds, **r} for r in found]


def main() -> None:
    """Runs what has no row yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--items", nargs="+", default=list(ROWS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    done = {(r["row"], r["seed"]) for r in rows}
    photos = Parquet(path=asked.data)
    for name in asked.items:
        for seed in asked.seeds:
            if not asked.table and (name, seed) not in done:
                made = run(photos, name, seed)
                rows += made
                with asked.out.open("a") as out:
                    out.writelines(json.dumps(r) + "\n" for r in made)
    for r in rows:
        stops = [f"{s['change']}: {s['exact']} ({s['seen']})" for s in r["stopped"]]
        print(r["row"], r["seed"], "|", r["read"], f"{r['exact']} of {r['batch']}", *stops, sep="; ")


if __name__ == "__main__":
    main()
