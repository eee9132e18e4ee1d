"""What local steps hide of one image: by learning rate, by their number, and when their number is a secret."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import product

import torch

from leakgauge.attacks.matching import BoundedLBFGS, Matching, Pixels, SquaredL2, Uniform
from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedAvg, FedSGD, client_update
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR
from leakgauge.task import Batch
from reproduce.inverting_gradients.runs import CONVNET, LENET, Attempt, Sheet, Trial, digits_apart, proposed, trial
from reproduce.inverting_gradients.step_search import StepSearch
from reproduce.item import Inputs
from reproduce.rows import Row

RATES = (1e-4, 1e-2, 1e-1)
COSINE = "−log10(1 − cosine)"


def local_lr(inputs: Inputs) -> Iterator[Row]:
    """Five steps on one image: how far the update is from the first gradient, then what an attack finds.

    The attack that takes the update for a gradient stands beside the one that unrolls the steps.
    """
    page, quick = Sheet.of("local-lr", inputs), inputs.quick
    images = [[i] for i in range(2 if quick else 10)]
    for network, rate in product((LENET, CONVNET), RATES):
        if inputs.wants(f"{network.name}, 5 steps, lr {rate:g}", "update against gradient"):
            values = []
            for seed in inputs.seeds((0, 1, 2)):
                task = network.task(page.spec, seed, torch.float64, inputs.device)
                own = []
                for index in images:
                    truth = page.source.read(index)
                    batch = inputs.secret(Batch(truth.inputs.double(), truth.labels))
                    first = client_update(task, FedSGD(), batch, Draws(0)).tensors
                    moved = client_update(task, FedAvg(epochs=5, lr=rate), batch, Draws(0)).tensors
                    own.append(digits_apart({k: -v for k, v in moved.items()}, first))
                values.append(own)
            yield page.row(
                f"{network.name}, 5 steps, lr {rate:g}",
                "update against gradient",
                COSINE,
                values,
                inputs.seeds((0, 1, 2)),
            )
    auto = Attempt(name="auto, unrolled", attack=Auto(smooth_steps=150 if quick else 600))
    blind = Attempt(name="auto, takes it for a gradient", attack=auto.attack)
    for rate in RATES:
        protocol, name = FedAvg(epochs=5, lr=rate), f"{LENET.name}, 5 steps, lr {rate:g}"
        yield from page.rows(LENET, auto, images, setting=name, protocol=protocol)
        yield from page.rows(LENET, blind, images, setting=name, protocol=protocol, told=False)
    yield from page.rows(LENET, auto, images, setting=f"{LENET.name}, gradient")
    unrolled = proposed(1e-4, 150 if quick else 4800, name="proposed, unrolled")
    taken = Attempt(name="proposed, takes it for a gradient", attack=unrolled.attack, doubt=unrolled.doubt)
    few = images[: 1 if quick else 3]
    for rate in RATES:
        protocol, name = FedAvg(epochs=5, lr=rate), f"{CONVNET.name}, 5 steps, lr {rate:g}"
        yield from page.rows(CONVNET, unrolled, few, setting=name, protocol=protocol)
        yield from page.rows(CONVNET, taken, few, setting=name, protocol=protocol, told=False)


def figure5(inputs: Inputs) -> Iterator[Row]:
    """Numbers of steps at lr 1e-4 and learning rates at five steps: ten images of the first two settings, three of the
    others. Quick: one image."""
    page, quick = Sheet.of("figure5", inputs), inputs.quick
    grid = [(5, 1e-4), (5, 1e-1), (1, 1e-4), (5, 1e-3), (5, 1e-2), (20, 1e-4), (20, 1e-1), (100, 1e-4)]
    ours = Attempt(name="auto", attack=Auto(smooth_steps=80 if quick else 400))
    theirs = proposed(1e-2, 300 if quick else 4800)
    for place, (steps, rate) in enumerate(grid):
        protocol, name = FedAvg(epochs=steps, lr=rate), f"{LENET.name}, {steps} steps, lr {rate:g}"
        images = [[i] for i in range(1 if quick else 10 if place < 2 else 3)]
        if steps < 20 or not quick:
            yield from page.rows(LENET, theirs, images, setting=name, protocol=protocol)
        yield from page.rows(LENET, ours, images, setting=name, protocol=protocol)


def step_search(inputs: Inputs) -> Iterator[Row]:
    """Four steps, known to be full batches at a known learning rate; candidates 1, 2, 4 and 8."""
    page, quick = Sheet.of("step-search", inputs), inputs.quick
    inner = Matching(
        objective=SquaredL2(), canvas=Pixels(first=Uniform()),
        minimiser=BoundedLBFGS(steps=400 if quick else 1000, scale=1e6),
    )  # fmt: skip
    for rate in (1e-2, 1e-1):
        client, name = FedAvg(epochs=4, lr=rate), f"{LENET.name}, 4 steps, lr {rate:g}"
        cases = (
            ("number known", inner, True),
            ("number searched", StepSearch(attack=inner, client=client), False),
            ("taken for one step", StepSearch(attack=inner, client=client, epochs=(1,)), False),
        )
        for words, attack, told in cases:
            made: list[Trial] = []
            began = time.perf_counter()
            for index in range(2 if quick else 10):
                task = LENET.task(page.spec, inputs.seed(0), device=inputs.device)
                one = trial(task, page.source.read([index]), attack, inputs.seed(index), protocol=client, told=told)
                page.inputs.say(f"{page.item} {name}, {words}, image {index}: {one.scores(PSNR())} dB; {one.message}")
                made.append(one)
            hits = sum(one.message.startswith("4 local epochs") for one in made)
            doubt = f"the true number chosen for {hits} of {len(made)}" if words == "number searched" else ""
            yield from page.scored(name, words, [made], (0,), doubt=doubt)
            page.inputs.say(f"{time.perf_counter() - began:.0f} s")
