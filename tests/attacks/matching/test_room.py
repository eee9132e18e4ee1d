"""What a computation needs, found without doing it, and a search that is kept within what there is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import leakgauge.compute as memory
from leakgauge.attacks.effort import Effort
from leakgauge.attacks.matching import Adam, BoundedLBFGS, Matching, TotalVariation
from leakgauge.attacks.matching.engine import fitted
from leakgauge.attacks.matching.problem import Meter, Problem
from leakgauge.attacks.matching.simulator import Simulator
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget, Compute, Held, available, needed
from leakgauge.data import Samples, spec
from leakgauge.draws import Draws
from leakgauge.models import convnet
from leakgauge.observation import Knowledge, Observation, Status
from leakgauge.task import Task


def test_what_is_needed_is_counted_without_being_taken() -> None:
    """Two tensors of 400 GB, of which one is let go before a third."""

    def work(empty: Callable[[Tensor], Tensor]) -> Tensor:
        one = empty(torch.zeros(1)).expand(10**11)
        two = one + 1
        two = two * 2
        return two.sum()

    assert needed(work) == pytest.approx(8e11)


def test_what_looks_at_values_cannot_be_counted() -> None:
    assert needed(lambda empty: torch.zeros(1 + int(empty(torch.ones(1)).item()))) is None


@pytest.mark.parametrize(("version", "limit", "used"), [(i, *row[:2]) for i, row in enumerate(memory.LIMITS)])
def test_a_container_has_its_own_limit(
    version: int, limit: str, used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that the kernel keeps count as free."""
    (tmp_path / limit).parent.mkdir(exist_ok=True)
    (tmp_path / limit).write_text("1000000\n")
    (tmp_path / used).write_text("700000\n")
    (tmp_path / used).with_name("memory.stat").write_text(f"anon 5\n{memory.LIMITS[version][2]} 200000\n")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert available("cpu") == 450_000
    (tmp_path / limit).write_text("max\n")
    assert available("cpu") > 1_000_000


def observed(examples: int = 2) -> Observation:
    source = Samples(size=32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        task = Task.of(convnet(width=4), spec(source))
    batch = source.read(list(range(examples)))
    update = client_update(task, FedSGD(), batch, Draws(0))
    known = Knowledge(labels=batch.labels, example_count=examples, local_training=FedSGD())
    return Observation(task, update, known)


def attack(restarts: int, minimiser: Adam | BoundedLBFGS | None = None) -> Matching:
    return Matching(prior=TotalVariation(1e-3), minimiser=minimiser or Adam(steps=2), restarts=restarts)


def test_a_step_that_does_not_fit_fails_and_names_the_bytes() -> None:
    found = attack(1).reconstruct(observed(), torch.Generator(), compute=Compute(memory=200_000))
    assert found.status is Status.FAILED
    assert "takes" in found.message
    assert "0.0002 GB" in found.message
    assert "--memory" in found.message


def problem(seen: Observation, search: Matching) -> tuple[Problem, Task]:
    generator, like = torch.Generator().manual_seed(0), Compute().like(search.minimiser.dtype)
    simulator, labels = Simulator.of(seen, like, generator), seen.knowledge.labels
    count = seen.examples or 1
    one = search._problem(simulator, labels, count, Meter(Budget()), Effort(generator))
    return one, simulator.task


def test_restarts_are_evaluated_in_chunks_that_fit_and_find_the_same() -> None:
    whole, task = problem(observed(1), attack(4))
    tight = fitted(whole, task, 1, batched=True, compute=Compute(memory=3_500_000))
    assert isinstance(tight, Problem)
    answers, peaks = [], []
    for one in (whole, tight):
        with Held() as held:
            answers.append(one.step(one.start))
        peaks.append(held.peak)
    assert peaks[0] > 3_500_000 >= peaks[1]
    torch.testing.assert_close(*answers, rtol=1e-4, atol=1e-6)


def test_a_search_that_goes_one_by_one_is_asked_for_one() -> None:
    whole, task = problem(observed(1), attack(4, BoundedLBFGS(steps=2)))
    assert fitted(whole, task, 1, batched=False, compute=Compute(memory=4_000_000)) is whole


def test_what_a_step_needs_is_what_it_takes() -> None:
    """The count on tensors without data against the real step's."""
    one, _ = problem(observed(), attack(2))
    need = needed(lambda empty: one.step({k: empty(v) for k, v in one.start.items()}))
    with Held() as held:
        one.step(one.start)
    assert need == pytest.approx(held.peak, rel=0.01)
