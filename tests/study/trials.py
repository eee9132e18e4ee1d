"""Trials made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leakgauge.observation import Cost
from leakgauge.study.grammar import GateConfig
from leakgauge.study.judging.gate import GateResult
from leakgauge.study.judging.records import (
    Data,
    LabelScores,
    MeanImage,
    NearestPublic,
    Nulls,
    OtherClients,
    Role,
    Scenario,
    Scores,
    Trial,
)
from leakgauge.study.judging.results import Finding
from leakgauge.study.judging.verdict import verdict

OTHERS = 39


def trial(
    index: int,
    psnr: float | Sequence[float] | None,
    *,
    identified: bool | Sequence[bool] = False,
    recovered: bool | Sequence[bool] | None = None,
    defense: str = "none",
    seed: int = 0,
    control: bool = False,
    f1: float | None = None,
    constant: float = 0.1,
    confidence: float | None = 1.0,
    known: bool = False,
    attack: str = "a",
    role: Role = Role.RECIPE,
    base: str | None = None,
    status: str | None = None,
    certified: int = 0,
    other: float = 10.0,
    strangers: Sequence[int] = (0,) * OTHERS,
    trace: Sequence[tuple[int, float | None]] = ((0, 1.0), (9, 0.1)),
    restarts: Sequence[float] = (),
    kind: str = "image",
    blind: str = "",
    client: str = "fedsgd",
) -> Trial:
    """One client, of as many images as `psnr` has; identified images are recovered unless said otherwise."""
    decibels = (psnr,) if isinstance(psnr, int | float) else tuple(psnr or ())
    n = max(1, len(decibels))
    seen = (identified,) * n if isinstance(identified, bool) else tuple(identified)
    back = seen if recovered is None else (recovered,) * n if isinstance(recovered, bool) else tuple(recovered)
    scores = Scores(
        psnr=decibels,
        mse=decibels,
        rank=tuple(1 if i else 50 for i in seen),
        identified=seen,
        recovered=back,
        exact=(False,) * n,
        certified=certified,
        gallery=100,
        whole=100,
    )
    scenario = Scenario(
        model="m",
        mode="eval",
        server="honest",
        server_changes=(),
        client=client,
        defense=defense,
        defended=defense != "none",
        knowledge=("example_count", "defense"),
        data=Data("s", 32, kind, n, index, tuple(f"{index}-{i}.png" for i in range(n))),
    )
    result = psnr is not None
    return Trial(
        id=("control/" if control else "") + f"m/{client}/{defense}/{attack}/s{seed}/b{index:03d}",
        scenario=scenario,
        attack=attack,
        role=role,
        base=attack if base is None else base,
        seed=seed,
        control=control,
        status=status or ("converged" if result else "failed"),
        message="" if result else "it broke",
        blind=blind,
        scores=scores if result else None,
        labels=None if f1 is None else LabelScores(f1, constant, constant, confidence, known),
        controls=Nulls(
            mean_image=MeanImage((10.0,) * n, 0),
            nearest_public=NearestPublic((12.0,) * n),
            other_client=OtherClients((other,) * n, tuple(strangers), (0,) * len(strangers)) if result else None,
        ),
        restarts=tuple(restarts),
        trace=tuple(trace) if result else (),
        cost=Cost(7, 1.0),
    )


POWER = [trial(i, 30.0, identified=True, control=True) for i in range(5)]
"""Controls that show the power of attack "a" under "fedsgd"."""
LEAKY = [trial(i, 30.0, identified=True) for i in range(8)]
"""Eight clients of the plan without a defence, all recovered."""


def judged(trials: Sequence[Trial], **gate: Any) -> GateResult:
    return verdict(trials, GateConfig.model_validate(gate or {"identified": {"max": 0.2}})).gate


def row_of(trials: Sequence[Trial]) -> Finding:
    return next(f for f in verdict(trials, None).findings if f.scenario.defense == "d")


def quiet(n: int, **changes: Any) -> list[Trial]:
    return [trial(i, 10.0, defense="d", **changes) for i in range(n)]
