"""Which other accounts explain an update better than its plan, where order, dropout or noise are drawn.

A plan's own rounds explain each other in part alone, so that a wrong plan may explain as much as its own rounds would
and vindicate itself. An account is preferred to it only where it explains the update, and none of the plan's own
rounds, clearly better.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.study.explaining.explained import ENOUGH, ROUNDS, Cause
from leakgauge.study.explaining.mistakes import SHUFFLE
from leakgauge.study.explaining.setting import Setting
from leakgauge.update import Update

ALL = 0.99
"""Share from which a change is taken for the true one, and no other is tried: the simplest come first."""

BETTER = 0.1
"""Gain in the share explained from which an account counts as better, beyond what it gains on the plan's own rounds."""

HALF = 0.5
"""Least share that an account must explain to be named as the right one: rounds of a chaotic one explain little of
each other, and so any update as well as they should."""

A_GROUP, SHORT = 3, 18
"""Accounts of one group, and of all, that are compared with several draws."""


@dataclass(frozen=True, eq=False)
class Account:
    """A change of the plan, with the round as it then was.

    Attributes:
        cause: the change, with the share that one simulated round explained.
        setting: the plan's account with it.
        update: what was captured, read as the change has it.
        group: the keys of the plan that it changes.
        fitted: whether a learning rate was fitted to this update, which lets a wrong account explain more.
        left: share of the update's length that one simulated round left.
    """

    cause: Cause
    setting: Setting
    update: Update
    group: str
    fitted: bool = False
    left: float = math.inf

    @property
    def share(self) -> float:
        return -1.0 if self.cause.share is None else self.cause.share

    def closest(self, own: Iterable[Update], draws: Draws) -> list[float]:
        """Shares explained of the update, and of each of `own`; empty where it cannot be simulated."""
        try:
            return [c.fit.share for c in self.setting.closest(itertools.chain([self.update], own), draws)]
        except (InputError, RuntimeError, ValueError):
            return []


def rivals(setting: Setting, update: Update, draws: Draws, tried: Sequence[Account]) -> list[Cause]:
    """Accounts that explain clearly more than a plan that seems to hold, as `_ranked`."""
    own = list(_own_rounds(setting, update, draws))
    plan = [c.fit.share for c in setting.closest([update, *own], draws)]
    typical = plan[0] >= min(plan[1:])  # else no gain on its own rounds speaks for it
    found: list[tuple[Account, float]] = []
    for account in _shortlist(tried):
        if closest := account.closest(own, draws):
            gain, *others = (share - p for share, p in zip(closest, plan, strict=True))
            exact = closest[0] >= ALL and plan[0] < ENOUGH
            if exact or gain > BETTER + (max(0.0, *others) if typical else 0.0):
                found.append((account, closest[0]))
    return _ranked(found)


def sufficient(setting: Setting, update: Update, draws: Draws, tried: Sequence[Account]) -> list[Cause]:
    """Accounts that explain as much of the update as of rounds of their own, and more than a plan that does not hold,
    as `_ranked`. An order that is drawn need not explain more than the plan's: it would do no better if it were right.
    """
    plain = setting.closest([update], draws)[0].fit.share
    found: list[tuple[Account, float]] = []
    for account in _shortlist(tried):
        if closest := account.closest(_own_rounds(account.setting, account.update, draws), draws):
            share, *own = closest
            better = account.group == SHUFFLE or share > plain + BETTER
            if better and share >= max(HALF, ENOUGH * min(own)):
                found.append((account, share))
    return _ranked(found)


def _own_rounds(setting: Setting, update: Update, draws: Draws) -> Iterator[Update]:
    """Rounds of an account, with draws that it does not know."""
    return (setting.own_round(update, draws.of("round", i)) for i in range(ROUNDS))


def _shortlist(tried: Sequence[Account]) -> list[Account]:
    """In their order: the order of minibatches, then of each group the one that one round speaks for most, then others
    of the groups."""
    groups = Counter[str]()
    places: list[tuple[bool, int, float, Account]] = []
    for account in sorted(tried, key=lambda a: -a.share):
        if account.group == SHUFFLE or account.share > 0:
            places.append((account.group != SHUFFLE, groups[account.group], -account.share, account))
            groups[account.group] += 1
    best = sorted((p for p in places if p[1] < A_GROUP), key=lambda p: p[:3])[:SHORT]
    return sorted((p[3] for p in best), key=tried.index)


def _ranked(found: Sequence[tuple[Account, float]]) -> list[Cause]:
    """First the simplest of those that explain nearly as much as the best: one without a fitted rate, and the first.
    Then the others, the best first."""
    if not found:
        return []
    near = max(share for _, share in found) - BETTER
    first = min((pair for pair in found if pair[1] > near), key=lambda pair: pair[0].fitted)
    others = sorted((pair for pair in found if pair is not first), key=lambda pair: -pair[1])
    return [replace(account.cause, share=share) for account, share in (first, *others)]
