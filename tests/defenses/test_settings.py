"""Strengths that no defence can have, each refused in one line that names its field."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from torch import nn

from cases import task
from leakgauge.defenses import (
    DPSGD,
    QSGD,
    ClientDP,
    Clip,
    ClipExamples,
    Compose,
    FedCDP,
    InstaHide,
    MixUp,
    Precode,
    Prune,
    Quantise,
    RandomK,
    TopK,
    laplace,
    noise,
)
from leakgauge.errors import InputError
from leakgauge.task import Task

NAN, INF = math.nan, math.inf
ODD: dict[str, list[Callable[[], object]]] = {
    "norm": [
        lambda: Clip(norm=0.0),
        lambda: ClipExamples(norm=-1.0),
        lambda: ClientDP(noise_multiplier=1.0, norm=-1.0),
        lambda: DPSGD(noise_multiplier=1.0, norm=0.0),
        lambda: DPSGD(noise_multiplier=1.0, norm=INF),
        lambda: FedCDP(noise_multiplier=1.0, norm=0.0),
        lambda: QSGD(norm=0.5),
    ],
    "noise_multiplier": [
        lambda: ClientDP(noise_multiplier=0.0, norm=1.0),
        lambda: DPSGD(noise_multiplier=0.0, norm=1.0),
        lambda: DPSGD(noise_multiplier=-1.0, norm=1.0),
        lambda: FedCDP(noise_multiplier=0.0),
        lambda: FedCDP(noise_multiplier=INF),
    ],
    "snr": [lambda: FedCDP(snr=1e5), lambda: FedCDP(snr=-INF), lambda: FedCDP(snr=NAN)],
    "level": [lambda: FedCDP(), lambda: FedCDP(noise_multiplier=1.0, snr=0.0)],
    "sigma": [lambda: noise(sigma=-1.0), lambda: noise(), lambda: laplace(sigma=0.0), lambda: laplace()],
    "sigma and relative": [lambda: noise(sigma=1.0, relative=1.0), lambda: laplace(sigma=1.0, relative=1.0)],
    "relative": [lambda: noise(relative=0.0)],
    "tensor_std": [lambda: noise(tensor_std=-0.1)],
    "keep": [make for k in (0.0, -0.1, 1.1) for make in (lambda k=k: TopK(keep=k), lambda k=k: RandomK(keep=k))],
    "rate": [lambda r=r: Prune(rate=r) for r in (0.0, 1.0, -0.5, 90.0)],
    "levels": [lambda: Quantise(levels=0), lambda: QSGD(levels=0), lambda: Quantise(levels=-1)],
    "alpha": [lambda a=a: MixUp(alpha=a) for a in (0.0, -1.0, NAN)],
    "k": [lambda: InstaHide(k=0)],
    "largest": [lambda: InstaHide(k=2, largest=0.5), lambda: InstaHide(k=8, largest=0.126)],
    "centre": [lambda c=c: InstaHide(centre=c).on_task(task("relu")) for c in ((0.5,), (0.4, 0.5))],
    "size": [lambda: Precode(size=0)],
    "beta": [lambda: Precode(beta=-1.0), lambda: Precode(beta=NAN)],
    "layer": [lambda: Precode(layer="nowhere").on_task(task("flat"))],
    "model": [lambda: Precode().on_task(Task.of(nn.Sequential(nn.Conv2d(3, 5, 8), nn.Flatten()), task().data))],
    "defenses": [lambda: Compose(())],
}


@pytest.mark.parametrize("field", ODD)
def test_an_impossible_strength_is_refused_by_its_name(field: str) -> None:
    for make in ODD[field]:
        with pytest.raises(InputError) as error:
            make()
        assert error.value.field == field
        assert "\n" not in str(error.value)
