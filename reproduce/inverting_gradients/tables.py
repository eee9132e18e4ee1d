"""Tables 1 to 3 and Figure 4 of Inverting Gradients. What decides a claim runs first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import torch

from leakgauge.attacks.matching import Adam, Matching, SquaredL2, TotalVariation
from leakgauge.clients import FedAvg
from leakgauge.models import convnet, resnet18
from reproduce.inverting_gradients.runs import (
    CONVNET,
    LENET,
    Attempt,
    Network,
    Sheet,
    Trial,
    bounded,
    distinct_batches,
    euclidean,
    proposed,
)
from reproduce.item import Inputs, Measure
from reproduce.resnets import resnet34, resnet50
from reproduce.rows import Row

NARROW = "width 16 for 64"
SECOND = ", second batch"
SETTINGS = ((1, 8, 8, 1e-4), (5, 8, 8, 1e-4), (5, 1, 1, 1e-4), (1, 4, 2, 1e-6), (1, 8, 2, 1e-6))
"""Local epochs, images, mini-batch, weight of the total variation. The first two decide the claim."""


def single(count: int, start: int = 0) -> list[list[int]]:
    """The first images, one a client."""
    return [[index] for index in range(start, start + count)]


def _attempts(
    page: Sheet, network: Network, attempts: Sequence[Attempt], images: int, doubt: str = ""
) -> Iterator[Row]:
    for attempt in attempts:
        yield from page.rows(network, attempt, single(images), doubt=doubt)


def variants(tv: float, steps: int) -> list[Attempt]:
    """The attack, and with one part exchanged; a weight of 0 has the usual one of 1e-2 beside it."""
    other = (
        proposed(0.0, steps, name="no total variation") if tv else proposed(1e-2, steps, name="total variation 1e-2")
    )
    return [proposed(tv, steps), other, proposed(tv, steps, name="unsigned", signed=False)]


def lenet(network: Network, tv: float) -> Measure:
    """Table 1's columns of LeNet. Trained weights also have the rival with 300 iterations, which is what the paper
    counts.
    Quick: three images, 2 400 steps, one start of the bounded method."""

    def measure(inputs: Inputs) -> Iterator[Row]:
        page, quick = Sheet.of(_item_of(network, "lenet"), inputs), inputs.quick
        first, *others = variants(tv, 2400 if quick else 4800)
        deciding = [first, euclidean(600 if quick else 6000, 16)]
        if network.weights and not quick:
            deciding.append(euclidean(300, 16, name="Euclidean + L-BFGS, 300 iterations"))
        bound = bounded(2000, 1 if quick else 16)
        yield from _attempts(page, network, [*deciding, *others, bound], 3 if quick else 6)

    return measure


def resnet(network: Network, tv: float) -> Measure:
    """Table 1's columns of the ResNet. Quick: two images, 300 steps."""

    def measure(inputs: Inputs) -> Iterator[Row]:
        page, quick = Sheet.of(_item_of(network, "resnet"), inputs), inputs.quick
        first, *others = variants(tv, 300 if quick else 4800)
        attempts = [first, euclidean(40 if quick else 6000, 8), *others]
        yield from _attempts(page, network, attempts, 2 if quick else 4, NARROW)

    return measure


def _item_of(network: Network, family: str) -> str:
    return f"table1-{family}" + ("-trained" if network.weights else "")


def table2(lr: float, item: str) -> Measure:
    """The five settings with the attack's learning rate of 1, as published, or another: one batch of several images
    (ten would take 24 hours), ten of single ones. Quick: two of single ones, 250 steps."""

    def measure(inputs: Inputs) -> Iterator[Row]:
        page, steps = Sheet.of(item, inputs), 250 if inputs.quick else 4800
        for epochs, images, size, tv in SETTINGS:
            count = 1 if images > 1 else 2 if inputs.quick else 10
            yield from page.rows(
                CONVNET,
                proposed(tv, steps, lr=lr),
                distinct_batches(page.source.labels, images, count),
                setting=f"E {epochs}, n {images}, B {size}",
                protocol=FedAvg(epochs=epochs, batch_size=size, lr=1e-4),
                doubt="D = 16 for 64",
            )

    return measure


