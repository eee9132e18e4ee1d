"""Claims: verdicts follow from kept rows by their intervals, and the screen fits."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.claims import quantity  # noqa: E402
from reproduce.claims.claim import Beside, Claim, Effort, Verdict  # noqa: E402
from reproduce.claims.papers import CLAIMS  # noqa: E402
from reproduce.claims.quantity import Published, Quantity  # noqa: E402
from reproduce.claims.rules import Ahead, Each, Outcome, Within, difference, number  # noqa: E402
from reproduce.claims.screen import first_screen, markdown, of_paper  # noqa: E402

from leakgauge.intervals import mean_interval  # noqa: E402
from reproduce import command  # noqa: E402

OURS, RIVAL, GREY, NOTHING = (Quantity("p/i", "s", name, "m") for name in ("ours", "rival", "grey picture", "nothing"))


def kept(name: str, *values: float, steps: int = 100, seeds: int = 1) -> dict[str, Any]:
    table = [[v] for v in values] if seeds == 1 else [list(values)]
    record = {"setting": "s", "attack": name, "metric": "m", "per_image": table, "seeds": list(range(seeds))}
    return record | {"gradient_evaluations": steps, "environment": {"commit": "abc"}}


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(quantity, "_records", lambda item: tuple(found) if item == "p/i" else ())
    return found


def claim(rule: Any, **changes: Any) -> Claim:
    return Claim(paper="p", where="T1", words="w", item="p/i", rule=rule, **changes)


SURE, UNSURE = (20.0, 20.1, 19.9, 20.0), (10.0, 30.0, 12.0, 28.0)


@pytest.mark.parametrize(
    ("values", "target", "verdict"),
    [
        (SURE, 20.0, Verdict.HOLDS),
        (SURE, 25.0, Verdict.CONTRARY),
        (UNSURE, 20.0, Verdict.INCONCLUSIVE),
        ((20.0,), 20.0, Verdict.INCONCLUSIVE),
        ((), 20.0, Verdict.NOT_RUN),
    ],
)
def test_a_verdict_is_what_the_interval_supports(values, target: float, verdict: Verdict, rows: list) -> None:
    if values:
        rows.append(kept("ours", *values))
    assert claim(Within(OURS, target, 1.0, 1.0)).decide().verdict is verdict


def test_a_rival_on_fewer_images_makes_a_claim_as_small_as_itself(rows: list) -> None:
    """Ten batches against three stood as the paper's full number."""
    rows += [kept("ours", *(20.0,) * 10), kept("rival", *SURE)]
    decision = claim(Ahead(OURS, RIVAL), effort=Effort(images=10)).decide()
    assert decision.effort == {"images": 0.4}
    assert decision.least == "40%"


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"effort": Effort(steps=100, images=4)}, Verdict.HOLDS),
        ({"effort": Effort(steps=200)}, Verdict.SMALLER),
        ({"effort": Effort(images=100)}, Verdict.SMALLER),
        ({"effort": Effort(width=(16, 64))}, Verdict.SMALLER),
        ({"effort": Effort(data="other photos")}, Verdict.SMALLER),
        ({"method": "another"}, Verdict.OTHER_METHOD),
        ({"floor": (GREY,)}, Verdict.INCONCLUSIVE),
    ],
)
def test_what_holds_says_at_what_effort_and_never_below_grey(changes, verdict: Verdict, rows: list) -> None:
    rows += [kept("ours", *SURE), kept("grey picture", 21.0, 20.0, 19.0, 20.5)]
    assert claim(Within(OURS, 20.0, 1.0, 1.0), **changes).decide().verdict is verdict


@pytest.mark.parametrize(("steps", "verdict"), [(150, Verdict.CONTRARY), (250, Verdict.INCONCLUSIVE)])
def test_a_short_search_is_not_held_against_a_claim(steps: int, verdict: Verdict, rows: list) -> None:
    rows.append(kept("ours", *SURE))
    assert claim(Within(OURS, 25.0, 1.0, math.inf), effort=Effort(steps=steps)).decide().verdict is verdict


def test_pairs_decide_where_means_overlap(rows: list) -> None:
    rows += [kept("ours", 11.0, 21.0, 31.0, 41.2), kept("rival", 10.0, 20.0, 30.0, 40.0)]
    assert Ahead(OURS, RIVAL).read().outcome is Outcome.HOLDS
    assert Ahead(RIVAL, OURS).read().outcome is Outcome.CONTRARY
    assert Ahead(RIVAL, OURS, lower=True).read().outcome is Outcome.HOLDS
    assert Ahead(OURS, RIVAL, within=2.0).read().outcome is Outcome.HOLDS
    rows[1] = kept("rival", 10.0, 20.0, 30.0)
    assert Ahead(OURS, RIVAL).read().outcome is Outcome.INCONCLUSIVE, "other images: no pairs"


def test_seeds_of_one_image_are_units(rows: list) -> None:
    rows.append(kept("ours", *SURE, seeds=4))
    assert claim(Within(OURS, 20.0, 1.0, 1.0)).decide().verdict is Verdict.HOLDS


