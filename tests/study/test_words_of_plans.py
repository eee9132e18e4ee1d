"""A plan of objects: parts of the package are told apart by their words, everything else by a name that is given."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from leakgauge import clients
from leakgauge.attacks import matching
from leakgauge.attacks.closed_form import LinearRead
from leakgauge.data import InMemory, Samples
from leakgauge.defenses import Defense, noise
from leakgauge.errors import InputError
from leakgauge.models import mlp
from leakgauge.observation import Known
from leakgauge.study.deal import Selection
from leakgauge.study.identity import _described
from leakgauge.study.plan import resolve_plan
from leakgauge.study.run import run
from leakgauge.task import Mode
from leakgauge.tensors import Tensors


class Loud(Defense):
    """Keeps its strength to itself, as classes do: nothing outside can tell it from another."""

    def __init__(self, sigma: float) -> None:
        self._sigma = sigma

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        return {k: t + self._sigma * torch.randn(t.shape, generator=generator) for k, t in tensors.items()}


def weighted(logits: Tensor, labels: Tensor, *, by: float = 1.0) -> Tensor:
    return by * nn.functional.cross_entropy(logits, labels)


def described(value: object) -> Any:
    return _described(value, {})


def net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return mlp(shape=(3, 4, 4), hidden=(8,), classes=4)


def examples(last: float = 0.5) -> InMemory:
    inputs = torch.rand(60, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    inputs[-1, -1, -1, -1] = last
    return InMemory(inputs=inputs, labels=torch.arange(60) % 4)


DIFFERENT: dict[str, tuple[object, object]] = {
    "modes": (Mode.EVAL, Mode.TRAIN),
    "knowledge": (Known.DEFENSE, Known.DRAWS),
    "selections": (Selection(models=frozenset({0})), Selection(models=frozenset({1}))),
    "noises": (noise(relative=1.0), noise(relative=2.0)),
    "paths": (Path("a"), Path("b")),
    "sets": ({"a"}, {"b"}),
    "bytes": (b"a", b"b"),
    "types of numbers": (torch.float32, torch.float16),
    "weights": (net(), net(1)),
    "examples": (examples(), examples(0.25)),
    "optimisers of two rooms": (clients.Adam(), matching.Adam()),
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
    "an array": lambda: np.ones(2),
    "a module": net,
    "a method of a part of the package": lambda: noise(relative=1.0).on_update,
    "deep inside": lambda: {"defenses": [[noise(relative=1.0), Loud(1.0)]]},
}


@pytest.mark.parametrize("what", OPAQUE)
def test_code_of_ones_own_is_named_as_such_and_described_alike(what: str) -> None:
    opaque: dict[str, None] = {}
    assert _described(OPAQUE[what](), opaque) == described(OPAQUE[what]())
    assert opaque
    assert " at 0x" not in str(described(OPAQUE[what]()))


@pytest.mark.parametrize("value", [noise(relative=1.0), LinearRead(), Mode.EVAL, {"a": [1]}, Samples(size=8)])
def test_what_the_version_identifies_is_not(value: object) -> None:
    opaque: dict[str, None] = {}
    assert _described(value, opaque) == described(value)
    assert not opaque


def test_a_plan_with_code_of_ones_own_goes_on_only_where_it_has_a_name(tmp_path: Path) -> None:
    """Noise kept all clients; without it, in the same folder, that must not be said again."""

    def plan(defense: Defense, **more: Any) -> dict[str, Any]:
        data = {"source": examples(), "batch": 1, "batches": 1}
        parts = {"model": net(), "data": data, "attacks": [LinearRead()], "defenses": [defense], "gallery": 10}
        return parts | more

    own = resolve_plan(plan(Loud(9.0)))
    run(own, tmp_path / "out").close()
    run(own, tmp_path / "out").close()
    for other in (Loud(9.0), Loud(0.0)):
        with pytest.raises(InputError, match=r"identity: is not given.*objects of your own.*identity='"):
            run(resolve_plan(plan(other)), tmp_path / "out")
    for _ in range(2):
        run(resolve_plan(plan(Loud(9.0), identity="loud")), tmp_path / "named").close()
    for changed, key in (
        (plan(Loud(0.0), identity="quiet"), "identity"),
        (plan(noise(relative=1.0)), "defenses"),
        (plan(Loud(9.0), identity="loud", model=net(1)), "model"),
    ):
        with pytest.raises(InputError, match=f"of another {key}"):
            run(resolve_plan(changed), tmp_path / "named")
