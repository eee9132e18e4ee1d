"""Faults that are planted in an audit are flagged; clean audits are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from leakgauge.compute import Compute
from leakgauge.defenses import Defense
from leakgauge.observation import Cost, Status, Tried
from leakgauge.study.deal import first_holders
from leakgauge.study.grammar import GateConfig
from leakgauge.study.judging.records import LayerRead, Role, Trial, read_trial, record_of
from leakgauge.study.judging.results import Level
from leakgauge.study.judging.verdict import VERDICT, verdict
from leakgauge.study.plan import resolve_plan
from leakgauge.study.trial import run_trial
from leakgauge.task import Batch
from leakgauge.tensors import Tensors
from study.plans import tiny
from study.trials import POWER, judged, quiet, row_of, trial

GATE = GateConfig.model_validate({"identified": {"max": 0.9}})


def kinds(trials: Sequence[Trial], defense: str = "d", attack: str = "a") -> set[str]:
    found = next(
        f
        for f in verdict(trials, None).findings
        if f.scenario.defense == defense and f.attack == attack and not f.control
    )
    return {flag.kind for flag in found.flags}


def flags(trials: Sequence[Trial]) -> set[str]:
    return {flag.kind for flag in row_of(trials).flags}


def broken_strongest(rng: np.random.Generator) -> list[Trial]:
    """The strongest attack recovers nothing where a recipe recovers nearly all."""
    hits = rng.random(8) < 0.95
    weak = [trial(i, 25.0, identified=bool(h), defense="d", attack="b") for i, h in enumerate(hits)]
    return [*POWER, *weak, *(trial(i, 10.0, defense="d", role=Role.STRONGEST) for i in range(8))]


def naive_wins(rng: np.random.Generator) -> list[Trial]:
    """Knowing the defence makes the same attack worse."""
    hits = rng.random(8) < 0.95
    weak = [
        trial(i, 25.0, identified=bool(h), defense="d", attack="naive(a)", role=Role.NAIVE, base="a")
        for i, h in enumerate(hits)
    ]
    return [*POWER, *weak, *(trial(i, 10.0, defense="d") for i in range(8))]


def zero_gradient(rng: np.random.Generator) -> list[Trial]:
    """A rounding in the simulation has no derivative: the objective stays where it began."""
    level = float(rng.random())
    return [*POWER, *(trial(i, 10.0, defense="d", trace=((0, level), (50, level))) for i in range(8))]


def infinite(rng: np.random.Generator) -> list[Trial]:
    """Overflow in most trials; the others give noise."""
    lost = rng.random(8) < 0.8
    made = [
        trial(i, None if gone else 8.0, defense="d", status="non_finite" if gone else None)
        for i, gone in enumerate(lost)
    ]
    return [*POWER, *made]


def powerless(rng: np.random.Generator) -> list[Trial]:
    """An attack that recovers a tenth without a defence."""
    control = [trial(i, 30.0, identified=bool(rng.random() < 0.1), control=True) for i in range(5)]
    return [*control, *(trial(i, 10.0, defense="d") for i in range(8))]


def prior_only(rng: np.random.Generator) -> list[Trial]:
    """Its reads are pretty pictures that owe nothing to the update."""

    def pretty(i: int, **changes: object) -> Trial:
        values = rng.normal(14, 2, 2)
        return trial(i, float(values[0]), other=float(values.mean()), **changes)  # type: ignore[arg-type]

    return [*(pretty(i, control=True) for i in range(5)), *(pretty(i, defense="d") for i in range(8))]


def torn(rng: np.random.Generator) -> list[Trial]:
    """An attack that works by the toss of a coin."""
    control = [
        trial(i, 25.0, identified=bool(h), control=True, seed=s)
        for i in range(8)
        for s, h in enumerate(rng.random(4) < 0.5)
    ]
    return [*control, *(trial(i, 10.0, defense="d") for i in range(8))]


def lucky_restart(rng: np.random.Generator) -> list[Trial]:
    """One restart of four gets anywhere."""
    ends = [(0.9, 0.02, 0.8, float(0.5 + rng.random() / 2)) for _ in range(8)]
    return [*POWER, *(trial(i, 10.0, defense="d", restarts=ends[i]) for i in range(8))]


def raising(rng: np.random.Generator) -> list[Trial]:
    """One method of the attack ended by an error on some of the clients."""
    ends = (Tried("patches", Status.FAILED, "KeyError: 'logits'", True), Tried("matching", Status.CONVERGED, "", False))
    broken = {int(rng.integers(8)), int(rng.integers(8))}
    made = [trial(i, 10.0, defense="d") for i in range(8)]
    return [*POWER, *(replace(t, tried=ends[i not in broken :]) for i, t in enumerate(made))]


def features_alone(rng: np.random.Generator) -> list[Trial]:
    """What a layer was given was read and proved on one client, and no picture came back on any."""
    layer, client = LayerRead("layer4.0.conv1.weight", 1, 1e-6), int(rng.integers(8))
    made = [trial(i, 10.0, defense="d") for i in range(8)]
    return [*POWER, *(replace(t, layers=(layer,)) if i == client else t for i, t in enumerate(made))]


def opaque(rng: np.random.Generator) -> list[Trial]:
    """What a parameter is used for is not understood."""
    why = f"parameter `w{int(rng.integers(9))}` is used in a way that is not understood"
    tried = (Tried("the view in plain layers", Status.FAILED, why, raised=False, opaque=True),)
    return [*POWER, *(replace(trial(i, 10.0, defense="d"), tried=tried) for i in range(8))]


FAULTS: dict[Callable[[np.random.Generator], list[Trial]], set[str]] = {
    broken_strongest: {"WeakerWins"},
    naive_wins: {"WeakerWins"},
    zero_gradient: {"NoGradient"},
    infinite: {"NoGradient"},
    powerless: {"ControlNotRecovered"},
    prior_only: {"ControlNotRecovered", "NoBetterThanPrior"},
    torn: {"RestartsDisagree"},
    lucky_restart: {"RestartsDisagree"},
    raising: {"MethodRaised"},
    features_alone: {"InputsOfLayer"},
    opaque: {"NotUnderstood"},
}


@pytest.mark.parametrize("fault", FAULTS, ids=[f.__name__ for f in FAULTS])
def test_a_planted_fault_is_flagged_and_cannot_pass(fault: Callable[[np.random.Generator], list[Trial]]) -> None:
    """At least 19 of 20 of each, by the right flag."""
    seen = 0
    for seed in range(20):
        trials = fault(np.random.default_rng(seed))
        seen += FAULTS[fault] <= kinds(trials)
        result = verdict(trials, GATE)
        assert result.gate.passed is False
        # The gate failed such rows, and the headline said all the same that nothing came back.
        assert not any(f.flags and f.level is Level.NOT_RECOVERED for f in result.findings)
        assert "recovered nothing" not in " ".join(result.headline)
    assert seen >= 19


def clean(rng: np.random.Generator) -> list[Trial]:
    """An attack that recovers most undefended clients, two weaker ones, and a defence that holds or leaks."""
    leak, trials = float(rng.choice([0.0, 0.5, 1.0])), []
    for control, defense, rate, n in ((True, "none", 0.95, 5), (False, "d", 0.97 * leak, 8)):
        ease = rng.random(n)
        for name, role, skill in (("a", Role.STRONGEST, 1.0), ("b", Role.RECIPE, 0.8), ("naive(a)", Role.NAIVE, 0.3)):
            for i in range(n):
                hit = bool(ease[i] < rate * skill)
                psnr = float(rng.normal(25 if hit else 11, 1.5))
                trace = tuple((10 * k, float(v)) for k, v in enumerate(np.sort(rng.random(4))[::-1]))
                restarts = tuple(float(v) for v in 0.01 + 0.02 * rng.random(4))
                made = trial(
                    i, psnr, identified=hit, defense=defense, control=control, attack=name, role=role, base="a",
                    other=float(rng.normal(10, 0.5)), trace=((0, 2.0), *trace), restarts=restarts,
                )  # fmt: skip
                trials.append(made)
    return trials


@pytest.mark.parametrize("audits", [range(10), pytest.param(range(10, 110), marks=pytest.mark.slow)])
def test_clean_audits_are_not_flagged(audits: range) -> None:
    """At most one in a hundred, counting the strongest attack's row."""
    assert sum(bool(kinds(clean(np.random.default_rng(seed)))) for seed in audits) <= 1


