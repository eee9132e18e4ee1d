"""ROG (Reconstruction from Obfuscated Gradients): its numbered tables and figures, in settings for two cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch

from leakgauge.attacks.adaptive import Adapted, Naive
from leakgauge.attacks.recipes import inverting_gradients
from reproduce.denoiser.items import postprocessing
from reproduce.item import Inputs, Item, Measure, State
from reproduce.rog import ablations, batches
from reproduce.rog.ablations import BATCH, SMALL
from reproduce.rog.clients import attack, clients
from reproduce.rog.networks import rog_resnet18, rog_vgg7
from reproduce.rog.runs import SEEDS, Client, Named, Sheet
from reproduce.rog.semantic import semantic
from reproduce.rog.settings import (
    COMPRESSED,
    NOISY,
    PRECODE,
    PUBLISHED,
    PUBLISHED_STEPS,
    REDUCED,
    SIGNS,
    SOTERIA,
)
from reproduce.rows import Row


def defended(item: str, defenses: tuple[Named, ...]) -> Measure:
    """Rows of ROG, which takes the defence for none: 64 px and batch 8; unless quick as published too."""

    def measure(inputs: Inputs) -> Iterator[Row]:
        published = () if inputs.quick else tuple(replace(PUBLISHED, steps=steps) for steps in PUBLISHED_STEPS)
        for client in (REDUCED, *published):
            for defense in defenses:
                asked = replace(client, defense=defense)
                yield from Sheet(item, inputs).rows(asked, Naive(attack=attack(defense)))

    return measure


def figure2(inputs: Inputs) -> Iterator[Row]:
    """Undefended, with the two ends of the scale; unless quick at 128 px with τ 1 and 5, and with τ 5 for three more
    clients, as one leaves the claim open."""
    sheet = Sheet("figure2", inputs)
    yield from sheet.controls(REDUCED)
    yield from sheet.rows(REDUCED)
    yield from sheet.rows(REDUCED, inverting_gradients(steps=200), name="Inverting Gradients, 200 steps")
    if inputs.quick:
        return
    yield from sheet.controls(PUBLISHED)
    for steps in PUBLISHED_STEPS:
        yield from sheet.rows(replace(PUBLISHED, steps=steps))
    for first in (16, 32, 48):
        yield from sheet.controls(replace(PUBLISHED, first=first))
        yield from sheet.rows(replace(PUBLISHED, steps=5, first=first))


def table2(inputs: Inputs) -> Iterator[Row]:
    """What is no reconstruction: noise, another photo, and each photo at a quarter of its resolution."""
    sheet, truth = Sheet("table2", inputs), PUBLISHED.batch(inputs.data).inputs
    noise = torch.rand(truth.shape, generator=torch.Generator().manual_seed(0))
    for name, shown in (("random noise", noise), ("another picture, of another class", truth.roll(1, 0))):
        yield from inputs.once("128 px", name, partial(sheet.pictures, "128 px", name, shown, truth))
    yield from sheet.controls(PUBLISHED)


def figure16(inputs: Inputs) -> Iterator[Row]:
    """The three networks at 32 px, batch 4."""
    networks: dict[str, Client] = {
        "LeNet": SMALL,
        "VGG-7": replace(SMALL, network="VGG-7", build=rog_vgg7),
        "ResNet-18": replace(SMALL, network="ResNet-18", build=rog_resnet18),
    }
    sheet, seeds = Sheet("figure16", inputs), SEEDS[:1] if inputs.quick else SEEDS
    yield from sheet.controls(SMALL)
    for client in networks.values():
        yield from sheet.rows(client, seeds=seeds)


def adapted(inputs: Inputs) -> Iterator[Row]:
    """32 px, batch 4: the attacker who takes the update for an undefended one, and the one who knows the defence."""
    sheet, seeds = Sheet("adapted", inputs), SEEDS[:1] if inputs.quick else SEEDS
    yield from sheet.controls(SMALL)
    yield from sheet.rows(SMALL, seeds=seeds)
    for defense in (*COMPRESSED, SIGNS, SOTERIA, PRECODE, *NOISY):
        client = replace(SMALL, defense=defense)
        yield from sheet.rows(client, Naive(attack=attack(defense)), name="ROG", seeds=seeds)
        yield from sheet.rows(client, Adapted(attack=attack(defense)), name="ROG, adapted", seeds=seeds)


PHOTOS = "The first photos of a sample of ImageNet, one a class, here also 64 px, batch 8, one step; "
CIFAR = "CIFAR-10 at 32 px; "
POST = "“denoised” is the packaged post-processor, trained on CIFAR-10, in place of ROG's two, trained on ImageNet; "
DEFENDED = "22 minutes a defence on one core, 18 of them for five local steps"
UNKNOWN = "our record of the paper's numbers has nothing of it, so there is nothing to compare with"


def _item(
    name: str,
    state: State,
    note: str,
    measure: Measure | None,
    needs: str,
    stands: Mapping[str, tuple[str, ...]] | None = None,
) -> Item:
    said = note.strip().removesuffix(";")
    return Item(paper="rog", name=name, state=state, note=said, measure=measure, needs=needs, stands=stands or {})


def smaller(*defenses: Named) -> dict[str, tuple[str, ...]]:
    """Rows of one local step, and of smaller photos, that stand for the paper's where those are not run."""
    return {
        f"{replace(PUBLISHED, steps=5, defense=d).name} | ROG": tuple(
            f"{replace(client, defense=d).name} | ROG" for client in (PUBLISHED, REDUCED)
        )
        for d in defenses
    }


