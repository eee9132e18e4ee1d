"""Verdicts, computed from kept rows by the rules of a frozen list."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from enum import Enum

from reproduce.claims.frozen import Ahead, Claim, Each, Level, Near, Reaches, Rows, claims_of
from reproduce.claims.quantity import Quantity
from reproduce.claims.rules import LEVEL, Outcome, Reading, apart, number, together, within

STARTS = (0, 1)
"""Every run is made twice, with other seeds."""
ENOUGH_STEPS = 0.5
"""Share of the paper's steps below which the opposite is not held against a claim: the search may be too short."""


class Verdict(Enum):
    """The only words there are."""

    HOLDS = "holds"
    SMALLER = "holds, smaller"
    CONTRARY = "contrary"
    OPEN = "open"
    UNTESTABLE = "untestable here"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Judgement:
    """A verdict with what it rests on.

    Attributes:
        ours: the measured number or difference, with its interval.
        why: what stands in, what the rows lack, or what explains the verdict.
        floor: what holds nothing of the update, by the same metric; "" where none is kept.
        commit: that made the rows.
    """

    verdict: Verdict
    ours: str = "–"
    why: str = ""
    floor: str = ""
    commit: str = ""


def judgement(paper: str, claim: Claim, start: int) -> Judgement:
    """By the rows of one start."""
    if claim.rule is None:
        left = Verdict.UNTESTABLE if claim.untestable else Verdict.NOT_RUN
        return Judgement(left, why=claim.untestable or claim.not_run)
    lacking = _lacking(paper, claim, start)
    if lacking:
        return Judgement(Verdict.NOT_RUN, why=lacking)
    lower = claims_of(paper).metrics[claim.metric].better == "lower"

    def units(rows: Rows) -> list[float]:
        return Quantity.of(paper, rows, claim, start).units(claim)

    def read(rule: Reaches | Near | Ahead | Level, confidence: float) -> Reading:
        match rule:
            case Reaches():
                below, above = (math.inf, rule.margin) if lower else (rule.margin, math.inf)
                return within(units(rule.reaches), rule.value, below, above, confidence)
            case Near():
                return within(units(rule.near), rule.value, rule.margin, rule.margin, confidence)
            case Ahead():
                one, other = map(units, rule.ahead)
                return apart(one, other, lower=lower, least=rule.by, most=math.inf, confidence=confidence)
            case Level():
                one, other = map(units, rule.level)
                return apart(one, other, lower=lower, least=-rule.within, most=rule.within, confidence=confidence)

    rule = claim.rule
    if isinstance(rule, Each):
        found = together([read(each, 1 - (1 - LEVEL) / len(rule.each)) for each in rule.each])
    else:
        found = read(rule, LEVEL)
    floor, beaten = "", True
    if claim.floor is not None:
        null = units(claim.floor)
        floor = f"{claim.floor.attack} {number(statistics.fmean(null))}"
        ahead = apart(units(rule.rows[0]), null, lower=lower, least=0, most=math.inf)
        beaten = ahead.outcome is Outcome.HOLDS or not claim.above
    verdict, why = _verdict(claim, found, beaten)
    commit = Quantity.of(paper, claim.rows[0], claim, start).commit
    return Judgement(verdict, found.ours, why, floor, commit)


def _lacking(paper: str, claim: Claim, start: int) -> str:
    """What keeps the claim from being judged: a row that is not there, of another size, or of another commit."""
    commits = set()
    for rows in claim.rows:
        quantity = Quantity.of(paper, rows, claim, start)
        have = len(quantity.units(claim))
        if not have:
            return "no rows under this list"
        shown = rows is claim.floor and not claim.above
        if have != claim.units and not shown:
            return f"{rows.text}: {have} of {claim.units} units"
        commits.add(quantity.commit)
    return f"rows of {len(commits)} commits" if len(commits) > 1 else ""


def _verdict(claim: Claim, found: Reading, beaten: bool) -> tuple[Verdict, str]:
    smaller = "; ".join(claim.stands_in)
    if claim.steps is not None and claim.steps[0] < claim.steps[1]:
        smaller = "; ".join(
            filter(None, (smaller, f"{claim.steps[0]:,} of {claim.steps[1]:,} steps".replace(",", " ")))
        )
    if not beaten:
        return Verdict.OPEN, "not ahead of what holds nothing of the update"
    if found.outcome is Outcome.CONTRARY:
        share = 1.0 if claim.steps is None else claim.steps[0] / claim.steps[1]
        if share < ENOUGH_STEPS or claim.opposite == "open":
            return Verdict.OPEN, f"the opposite, which {smaller or 'the size'} may cause"
        return Verdict.CONTRARY, "; ".join(filter(None, (found.why, smaller)))
    if found.outcome is Outcome.OPEN:
        return Verdict.OPEN, "; ".join(filter(None, (found.why, smaller)))
    return (Verdict.SMALLER, smaller) if smaller else (Verdict.HOLDS, "")


@dataclass(frozen=True)
class Decision:
    """All starts of a claim.

    Attributes:
        by_start: those that have rows, by number.
    """

    paper: str
    claim: Claim
    judged: Judgement
    by_start: dict[int, Judgement]

    @property
    def verdict(self) -> Verdict:
        return self.judged.verdict

    @property
    def flips(self) -> bool:
        """Whether two starts came to different verdicts, none of them open: the claim is then open."""
        return len({j.verdict for j in self.by_start.values()} - {Verdict.OPEN}) > 1

    @property
    def published(self) -> str:
        """The paper's number, or difference of two; "" where it prints none."""
        if not self.claim.published:
            return ""
        first, *rest = self.claim.published
        return f"{first - rest[0]:+.3g}" if rest else f"{first:g}"


def decide(paper: str, claim: Claim) -> Decision:
    """The verdict of both starts where they agree; open where they do not."""
    every = {start: judgement(paper, claim, start) for start in STARTS}
    run = {start: found for start, found in every.items() if found.verdict is not Verdict.NOT_RUN}
    if claim.rule is None or not run:
        return Decision(paper, claim, every[STARTS[0]], {})
    first = next(iter(run.values()))
    if len({found.verdict for found in run.values()}) > 1:
        told = "; ".join(f"start {start}: {found.verdict.value}, {found.ours}" for start, found in run.items())
        first = replace(first, verdict=Verdict.OPEN, why=f"the starts differ: {told}")
    elif len(run) == 1:
        first = replace(first, why="; ".join(filter(None, (first.why, "one start so far"))))
    return Decision(paper, claim, first, run)


def decisions(paper: str) -> list[Decision]:
    """Every claim of a paper, in the list's order."""
    return [decide(paper, claim) for claim in claims_of(paper).claims]
