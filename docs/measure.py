"""The figures that the docs quote: ``python docs/measure.py NAME``, or without a name for all of them.

Everything runs on the photos that ship with scikit-image, on one thread, in seconds.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import click
import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.attacks.closed_form import LinearRead
from leakgauge.attacks.matching import Adam, BoundedLBFGS, Cosine, Given, Matching, Pixels
from leakgauge.clients import FedAvg, FedSGD, Protocol, client_update
from leakgauge.compute import Budget, Compute
from leakgauge.data import Samples, gallery, spec
from leakgauge.defenses import Defense, RelativeToNorm, TopK, noise
from leakgauge.draws import Draws
from leakgauge.intervals import proportion_upper
from leakgauge.metrics import PSNR, SSIM, assign, label_f1_by_prior
from leakgauge.models import convnet, lenet, mlp, resnet20
from leakgauge.observation import Attack, Knowledge, Observation
from leakgauge.study.judging.gate import needed
from leakgauge.task import Batch, Mode, Task
from leakgauge.tensors import Tensors, inner, squared_norm

sys.path.insert(0, str(Path(__file__).parents[1]))
from reproduce.metrics.identification import identify

PHOTOS = Samples()
SPEC = spec(PHOTOS)
EIGHT = PHOTOS.read(range(8))


def built(make: Callable[..., torch.nn.Module], mode: Mode = Mode.EVAL, seed: int = 0, **arguments: object) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Task.of(make(**{"classes": SPEC.classes, **arguments}), SPEC, mode=mode)


def sent(task: Task, batch: Batch, client: Protocol | None = None, defense: Defense | None = None) -> Tensors:
    return client_update(task, client or FedSGD(), batch, Draws(0), defense=defense).tensors


def gap(a: Tensors, b: Tensors) -> float:
    """1 − cosine."""
    a, b = ({k: v.double() for k, v in t.items()} for t in (a, b))
    return float(1 - inner(a, b) / (squared_norm(a) * squared_norm(b)).sqrt())


def batchnorm() -> None:
    """The same batch in the two modes, and how far examples mix."""
    one, two = (sent(built(convnet, mode, width=16), EIGHT) for mode in Mode)
    click.echo(f"ConvNet-16, 8 photos: 1 − cos(eval gradient, train gradient) = {gap(one, two):.2f}")


def sign() -> None:
    """The distance at the truth of an attacker who takes a delta for a gradient."""
    task, one = built(lenet), PHOTOS.read([0])
    delta, gradient = sent(task, one, FedAvg(lr=0.01)), sent(task, one)
    click.echo(f"LeNet, one photo: cosine distance of the delta to the true gradient {gap(delta, gradient):.2f}")


def local_steps() -> None:
    """How far five local steps turn the update away from the first gradient."""
    task = built(convnet, width=16)
    first = {k: -v for k, v in sent(task, PHOTOS.read([0])).items()}
    for lr in (1e-4, 1e-2, 1e-1):
        update = sent(task, PHOTOS.read([0]), FedAvg(epochs=5, lr=lr))
        click.echo(f"ConvNet-16, 5 steps at lr {lr:g}: 1 − cos(update, −first gradient) = {gap(update, first):.1e}")


def softmax() -> None:
    """How far from uniform an untrained network's answers are, and what assuming otherwise costs."""
    peaks, off = [], []
    for seed in range(20):
        task = built(lenet, seed=seed)
        p = task.logits(task.parameters, task.buffers, EIGHT.inputs)[0].softmax(1)
        peaks.append(float(p.max()))
        mean_bias = sent(task, EIGHT)["7.bias"]
        guess = (len(EIGHT) / SPEC.classes - len(EIGHT) * mean_bias).round().clamp_min(0)
        off.append(float((guess - 1).abs().sum()))
    click.echo(
        f"LeNet, 20 seeds, 8 classes: largest p {min(peaks):.2f} to {max(peaks):.2f}, median {_median(peaks):.2f}"
    )
    click.echo(f"counts that assume p = 1/8, 8 photos of 8 classes: off by {_median(off):.0f} in the median")


