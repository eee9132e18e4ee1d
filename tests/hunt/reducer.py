"""A failure made as small as it can be, and told as a script of ten lines."""

from __future__ import annotations

import re
from dataclasses import fields

from hunt.relations import Pair, simpler
from hunt.scenarios import Scenario
from leakgauge.errors import FOREIGN, said

HEAD = """import sys; sys.path.insert(0, "tests")
from hunt.names import *"""


def violated(pair: Pair) -> str:
    """As `Pair.violation`; what raises is one."""
    try:
        return pair.violation()
    except FOREIGN as error:
        return f"raises {said(error)}"


def reduced(pair: Pair, tries: int = 40) -> Pair:
    """The plainest pair of the same relation that still fails, by dropping one thing at a time."""
    going = True
    while going and tries > 0:
        going = False
        for less in simpler(pair):
            tries -= 1
            if tries < 0:
                break
            if violated(less):
                pair, going = less, True
                break
    return pair


def signature(pair: Pair) -> str:
    """What a reduced failure has that is not plain: failures of one signature are taken for one cause."""
    plain, net = Scenario(), pair.one.net
    told = [f"{name}={_short(getattr(_of(pair, name), name.removeprefix('net.')))}" for name in pair.differs]
    shared = [f.name for f in fields(net) if f"net.{f.name}" not in pair.differs]
    told += [f"{name}={getattr(net, name)}" for name in shared if getattr(net, name) != getattr(plain.net, name)]
    for name in ("client", "defense", "wide_wire"):
        if name not in pair.differs and getattr(pair.one, name) != getattr(plain, name):
            told.append(f"{name}={_short(getattr(pair.one, name))}")
    told += ["several"] * (pair.one.examples > 1)
    return f"{pair.relation}: {', '.join(told) or 'plain'}"


def _of(pair: Pair, name: str) -> object:
    """Where the value that tells is: in the second, but for what the first lacks or uses."""
    if name in ("lacks", "using"):
        return pair.one
    return pair.other.net if name.startswith("net.") else pair.other


def _short(value: object) -> str:
    """Names of the classes in a value, without its numbers."""
    if isinstance(value, str | int | tuple):
        return str(value)
    return "+".join(re.findall(r"\b[A-Z]\w+(?=\()", repr(value)))


def script(pair: Pair) -> str:
    """At most ten lines that show it."""
    one, other = (_written(s) for s in (pair.one, pair.other))
    shown = f"print(Pair({pair.relation!r}, one, other, {pair.same}).violation())"
    return "\n".join([HEAD, f"one = {one}", f"other = {other}", "print(one.read(), other.read(), sep='\\n')", shown])


def _written(scenario: Scenario) -> str:
    """The constructor's call, without what is plain."""

    def call(made: object, plain: object) -> str:
        told = []
        for f in fields(made):  # type: ignore[arg-type]
            value, usual = getattr(made, f.name), getattr(plain, f.name)
            if value != usual:
                told.append(f"{f.name}={call(value, type(usual)()) if f.name == 'net' else repr(value)}")
        return f"{type(made).__name__}({', '.join(told)})"

    return call(scenario, Scenario())
