"""The table of cases that the contracts run through: small, fast, one of each kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.clients import SGD, Adam, FedAvg, FedSGD, LocalTraining, Protocol, SecureAggregation, adamw
from leakgauge.defenses import (
    QSGD,
    Clip,
    ClipExamples,
    Compose,
    Defense,
    NoDefense,
    Prune,
    Quantise,
    RandomK,
    Sign,
    Soteria,
    TopK,
    laplace,
    noise,
)
from leakgauge.defenses.dp import DPSGD, ClientDP, ClipLayers, FedCDP
from leakgauge.defenses.representations import InstaHide, MixUp, Precode
from leakgauge.task import Batch, DataSpec, Mode, Task

SPEC = DataSpec((3, 8, 8), 5, mean=(0.4, 0.5, 0.6), std=(0.25, 0.2, 0.3))


def smooth() -> nn.Module:
    """A LeNet in small, weights U(−.5, .5)."""
    net = nn.Sequential(nn.Conv2d(3, 8, 5, 2, 2), nn.Sigmoid(), nn.Flatten(), nn.Linear(128, 5))
    for parameter in net.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return net


def relu() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 5))


def normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))


def tabular() -> nn.Module:
    """BatchNorm over the batch alone: in train mode it refuses one example."""
    first = (nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16))
    return nn.Sequential(*first, nn.ReLU(), nn.Linear(16, 5))


def dropped() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Sigmoid(), nn.Dropout(0.5), nn.Linear(16, 5))


def flat() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 5))


def unbiased() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 12, bias=False), nn.ReLU(), nn.Linear(12, 5, bias=False))


class Patched(nn.Module):
    """A vision transformer's first layers: four patches, a learned place for each."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.head = nn.Conv2d(3, 16, 4, 4), nn.Linear(16, 5)
        self.place = nn.Parameter(0.1 * torch.randn(1, 4, 16))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.cut(x).flatten(2).transpose(1, 2) + self.place).mean(1))
        return out


class Same(torch.autograd.Function):
    """In the form that most code has, without a `setup_context`: nothing of `torch.func` takes it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        del ctx
        return slopes[0]


class Passed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = Same.apply(x)  # type: ignore[no-untyped-call]
        return out


MODELS: dict[str, Callable[[], nn.Module]] = {
    "smooth": smooth,
    "relu": relu,
    "normed": normed,
    "tabular": tabular,
    "dropped": dropped,
    "flat": flat,
    "unbiased": unbiased,
    "patched": Patched,
}


@lru_cache(maxsize=32)
def task(model: str = "smooth", mode: Mode = Mode.EVAL, dtype: torch.dtype = torch.float64, seed: int = 0) -> Task:
    """One for all tests, which change none: it is so looked at once."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Task.of(MODELS[model]().to(dtype), SPEC, mode=mode)


def batch(n: int = 4, dtype: torch.dtype = torch.float64, seed: int = 1) -> Batch:
    g = torch.Generator().manual_seed(seed)
    inputs = torch.rand((n, *SPEC.shape), generator=g, dtype=torch.float64).to(dtype)
    return Batch(inputs, torch.randint(SPEC.classes, (n,), generator=g))


PROTOCOLS: tuple[Protocol, ...] = (
    FedSGD(),
    FedAvg(epochs=2, batch_size=3, lr=0.1),
    FedAvg(epochs=2, batch_size=2, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01, shuffle=True),
    SecureAggregation(cohort=2),
    SecureAggregation(cohort=2, client=FedAvg(epochs=2, lr=0.1), sizes=(1, 3)),
    LocalTraining(optimiser=Adam(lr=0.01), epochs=2, batch_size=3),
    LocalTraining(optimiser=adamw(lr=0.01), batch_size=2, shuffle=True, clip=0.1),
    LocalTraining(optimiser=SGD(lr=0.1, momentum=0.9), epochs=2, batch_size=1, accumulate=3, proximal=0.1, clip=1.0),
)
COHORTS = tuple(p for p in PROTOCOLS if isinstance(p, SecureAggregation))


@dataclass(frozen=True)
class DefenseCase:
    """A defence, whether its effect is fixed by the raw update alone, and else whether the update shows the draw."""

    defense: Defense
    deterministic: bool = True
    shown: bool = False


DEFENSES: tuple[DefenseCase, ...] = (
    DefenseCase(NoDefense()),
    DefenseCase(Clip(norm=0.1)),
    DefenseCase(ClipExamples(norm=0.1)),
    DefenseCase(TopK(keep=0.1)),
    DefenseCase(noise(sigma=0.01), deterministic=False),
    DefenseCase(noise(relative=0.1), deterministic=False),
    DefenseCase(noise(tensor_std=0.1), deterministic=False),
    DefenseCase(Compose((Clip(norm=0.1), noise(sigma=0.01))), deterministic=False),
    DefenseCase(Compose((noise(relative=0.1), TopK(keep=0.2), Clip(norm=0.05))), deterministic=False),
    DefenseCase(Compose((TopK(keep=0.2), noise(relative=0.1))), deterministic=False),
    DefenseCase(Compose((ClipExamples(norm=0.1), TopK(keep=0.2)))),
    DefenseCase(Soteria(prune=30.0)),
    DefenseCase(DPSGD(noise_multiplier=1.0, norm=0.5), deterministic=False),
    DefenseCase(ClipLayers(norm=0.1)),
    DefenseCase(FedCDP(noise_multiplier=0.1, norm=0.5), deterministic=False),
    DefenseCase(FedCDP(snr=0.0, norm=0.1), deterministic=False),
    DefenseCase(ClientDP(noise_multiplier=0.1, norm=0.2), deterministic=False),
    DefenseCase(Compose((DPSGD(noise_multiplier=0.5, norm=0.5), TopK(keep=0.2))), deterministic=False),
    DefenseCase(Compose((Soteria(prune=50.0), TopK(keep=0.2)))),
    DefenseCase(Precode(size=6), deterministic=False),
    DefenseCase(MixUp(), deterministic=False),
    DefenseCase(InstaHide(k=2, centre=SPEC.mean), deterministic=False),
    DefenseCase(Compose((MixUp(), Precode(size=6), noise(relative=0.1), TopK(keep=0.2))), deterministic=False),
    DefenseCase(Quantise(levels=3)),
    DefenseCase(QSGD(levels=3), deterministic=False),
    DefenseCase(QSGD(levels=7, norm=2.0), deterministic=False),
    DefenseCase(Sign()),
    DefenseCase(Sign(scaled=True)),
    DefenseCase(RandomK(keep=0.2), deterministic=False, shown=True),
    DefenseCase(RandomK(keep=0.2, unbiased=True), deterministic=False, shown=True),
    DefenseCase(Prune(rate=0.9)),
    DefenseCase(laplace(sigma=0.01), deterministic=False),
    DefenseCase(laplace(tensor_std=0.1), deterministic=False),
    DefenseCase(Compose((TopK(keep=0.2), Quantise(levels=3)))),
    DefenseCase(Compose((RandomK(keep=0.5), QSGD(levels=3))), deterministic=False),
    DefenseCase(Compose((Prune(rate=0.5), noise(sigma=0.01))), deterministic=False),
)
