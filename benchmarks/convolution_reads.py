"""Which layers give their inputs away, as `leakgauge count` says before a round and as the read shows after it.

`python benchmarks/convolution_reads.py --data F --pictures G --out rows.jsonl`. Networks, photos, seeds and claims are
named here, and were before any run. Each run is a process of its own, so that its memory is its own; a row is written
after it, and a run whose row is there is not repeated. `--table` prints what is there. Weights are fresh, updates are
those of float32, seconds are those of the process.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import leakgauge as lg
from leakgauge.attacks.features.read import HiddenTensors
from leakgauge.attacks.matching.problem import Meter
from leakgauge.attacks.recipes.features import deepest
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget, Compute
from leakgauge.data import Parquet, spec
from leakgauge.defenses import NoDefense
from leakgauge.draws import Draws
from leakgauge.models import resnet18, vgg16
from leakgauge.observation import Knowledge, Observation
from leakgauge.risk.count import hidden_inputs
from leakgauge.step import losses
from leakgauge.task import Batch, Task

sys.path.insert(0, str(Path(__file__).parents[1]))
from reproduce.resnets import resnet18_imagenet, resnet50_imagenet

SEED = 11

SMALL, LARGE = 9360, 610
"""First photos of the CIFAR-10 test file and of the ImageNet sample: settings were chosen on others."""


def replaced(module: nn.Module, kind: type[nn.Module], made: Callable[[Any], nn.Module]) -> nn.Module:
    """The network with all modules of a kind exchanged."""
    for name, child in module.named_children():
        setattr(module, name, made(child) if isinstance(child, kind) else replaced(child, kind, made))
    return module


class UNet(nn.Module):
    """Two convolutions a level, max-pools by two, transposed convolutions up, skips; in two or three dimensions."""

    def __init__(self, dims: int, channels: int, width: int, levels: int, norm: str = "BatchNorm") -> None:
        super().__init__()
        kind = {name: getattr(nn, f"{name}{dims}d") for name in ("Conv", "ConvTranspose", "MaxPool", norm)}

        def twice(before: int, after: int) -> nn.Module:
            parts: list[nn.Module] = []
            for size in (before, after):
                parts += [kind["Conv"](size, after, 3, padding=1), kind[norm](after, affine=True), nn.ReLU()]
            return nn.Sequential(*parts)

        widths = [width * 2**k for k in range(levels + 1)]
        self.pool = kind["MaxPool"](2)
        self.down = nn.ModuleList(twice(a, b) for a, b in zip([channels, *widths], widths[:-1], strict=False))
        self.bottom = twice(*widths[-2:])
        self.raised = nn.ModuleList(kind["ConvTranspose"](2 * w, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.up = nn.ModuleList(twice(2 * w, w) for w in reversed(widths[:-1]))
        self.head = kind["Conv"](width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for level in self.down:
            kept.append(level(x))
            x = self.pool(kept[-1])
        x = self.bottom(x)
        for raised, level in zip(self.raised, self.up, strict=True):
            x = level(torch.cat([kept.pop(), raised(x)], 1))
        return self.head(x)  # type: ignore[no-any-return]


def audio() -> nn.Module:
    """A long kernel and four convolutions of three on 16 384 samples."""
    parts: list[nn.Module] = [nn.Conv1d(1, 64, 80, 16, padding=32), nn.BatchNorm1d(64), nn.ReLU(), nn.MaxPool1d(4)]
    for before, after in ((64, 64), (64, 128), (128, 256), (256, 512)):
        pool = nn.MaxPool1d(4) if after < 512 else nn.Identity()
        parts += [nn.Conv1d(before, after, 3, padding=1), nn.BatchNorm1d(after), nn.ReLU(), pool]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(512, 35))


def monai_densenet() -> nn.Module:
    from monai.networks.nets import DenseNet121

    return DenseNet121(2, 3, 1000)  # type: ignore[no-any-return]


class Logits(nn.Module):
    """A network of `transformers`, by its logits."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).logits  # type: ignore[no-any-return]


def mobilenet() -> nn.Module:
    import transformers as hf

    return Logits(hf.MobileNetV2ForImageClassification(hf.MobileNetV2Config(num_labels=1000)))


def convnext() -> nn.Module:
    import transformers as hf

    return Logits(hf.ConvNextForImageClassification(hf.ConvNextConfig(num_labels=1000)))


def gelu(net: nn.Module) -> nn.Module:
    return replaced(net, nn.ReLU, lambda _: nn.GELU())