@pytest.mark.slow
def test_two_attacks_of_luck_do_not_convict_each_other() -> None:
    false = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        trials = [
            trial(i, 20.0, identified=bool(rng.random() < 0.5), defense="d", attack=name, role=role)
            for name, role in (("a", Role.STRONGEST), ("b", Role.RECIPE))
            for i in range(6)
        ]
        false += "WeakerWins" in kinds(trials)
    assert false <= 2


def test_what_was_tried_survives_the_record_and_an_error_is_told() -> None:
    broken = next(t for t in raising(np.random.default_rng(0)) if any(one.raised for one in t.tried))
    told = record_of(broken)
    kept = {"name": "patches", "status": "failed", "why": "KeyError: 'logits'", "raised": True, "opaque": False}
    assert told["tried"][0] == kept
    assert read_trial(told).tried == broken.tried
    told.pop("tried")
    assert read_trial(told).tried == ()  # of an earlier version
    flag = verdict(raising(np.random.default_rng(0)), GATE).findings[0].flags[0]
    assert "patches ended by an error in" in flag.sentence


def test_a_flag_is_on_the_record_and_in_the_sentence() -> None:
    result = verdict(zero_gradient(np.random.default_rng(0)), GATE)
    record = VERDICT.dump_python(result, mode="json")["findings"][0]
    assert record["flags"][0]["kind"] == "NoGradient"
    assert "no gradient to follow" in record["flags"][0]["sentence"]
    assert "no gradient to follow" in record["sentence"]
    assert "unreliable" in result.headline[1]
    assert any("unreliable: a on m, fedsgd, d" in reason.text for reason in result.gate.reasons)


