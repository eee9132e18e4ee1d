"""The claims, paper by paper. What is asked of each row stands here; what came out is read from the kept results.

Tolerances: 1 dB of PSNR, .05 of SSIM and LPIPS, about twice what the papers' own tables differ by from run to run.
"""

from __future__ import annotations

import math
from dataclasses import replace

from reproduce.claims.claim import Claim, Effort
from reproduce.claims.quantity import Published, Quantity
from reproduce.claims.rules import Ahead, Each, Rule, Within

DECIBEL, SIMILAR = 1.0, 0.05
POST = "the packaged post-processor for the paper's two, which were trained on ImageNet"


def at_least(what: Quantity, paper: Published | float, slack: float) -> Within:
    """As good as published, but for the slack; better is as well."""
    return Within(what, paper, slack, math.inf)


def at_most(what: Quantity, paper: Published | float, slack: float) -> Within:
    """The same where lower is better."""
    return Within(what, paper, math.inf, slack)


def near(what: Quantity, paper: Published | float, slack: float) -> Within:
    """As published, on both sides."""
    return Within(what, paper, slack, slack)


# Inverting Gradients

IG = "inverting-gradients"


def _ig(item: str, setting: str, attack: str = "proposed", further: tuple[str, ...] = ()) -> Quantity:
    return Quantity(f"{IG}/{item}", setting, attack, "PSNR", further)


def _ig_published(item: str, setting: str, attack: str = "proposed") -> Published:
    return Published(f"{IG}/{item}", f"{setting} | {attack}", "PSNR")


def _ig_grey(*settings: str) -> tuple[Quantity, ...]:
    return tuple(_ig("grey", setting, "grey picture") for setting in settings)


def _ahead(item: str, setting: str, rival: str, further: tuple[str, ...] = ()) -> Ahead:
    paper = (_ig_published(item, setting), _ig_published(item, setting, rival))
    return Ahead(_ig(item, setting, further=further), _ig(item, setting, rival, further), paper=paper)


QUASI_NEWTON = "Euclidean + L-BFGS"
STEPS = 4800
FIRST = _ig_grey("images 0 to 1", "images 0 to 2", "images 0 to 9", "images 0 to 29")
NEXT_TWENTY = ("LeNet trained, images 10 to 19", "LeNet trained, images 20 to 29")
OURS = Quantity("main-job/inverting-gradients")

