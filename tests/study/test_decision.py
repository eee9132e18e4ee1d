"""The answer of an audit: what stands against "no objection", and what it would take."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import norm

from leakgauge.observation import Cost
from leakgauge.privacy.tested import Claim
from leakgauge.risk.lint import HIDDEN, SENT, LintFinding, LintSeverity
from leakgauge.study.document import budgets, signed, verdict_of
from leakgauge.study.grammar import GateConfig
from leakgauge.study.judging.decision import Answer, Decision, decide, label_words
from leakgauge.study.judging.gate import needed
from leakgauge.study.judging.records import Explanation, Trial
from leakgauge.study.judging.results import Level
from leakgauge.study.judging.verdict import verdict
from leakgauge.study.plan import resolve_plan
from leakgauge.study.store import Store
from study.plans import tiny
from study.trials import POWER, judged, quiet, row_of, trial

GATE = GateConfig.model_validate({"identified": {"max": 0.05}})
LABELS = GateConfig.model_validate({"identified": {"max": 0.05}, "label_f1": {"max": 1.0}})


def decided(trials: Sequence[Trial], gate: GateConfig | None = GATE, proof: str = "", **asked: object) -> Decision:
    return decide(verdict(trials, gate, proof), gate, captured=False, **asked)  # type: ignore[arg-type]


ENOUGH = [*POWER, *quiet(59)]


def test_no_objection_names_its_limits() -> None:
    found = decided(ENOUGH)
    assert found.answer is Answer.NO_OBJECTION
    assert found.title == "No objection found within 5 % singled out"


@pytest.mark.parametrize(
    ("trials", "gate", "asked", "answer", "word"),
    [
        ([*POWER, *quiet(58), trial(58, 30.0, identified=True, defense="d")], GATE, {}, Answer.NO, "reconstructed"),
        ([*POWER, *quiet(59, status="exact", certified=1)], GATE, {}, Answer.NO, "certified"),
        (ENOUGH, GATE, {"proof": "m: closed-form reads 1 of 1 examples exactly"}, Answer.NO, "exactly"),
        ([*POWER, *quiet(16)], GATE, {}, Answer.NOT_YET, "too few"),
        (ENOUGH, None, {}, Answer.NOT_YET, "no gate"),
        (quiet(59), GATE, {}, Answer.NOT_YET, "No control shows"),
        ([*POWER, *quiet(58), trial(58, None, defense="d")], GATE, {}, Answer.NOT_YET, "gave no result"),
        ([], GATE, {}, Answer.NOT_YET, "nothing was tested"),
        ([*POWER, *quiet(59, f1=0.9)], GATE, {}, Answer.NOT_YET, "Labels were read"),
        ([*POWER, *quiet(59, f1=0.9)], LABELS, {}, Answer.NO_OBJECTION, "Every limit"),
    ],
)
def test_what_stands_against_it(
    trials: list[Trial], gate: GateConfig | None, asked: dict[str, object], answer: Answer, word: str
) -> None:
    found = decided(trials, gate, **asked)
    assert found.answer is answer, found
    assert word in found.reason


def test_an_unexplained_update_is_never_without_objection() -> None:
    doubt = Explanation(holds=False, sentence="The plan explains 35 % of this update.")
    trials = [t if t.control else replace(t, explained=doubt) for t in ENOUGH]
    for gate in (GATE, None):
        found = decided(trials, gate)
        assert found.answer is Answer.NOT_YET
        assert "explain" in found.reason


def test_larger_batches_are_advised_as_the_lint_counts_them() -> None:
    """ "A defence or larger batches first", of layers that give away what they are given at any batch but a vast."""
    leaky, hint = [*POWER, trial(0, 30.0, identified=True)], "more than 900 examples a step"
    layers = LintFinding(HIDDEN, LintSeverity.MEDIUM, "m", "16 layers", hint)
    assert hint in decided(leaky, lint=(layers,)).next.step
    assert "larger batches" not in decided(leaky).next.step


def test_the_next_step_says_what_it_costs() -> None:
    trials = [*POWER, *(replace(t, cost=Cost(7, 60.0)) for t in quiet(16))]
    following = decided(trials).next
    missing = needed(0.05)
    assert isinstance(missing, int)
    assert following.clients == following.examples == missing - 16
    assert following.minutes == pytest.approx(43)
    assert f"{missing - 16} more images, about 43 minutes" in following.step


def test_a_captured_audit_says_how_many_updates_it_rests_on() -> None:
    for trials, words in ((quiet(1), "one captured update"), (quiet(2), "2 captured updates of 2 clients")):
        assert words in decide(verdict(trials, GATE), GATE, captured=True).rests_on
        assert "captured" not in decided(trials).rests_on


def test_what_is_next_for_a_captured_round_can_be_done() -> None:
    """A smaller batch was advised, of a round that has been."""
    captured, simulated = (decide(verdict(quiet(59), GATE), GATE, captured=c).next.step for c in (True, False))
    assert "plan without update" in captured
    assert "data.size" not in captured
    assert "data.size" in simulated


def test_one_client_never_says_that_labels_do_not_leak() -> None:
    """The constant guess that is best for one client is that client's own labels."""
    found = verdict([trial(0, 10.0, f1=1.0, constant=1.0)], None)
    leak = found.findings[0].label_f1
    assert leak.leaks is None
    told: Any = signed(found, {}, {}, [])
    assert "F1 1.00" in told["labels"]
    assert "no better" not in told["labels"]


