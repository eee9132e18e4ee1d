"""A FIXTURE report: real photos, made-up "reconstructions" (blurred and noised copies), scores measured on them.

No attack has run here. The numbers agree with the pictures, because PSNR and SSIM are computed from them.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field, replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import skimage
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from skimage.metrics import structural_similarity

from leakgauge.observation import Cost
from leakgauge.report.html import render
from leakgauge.risk.lint import LintFinding, LintSeverity
from leakgauge.study.database import Picture
from leakgauge.study.document import signed
from leakgauge.study.grammar import GateConfig
from leakgauge.study.judging.records import (
    Data,
    LabelScores,
    MeanImage,
    NearestPublic,
    Nulls,
    OtherClients,
    Role,
    Scenario,
    Scores,
    Trial,
)
from leakgauge.study.judging.verdict import Verdict, verdict

PHOTOS = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "rocket.jpg",
    "retina.jpg",
    "ihc.png",
    "hubble_deep_field.jpg",
    "motorcycle_left.png",
)
Pixels = NDArray[np.uint8]


def photo(name: str, size: int = 32) -> Pixels:
    """A photo of scikit-image by path, cut square, at size × size."""
    with Image.open(Path(skimage.__file__).parent / "data" / name) as opened:
        image = opened.convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return np.asarray(image.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BOX))


def spoiled(true: Pixels, blur: float, noise: float, seed: int) -> Pixels:
    """A stand-in for what an attack returns."""
    soft = np.asarray(Image.fromarray(true).filter(ImageFilter.GaussianBlur(blur)), dtype=float)
    grain = np.random.default_rng(seed).normal(0, 255 * noise, soft.shape)
    return np.clip(soft + grain, 0, 255).round().astype(np.uint8)


def png(pixels: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def psnr(a: Pixels, b: Pixels) -> float:
    return float(-10 * np.log10(max(((a / 255 - b / 255) ** 2).mean(), 1e-10)))


@dataclass(frozen=True)
class Case:
    """One finding of the fixture: what was run, and how spoiled its pictures are."""

    attack: str
    defense: str = "none"
    model: str = "lenet"
    client: str = "fedsgd"
    blur: float = 0.5
    noise: float = 0.02
    evaluations: int = 2000
    label_f1: float = 1.0
    status: str = "converged"
    message: str = ""
    control: bool = False
    names: tuple[str, ...] = field(default=PHOTOS)

    @property
    def has_result(self) -> bool:
        return self.status not in ("failed", "not_applicable", "non_finite")

    @property
    def scenario(self) -> Scenario:
        knows = ("example_count", "local_training", "defense")
        return Scenario(
            model=self.model,
            mode="eval",
            server="honest",
            client=self.client,
            defense=self.defense,
            defended=self.defense != "none",
            knowledge=knows,
            data=Data("samples", 32),
        )


EXACT = LintFinding("exact-read", LintSeverity.HIGH, "mlp, fedsgd, none", "reads 1 of 1", "noise")

FEDAVG = "fedavg(epochs=1, batch_size=1, lr=0.01)"
CASES = (
    Case("auto", blur=0.3, noise=0.02, evaluations=400),
    Case("inverting-gradients", blur=0.8, noise=0.08, evaluations=2000),
    Case("closed-form", model="mlp", blur=0.0, noise=0.0, evaluations=0, status="exact"),
    Case("auto", client=FEDAVG, blur=0.4, noise=0.04, evaluations=500, status="out_of_budget"),
    Case(
        "auto",
        model="convnet",
        blur=1.5,
        noise=0.16,
        evaluations=900,
        label_f1=0.75,
        status="out_of_steps",
    ),
    Case("auto", defense="noise(relative=0.01)", blur=1.2, noise=0.1, evaluations=600, label_f1=1.0),
    Case("auto", defense="noise(relative=0.03)", blur=2.0, noise=0.22, evaluations=600, label_f1=0.88),
    Case(
        "auto",
        defense="noise(relative=0.1)",
        blur=4.0,
        noise=0.6,
        evaluations=600,
        label_f1=0.25,
    ),
    Case(
        "dlg",
        defense="noise(relative=0.1)",
        blur=6.0,
        noise=0.8,
        evaluations=1800,
        label_f1=0.12,
    ),
    Case(
        "auto",
        defense="topk(keep=0.05)",
        blur=2.2,
        noise=0.2,
        evaluations=700,
        label_f1=0.62,
        names=PHOTOS[:3],
    ),
    Case(
        "closed-form",
        model="convnet",
        status="not_applicable",
        message="closed-form needs a biased linear layer at the input; convnet begins with a convolution",
    ),
    Case(
        "dlg",
        defense="topk(keep=0.05)",
        status="failed",
        message="line search failed: 8 of 8 restarts diverged",
    ),
    Case("auto", model="mlp", blur=0.1, noise=0.005, evaluations=80, control=True, names=PHOTOS[:2]),
)


def _trial(case: Case, index: int, name: str, public: list[Pixels]) -> tuple[Trial, list[Picture]]:
    true, seed = photo(name), index + 10 * CASES.index(case) if case in CASES else index
    made = spoiled(true, case.blur, case.noise, seed)
    others = [p for p in public if not np.array_equal(p, true)]
    mean = np.mean(others, axis=0).astype(np.uint8)
    rank = 1 + sum(psnr(made, o) > psnr(made, true) for o in others)
    nearest = NearestPublic((max(psnr(o, true) for o in others),))
    short = case.client.split("(")[0]
    scenario = case.scenario
    trial = Trial(
        id=f"{case.model}/{short}/{case.defense}/{case.attack}/s0/b{index}{'/control' if case.control else ''}",
        scenario=replace(scenario, data=replace(scenario.data, index=index, names=(name,))),
        attack=case.attack,
        role=Role.RECIPE,
        base="",
        seed=0,
        control=case.control,
        status=case.status,
        message=case.message,
        blind="",
        scores=None,
        labels=None,
        controls=Nulls(MeanImage((psnr(mean, true),), 0), nearest, OtherClients((8.0,) * 7, (0,) * 7, (0,) * 7)),
        restarts=(),
        trace=(),
        cost=Cost(),
    )
    if not case.has_result:
        return trial, []
    quality = psnr(made, true)
    seen = rank == 1 and quality > 12
    scores = Scores(
        psnr=(quality,),
        ssim=(float(structural_similarity(made, true, channel_axis=2, data_range=255)),),
        mse=(10 ** (-quality / 10),),
        rank=(rank,),
        identified=(seen,),
        recovered=(seen,),
        exact=(case.noise == 0,),
        certified=0,
        gallery=100,
        whole=100,
    )
    evaluations = case.evaluations + 7 * index * (case.evaluations > 0)
    labels = LabelScores(case.label_f1, 0.1, 0.1, 0.97, known=False)
    trial = replace(trial, scores=scores, labels=labels, cost=Cost(evaluations, case.evaluations / 130))
    return trial, [Picture(name=name, slot=0, original=png(true), reconstruction=png(made))]


@dataclass(frozen=True)
class Fixture:
    """What a page is made of."""

    told: dict[str, Any]
    verdict: Verdict
    trials: tuple[Trial, ...]
    pictures: dict[str, list[Picture]]

    @property
    def html(self) -> str:
        return render(self.told, self.verdict, self.trials, self.pictures)


def fixture(cases: tuple[Case, ...] = CASES) -> Fixture:
    """An audit as a page is given it."""
    public = [photo(name) for name in PHOTOS]
    made = [_trial(case, i, name, public) for case in cases for i, name in enumerate(case.names)]
    trials = tuple(sorted((trial for trial, _ in made), key=lambda t: t.id))
    pictures = {trial.id: shown for trial, shown in made if shown}
    told: dict[str, Any] = {
        "schema_version": 1,
        "leakgauge_version": "0.1.0",
        "created_at": "2026-11-21T04:05:00Z",
        "counts_only": False,
        "config": {
            "name": "fixture-report",
            "model": "lenet",
            "data": {"source": "samples", "size": 32, "batch": 1, "batches": 8},
            "clients": ["fedsgd", {"fedavg": {"epochs": 1, "batch_size": 1, "lr": 0.01}}],
            "defenses": ["none", {"noise": {"relative": 0.01}}],
            "attacks": ["auto", "dlg"],
            "seeds": [0],
            "gate": {"identified": {"max": 0.05}, "psnr": {"worst": 18}},
        },
        "environment": {"python": "3.11.2", "torch": "2.13.0", "platform": "Linux x86_64", "threads": 1, "workers": 2},
    }
    gate = GateConfig.model_validate(told["config"]["gate"])
    judged = verdict(trials, gate)
    told["decision"] = signed(judged, told["config"] | {"gate": gate}, {"data": "42b8c983"}, [EXACT])
    return Fixture(told, judged, trials, pictures)


def text_of(html: str) -> str:
    """What a reader sees, spaces made one."""
    bare = re.sub(r"<(style|script)\b.*?</\1>|<svg.*?</svg>|<[^>]+>", " ", html, flags=re.S)
    return re.sub(r"\s+", " ", unescape(bare)).strip()
