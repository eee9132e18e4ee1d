"""Sums that give single updates away, against elimination with fractions and against all subsets."""

from __future__ import annotations

import itertools
import json
import random
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.cli import main
from leakgauge.risk.cohort import Log, read_cohort
from leakgauge.risk.count import HiddenInput

Rows = list[list[Fraction]]


def rank(rows: Rows) -> int:
    """By elimination with fractions, the slow and obvious way."""
    left, found = [list(row) for row in rows], 0
    for column in range(len(left[0]) if left else 0):
        at = next((i for i in range(found, len(left)) if left[i][column]), None)
        if at is None:
            continue
        left[found], left[at] = left[at], left[found]
        for i in range(found + 1, len(left)):
            factor = left[i][column] / left[found][column]
            left[i] = [a - factor * b for a, b in zip(left[i], left[found], strict=True)]
        found += 1
    return found


def null_rows(rows: Rows) -> Rows:
    """For each column, its entries in a basis of the null space, by the reduced echelon form."""
    left, pivots, columns = [list(row) for row in rows], [], len(rows[0])
    for column in range(columns):
        here = len(pivots)
        at = next((i for i in range(here, len(left)) if left[i][column]), None)
        if at is None:
            continue
        left[here], left[at] = left[at], left[here]
        left[here] = [v / left[here][column] for v in left[here]]
        for i in range(len(left)):
            if i != here and left[i][column]:
                left[i] = [a - left[i][column] * b for a, b in zip(left[i], left[here], strict=True)]
        pivots.append(column)
    free = [c for c in range(columns) if c not in pivots]
    return [
        [-left[pivots.index(c)][f] for f in free] if c in pivots else [Fraction(int(c == f)) for f in free]
        for c in range(columns)
    ]


def parallel(a: list[Fraction], b: list[Fraction]) -> bool:
    return all(x * w == y * v for (x, y), (v, w) in itertools.combinations(list(zip(a, b, strict=True)), 2))


def known(rows: Rows, clients: tuple[int, ...]) -> bool:
    """Whether some combination of these clients alone is in the row space: it meets their coordinates."""
    units = [[Fraction(int(j == k)) for j in range(len(rows[0]))] for k in clients]
    return rank(rows) + len(units) > rank(rows + units)


PRIMES = (1048573, 1048571)
ODD = [Fraction(2), Fraction(1, 3), Fraction(PRIMES[0]), Fraction(PRIMES[0], 7), Fraction(10**15 + 1)]
WEIGHTS = st.sampled_from([Fraction(1)] * 6 + ODD)


@st.composite
def logs(draw: st.DrawFn, most: int = 12) -> Log:
    clients = draw(st.integers(1, most))
    rounds = draw(st.integers(1, 10))
    share = draw(st.sampled_from([0.2, 0.5, 0.8]))
    rng = random.Random(draw(st.integers(0, 2**31)))
    rows = [{f"c{j}": draw(WEIGHTS) for j in range(clients) if rng.random() < share} for _ in range(rounds)]
    return Log({f"r{i}": row for i, row in enumerate(rows) if row} or {"r0": {"c0": Fraction(1)}})


def as_rows(log: Log) -> Rows:
    return [[weights.get(client, Fraction(0)) for client in log.clients] for weights in log.rounds.values()]


@given(logs())
@settings(max_examples=500, deadline=None)
def test_exact_against_fractions(log: Log) -> None:
    found, rows, clients = read_cohort(log), as_rows(log), log.clients
    null = null_rows(rows)
    assert found.rank == rank(rows) == len(clients) - len(null[0])
    determined = [j for j, row in enumerate(null) if not any(row)]
    assert [d.client for d in found.determined] == [clients[j] for j in determined]
    rest = [j for j in range(len(clients)) if j not in determined]
    pairs = [(clients[i], clients[j]) for i, j in itertools.combinations(rest, 2) if parallel(null[i], null[j])]
    assert list(found.pairs) == pairs
    assert known(rows, tuple(clients.index(c) for c in found.group.clients))


@given(logs(most=6))
@settings(max_examples=60, deadline=None)
def test_no_group_below_the_smallest(log: Log) -> None:
    found, rows = read_cohort(log), as_rows(log)
    everyone = range(len(log.clients))
    least = next(k for k in range(1, 7) if any(known(rows, s) for s in itertools.combinations(everyone, k)))
    assert len(found.group.clients) >= least
    if found.group.smallest:
        assert len(found.group.clients) == least


