"""What trials may be said to show: controls, power, intervals and the gate, on hand-made records."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakgauge.metrics.intervals import proportion_upper
from leakgauge.study.findings import Group, groups_of, identified_images, power_of, recovered_images
from leakgauge.study.gate import judge, needed
from leakgauge.study.grammar import GateConfig
from leakgauge.study.verdict import verdict


def trial(
    index: int,
    psnr: float | None,
    *,
    identified: bool = False,
    defense: str = "none",
    seed: int = 0,
    control: bool = False,
    bar: float = 12.0,
    f1: float | None = None,
    attack: str = "a",
) -> dict[str, Any]:
    """A trial of one image."""
    name = f"m/fedsgd/{defense}/{attack}/s{seed}/b{index:03d}"
    scores = None
    if psnr is not None:
        scores = {
            "psnr": [psnr],
            "ssim": None,
            "lpips": None,
            "identified": [identified],
            "exact": [False],
            "gallery": 100,
        }
    return {
        "id": ("control/" if control else "") + name,
        "scenario": {
            "model": "m",
            "mode": "eval",
            "server": "honest",
            "client": "fedsgd",
            "defense": defense,
            "knowledge": [],
            "data": {"source": "s", "size": 32, "batch": 1, "index": index, "names": [f"{index}.png"]},
        },
        "attack": attack,
        "seed": seed,
        "control": control,
        "status": "converged" if psnr is not None else "failed",
        "message": "" if psnr is not None else "it broke",
        "scores": scores,
        "labels": None if f1 is None else {"true_counts_f1": f1, "baseline_f1": 0.1, "confidence": 1.0, "known": False},
        "controls": {"mean_image": {"psnr": [10.0]}, "nearest_public": {"psnr": [bar]}, "other_client": None},
        "trace": [],
        "cost": {"gradient_evaluations": 7, "seconds": 1.0},
    }


def level(records: list[dict[str, Any]], defense: str = "none") -> str:
    return next(f["level"] for f in verdict(records, None)["findings"] if f["scenario"]["defense"] == defense)


LEAKY = [trial(i, 30.0, identified=True) for i in range(8)]


def test_one_recovered_image_is_exposure() -> None:
    records = [trial(0, 30.0, identified=True), *(trial(i, 11.0) for i in range(1, 8))]
    assert level(records) == "exposed"
    assert "1 of 8 pictures" in verdict(records, None)["headline"][0]


def test_an_image_no_better_than_a_public_picture_is_not_recovered() -> None:
    """Known defect (CI-Net's scoring): constant grey beats published baselines."""
    near = [trial(i, 14.9, identified=True, bar=12.0) for i in range(8)]
    assert recovered_images(groups_of(near)[0]) == 0
    assert level([*LEAKY[:0], *near]) == "partial"
    assert recovered_images(groups_of([trial(0, 15.0, identified=True, bar=12.0)])[0]) == 1


def test_not_recovered_needs_an_attack_that_has_shown_its_power() -> None:
    defended = [trial(i, 10.0, defense="d") for i in range(8)]
    assert level([*LEAKY, *defended], "d") == "not_recovered"
    powerless = [trial(i, 10.0) for i in range(8)]
    assert level([*powerless, *defended], "d") == "inconclusive"
    assert level(defended, "d") == "inconclusive"
    sentences = [f["sentence"] for f in verdict([*powerless, *defended], None)["findings"]]
    assert any("does not recover the undefended control" in s for s in sentences)


def test_added_controls_show_power_and_are_not_findings_of_their_own() -> None:
    controls = [trial(i, 30.0, identified=True, control=True) for i in range(5)]
    defended = [trial(i, 10.0, defense="d") for i in range(8)]
    result = verdict([*controls, *defended], None)
    assert result["level"] == "not_recovered"
    assert [f["control"] for f in result["findings"]] == [False, True]
    assert "1 setting tested" in result["headline"][0]


def test_too_few_images_are_inconclusive() -> None:
    for n, expected in ((4, "inconclusive"), (5, "not_recovered")):
        defended = [trial(i, 10.0, defense="d") for i in range(n)]
        assert level([*LEAKY, *defended], "d") == expected
    assert proportion_upper(0, 4) > 0.5 > proportion_upper(0, 5)


def test_seeds_are_repetitions_and_not_more_images() -> None:
    records = [trial(i, 10.0, seed=s) for i in range(4) for s in range(10)]
    assert identified_images(groups_of(records)[0]) == (0, 4)


def test_failures_stay_in_the_count_and_are_never_safe() -> None:
    """Known defects: a failed attack as a missing row; "Job finished" over a crash."""
    failed = [trial(i, None, defense="d") for i in range(8)]
    found = next(f for f in verdict([*LEAKY, *failed], None)["findings"] if f["scenario"]["defense"] == "d")
    assert found["level"] == "inconclusive"
    assert found["failed"] == found["trials"] == 8
    assert "it broke" in found["sentence"]


@pytest.mark.parametrize(
    "records", [LEAKY, [trial(i, 10.0) for i in range(8)], [trial(0, None)], [trial(0, 11.0, identified=True)]]
)
def test_a_verdict_never_says_safe(records: list[dict[str, Any]]) -> None:
    result = verdict(records, None)
    assert len(result["headline"]) == 2
    for text in [*result["headline"], *(f["sentence"] for f in result["findings"])]:
        assert "safe" not in text.replace("not that it is safe", "")
        assert text.endswith(".")


def test_worst_median_and_weakest_are_of_images() -> None:
    records = [trial(i, v) for i, v in enumerate((10.0, 12.0, 20.0))]
    psnr = verdict(records, None)["findings"][0]["psnr"]
    assert (psnr["best_for_attacker"], psnr["median"], psnr["weakest"]) == (20.0, 12.0, 10.0)
    assert psnr["mean"] == pytest.approx(14.0)
    assert psnr["low"] <= 14.0 <= psnr["high"]


POWER = [trial(i, 30.0, identified=True, control=True) for i in range(5)]


def groups(records: list[dict[str, Any]]) -> list[Group]:
    return groups_of(records)


def test_gate_tests_the_end_of_the_interval_that_hurts() -> None:
    """0 of 8 still allows .31."""
    gate = GateConfig.model_validate({"identified": {"max": 0.05}})
    result = judge(gate, groups([trial(i, 10.0) for i in range(8)]))
    assert result.passed is False
    reason = next(r for r in result.reasons if "too few trials" in r)
    assert "0.31" in reason
    assert "59 images" in reason
    assert judge(gate, groups([*POWER, *(trial(i, 10.0, defense="d") for i in range(59))])).passed is True
    assert judge(gate, groups([*POWER, *(trial(i, 10.0, defense="d") for i in range(58))])).passed is False


def test_gate_needs_an_attack_with_power_in_every_setting() -> None:
    gate = GateConfig.model_validate({"identified": {"max": 0.5}})
    quiet = [trial(i, 10.0, defense="d") for i in range(60)]
    assert judge(gate, groups([*POWER, *quiet])).passed is True
    powerless = judge(gate, groups(quiet))
    assert powerless.passed is False
    assert "power: m, fedsgd, d: no attack tried here" in powerless.reasons[0]


def test_gate_fails_on_trials_that_failed() -> None:
    gate = GateConfig.model_validate({"identified": {"max": 0.5}})
    broken = [trial(i, None, defense="d", attack="b") for i in range(3)]
    result = judge(gate, groups([*POWER, *(trial(i, 10.0, defense="d") for i in range(60)), *broken]))
    assert result.passed is False
    assert "failed: b on m, fedsgd, d: 3 of 3 trials gave no result (it broke)" in result.reasons[0]


def test_gate_names_what_breaks_it() -> None:
    gate = GateConfig.model_validate({"identified": {"max": 0.05}, "psnr": {"worst": 18}, "label_f1": {"max": 0.5}})
    result = judge(gate, groups([trial(i, 30.0 if i == 3 else 10.0, identified=i == 3, f1=0.9) for i in range(8)]))
    assert result.passed is False
    text = "\n".join(result.reasons)
    assert "identified: a on m, fedsgd, none: 1 of 8 images" in text
    assert "worst image 30.0 dB, the gate allows 18 dB" in text
    assert "label_f1: a on m, fedsgd, none: mean 0.90, the gate allows 0.5" in text


def test_a_gate_over_nothing_is_not_passed() -> None:
    gate = GateConfig.model_validate({"identified": {"max": 0.5}})
    assert judge(gate, groups([trial(i, None) for i in range(50)])).passed is False
    assert judge(None, []).passed is None


def test_labels_that_were_given_are_no_leak() -> None:
    gate = GateConfig.model_validate({"label_f1": {"max": 0.5}})
    records = [trial(i, 10.0, f1=1.0, defense="d") for i in range(5)]
    for record in records:
        record["labels"]["known"] = True
    assert judge(gate, groups([*POWER, *records])).passed is True


@pytest.mark.parametrize("records", [[trial(0, 10.0, f1=0.0, seed=s) for s in range(9)], [trial(0, 10.0, f1=0.2)]])
def test_few_label_scores_support_no_limit_however_equal(records: list[dict[str, Any]]) -> None:
    gate = GateConfig.model_validate({"label_f1": {"max": 0.05}})
    reasons = judge(gate, groups(records)).reasons
    assert any("label_f1" in reason for reason in reasons)


def test_many_label_scores_do() -> None:
    gate = GateConfig.model_validate({"label_f1": {"max": 0.5}})
    assert judge(gate, groups([*POWER, *(trial(i, 10.0, f1=0.1, defense="d") for i in range(20))])).passed is True


def test_chance_grows_with_seeds_and_with_the_batch() -> None:
    once = groups([trial(i, 10.0) for i in range(8)])[0]
    often = groups([trial(i, 10.0, seed=s) for i in range(8) for s in range(10)])[0]
    first, tenth = (verdict(list(g.records), None)["findings"][0]["identified"]["chance"] for g in (once, often))
    assert first == pytest.approx(1 / 101, abs=1e-4)
    assert tenth == pytest.approx(1 - (100 / 101) ** 10, abs=1e-4)


def test_failures_beside_results_are_inconclusive() -> None:
    mixed = [trial(i, 10.0, defense="d") for i in range(8)] + [trial(i, None, defense="d") for i in range(8, 40)]
    found = next(f for f in verdict([*LEAKY, *mixed], None)["findings"] if f["scenario"]["defense"] == "d")
    assert found["level"] == "inconclusive"
    assert "32 of 40 trials gave no result" in found["sentence"]


@given(st.integers(1, 95))
def test_needed_is_the_least_number_of_images(percent: int) -> None:
    limit = percent / 100
    n = needed(limit)
    assert isinstance(n, int)
    assert proportion_upper(0, n) <= limit * (1 + 1e-9)
    assert n == 1 or proportion_upper(0, n - 1) > limit


def test_the_bound_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    for p in (0.05, 0.3, 0.7):
        hits = rng.binomial(20, p, size=4000)
        assert np.mean([proportion_upper(int(h), 20) >= p for h in hits]) >= 0.945


def test_data_that_are_no_images_are_examples() -> None:
    """An electrocardiogram is no picture, in no sentence."""
    records = [r | {"scenario": r["scenario"] | {"data": r["scenario"]["data"] | {"kind": "example"}}} for r in LEAKY]
    found = verdict(records, GateConfig.model_validate({"identified": {"max": 0.1}}))
    words = json.dumps([found["headline"], found["findings"][0]["sentence"], found["gate"]])
    assert "8 of 8 examples" in words
    assert "picture" not in words
    assert "image" not in words


@pytest.mark.parametrize(("power", "least", "most"), [(0.1, 0.0, 0.02), (0.9, 0.95, 1.0)])
@pytest.mark.parametrize("clients", [5, 8, 20])
def test_a_feeble_attack_is_not_said_to_have_power(power: float, least: float, most: float, clients: int) -> None:
    """An attack of power .1 was "shown" in 19 % of audits by one recovered control of two."""
    rng, shown = np.random.default_rng(clients), 0
    for _ in range(400):
        hits = rng.random(clients) < power
        control = [trial(i, 30.0 if h else 10.0, identified=bool(h), control=True) for i, h in enumerate(hits)]
        found = groups([*control, trial(0, 10.0, defense="d")])
        shown += bool(power_of(found[1], found)["shown"])
    assert least <= shown / 400 <= most
