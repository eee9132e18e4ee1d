"""Which single updates the sums of secure aggregation give away, from a log of who took part in which round."""

import csv
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Any

import flint
import numpy as np
from numpy.typing import NDArray

from leakgauge.errors import InputError, refusing, require
from leakgauge.files import json_of


@dataclass(frozen=True)
class Log:
    """Who took part in which sum."""

    # name of a round → client → weight of its update in that round's sum, positive
    rounds: Mapping[str, Mapping[str, Fraction]]
    # (round, client) → indices of the entries that it sent, where updates are sparse
    coordinates: Mapping[tuple[str, str], frozenset[int]] = field(default_factory=dict)
    # (round, client) → examples that it trained on in that round, each counted at every step, where that is said
    examples: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(any(self.rounds.values()), "log", "names no client", "give lines of round, client, weight")
        for name, weights in self.rounds.items():
            for client, weight in weights.items():
                require(weight > 0, f"round {name}", f"client {client} has weight {weight}", "give a positive weight")

    @property
    def clients(self) -> list[str]:
        return list(dict.fromkeys(client for weights in self.rounds.values() for client in weights))


@dataclass(frozen=True)
class Determined:
    """A client whose update the sums fix."""

    client: str
    alone_in: str | None  # a round in which nobody else took part, if there is one; then drift changes nothing.
    rounds: int  # sums that are combined
    # error of the combination where every client's update varies from round to round by independent noise, over the
    # size of that noise
    drift_gain: float


@dataclass(frozen=True)
class ClientGroup:
    """The smallest set of clients found of which some combination of updates is known; whether it is the least."""

    clients: tuple[str, ...]
    smallest: bool


@dataclass(frozen=True)
class Cohort:
    """What the sums of a log determine, if updates stay the same over the rounds."""

    clients: int
    rounds: int
    rank: int
    determined: tuple[Determined, ...]  # clients whose own update follows
    pairs: tuple[tuple[str, str], ...]  # two clients, neither determined, of whom one combination with both follows
    group: ClientGroup  # the smallest combination of updates that is known
    # (round, client) → entries that this client alone sent in that round: in clear in the sum
    alone: Mapping[tuple[str, str], int]
    # client → entries of its update, neither sent alone nor of a determined one, that follow from several sums, as not
    # all clients sent them in all rounds
    combined: Mapping[str, int] = field(default_factory=dict)
    unread: int = 0  # entries that were not looked at for `combined`, beyond `MOST_PATTERNS`
    # sum → examples in it, each counted at every step, where a layer gives the features of so many away whole
    whole: Mapping[str, int] = field(default_factory=dict)
    uncounted: int = 0  # rounds of which that is asked and the log does not say it


MOST_PATTERNS = 2000
"""Ways in which an entry may have been sent, by whom in which rounds, that are looked at; the commonest first."""


Whole = NDArray[np.object_]  # whole numbers of any size


@dataclass(frozen=True, eq=False)
class Echelon:
    """The reduced row echelon form of a matrix of whole numbers: the rows that are not zero, times one number."""

    rows: Whole
    pivots: tuple[int, ...]

    @staticmethod
    def of(matrix: Whole) -> "Echelon":
        reduced, _, rank = flint.fmpz_mat(matrix.tolist()).rref()
        rows = np.array(reduced.tolist(), dtype=object)[:rank]
        return Echelon(rows, tuple(int(np.flatnonzero(row)[0]) for row in rows))

    @property
    def lone(self) -> list[int]:
        """Columns whose unit vector is in the span: pivots with no other entry in their row."""
        return [pivot for pivot, row in zip(self.pivots, self.rows, strict=True) if np.count_nonzero(row) == 1]

    @property
    def null(self) -> Whole:
        """Entries of a basis of the null space: a row for each column of the matrix, times a number of its own."""
        size = self.rows.shape[1]
        free = np.setdiff1d(np.arange(size), self.pivots)
        found = np.zeros((size, len(free)), dtype=object)
        found[free, np.arange(len(free))] = 1
        found[list(self.pivots)] = self.rows[:, free]
        return found