def test_epsilon_is_stated_where_the_mechanism_states_one_and_nowhere_else() -> None:
    trials = [trial(0, 10.0)]
    config = {"data": {"batch": 4}, "defenses": ["none", [{"clip": {"norm": 1.0}}, {"noise": {"sigma": 1.0}}]]}
    found: Any = signed(verdict(trials, None), config, {"data": "ab"}, [])
    without, noisy = found["privacy_budget"]
    assert without["epsilon"] is None
    assert "neither clip nor noise" in without["reason"]
    assert noisy["epsilon"] == pytest.approx(4.38, abs=0.01)
    assert noisy["at_most"] == pytest.approx(norm.cdf(norm.ppf(1e-3) + 1), rel=1e-3), "full batch, one release, z = 1"
    assert "right at most 1.8 % of the time" in noisy["robustness"]
    assert "at_most" not in without
    assert found["hashes"] == {"data": "ab"}
    assert found["origin"]["kind"] == "simulated"
    for file, words in (
        ("round.safetensors", "round.safetensors"),
        ("/data/round-1/u.safetensors", "round-1/u.safetensors"),
    ):
        own: Any = signed(verdict(trials, None), config | {"update": file}, {}, [])
        assert own["origin"]["words"] == f"Captured: one real update, {words}"
    assert "safe" not in str(found)
    assert found["rows"] == ["a on m, fedsgd, none"]


def test_epsilon_counts_the_local_steps_of_the_plan_s_clients() -> None:
    """Noise on a gradient says nothing of a delta, and five noisy steps with an example are no single release."""
    local = {"fedavg": {"epochs": 5, "batch_size": 1, "lr": 0.1}}
    cohort = {"secure-aggregation": {"cohort": 4}}
    noisy = [{"clip-examples": {"norm": 1.0}}, {"noise": {"sigma": 2.0}}]
    config = {"data": {"batch": 4}, "defenses": [noisy, {"dp-sgd": {"norm": 1.0, "noise_multiplier": 5**0.5}}]}

    def stated(*clients: Any, lint: Sequence[LintFinding] = ()) -> list[dict[str, Any]]:
        return budgets(config | {"clients": list(clients)}, lint)

    approx = partial(pytest.approx, rel=1e-3)
    whole, single = (Claim.of_noise(z, 1e-5).epsilon for z in (8.0, 2.0))
    assert [b["epsilon"] for b in stated("fedsgd")] == [approx(whole), approx(Claim.of_noise(5**0.5, 1e-5).epsilon)]
    assert stated(cohort)[0]["epsilon"] == approx(single), "each of four holds one example"
    without, steps = stated("fedsgd", local)
    assert without["epsilon"] is None
    assert "noise on a delta" in without["reason"]
    assert (steps["releases"], steps["epsilon"]) == (5, approx(Claim.of_noise(1.0, 1e-5).epsilon))
    assert "5 noisy local steps" in steps["reason"]
    carried = LintFinding(SENT, LintSeverity.MEDIUM, "m", "statistics travel", "keep them")
    assert [b["epsilon"] for b in stated("fedsgd", lint=[carried])] == [None, None]


CALM = [*POWER, *quiet(80)]


STRANGE = [replace(t, controls=replace(t.controls, other_client=None)) for t in quiet(60)]


