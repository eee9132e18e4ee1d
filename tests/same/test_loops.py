"""One gradient however the client's loop is written: the same reading from every update that is known to hold one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import pytest
import torch
from torch import nn

from leakgauge.clients import SGD, FedAvg, FedSGD, LocalTraining, SecureAggregation, client_update
from leakgauge.clients.optimisers import OptimiserState
from leakgauge.clients.protocol import GradientRule, GradientSum, Protocol
from leakgauge.draws import Draws
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import UpdateKind
from same.readings import DEFENSES, SPEC, Perceptron, Reading, Weights, attacked, cells, pictures, unlike
from same.spellings import linear

LR = 0.1


@dataclass(frozen=True, kw_only=True)
class OwnSGD(SGD):
    """Somebody's subclass, which changes nothing."""


@dataclass(frozen=True, kw_only=True)
class Plain:
    """An optimiser of one's own: a step down the gradient."""

    lr: float = LR
    rescales_entries: ClassVar[bool] = False

    def with_rate(self, lr: float) -> Plain:
        return Plain(lr=lr)

    def step(self, gradient: Tensors, parameters: Tensors, state: OptimiserState) -> tuple[Tensors, OptimiserState]:
        moved = map_tensors(lambda p, g: p - self.lr * g, parameters, gradient)
        return moved, OptimiserState(state.steps + 1, state.moments)


@dataclass(frozen=True)
class OwnFedSGD(FedSGD):
    """Somebody's subclass, which changes nothing."""


@dataclass(frozen=True)
class Negative(Protocol):
    """A protocol of one's own: what goes over the wire is a step of fixed length."""

    @property
    def kind(self) -> UpdateKind:
        return UpdateKind.DELTA

    def local_training(self, task: Task, batch: Batch, draws: Draws, gradient: GradientRule) -> tuple[Tensors, Tensors]:
        found, buffers = FedSGD().local_training(task, batch, draws, gradient)
        return map_tensors(lambda g: -LR * g, found), buffers

    def steps(self, examples: int) -> int:
        return 1

    def linear(self, examples: int) -> GradientSum:
        return GradientSum((-LR,), (examples,))


def local(**settings: object) -> LocalTraining:
    return LocalTraining(optimiser=SGD(lr=LR), **settings)  # type: ignore[arg-type]


def loops(n: int) -> dict[str, Protocol]:
    """For `n` examples: loops whose update is one mean gradient, to a known factor and a known decay."""
    return {
        "fedsgd, a subclass": OwnFedSGD(),
        "fedavg": FedAvg(lr=LR),
        "fedavg, all in one minibatch": FedAvg(lr=LR, batch_size=n),
        "fedavg, a large minibatch": FedAvg(lr=LR, batch_size=64),
        "fedavg, shuffled": FedAvg(lr=LR, shuffle=True),
        "fedavg, small steps": FedAvg(lr=1e-3),
        "momentum": FedAvg(lr=LR, momentum=0.9),
        "dampening": FedAvg(lr=LR, momentum=0.9, dampening=0.5),
        "nesterov": FedAvg(lr=LR, momentum=0.9, nesterov=True),
        "decay": FedAvg(lr=LR, weight_decay=5e-4),
        "momentum and decay": FedAvg(lr=LR, momentum=0.9, weight_decay=5e-4),
        "nesterov and decay": FedAvg(lr=LR, momentum=0.9, nesterov=True, weight_decay=5e-4),
        "local training": local(),
        "an optimiser's subclass": LocalTraining(optimiser=OwnSGD(lr=LR)),
        "an optimiser of one's own": LocalTraining(optimiser=Plain()),
        "a protocol of one's own": Negative(),
        "accumulated": local(batch_size=1, accumulate=n),
        "accumulated, more than there are": local(batch_size=1, accumulate=8),
        "proximal": local(proximal=0.1),
        "clipped far above": local(clip=1e9),
        "clipped": local(clip=0.1),
        "drop last": local(batch_size=n, drop_last=True),
        "local nesterov and decay": LocalTraining(optimiser=SGD(lr=LR, momentum=0.9, nesterov=True, weight_decay=5e-4)),
        "cohort of one": SecureAggregation(cohort=1),
        "cohort of one, fedavg": SecureAggregation(cohort=1, client=FedAvg(lr=LR)),
        "cohort of one in a cohort of one": SecureAggregation(cohort=1, client=SecureAggregation(cohort=1)),
        "cohort of all": SecureAggregation(cohort=n),
        "cohort of all, fedavg": SecureAggregation(cohort=n, client=FedAvg(lr=LR)),
    }


LOOPS = tuple(loops(1))
OWN_EACH = ("cohort of all", "cohort of all, fedavg")
"""Where a defence acts on each example for itself."""


@cache
def net() -> nn.Module:
    weights = Weights.drawn()
    return Perceptron(linear(*weights.first), linear(*weights.head))


@cache
def plain(examples: int, defense: str) -> Reading:
    return attacked(net(), pictures(examples), client=FedSGD(), defense=DEFENSES[defense])


@pytest.mark.parametrize("defense", ["none", "clip"])
@pytest.mark.parametrize(("name", "examples"), cells(LOOPS, fast={1: 1, 4: 4}))
def test_a_loop_is_read(name: str, defense: str, examples: int) -> None:
    if name in OWN_EACH and defense != "none":
        pytest.skip("each of them clips for itself")
    found = attacked(net(), pictures(examples), client=loops(examples)[name], defense=DEFENSES[defense])
    assert not unlike(found, plain(examples, defense))


@pytest.mark.parametrize("name", LOOPS)
def test_loops_take_one_step(name: str) -> None:
    """What goes over the wire is a multiple of the gradient, but for decay."""
    if "decay" in name:
        pytest.skip("moves the parameters too")
    task, batch = Task.of(net(), SPEC), pictures(4)
    one, other = (
        torch.cat([v.flatten() for v in client_update(task, c, batch, Draws(1)).tensors.values()]).double()
        for c in (loops(4)[name], FedSGD())
    )
    cosine = torch.nn.functional.cosine_similarity(one, other, 0).abs()
    assert float(cosine) > 1 - 1e-6
