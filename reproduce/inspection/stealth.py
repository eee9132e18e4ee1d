"""What stealth costs MKOR: picture quality beside detection. `python -m reproduce.inspection.stealth --cache DIR`.

Four hosts, three seeds each, one batch of sixteen photos of different classes (some classes are absent, which the
absent-class loss needs), one FedSGD update, the server's own read. A picture that was not read counts as the
batch's mean colour. Detection is by tensors alone, at the limits that ship with the package.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Compute
from leakgauge.data import Parquet
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.inspection.rule import Limits, Received, measure
from leakgauge.metrics import PSNR, SSIM, assign
from leakgauge.models import vgg, vgg16
from leakgauge.observation import Knowledge, Observation, Reconstruction
from leakgauge.servers import Server
from leakgauge.servers.mkor import MKOR
from leakgauge.task import Batch, DataSpec, Task
from reproduce.inspection.crafted import STEALTH
from reproduce.inspection.judging import version
from reproduce.inspection.roc import FOLDER
from reproduce.inspection.zoo import Zoo
from reproduce.inspection.zoo_stock import Split, Stock
from reproduce.mkor.quiet import AbsentClass, Inconspicuous, QuietTaps
from reproduce.mkor.vgg import read

BATCH, SEEDS = 16, (0, 1, 2)
HOSTS = (
    "VGG of 6 convolutions, fresh, 64 px",
    "VGG16 of a quarter of the width, He, 32 px",
    "VGG of 8 convolutions, trained, 32 px",
    "VGG of 6 convolutions, two hidden layers, He, 48 px",
)
TRAINED, DEEP = 2, 1
HEAD_BETA = 0.03
"""Size of the last layers' signal: small, so that logits are nearly equal, which the absent-class loss needs."""