def test_a_report_of_an_unfinished_audit_is_no_clearance(tmp_path: Path) -> None:
    """`leakgauge report` said "No objection" of the trials that had run, where `leakgauge gate` said "unfinished"."""
    plan = resolve_plan(tiny(attacks=["closed-form"], gate={"identified": {"max": 0.5}}))
    asked = plan.begun({}, ["x", "y"], {}, counts_only=False)
    store = Store.create(tmp_path, asked, ["x", "y"])
    reasons = verdict_of(store).gate.reasons
    store.close()
    assert any("unfinished: 2 trials have not run" in reason.text for reason in reasons)


@pytest.mark.parametrize(
    ("trials", "gate"),
    [
        (CALM, {"identified": {"max": 0.05}}),
        (CALM, {"psnr": {"worst": 18}}),
        ([*POWER, *STRANGE], {"identified": {"max": 0.2}}),
        ([*POWER, *quiet(80), *quiet(80, attack="b")], {"identified": {"max": 0.2}}),
        ([*POWER, *quiet(3)], {"identified": {"max": 0.9}}),
        ([*POWER, *quiet(2)], {"psnr": {"worst": 18, "share": 0.9}}),
        ([*POWER, *quiet(80, f1=0.9)], {"identified": {"max": 0.2}}),
        ([*POWER, *quiet(80, f1=0.9)], {"identified": {"max": 0.2}, "label_f1": {"max": 1}}),
        ([*POWER, *quiet(80, trace=())], {"identified": {"max": 0.2}}),
        (
            [*POWER, *(trial(i, 10.0, defense="d", identified=i < 20, recovered=False) for i in range(80))],
            {"identified": {"max": 0.5}},
        ),
        ([*POWER, *quiet(79), trial(79, 30.0, defense="d", identified=True)], {"identified": {"max": 0.5}}),
    ],
)
def test_the_page_and_the_exit_code_say_the_same(trials: list[Trial], gate: dict[str, Any]) -> None:
    """Six of these said "No" or "Not yet" on the page, over a gate that passed."""
    limits = GateConfig.model_validate(gate)
    found = verdict(trials, limits)
    decision = decide(found, limits, captured=False)
    assert (decision.answer is Answer.NO_OBJECTION) == bool(found.gate.passed)
    if any(row.level is Level.PARTIAL for row in found.findings):
        assert "20 of 80 images are singled out, more than by chance, which the gate permits" in decision.reason


@pytest.mark.parametrize(
    ("f1", "constant", "words", "leaks"),
    [
        ([1.0] * 5, 0.7, "read right in every client (F1 1.00", True),
        ([1.0] * 2, 0.7, "read right in every client (F1 1.00", True),
        ([1.0, 1.0, 2 / 3, 1.0, 1.0] * 3, [1.0, 2 / 3, 1 / 3], "read better than by guessing", True),
        ([0.9] * 4, 0.67, "too few clients to tell (F1 0.90", None),
        ([0.7] * 14, 0.67, "too few clients to tell", None),
        ([1.0, 0.0] * 3, 0.5, "no better than by guessing", False),
    ],
)
def test_labels_that_were_read_are_said_to_be_read(
    f1: list[float], constant: float | list[float], words: str, leaks: bool | None
) -> None:
    """Labels of 20 of 20 records (F1 1.00, constant guess .70) and F1 .98 in 14 clients: "cannot be told", and a gate
    without a limit on labels passed."""
    guesses = itertools.cycle(constant if isinstance(constant, list) else [constant])
    pairs = zip(f1, guesses, strict=False)
    rows = [trial(i, 10.0, defense="d", f1=value, constant=guess) for i, (value, guess) in enumerate(pairs)]
    found = row_of([*POWER, *rows])
    assert found.label_f1.leaks is leaks
    assert words in label_words([found])
    reasons = judged([*POWER, *rows], identified={"max": 0.9}).reasons
    assert any("labels: m, fedsgd, d: they are read better" in r.text for r in reasons) == bool(leaks)


def test_labels_of_one_client_beside_certified_examples_are_read() -> None:
    """One client, its example certified: "one client cannot tell that from luck"."""
    for certified in (0, 1):
        row = trial(0, 80.0, defense="d", identified=True, f1=1.0, constant=0.5, certified=certified)
        assert ("read right (F1 1.00)" in label_words([row_of([*POWER, row])])) == bool(certified)
