"""Logs of who took part in which round, as CSV or JSON lines."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Any

from leakgauge.errors import InputError, require
from leakgauge.files import json_of
from leakgauge.risk.cohort import Log

HINT = "give a CSV file with a header round,client,weight, or JSON lines with these keys; weight may be left out"
LONGEST = 60
"""Digits of a weight, and of its power of ten: a number of seven characters may have ten million digits."""
BETWEEN = "at most 60 digits, between 1e-60 and 1e60"
KEYS = ("round", "client", "weight", "coordinates")


def read_log(path: Path) -> Log:
    """A log with one line a client and round.

    ``weight`` is a number or a fraction such as 1/3, as the sum uses it (1 where it is left out). JSON lines may list
    the ``coordinates`` that a client sent, whole numbers.

    Raises:
        InputError: not readable, an unknown key, a client twice in one round, a weight that is no positive number.
    """
    rounds: dict[str, dict[str, Fraction]] = {}
    coordinates: dict[tuple[str, str], frozenset[int]] = {}
    for number, entry in _entries(path):
        where = f"log {path.name}, line {number}"
        missing = [key for key in ("round", "client") if entry.get(key) in (None, "")]
        require(not missing, where, f"has no {' and no '.join(missing)}", HINT)
        unknown = sorted(set(entry) - set(KEYS))
        require(not unknown, where, f"has the unknown key '{unknown[0] if unknown else ''}'", HINT)
        name, client = str(entry["round"]), str(entry["client"])
        weights = rounds.setdefault(name, {})
        once = "give one line a client and round, with the sum of its weights"
        require(client not in weights, where, f"names client {client} in round {name} again", once)
        weights[client] = _weight(entry.get("weight"), where)
        if entry.get("coordinates") is not None:
            coordinates[(name, client)] = _coordinates(entry["coordinates"], where)
    return Log(rounds, coordinates)


def _entries(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"log {path}", f"cannot be read ({type(error).__name__})", HINT) from error
    if not text.lstrip().startswith("{"):
        reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
        for row in reader:
            require(
                None not in row, f"log {path.name}, line {reader.line_num}", "has more values than the header", HINT
            )
            yield reader.line_num, row
        return
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json_of(line, floats_as_text=True)
        except ValueError as error:
            raise InputError(f"log {path.name}, line {number}", "is not JSON", HINT) from error
        require(isinstance(entry, dict), f"log {path.name}, line {number}", "is no JSON object", HINT)
        yield number, entry


def _weight(given: object, where: str) -> Fraction:
    if given in (None, ""):
        return Fraction(1)
    hint = "give a positive number, or a fraction such as 1/3"
    text = str(given).strip()
    try:
        size = max(abs(Decimal(part).adjusted()) for part in text.split("/"))
        require(
            len(text) <= LONGEST and size <= LONGEST, where, f"has weight {text[:LONGEST]}", f"{hint}, of {BETWEEN}"
        )
        weight = Fraction(text)
    except (InvalidOperation, ValueError, ZeroDivisionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(where, f"has weight {text[:LONGEST]!r}", hint) from error
    require(weight > 0, where, f"has weight {text}", hint)
    return weight


def _coordinates(given: object, where: str) -> frozenset[int]:
    hint = "give the indices of the entries sent"
    if not isinstance(given, list) or not all(type(v) is int and v >= 0 for v in given):
        raise InputError(where, "has coordinates that are no list of whole numbers", hint)
    return frozenset(given)