def labels() -> None:
    """What guessing from the class prior scores."""
    even = torch.arange(16) % 10
    click.echo(f"16 images of 10 classes: a guess scores F1 {label_f1_by_prior(even, torch.full((10,), 0.1)):.2f}")


def psnr() -> None:
    """Mean of dB, and dB of the mean."""
    truth = torch.full((2, 3, 32, 32), 0.5)
    found = truth.clone()
    found[1] += 0.3
    each = PSNR()(found, truth)
    pooled = PSNR()(found[None].flatten(1, 2), truth[None].flatten(1, 2))
    click.echo(
        f"an exact image and a bad one: {each.tolist()}, mean {float(each.mean()):.1f}, pooled {float(pooled):.1f}"
    )


def blurred(x: Tensor) -> Tensor:
    small = F.interpolate(x, scale_factor=0.25, mode="bicubic", antialias=True)
    return F.interpolate(small, x.shape[-1], mode="bicubic").clamp(0, 1)


def ssim() -> None:
    """Three scores under one name, for a blur to a quarter of the resolution."""
    from reproduce.metrics import SSIMCropped, SSIMGlobal

    x = Samples(size=128).read(range(8)).inputs
    for metric in (SSIM(), SSIMCropped(), SSIMGlobal()):
        click.echo(
            f"quarter-resolution blur of 8 photos at 128 px: {metric.name} {float(metric(blurred(x), x).mean()):.2f}"
        )


def best_match() -> None:
    """A constant grey image, held against its own photo and against the photo that flatters it most."""
    x = EIGHT.inputs
    grey = torch.full_like(x, 0.5)
    every = torch.stack([SSIM()(grey[:1].expand_as(x), x)] * 8)
    own, best = float(SSIM()(grey, x).mean()), float(every.amax(1).mean())
    click.echo(f"constant grey: SSIM one to one {own:.2f}, best match {best:.2f}")


def shares() -> None:
    """Upper ends of intervals, and clients that a gate needs."""
    for n in (1, 5, 8, 30, 59, 80):
        click.echo(f"0 of {n} still allows {proportion_upper(0, n):.3f}")
    click.echo(f"a gate of .05 needs {needed(0.05)} clients, of .01 {needed(0.01)}")


def relative() -> None:
    """The noise of a relative scale depends on the photo that it should hide."""
    task = built(lenet)
    scale = RelativeToNorm(0.1)
    sigmas = [float(scale.of(sent(task, PHOTOS.read([i])))["0.weight"]) for i in range(8)]
    click.echo(f"relative noise 0.1, 8 photos: σ from {min(sigmas):.2e} to {max(sigmas):.2e}")


def lineup() -> None:
    """Identification of poor reconstructions, among strangers and among relatives."""
    x, g = EIGHT.inputs, torch.Generator().manual_seed(0)
    flat = x.mean((2, 3), keepdim=True).expand_as(x).contiguous()
    fat = blurred(x)
    for name, found in (("flat mean colour", flat), ("quarter-resolution blur", fat)):
        hits = 0
        kin = 0
        for i in range(8):
            mate = assign(found[i : i + 1], x[i : i + 1])
            others = gallery(PHOTOS, [i], 100, g)
            hits += int(identify(found[i : i + 1], x[i : i + 1], mate, others).identified[0])
            shifted = torch.stack([x[i].roll((dy, dx), (1, 2)) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx])
            kin += int(identify(found[i : i + 1], x[i : i + 1], mate, shifted).identified[0])
        click.echo(f"{name}: {hits} of 8 among 100 strangers, {kin} of 8 among 8 shifts by a pixel of the same photo")


def _read(defense: Defense | None, dtype: torch.dtype = torch.float32, client: Protocol | None = None) -> list[float]:
    task = built(mlp).to(torch.empty((), dtype=dtype))
    scores = []
    for i in range(8):
        truth = PHOTOS.read([i])
        batch = Batch(truth.inputs.to(dtype), truth.labels)
        update = client_update(task, client or FedSGD(), batch, Draws(i), defense=defense)
        observation = Observation(task, update, Knowledge(example_count=1, defense=defense))
        found = LinearRead().reconstruct(observation, torch.Generator().manual_seed(0))
        assert found.inputs is not None
        scores.append(float(PSNR()(found.inputs, batch.inputs)[0]))
    return scores