INVERTING_GRADIENTS = (
    Claim(
        paper=IG,
        where="T1",
        words="untrained LeNet: 18 dB",
        item=f"{IG}/table1-lenet",
        rule=at_least(OURS, _ig_published("table1-lenet", "LeNet untrained"), DECIBEL),
        effort=Effort(images=100, steps=STEPS),
        floor=FIRST,
    ),
    Claim(
        paper=IG,
        where="T1",
        words="L2+L-BFGS ahead of cosine",
        item=f"{IG}/table1-lbfgs",
        rule=Ahead(
            _ig("table1-lbfgs", "LeNet untrained", QUASI_NEWTON),
            OURS,
            paper=(
                _ig_published("table1-lenet", "LeNet untrained", QUASI_NEWTON),
                _ig_published("table1-lenet", "LeNet untrained"),
            ),
        ),
        effort=Effort(images=100),
    ),
    Claim(
        paper=IG,
        where="T1",
        words="cosine ahead: LeNet",
        item=f"{IG}/table1-lenet-trained",
        rule=_ahead("table1-lenet-trained", "LeNet trained", QUASI_NEWTON, NEXT_TWENTY),
        effort=Effort(images=100, steps=STEPS),
        floor=FIRST,
        because="against the release's 6 000 iterations; of 300, as the paper counts, the rival is behind, and "
        "without its sign the attack is ahead of both",
    ),
    Claim(
        paper=IG,
        where="T1",
        words="cosine ahead: ResNet-20",
        item=f"{IG}/table1-resnet-trained",
        rule=_ahead("table1-resnet-trained", "ResNet20-4 trained", QUASI_NEWTON),
        effort=Effort(images=100, steps=STEPS, width=(16, 64)),
        floor=FIRST,
    ),
    Claim(
        paper=IG,
        where="T2",
        words="5 epochs leak as one does",
        item=f"{IG}/table2-width",
        rule=Ahead(
            _ig("table2-width", "E 5, n 8, B 8", further=("E 5, n 8, B 8, second batch",)),
            _ig("table2-width", "E 1, n 8, B 8", further=("E 1, n 8, B 8, second batch",)),
            within=DECIBEL,
            paper=(_ig_published("table2", "E 5, n 8, B 8"), _ig_published("table2", "E 1, n 8, B 8")),
        ),
        effort=Effort(steps=STEPS),
        method="the update read as one gradient; at width 16 (table2) the attack ends at grey pictures",
        floor=tuple(replace(grey, further=("Table 2, n 8, second batch",)) for grey in _ig_grey("Table 2, n 8")),
    ),
    Claim(
        paper=IG,
        where="T3",
        words="cosine ahead: ResNet-18",
        item=f"{IG}/table3",
        rule=_ahead("table3", "ResNet-18 trained", "squared distance"),
        effort=Effort(images=10, steps=STEPS, width=(16, 64)),
        floor=_ig_grey("images 2 to 3", "images 0 to 9"),
    ),
    Claim(
        paper=IG,
        where="F4",
        words="wider networks leak more",
        item=f"{IG}/figure4",
        rule=Ahead(
            _ig("figure4", "ResNet-18, width 32"),
            _ig("figure4", "ResNet-18, width 8"),
            paper=(22.94, 19.02),
        ),
        effort=Effort(images=10, steps=STEPS, width=(32, 128)),
        floor=FIRST,
    ),
    Claim(
        paper=IG,
        where="F5",
        words="5 steps at lr .1: it fails",
        item=f"{IG}/figure5",
        rule=Ahead(_ig("figure5", "LeNet untrained, 5 steps, lr 0.1"), *_ig_grey("images 0 to 9"), lower=True),
        effort=Effort(images=1, steps=5 * STEPS),
        because="on LeNet, which fits the image in its first step; a ConvNet-16 beside it: local-lr",
    ),
    Claim(
        paper=IG,
        where="F6",
        words="5 of 100 recognisable",
        item=f"{IG}/figure6",
        rule=Ahead(
            _ig("figure6", "LeNet untrained, batch 100", "proposed, five best"),
            _ig("figure6", "LeNet untrained, batch 100", "grey picture, five best"),
        ),
        effort=Effort(steps=STEPS),
        method="LeNet for ResNet32-10",
    ),
    Claim(
        paper=IG,
        where="P3.1",
        words="active row = the picture",
        item=f"{IG}/proposition31",
        rule=at_least(_ig("proposition31", "MLP with ReLU, one image", "row of an active unit"), 100.0, 0.0),
    ),
    Claim(
        paper=IG,
        where="P3.1",
        words="condition is sufficient",
        item=f"{IG}/proposition31",
        rule=at_least(_ig("proposition31", "MLP with ReLU, one image", "row of an inactive unit"), 100.0, 0.0),
        because="an inactive ReLU meets the condition and sends a row of zeros",
    ),
)

# Qian & Hansen

QH = "qian-hansen"


def _qh(item: str, setting: str, attack: str = "Qian & Hansen") -> Quantity:
    return Quantity(f"{QH}/{item}", setting, attack, "L1")


LINE_SEARCH = "L-BFGS-B without the prior, float64"
FIGURES = (
    ("figure1", "ECG, 8 units"),
    ("figure2", "head phantom, 12 filters"),
    ("figure3", "5 faces, 24 filters"),
    ("figure8", "tissue, 24 filters"),
    ("figure9", "photo, 24 filters"),
)

