"""Figures 6, 7 and 9 of Inverting Gradients: a batch of 100, dishonest servers, the gradient's magnitude."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from scipy.stats import spearmanr
from torch import nn

from leakgauge.data import gallery
from leakgauge.errors import InputError
from leakgauge.metrics import PSNR, assign
from leakgauge.models import lenet
from leakgauge.servers import Server
from leakgauge.task import Task
from leakgauge.tensors import squared_norm
from reproduce.inverting_gradients.identity_convolutions import IdentityConvolutions
from reproduce.inverting_gradients.runs import (
    LENET,
    LENET_TRAINED,
    RESNET_TRAINED,
    Attempt,
    Network,
    Sheet,
    Trial,
    proposed,
    trial,
)
from reproduce.item import Inputs
from reproduce.label_flip import LabelFlip
from reproduce.metrics.identification import identify
from reproduce.rows import Row


def figure6(inputs: Inputs) -> Iterator[Row]:
    """The first 100 images as one batch: all of them, the five best, and how many are told from 100 strangers.

    A grey picture's five best stand beside: picking five of a hundred by the truth flatters everything.
    """
    page, quick = Sheet.of("figure6", inputs), inputs.quick
    cases = [(LENET, proposed(1e-2, 300 if quick else 4800))]
    if not quick:
        cases.append((RESNET_TRAINED, proposed(1e-2)))
    for network, attempt in cases:
        setting = f"{network.name}, batch 100"
        yield from page.inputs.once(setting, attempt.name, partial(_hundred, page, network, attempt, setting))


def _hundred(page: Sheet, network: Network, attempt: Attempt, setting: str) -> Iterator[Row]:
    truth = page.source.read(range(100))
    one = trial(
        network.task(page.spec, page.inputs.seed(0), device=page.inputs.device),
        truth,
        attempt.attack,
        page.inputs.seed(0),
    )
    grey = Trial(torch.full_like(truth.inputs, 0.5), truth, one.update, True, 0, 0.0, "")
    for name, made in ((attempt.name, one), ("grey picture", grey)):
        scores = sorted(made.scores(PSNR()), reverse=True)
        page.inputs.say(
            f"{page.item} {network.name}, {name}: best {scores[:5]}, mean {statistics.fmean(scores):.2f} dB"
        )
        doubt = attempt.doubt if made is one else ""
        told = {"doubt": doubt, "evaluations": made.evaluations, "seconds": made.seconds}
        yield page.row(setting, name, "PSNR", [scores], **told)
        yield page.row(setting, f"{name}, five best", "PSNR", [scores[:5]], **told)
    strangers = gallery(page.source, range(100), 100, torch.Generator().manual_seed(0))
    pairs = assign(one.pictures, truth.inputs, labels_hat=truth.labels, labels=truth.labels)
    found = identify(one.pictures, truth.inputs, pairs, strangers)
    values = [float(hit) for hit in found.identified]
    yield page.row(
        setting, attempt.name, "identified among 101", [values], doubt=f"chance {found.chance:.3f}; {attempt.doubt}"
    )


def figure7(inputs: Inputs) -> Iterator[Row]:
    """Label flipping on the trained LeNet; identity convolutions in networks with a stride and without."""
    page, quick = Sheet.of("figure7", inputs), inputs.quick
    images = range(3 if quick else 8)
    honest = LENET_TRAINED.task(page.spec, 0, device=inputs.device)
    flipped = LabelFlip().broadcast(honest, torch.Generator()).task
    attempt = proposed(1e-3, 1200 if quick else 4800)
    for name, task in (("LeNet trained", honest), ("LeNet trained, labels flipped", flipped)):
        if not inputs.wants(name, attempt.name):
            continue
        made = [trial(task, page.source.read([i]), attempt.attack, inputs.seed(i)) for i in images]
        yield from page.scored(name, attempt.name, [made], doubt=attempt.doubt)
        lengths = [float(squared_norm(one.update).sqrt()) for one in made]
        yield page.row(name, "update", "length of the gradient", [lengths])
    networks = (
        Network(name="two convolutions without stride", build=lambda: plain(1)),
        Network(name="two convolutions, stride 2 each", build=lambda: plain(2)),
        Network(name="LeNet (strides 2, 2, 1; 12 channels)", build=lenet),
    )
    for network in networks:
        if inputs.wants(network.name, "identity convolutions"):
            yield from page.scored(network.name, "identity convolutions", [crafted(page, network, images)])


def plain(stride: int) -> nn.Module:
    """Two convolutions of 48 filters with ReLU and two linear layers: wide enough for all phases of two strides."""
    side = 32 // stride**2
    convolutions = [nn.Conv2d(3, 48, 3, stride, 1), nn.ReLU(), nn.Conv2d(48, 48, 3, stride, 1), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(48 * side * side, 32), nn.ReLU(), nn.Linear(32, 10))


def crafted(page: Sheet, network: Network, images: Sequence[int], server: Server | None = None) -> list[Trial]:
    """The dishonest model's update of each image, read by the server's own attack."""
    honest = network.task(page.spec, page.inputs.seed(0), torch.float64, page.inputs.device)
    sent = (server or IdentityConvolutions()).broadcast(honest, torch.Generator().manual_seed(0))
    if sent.crafting is None:
        raise InputError("server", "crafted nothing", "give a dishonest one")
    made = [trial(sent.task, page.source.read([i]), sent.crafting, i) for i in images]
    for one in made:
        page.inputs.say(f"{page.item} {network.name}: {one.scores(PSNR())[0]:.1f} dB; {one.message}")
    return made


def figure9(inputs: Inputs) -> Iterator[Row]:
    """PSNR against the gradient's length, image by image, trained and untrained; Spearman's rank correlation."""
    page, quick = Sheet.of("figure9", inputs), inputs.quick
    count = 10 if quick else 100
    cases = [(LENET, proposed(1e-2, 1200 if quick else 4800)), (LENET_TRAINED, proposed(1e-3, 1200 if quick else 4800))]
    if not quick:
        cases.append((RESNET_TRAINED, proposed(1e-2)))
    for network, attempt in cases:
        task: Task = network.task(page.spec, inputs.seed(0), device=inputs.device)
        made = [trial(task, page.source.read([i]), attempt.attack, inputs.seed(i)) for i in range(count)]
        yield from page.scored(network.name, attempt.name, [made], doubt=attempt.doubt)
        lengths = [float(squared_norm(one.update).sqrt()) for one in made]
        yield page.row(network.name, "update", "length of the gradient", [lengths])
        scores = [one.scores(PSNR())[0] for one in made]
        rank = spearmanr(lengths, scores)
        page.inputs.say(f"{page.item} {network.name}: {list(zip(lengths, scores, strict=True))}")
        doubt = f"{count} images, two-sided p = {rank.pvalue:.2g}"
        yield page.row(network.name, attempt.name, "rank correlation with the length", [[rank.statistic]], doubt=doubt)
        for word, index in (("longest", lengths.index(max(lengths))), ("shortest", lengths.index(min(lengths)))):
            yield page.row(f"{network.name}, {word} gradient", attempt.name, "PSNR", [[scores[index]]])
