"""What is read of convolutional networks behind noise and coarse wires: `python benchmarks/convolution_noise.py
--data F --out rows.jsonl`. Photos and seeds are named here, and were before any run on them.

A row is written after each run, and a run whose row is there is not repeated. `--table` prints what is there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from convolutions import SEEDS, network
from leakgauge.attacks.features.inside import Inside
from leakgauge.attacks.recipes import Features
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget, Compute
from leakgauge.data import Parquet, spec
from leakgauge.defenses import Defense, NoDefense, Quantise, noise
from leakgauge.draws import Draws
from leakgauge.face import attack
from leakgauge.observation import Knowledge
from leakgauge.task import Task
from leakgauge.tensors import map_tensors
from leakgauge.update import Update

PHOTOS = (9163, 9164, 9165)
"""Of the CIFAR-10 test file, one a run; settings were chosen on others, from 8000 to 8199, and on 9160 zeros had not
been told by gradients."""

NETWORK, SECONDS = "resnet18-16", 60.0

WIRES: dict[str, tuple[Defense, torch.dtype]] = {
    "float32": (NoDefense(), torch.float32),
    "float16": (NoDefense(), torch.float16),
    "bfloat16": (NoDefense(), torch.bfloat16),
    "noise 1e-4": (noise(relative=1e-4), torch.float32),
    "noise 1e-3": (noise(relative=1e-3), torch.float32),
    "noise 1e-2": (noise(relative=1e-2), torch.float32),
    "int8": (Quantise(levels=127), torch.float32),
}
"""What is done to an update; noise is relative to its length."""


def ran(wire: str, photo: int, seed: int, source: Parquet) -> dict[str, Any]:
    """One photo of an untrained network: how near the best read is to what its layer was given, and the picture."""
    defense, dtype = WIRES[wire]
    batch = source.read([photo])
    task = Task.of(network(NETWORK, seed, None), spec(source))
    update = client_update(task, FedSGD(), batch, Draws(seed), defense=defense)
    update = Update(map_tensors(lambda t: t.to(dtype), update.tensors), update.header)
    known = Knowledge(local_training=FedSGD(), example_count=1, defense=defense)
    began = time.process_time()
    found = attack(
        task,
        update,
        using=Features(),
        knows=known,
        seed=seed,
        budget=Budget(seconds=3600.0),
        on_step=lambda _: time.process_time() - began > SECONDS,
    )
    inside = Inside.of(task, 1)
    row: dict[str, Any] = {"wire": wire, "photo": photo, "seed": seed, "message": found.message, "layers": []}
    for one in found.features:
        (layer,) = [own for own in inside.layers if own.weight == one.layer]
        (truth,) = inside.run([layer.hidden], {}, replace(batch, inputs=batch.inputs.double()))
        ours, theirs = one.maps.flatten(), layer.unfolding.of_hidden(truth).flatten()
        ours, theirs = ours / ours.norm(), theirs.to(ours) / theirs.norm()
        row["layers"].append([one.layer, float(f"{float((ours - theirs).norm()):.1e}"), one.error, one.certified])
    row |= {"status": found.status.value, "seconds": round(time.process_time() - began, 1), "psnr": 0.0}
    if found.inputs is not None:
        row["psnr"] = round(float(-10 * (found.inputs - batch.inputs).square().mean().clamp_min(1e-16).log10()), 1)
    return row


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Each wire: error and bound of the layer that came out best, how many layers are certified, and the pictures."""
    yield "| wire | photos | best layer: error | its bound | layers certified, of those read | wrong | dB | exact | s |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for wire in WIRES:
        own = [r for r in rows if r["wire"] == wire]
        layers = [layer for r in own for layer in r["layers"]]
        best = [min(r["layers"], key=lambda one: one[1]) for r in own if r["layers"]]
        if own:
            near, bound = (", ".join(f"{one[k]:.0e}" for one in best) or "nothing" for k in (1, 2))
            yield (
                f"| {wire} | {len(own)} | {near} | {bound} | {sum(one[3] for one in layers)} of {len(layers)} "
                f"| {sum(one[3] and one[1] > max(one[2], 1e-3) for one in layers)} "
                f"| {', '.join(str(r['psnr']) for r in own)} | {sum(r['status'] == 'exact' for r in own)} "
                f"| {statistics.median(r['seconds'] for r in own):.0f} |"
            )


def main() -> None:
    """Runs what is missing, or prints the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, help="CIFAR-10's test file")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--table", action="store_true")
    asked = options.parse_args()
    rows = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    if asked.table:
        print("\n".join(table(rows)))
        return
    Compute(threads=1).apply()
    done, source = {(row["wire"], row["photo"]) for row in rows}, Parquet(path=str(asked.data))
    for (photo, seed), wire in itertools.product(zip(PHOTOS, SEEDS, strict=True), WIRES):
        if (wire, photo) not in done:
            row = ran(wire, photo, seed, source)
            with asked.out.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