QIAN_HANSEN = (
    Claim(
        paper=QH,
        where="T6f",
        words="12 filters fix a photo",
        item=f"{QH}/table6f",
        rule=at_most(_qh("table6f", "12 filters"), Published(f"{QH}/table6f", "12 filters | Qian & Hansen", "L1"), 1.0),
        effort=Effort(images=1),
        method=LINE_SEARCH,
    ),
    Claim(
        paper=QH,
        where="F1-9",
        words="ahead of DLG, 5 figures",
        item=f"{QH}/figure1",
        rule=Each(tuple(Ahead(_qh(i, s), _qh(i, s, "DLG"), lower=True) for i, s in FIGURES)),
        effort=Effort(images=1, steps=6000),
    ),
    Claim(
        paper=QH,
        where="F4",
        words="orthogonality helps",
        item=f"{QH}/figure4",
        rule=Ahead(_qh("figure4", "orthogonality 1e-5, constant"), _qh("figure4", "orthogonality none"), lower=True),
        effort=Effort(images=4, steps=200_000),
        method="a small constant weight; the paper's .1 needs its 200 000 steps",
    ),
    Claim(
        paper=QH,
        where="F5a",
        words="8 units fix 8 digits",
        item=f"{QH}/figure5a",
        rule=Ahead(
            _qh("figure5a", "8 units", "row space (ours)"),
            _qh("figure5a", "7 units", "row space (ours)"),
            lower=True,
        ),
        method="a search in the row space of the first gradient",
    ),
    Claim(
        paper=QH,
        where="F5b",
        words="48 filters fix 4 photos",
        item=f"{QH}/figure5b",
        rule=at_most(
            _qh("figure5b", "48 filters"), Published(f"{QH}/figure5b", "48 filters | Qian & Hansen", "L1"), 1.0
        ),
        effort=Effort(images=4),
        method=LINE_SEARCH,
    ),
)

# MKOR


def _mkor(item: str, setting: str, attack: str = "MKOR", metric: str = "avg PSNR") -> Quantity:
    return Quantity(f"mkor/{item}", setting, attack, metric)


def _as_published(item: str, setting: str, slack: float, metric: str = "avg PSNR") -> Within:
    return near(_mkor(item, setting, metric=metric), Published(f"mkor/{item}", f"{setting} | MKOR", metric), slack)


def _of_both(item: str) -> Rule:
    return Each(tuple(_as_published(item, network, 0.3) for network in ("LeNet5", "modified")))


MKOR = (
    Claim(
        paper="mkor",
        where="T2",
        words="100 digits at 12.8 dB",
        item="mkor/table2",
        rule=_as_published("table2", "LeNet5", 0.3),
        effort=Effort(images=10),
    ),
    Claim(
        paper="mkor",
        where="T2",
        words="ahead of Inv. Gradients",
        item="mkor/table2",
        rule=Ahead(
            _mkor("table2", "LeNet5", metric="avg SSIM"),
            _mkor("table2", "LeNet5", "Inverting Gradients", "avg SSIM, best of a label"),
            paper=(0.27, 0.13),
        ),
        effort=Effort(images=10),
        because="with labels counted it is as far ahead; the paper's own baseline ends far lower",
    ),
    Claim(
        paper="mkor",
        where="T3",
        words="100 photos at 24.1 dB",
        item="mkor/table3",
        rule=_as_published("table3", "VGG16", DECIBEL),
        effort=Effort(images=10, data="CIFAR-10 for CIFAR-100"),
    ),
    Claim(
        paper="mkor",
        where="T4",
        words="1 000 photos at once",
        item="mkor/table4",
        rule=Each(
            tuple(
                _as_published("table4", setting, DECIBEL)
                for setting in ("VGG16, unique, noise 1e-1", "VGG16, random", "VGG16, random, noise 1e-1")
            )
        ),
        effort=Effort(data="1 000 other photos of ImageNet, one batch"),
    ),
    Claim(
        paper="mkor",
        where="T6",
        words="noise costs .1 dB",
        item="mkor/table6",
        rule=_of_both("table6"),
        effort=Effort(images=10),
    ),
    Claim(
        paper="mkor",
        where="T7",
        words="Soteria costs 2 dB",
        item="mkor/table7",
        rule=_of_both("table7"),
        effort=Effort(images=10),
    ),
    Claim(
        paper="mkor",
        where="F10",
        words="fewer classes, worse",
        item="mkor/figure10",
        rule=Ahead(_mkor("figure10", "100 classes"), _mkor("figure10", "1 classes")),
        effort=Effort(data="CIFAR-10 for CIFAR-100"),
    ),
)

