"""A claim of a paper and its verdict, which is computed from kept rows."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from enum import Enum

from reproduce.claims.quantity import Quantity
from reproduce.claims.rules import Ahead, Outcome, Reading, Rule, number

ENOUGH_STEPS = 0.5
"""Share of the paper's steps below which the opposite is not held against a claim: the search may be too short."""


class Verdict(Enum):
    """The only words there are."""

    HOLDS = "holds"
    SMALLER = "holds, smaller"
    OTHER_METHOD = "other method"
    INCONCLUSIVE = "inconclusive"
    CONTRARY = "contrary"
    UNTESTABLE = "untestable here"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Beside:
    """What holds nothing of the update, beside the attack, by the same metric."""

    name: str
    floor: Quantity
    attack: Quantity

    @property
    def words(self) -> str:
        """``floor, avg SSIM: another digit of the class .401, the attack .273``."""
        if not self.floor.units or not self.attack.units:
            return f"floor not kept: {self.name}"
        floor, attack = (number(statistics.fmean(q.units)) for q in (self.floor, self.attack))
        return f"floor, {self.floor.metric}: {self.name} {floor}, the attack {attack}"


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What the paper spent. Ours is read from the rows where a row knows it (images, steps).

    Attributes:
        images: of the paper (batches where a batch is the unit); `None` where it does not say.
        steps: of the paper's attack; `None` for closed forms.
        width, batch, pixels: (ours, the paper's).
        data: what stands for the paper's data; "" for its own.
    """

    images: int | None = None
    steps: int | None = None
    width: tuple[int, int] | None = None
    batch: tuple[int, int] | None = None
    pixels: tuple[int, int] | None = None
    data: str = ""

    def shares(self, quantity: Quantity, *others: Quantity) -> dict[str, float]:
        """By what is smaller, at most 1 each; of images by the fewest that any of the quantities has."""
        found: dict[str, float] = {}
        if self.steps:
            found["steps"] = quantity.evaluations / self.steps
        for name, pair in (("batch", self.batch), ("width", self.width), ("pixels", self.pixels)):
            if pair is not None:
                found[name] = pair[0] / pair[1]
        if self.images:
            found["images"] = min(q.images for q in (quantity, *others)) / self.images
        return {name: min(share, 1.0) for name, share in found.items()}


@dataclass(frozen=True)
class Decision:
    """A verdict with what it rests on."""

    verdict: Verdict
    ours: str
    effort: dict[str, float]
    why: str
    commits: tuple[str, ...]

    @property
    def least(self) -> str:
        """The smallest share: ``6%``; ``full`` where none is below the paper's."""
        small = {name: share for name, share in self.effort.items() if share < 1}
        if not small:
            return "–" if self.verdict in (Verdict.NOT_RUN, Verdict.UNTESTABLE) else "full"
        return percent(min(small.values()))


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim.

    Attributes:
        where: table, figure or proposition.
        words: at most 25 characters, for a table of 80 columns.
        item: where the rows are, ``paper/item``.
        method: what stands for the paper's method; a claim that holds then holds by another method.
        floor: what holds nothing of the update; an attack that is not ahead of it decides nothing.
        floor_lower: whether lower is better there.
        shown: a floor that is printed and decides nothing.
        cost: why there is no run.
        untestable: why nothing here could bear the claim out.
        because: what explains a contrary verdict, if anything is known.
    """

    paper: str
    where: str
    words: str
    item: str
    rule: Rule | None = None
    effort: Effort = Effort()
    method: str = ""
    floor: tuple[Quantity, ...] = ()
    floor_lower: bool = False
    shown: Beside | None = None
    cost: str = ""
    untestable: str = ""
    because: str = ""

    @property
    def published(self) -> str:
        """As printed."""
        return "–" if self.rule is None else self.rule.published

    def decide(self) -> Decision:
        """The verdict, by what is kept now."""
        if self.rule is None:
            verdict = Verdict.UNTESTABLE if self.untestable else Verdict.NOT_RUN
            return Decision(verdict, "–", {}, self.untestable or self.cost, ())
        reading, rows = self.rule.read(), self.rule.quantities
        commits = tuple(sorted({commit for q in rows for commit in q.commits}))
        if reading.outcome is Outcome.NOT_RUN:
            return Decision(Verdict.NOT_RUN, "–", {}, self.cost or "no run is kept", commits)
        effort = self.effort.shares(*rows)
        verdict, why = self._verdict(reading, rows[0], effort)
        why = "; ".join(filter(None, (why, "" if self.shown is None else self.shown.words)))
        return Decision(verdict, reading.ours, effort, why, commits)

    def _verdict(self, reading: Reading, ours: Quantity, effort: dict[str, float]) -> tuple[Verdict, str]:
        below = self._below_floor(ours)
        if below:
            return Verdict.INCONCLUSIVE, below
        if reading.outcome is Outcome.CONTRARY:
            if effort.get("steps", 1.0) < ENOUGH_STEPS:
                return Verdict.INCONCLUSIVE, f"{reading.why}, after {percent(effort['steps'])} of the steps"
            return Verdict.CONTRARY, "; ".join(filter(None, (reading.why, self.because)))
        if reading.outcome is Outcome.INCONCLUSIVE:
            return Verdict.INCONCLUSIVE, reading.why
        if self.method:
            return Verdict.OTHER_METHOD, self.method
        small = [f"{percent(share)} of the {name}" for name, share in effort.items() if share < 1]
        if small or self.effort.data:
            return Verdict.SMALLER, ", ".join([*small, *filter(None, [self.effort.data])])
        return Verdict.HOLDS, ""

    def _below_floor(self, ours: Quantity) -> str:
        """Why the attack has shown nothing; "" where it is ahead of every floor with as many images."""
        for floor in self.floor:
            if floor.images == ours.images:
                reading = Ahead(ours, floor, lower=self.floor_lower).read()
                if reading.outcome is not Outcome.HOLDS:
                    return f"not ahead of a {floor.attack}: {reading.why}"
        return ""


def percent(share: float) -> str:
    """``6%``, ``0.4%``."""
    return f"{100 * share:.0f}%" if share >= 0.01 else f"{100 * share:.1g}%"
