"""Which of 28 defences behind 8 protocols leave one example, and four, to a proof: `python benchmarks/combinations.py`.

A single example (one of each client of a sum) is to be certified wherever four are. Takes some 20 CPU minutes; named
protocols alone with arguments.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
from torch import nn

import leakgauge as lg
from leakgauge.clients import SGD, FedAvg, FedSGD, LocalTraining, Protocol, SecureAggregation, client_update
from leakgauge.defenses import (
    DPSGD,
    QSGD,
    Clip,
    ClipExamples,
    ClipLayers,
    Compose,
    Defense,
    FedCDP,
    GaussianNoise,
    LaplaceNoise,
    NoDefense,
    Prune,
    Quantise,
    RandomK,
    TopK,
)
from leakgauge.defenses.dp import Absolute, ClientDP
from leakgauge.defenses.steps import DefenseStep, Nonlinear
from leakgauge.errors import FOREIGN
from leakgauge.tensors import Tensors, map_tensors


class OwnClip(Clip):
    """Of one's own, and no other than the clip."""


@dataclass(frozen=True)
class Half(Defense):
    """Of one's own: half of every entry."""

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        return _half(tensors)

    def steps(self) -> tuple[DefenseStep, ...]:
        return (Nonlinear(how=_half),)


def _half(tensors: Tensors) -> Tensors:
    return map_tensors(lambda t: 0.5 * t, tensors)


NOISE = GaussianNoise(scale=Absolute(sigma=1e-9))
CLIP, EACH, FINE = Clip(norm=0.1), ClipExamples(norm=0.1), Quantise(levels=32767)
DEFENSES: dict[str, Defense | None] = {
    "not known": None,
    "none": NoDefense(),
    "composed of none": Compose((NoDefense(),)),
    "clip 1e9": Clip(norm=1e9),
    "clip": CLIP,
    "own clip": OwnClip(norm=0.1),
    "clip twice": Compose((CLIP, Clip(norm=0.05))),
    "clip layers": ClipLayers(norm=0.1),
    "clip examples": EACH,
    "clip examples, clip": Compose((EACH, Clip(norm=0.05))),
    "top-k 1": TopK(keep=1.0),
    "top-k .5": TopK(keep=0.5),
    "random-k 1": RandomK(keep=1.0),
    "random-k .9 unbiased": RandomK(keep=0.9, unbiased=True),
    "prune .1": Prune(rate=0.1),
    "noise": NOISE,
    "clip, noise": Compose((CLIP, NOISE)),
    "noise, clip": Compose((NOISE, CLIP)),
    "clip examples, noise": Compose((EACH, NOISE)),
    "quantise": FINE,
    "clip, quantise": Compose((CLIP, FINE)),
    "qsgd": QSGD(levels=32767),
    "dp-sgd": DPSGD(noise_multiplier=1e-6, norm=0.1),
    "client dp": ClientDP(noise_multiplier=1e-6, norm=0.1),
    "fed-cdp": FedCDP(noise_multiplier=1e-6, norm=0.1),
    "laplace": LaplaceNoise(scale=Absolute(sigma=1e-9)),
    "own half": Half(),
    "top-k 1, clip": Compose((TopK(keep=1.0), CLIP)),
}
STEP = SGD(lr=0.1)
PROTOCOLS: dict[str, Protocol] = {
    "fedsgd": FedSGD(),
    "fedavg": FedAvg(lr=0.1),
    "momentum": FedAvg(lr=0.1, momentum=0.9, dampening=0.5),
    "nesterov, decay": FedAvg(lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
    "cohort of one": SecureAggregation(cohort=1, client=FedSGD()),
    "cohort of two": SecureAggregation(cohort=2, client=FedSGD()),
    "proximal": LocalTraining(optimiser=STEP, proximal=0.1),
    "clipped step": LocalTraining(optimiser=STEP, clip=0.1),
}


def proved(client: Protocol, defense: Defense | None, count: int) -> str:
    """How many of so many examples are certified, and the mean PSNR."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 5))
    task = lg.Task.of(net, lg.DataSpec(shape=(3, 4, 4), classes=5))
    inputs = torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(5))
    try:
        update = client_update(
            task, client, lg.Batch(inputs, torch.arange(count) % 5), lg.Draws(seed=1), defense=defense
        )
        known = lg.Knowledge(local_training=client, example_count=count, defense=defense)
        found = lg.attack(task, update, knows=known, budget=lg.Budget(gradient_evaluations=60))
    except FOREIGN as error:
        return f"refused: {error}"
    sure = count if found.status.value == "exact" else 0 if found.certified is None else int(found.certified.sum())
    if found.inputs is None:
        return f"{sure} of {count}"
    slots = lg.metrics.assign(found.inputs, inputs)
    near = float(lg.metrics.PSNR()(slots.take(found.inputs), inputs).mean())
    return f"{sure} of {count}, {near:.1f} dB"


if __name__ == "__main__":
    for protocol in sys.argv[1:] or PROTOCOLS:
        for name, defense in DEFENSES.items():
            least = getattr(PROTOCOLS[protocol], "cohort", 1)  # each client of a sum has an example at least
            one, four = (proved(PROTOCOLS[protocol], defense, n) for n in (least, 4))
            worse = four.startswith("4 of") and not one.startswith(f"{least} of")
            print(f"{protocol:16s} {name:22s} {one:22s} {four:22s} {'ONE IS NOT' * worse}", flush=True)