# ROG


def _rog(item: str, setting: str, attack: str = "ROG", further: tuple[str, ...] = ()) -> Quantity:
    return Quantity(f"rog/{item}", setting, attack, "LPIPS, denoised", further)


def _published_rog(item: str, defense: str) -> Published:
    return Published(f"rog/{item}", f"{PAPERS_CLIENT}, {defense} | ROG", "LPIPS, denoised")


def _reaches(item: str, defense: str) -> Within:
    return at_most(_rog(item, f"{PAPERS_CLIENT}, {defense}"), _published_rog(item, defense), SIMILAR)


PAPERS_CLIENT = "128 px, batch 16, τ 5"
SMALL = "CIFAR-10 at 32 px, batch 16, τ 1, none"
FIRST_CLIENT = "128 px, batch 16, τ 1, none"
FLOORS = (
    _rog("figure2", FIRST_CLIENT, "grey picture"),
    _rog("table2", "128 px", "another picture, of another class"),
    _rog("table2", "128 px", "random noise"),
)
"""Of the same sixteen photos, after the post-processor."""

UNDEFENDED = _rog("figure2", f"{PAPERS_CLIENT}, none")


def next_clients(setting: str) -> tuple[str, ...]:
    """Three more clients, of the photos that follow."""
    return tuple(f"{setting}, from photo {first}" for first in (16, 32, 48))


FOUR_CLIENTS = replace(UNDEFENDED, further=next_clients(UNDEFENDED.setting))
FOUR_FLOORS = tuple(
    _rog("figure2", FIRST_CLIENT, name, next_clients(FIRST_CLIENT))
    for name in ("grey picture", "another picture", "random noise")
)

ROG = (
    Claim(
        paper="rog",
        where="F2",
        words="undefended: LPIPS .21",
        item="rog/figure2",
        rule=at_most(FOUR_CLIENTS, _published_rog("figure2", "none"), SIMILAR),
        effort=Effort(steps=500),
        method=POST,
        floor=FOUR_FLOORS,
        floor_lower=True,
        because="after the packaged post-processor the true photos at a quarter of their resolution, which ROG "
        "searches, are no nearer (the truth ↓4 ↑4); the paper's two were trained on ImageNet",
    ),
    Claim(
        paper="rog",
        where="F5",
        words="low-resolution code helps",
        item="rog/figure5",
        rule=Ahead(
            _rog("figure5", SMALL, "ROG, bicubic, d_z 192"),
            _rog("figure5", SMALL, "no projection, squared distance, 300 steps"),
            lower=True,
        ),
        effort=Effort(pixels=(32, 128)),
        method="a pixel search of 300 steps for 20 000; " + POST,
    ),
    Claim(
        paper="rog",
        where="F6",
        words="compression costs <= .05",
        item="rog/figure6",
        rule=Each(
            tuple(
                Ahead(_rog("figure6", f"{PAPERS_CLIENT}, {name}"), UNDEFENDED, lower=True, margin=-SIMILAR)
                for name in ("QSGD, 3 bits", "uniform, 3 bits", "top-k, 95 % zeros")
            )
        ),
        effort=Effort(steps=500),
        because="rounding to the nearest and top-k set small entries to zero",
    ),
    Claim(
        paper="rog",
        where="F7",
        words="signs: LPIPS .35",
        item="rog/figure7",
        rule=_reaches("figure7", "signs"),
        effort=Effort(steps=500),
        method="a gain before the tanh; " + POST,
        floor=FLOORS,
        floor_lower=True,
    ),
    Claim(
        paper="rog",
        where="F8",
        words="Soteria costs nothing",
        item="rog/figure8",
        rule=Ahead(_rog("figure8", f"{PAPERS_CLIENT}, Soteria, 80 %"), UNDEFENDED, lower=True, margin=-SIMILAR),
        effort=Effort(steps=500),
        method=POST,
    ),
    Claim(
        paper="rog",
        where="F8",
        words="PRECODE at .31, unaware",
        item="rog/figure8",
        rule=_reaches("figure8", "PRECODE"),
        effort=Effort(steps=500),
        because="the attack draws noise of its own; one that reads the client's is below",
    ),
    Claim(
        paper="rog",
        where="F8",
        words="PRECODE costs .1, read",
        item="rog/precode",
        rule=Ahead(
            _rog("precode", "CIFAR-10 at 32 px, batch 4, τ 1, PRECODE", "ROG, adapted"),
            _rog("precode", "CIFAR-10 at 32 px, batch 4, τ 1, none"),
            lower=True,
            margin=-2 * SIMILAR,
            paper=(_published_rog("figure8", "PRECODE"), _published_rog("figure2", "none")),
        ),
        effort=Effort(batch=(4, 16), pixels=(32, 128)),
        method="the draws are read first, from one local step",
        floor=tuple(
            _rog("precode", "CIFAR-10 at 32 px, batch 4, τ 1, PRECODE", name)
            for name in ("grey picture", "another picture", "random noise")
        ),
        floor_lower=True,
    ),
    Claim(
        paper="rog",
        where="F9",
        words="LPIPS rises with noise",
        item="rog/figure9",
        rule=Ahead(
            _rog("figure9", f"{PAPERS_CLIENT}, Fed-CDP, -5 dB"),
            _rog("figure9", f"{PAPERS_CLIENT}, Fed-CDP, -20 dB"),
            lower=True,
            paper=(_published_rog("figure9", "Fed-CDP, -5 dB"), _published_rog("figure9", "Fed-CDP, -20 dB")),
        ),
        effort=Effort(steps=500),
        method=POST,
    ),
)

