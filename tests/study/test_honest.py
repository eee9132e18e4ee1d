"""Audits of clients whose update says nothing about them: how often is there an alarm all the same?"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from leakgauge.compute import Compute
from leakgauge.data import InMemory
from leakgauge.defenses import Defense
from leakgauge.study.grammar import GateConfig
from leakgauge.study.judging.results import Finding, Level
from leakgauge.study.judging.verdict import verdict
from leakgauge.study.plan import resolve_plan
from leakgauge.study.trial import run_trial
from promises import Row, keep
from study.plans import tiny

CLIENTS, CLASSES = 6, 4


class Silent(Defense):
    """Sends noise of its own instead of the update: nothing of the client is in it."""

    def on_update(self, tensors: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        return {name: torch.randn(value.shape, generator=generator) for name, value in tensors.items()}


def pictures(n: int, seed: int) -> InMemory:
    """Coarse patches with fine structure."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.nn.functional.interpolate(torch.rand((n, 3, 4, 4), generator=generator), size=(8, 8))
    x = 0.7 * coarse + 0.3 * torch.rand((n, 3, 8, 8), generator=generator)
    return InMemory(inputs=x, labels=torch.randint(CLASSES, (n,), generator=generator))


def findings(seed: int) -> list[Finding]:
    """Of one audit with fresh pictures."""
    raw = tiny(
        model={"mlp": {"hidden": [6]}},
        data={"source": pictures(90, seed), "batch": 2, "batches": CLIENTS},
        defenses=["study.test_honest:Silent"],
        attacks=["closed-form", {"inverting-gradients": {"steps": 3}}],
        seeds=[seed],
        gallery=20,
    )
    plan = resolve_plan(raw)
    trials = [run_trial(plan, key, compute=Compute()).trial for key in plan.trials()]
    judged = verdict(trials, GateConfig.model_validate({"identified": {"max": 0.9}}))
    return [found for found in judged.findings if not found.control]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_leak_is_no_alarm_in_a_hundred_audits() -> None:
    """Exposed, or labels said to leak, in at most as many audits as chance explains: one test in forty each.
    `LEAKGAUGE_HONEST` is another number of audits."""
    audits, exposed, labels, attacks = int(os.environ.get("LEAKGAUGE_HONEST", "100")), 0, 0, 0
    for seed in range(audits):
        found = findings(seed)
        attacks += len(found)
        exposed += any(f.level in (Level.EXPOSED, Level.PARTIAL) for f in found)
        labels += any(f.label_f1 is not None and f.label_f1.leaks for f in found)
    rows = [
        Row("clients whose update says nothing are not said to be exposed", f"{audits} audits", exposed),
        Row("nor are their labels said to leak", f"{audits} audits of {attacks // audits} attacks", labels),
    ]
    keep("honest-audits", "tests/study/test_honest.py", rows)
    assert max(exposed, labels) <= max(1, audits // 20)
