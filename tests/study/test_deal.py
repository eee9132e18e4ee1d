"""Clients that hold the same examples are one client."""

from __future__ import annotations

import torch

from leakgauge.compute import Compute
from leakgauge.data import InMemory
from leakgauge.metrics.likeness import twins
from leakgauge.study.deal import first_holders
from leakgauge.study.judging.verdict import verdict
from leakgauge.study.plan import resolve_plan
from leakgauge.study.trial import run_trial
from leakgauge.task import Batch
from study.plans import pictures, tiny


def test_one_client_many_times_is_one_client() -> None:
    """Sixty clients with one and the same record supported a limit of .05, as sixty strangers would."""
    x = torch.rand(1, 3, 8, 8).repeat(20, 1, 1, 1)
    x[10:] = torch.rand(10, 3, 8, 8)
    plan = resolve_plan(
        tiny(
            model={"mlp": {"hidden": [4]}},
            data={"source": InMemory(inputs=x, labels=torch.arange(20) % 2), "batch": 1, "batches": 12},
            attacks=["closed-form"],
            defenses=["none"],
            gallery=3,
        )
    )
    keys = [key for key in plan.trials() if not key.control]
    assert [plan.data.holder(key.batch) for key in keys] == [0] * 10 + [10, 11]
    trials = [run_trial(plan, key, compute=Compute()).trial for key in keys[8:]]
    assert verdict(trials, None).findings[0].clients == 3


def test_the_frames_of_one_film_are_one_client() -> None:
    """Sixty neighbouring frames as sixty clients supported a limit of .05; each differs from the last alone."""
    g = torch.Generator().manual_seed(0)
    drift = torch.randn(60, 3, 16, 16, generator=g).cumsum(0)
    film = (pictures(1, 0) + 0.02 * drift).clamp(0, 1)
    plan = resolve_plan(
        tiny(
            data={"source": InMemory(inputs=torch.cat([pictures(20, 4), film]), labels=torch.arange(80) % 4)}
            | {"batch": 1, "batches": 70}
        )
    )
    clients = [plan.client(key) for key in plan.trials() if not key.control]
    assert len({*clients}) == 21
    assert not bool(twins(film[:1], film[-1:]).any()), "the last frame is another picture than the first"
    pairs = [Batch(film[i : i + 2], torch.zeros(2)) for i in range(0, 6, 2)]
    assert first_holders(pairs) == [0, 0, 0]
    numbers = torch.rand(6, 2, 12, generator=g)
    assert first_holders([Batch(x, torch.zeros(2)) for x in numbers]) == list(range(6))
