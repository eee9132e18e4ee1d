"""Volumes of 64³ voxels with a small lesion, from the gradient of a transformer over patches (MONAI's UNETR).

`python benchmarks/volumes.py --out rows.jsonl`. The network, the volumes and the claims are named here, and were before
any run: the volume at 100 dB or more, and the lesion's share of the voxels, which the last bias tells, to .002. A row
is written after each volume, and one whose row is there is not repeated. `--table` prints what is there. Needs monai.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from monai.networks.nets import UNETR

import leakgauge as lg
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Compute
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR
from leakgauge.step import losses

SIDE, WIDTH, PATCHES = 64, 192, 64
SEEDS = range(21, 27)  # of a volume, of the weights and of the attack
ROWS = Path(__file__).parent / "results" / "volumes.jsonl"


def patient(seed: int) -> dict[str, torch.Tensor]:
    """Smooth tissue with grain from 0 to 1, and a brighter ball of radius four to seven, which the mask names."""
    g = torch.Generator().manual_seed(seed)
    grid = torch.stack(torch.meshgrid(*[torch.arange(float(SIDE))] * 3, indexing="ij"))
    centre, radius = SIDE * (0.3 + 0.4 * torch.rand(3, 1, 1, 1, generator=g)), 4 + 3 * torch.rand(1, generator=g)
    ball = (grid - centre).norm(dim=0) < radius
    tissue = F.interpolate(torch.rand(1, 1, 8, 8, 8, generator=g), size=SIDE, mode="trilinear")[0]
    grain = 0.05 * torch.rand(1, SIDE, SIDE, SIDE, generator=g)
    return {"scan": (0.65 * tissue + 0.3 * ball + grain)[None], "mask": ball[None].long()}


def row(seed: int) -> dict[str, Any]:
    """One volume, through `lg.attack`."""
    Compute(threads=1).apply()
    torch.manual_seed(seed)
    net = UNETR(1, 2, (SIDE,) * 3, feature_size=4, hidden_size=WIDTH, mlp_dim=256, num_heads=4)
    parts = {"scan": lg.Volume((1, *[SIDE] * 3)), "mask": lg.Mask(2, (SIDE,) * 3)}
    task, batch = lg.Task.of_step(net, lambda m, b: losses.dice_ce(m(b["scan"]), b["mask"]), parts), patient(seed)
    update = client_update(task, FedSGD(), batch, Draws(seed))
    began = time.process_time()
    found = lg.attack(task, update, seed=seed, budget=lg.Budget(gradient_evaluations=5))
    seconds = round(time.process_time() - began, 1)
    scan, share = found.parts.get("scan"), found.shares.get("mask")
    return {
        "seed": seed,
        "psnr": None if scan is None else round(float(PSNR()(scan.float(), batch["scan"])), 1),
        "share": float(batch["mask"].double().mean()),
        "read": None if share is None else float(share.flatten()[-1]),
        "status": found.status.value,
        "message": found.message,
        "seconds": seconds,
    }


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """One line a volume."""
    yield "| volume | dB | lesion's share | read | CPU s |"
    yield "|---|---|---|---|---|"
    for one in rows:
        read = "–" if one["read"] is None else f"{one['read']:.4f}"
        yield f"| {one['seed']} | {one['psnr']} | {one['share']:.4f} | {read} | {one['seconds']} |"
    met = (
        sum((r["psnr"] or 0) >= 100 for r in rows),
        sum(r["read"] and abs(r["read"] - r["share"]) <= 2e-3 for r in rows),
    )
    yield f"\nAt 100 dB: {met[0]} of {len(rows)}; shares to .002: {met[1]} of {len(rows)}."


def main() -> None:
    """Runs what is missing, or prints the table."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--out", type=Path, default=ROWS)
    asked.add_argument("--table", action="store_true")
    given = asked.parse_args()
    rows = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    for seed in () if given.table else SEEDS:
        if seed not in {r["seed"] for r in rows}:
            rows.append(row(seed))
            with given.out.open("a") as out:
                out.write(json.dumps(rows[-1]) + "\n")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