def test_a_prime_that_divides_what_matters_misleads_nobody() -> None:
    """Modulo the first prime, client a seems alone in round 1, and the rounds seem to depend on each other."""
    p = Fraction(PRIMES[0])
    log = Log({"1": {"a": Fraction(1), "b": p}})
    assert not read_cohort(log).determined
    log = Log({"1": {"a": Fraction(1), "b": Fraction(1)}, "2": {"a": Fraction(1), "b": 1 + p}})
    assert read_cohort(log).rank == 2
    assert [d.client for d in read_cohort(log).determined] == ["a", "b"]


def test_the_difference_of_two_rounds_and_its_drift() -> None:
    """Everyone in round 1, all but c in round 2: c is the difference, with the noise of 3 + 2 updates."""
    log = Log({"1": dict.fromkeys("abc", Fraction(1)), "2": dict.fromkeys("ab", Fraction(1))})
    (read,) = read_cohort(log).determined
    assert (read.client, read.alone_in, read.rounds) == ("c", None, 2)
    assert read.drift_gain == pytest.approx(5**0.5)
    weighted = Log({"1": {"a": Fraction(2), "b": Fraction(4)}, "2": {"a": Fraction(2)}})
    b, a = sorted(read_cohort(weighted).determined, key=lambda d: d.client, reverse=True)
    assert (a.alone_in, b.rounds) == ("2", 2)
    assert b.drift_gain == pytest.approx((4 + 16 + 4) ** 0.5 / 4)


def test_entries_that_one_client_alone_sends_are_in_clear() -> None:
    coordinates = {("1", "a"): frozenset({1, 2, 3}), ("1", "b"): frozenset({3, 4}), ("2", "a"): frozenset({1})}
    log = Log({"1": {"a": Fraction(1), "b": Fraction(1)}, "2": {"a": Fraction(1), "c": Fraction(1)}}, coordinates)
    assert read_cohort(log).alone == {("1", "a"): 2, ("1", "b"): 1}  # c sends all of its update in round 2


def test_entries_that_follow_from_several_sums() -> None:
    """Every round has all three clients, so that no whole update follows, but entry 0 is sent by two of them each."""
    ones = {client: Fraction(1) for client in "abc"}
    senders = {"1": "ab", "2": "bc", "3": "ac"}
    coordinates = {(r, c): frozenset({0, 7} if c in two else {7}) for r, two in senders.items() for c in "abc"}
    found = read_cohort(Log(dict.fromkeys(senders, ones), coordinates))
    assert (found.determined, found.alone, found.unread) == ((), {}, 0)
    assert found.combined == {"a": 1, "b": 1, "c": 1}
    weighted = {"1": ones, "2": {**ones, "b": Fraction(2)}}  # a + b and a + 2b, where c sends nothing
    pair = {(r, c): frozenset({4} if c != "c" else ()) for r in weighted for c in "abc"}
    assert read_cohort(Log(weighted, pair)).combined == {"a": 1}  # b follows as a whole: the sums differ by it alone
    assert read_cohort(Log({"1": ones, "2": ones}, pair)).combined == {}


def test_a_thousand_clients_in_two_hundred_rounds() -> None:
    rng = random.Random(5)
    rounds = {str(r): {str(c): Fraction(rng.randint(1, 900)) for c in rng.sample(range(1000), 100)} for r in range(199)}
    rounds["199"] = dict(list(rounds["0"].items())[1:])  # all of round 0 but one
    found = read_cohort(Log(rounds))
    assert (found.rank, [d.client for d in found.determined]) == (200, [next(iter(rounds["0"]))])


def run(path: Path, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["cohort", str(path), *words])
    return result.exit_code, " ".join(result.output.split())


