"""An audit on a few lines: each setting with its verdict, what was identified, and the highest PSNR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakgauge.study.judging.records import Scenario
from leakgauge.study.judging.results import Finding, Level
from leakgauge.study.judging.verdict import LEVELS, Verdict

LEAST = 8
"""Characters that a shortened name keeps."""


@dataclass(frozen=True)
class Line:
    """A setting over all attacks that were tried in it.

    Attributes:
        level: the worst of them.
        count, images: identified by the attack that identified the largest share, and of how many; `None` without a
            result.
        highest: PSNR in dB of any image; `None` without a result.
    """

    scenario: Scenario
    level: Level
    count: int | None
    images: int | None
    highest: float | None

    @property
    def identified(self) -> str:
        return "–" if self.count is None else f"{self.count}/{self.images}"

    @property
    def psnr(self) -> str:
        return "–" if self.highest is None else f"{self.highest:.1f} dB"


def lines(verdict: Verdict) -> list[Line]:
    """One for each setting that is no control, the worst first."""
    by: dict[Scenario, list[Finding]] = {}
    for found in verdict.findings:
        if not found.control:
            by.setdefault(found.scenario, []).append(found)
    return [_line(scenario, some) for scenario, some in by.items()]


def _line(scenario: Scenario, found: Sequence[Finding]) -> Line:
    seen = max((f.identified for f in found if f.identified is not None), key=lambda i: i.rate, default=None)
    highest = max((f.psnr.highest for f in found if f.psnr is not None), default=None)
    level = min((f.level for f in found), key=LEVELS.index)
    return Line(scenario, level, None if seen is None else seen.count, None if seen is None else seen.n, highest)


def named(scenarios: Sequence[Scenario], width: int) -> list[str]:
    """Short names of settings: what differs among them, each part cut where others would still be told from it.

    Args:
        width: of the longest name, where that can be had without two parts becoming alike.
    """
    columns = [[s.model for s in scenarios], [s.client for s in scenarios], [s.defense for s in scenarios]]
    columns += [[s.server for s in scenarios]]
    shown = [column for column in columns if len(set(column)) > 1] or columns[2:3]
    kept = [max(map(len, column)) for column in shown]
    least = [_least(column) for column in shown]
    while True:
        made = [", ".join(_cut(name, n) for name, n in zip(row, kept, strict=True)) for row in zip(*shown, strict=True)]
        spare = [have - need for have, need in zip(kept, least, strict=True)]
        if not made or max(map(len, made)) <= width or max(spare) <= 0:
            return made
        kept[spare.index(max(spare))] -= 1


def _least(names: Sequence[str]) -> int:
    """To how many characters names can be cut, and still differ."""
    longest = max(map(len, names))
    different = len(set(names))
    return next((n for n in range(LEAST, longest) if len({_cut(name, n) for name in names}) == different), longest)


def _cut(name: str, n: int) -> str:
    return name if len(name) <= n else f"{name[: n - 1]}…"
