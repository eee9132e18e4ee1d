"""Rows of a report made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from leakgauge.frontiers.plan import Tolerance
from leakgauge.frontiers.results import (
    Accuracy,
    AttackEffort,
    ClientTime,
    CounterUsed,
    Leakage,
    Privacy,
    Report,
    RowCost,
    RowResult,
    Simulated,
    recommendation,
)
from leakgauge.intervals import proportion_interval, proportion_upper
from leakgauge.observation import Cost
from leakgauge.study.judging.records import Data, Scenario
from leakgauge.study.judging.results import Finding, Identified, LabelLeak, Level, NullPSNR, Power, PSNRSummary

TOLERANCE = Tolerance()
LABELS = LabelLeak(1.0, 1.0, 1.0, 1.0, 0.25, 0.75, 0.75, 0.75, 1.0, 20, 20, True, True)


SCENARIO = Scenario(
    model="mlp",
    mode="eval",
    server="honest",
    client="fedsgd",
    defense="none",
    defended=False,
    knowledge=(),
    data=Data("memory", 8, batch=4),
)


def finding(identified: int, n: int, psnr: float, spread: float = 1.0) -> Finding:
    """What one attacker achieved."""
    ends = proportion_interval(identified, n)
    seen = Identified(
        count=identified,
        n=n,
        rate=identified / n,
        clients=n,
        low=ends.low or 0.0,
        high=1.0 if ends.high is None else ends.high,
        upper=proportion_upper(identified, n),
        chance=0.02,
        beyond=0.0,
        naive=0.0,
        gallery=10,
        whole=10,
        worst=1,
    )
    return Finding(
        scenario=SCENARIO,
        attack="auto",
        control=False,
        certified=0,
        level=Level.EXPOSED,
        images=n,
        trials=n,
        failed=0,
        psnr=PSNRSummary(psnr, psnr - spread, psnr + spread, psnr + 3, psnr, psnr - 3),
        null_psnr=NullPSNR(11.0, 12.0),
        ssim_mean=0.5,
        lpips_mean=None,
        identified=seen,
        recovered=identified,
        label_f1=LABELS,
        power=Power(30.0, True, "control/x"),
        cost=Cost(10, 0.1),
        sentence="as it went",
        clients=n,
        flags=(),
        residual_risk=None,
        gain=None,
    )


def row(
    family: str,
    label: str,
    accuracy: float | None,
    naive: tuple[int, float],
    adapted: tuple[int, float] | None = None,
    *,
    n: int = 20,
    strength: int = 0,
    epsilon: float | None = None,
    counter: str | None = "support-mask",
) -> RowResult:
    """One row; `naive` and `adapted` are pictures identified and mean PSNR."""
    first = finding(naive[0], n, naive[1])
    stated = Privacy(
        epsilon=epsilon,
        delta=1e-5,
        accountant="rdp",
        unit="example",
        noise_multiplier=1.0,
        sample_rate=0.1,
        steps=100,
        scope="the whole training",
        robustness="an attacker is right at most 3 % of the time",
    )
    bare = family == "undefended"
    ends = (None, None) if accuracy is None else (accuracy - 0.01, accuracy + 0.01)
    used = CounterUsed(family.title(), counter, counter is not None, "", "The wire shows it.")
    return RowResult(
        family=family,
        strength=strength,
        label=label,
        defense="none" if bare else label,
        client="fedsgd",
        batch=1,
        cohort=1,
        counters=() if bare else (used,),
        accuracy=Accuracy(accuracy, "no data" if accuracy is None else None, low=ends[0], high=ends[1]),
        cost=RowCost(500, 1000, 8, ClientTime(1.5, 1.0, 1.5)),
        leakage=Leakage(first, first if adapted is None else finding(adapted[0], n, adapted[1])),
        privacy=stated if epsilon is not None else Privacy(reason="no clip and noise"),
    )


def leaking(found: RowResult, who: str, **changes: Any) -> RowResult:
    """The row with fields of one attacker's finding changed, or with none where nothing is given."""
    finding = getattr(found.leakage, who)
    changed = replace(finding, **changes) if changes else None
    return replace(found, leakage=replace(found.leakage, **{who: changed}))


def report(rows: list[RowResult]) -> Report:
    """A report around rows."""
    measured = any(r.accuracy.value is not None for r in rows)
    return Report(
        created_at="2026-01-01T00:00:00+00:00",
        leakgauge_version="0",
        config={"name": "by hand", "attack": "auto", "delta": 1e-5},
        environment={},
        tolerance=TOLERANCE.model_dump(),
        utility=Simulated(measured, None if measured else "no data to train with"),
        rows=tuple(rows),
        recommendation=recommendation(rows, TOLERANCE),
        tried=AttackEffort("auto", 300, 20, 1, False, True, ("prune",)),
    )