def closed_form() -> None:
    """The read of a biased linear layer, 8 photos one at a time, untrained MLP."""
    rows: list[tuple[str, list[float]]] = [
        ("float32", _read(None)),
        ("float64", _read(None, torch.float64)),
        ("FedAvg, 5 steps at lr .01", _read(None, client=FedAvg(epochs=5, lr=0.01))),
        ("top-k, 5 % kept, known", _read(TopK(keep=0.05))),
        ("relative noise 0.1", _read(noise(relative=0.1))),
        ("relative noise 1", _read(noise(relative=1.0))),
    ]
    for name, scores in rows:
        click.echo(
            f"closed form, {name}: worst {min(scores):.1f}, median {_median(scores):.1f}, best {max(scores):.1f} dB"
        )


def divergence() -> None:
    """The same search twice, from starts that differ by 1e-6."""
    task, truth = built(convnet, width=16), PHOTOS.read([0])
    observation = Observation(task, client_update(task, FedSGD(), truth, Draws(0)), Knowledge(labels=truth.labels))
    start = torch.rand(truth.inputs.shape, generator=torch.Generator().manual_seed(0))
    results = []
    for shift in (0.0, 1e-6):
        attack = Matching(objective=Cosine(), canvas=Pixels(first=Given(start + shift)), minimiser=Adam(steps=100))
        found = attack.reconstruct(observation, torch.Generator().manual_seed(0), budget=Budget(), compute=Compute())
        assert found.inputs is not None
        results.append(found.inputs)
    far = float((results[0] - results[1]).abs().max())
    first, second = (float(PSNR()(found, truth.inputs)[0]) for found in results)
    click.echo(f"ConvNet-16, 100 signed steps: pixels differ by up to {far:.2f}, PSNR {first:.2f} and {second:.2f} dB")


def times() -> None:
    """Seconds of a thousand gradient evaluations, one photo, one thread of this machine."""
    rows: list[tuple[str, Task, Attack, Protocol, int]] = [
        ("MLP, closed form", built(mlp), LinearRead(), FedSGD(), 1),
        ("LeNet, bounded L-BFGS", built(lenet), Matching(minimiser=BoundedLBFGS()), FedSGD(), 100),
        ("LeNet, signed Adam", built(lenet), Matching(minimiser=Adam()), FedSGD(), 100),
        ("LeNet, FedAvg of 4 steps, bounded L-BFGS", built(lenet), Matching(), FedAvg(epochs=4), 100),
        ("ConvNet-16, signed Adam", built(convnet, width=16), Matching(minimiser=Adam()), FedSGD(), 40),
        ("ResNet-20, width 16, signed Adam", built(resnet20, width=16), Matching(minimiser=Adam()), FedSGD(), 40),
    ]
    for name, task, attack, client, spend in rows:
        truth = PHOTOS.read([0])
        knowledge = Knowledge(labels=truth.labels, example_count=1, local_training=client)
        observation = Observation(task, client_update(task, client, truth, Draws(0)), knowledge)
        cost = attack.reconstruct(observation, torch.Generator().manual_seed(0), budget=Budget(spend)).cost
        each = f"{1000 * cost.seconds / cost.gradient_evaluations:.1f} s" if cost.gradient_evaluations else "–"
        click.echo(f"{name}: {cost.gradient_evaluations} evaluations in {cost.seconds:.2f} s; a thousand take {each}")


def _median(values: list[float]) -> float:
    return statistics.median(values)


ALL: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        batchnorm, sign, local_steps, softmax, labels, psnr, ssim, best_match, shares, relative, lineup, closed_form,
        divergence, times,
    )
}  # fmt: skip


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(ALL)))
def main(names: tuple[str, ...]) -> None:
    """Measures the figures NAMES, or all."""
    Compute().apply()
    for name in names or ALL:
        click.echo(f"# {name}")
        ALL[name]()


if __name__ == "__main__":
    main()