# CI-Net


def _ci(item: str, setting: str, attack: str, metric: str = "SSIM, one to one") -> Quantity:
    return Quantity(f"ci-net/{item}", setting, attack, metric)


NARROW = "ResNet-18 of width 16, batch 4"

CI_NET = (
    Claim(
        paper="ci-net",
        where="T1",
        words="a batch at SSIM .98",
        item="ci-net/batch16",
        rule=at_least(
            _ci("batch16", "ResNet-18 of width 64, batch 16", "CI-Net, 2000 steps", "SSIM"),
            Published("ci-net/table1", "batch 128 | CI-Net", "SSIM"),
            SIMILAR,
        ),
        effort=Effort(batch=(16, 128), steps=5000),
    ),
    Claim(
        paper="ci-net",
        where="T1",
        words="ahead of Inv. Gradients",
        item="ci-net/table1",
        rule=Ahead(
            _ci("table1", NARROW, "CI-Net, 600 steps"),
            _ci("table1", NARROW, "Inverting Gradients, 600 steps"),
            paper=(0.98, 0.16),
        ),
        effort=Effort(batch=(4, 128), steps=5000, width=(16, 64)),
        floor=(_ci("table1", NARROW, "grey picture"),),
    ),
    Claim(
        paper="ci-net",
        where="T2",
        words="256 px at SSIM .52",
        item="ci-net/table2",
        cost="seven weeks of one core",
    ),
    Claim(
        paper="ci-net",
        where="F1",
        words="larger batch, lower SSIM",
        item="ci-net/figure1",
        rule=Ahead(
            _ci("figure1", "ResNet-18 of width 16, batch 2", "CI-Net, 200 steps"),
            _ci("figure1", "ResNet-18 of width 16, batch 8", "CI-Net, 200 steps"),
        ),
        effort=Effort(batch=(8, 128), steps=5000, width=(16, 64)),
    ),
    Claim(
        paper="ci-net",
        where="F4",
        words="wide generator needed",
        item="ci-net/figure4",
        rule=Ahead(
            _ci("figure4", "two convolutions, 4 labels", "CI-Net, 64 channels, 300 steps"),
            _ci("figure4", "two convolutions, 4 labels", "CI-Net, 8 channels, 300 steps"),
        ),
        effort=Effort(width=(64, 512), steps=5000),
    ),
)

CLAIMS: tuple[Claim, ...] = (*INVERTING_GRADIENTS, *QIAN_HANSEN, *MKOR, *ROG, *CI_NET)
"""In the order in which they are printed."""
