"""Objects that act differently are told apart: results of one must not be taken for those of another."""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
from collections.abc import Callable
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
from leakgauge.defenses import Defense, noise
from leakgauge.errors import InputError
from leakgauge.models import mlp
from leakgauge.observation import Known
from leakgauge.study.dealt import Selection
from leakgauge.study.described import described, description
from leakgauge.study.run import run
from leakgauge.study.written import resolve_plan
from leakgauge.task import Mode
from leakgauge.tensors import Tensors


class Loud(Defense):
    """Keeps its strength to itself, as classes do: nothing outside can tell it from another."""

    def __init__(self, sigma: float) -> None:
        self._sigma = sigma

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        return {k: t + self._sigma * torch.randn(t.shape, generator=generator) for k, t in tensors.items()}


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        nn.init.ones_(self.inner.weight)
        nn.init.ones_(self.inner.bias)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.inner(x)


def weighted(logits: Tensor, labels: Tensor, *, by: float = 1.0) -> Tensor:
    return by * F.cross_entropy(logits, labels)


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
    "bound arguments": (functools.partial(weighted, by=1.0), functools.partial(weighted, by=2.0)),
    "noises": (noise(relative=1.0), noise(relative=2.0)),
    "arrays": (np.zeros(2), np.ones(2)),
    "numbers of numpy": (np.float32(1), np.float32(2)),
    "paths": (Path("a"), Path("b")),
    "sets": ({"a"}, {"b"}),
    "bytes": (b"a", b"b"),
    "types of numbers": (torch.float32, torch.float16),
    "devices": (torch.device("cpu"), torch.device("meta")),
    "builtin functions": (torch.sigmoid, torch.relu),
    "activations": (nn.Sequential(nn.ReLU()), nn.Sequential(nn.Sigmoid())),
    "dropouts": (nn.Dropout(0.1), nn.Dropout(0.5)),
    "frozen weights": (partly_frozen(True), partly_frozen(False)),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_acts_differently_is_described_differently(what: str) -> None:
    one, other = DIFFERENT[what]
    assert described(one) == described(one)
    assert described(one) != described(other)


OPAQUE: dict[str, Callable[[], object]] = {
    "a class of one's own": lambda: Loud(1.0),
    "its method": lambda: Loud(1.0).on_update,
    "a class itself": lambda: Loud,
    "a function": lambda: weighted,
    "a function with arguments": lambda: functools.partial(weighted, by=1.0),
    "a lock": Lock,
    "a logger": lambda: logging.getLogger("tests.of.one"),
    "a module with hooks": lambda: hooked(1.0),
    "a module of one's own inside": lambda: nn.Sequential(nn.Linear(2, 2), Own()),
    "deep inside": lambda: {"defenses": [[noise(relative=1.0), Loud(1.0)]]},
}


@pytest.mark.parametrize("what", OPAQUE)
def test_code_of_ones_own_is_named_as_such_and_described_alike(what: str) -> None:
    found = description(OPAQUE[what]())
    assert found.opaque
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        one = described(OPAQUE[what]())
        torch.manual_seed(0)
        assert one == described(OPAQUE[what]())
    assert " at 0x" not in str(one)


@pytest.mark.parametrize("value", [mlp(), noise(relative=1.0), LinearRead(), nn.Dropout(0.5), Mode.EVAL, {"a": [1]}])
def test_what_the_version_identifies_is_not(value: object) -> None:
    assert not description(value).opaque


def test_weights_of_a_module_of_ones_own_count() -> None:
    one, other = Own(), Own()
    with torch.no_grad():
        other.inner.weight += 1
    assert described(one) != described(other)


def test_a_path_that_was_used_is_the_same_path() -> None:
    used = Path("a") / "b"
    assert hash(used)
    assert str(used)
    assert described(used) == described(Path("a/b"))


def test_descriptions_hold_in_another_process() -> None:
    """An audit goes on there: sets and constants that are sets have an order of their own in each."""
    code = (
        "from leakgauge.study.described import described as d\n"
        "class C:\n    def __init__(self): self.s = {'a', 'b', 'c', 'd'}\n"
        "print(d([C(), {'a', 'b', 'c', 'd'}]))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_a_plan_with_code_of_ones_own_goes_on_only_where_it_has_a_name(tmp_path: Path) -> None:
    """Noise kept all clients; without it, in the same folder, that must not be said again."""

    def plan(defense: Defense, **more: Any) -> dict[str, Any]:
        torch.manual_seed(0)
        inputs = torch.rand(60, 3, 4, 4, generator=torch.Generator().manual_seed(1))
        source = InMemory(inputs=inputs, labels=torch.arange(60) % 4)
        net = mlp(shape=(3, 4, 4), hidden=(8,), classes=4)
        data = {"source": source, "batch": 1, "batches": 1}
        parts = {"model": net, "data": data, "attacks": [LinearRead()], "defenses": [defense], "gallery": 10}
        return parts | more

    own = resolve_plan(plan(Loud(9.0)))
    run(own, tmp_path / "out").close()
    run(own, tmp_path / "out").close()
    for other in (Loud(9.0), Loud(0.0)):
        with pytest.raises(InputError, match=r"identity: is not given.*code of your own.*identity='"):
            run(resolve_plan(plan(other)), tmp_path / "out")
    for _ in range(2):
        run(resolve_plan(plan(Loud(9.0), identity="loud")), tmp_path / "named").close()
    with pytest.raises(InputError, match="of another identity"):
        run(resolve_plan(plan(Loud(0.0), identity="quiet")), tmp_path / "named")
    with pytest.raises(InputError, match="of another defenses"):
        run(resolve_plan(plan(noise(relative=1.0))), tmp_path / "named")
