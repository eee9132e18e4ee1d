"""Claims: verdicts follow from rows of their own list by their intervals, and the screen fits."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.claims import quantity, screen, verdict  # noqa: E402
from reproduce.claims.frozen import Claim, ClaimList, claims_of, digest  # noqa: E402
from reproduce.claims.rules import Outcome, Reading, apart, difference, number, together, within  # noqa: E402
from reproduce.claims.verdict import Verdict, decide, judgement  # noqa: E402

from leakgauge.intervals import mean_interval  # noqa: E402
from reproduce import command  # noqa: E402

PAPER = "p"
Kept = dict[int, list[dict[str, Any]]]


def kept(name: str, *values: float, seeds: int = 1, commit: str = "abc", metric: str = "m") -> dict[str, Any]:
    table = [[v] for v in values] if seeds == 1 else [list(values)]
    record = {"setting": "s", "attack": name, "metric": metric, "per_image": table, "seeds": list(range(seeds))}
    return record | {"environment": {"commit": commit, "list": "now"}}


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Kept:
    found: Kept = {0: [], 1: []}
    monkeypatch.setattr(quantity, "_records", lambda _, __, start: tuple(found[start]))
    metrics = {"m": {"name": "M", "unit": "dB", "better": "higher"}, "low": {"name": "L", "better": "lower"}}
    fake = ClaimList.model_validate({"paper": PAPER, "words": "P", "metrics": metrics, "cost": {}, "claims": []})
    monkeypatch.setattr(verdict, "claims_of", lambda _: fake)
    return found


def claim(rule: dict[str, Any], **changes: Any) -> Claim:
    plain = {"id": "a", "place": "T1", "says": "s", "line": "l", "metric": "m", "units": 4}
    return Claim.model_validate(plain | {"margin": "none", "sample": "x", "rule": rule} | changes)


SURE, UNSURE = (20.0, 20.1, 19.9, 20.0), (10.0, 30.0, 12.0, 28.0)
REACHES = {"reaches": "i | s | ours", "value": 20.0, "margin": 1.0}
FAR = REACHES | {"value": 25.0}
AHEAD = {"ahead": ["i | s | ours", "i | s | rival"]}


@pytest.mark.parametrize(
    ("values", "rule", "expected"),
    [
        (SURE, REACHES, Verdict.HOLDS),
        (SURE, FAR, Verdict.CONTRARY),
        (SURE, {"near": "i | s | ours", "value": 15.0, "margin": 1.0}, Verdict.CONTRARY),
        (UNSURE, REACHES, Verdict.OPEN),
        ((), REACHES, Verdict.NOT_RUN),
    ],
)
def test_a_verdict_is_what_the_interval_supports(values, rule, expected: Verdict, rows: Kept) -> None:
    if values:
        rows[0].append(kept("ours", *values))
    assert decide(PAPER, claim(rule)).verdict is expected


def test_one_unit_has_no_interval_and_decides_nothing(rows: Kept) -> None:
    rows[0].append(kept("ours", 20.0))
    assert decide(PAPER, claim(REACHES, units=1)).verdict is Verdict.OPEN


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"steps": [100, 100]}, Verdict.HOLDS),
        ({"steps": [100, 200]}, Verdict.SMALLER),
        ({"stands_in": ["other photos"]}, Verdict.SMALLER),
        ({"floor": "i | s | grey"}, Verdict.OPEN),
        ({"floor": "i | s | grey", "above": False}, Verdict.HOLDS),
    ],
)
def test_what_holds_says_what_stands_in_and_never_below_its_floor(changes, expected: Verdict, rows: Kept) -> None:
    rows[0] += [kept("ours", *SURE), kept("grey", 21.0, 20.0, 19.0, 20.5)]
    found = decide(PAPER, claim(REACHES, **changes))
    assert found.verdict is expected
    assert ("grey 20.1" in found.judged.floor) == ("floor" in changes)
    for words in changes.get("stands_in", ()):
        assert words in found.judged.why


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"steps": [150, 200]}, Verdict.CONTRARY),
        ({"steps": [50, 200]}, Verdict.OPEN),
        ({"opposite": "open", "stands_in": ["a small network"]}, Verdict.OPEN),
    ],
)
def test_what_a_smaller_size_may_cause_is_not_held_against_a_claim(changes, expected: Verdict, rows: Kept) -> None:
    rows[0].append(kept("ours", *SURE))
    assert decide(PAPER, claim(FAR, **changes)).verdict is expected


def test_what_was_not_run_and_what_cannot_be_are_not_the_same(rows: Kept) -> None:
    plain = {"id": "a", "place": "T1", "says": "s", "line": "l", "metric": "m"}
    for key, expected in (("not_run", Verdict.NOT_RUN), ("untestable", Verdict.UNTESTABLE)):
        assert decide(PAPER, Claim.model_validate(plain | {key: "because"})).verdict is expected


def test_pairs_decide_where_means_overlap_and_better_may_be_lower(rows: Kept) -> None:
    rows[0] += [kept("ours", 11.0, 21.0, 31.0, 41.2), kept("rival", 10.0, 20.0, 30.0, 40.0)]
    rows[0] += [kept("ours", 11.0, 21.0, 31.0, 41.2, metric="low"), kept("rival", 10.0, 20.0, 30.0, 40.0, metric="low")]
    assert decide(PAPER, claim(AHEAD)).verdict is Verdict.HOLDS
    assert decide(PAPER, claim(AHEAD, metric="low")).verdict is Verdict.CONTRARY
    assert decide(PAPER, claim(AHEAD | {"by": 5.0})).verdict is Verdict.CONTRARY
    assert decide(PAPER, claim(AHEAD | {"by": -2.0}, metric="low")).verdict is Verdict.HOLDS
    level = {"level": AHEAD["ahead"], "within": 2.0}
    assert decide(PAPER, claim(level)).verdict is Verdict.HOLDS
    assert decide(PAPER, claim(level | {"within": 0.5})).verdict is Verdict.CONTRARY


@pytest.mark.parametrize("count", [3, 5])
def test_a_sample_that_is_not_the_lists_judges_nothing(count: int, rows: Kept) -> None:
    """Images that were added after a look, or a run that was cut."""
    rows[0].append(kept("ours", *[20.0] * count))
    found = decide(PAPER, claim(REACHES))
    assert found.verdict is Verdict.NOT_RUN
    assert f"{count} of 4 units" in found.judged.why


def test_rows_of_two_commits_are_not_compared(rows: Kept) -> None:
    rows[0] += [kept("ours", *SURE), kept("rival", *SURE, commit="def")]
    assert decide(PAPER, claim(AHEAD)).judged.why == "rows of 2 commits"


def test_units_are_images_searches_or_seeds(rows: Kept) -> None:
    rows[0].append(kept("ours", 1.0, 3.0, 5.0, 7.0))
    read = quantity.Quantity.of(PAPER, claim(REACHES).rows[0], claim(REACHES), 0)
    assert read.units(claim(REACHES)) == [1, 3, 5, 7]
    assert read.units(claim(REACHES, unit="search", group=2)) == [2, 6]
    assert read.units(claim(REACHES, unit="seed")) == [4]
    rows[0][0] = kept("ours", *SURE, seeds=4)
    assert decide(PAPER, claim(REACHES, unit="seed")).verdict is Verdict.HOLDS


def test_two_starts_that_differ_leave_a_claim_open_and_are_both_said(rows: Kept) -> None:
    rows[0].append(kept("ours", *SURE))
    assert "one start so far" in decide(PAPER, claim(REACHES)).judged.why
    rows[1].append(kept("ours", *SURE))
    assert decide(PAPER, claim(REACHES)).verdict is Verdict.HOLDS
    rows[1][0] = kept("ours", 10.0, 10.1, 9.9, 10.0)
    found = decide(PAPER, claim(REACHES))
    assert found.verdict is Verdict.OPEN
    assert found.flips
    assert "start 0: holds, 20.0" in found.judged.why
    assert "start 1: contrary, 10.0" in found.judged.why
    assert judgement(PAPER, claim(REACHES), 1).verdict is Verdict.CONTRARY


def test_several_comparisons_have_wider_intervals_and_hold_only_together(rows: Kept) -> None:
    rows[0].append(kept("ours", 19.0, 19.4, 19.6, 20.0))
    alone = REACHES | {"value": 19.5, "margin": 0.7}
    assert decide(PAPER, claim(alone)).verdict is Verdict.HOLDS
    assert decide(PAPER, claim({"each": [alone] * 20})).verdict is Verdict.OPEN, "the interval of 1 − .05/20"
    mixed = decide(PAPER, claim({"each": [REACHES | {"margin": 9.0}, FAR | {"value": 40.0}]}))
    assert mixed.verdict is Verdict.OPEN
    assert "mixed: 1 hold, 0 open, 1 contrary" in mixed.judged.why


def test_together_by_hand() -> None:
    holds, open_, contrary = (Reading(outcome) for outcome in Outcome)
    assert together([holds, holds]).outcome is Outcome.HOLDS
    assert together([contrary, contrary]).outcome is Outcome.CONTRARY
    assert together([holds, open_]).outcome is together([holds, contrary]).outcome is Outcome.OPEN
    assert together([contrary, open_]).outcome is Outcome.OPEN


@pytest.mark.parametrize(
    ("told", "judges"),
    [
        ({"commit": "abc", "list": "now"}, True),
        ({"commit": "abc", "list": "old"}, False),
        ({"commit": "abc"}, False),
        ({"commit": "", "list": "now"}, False),
        ({"commit": "abc+", "list": "now"}, False),
    ],
)
def test_only_rows_of_todays_list_and_of_a_commit_judge(told, judges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantity, "digest", lambda _: "now")
    assert quantity.judges({"environment": told}, PAPER) == judges


def test_every_kept_row_that_carries_a_digest_carries_that_of_a_list_that_was_committed() -> None:
    """And those that judge carry today's."""
    for path in (ROOT / "reproduce" / "results").glob("*-listed?-*.json"):
        run = json.loads(path.read_text(encoding="utf-8"))
        for row in run["rows"]:
            assert row["environment"]["list"] == run["circumstances"]["list"]
            assert row["environment"]["commit"] == run["circumstances"]["commit"]
            assert row["environment"]["cpu"]
            assert quantity.judges(row, run["paper"]) == (run["circumstances"]["list"] == digest(run["paper"]))


