"""What the view does not understand is said by every attack, the lint and a flag; of ordinary networks nothing is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakgauge import models
from leakgauge.attacks.closed_form import LinearRead
from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget, Compute
from leakgauge.defenses import Defense, Quantise
from leakgauge.draws import Draws
from leakgauge.observation import VIEW, Knowledge, Observation, Status, Tried
from leakgauge.study.judging.records import Trial, read_trial, record_of
from leakgauge.study.judging.results import Flag
from leakgauge.study.judging.verdict import verdict
from leakgauge.study.lint import lint_plan
from leakgauge.study.plan import resolve_plan
from leakgauge.study.trial import attempt
from leakgauge.task import Batch, DataSpec, Mode, Task
from leakgauge.view.normal import look_at, looked
from study.trials import POWER, judged, quiet, trial
from view.test_graph import NETWORKS, Spelt

SPEC, UNITS = DataSpec((3, 8, 8), 10), 12
WIDE = (UNITS, 192)


def few(s: nn.Module, x: Tensor) -> Tensor:
    """A network that cannot be traced, which takes five examples at the least."""
    if len(x) > 4:
        raise MemoryError("at most 4 examples")
    return F.linear(x, s.w)


def convolved(s: nn.Module, x: Tensor) -> Tensor:
    """By Fourier transforms, whose gradient writes in place."""
    return torch.fft.irfft(torch.fft.rfft(x[:, None]) * torch.fft.rfft(s.w), n=192)[..., 0]


USED = "parameter `w` is used in a way that is not understood"
OPAQUE: dict[str, tuple[Callable[[nn.Module, Tensor], Tensor], str]] = {
    "a distance": (lambda s, x: torch.cdist(x, s.w, p=1.5), USED),
    "Fourier transforms": (convolved, USED),
    "refuses": (few, "the network's gradient could not be followed (MemoryError: at most 4 examples)"),
}


def opaque(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Spelt(OPAQUE[name][0], WIDE)
        net.head = nn.Linear(UNITS, 10)
        del net.b
        return net


def seen(task: Task, defense: Defense | None = None) -> Observation:
    g = torch.Generator().manual_seed(1)
    batch = Batch(torch.rand((2, *task.data.shape), generator=g), torch.arange(2))
    given = {} if defense is None else {"defense": defense}
    sent = client_update(task, FedSGD(), batch, Draws(3), **given)
    return Observation(task, sent, Knowledge(example_count=2, local_training=FedSGD(), defense=defense))


def of_view(tried: Sequence[Tried]) -> list[Tried]:
    return [one for one in tried if one.name == VIEW]


@pytest.mark.parametrize("name", OPAQUE)
def test_attacks_the_lint_and_a_flag_say_what_is_not_understood(name: str) -> None:
    """All were silent, and a search that found nothing was a calm verdict."""
    observation, g, why = seen(Task.of(opaque(name), SPEC)), torch.Generator(), OPAQUE[name][1]
    by_name = attempt(LinearRead(), observation, g.manual_seed(0), Budget(), Compute())
    of_all = Auto().reconstruct(observation, g.manual_seed(0), budget=Budget(6))
    for found in (by_name, of_all):
        (one,) = of_view(found.tried)
        assert one.opaque
        assert one.why.startswith(why)

    plan = resolve_plan({"model": opaque(name), "data": {"source": "samples", "size": 8, "batch": 2, "batches": 1}})
    (finding,) = [f for f in lint_plan(plan) if f.rule == "network-not-understood"]
    assert finding.evidence.startswith(why)

    tried = of_all.tried
    calm = [*POWER, *(replace(t, tried=tried) for t in quiet(20))]
    said = f"{of_view(of_all.tried)[0].why}, in 20 of 20 trials: finding nothing says little"
    assert flags(calm) == {Flag("NotUnderstood", said)}
    assert not judged(calm).passed
    assert judged([*POWER, *quiet(20)]).passed


def flags(trials: Sequence[Trial]) -> set[object]:
    (found,) = [f for f in verdict(trials, None).findings if f.scenario.defense == "d" and not f.control]
    return {f for f in found.flags if f.kind == "NotUnderstood"}


def test_what_is_exposed_needs_no_flag_and_records_keep_it() -> None:
    told = (Tried(VIEW, Status.FAILED, USED, False, True),)
    exposed = [replace(trial(i, 30.0, identified=True, defense="d"), tried=told) for i in range(8)]
    assert flags([*POWER, *exposed]) == set()
    assert read_trial(record_of(exposed[0])).tried == told


class Tied(nn.Module):
    """An unused layer, one that is used twice, and a slope for each unit."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.idle, self.slope, self.head = (
            nn.Linear(192, 192),
            nn.Linear(3, 3),
            nn.PReLU(192),
            nn.Linear(192, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.slope(self.one(self.one(x.flatten(1)))))
        return out


def normed() -> nn.Module:
    inside = [nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.3), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*inside, nn.LayerNorm(54), nn.Linear(54, 10))


def spectral() -> nn.Module:
    first = nn.utils.parametrizations.spectral_norm(nn.Linear(192, UNITS))
    return nn.Sequential(nn.Flatten(), first, nn.GELU(), nn.Linear(UNITS, 10))


ORDINARY = {
    **NETWORKS,
    "ResNet-20 in train mode": (lambda: models.resnet20(classes=10, width=8), SPEC, Mode.TRAIN),
    "norms and dropout in train mode": (normed, SPEC, Mode.TRAIN),
    "unused, used twice, slopes": (Tied, SPEC, Mode.EVAL),
    "spectral_norm in train mode": (spectral, SPEC, Mode.TRAIN),
}


LONG = "unused, used twice, slopes"  # a layer that no gradient determines takes half a minute


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == LONG else n for n in ORDINARY])
def test_of_ordinary_networks_nothing_is_said(name: str) -> None:
    network, data, mode = ORDINARY[name]
    assert look_at(Task.of(network(), data, mode=mode)).obstacles == ()


def test_nothing_is_looked_at_that_nobody_asked_for() -> None:
    task = Task.of(opaque("a distance"), SPEC)
    assert seen(task).not_understood == ()
    assert looked(task) is None


def test_a_defence_that_is_not_carried_over_is_said_and_is_no_failure() -> None:
    """A rounded update cannot be carried over to a weight that is computed from others."""
    first = nn.utils.parametrizations.weight_norm(nn.Linear(192, UNITS))
    task = Task.of(nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(UNITS, 10)), SPEC)
    for defense, said in ((None, []), (Quantise(levels=255), [False])):
        observation = seen(task, defense)
        assert (observation.view is observation) == bool(said)
        assert [one.opaque for one in observation.not_understood] == said