def table2_width(inputs: Inputs) -> Iterator[Row]:
    """The two settings that decide, at the paper's width: the update is read as one gradient, which saves unrolling
    five epochs. A second batch and weight seed, as single runs differ. Quick: width 16, 250 steps, one batch."""
    page, steps = Sheet.of("table2-width", inputs), 250 if inputs.quick else 1000
    network = CONVNET if inputs.quick else Network(name="ConvNet-64", build=convnet)
    for seed, (epochs, images, size, tv) in product((0,) if inputs.quick else (0, 1), SETTINGS[:2]):
        yield from page.rows(
            network,
            proposed(tv, steps, lr=0.1),
            distinct_batches(page.source.labels, images, 2)[seed : seed + 1],
            (seed,),
            setting=f"E {epochs}, n {images}, B {size}" + (SECOND if seed else ""),
            protocol=FedAvg(epochs=epochs, batch_size=size, lr=1e-4),
            told=False,
            doubt="D = 16 for 64" if inputs.quick else "",
        )


def all_iterations(inputs: Inputs) -> Iterator[Row]:
    """The paper's rival of its own attack on LeNet, three images."""
    page = Sheet.of("table1-lbfgs", inputs)
    yield from _attempts(page, LENET, [euclidean(600 if inputs.quick else 6000, 16)], 3)


def grey(inputs: Inputs) -> Iterator[Row]:
    """Grey pictures on those that other items attack, one batch a client."""
    page = Sheet.of("grey", inputs)
    cases = [(f"images {first} to {last}", single(last - first + 1, first)) for first, last in ((0, 1), (2, 3))]
    cases += [(f"images 0 to {count - 1}", single(count)) for count in (3, 4, 5, 6, 8)]
    cases += [(f"Table 2, n {n}", distinct_batches(page.source.labels, n, 1)) for n in (4, 8)]
    cases.append((f"Table 2, n 8{SECOND}", distinct_batches(page.source.labels, 8, 2)[1:]))
    for setting, batches in cases:
        truth = [page.source.read(batch) for batch in batches]
        made = [Trial(torch.full_like(t.inputs, 0.5), t, {}, True, 0, 0.0, "") for t in truth]
        yield from page.scored(setting, "grey picture", [made])


def trained_resnet18(weights: Path) -> Network:
    """A ResNet-18 of width 32 with trained weights, which lie beside the data.

    Raises:
        InputError: the weights are not there.
    """
    return Network(name="ResNet-18 trained", build=partial(resnet18, width=32), weights=weights)


def table3(inputs: Inputs) -> Iterator[Row]:
    """Quick: two images (not those of Table 1), 300 steps."""
    page, quick = Sheet.of("table3", inputs), inputs.quick
    steps = 300 if quick else 4800
    network = trained_resnet18(inputs.data.parent / "weights" / "resnet18-32-cifar10.safetensors")
    parts = inverting_by_distance(steps)
    doubt = "width 32 for 64, four epochs on 12 000 photos"
    attempts = [
        proposed(1e-2, steps),
        Attempt(name="squared distance", attack=parts, doubt=f"{steps} of 4 800 steps" if quick else ""),
        proposed(0.0, steps, name="no total variation"),
        euclidean(40 if quick else 6000, 8),
    ]
    if not quick:
        attempts.append(proposed(1e-2, steps, name="unsigned", signed=False))
    for attempt in attempts:
        yield from page.rows(network, attempt, single(2, 2) if quick else single(3), doubt=doubt)


def inverting_by_distance(steps: int) -> Matching:
    """The attack with the squared distance in place of the cosine; the prior keeps its weight."""
    return Matching(objective=SquaredL2(), prior=TotalVariation(1e-2), minimiser=Adam(steps=steps, lr=0.1))


def figure4(inputs: Inputs) -> Iterator[Row]:
    """Quick: widths 8, 16 and 32 and a ResNet-34 of width 16, two images, 300 steps."""
    page, quick = Sheet.of("figure4", inputs), inputs.quick
    networks = [
        Network(name="ResNet-18, width 8", build=lambda: resnet18(width=8)),
        Network(name="ResNet-18, width 32", build=lambda: resnet18(width=32)),
        Network(name="ResNet-18, width 16", build=lambda: resnet18(width=16)),
    ]
    if quick:
        networks.append(Network(name="ResNet-34, width 16", build=lambda: resnet34(width=16)))
    else:
        networks += [
            Network(name="ResNet-18, width 64", build=resnet18),
            Network(name="ResNet-34", build=resnet34),
            Network(name="ResNet-50", build=resnet50),
        ]
    for network in networks:
        yield from page.rows(
            network, proposed(1e-2, 300 if quick else 4800), single(2 if quick else 5), doubt="untrained"
        )