def read_cohort(log: Log, largest: int = 0, examples: int | None = None) -> Cohort:
    """Exact: e_j is in the row space of the participation matrix, weights included, or it is not.

    Args:
        largest: examples up to which some layer of the network gives the features of all away, as
            `leakgauge.risk.count.hidden_inputs` counts them: a sum of clients is one more batch.
        examples: of a client in a round, each counted at every step, where the log says none.
    """
    clients = log.clients
    matrix = _integers(log, clients)
    echelon = Echelon.of(matrix)
    pairs = [(clients[i], clients[j]) for i, j in _pairs(echelon)]
    determined = _determined(log, clients, matrix, echelon.lone) if echelon.lone else ()
    combined, unread = _combined(log, {d.client for d in determined})
    group = _group(clients, echelon, matrix, [*((d.client,) for d in determined), *pairs])
    sums = {f"round {name}": [log.examples.get((name, c), examples) for c in who] for name, who in log.rounds.items()}
    held = [max((n for (_, c), n in log.examples.items() if c == one), default=examples) for one in group.clients]
    if all(set(group.clients) != set(who) for who in log.rounds.values()):
        sums[f"what combined rounds leave of {', '.join(group.clients)}, if their updates stay the same"] = held
    counted = {name: sum(n for n in each if n) for name, each in sums.items() if None not in each}
    return Cohort(
        clients=len(clients),
        rounds=len(log.rounds),
        rank=len(echelon.pivots),
        determined=determined,
        pairs=tuple(pairs),
        group=group,
        alone=_alone(log),
        combined=combined,
        unread=unread,
        whole={name: count for name, count in counted.items() if count <= largest},
        uncounted=sum(name not in counted for name in sums) if largest else 0,
    )


def _integers(log: Log, clients: list[str]) -> Whole:
    """Rows scaled to the smallest whole numbers, which leaves their span as it is."""
    at = {client: j for j, client in enumerate(clients)}
    matrix = np.zeros((len(log.rounds), len(clients)), dtype=object)
    for i, weights in enumerate(log.rounds.values()):
        common = math.lcm(*(w.denominator for w in weights.values()))
        for client, weight in weights.items():
            matrix[i, at[client]] = int(weight * common)
        matrix[i] //= max(1, math.gcd(*matrix[i]))
    return matrix