def test_the_command_reads_both_formats(tmp_path: Path) -> None:
    table, lines, kept = tmp_path / "l.csv", tmp_path / "l.jsonl", tmp_path / "k.json"
    table.write_text("round,client,weight\n1,ann,2\n1,bob,1/3\n2,ann,0.5\n")
    code, text = run(table, "--json", str(kept))
    assert code == 1
    assert "1 update can be read off a round with a single client (2 clients in 2 rounds)" in text
    assert "worst case" in text
    assert [d["client"] for d in json.loads(kept.read_text())["determined"]] == ["ann", "bob"]
    lines.write_text('{"round": 1, "client": "ann"}\n{"round": 1, "client": "bob", "weight": 0.1}\n')
    code, text = run(lines)
    assert (code, "Smallest group whose combination is known: exactly 2" in text) == (0, True)
    lines.write_text(
        '{"round": 1, "client": "a", "coordinates": [1, 2]}\n{"round": 1, "client": "b", "coordinates": [2]}'
    )
    code, text = run(lines)
    assert (code, "1 update sent entries that nobody else sent" in text) == (1, True)
    pairs = (("a", "b"), ("b", "c"), ("a", "c"))
    sent = [
        json.dumps({"round": r, "client": c, "coordinates": [5] * (c in p)}) for r, p in enumerate(pairs) for c in "abc"
    ]
    lines.write_text("\n".join(sent))
    code, text = run(lines)
    assert (code, "entries of 3 updates do, from several rounds" in text) == (1, True)


def test_a_sum_of_no_more_examples_than_a_layer_reads_is_named(tmp_path: Path) -> None:
    path, kept = tmp_path / "l.csv", tmp_path / "k.json"
    path.write_text("round,client,examples\n1,a,8\n1,b,8\n2,a,10\n2,c,6\n3,c,12\n3,d,\n")
    code, text = run(path)
    assert (code, "--read-up-to" in text) == (0, True)
    code, text = run(path, "--read-up-to", "15", "--json", str(kept))
    assert (code, json.loads(kept.read_text())["whole"]) == (0, {})
    assert "sums not compared with --read-up-to: 1;" in text
    code, text = run(path, "--read-up-to", "16", "--json", str(kept))
    assert (code, json.loads(kept.read_text())["whole"]) == (1, {"round 1": 16, "round 2": 16})
    assert "a layer gives the features of all examples away in 2 sums" in text
    code, text = run(path, "--read-up-to", "16", "--examples", "4", "--json", str(kept))
    assert (code, json.loads(kept.read_text())["whole"]) == (1, {"round 1": 16, "round 2": 16, "round 3": 16})
    assert "not compared" not in text


def test_what_combined_rounds_leave_is_a_sum_too() -> None:
    rounds = {"1": dict.fromkeys("abcd", Fraction(1)), "2": dict.fromkeys("ab", Fraction(1))}
    found = read_cohort(Log({"1": rounds["1"], "2": rounds["1"] | {"e": Fraction(1)}}), 8, 8)
    assert [count for name, count in found.whole.items() if "leave of e" in name] == [8]
    assert set(read_cohort(Log(rounds), 16, 8).whole) == {"round 2"}


@given(st.data())
def test_a_sum_that_is_named_is_one_that_the_lint_names(data: st.DataObject) -> None:
    """With `HiddenInput.largest` as `count` prints it, for one step or several, batch statistics or none."""
    places, filters, columns = (data.draw(st.integers(1, most)) for most in (16, 200, 400))
    batched = data.draw(st.booleans())
    largest = min(filters + batched, columns - 1) // places
    layer = HiddenInput("conv", filters, places, largest, min(filters, columns - 1), batched)
    counts = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=6))
    names = [str(i) for i in range(len(counts))]
    log = Log({"1": dict.fromkeys(names, Fraction(1))}, {}, {("1", n): c for n, c in zip(names, counts, strict=True)})
    if read_cohort(log, layer.largest).whole:
        assert layer.whole(counts)


BAD = [
    ("round,client\n", "names no client"),
    ("client,weight\na,1\n", "has no round"),
    ("round,client,wait\n1,a,1\n", "unknown key 'wait'"),
    ("round,client\n1,a\n1,a\n", "line 3: names client a in round 1 again"),
    ("round,client,weight\n1,a,0\n", "weight 0"),
    ("round,client,weight\n1,a,nan\n", "weight 'nan'"),
    ("round,client\n1,a,3\n", "more values than the header"),
    ('{"round": 1, "client": "a"}\n{"round"', "line 2: is not JSON"),
    ('{"round": 1, "client": "a", "coordinates": [1.5]}', "no list of whole numbers"),
    ("round,client,examples\n1,a,0\n", "has examples '0'"),
    ("round,client,examples\n1,a,1.5\n", "has examples '1.5'"),
    ('{"round": 1, "client": "a", "examples": true}', "has examples 'True'"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_logs_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "log").write_text(text)
    code, said = run(tmp_path / "log")
    assert (code, message in said) == (2, True), said
    assert run(tmp_path / "none")[0] == 2