NUMBERS = st.integers(-500, 500).map(lambda n: n / 10)


@given(st.lists(NUMBERS, min_size=2, max_size=6), NUMBERS, st.sampled_from([0.1, 1.0, 20.0]))
def test_nothing_holds_outside_its_interval(values: list[float], target: float, slack: float) -> None:
    ends, reading = mean_interval(values), within(values, target, slack, slack)
    assert ends.low is not None
    assert ends.high is not None
    inside = target - slack <= ends.low and ends.high <= target + slack
    assert (reading.outcome is Outcome.HOLDS) == inside


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=6))
def test_being_ahead_is_never_true_both_ways(pairs: list[tuple[float, float]]) -> None:
    one, other = zip(*pairs, strict=True)
    both = [apart(a, b, lower=False, least=0, most=math.inf).outcome for a, b in ((one, other), (other, one))]
    assert both.count(Outcome.HOLDS) < 2 or one == other


def test_a_difference_of_means_without_pairs_has_both_their_spreads() -> None:
    one, other = [1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]
    found, a, b = difference(one, other), mean_interval(one), mean_interval(other)
    half = math.hypot((a.high - a.low) / 2, (b.high - b.low) / 2)  # type: ignore[operator]
    assert found.high - found.low == pytest.approx(2 * half)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("value", "text"), [(0.273, ".273"), (-0.5, "-.500"), (24.14, "24.1"), (1.5, "1.50"), (0.0, "0"), (299.6, "300")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_the_first_screen_is_forty_lines_of_eighty_columns_with_metric_and_direction() -> None:
    lines = list(screen.first_screen())
    headlines = [claim for paper in command.PAPERS for claim in claims_of(paper).claims if claim.headline]
    asked = sum(claim.rule is not None for claim in headlines)
    most = len(command.PAPERS) + 3 * asked + 2 * (len(headlines) - asked) + 2
    assert len(lines) <= most <= 40
    assert max(map(len, lines)) <= 80
    assert sum("is better" in line for line in lines) == asked
    assert "claims asked" in " ".join(lines[-2:])


def test_a_headline_with_all_its_numbers_still_says_what_stands_in(rows: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    rows[0] += [kept("ours", *SURE), kept("grey", *(10.0, 10.1, 9.9, 10.0))]
    found = decide(PAPER, claim(REACHES, stands_in=["LeNet for ResNet-20"], published=[18.0], floor="i | s | grey"))
    monkeypatch.setattr(screen, "claims_of", verdict.claims_of)
    told = list(screen.told(found))
    assert len(told) == 3
    assert max(map(len, told)) <= 80
    assert "holds, smaller" in told[0]
    assert told[1] == "   20.0 [19.9, 20.1] dB M, higher is better; paper 18; grey 10.0"
    assert "LeNet for ResNet-20" in told[2]


def test_every_paper_and_the_page_have_every_claim_with_its_reason() -> None:
    total = 0
    for paper in command.PAPERS:
        found = claims_of(paper).claims
        total += len(found)
        assert sum(line.startswith("    the paper: ") for line in screen.of_paper(paper)) == len(found)
        for one in verdict.decisions(paper):
            assert one.judged.why or one.verdict is Verdict.HOLDS, one.claim.id
    assert sum(1 for _ in screen.markdown()) == total + 2


def test_the_first_screen_loads_no_torch() -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from reproduce.command import first_screen; "
        "list(first_screen()); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_long_name_of_a_metric_gives_way_to_the_numbers(rows: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    rows[0].append(kept("ours", *SURE))
    monkeypatch.setattr(screen, "claims_of", verdict.claims_of)
    several = decide(PAPER, claim({"each": [REACHES, REACHES]}))
    assert screen.measure_text(several) == "holds in 2 of 2 comparisons; M, higher is better"
    metric = verdict.claims_of(PAPER).metrics["m"].model_copy(update={"name": "a name of a metric " * 4})
    other = verdict.claims_of(PAPER).model_copy(update={"metrics": {"m": metric}})
    monkeypatch.setattr(screen, "claims_of", lambda _: other)
    text = screen.measure_text(decide(PAPER, claim(REACHES, published=[18.0])))
    assert text.startswith("20.0 [19.9, 20.1] dB, higher is better; paper 18; a name")