def _pairs(echelon: Echelon) -> list[tuple[int, int]]:
    """Clients, neither determined, of whom a combination is known: their rows of the null space are parallel."""
    classes: dict[tuple[int, ...], list[int]] = {}
    for column, row in enumerate(echelon.null):
        if row.any():
            first = row[np.flatnonzero(row)[0]]
            scale = math.gcd(*row) * (1 if first > 0 else -1)
            classes.setdefault(tuple(row // scale), []).append(column)
    return sorted(pair for members in classes.values() for pair in itertools.combinations(members, 2))


def _determined(log: Log, clients: list[str], matrix: Whole, found: list[int]) -> tuple[Determined, ...]:
    """How each is read off: from a round of its own, or by a combination of rounds."""
    lonely = {next(iter(weights)): name for name, weights in log.rounds.items() if len(weights) == 1}
    independent = matrix[list(Echelon.of(matrix.T).pivots)]
    basis = (independent / np.abs(independent).max(1, keepdims=True)).astype(float)  # whole numbers may be too large
    combined = [j for j in found if clients[j] not in lonely]
    basis /= np.linalg.norm(basis, axis=1, keepdims=True)
    # The only one, as the rows are independent; in double precision, as nothing but the size of an error rests on it.
    combinations = np.linalg.lstsq(basis @ basis.T, basis[:, combined], rcond=None)[0].T
    gains = np.sqrt(np.square(combinations) @ np.square(basis).sum(1)).tolist()
    used = (np.abs(combinations) > 1e-9 * np.abs(combinations).max(1, keepdims=True, initial=0)).sum(1).tolist()
    by_sums = dict(zip(combined, zip(used, gains, strict=True), strict=True))
    return tuple(Determined(clients[j], lonely.get(clients[j]), *by_sums.get(j, (1, 1.0))) for j in found)


def _group(clients: list[str], echelon: Echelon, matrix: Whole, exact: Sequence[tuple[str, ...]]) -> ClientGroup:
    """Single clients and pairs exactly; else the smallest of the rounds, their differences and the echelon form."""
    if exact:
        return ClientGroup(exact[0], True)
    best = min((np.flatnonzero(row) for row in matrix), key=len)
    weights = np.unique(matrix, return_inverse=True)[1].reshape(matrix.shape)  # whole numbers may be slow to compare
    for i, row in enumerate(weights):
        sizes = (weights[i + 1 :] != row).sum(1)
        if len(sizes) and 0 < (least := sizes[sizes > 0].min(initial=len(best))) < len(best):
            other = weights[i + 1 + int(np.flatnonzero(sizes == least)[0])]
            best = np.flatnonzero(row != other)
    best = min(best, *map(np.flatnonzero, echelon.rows), key=len)
    return ClientGroup(tuple(clients[j] for j in best), len(best) <= 3)


def _alone(log: Log) -> dict[tuple[str, str], int]:
    """Entries that one client alone sent, by round. A client without listed entries sent all of them."""
    found = {}
    for name, weights in log.rounds.items():
        sent = {client: log.coordinates.get((name, client)) for client in weights}
        if any(entries is None for entries in sent.values()):
            continue
        listed = Counter(entry for entries in sent.values() for entry in entries or ())
        for client, entries in sent.items():
            if count := sum(listed[entry] == 1 for entry in entries or ()):
                found[(name, client)] = count
    return found


def _combined(log: Log, determined: set[str]) -> tuple[dict[str, int], int]:
    """Entries that follow from several sums, by client, and how many were not looked at. Each entry has a participation
    matrix of its own: the rounds' rows, with the clients that sent it."""
    sent: dict[int, list[tuple[str, str]]] = {}
    for key, entries in log.coordinates.items():
        for entry in entries:
            sent.setdefault(entry, []).append(key)
    dense = [(r, c) for r, weights in log.rounds.items() for c in weights if (r, c) not in log.coordinates]
    patterns = Counter(frozenset(keys) for keys in sent.values()).most_common()
    found: Counter[str] = Counter()
    for keys, count in patterns[:MOST_PATTERNS]:
        rounds: dict[str, dict[str, Fraction]] = {}
        for name, client in [*sorted(keys), *dense]:
            rounds.setdefault(name, {})[client] = log.rounds[name][client]
        lonely = {next(iter(weights)) for weights in rounds.values() if len(weights) == 1}
        if len({tuple(sorted(weights.items())) for weights in rounds.values()}) < 2:
            continue
        clients = Log(rounds).clients
        echelon = Echelon.of(_integers(Log(rounds), clients))
        for client in {clients[j] for j in echelon.lone} - lonely - determined:
            found[client] += count
    unread = sum(count for _, count in patterns[MOST_PATTERNS:])
    return {client: found[client] for client in log.clients if found[client]}, unread


HINT = "give a CSV file with a header round,client,weight,examples, or JSON lines with these keys; the last two may be "
HINT += "left out"
LONGEST = 60  # digits of a weight, and of its power of ten: a number of seven characters may have ten million digits


def read_log(path: Path) -> Log:
    """A log with one line a client and round.

    ``weight`` is a number or a fraction such as 1/3, as the sum uses it (1 where it is left out). ``examples`` is how
    many the client trained on, each counted at every step. JSON lines may list the ``coordinates`` that a client sent,
    whole numbers. Raises `InputError` for anything else.
    """
    rounds: dict[str, dict[str, Fraction]] = {}
    examples: dict[tuple[str, str], int] = {}
    coordinates: dict[tuple[str, str], frozenset[int]] = {}
    for number, entry in _entries(path):
        where = f"log {path.name}, line {number}"
        missing = [key for key in ("round", "client") if entry.get(key) in (None, "")]
        require(not missing, where, f"has no {' and no '.join(missing)}", HINT)
        unknown = sorted(set(entry) - {"round", "client", "weight", "coordinates", "examples"})
        require(not unknown, where, f"has the unknown key '{unknown[0] if unknown else ''}'", HINT)
        name, client = str(entry["round"]), str(entry["client"])
        weights = rounds.setdefault(name, {})
        once = "give one line a client and round, with the sum of its weights"
        require(client not in weights, where, f"names client {client} in round {name} again", once)
        weights[client] = _weight(entry.get("weight"), where)
        if (count := entry.get("examples")) not in (None, ""):
            whole = str(count).isdecimal() and 0 < len(str(count)) <= LONGEST and int(str(count)) > 0
            require(whole, where, f"has examples {str(count)[:LONGEST]!r}", "give a whole number above 0")
            examples[(name, client)] = int(str(count))
        if (sent := entry.get("coordinates")) is not None:
            whole = isinstance(sent, list) and all(type(v) is int and v >= 0 for v in sent)
            hint = "give the indices of the entries sent"
            require(whole, where, "has coordinates that are no list of whole numbers", hint)
            coordinates[(name, client)] = frozenset(sent)
    return Log(rounds, coordinates, examples)


def _entries(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with refusing(f"log {path}", "cannot be read", HINT, OSError, UnicodeDecodeError):
        text = path.read_text(encoding="utf-8-sig")
    if not text.lstrip().startswith("{"):
        reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
        for row in reader:
            where = f"log {path.name}, line {reader.line_num}"
            require(None not in row, where, "has more values than the header", HINT)
            yield reader.line_num, row
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            where = f"log {path.name}, line {number}"
            with refusing(where, "is not JSON", HINT, ValueError):
                entry = json_of(line, floats_as_text=True)
            require(isinstance(entry, dict), where, "is no JSON object", HINT)
            yield number, entry


def _weight(given: object, where: str) -> Fraction:
    if given in (None, ""):
        return Fraction(1)
    hint = "give a positive number, or a fraction such as 1/3"
    text = str(given).strip()
    try:
        short = max(len(text), *(abs(Decimal(part).adjusted()) for part in text.split("/"))) <= LONGEST
        weight = Fraction(text) if short else Fraction(0)
    except (InvalidOperation, ValueError, ZeroDivisionError) as error:
        raise InputError(where, f"has weight {text[:LONGEST]!r}", hint) from error
    between = f"{hint}, of at most {LONGEST} digits, between 1e-{LONGEST} and 1e{LONGEST}"
    require(short, where, f"has weight {text[:LONGEST]}", between)
    require(weight > 0, where, f"has weight {text}", hint)
    return weight