@dataclass(frozen=True)
class Secret(Defense):
    """Turns every tensor round, and gives its attackers nothing to undo that by."""

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        return {name: tensor.flatten().flip(0).view_as(tensor) for name, tensor in tensors.items()}


def test_a_search_that_the_clock_ended_early_is_flagged() -> None:
    """A defence that is slow to simulate looked like one that protects: a tenth of the search in the same time."""
    slow = [replace(t, status="time_limit", cost=Cost(10, 1.0)) for t in quiet(20)]
    control = [replace(t, cost=Cost(100, 1.0)) for t in POWER]
    assert "CutShort" in flags([*control, *slow])
    assert judged([*control, *slow]).passed is False
    even = [replace(t, status="time_limit", cost=Cost(90, 1.0)) for t in quiet(20)]
    assert judged([*control, *even]).passed is True


@pytest.mark.parametrize("status", ["time_limit", "out_of_budget", "out_of_steps"])
@pytest.mark.parametrize(("spent", "batch", "doubted"), [(6, 1, True), (300, 1, False), (300, 2, True)])
def test_controls_that_were_read_show_no_search_s_power(status: str, spent: int, batch: int, doubted: bool) -> None:
    """Random-k stood on six evaluations, "not recovered" with no flag: the controls had been read exactly, without any.
    With 150 one of six came back."""
    rows = [trial(i, [9.0] * batch, defense="d", status=status) for i in range(20)]
    rows = [replace(t, cost=Cost(spent, 1.0)) for t in rows]
    both = [True] * batch
    read = [trial(i, [300.0] * batch, identified=both, control=True, status="exact", certified=batch) for i in range(5)]
    read = [replace(t, cost=Cost(0, 1.0)) for t in read]
    assert ("SearchNotShown" in flags([*read, *rows])) is doubted
    assert judged([*read, *rows]).passed is not doubted
    # Beside one that was read, a control that was searched for says how much a search takes.
    searched = replace(read[4], status="converged", cost=Cost(1000, 1.0))
    searched = replace(searched, scores=replace(rows[0].scores, recovered=both))
    assert "CutShort" in flags([*read[:4], searched, *rows])


def test_controls_of_one_picture_show_no_power() -> None:
    """Where a source had one picture to lend, five controls of it showed that the attack "works"."""
    one = Batch(torch.rand(4, 3, 8, 8), torch.zeros(4, dtype=torch.long))
    half = Batch(torch.cat([one.inputs[:2], torch.rand(2, 3, 8, 8)]), one.labels)
    other = Batch(torch.cat([one.inputs[3:], torch.rand(3, 3, 8, 8)]), one.labels)
    assert first_holders([one, one.take(torch.tensor([3, 2, 1, 0])), half, other]) == [0, 0, 0, 3]


@pytest.mark.parametrize("status", ["stopped", "out_of_budget", "out_of_steps"])
def test_a_search_that_ended_itself_early_is_flagged(status: str) -> None:
    """An attack that gave up after one evaluation wherever there was a defence cleared it."""
    control = [replace(t, cost=Cost(100, 1.0)) for t in POWER]
    rows = [replace(t, status=status, cost=Cost(1, 1.0)) for t in quiet(20)]
    assert "CutShort" in flags([*control, *rows])
    assert judged([*control, *rows]).passed is False


def test_a_search_that_never_took_a_step_is_flagged() -> None:
    """ "Converged" at its first evaluation, where a defence left the objective flat: one point is no trace to judge."""
    rows = [replace(t, cost=Cost(1, 1.0)) for t in quiet(20, trace=((1, 0.5),))]
    assert "NoGradient" in flags([*POWER, *rows])
    assert judged([*POWER, *rows]).passed is False


def test_a_mechanism_that_only_its_author_knows_clears_nothing() -> None:
    """A permutation by a fixed key, of a defence without an `attacker_view`: "not recovered", and a passed gate. Its
    attackers were said to know the defence, and knew nothing."""
    plan = resolve_plan(tiny(attacks=["closed-form"], defenses=["none", Secret(), [Secret(), {"topk": {"keep": 0.5}}]]))
    knowledge = {k.defense: run_trial(plan, k, compute=Compute()).record for k in plan.trials() if not k.control}
    told = {d: "defense" in record["scenario"]["knowledge"] for d, record in knowledge.items()}
    assert told == {0: True, 1: False, 2: False}
    hidden = [replace(t, scenario=replace(t.scenario, knowledge=("example_count",))) for t in quiet(20)]
    assert "Uninformed" in flags([*POWER, *hidden])
