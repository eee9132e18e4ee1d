"""ROG's parts, one exchanged at a time, on CIFAR-10 at 32 px; and two defects of its release, measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from leakgauge.attacks.adaptive import Naive
from leakgauge.attacks.matching import Canvas, Cosine, Matching, Objective, Pixels, SquaredL2, Uniform
from leakgauge.attacks.matching.adam import AnnealedAdam
from leakgauge.attacks.matching.canvases import LowResolution
from leakgauge.attacks.recipes import rog
from leakgauge.clients import raw_update
from leakgauge.data import Parquet
from leakgauge.defenses import NoDefense
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR
from leakgauge.observation import Observation
from leakgauge.tensors import map_tensors, squared_norm
from reproduce.item import Inputs
from reproduce.rog.autoencoder import Autoencoder, Decoder, fit_autoencoder
from reproduce.rog.polish import MaxNormalise
from reproduce.rog.runs import SEEDS, Client, Named, Sheet
from reproduce.rog.signs import SignTanh
from reproduce.rows import Row

SMALL = Client(size=32, examples=4, photos=False)
BATCH = replace(SMALL, examples=16)
PIXELS = Pixels(first=Uniform(), box=False)


def matched(canvas: Canvas, *, steps: int = 100, objective: Objective = SquaredL2()) -> Matching:
    """ROG with another canvas, objective or length."""
    return replace(rog(objective=objective), canvas=canvas, minimiser=AnnealedAdam(steps=steps))


def figure4(inputs: Inputs) -> Iterator[Row]:
    """‖g − g*‖²/‖g*‖² of the best point so far, for pictures of less and less detail."""
    sheet = Sheet("figure4", inputs)
    seen = BATCH.observe(BATCH.batch(inputs.data), inputs.seed(0), inputs.device)
    whole = float(squared_norm(seen.update.tensors))
    canvases: dict[int, Canvas] = {factor: LowResolution(factor=factor) for factor in (2, 4, 8)} | {1: PIXELS}
    for factor, canvas in sorted(canvases.items()):
        found = matched(canvas).reconstruct(seen, Draws(inputs.seed(0)).generator("attack"), compute=inputs.compute())
        length = 3 * (BATCH.size // factor) ** 2
        name = f"ROG, d_z {length}" if factor > 1 else f"no projection, {length} pixels"
        for asked in (1, 20, 50, 100):
            spent, distance = min(found.trace, key=lambda point: abs(point[0] - asked))
            metric = f"distance after {asked}"
            yield sheet.row(
                BATCH.name, name, metric, [[distance / whole]], evaluations=spent, seconds=found.cost.seconds
            )
        inputs.say(f"figure4 {name}: {found.objective or 0.0:.3g} of {whole:.3g}, {found.cost.seconds:.0f} s")


def autoencoder(code: int, data: Path, *, steps: int, seed: int = 0) -> Autoencoder:
    """Trained on CIFAR-10 pictures that no client here has."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = Autoencoder(code=code)
    others = Parquet(path=str(data / "cifar10-train.parquet")).read(range(1000, 6000)).inputs
    fit_autoencoder(module, others, torch.Generator().manual_seed(seed), steps=steps)
    return module


def figure5(inputs: Inputs) -> Iterator[Row]:
    """Bicubic and learned projections, and none at all."""
    sheet, long = Sheet("figure5", inputs), 300 if inputs.quick else 2000
    seeds = SEEDS[:1] if inputs.quick else SEEDS
    yield from sheet.controls(BATCH)
    yield from sheet.rows(BATCH, rog(), name="ROG, bicubic, d_z 192", seeds=seeds)
    for code in (12, 32):
        if not inputs.wants(BATCH.name, f"ROG, autoencoder, d_z {16 * code}"):
            continue
        module = autoencoder(code, inputs.data, steps=300 if inputs.quick else 2000)
        with torch.no_grad():
            truth = BATCH.batch(inputs.data).inputs
            shown = float(PSNR()(module(truth), truth).mean())
        shape = module.code_shape(BATCH.size)
        inputs.say(f"figure5 autoencoder of {shape}: {shown:.1f} dB on the truth")
        canvas = Decoder(module=module.decoder, encoder=module.encoder, code=shape)
        name = f"ROG, autoencoder, d_z {code * shape[1] * shape[2]}"
        yield from sheet.rows(
            BATCH, matched(canvas), name=name, doubt=f"this autoencoder gives the truth back at {shown:.1f} dB"
        )
    for name, objective in (("squared distance", SquaredL2()), ("cosine", Cosine())):
        for steps in (100, long):
            yield from sheet.rows(
                BATCH,
                matched(PIXELS, steps=steps, objective=objective),
                name=f"no projection, {name}, {steps} steps",
                seeds=seeds,
            )


