"""The words follow from the rows: hand-made rows with known right answers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from frontiers.rows import LABELS, TOLERANCE, leaking, row
from leakgauge.frontiers.recommend import dominates, flatters, recommendation
from leakgauge.frontiers.results import RowResult

BARE = row("undefended", "none", 0.60, (20, 30.0))


def _said(*rows: RowResult) -> str:
    found = recommendation([BARE, *rows], TOLERANCE)
    return " ".join([found.headline, *found.sentences])


def test_a_row_that_meets_both_limits_is_the_best() -> None:
    good, loud = row("a", "a(x=1)", 0.59, (1, 9.0)), row("b", "b(x=1)", 0.60, (15, 25.0))
    said = recommendation([BARE, good, loud], TOLERANCE).headline
    assert said.startswith(
        "Best of what was tried, on too few pictures to rely on it: a(x=1), with 59 % accuracy against 60 %"
    )
    assert "1 of 20 pictures identified" in said
    assert "at most 22 %" in said, "the exact one-sided bound of 1 in 20 is .216"
    assert "50% of the bytes" in said


def test_enough_pictures_make_it_the_best() -> None:
    bare, many = row("undefended", "none", 0.60, (59, 30.0), n=59), row("a", "a(x=1)", 0.59, (0, 9.0), n=59)
    assert recommendation([bare, many], TOLERANCE).headline.startswith("Best of what was tried: a(x=1), with 59 %")
    few = row("a", "a(x=1)", 0.59, (0, 9.0), n=58)
    assert "it takes 59 pictures to show 5 %" in recommendation([bare, few], TOLERANCE).headline


def test_of_two_good_rows_the_more_accurate_wins() -> None:
    said = _said(row("a", "a(x=1)", 0.585, (0, 9.0)), row("b", "b(x=1)", 0.595, (1, 9.0)))
    assert said.startswith("Best of what was tried, on too few pictures to rely on it: b(x=1),")


def test_nothing_good_is_said_with_the_nearest_on_both_sides() -> None:
    said = _said(
        row("a", "a(x=1)", 0.60, (12, 20.0)), row("a", "a(x=2)", 0.59, (9, 20.0)), row("b", "b(x=1)", 0.3, (0, 9))
    )
    assert said.startswith(
        "Nothing tried keeps accuracy within 2 points of undefended while at most 5 % of the pictures are identified."
    )
    assert "Of what keeps accuracy, a(x=2) leaks least: 9 of 20" in said
    assert "Of rows with so few identified, b(x=1) costs least: 30 % accuracy" in said


def test_the_stronger_attacker_counts() -> None:
    said = _said(row("a", "a(x=1)", 0.60, (0, 9.0), (18, 25.0)))
    assert said.startswith("Nothing tried keeps")
    assert (
        "Good only against an attacker who does not know the defence: a(x=1) (0 of 20 identified, 18 of 20 once" in said
    )
    weak = row("a", "a(x=1)", 0.60, (18, 25.0), (0, 9.0))
    assert _said(weak).startswith("Nothing tried keeps"), "also where adapting went wrong"
    assert "Good only against" not in _said(weak)


def test_a_defence_flatters_where_only_the_naive_attacker_fails() -> None:
    assert flatters(row("a", "a", 0.6, (0, 9.0), (18, 25.0)))
    assert not flatters(row("a", "a", 0.6, (9, 15.0), (11, 25.0))), "the naive attacker identifies half of them"
    assert not flatters(row("a", "a", 0.6, (0, 9.0), (1, 9.0))), "one of twenty may be chance"


def test_one_of_four_identified_is_not_good_against_anyone() -> None:
    said = _said(row("a", "a(x=1)", 0.6, (1, 15.0), (3, 25.0), n=4))
    assert "Good only against" not in said


def test_dominance_is_by_accuracy_and_leakage() -> None:
    a, b, c = row("a", "a", 0.6, (5, 20)), row("b", "b", 0.5, (6, 20)), row("c", "c", 0.7, (9, 20))
    assert [(x.label, y.label) for x in (a, b, c) for y in (a, b, c) if dominates(x, y)] == [("a", "b")]
    said = _said(a, b, c)
    front = said[said.index("On the frontier") : said.index("For each other row")]
    assert [name in front for name in ("a (60 %, 5 of 20)", "b (", "c (70 %, 9 of 20)")] == [True, False, True]


def test_a_guarantee_is_not_beaten_by_rows_without() -> None:
    private, plain = row("p", "p", 0.4, (0, 10), epsilon=3.0), row("a", "a", 0.5, (0, 8.0))
    empty, better = row("p", "p", 0.4, (0, 10), epsilon=900.0), row("p", "p", 0.5, (0, 10), epsilon=2.0)
    assert not dominates(plain, private)
    assert dominates(better, private)
    assert dominates(plain, empty)

    def of_a_client(found: RowResult) -> RowResult:
        return replace(found, privacy=replace(found.privacy, unit="client"))

    assert not dominates(better, of_a_client(private)), "a smaller ε of one example says less"
    assert dominates(of_a_client(better), private)


def test_below_the_null_nothing_leaks_less() -> None:
    """Mean PSNR of 8 and of 10 dB where the nearest public picture has 11: neither attacker has anything."""
    a, b, leaky = (row(f, f, 0.5, (0, quality)) for f, quality in (("a", 8.0), ("b", 10.0), ("c", 20.0)))
    assert a.leak == b.leak < leaky.leak
    assert not dominates(a, b)


def test_without_accuracy_it_says_so_and_ranks_nothing_by_it() -> None:
    rows = [row("undefended", "none", None, (20, 30.0)), row("a", "a(x=1)", None, (0, 9.0))]
    found = recommendation(rows, TOLERANCE)
    said = " ".join([found.headline, *found.sentences])
    assert "Accuracy was not measured" in said
    assert "5 % of the pictures tried were identified under a(x=1) (0 of 20): too few pictures" in said
    assert "best" not in said
    many = [row("undefended", "none", None, (60, 30.0), n=60), row("a", "a(x=1)", None, (0, 9.0), n=60)]
    assert "At most 5 % identified, with 95 % confidence: a(x=1)." in " ".join(
        recommendation(many, TOLERANCE).sentences
    )
    blind = [row("undefended", "none", None, (0, 9.0), n=60), row("a", "a(x=1)", None, (0, 9.0), n=60)]
    said = " ".join(recommendation(blind, TOLERANCE).sentences)
    assert "cannot tell the defences apart" in said
    assert "At most" not in said


def test_only_a_stated_epsilon_is_called_private() -> None:
    said = _said(row("noise", "noise(x=9)", 0.5, (0, 9.0)))
    assert "No row is differentially private" in said
    said = _said(row("noise", "noise(x=9)", 0.5, (0, 9.0)), row("dp", "dp(z=1)", 0.5, (1, 9.0), epsilon=3.21))
    assert "Differentially private: dp(z=1) (ε = 3.21 for one example)." in said
    assert "Differentially private: noise" not in said
    once = row("dp", "dp(z=1)", 0.5, (1, 9.0), epsilon=3.21)
    once = replace(once, privacy=replace(once.privacy, scope="one update"))
    assert "(ε = 3.21 for one example in one update, more in a training)" in _said(once)
    said = _said(row("dp", "dp(z=0)", 0.5, (1, 9.0), epsilon=1000.0))
    assert "dp(z=0) (ε = 1e+03 for one example, which promises next to nothing)" in said
    weak = row("dp", "dp(z=1)", 0.5, (1, 9.0), epsilon=28.0)
    weak = replace(weak, privacy=replace(weak.privacy, at_most=0.97))
    assert "dp(z=1) (ε = 28 for one example, which promises next to nothing)" in _said(weak)


def test_an_attack_without_power_cannot_tell_defences_apart() -> None:
    found = recommendation([row("undefended", "none", 0.6, (0, 9.0)), row("a", "a", 0.6, (0, 9.0))], TOLERANCE)
    assert "cannot tell the defences apart" in found.headline


def test_a_loss_of_just_the_tolerance_is_good_enough() -> None:
    bare = row("undefended", "none", 1078 / 4000, (20, 30.0))
    found = recommendation([bare, row("a", "a(x=1)", 998 / 4000, (0, 9.0))], TOLERANCE)
    assert 998 / 4000 < 1078 / 4000 - 0.02, "in floating point"
    assert found.headline.startswith("Best of what was tried, on too few pictures to rely on it: a(x=1),")


def test_rows_without_a_result_are_named_and_never_good() -> None:
    lost = leaking(row("a", "a(x=1)", 0.6, (0, 9.0)), "adapted")
    said = _said(lost)
    assert said.startswith("Nothing tried")
    assert "Without a result of an attack, and so not compared: a(x=1)." in said
    many = [leaking(row(name, name, 0.6, (0, 9.0)), "adapted") for name in "abcde"]
    assert "and so not compared: a; b; c; d; e." in _said(*many), "five names are a list, not a sentence"
    nothing = leaking(row("a", "a(x=1)", 0.6, (0, 9.0)), "adapted", identified=None, psnr=None)
    assert "not compared: a(x=1)" in _said(nothing)
    assert "Nothing can be recommended" in recommendation([leaking(BARE, "adapted")], TOLERANCE).headline


def test_a_row_that_diverged_is_no_candidate() -> None:
    broken = row("a", "a(x=1)", None, (0, 9.0))
    broken = replace(broken, accuracy=replace(broken.accuracy, reason="training diverged in round 2"))
    assert _said(broken).startswith("Nothing tried")


def test_each_attacker_is_judged_by_the_pictures_it_has_a_result_for() -> None:
    uneven = row("a", "a(x=1)", 0.6, (8, 25.0), (1, 9.0))
    few = replace(uneven.both[1][0], n=4, rate=0.25)
    uneven = leaking(uneven, "adapted", identified=few, failed=16)
    assert (uneven.rate, uneven.identified.count, uneven.identified.n) == (0.4, 8, 20), "8 of 20, never 8 of 4"
    said = _said(uneven)
    assert "8 of 20 identified" in said
    assert "For some pictures an attack gave no result, which is no protection: a(x=1)." in said
    assert "For some pictures" not in _said(row("a", "a(x=1)", 0.6, (8, 25.0)))


@dataclass(frozen=True)
class Mismatch:
    """A flag."""

    sentence: str = "the update carries no image information"


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"failed": 3}, "3 of 20 trials gave no result"), ({"flags": (Mismatch(),)}, Mismatch().sentence)],
    ids=["broke", "flagged"],
)
def test_a_quiet_row_that_cannot_be_relied_on_is_not_recommended(changes: dict, why: str) -> None:
    doubted = leaking(row("a", "a(x=1)", 0.6, (0, 9.0)), "adapted", **changes)
    said = _said(doubted)
    assert not said.startswith("Best of what was tried")
    assert f"Quiet, but not recommended: a(x=1): {why}." in said
    other = row("b", "b(x=1)", 0.59, (0, 9.0))
    assert _said(doubted, other).startswith("Best of what was tried, on too few pictures to rely on it: b(x=1)")


@pytest.mark.parametrize(("less", "short"), [(0.59, False), (0.50, True)])
def test_nothing_is_recommended_while_the_undefended_model_still_learns(less: float, short: bool) -> None:
    bare = replace(BARE, accuracy=replace(BARE.accuracy, curve=((5, less), (10, 0.60))))
    rows = [bare, row("a", "a(x=1)", 0.59, (0, 9.0)), row("b", "b(x=1)", 0.5, (1, 12.0))]
    found = recommendation(rows, TOLERANCE)
    assert found.headline.startswith("The trainings are too short" if short else "Best of what was tried")
    if short:
        assert "(50 % after round 5, 60 % after round 10)" in found.headline
        assert any(s.startswith("Not the last word: Best of what was tried") for s in found.sentences)


@pytest.mark.parametrize(("constant", "recommended"), [(0.61, False), (0.599, False), (0.34, True)])
def test_a_training_that_learned_nothing_recommends_nothing(constant: float, recommended: bool) -> None:
    """Its accuracy, .6 [.59, .61], is held against the same answer for all test examples."""
    bare = replace(BARE, accuracy=replace(BARE.accuracy, constant=constant))
    found = recommendation([bare, row("a", "a(x=1)", 0.60, (0, 9.0))], TOLERANCE)
    assert ("Best of what was tried" in found.headline) is recommended
    assert any("not shown to do better than the same answer" in s for s in found.sentences) is not recommended


def test_labels_that_are_read_are_named() -> None:
    quiet = row("a", "a(x=1)", 0.59, (0, 9.0))
    assert "labels are read: F1 1.00, by the best constant guess 0.25" in _said(quiet)
    hidden = replace(LABELS, mean=0.3, above=0.05, above_low=-0.1, better=False, right=0)
    for who in ("naive", "adapted"):
        quiet = leaking(quiet, who, label_f1=hidden)
    assert "labels are read" not in _said(quiet)
