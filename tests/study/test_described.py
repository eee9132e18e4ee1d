"""Objects that act differently are told apart: results of one must not be taken for those of another."""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.attacks.closed_form import LinearRead
from leakgauge.data import InMemory
from leakgauge.defenses import Defense
from leakgauge.errors import InputError
from leakgauge.models import mlp
from leakgauge.observation import Known
from leakgauge.study.dealt import Selection
from leakgauge.study.described import described
from leakgauge.study.run import run
from leakgauge.study.written import resolve_plan
from leakgauge.task import Mode
from leakgauge.tensors import Tensors


class Loud(Defense):
    """Keeps its strength to itself, as classes do."""

    def __init__(self, sigma: float) -> None:
        self._sigma = sigma

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        return {k: t + self._sigma * torch.randn(t.shape, generator=generator) for k, t in tensors.items()}


class Slotted:
    __slots__ = ("strength",)

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.strength * F.cross_entropy(logits, labels)


class Holder:
    """Of a part that knows its owner."""

    def __init__(self, value: object) -> None:
        self._value, self._self = value, self


def weighted(logits: Tensor, labels: Tensor, *, by: float = 1.0) -> Tensor:
    return by * F.cross_entropy(logits, labels)


def steps(source: str) -> type:
    """A class as a notebook's cell defines it, and defines it anew."""
    cell: dict[str, Any] = {"Defense": Defense, "__name__": "__main__"}
    exec(source, cell)
    made: type = cell["Mine"]
    return made


CELL = "STRENGTH = 2.0\nclass Mine(Defense):\n    def on_update(self, tensors, generator):\n        return {}\n"
CELL_OF_A_HELPER = "def by(): return 2.0\n" + CELL.replace("{}", "by()")


def hooked(by: float) -> nn.Module:
    net = nn.Linear(2, 2, bias=False)
    nn.init.ones_(net.weight)
    net.register_forward_hook(lambda *given: by * given[2])
    return net


def partly_frozen(frozen: bool) -> nn.Module:
    net = nn.Linear(2, 2)
    nn.init.ones_(net.weight).requires_grad_(not frozen)
    nn.init.ones_(net.bias)
    return net


DIFFERENT: dict[str, tuple[object, object]] = {
    "modes": (Mode.EVAL, Mode.TRAIN),
    "knowledge": (Known.DEFENSE, Known.DRAWS),
    "selections": (Selection(models=frozenset({0})), Selection(models=frozenset({1}))),
    "private members": (Loud(1.0), Loud(0.0)),
    "slots": (Slotted(1.0), Slotted(2.0)),
    "methods of two objects": (Slotted(1.0).loss, Slotted(2.0).loss),
    "bound arguments": (functools.partial(weighted, by=1.0), functools.partial(weighted, by=2.0)),
    "arrays": (np.zeros(2), np.ones(2)),
    "numbers of numpy": (np.float32(1), np.float32(2)),
    "paths": (Path("a"), Path("b")),
    "sets": ({"a"}, {"b"}),
    "bytes": (b"a", b"b"),
    "types of numbers": (torch.float32, torch.float16),
    "devices": (torch.device("cpu"), torch.device("meta")),
    "builtin functions": (torch.sigmoid, torch.relu),
    "functions behind a cache": (functools.cache(lambda x: x), functools.cache(lambda x: x + 1)),
    "activations": (nn.Sequential(nn.ReLU()), nn.Sequential(nn.Sigmoid())),
    "dropouts": (nn.Dropout(0.1), nn.Dropout(0.5)),
    "hooks": (hooked(1.0), hooked(2.0)),
    "frozen weights": (partly_frozen(True), partly_frozen(False)),
    "what holds itself": (Holder(1), Holder(2)),
    "code of a class": (steps(CELL)(), steps(CELL.replace("{}", "tensors"))()),
    "a constant that it names": (
        steps(CELL.replace("{}", "STRENGTH"))(),
        steps(CELL.replace("{}", "STRENGTH").replace("2.0", "0.0"))(),
    ),
    "a function that it calls": (steps(CELL_OF_A_HELPER)(), steps(CELL_OF_A_HELPER.replace("2.0", "0.0"))()),
    "a base of it": (
        type("Heir", (steps(CELL),), {})(),
        type("Heir", (steps(CELL.replace("{}", "tensors")),), {})(),
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_acts_differently_is_described_differently(what: str) -> None:
    one, other = DIFFERENT[what]
    assert described(one) == described(one)
    assert described(one) != described(other)


SAME: dict[str, Callable[[], object]] = {
    "a class that was defined again": lambda: steps(CELL)(),
    "a part of its own": lambda: Loud(1.0),
    "a model": lambda: replace(Selection(), models=frozenset(range(9))),
    "a hooked module": lambda: hooked(1.0),
    "what nothing tells of": Lock,
    "what holds what nothing tells of": lambda: Holder(Lock()),
}


@pytest.mark.parametrize("what", SAME)
def test_what_acts_alike_is_described_alike(what: str) -> None:
    assert described(SAME[what]()) == described(SAME[what]())


def test_a_path_that_was_used_is_the_same_path() -> None:
    used = Path("a") / "b"
    assert hash(used)
    assert str(used)
    assert described(used) == described(Path("a/b"))


class Logs:
    def __init__(self) -> None:
        self.log = logging.getLogger("tests.of.one")


def test_what_logs_is_the_same_after_it_logged_and_others_did() -> None:
    """A logger holds its caches and all loggers of the process: the same object was refused as another's."""
    one = Logs()
    before = described(one)
    one.log.debug("used")
    logging.getLogger("tests.of.another")
    assert described(one) == before


def test_a_table_by_functions_and_classes_is_the_same_in_every_process() -> None:
    """Their text holds an address."""
    by_key = described({Logs: 1, weighted: 2})
    assert " at 0x" not in str(by_key)
    assert by_key != described({Logs: 2, weighted: 2})


def test_descriptions_hold_in_another_process() -> None:
    """An audit goes on there: sets and constants that are sets have an order of their own in each."""
    code = (
        "from leakgauge.study.described import described as d\n"
        "def f(x): return x in {'a', 'b', 'c', 'd'}\n"
        "class C:\n    def __init__(self): self._s = {'a', 'b', 'c', 'd'}\n    def go(self): return f(self)\n"
        "print(d([C(), f]))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_results_of_a_defence_are_not_given_for_a_weaker_one(tmp_path: Path) -> None:
    """Noise kept all clients; without it, in the same folder, that was said again."""

    def plan(defense: Defense) -> dict[str, Any]:
        torch.manual_seed(0)
        inputs = torch.rand(60, 3, 4, 4, generator=torch.Generator().manual_seed(1))
        source = InMemory(inputs=inputs, labels=torch.arange(60) % 4)
        net = mlp(shape=(3, 4, 4), hidden=(8,), classes=4)
        data = {"source": source, "batch": 1, "batches": 1}
        return {"model": net, "data": data, "attacks": [LinearRead()], "defenses": [defense], "gallery": 10}

    run(resolve_plan(plan(Loud(9.0))), tmp_path / "out").close()
    run(resolve_plan(plan(Loud(9.0))), tmp_path / "out").close()
    with pytest.raises(InputError, match="of another defenses"):
        run(resolve_plan(plan(Loud(0.0))), tmp_path / "out")