ITEMS = (
    _item("table1", State.NOT_RUN, UNKNOWN, None, ""),
    _item(
        "clients", State.REDUCED,
        "Five clients of eight photos of 64 px, one step, one weight seed; " + POST + "values in the order of the "
        "clients, eight each", clients, "an hour on one core",
    ),
    _item(
        "table2", State.REDUCED,
        "The four photos are not known: 16 of a sample, for the rows that need no attack; ROG on such photos is "
        "figure2. ROGS (`rogs`) needs a trained generator such as BigGAN, which is not here. The tags of the Jaccard "
        "index are the ten of the packaged classifier, so that unlike photos share many.",
        table2, "seconds",
    ),
    _item(
        "figure2", State.REDUCED,
        PHOTOS + POST + "the full run adds 128 px, batch 16, with one and five steps, the latter being the paper's, "
        "and three more clients of the next photos, added as one left the claim open (its interval does not allow for "
        "that). What the post-processor makes of the true photos at a quarter of their resolution is no nearer.",
        figure2, "one and a half hours on one core (2 s a step of the attack at 128 px, 10 s with five local steps)",
        {
            "128 px, batch 16, τ 5, none | Inverting Gradients": (
                "64 px, batch 8, τ 1, none | Inverting Gradients, 200 steps",
            )
        },
    ),
    _item("figure3", State.NOT_RUN, UNKNOWN, None, ""),
    _item(
        "figure4", State.REDUCED, CIFAR + "batch 16, one step; bicubic codes of another factor in place of codes of "
        "autoencoders", ablations.figure4, "",
    ),
    _item(
        "figure5", State.REDUCED, CIFAR + "batch 16, one step; an autoencoder trained on 5 000 CIFAR-10 pictures; 300 "
        "steps without projection (full run 2 000) for 20 000; " + POST + "the kept quick run attacked pictures that "
        "the post-processor was trained on", ablations.figure5, "",
        {
            f"{replace(PUBLISHED, steps=5).name} | ROG, not post-processed, {ours}": (f"{BATCH.name} | ROG, {small}",)
            for ours, small in (
                ("bicubic, d_z 3 072", "bicubic, d_z 192"),
                ("autoencoder, d_z 8 192", "autoencoder, d_z 512"),
            )
        },
    ),
    _item(
        "figure6", State.REDUCED, PHOTOS + POST + "3 bits are seven values. In the paper the three lie "
        "within .03 of the undefended update; here rounding to the nearest sets small entries to zero, which the dice "
        "of QSGD do not, and squared distance takes the zeros of top-k for entries",
        defended("figure6", COMPRESSED), DEFENDED, smaller(*COMPRESSED),
    ),
    _item(
        "figure7", State.REDUCED, PHOTOS + POST + "three times each tensor's g/rms in the tanh, see gain. "
        "Signs do better than the uniform quantiser and top-k, unlike in the paper: this gain is an "
        "adaptation, the squared distance there is none", defended("figure7", (SIGNS,)), DEFENDED,
        smaller(SIGNS),
    ),
    _item(
        "figure8", State.REDUCED, PHOTOS + POST + "Soteria on the second linear layer, PRECODE before it, as the paper "
        "does not say which; Fed-CDP with C 4 and noise on each example. PRECODE withstands this attack, "
        "which puts a draw of its own in place of the client's; where the client takes one step its draws can be read: "
        "`precode`",
        defended("figure8", (PRECODE, NOISY[0], SOTERIA)),
        DEFENDED + "; the mask of Soteria four minutes more", smaller(PRECODE, NOISY[0], SOTERIA),
    ),
    _item(
        "figure9", State.REDUCED, PHOTOS + POST + "the ratio is that of one example's clipped gradient to its noise, "
        "over all tensors: the paper does not say which. In the paper's order",
        defended("figure9", NOISY[1:]), DEFENDED, smaller(*NOISY[1:]),
    ),
    _item("figure10", State.NOT_RUN, UNKNOWN, None, ""),
    _item("figure11", State.NOT_RUN, UNKNOWN, None, ""),
    _item("figure12", State.REDUCED, CIFAR + "one step", batches.figure12, "a minute on one core"),
    _item(
        "figure13", State.REDUCED, CIFAR + "one step; least and greatest are those of the batch",
        batches.figure13, "4 minutes on one core",
    ),
    _item("figure14", State.REDUCED, CIFAR + "one step", batches.figure14, "3 minutes on one core"),
    _item(
        "figure15", State.REDUCED, CIFAR + "one step; Inverting Gradients 2 000 steps for 24 000, DLG 300 iterations, "
        "labels given; quick: 200 and 100. " + POST, batches.figure15, "10 minutes on one core",
    ),
    _item(
        "figure16", State.REDUCED, CIFAR + "batch 4, one step; " + POST, figure16, "",
        {
            f"{prefix}128 px, batch 16, τ 5, none | ROG": (f"{prefix}CIFAR-10 at 32 px, batch 4, τ 1, none | ROG",)
            for prefix in ("", "VGG-7, ", "ResNet-18, ")
        },
    ),
    _item(
        "utility", State.NOT_RUN, "measured by `leakgauge frontier`, in the paper's setting: docs/how-to/frontier.md",
        None, "",
    ),
    _item(
        "adapted", State.REDUCED, "ours; " + CIFAR + "batch 4, one step; " + POST + "knowing the defence "
        "is worth from nothing (Fed-CDP with little noise) to 2.5 dB (top-k), and costs nothing; of PRECODE see "
        "precode", adapted,
        "half an hour on one core",
    ),
    _item(
        "precode", State.REDUCED, "ours; " + CIFAR + "one step; full: also 128 px, batch 16. The bottleneck's own "
        "gradient and the classifier's tell what each example's draw was; the search then goes through it. Several "
        "local steps draw anew each, which this cannot read", batches.precode, "10 minutes on one core",
    ),
    _item(
        "values15", State.REDUCED, "ours; " + PHOTOS + POST + "full: also 128 px, batch 16, one step", batches.values15,
        "10 minutes on one core",
    ),
    _item(
        "semantic", State.REDUCED, "ours, for ROGS; " + CIFAR + "batch 8 of eight classes; a conditional "
        "variational autoencoder trained for minutes on 10 000 pictures in place of BigGAN: what ROGS is worth is what "
        "its generator is worth", semantic, "a quarter of an hour on one core",
    ),
    _item("wrong-start", State.REDUCED, "ours; " + CIFAR + "batch 4", ablations.wrong_start, ""),
    _item(
        "postprocessing", State.REDUCED, "the packaged denoiser on held-out pictures and on reconstructions, and "
        "whether it invents: line-ups of mismatched updates", postprocessing, "",
    ),
    _item("gain", State.REDUCED, "ours; " + CIFAR + "batch 4, one step", ablations.gain, ""),
)  # fmt: skip