def changed_fraction(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> float:
    """Share of the scalars of `before` that differ in `after`; a name that `after` lacks counts as unchanged."""
    total = sum(tensor.numel() for tensor in before.values())
    changed = sum(int((tensor != after[name]).sum()) for name, tensor in before.items() if name in after)
    return changed / total if total else 0.0


@dataclass(frozen=True, kw_only=True)
class Level:
    """One way of hiding. `noise` None: as published, without any."""

    noise: float | None
    beta: float | None = None
    directions: int | None = None

    def server(self) -> Server:
        """MKOR with it."""
        if self.noise is None:
            return MKOR(loss=AbsentClass())
        taps = QuietTaps(beta=self.beta, noise=self.noise, directions=self.directions)
        return MKOR(taps=taps, head=Inconspicuous(beta=HEAD_BETA, noise=self.noise * HEAD_BETA**2), loss=AbsentClass())


LEVELS = (
    Level(noise=None),
    *(Level(noise=s, beta=b) for b in (None, 1.0) for s in STEALTH),
    *(Level(noise=0.03, directions=d) for d in (2, 1, 0)),
)


def host(which: int, seed: int, zoo: Zoo) -> Task:
    """The honest model; of the trained one there is a single one, and the seed changes photos and crafting."""
    if which == TRAINED:
        trained = zoo.base(0, "vgg")
        return Task.of(trained.module.eval(), trained.task.data)
    size = (64, 32, 32, 48)[which]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if which == DEEP:
            module = vgg16(classes=20, size=size, width=0.25, hidden=512, dropout=0.0)
        else:
            module = vgg(classes=20, size=size, hidden=(256, 128) if which else (256,))
        for weight in (p for p in module.parameters() if which and p.dim() > 1):
            torch.nn.init.kaiming_normal_(weight, nonlinearity="relu")
    return Task.of(module, DataSpec((3, size, size), 20))


def scores(found: Reconstruction, truth: Batch) -> dict[str, float]:
    """Means over the batch, one picture an image at most, and of the mean colour alone."""
    grey = truth.inputs.mean((0, 2, 3), keepdim=True).expand_as(truth.inputs)
    guess, share = grey.clone(), 0.0
    if found.inputs is not None and bool(torch.isfinite(found.inputs).all()):
        pictures = found.inputs.to(truth.inputs).clamp(0, 1)
        mates = assign(pictures, truth.inputs, labels_hat=found.labels, labels=truth.labels)
        guess[list(mates.matched)] = mates.take(pictures)
        share = len(mates.matched) / len(truth)
    return {
        "psnr": float(PSNR()(guess, truth.inputs).clamp(max=60).mean()),
        "ssim": float(SSIM()(guess, truth.inputs).mean()),
        "psnr_grey": float(PSNR()(grey, truth.inputs).mean()),
        "ssim_grey": float(SSIM()(grey, truth.inputs).mean()),
        "share": share,
    }


def run(level: Level, which: int, seed: int, zoo: Zoo, photos: Parquet) -> dict[str, Any]:
    """One model: how well it reads, and what the rules see of it."""
    honest = host(which, seed, zoo)
    data = honest.data
    labels = torch.randperm(data.classes - 1, generator=torch.Generator().manual_seed(seed))[:BATCH]
    batch = Batch(read(photos, range(BATCH * seed, BATCH * (seed + 1)), data.shape[1]), labels)
    try:
        sent = level.server().broadcast(honest, Draws(seed).generator("server"))
        assert sent.crafting is not None
        update = client_update(sent.task, FedSGD(), batch, Draws(seed))
        known = Knowledge(example_count=BATCH, local_training=FedSGD(), crafting=sent.crafting)
        found = sent.crafting.reconstruct(Observation(sent.task, update, known), torch.Generator().manual_seed(seed))
    except InputError as error:
        return {"refused": str(error)}
    state = {**sent.task.parameters, **sent.task.buffers}
    return {
        **scores(found, batch),
        "changed": changed_fraction(honest.parameters, sent.task.parameters),
        "statistics": {name: m.statistic for name, m in measure(Received(state=state)).items()},
    }


def all_runs(zoo: Zoo, photos: Parquet, file: Path) -> Iterator[tuple[Level, int, int, dict[str, Any]]]:
    """Every level, host and seed, from `file` where they are there."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    done = {line["key"]: line["found"] for line in map(json.loads, lines)}
    for which in range(len(HOSTS)):
        for level in LEVELS:
            for seed in SEEDS:
                key = f"{version()} {level} {which} {seed}"
                if key not in done:
                    done[key] = run(level, which, seed, zoo, photos)
                    with file.open("a", encoding="utf-8") as out:
                        out.write(json.dumps({"key": key, "found": done[key]}) + "\n")
                yield level, which, seed, done[key]


def record(runs: Sequence[tuple[Level, int, int, dict[str, Any]]], limits: Mapping[str, float]) -> dict[str, Any]:
    """A row a level and host: means over seeds, and how many of them alarm."""
    rows = []
    for which, name in enumerate(HOSTS):
        for level in LEVELS:
            own = [found for asked, at, _, found in runs if (asked, at) == (level, which)]
            good = [found for found in own if "refused" not in found]
            row: dict[str, Any] = {"host": name, "noise": level.noise, "beta": level.beta}
            row |= {"directions": level.directions, "of": len(good), "refused": len(own) - len(good)}
            if good:
                keys = ("psnr", "ssim", "psnr_grey", "ssim_grey", "share", "changed")
                row |= {key: round(fmean(found[key] for found in good), 4) for key in keys}
                seen = [_above(found["statistics"], limits) for found in good]
                row |= {"detected": sum(bool(s) for s in seen), "rules": sorted({rule for s in seen for rule in s})}
                # A server could disguise the mirrored rows of its last layers, which `copies` sees.
                row["detected_without_copies"] = sum(bool(set(s) - {"copies"}) for s in seen)
            rows.append(row)
    return {"row": "inspection-stealth", "seeds": list(SEEDS), "batch": BATCH, "head_beta": HEAD_BETA, "levels": rows}


def _above(statistics: Mapping[str, float], limits: Mapping[str, float]) -> list[str]:
    return [rule for rule, value in statistics.items() if value >= limits.get(rule, float("inf"))]


def table(found: Mapping[str, Any]) -> str:
    """As Markdown."""
    rows = [
        "| host | taps | noise | directions | PSNR (mean colour) | SSIM | changed | alarms | without `copies` | rules |"
    ]
    rows.append("|---|---|---|---|---|---|---|---|---|---|")
    for r in found["levels"]:
        if not r["of"]:
            rows.append(f"| {r['host']} | refused |")
            continue
        taps = "published" if r["noise"] is None else "gain 1" if r["beta"] is None else f"{r['beta']:g} × largest"
        ways = "as many as fit" if r["directions"] is None else str(r["directions"])
        rows.append(
            f"| {r['host']} | {taps} | {r['noise']} | {ways} | {r['psnr']:.1f} ({r['psnr_grey']:.1f}) "
            f"| {r['ssim']:.2f} ({r['ssim_grey']:.2f}) | {r['changed']:.1%} | {r['detected']}/{r['of']} "
            f"| {r['detected_without_copies']}/{r['of']} "
            f"| {', '.join(r['rules'])} |"
        )
    return "\n".join(rows)


def main(words: Sequence[str] | None = None) -> None:
    """Measures what is missing in the cache and saves a new result."""
    parser = argparse.ArgumentParser(prog="python -m reproduce.inspection.stealth", description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, help="folder for trained bases and finished runs")
    parser.add_argument("--data", type=Path, required=True, help="folder with the Parquet files")
    parser.add_argument("--results", type=Path, default=FOLDER)
    arguments = parser.parse_args(words)
    Compute().apply()
    zoo = Zoo(split=Split.EVALUATION, stock=Stock.load(arguments.data, arguments.cache), cache=arguments.cache)
    photos = Parquet(path=str(arguments.data / "imagenet-sample-256.parquet"))
    runs = list(all_runs(zoo, photos, arguments.cache / "stealth.jsonl"))
    found = record(runs, Limits.packaged().limits)
    arguments.results.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    path = arguments.results / f"inspection-stealth-{stamp}.json"
    with path.open("x", encoding="utf-8") as file:
        json.dump({**found, "created_at": stamp}, file, indent=1, ensure_ascii=False)
        file.write("\n")
    print(path)
    print(table(found))


if __name__ == "__main__":
    main()