def test_further_images_are_pooled_and_all_must_be_kept(rows: list) -> None:
    """Twenty images of one attack beside ten others of its rival would be compared image by image."""
    both = replace(OURS, further=("more",))
    rows.append(kept("ours", 20.0, 22.0))
    assert (OURS.images, both.images, both.units) == (2, 0, [])
    assert claim(Within(both, 20.0, 1.0, 1.0)).decide().verdict is Verdict.NOT_RUN
    rows.append(kept("ours", 24.0, 26.0, 28.0, steps=50) | {"setting": "more", "environment": {"commit": "def"}})
    assert (both.images, both.units, both.evaluations) == (5, [20.0, 22.0, 24.0, 26.0, 28.0], 50)
    assert both.commits == {"abc", "def"}


def test_every_claim_with_a_rule_has_its_rows_kept() -> None:
    """A setting that nothing has, such as a name that was changed, read as a run that was never made."""
    missing = [c.words for c in CLAIMS if c.rule is not None and c.decide().verdict is Verdict.NOT_RUN]
    assert not missing


def test_kept_rows_have_a_floor_of_as_many_images_wherever_a_claim_names_floors() -> None:
    """A floor of other images is passed over: a claim must not lose all of them so."""
    for found in CLAIMS:
        if found.floor and found.rule is not None:
            images = found.rule.quantities[0].images
            assert not images or images in {floor.images for floor in found.floor}, found.words


def test_several_rules_hold_where_all_do(rows: list) -> None:
    rows.append(kept("ours", *SURE))
    good, bad, none = (Within(q, t, 1.0, 1.0) for q, t in ((OURS, 20.0), (OURS, 25.0), (NOTHING, 20.0)))
    assert Each((good, good)).read().outcome is Outcome.HOLDS
    assert Each((good, bad)).read().outcome is Outcome.CONTRARY
    assert Each((good, none)).read().outcome is Outcome.INCONCLUSIVE
    assert Each((none, none)).read().outcome is Outcome.NOT_RUN


def test_what_is_mixed_is_open_and_says_how_many_of_each(rows: list) -> None:
    rows.append(kept("ours", *SURE))
    good, bad = (Within(OURS, t, 1.0, 1.0) for t in (20.0, 25.0))
    reading = Each((good, good, bad), mixed=True).read()
    assert reading.outcome is Outcome.INCONCLUSIVE
    assert reading.why == "ahead in 2, level in 0, behind in 1 comparisons"
    assert Each((good, good), mixed=True).read().outcome is Outcome.HOLDS


def test_a_floor_is_shown_with_the_attack(rows: list) -> None:
    rows += [kept("ours", *SURE), kept("grey picture", 30.0, 30.2)]
    beside = Beside("grey", GREY, OURS)
    decision = claim(Within(OURS, 20.0, 1.0, 1.0), shown=beside).decide()
    assert decision.verdict is Verdict.HOLDS
    assert "grey 30.1, the attack 20.0" in decision.why


def test_what_nothing_here_can_bear_out_is_untestable_and_no_run_is_no_run() -> None:
    assert claim(None, untestable="no such weights").decide().verdict is Verdict.UNTESTABLE
    assert claim(None, cost="a year").decide().verdict is Verdict.NOT_RUN


NUMBERS = st.integers(-500, 500).map(lambda n: n / 10)


@given(st.lists(NUMBERS, min_size=2, max_size=6), NUMBERS, st.sampled_from([0.1, 1.0, 20.0]))
def test_nothing_holds_outside_its_interval(values: list[float], target: float, slack: float) -> None:
    class Kept(Quantity):
        units = values  # type: ignore[assignment]

    ends = mean_interval(values)
    reading = Within(Kept("p/i"), target, slack, slack).read()
    assert ends.low is not None
    assert ends.high is not None
    inside = target - slack <= ends.low and ends.high <= target + slack
    assert (reading.outcome is Outcome.HOLDS) == inside


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


def test_every_claim_names_an_item_that_exists_and_a_published_cell() -> None:
    known = command.items()
    for one in CLAIMS:
        assert one.item in known
        assert one.published
        for each in () if one.rule is None else one.rule.quantities:
            assert each.item in known or each.item.startswith("main-job/")
    with pytest.raises(LookupError, match="no published"):
        _ = Published("mkor/table2", "LeNet5 | nobody", "avg PSNR").value


def test_the_first_screen_is_forty_lines_of_eighty_columns() -> None:
    lines = list(first_screen())
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert len(lines) > len(CLAIMS) + 2


def test_every_paper_and_the_page_say_why_for_all_that_does_not_simply_hold() -> None:
    for paper in command.PAPERS:
        assert any(line.startswith("    published") for line in of_paper(paper))
    for one in CLAIMS:
        decision = one.decide()
        assert decision.why or decision.verdict is Verdict.HOLDS, one.words
    assert sum(1 for _ in markdown()) == len(CLAIMS) + 2


def test_the_first_screen_loads_no_torch() -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from reproduce.command import first_screen; "
        "list(first_screen()); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