def silu(net: nn.Module) -> nn.Module:
    return replaced(net, nn.ReLU, lambda _: nn.SiLU())


def grouped(net: nn.Module) -> nn.Module:
    return replaced(net, nn.BatchNorm2d, lambda m: nn.GroupNorm(16, m.num_features))


@dataclass(frozen=True)
class Scene:
    """A network and what is claimed of it.

    Attributes:
        network: fresh.
        sizes: batches, with the mode each is run in.
        layers: modules whose inputs are read, of those that the count names; none where none is.
        error: relative, of what is read of each example.
        inputs: what a client has: photos of 32 or 224 px, or made-up slices, volumes and sounds.
    """

    network: Callable[[], nn.Module]
    sizes: tuple[tuple[int, str], ...]
    layers: tuple[str, ...]
    error: float
    inputs: str = "224"


ONE = ((1, "eval"),)
STAGES = ("layer3.0.conv2", "layer3.1.conv1", "layer3.1.conv2", "layer4.0.conv2", "layer4.1.conv1", "layer4.1.conv2")
LAST = STAGES[3:]
BOTTLENECKS = ("layer3.1.conv2", "layer3.5.conv2", "layer4.1.conv2", "layer4.2.conv2")

SCENES = {
    "ResNet-18": Scene(resnet18_imagenet, ONE, STAGES, 9e-7),
    "ResNet-18, GELU": Scene(lambda: gelu(resnet18_imagenet()), ONE, STAGES, 9e-7),
    "ResNet-18, SiLU": Scene(lambda: silu(resnet18_imagenet()), ONE, STAGES, 9e-7),
    "ResNet-18, GroupNorm": Scene(lambda: grouped(resnet18_imagenet()), ONE, STAGES, 9e-7),
    "ResNet-50": Scene(resnet50_imagenet, ONE, BOTTLENECKS, 9e-7),
    "VGG-16": Scene(lambda: vgg16(classes=1000, hidden=512, dropout=0.0), ONE, ("features.26", "features.28"), 9e-7),
    "U-Net": Scene(lambda: UNet(2, 3, 32, 4), ONE, ("bottom.0", "bottom.3"), 9e-7, "slice"),
    "U-Net in 3D": Scene(lambda: UNet(3, 1, 16, 3), ONE, ("bottom.0", "bottom.3"), 9e-7, "volume"),
    "U-Net in 3D, InstanceNorm": Scene(
        lambda: UNet(3, 1, 16, 3, "InstanceNorm"), ((1, "train"),), ("bottom.0", "bottom.3"), 9e-7, "volume"
    ),
    "audio": Scene(audio, ONE, ("12",), 9e-7, "sound"),
    "ResNet-18, batches": Scene(resnet18_imagenet, ((4, "eval"), (8, "eval"), (8, "train")), LAST, 3e-6),
    "ResNet-18 of width 32 at 32 px": Scene(
        lambda: resnet18(width=32),
        ((1, "train"), (2, "train"), (4, "train")),
        ("9.conv2", "10.conv1", "10.conv2"),
        3e-6,
        "32",
    ),
    "ResNet-18 of width 64 at 32 px": Scene(
        lambda: resnet18(width=64),
        ((8, "eval"), (16, "eval"), (24, "eval")),
        ("9.conv2", "10.conv1", "10.conv2"),
        2e-6,
        "32",
    ),
    "DenseNet-121": Scene(monai_densenet, ONE, (), 0.0),
    "MobileNetV2": Scene(mobilenet, ONE, (), 0.0),
    "ConvNeXt": Scene(convnext, ONE, (), 0.0),
}
"""Rows of the plan. Of all of them is claimed, beside what is claimed of its layers: the count names each layer that is
read and its batch, and each certificate holds: an error below a thousandth and below what is stated, or below 1e-6,
which is what float32 leaves of the client's own pass. Of ResNet-18 at 224 px: 10 CPU seconds and 4 GB."""


def waves(count: int, first: int) -> Tensor:
    """Sounds of a second: five falling tones and noise."""
    found = []
    for k in range(first, first + count):
        draw, t = torch.Generator().manual_seed(k), torch.arange(16384) / 16000
        sound = 0.02 * torch.randn(16384, generator=draw)
        for tone in (110, 220, 440, 900, 1700):
            start, strength = torch.rand(2, generator=draw)
            sound += strength * (2 * math.pi * tone * t).sin() * (-((t - start) / 0.2).square()).exp()
        found.append(sound / 5 + 0.5)
    return torch.stack(found)[:, None].clamp(0, 1)


