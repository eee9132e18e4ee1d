"""Defences of a user's own that hide nothing, undone; and others, which are not said to protect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import leakgauge as lg
from leakgauge.defenses import Defense
from leakgauge.defenses.steps import DefenseStep, Nonlinear
from leakgauge.observation import Knowledge, Observation
from leakgauge.study.judging.results import Level
from leakgauge.task import DataSpec
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import Update, UpdateHeader, UpdateKind
from leakgauge.view.undone import Undone, as_sent, plainer

Act = Callable[[Tensors], Tensors]


def flat(act: Callable[[Tensor], Tensor]) -> Act:
    """An act on all entries in a row."""

    def acted(raw: Tensors) -> Tensors:
        made = act(torch.cat([t.flatten() for t in raw.values()]))
        parts = made.split([t.numel() for t in raw.values()])
        return {k: part.view_as(t) for (k, t), part in zip(raw.items(), parts, strict=True)}

    return acted


def drawn(n: int, seed: int) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotated(v: Tensor) -> Tensor:
    q = torch.linalg.qr(drawn(64 * 64, 1).view(64, 64))[0].to(v)
    return torch.cat([(v[: len(v) // 64 * 64].view(-1, 64) @ q).flatten(), v[len(v) // 64 * 64 :]])


HIDES_NOTHING: dict[str, Act] = {
    "a running sum": flat(lambda v: v.cumsum(0)),
    "a permutation": flat(lambda v: v[drawn(len(v), 2).argsort()]),
    "gains": flat(lambda v: v * (2 * drawn(len(v), 3)).exp().to(v)),
    "noise of a seed that is known": flat(lambda v: v + 5 * drawn(len(v), 4).to(v)),
    "such noise as long as the update": flat(lambda v: v + v.norm() * drawn(len(v), 4).to(v)),
    "a rotation": flat(rotated),
    "logarithms": lambda raw: map_tensors(lambda t: t.sign() * torch.log1p(1e4 * t.abs()), raw),
    "differences": flat(lambda v: torch.cat([v[:1], v.diff()])),
}
UNCLEAR: dict[str, Act] = {
    "a twentieth by size": flat(lambda v: v * (v.abs() >= v.abs().kthvalue(int(0.95 * len(v))).values)),
    "a twentieth by place": flat(lambda v: v * (torch.arange(len(v)) % 20 == 0)),
    "all but each tensor's mean": lambda raw: map_tensors(lambda t: t.mean().expand_as(t), raw),
    "all but the first layer": flat(lambda v: v * (torch.arange(len(v)) < 40 * 24 // 3)),
    "all but a tenth": flat(lambda v: v * (torch.arange(len(v)) % 10 != 0)),
    "each tensor by its largest": lambda raw: map_tensors(lambda t: (t / t.abs().max().clamp_min(1e-30)).half(), raw),
    "a grid without derivatives": flat(lambda v: (v * 3e5).floor() / 2e5),
}


@dataclass(frozen=True, eq=False)
class Own(Defense):
    act: Act

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        return self.act(tensors)

    def steps(self) -> tuple[DefenseStep, ...]:
        return (Nonlinear(how=self.act),)


def seen(act: Act) -> tuple[Observation, Observation, tuple[object, ...]]:
    """An observation of a raw update, that of what a defence makes of it, and that in plainer words."""
    module = torch.nn.Sequential(torch.nn.Linear(40, 24), torch.nn.ReLU(), torch.nn.Linear(24, 5))
    task = lg.Task.of(module, DataSpec((40,), 5))
    raw = {k: drawn(v.numel(), i).view(v.shape).float() / 50 for i, (k, v) in enumerate(task.parameters.items())}
    header = UpdateHeader(UpdateKind.GRADIENT, 1)
    known = Knowledge(example_count=1, local_training=lg.clients.FedSGD(), defense=Own(act))
    sent = {k: t.float() for k, t in act(raw).items()}
    plain, left = plainer(Observation(task, Update(sent, header), known))
    return Observation(task, Update(raw, header), known), plain, left


@pytest.mark.parametrize("name", HIDES_NOTHING)
def test_what_hides_nothing_is_undone_within_the_error_that_is_said(name: str) -> None:
    truth, plain, left = seen(HIDES_NOTHING[name])
    assert left == ()
    defense = plain.knowledge.defense
    assert plain.defended.rounding is not None, defense
    for k, raw in truth.update.tensors.items():
        error = float((plain.update.tensors[k].double() - raw.double()).abs().max())
        width = float(plain.defended.rounding[k])
        assert error <= width + 1e-7 * float(raw.abs().max())
        assert width <= 1e-2 * float(raw.square().mean().sqrt())


@pytest.mark.parametrize("name", UNCLEAR)
def test_what_is_not_undone_is_said_not_to_be_known(name: str) -> None:
    _, plain, left = seen(UNCLEAR[name])
    assert isinstance(plain.knowledge.defense, Own)
    assert [one.opaque for one in left] == [True]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["gains", pytest.param("a running sum", marks=pytest.mark.slow)])
def test_what_hides_nothing_exposes(name: str) -> None:
    """A search through a running sum found 0 of 8, at 16 dB, which stood as protection and passed a gate."""
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 20), torch.nn.ReLU(), torch.nn.Linear(20, 10))
    own = Own(HIDES_NOTHING[name])
    audit = lg.audit(net, lg.data.Samples(size=8), batches=3, defenses=[own], attacks=["closed-form"], identity=name)
    found = [(f.level, f.identified and f.identified.count) for f in audit.verdict.findings if not f.control]
    assert found == [(Level.EXPOSED, 3)]


def test_what_is_not_last_is_not_undone_and_said() -> None:
    truth, _, _ = seen(HIDES_NOTHING["gains"])
    assert truth.knowledge.defense is not None
    both = lg.defenses.Compose((truth.knowledge.defense, lg.defenses.Clip(norm=1e-3)))
    _, left = plainer(replace(truth, knowledge=replace(truth.knowledge, defense=both)))
    assert [one.opaque for one in left] == [True]


def test_who_does_not_know_the_defence_has_the_update_as_it_came() -> None:
    truth, plain, _ = seen(HIDES_NOTHING["gains"])
    assert truth.knowledge.defense is not None
    came = truth.knowledge.defense.on_update(truth.update.tensors, torch.Generator())
    again = as_sent(plain).update.tensors
    assert all(torch.equal(again[k], came[k].float()) for k in came)


def test_a_composition_is_undone_from_its_end() -> None:
    truth, _, _ = seen(HIDES_NOTHING["gains"])
    known, update = truth.knowledge, truth.update
    assert known.defense is not None
    sent = replace(update, tensors=known.defense.on_update(update.tensors, torch.Generator()))
    both = replace(known, defense=lg.defenses.Compose((lg.defenses.Clip(norm=1e6), known.defense)))
    again, left = plainer(Observation(truth.task, sent, both))
    assert left == ()
    assert again.knowledge.defense is not None
    assert [type(part) for part in lg.defenses.parts_of(again.knowledge.defense)] == [lg.defenses.Clip, Undone]
