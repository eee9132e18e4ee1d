"""A plan of objects: a module, tensors and parts given from Python are what a plan in YAML stands for."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from leakgauge.attacks.closed_form import LinearRead
from leakgauge.attacks.recipes import inverting_gradients
from leakgauge.clients import FedAvg, FedSGD
from leakgauge.data import InMemory
from leakgauge.defenses import NoDefense, noise
from leakgauge.errors import InputError
from leakgauge.models import mlp
from leakgauge.registry import ATTACKS, CLIENTS, DEFENSES
from leakgauge.resolve import label_of, resolve
from leakgauge.study.plan import resolve_plan
from leakgauge.study.run import run


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return mlp(shape=(3, 8, 8), hidden=(8,), classes=4)


def examples(count: int = 120) -> InMemory:
    inputs = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    return InMemory(inputs=inputs, labels=torch.arange(count) % 4)


def plan(**changes: Any) -> dict[str, Any]:
    data = {"source": examples(), "batch": 1, "batches": 2}
    parts = {"clients": [FedSGD()], "defenses": [NoDefense()], "attacks": [LinearRead()]}
    return {"name": "own", "model": net(), "data": data, "gallery": 20, "identity": "own", **parts, **changes}


def test_a_module_and_tensors_of_ones_own_are_audited(tmp_path: Path) -> None:
    store = run(resolve_plan(plan()), tmp_path / "out")
    records = list(store.each())
    store.close()
    own = [r for r in records if not r["control"]]
    assert {r["status"] for r in own} == {"exact"}
    assert {r["scenario"]["data"]["source"] for r in own} == {"memory"}
    again = run(resolve_plan(plan()), tmp_path / "out")  # the same contents: nothing left to do
    assert list(again.each()) == records
    again.close()
    with pytest.raises(InputError, match="model"):
        run(resolve_plan(plan(model=net(1))), tmp_path / "out")


SEEN = ContextVar("seen", default=None)

BOUND: dict[str, Callable[[nn.Module], object]] = {
    "no hook": lambda _: None,
    "a hook with a lock": lambda layer: layer.register_forward_hook(_told(threading.Lock())),
    "a hook with a generator": lambda layer: layer.register_forward_hook(_told(iter(i for i in range(3)))),
    "a hook that asks its context": lambda layer: layer.register_forward_hook(lambda *_: SEEN.get()),
}
"""What is done to a network, which no other process can have then."""


def _told(held: object) -> Callable[..., None]:
    def hook(*_: object) -> None:
        repr(held)

    return hook


@pytest.mark.parametrize("bound", BOUND)
def test_what_no_other_process_can_have_is_audited_in_this_one(tmp_path: Path, bound: str) -> None:
    def audited(which: str, bind: Callable[[nn.Module], object]) -> tuple[list[Any], dict[str, Any]]:
        bind(own := net())
        store = run(resolve_plan(plan(model=own)), tmp_path / which)
        records, told = list(store.each()), json.loads(store.audit.environment)
        store.close()
        return [r | {"id": "", "cost": r["cost"] | {"seconds": 0}} for r in records], told

    plain, first = audited("plain", lambda _: None)
    found, told = audited("bound", BOUND[bound])
    assert found == plain
    assert "processes" not in first
    assert ("no trial's time is limited" in told.get("processes", "")) == (bound != "no hook")


def test_objects_mean_what_their_names_mean() -> None:
    named = [
        (CLIENTS, {"fedavg": {"lr": 0.05, "epochs": 2}}, FedAvg(lr=0.05, epochs=2)),
        (DEFENSES, "none", NoDefense()),
        (ATTACKS, "closed-form", LinearRead()),
    ]
    for registry, spec, value in named:
        assert resolve(registry, spec, "part").value == resolve(registry, value, "part").value == value
    assert label_of(CLIENTS, FedAvg(lr=0.05, epochs=2)) == "local-training(optimiser=sgd(lr=0.05), epochs=2)"
    assert resolve(DEFENSES, {"loud": noise(relative=3.0)}, "defenses[0]").label == "loud"
    assert resolve(ATTACKS, {"ig": inverting_gradients(steps=5)}, "attacks[0]").label == "ig"


def test_what_is_no_part_is_named() -> None:
    for registry, value in ((ATTACKS, FedSGD()), (CLIENTS, NoDefense()), (DEFENSES, LinearRead())):
        with pytest.raises(InputError, match=r"parts\[0\]"):
            resolve(registry, value, "parts[0]")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"labels": torch.arange(3)}, "labels"),
        ({"inputs": torch.full((4, 3, 8, 8), torch.nan)}, "inputs"),
        ({"inputs": torch.full((4, 3, 8, 8), 2.0)}, "inputs"),
        ({"labels": torch.tensor([0, 1, 2, 9]), "count": 4}, "labels"),
    ],
)
def test_examples_that_cannot_be_used_are_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=field):
        InMemory(**{"inputs": torch.rand(4, 3, 8, 8), "labels": torch.arange(4), **changes})