def volumes(source: Parquet, count: int, first: int, size: int = 32) -> Tensor:
    """A photo's grey values, shifted from slice to slice, fading into the next photo's."""
    found = []
    for k in range(first, first + count):
        one, two = nn.functional.interpolate(source.read([k, k + 1]).inputs.mean(1, keepdim=True), size)[:, 0]
        share = torch.linspace(0, 1, size)[:, None, None]
        moved = torch.stack([one.roll(i, 1) for i in range(size)])
        found.append((1 - share) * moved + share * two)
    return torch.stack(found)[:, None]


@dataclass(frozen=True)
class Case:
    """One run."""

    scene: str
    batch: int
    mode: str

    def given(self, data: Path, pictures: Path) -> tuple[Task, Batch]:
        """The task and the client's batch."""
        scene = SCENES[self.scene]
        torch.manual_seed(SEED)
        net, first = scene.network(), LARGE
        if scene.inputs in ("32", "224"):
            small = scene.inputs == "32"
            source = Parquet(path=str(data)) if small else Parquet(path=str(pictures), size=224)
            first = SMALL if small else first
            return Task.of(net, spec(source), mode=self.mode), source.read(range(first, first + self.batch))
        if scene.inputs == "sound":
            labels = torch.arange(self.batch)
            return Task.of(net, lg.DataSpec((1, 16384), 35), mode=self.mode), Batch(waves(self.batch, first), labels)
        source = Parquet(path=str(pictures), size=128)
        x = source.read(range(first, first + self.batch)).inputs
        x = volumes(source, self.batch, first) if scene.inputs == "volume" else x
        shape = tuple(x.shape[1:])
        parts = {"x": lg.Image(shape) if len(shape) == 3 else lg.Volume(shape), "y": lg.Mask(2, tuple(x.shape[2:]))}
        task = Task.of_step(net, lambda m, b: losses.dice_ce(m(b["x"]), b["y"]), parts, mode=self.mode)
        assert task.named is not None
        return task, task.named.batch({"x": x, "y": (x.mean(1) > 0.5).long()})

    def ran(self, data: Path, pictures: Path) -> dict[str, Any]:
        """In this process."""
        Compute(threads=1).apply()
        task, batch = self.given(data, pictures)
        told = {one.weight: one for one in hidden_inputs(task)}
        update = client_update(task, FedSGD(), batch, Draws(SEED))
        known = Knowledge(example_count=len(batch), local_training=FedSGD(), defense=NoDefense())
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        seen = Observation(task, update, known)
        hidden = HiddenTensors.of(seen, len(batch)).read(torch.Generator().manual_seed(SEED))
        seconds = time.process_time() - began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        truth = held(task, batch, [one.layers[0].weight for one in hidden.reads])
        layers: list[Mapping[str, Any]] = []
        for read in hidden.reads:
            weight = read.layers[0].weight
            off = errors(read.maps, truth[weight])
            layers.append(
                {
                    "weight": weight,
                    "maps": len(read.maps),
                    "certified": read.certified,
                    "stated": float(f"{read.error:.1e}"),
                    "error": float(f"{off:.1e}"),
                }
            )
        counted = {k: [one.filters, one.places, one.largest] for k, one in told.items()}
        return asdict(self) | {
            "seconds": round(seconds, 1),
            "mib": memory // 1024,
            "mib_before": before // 1024,
            "counted": {k: v for k, v in counted.items() if v[2]},
            "layers": layers,
            "why": dict(list(hidden.why.items())[-40:]),
            "descent": descended(seen, batch) if self.batch == 1 and self.mode == "eval" else None,
        }


def descended(seen: Observation, batch: Batch) -> dict[str, Any] | None:
    """What the attack knows before it inverts: small layers are read, others follow from these by linear systems."""
    began = time.process_time()
    hidden = HiddenTensors.of(seen, 1)
    found = deepest(hidden, Meter(Budget()), torch.Generator().manual_seed(SEED))
    seconds = time.process_time() - began
    if found is None:
        return None
    values = found.state.values
    truth = hidden.inside.run([*values], {}, Batch(batch.inputs.double(), batch.labels))
    off = max(float((v - t).norm() / t.norm()) for v, t in zip(values.values(), truth, strict=True))
    return {"seconds": round(seconds, 1), "tensors": len(values), "error": float(f"{off:.1e}")}


