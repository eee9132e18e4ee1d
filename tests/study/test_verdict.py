"""What trials may be said to show: power, chance, levels, intervals and the gate, on hand-made trials."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from leakgauge.intervals import proportion_upper
from leakgauge.study.grammar import GateConfig
from leakgauge.study.judging.decision import decide
from leakgauge.study.judging.findings import BY_CHANCE, beyond_chance, power_of
from leakgauge.study.judging.gate import GateResult, needed
from leakgauge.study.judging.records import Role, Trial, read_trial, record_of
from leakgauge.study.judging.results import Finding, Level, groups_of
from leakgauge.study.judging.verdict import VERDICT, Verdict, verdict
from study.trials import LEAKY, OTHERS, POWER, trial


def finding_of(trials: Sequence[Trial], defense: str = "none") -> Finding:
    return next(f for f in verdict(trials, None).findings if f.scenario.defense == defense and not f.control)


def level(trials: Sequence[Trial], defense: str = "none") -> Level:
    return finding_of(trials, defense).level


def judged(gate: dict[str, object], trials: Sequence[Trial]) -> GateResult:
    return verdict(trials, GateConfig.model_validate(gate)).gate


def lines(result: GateResult) -> str:
    return "\n".join(reason.text for reason in result.reasons)


def quiet(n: int, **changes: object) -> list[Trial]:
    """Clients behind a defence of whom nothing came back."""
    return [trial(i, 10.0, **({"defense": "d"} | changes)) for i in range(n)]  # type: ignore[arg-type]


def hidden(n: int, attack: str = "a") -> list[Trial]:
    """Clients behind a defence whose trials all failed."""
    return [trial(i, None, defense="d", attack=attack) for i in range(n)]


POWERLESS = [trial(i, 10.0) for i in range(8)]
OTHER_LOOP = [trial(i, 30.0, identified=True, control=True, client="fedavg") for i in range(5)]
LARGER = [trial(i, [30.0, 30.0], identified=True, control=True) for i in range(5)]
BROKEN_CONTROLS = [*POWER[:2], *(trial(i, None, control=True) for i in range(2, 5))]
SKIPPED = [trial(i, None, defense="d", status="not_applicable") for i in range(20, 60)]
STRANGE = [replace(t, controls=replace(t.controls, other_client=None)) for t in quiet(20)]
PARTLY = [trial(i, 10.0, defense="d", identified=i < 20, recovered=False) for i in range(80)]


def by_layer(trials: list[Trial]) -> list[Trial]:
    """Examples that were identified by what a layer was given."""
    return [replace(t, scores=replace(t.scores, layer="fc.weight")) for t in trials if t.scores is not None]


LEVELS: dict[str, tuple[Sequence[Trial], Level, str]] = {
    "one recovered": ([*quiet(7), trial(7, 30.0, identified=True, defense="d")], Level.EXPOSED, "1 of 8 images"),
    # The attack proved it; that no score sees it is the scores' fault.
    "certified": ([*POWER, *quiet(60, status="exact", certified=1)], Level.EXPOSED, "certified"),
    # Nothing "came back" by 3 dB, and every client's chest was told from a hundred others.
    "look-alikes": (
        [*POWER, *quiet(12, identified=True, recovered=False)],
        Level.EXPOSED,
        "12 of 12 images singled out among look-alikes",
    ),
    # No picture came of a layer whose input was proved, which told whose two of eight were, strangers' seldom.
    "inputs of a layer": (
        [*POWER, *quiet(6), *by_layer(quiet(8, identified=True, recovered=False)[6:])],
        Level.EXPOSED,
        "2 of 8 images told from others by what fc.weight was given",
    ),
    "inputs of a layer, by chance": (
        [*LEAKY, *by_layer(quiet(8, identified=True, recovered=False, strangers=(1,) * OTHERS))],
        Level.NOT_RECOVERED,
        "",
    ),
    "with power": ([*LEAKY, *quiet(8)], Level.NOT_RECOVERED, "not that it is safe"),
    "without power": ([*POWERLESS, *quiet(8)], Level.INCONCLUSIVE, "does not recover the undefended controls"),
    "without controls": (quiet(8), Level.INCONCLUSIVE, "no control shows"),
    # One gradient of one image was the control of local training on batches.
    "controls of another loop": ([*OTHER_LOOP, *quiet(8)], Level.INCONCLUSIVE, "no control shows"),
    "controls of larger batches": ([*LARGER, *quiet(8)], Level.INCONCLUSIVE, "no control shows"),
    "four controls": ([*POWER[:4], *quiet(8)], Level.INCONCLUSIVE, "too few to show its power"),
    # Trials without a result count as not recovered: an attack that breaks on three of five controls.
    "controls that fail": ([*BROKEN_CONTROLS, *quiet(8)], Level.INCONCLUSIVE, ""),
    # "Not recovered" on the 20 of 60 clients that the attack could read at all.
    "clients that it does not apply to": (
        [*POWER, *quiet(20), *SKIPPED],
        Level.INCONCLUSIVE,
        "40 of 60 trials gave no result",
    ),
    # With nobody to compare with, chance was taken for certain, and identified clients for luck.
    "no strangers": ([*POWER, *STRANGE], Level.INCONCLUSIVE, "no other images to compare with"),
    "four clients": ([*LEAKY, *quiet(4)], Level.INCONCLUSIVE, "too few clients"),
    "five clients": ([*LEAKY, *quiet(5)], Level.NOT_RECOVERED, ""),
    # Known defects: a failed attack as a missing row; "Job finished" over a crash.
    "failures alone": ([*LEAKY, *hidden(8)], Level.INCONCLUSIVE, "no result in 8 trials (it broke)"),
    "failures beside results": (
        [*LEAKY, *quiet(8), *hidden(40)[8:]],
        Level.INCONCLUSIVE,
        "32 of 40 trials gave no result",
    ),
}


@pytest.mark.parametrize("name", LEVELS)
def test_what_trials_show(name: str) -> None:
    records, expected, words = LEVELS[name]
    found = finding_of(records, "d")
    assert found.level is expected
    assert words in found.sentence


SHARE: dict[str, object] = {"identified": {"max": 0.05}}
LABELS: dict[str, object] = {"label_f1": {"max": 0.05}}
ALL: dict[str, object] = {**SHARE, "psnr": {"worst": 18}, "label_f1": {"max": 0.5}}
WORST = [trial(i, 30.0 if i == 3 else 10.0, identified=i == 3, f1=0.9) for i in range(8)]
GATES: dict[str, tuple[dict[str, object], Sequence[Trial], bool, tuple[str, ...]]] = {
    "certified": ({"identified": {"max": 1.0}}, LEVELS["certified"][0], False, ()),
    "exposed": (
        {"identified": {"max": 1.0}, "psnr": {"worst": 90}},
        [*POWER, *quiet(300), trial(300, 9.0, defense="d", recovered=True)],
        False,
        ("1 of 301 images recovered; no limit lets that pass",),
    ),
    # The end of the interval that hurts: 0 of 8 still allows .31.
    "eight clients": (
        SHARE,
        [*POWER, *quiet(8)],
        False,
        ("0 of 8 images in 8 clients give a 95 % upper bound of 0.31, above the limit of 0.05", "at least 59 clients"),
    ),
    "58 clients": (SHARE, [*POWER, *quiet(58)], False, ("at least 59 clients",)),
    "59 clients": (SHARE, [*POWER, *quiet(59)], True, ()),
    "no control": (SHARE, quiet(60), False, ("power: m, fedsgd, d: no control shows",)),
    "no power": (SHARE, [*POWERLESS, *quiet(60)], False, ("power: m, fedsgd, d: the attack does not recover",)),
    # It said that no attack recovers the undefended controls, beside four that came back whole.
    "few controls": (SHARE, [*POWER[:4], *quiet(60)], False, ("power: m, fedsgd, d: the attack recovers 100 % of 4",)),
    "failed trials": (
        SHARE,
        [*POWER, *quiet(60), *hidden(3, "b")],
        False,
        ("failed: b on m, fedsgd, d: 3 of 3 trials gave no result (it broke)",),
    ),
    "clients that it does not apply to": ({"identified": {"max": 0.2}}, [*POWER, *quiet(20), *SKIPPED], False, ()),
    # Each of these passed: the only attacker tried took the defended update for an undefended one; no attack looked at
    # labels, or the plan gave them away; a gate on PSNR alone, with a quarter of the clients singled out.
    "a naive attacker": (
        {"identified": {"max": 0.2}},
        [replace(t, role=Role.NAIVE) for t in (*POWER, *quiet(20))],
        False,
        ("hiding it is no defence",),
    ),
    "an attacker who is not told": (
        {"identified": {"max": 0.2}},
        [replace(t, scenario=replace(t.scenario, knowledge=("example_count",))) for t in (*POWER, *quiet(20))],
        False,
        ("hiding it is no defence",),
    ),
    "labels that nobody read": (LABELS, [*POWER, *quiet(20)], False, ("its limit on them says nothing",)),
    "beyond chance without a limit": ({"psnr": {"worst": 18}}, [*POWER, *PARTLY], False, ("has no limit on that",)),
    "beyond chance within the limit": ({"identified": {"max": 0.5}}, [*POWER, *PARTLY], True, ()),
    "every limit": (
        ALL,
        WORST,
        False,
        (
            "identified: a on m, fedsgd, none: 1 of 8 images",
            "highest PSNR 30.0 dB, the gate allows 18 dB",
            "label_f1: a on m, fedsgd, none: mean 0.90, the gate allows 0.5",
        ),
    ),
    "labels that were given": (LABELS, [*POWER, *quiet(5, f1=1.0, known=True)], False, ("they are given",)),
    "labels of one client": (LABELS, [trial(0, 10.0, f1=0.0, seed=s) for s in range(9)], False, ("label_f1",)),
    "labels, one trial": (LABELS, [trial(0, 10.0, f1=0.2)], False, ("label_f1",)),
    "labels of many": ({"label_f1": {"max": 0.5}}, [*POWER, *quiet(20, f1=0.1)], True, ()),
}


@pytest.mark.parametrize("name", GATES)
def test_what_passes_a_gate(name: str) -> None:
    gate, records, passed, words = GATES[name]
    result = judged(gate, records)
    assert result.passed is passed
    assert all(text in lines(result) for text in words)


def test_added_controls_show_power_and_are_not_findings_of_their_own() -> None:
    result = verdict([*POWER, *quiet(8)], None)
    assert result.level is Level.NOT_RECOVERED
    assert [f.control for f in result.findings] == [False, True]
    assert "1 setting tested" in result.headline[0]


@pytest.mark.parametrize("clients", [5, 6, 8, 20])
def test_a_feeble_attack_is_not_said_to_have_power(clients: int) -> None:
    """An attack of power .1 was "shown" in 19 % of audits, by one recovered control of two."""

    def shown(hits: int) -> bool:
        control = [trial(i, 30.0, identified=i < hits, control=True) for i in range(clients)]
        groups = groups_of([*control, *quiet(1)])
        return power_of(groups[1], groups).shown is True

    law = [hits for hits in range(clients + 1) if shown(hits)]
    assert sum(binom.pmf(hits, clients, 0.1) for hits in law) <= 0.02
    assert sum(binom.pmf(hits, clients, 0.9) for hits in law) >= 0.98


def test_one_client_of_many_images_is_one_client() -> None:
    """32 images of one client said "up to 9 %": but that client may be the only one that is safe."""
    batch = [trial(i, [30.0] * 32, identified=True, control=True) for i in range(5)]
    one = [*batch, trial(0, [10.0] * 32, defense="d")]
    assert level(one, "d") is Level.INCONCLUSIVE
    assert finding_of(one, "d").identified.upper == pytest.approx(0.95, abs=0.01)  # type: ignore[union-attr]
    result = judged({"identified": {"max": 0.1}}, one)
    assert result.passed is False
    assert "at least 29 clients" in lines(result)


def test_seeds_are_repetitions_and_not_more_clients() -> None:
    found = finding_of([trial(i, 10.0, seed=s) for i in range(4) for s in range(10)]).identified
    assert (found.count, found.n, found.clients) == (0, 4, 4)


@pytest.mark.parametrize(
    "records", [LEAKY, [trial(i, 10.0) for i in range(8)], [trial(0, None)], [trial(0, 11.0, identified=True)]]
)
def test_a_verdict_never_says_safe(records: list[Trial]) -> None:
    result = verdict(records, None)
    assert len(result.headline) == 2
    for text in [*result.headline, *(f.sentence for f in result.findings)]:
        assert "safe" not in text.replace("not that it is safe", "")
        assert text.endswith(".")


def test_what_is_still_possible_is_said_of_these_attacks() -> None:
    second = verdict([*POWER, *quiet(8)], None).headline[1]
    assert "these attacks may still succeed on up to 31 % of such clients" in second
    assert "stronger ones on more" in second


def test_highest_median_and_lowest_psnr_are_of_images() -> None:
    psnr = finding_of([trial(i, v) for i, v in enumerate((10.0, 12.0, 20.0))]).psnr
    assert (psnr.highest, psnr.median, psnr.lowest) == (20.0, 12.0, 10.0)
    assert psnr.mean == pytest.approx(14.0)
    assert psnr.low is not None
    assert psnr.high is not None
    assert psnr.low <= 14.0 <= psnr.high


@pytest.mark.parametrize("seeds", [1, 3])
def test_identification_of_whole_batches_is_seen_whatever_seeds_and_batch(seeds: int) -> None:
    """24 of 64 identified were "not recovered": chance grew with seeds × batch to 1 − (100/101)²⁴."""
    batch = [
        trial(i, [11.0] * 8, identified=[True] * 3 + [False] * 5, recovered=False, seed=s, defense="d")
        for i in range(8)
        for s in range(seeds)
    ]
    control = [trial(i, [30.0] * 8, identified=True, control=True) for i in range(5)]
    assert level([*control, *batch], "d") is Level.PARTIAL


def test_what_other_clients_images_reach_is_no_identification() -> None:
    """The same reads identify strangers as often: a line-up that one picture always wins."""
    lucky = quiet(8, identified=True, recovered=False, strangers=(1,) * OTHERS)
    found = finding_of([*POWER, *lucky], "d")
    assert found.identified.beyond == 1
    assert found.identified.chance == 1
    assert found.level is Level.NOT_RECOVERED
    assert found.residual_risk.low <= 0


def test_chance_is_exact() -> None:
    """Four strangers, one of them identified: own and one other of five are, so two clients are both with (2/5)²."""
    two = [trial(i, 10.0, identified=True, recovered=False, strangers=(1, 0, 0, 0)) for i in range(2)]
    found = finding_of(two).identified
    assert found.beyond == pytest.approx(0.16)


@pytest.mark.parametrize("correlated", [False, True])
def test_chance_identifies_beyond_chance_in_one_audit_of_forty(correlated: bool) -> None:
    """Reads that know nothing; images of a client are identified together or apart."""
    rng, false, audits = np.random.default_rng(0), 0, 200
    for _ in range(audits):
        made = []
        for i in range(6):
            draws = rng.random((10, 4 if not correlated else 1)) < 0.15
            counts = draws.sum(1) * (1 if not correlated else 4)
            own = [True] * int(counts[0]) + [False] * (4 - int(counts[0]))
            made.append(
                trial(
                    i, [10.0] * 4, identified=own, recovered=False, strangers=[int(c) for c in counts[1:]], defense="d"
                )
            )
        false += beyond_chance(groups_of(made)[0]) <= BY_CHANCE
    assert false / audits <= 0.025 + 2 * (0.025 * 0.975 / audits) ** 0.5


def test_residual_risk_is_what_is_left_above_the_control() -> None:
    """(attack − control) / (1 − control): .75 identified where strangers are in a quarter."""
    half = [trial(i, [10.0] * 4, identified=[True] * 3 + [False], strangers=(1,) * OTHERS) for i in range(8)]
    risk = finding_of(half).residual_risk
    assert risk.rate == pytest.approx((0.75 - 0.25) / 0.75, abs=1e-3)
    assert risk.low < risk.rate < risk.high


def test_gain_is_over_the_same_reads_against_strangers() -> None:
    gain = finding_of([trial(i, 13.0 + i, other=12.0) for i in range(4)]).gain
    assert gain.mean == pytest.approx(2.5)


def test_where_every_trial_failed_the_failure_itself_is_said() -> None:
    """It said "add an attack that applies to this model" where each trial had raised the same error."""
    limits = GateConfig.model_validate({"identified": {"max": 0.5}})
    broken = [trial(i, None, attack="b") for i in range(3)]
    found = verdict(broken, limits)
    words = "every trial failed, so nothing was tested: b on m, fedsgd, none: 3 of 3 trials gave no result (it broke)"
    for said in (found.gate.reasons[0].text, decide(found, limits, captured=False).reason):
        assert words in said
        assert "report.html has each" in said
        assert "that applies" not in said
    assert "no result in 3 trials (it broke)" in verdict(broken, None).headline[1]
    other = judged({"identified": {"max": 0.5}}, [*broken, trial(0, None, attack="c", status="not_applicable")])
    assert "every trial failed or did not apply" in other.reasons[0].text
    alone = judged({"identified": {"max": 0.5}}, [trial(0, None, attack="c", status="not_applicable")])
    assert "add an attack that applies" in alone.reasons[0].text


def test_a_gate_over_nothing_is_not_passed() -> None:
    assert judged({"identified": {"max": 0.5}}, [trial(i, None) for i in range(50)]).passed is False
    assert verdict([], None).gate.passed is None


@pytest.mark.parametrize(
    ("f1", "constant", "confidence", "n", "leaks"),
    [
        (1.0, 1.0, 0.0, 8, False),  # two of each class: a constant guess is right in every client
        (1.0, 0.3, 0.9, 8, True),
        (1.0, 0.3, None, 8, True),
        (0.9, 0.3, 0.9, 2, None),  # of two clients nothing can be said,
        (1.0, 0.3, 0.9, 2, True),  # unless all of their labels are read
        (1.0, 0.3, 0.0, 8, None),  # the reader says that it guesses
        (0.4, 0.3, 0.9, 8, None),
    ],
)
def test_labels_leak_where_they_are_read_beyond_the_best_constant_guess(
    f1: float, constant: float, confidence: float | None, n: int, leaks: bool | None
) -> None:
    """DP noise of 50 read "labels leak, F1 1.00 against .81" at confidence 0, on clients of two and two."""
    found = finding_of([trial(i, 10.0, f1=f1, constant=constant, confidence=confidence) for i in range(n)]).label_f1
    assert found.leaks is leaks


@given(st.integers(1, 95))
def test_needed_is_the_least_number_of_clients(percent: int) -> None:
    limit = percent / 100
    n = needed(limit)
    assert isinstance(n, int)
    assert proportion_upper(0, n) <= limit * (1 + 1e-9)
    assert n == 1 or proportion_upper(0, n - 1) > limit


def test_data_that_are_no_images_are_examples() -> None:
    """An electrocardiogram is no picture, in no sentence."""
    records = [replace(t, scenario=replace(t.scenario, data=replace(t.scenario.data, kind="example"))) for t in LEAKY]
    found: Verdict = verdict(records, GateConfig.model_validate({"identified": {"max": 0.1}}))
    words = json.dumps([found.headline, found.findings[0].sentence, VERDICT.dump_python(found, mode="json")["gate"]])
    assert "8 of 8 examples" in words
    assert "picture" not in words
    assert "image" not in words


def test_trials_and_verdicts_are_json_and_trials_come_back() -> None:
    """Hypothesis-free round trip over every kind of optional field."""
    records = [
        *LEAKY,
        trial(9, None, defense="d"),
        trial(9, [10.0, 11.0], f1=0.5, confidence=None, restarts=(1.0, 2.0)),
    ]
    for record in records:
        assert read_trial(json.loads(json.dumps(record_of(record)))) == record
    result = verdict(records, GateConfig.model_validate({"identified": {"max": 0.1}}))
    json.dumps(VERDICT.dump_python(result, mode="json"), allow_nan=False)


def test_a_headline_counts_no_setting_as_reconstructed_where_examples_are_only_singled_out() -> None:
    """It counted a picture that was told from others at 15 dB among those that were reconstructed."""
    told = [replace(t, scenario=replace(t.scenario, client="c")) for t in quiet(12, identified=True, recovered=False)]
    back = [trial(7, 30.0, identified=True, defense="d")]
    for trials, how in (
        (told, "singled out"),
        (back, "reconstructed"),
        ([*told, *back], "reconstructed or singled out"),
    ):
        assert verdict([*POWER, *trials], None).headline[0].startswith(f"Client images were {how} in ")
