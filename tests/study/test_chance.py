"""What chance gives is no leak, and what is no leak by chance still fails: both directions of each rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from leakgauge.study.grammar import GateConfig
from leakgauge.study.judging.decision import Answer, Decision, decide
from leakgauge.study.judging.gate import Why
from leakgauge.study.judging.records import Trial
from leakgauge.study.judging.verdict import Verdict, verdict
from study.trials import LEAKY, OTHERS, POWER, trial

CHANCE = tuple((0, 1, 2, 0)[i % 4] for i in range(OTHERS))
"""About .09 of eight images of each stranger."""


def judged(trials: Sequence[Trial], gate: dict[str, Any]) -> tuple[Verdict, Decision]:
    config = GateConfig.model_validate(gate)
    found = verdict(trials, config)
    return found, decide(found, config, captured=False)


def clients(count: int, hits: int, *, strangers: Sequence[int] = CHANCE) -> list[Trial]:
    """Of eight images of each client so many are identified, of one in four none; none comes back."""
    seen = [[j < hits + (count == 8 and i < 4) and i % 4 > 0 for j in range(8)] for i in range(count)]
    return [
        trial(i, [11.0] * 8, identified=own, recovered=False, defense="noise", strangers=strangers)
        for i, own in enumerate(seen)
    ]


EIGHT = [trial(i, [30.0] * 8, identified=True, control=True) for i in range(5)]
LIMIT = {"identified": {"max": 0.1}}


def test_a_share_that_strangers_reach_too_is_no_leak_and_a_larger_one_is() -> None:
    """Eight of 64 where strangers are singled out as often were "No", with advice to lower what leaks."""
    found, said = judged([*clients(8, 1), *EIGHT], LIMIT)
    assert found.gate.passed is False
    assert not any(r.why is Why.BROKEN for r in found.gate.reasons)
    assert said.answer is Answer.NOT_YET
    assert "by chance" in said.reason
    assert "fedsgd" not in said.reason
    found, said = judged([*clients(8, 4), *EIGHT], LIMIT)
    assert any(r.why is Why.BROKEN for r in found.gate.reasons)
    assert said.answer is Answer.NO


@pytest.mark.parametrize(("own", "strangers", "broken"), [(4, (1, 2, 2, 2), False), (16, (0, 0, 0, 0), True)])
def test_one_client_breaks_a_limit_only_beyond_what_strangers_reach(
    own: int, strangers: tuple[int, ...], broken: bool
) -> None:
    """ "No: 4 of 16" stood beside "inconclusive", where the same reads singled out 7 of 64 strangers."""
    seen = [j < own for j in range(16)]
    one = trial(0, [11.0] * 16, identified=seen, recovered=False, defense="noise", strangers=strangers)
    found, _ = judged([one, *EIGHT], LIMIT)
    assert any(r.why is Why.BROKEN for r in found.gate.reasons) is broken
    assert found.gate.passed is False


def test_many_clients_at_chance_pass_and_with_more_they_fail() -> None:
    found, _ = judged([*clients(80, 1), *EIGHT], LIMIT)
    assert not any(r.why in (Why.BROKEN, Why.UNSUPPORTED) for r in found.gate.reasons)
    for hits in (3, 8):
        found, said = judged([*clients(80, hits), *EIGHT], LIMIT)
        assert any(r.why is Why.BROKEN for r in found.gate.reasons), hits
        assert said.answer is Answer.NO
    found, _ = judged([*clients(80, 2, strangers=(0,) * OTHERS), *EIGHT], LIMIT)
    assert any(r.why is Why.BROKEN for r in found.gate.reasons)


@pytest.mark.parametrize(("constant", "why"), [(1.0, Why.UNMEASURED), (0.3, Why.BROKEN)])
def test_labels_are_judged_above_the_best_constant_guess(constant: float, why: Why) -> None:
    """A table sorted by its target makes clients of one class, whose labels everybody guesses."""
    rows = [trial(i, 11.0, defense="noise", f1=0.59, constant=constant) for i in range(8)]
    controls = [trial(i, 30.0, identified=True, control=True, f1=1.0, constant=0.3) for i in range(5)]
    found, _ = judged([*rows, *controls], {"label_f1": {"max": 0.5}})
    assert {r.why for r in found.gate.reasons if r.text.startswith("label_f1")} == {why}
    assert found.gate.passed is False


def test_a_baseline_is_a_control_and_hides_no_defended_leak() -> None:
    """The undefended setting that is advised failed every gate."""
    gate = {"identified": {"max": 0.3}, "baseline": True}
    calm = [trial(i, 11.0, defense="noise") for i in range(20)]
    leaky = [trial(i, 30.0, identified=True, defense="noise") for i in range(20)]
    found, said = judged([*calm, *LEAKY, *POWER], gate)
    assert found.gate.passed, found.gate.reasons
    assert said.answer is Answer.NO_OBJECTION
    assert "without a defence left out" in said.limits
    assert judged([*calm, *LEAKY, *POWER], gate | {"baseline": False})[1].answer is Answer.NO
    assert judged([*leaky, *LEAKY, *POWER], gate)[1].answer is Answer.NO
    assert judged([*LEAKY, *POWER], gate)[1].answer is Answer.NO


def test_what_to_do_next_follows_the_reason() -> None:
    weak = [trial(i, 11.0, control=True) for i in range(5)]
    rows = [trial(i, 11.0, defense="noise") for i in range(40)]
    _, said = judged([*rows, *weak], LIMIT)
    assert said.answer is Answer.NOT_YET
    assert "data.batch: 1" in said.next.step