def held(task: Task, batch: Batch, weights: list[str]) -> dict[str, Tensor]:
    """What layers are given [examples, entries], by torch's own forward pass."""
    net, seen, hooks = task.module, dict[str, Tensor](), []
    net.train(task.mode.value == "train")
    for weight in weights:
        layer = net.get_submodule(weight.rpartition(".")[0])
        hooks.append(
            layer.register_forward_pre_hook(
                lambda _m, it, w=weight: seen.__setitem__(w, it[0].detach().flatten(1).double())
            )
        )
    with torch.no_grad():
        net(task.data.normalise(batch.inputs))
    for hook in hooks:
        hook.remove()
    return seen


def errors(maps: Tensor, truth: Tensor) -> float:
    """The largest of all examples, up to scale, each map beside the nearest of them."""
    one, two = (t.flatten(1).double() for t in (maps, truth))
    one, two = one / one.norm(dim=1, keepdim=True), two / two.norm(dim=1, keepdim=True)
    gaps = torch.stack([torch.minimum((two - m).norm(dim=1), (two + m).norm(dim=1)) for m in one])
    return max(float(gaps.amin(0).max()), float(gaps.amin(1).max()))


def verdict(row: Mapping[str, Any]) -> list[str]:
    """The claims that a row misses."""
    scene, found = SCENES[row["scene"]], {one["weight"]: one for one in row["layers"]}
    missed = []
    for layer in scene.layers:
        weight = f"{layer}.weight"
        if row["counted"].get(weight, [0, 0, 0])[2] < row["batch"]:
            missed.append(f"{layer} is not counted")
        one = found.get(weight)
        if one is None or one["maps"] != row["batch"] or one["error"] > scene.error:
            missed.append(f"{layer} is not read" if one is None else f"{layer} to {one['error']:.0e}")
        elif not one["certified"]:
            missed.append(f"{layer} is not certified")
    wrong = [one for one in row["layers"] if one["certified"] and one["error"] > max(1e-6, min(one["stated"], 1e-3))]
    missed += [f"wrong certificate: {one['weight']}, {one['error']:.0e}" for one in wrong]
    if row["scene"] == "ResNet-18" and (row["seconds"] > 10 or row["mib"] > 4096):
        missed.append(f"{row['seconds']} s, {row['mib']} MiB")
    return missed


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What the count says, what was read, and which claims are missed."""
    yield "| network | batch | counted | certified, of those read | worst (claim) | CPU s | GiB | descent | missed |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        scene = SCENES[row["scene"]]
        asked = [one["error"] for one in row["layers"] if one["weight"].removesuffix(".weight") in scene.layers]
        sure = sum(one["certified"] for one in row["layers"])
        down = row.get("descent")
        down = f"{down['tensors']} tensors to {down['error']:.0e} in {down['seconds']:.0f}" if down else "–"
        counted = sum(v[2] >= row["batch"] for v in row["counted"].values())
        worst = f"{max(asked):.0e} ({scene.error:.0e})" if asked else "–"
        yield (
            f"| {row['scene']} | {row['batch']}, {row['mode']} | {counted} layers | {sure} of {len(row['layers'])} "
            f"| {worst} | {row['seconds']:.0f} | {row['mib'] / 1024:.1f} | {down} "
            f"| {'; '.join(verdict(row)) or 'none'} |"
        )


def main() -> None:
    """Runs what is missing, or prints the table."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--data", type=Path, help="CIFAR-10's test file")
    asked.add_argument("--pictures", type=Path, help="the ImageNet sample")
    asked.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "convolution-reads.jsonl")
    asked.add_argument("--only", nargs="*", default=list(SCENES), choices=SCENES)
    asked.add_argument("--one", help="a case as JSON, run in this process and printed")
    asked.add_argument("--table", action="store_true")
    given = asked.parse_args()
    if given.one:
        print(json.dumps(Case(**json.loads(given.one)).ran(given.data, given.pictures)))
        return
    rows = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    if given.table:
        print("\n".join(table(rows)))
        return
    done = {Case(row["scene"], row["batch"], row["mode"]) for row in rows}
    for name in given.only:
        for case in (Case(name, *size) for size in SCENES[name].sizes):
            if case in done:
                continue
            command = [sys.executable, __file__, "--data", str(given.data), "--pictures", str(given.pictures)]
            ran = subprocess.run(
                [*command, "--one", json.dumps(asdict(case))], capture_output=True, text=True, check=False
            )
            if ran.returncode:
                print(f"{case} ended with {ran.returncode}:\n{ran.stderr[-1500:]}", file=sys.stderr, flush=True)
                continue
            row = json.loads(ran.stdout.splitlines()[-1])
            with given.out.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print("\n".join(list(table([row]))[2:]), flush=True)


if __name__ == "__main__":
    main()