def wrong_start(inputs: Inputs) -> Iterator[Row]:
    """The simulated update at the truth, and the reconstruction, from θ₀ and from θ_τ."""
    sheet = Sheet("wrong-start", inputs)
    for lr, steps in ((3e-3, 5), (3e-3, 10), (5e-3, 5)):
        client = replace(SMALL, steps=steps, lr=lr)
        batch = client.batch(inputs.data)
        setting = f"{client.name}, lr {lr:g}"
        for name in ("from the broadcast parameters", "from those after training"):
            gaps, scores, seconds = [], [], []
            seeds = inputs.seeds(SEEDS[:1] if inputs.quick else SEEDS)
            for seed in seeds:
                seen = client.observe(batch, seed, inputs.device)
                after = map_tensors(torch.add, seen.task.parameters, seen.update.tensors)
                if name.endswith("training"):
                    seen = replace(seen, task=seen.task.with_state(after))
                simulated = raw_update(seen.task, client.protocol, inputs.secret(batch), Draws(seed), NoDefense())[0]
                left = map_tensors(torch.sub, simulated, seen.update.tensors)
                gaps.append([float((squared_norm(left) / squared_norm(seen.update.tensors)).sqrt())])
                if lr == 5e-3 or not inputs.quick:
                    found = rog().reconstruct(seen, Draws(seed).generator("attack"), compute=inputs.compute())
                    assert found.inputs is not None
                    scores.append(PSNR()(found.inputs.cpu(), batch.inputs).tolist())
                    seconds.append(found.cost.seconds)
                inputs.say(f"wrong-start {setting}, {name}: {gaps[-1][0]:.3f}, {scores[-1:]}")
            yield sheet.row(setting, name, "relative distance at the truth", gaps, seeds)
            if scores:
                spent = 100 * steps
                yield sheet.row(setting, name, "PSNR", scores, seeds, evaluations=spent, seconds=sum(seconds))


def correlation(a: Tensor, b: Tensor) -> list[float]:
    """Pearson's, over the values of each picture."""
    pairs = zip(a.flatten(1), b.flatten(1), strict=True)
    return [float(torch.corrcoef(torch.stack([p, q.to(p)]))[0, 1]) for p, q in pairs]


def gain(inputs: Inputs) -> Iterator[Row]:
    """signSGD: from no gain to more than enough. A step is FedSGD-like (τ 1), and gains are for the gradient."""
    sheet, seeds = Sheet("gain", inputs), inputs.seeds(SEEDS[:1] if inputs.quick else SEEDS)
    client = replace(SMALL, defense=Named("signs", "sign"))
    batch = client.batch(inputs.data)
    gains = {
        "tanh(g), as printed": SignTanh(gain=1 / client.optimiser.lr),
        "tanh(10⁴ g)": SignTanh(gain=1e4 / client.optimiser.lr),
        "tanh(g/rms)": SignTanh(times=1.0),
        "tanh(3g/rms)": SignTanh(times=3.0),
        "tanh(10g/rms)": SignTanh(times=10.0),
    }
    for name, value in gains.items():
        attack = Naive(attack=rog(objective=value, polish=(MaxNormalise(),)))
        alike, scores = [], []
        for seed in seeds:
            seen: Observation = client.observe(batch, seed, inputs.device)
            found = attack.reconstruct(seen, Draws(seed).generator("attack"), compute=inputs.compute())
            assert found.inputs is not None
            alike.append(correlation(found.inputs.cpu(), batch.inputs))
            scores.append(PSNR()(found.inputs.cpu(), batch.inputs).tolist())
            inputs.say(f"gain {name}, seed {seed}: correlation {sum(alike[-1]) / len(alike[-1]):.2f}")
        yield sheet.row(client.name, name, "correlation", alike, seeds, evaluations=100)
        yield sheet.row(client.name, name, "PSNR", scores, seeds, evaluations=100)
