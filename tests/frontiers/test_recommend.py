"""The words follow from the rows: hand-made rows with known right answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from frontiers.rows import LABELS, TOLERANCE, leaking, row
from leakgauge.frontiers.results import RowResult, recommendation

BARE = row("undefended", "none", 0.60, (20, 30.0))
FEW = "Best of what was tried, on too few pictures to rely on it: "


def headline(*rows: RowResult, bare: RowResult = BARE) -> str:
    return recommendation([bare, *rows], TOLERANCE).headline


def notes(found: RowResult, *beside: RowResult) -> str:
    return "; ".join(recommendation([found, BARE, *beside], TOLERANCE).notes[0])


def changed(found: RowResult, part: str, **changes: Any) -> RowResult:
    return replace(found, **{part: replace(getattr(found, part), **changes)})


@dataclass(frozen=True)
class Mismatch:
    """A flag."""

    sentence: str = "the update carries no image information"


GOOD = row("a", "a(x=1)", 0.59, (1, 9.0))
QUIET = row("a", "a(x=1)", 0.6, (0, 9.0))
FOOLED = row("a", "a(x=1)", 0.60, (0, 9.0), (18, 25.0))
MANY = row("undefended", "none", 0.60, (59, 30.0), n=59)


@pytest.mark.parametrize(
    ("rows", "bare", "said"),
    [
        ([GOOD, row("b", "b", 0.6, (15, 25.0))], BARE, f"{FEW}a(x=1), with 59 % accuracy against 60 %"),
        ([GOOD], BARE, "1 of 20 pictures identified (with 95 % confidence at most 22 %), 50% of the bytes."),
        ([row("a", "a", 0.585, (0, 9.0)), row("b", "b", 0.595, (1, 9.0))], BARE, f"{FEW}b,"),
        ([row("a", "a", 0.59, (0, 9.0), n=59)], MANY, "Best of what was tried: a, with 59 %"),
        ([row("a", "a", 0.59, (0, 9.0), n=58)], MANY, "it takes 59 pictures to show 5 %"),
        ([row("a", "a", 998 / 4000, (0, 9.0))], row("undefended", "none", 1078 / 4000, (20, 30)), FEW),
        ([row("a", "a", 0.6, (12, 20.0)), row("b", "b", 0.3, (0, 9.0))], BARE, "Nothing tried keeps accuracy within 2"),
        ([FOOLED], BARE, "Nothing tried keeps"),
        ([row("a", "a", 0.60, (18, 25.0), (0, 9.0))], BARE, "Nothing tried keeps"),
        ([leaking(QUIET, "adapted")], BARE, "Nothing tried keeps"),
        ([leaking(QUIET, "adapted", failed=3)], BARE, "Nothing tried keeps"),
        ([leaking(QUIET, "adapted", flags=(Mismatch(),))], BARE, "Nothing tried keeps"),
        ([leaking(QUIET, "adapted", failed=3), row("b", "b", 0.59, (0, 9.0))], BARE, f"{FEW}b"),
        ([changed(row("a", "a", None, (0, 9.0)), "accuracy", reason="training diverged")], BARE, "Nothing tried keeps"),
        ([QUIET], row("undefended", "none", 0.6, (0, 9.0)), "cannot tell the defences apart"),
        ([QUIET], row("undefended", "none", None, (20, 9.0)), "Accuracy was not measured"),
        ([QUIET], leaking(BARE, "adapted"), "Nothing can be recommended"),
        ([QUIET], changed(BARE, "accuracy", constant=0.61), "not shown to do better than the same answer"),
        ([QUIET], changed(BARE, "accuracy", constant=0.599), "not shown to do better than the same answer"),
        ([QUIET], changed(BARE, "accuracy", constant=0.34), FEW),
        ([QUIET], changed(BARE, "accuracy", curve=((5, 0.59), (10, 0.6))), FEW),
        (
            [QUIET],
            changed(BARE, "accuracy", curve=((5, 0.5), (10, 0.6))),
            "too short to recommend a defence: the undefended model was still learning (50 % after round 5, 60 % after",
        ),
    ],
)
def test_the_headline_is_the_best_row_or_why_there_is_none(rows: list[RowResult], bare: RowResult, said: str) -> None:
    found = headline(*rows, bare=bare)
    assert said in found
    assert found.startswith("Best") is (said.startswith("Best") or "pictures" in said), "no word of a best one else"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (QUIET, "quiet on too few pictures to rely on: it takes 59 to show 5 %"),
        (row("a", "a", 0.6, (0, 9.0), n=59), "at most 5 % identified, with 95 % confidence"),
        (FOOLED, "does not know the defence (0 of 20 identified, 18 of 20 once it adapts)"),
        (leaking(QUIET, "adapted"), "not compared: without a result"),
        (leaking(QUIET, "adapted", identified=None, psnr=None), "not compared: without a result"),
        (leaking(QUIET, "adapted", failed=3), "not recommended: 3 of 20 trials gave no result"),
        (leaking(QUIET, "adapted", flags=(Mismatch(),)), f"not recommended: {Mismatch().sentence}"),
        (leaking(FOOLED, "naive", failed=3), "3 of 20 trials gave no result, which is no protection"),
        (QUIET, "labels are read: F1 1.00, by the best constant guess 0.25"),
        (row("a", "a", 0.5, (1, 9.0), epsilon=1000.0), "its ε promises next to nothing"),
        (changed(row("a", "a", 0.5, (1, 9.0), epsilon=28.0), "privacy", at_most=0.97), "promises next to nothing"),
        (changed(row("a", "a", 0.5, (1, 9.0), epsilon=3.2), "privacy", scope="one update"), "more in a training"),
    ],
)
def test_what_else_to_know_of_a_row_is_noted_at_it(found: RowResult, said: str) -> None:
    assert said in notes(found)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (row("a", "a", 0.6, (9, 15.0), (11, 25.0)), "does not know"),  # the naive attacker identifies half of them
        (row("a", "a", 0.6, (0, 9.0), (1, 9.0)), "does not know"),  # one of twenty may be chance
        (row("a", "a", 0.6, (1, 15.0), (3, 25.0), n=4), "does not know"),
        (row("a", "a", 0.6, (18, 25.0), (0, 9.0)), "does not know"),
        (row("a", "a", 0.5, (1, 9.0), epsilon=3.2), "ε"),
        (row("a", "a", 0.6, (8, 25.0)), "no result"),
        (BARE, "quiet"),
    ],
)
def test_and_nothing_that_does_not_hold(found: RowResult, said: str) -> None:
    assert said not in notes(found)


def test_labels_that_are_not_read_are_not_noted() -> None:
    hidden, found = replace(LABELS, mean=0.3, above=0.05, above_low=-0.1, better=False, right=0), QUIET
    for who in ("naive", "adapted"):
        found = leaking(found, who, label_f1=hidden)
    assert "labels are read" not in notes(found)


def test_dominance_is_by_accuracy_and_leakage() -> None:
    a, b, c = row("a", "a", 0.6, (5, 20)), row("b", "b", 0.5, (6, 20)), row("c", "c", 0.7, (9, 20))
    assert [(x.label, y.label) for x in (a, b, c) for y in (a, b, c) if x.dominates(y)] == [("a", "b")]
    front = [any("on the frontier" in note for note in said) for said in recommendation([a, b, c], TOLERANCE).notes]
    assert front == [True, False, True]


def test_a_guarantee_is_not_beaten_by_rows_without() -> None:
    private, plain = row("p", "p", 0.4, (0, 10), epsilon=3.0), row("a", "a", 0.5, (0, 8.0))
    empty, better = row("p", "p", 0.4, (0, 10), epsilon=900.0), row("p", "p", 0.5, (0, 10), epsilon=2.0)
    of_a_client = [changed(found, "privacy", unit="client") for found in (private, better)]
    assert not plain.dominates(private)
    assert better.dominates(private)
    assert plain.dominates(empty)
    assert not better.dominates(of_a_client[0]), "a smaller ε of one example says less"
    assert of_a_client[1].dominates(private)


def test_below_the_null_nothing_leaks_less() -> None:
    """Mean PSNR of 8 and of 10 dB where the nearest public picture has 11: neither attacker has anything."""
    a, b, leaky = (row(f, f, 0.5, (0, quality)) for f, quality in (("a", 8.0), ("b", 10.0), ("c", 20.0)))
    assert a.leak == b.leak < leaky.leak
    assert not a.dominates(b)


def test_each_attacker_is_judged_by_the_pictures_it_has_a_result_for() -> None:
    uneven = row("a", "a(x=1)", 0.6, (8, 25.0), (1, 9.0))
    uneven = leaking(uneven, "adapted", identified=replace(uneven.both[1][0], n=4, rate=0.25), failed=16)
    assert (uneven.rate, uneven.identified.count, uneven.identified.n) == (0.4, 8, 20), "8 of 20, never 8 of 4"
