"""Searches that ended before they had come as far as one that is known to find something."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from leakgauge.study.judging.groups import TrialGroup
from leakgauge.study.judging.records import Trial

SHORT = 0.5
"""Share of the control's gradient evaluations below which a search that the clock ended was cut short."""
LEAST = 300, 8
"""Gradient evaluations an example, of at most so many examples, that a search takes which no control needed: half of
what `auto` takes by itself."""
ENDED = ("time_limit", "stopped", "out_of_budget", "out_of_steps")
"""How a search ends that did not come to an end by itself."""


@dataclass(frozen=True)
class CutShort:
    """The clock, or the attack's own end, cut the search off before it had come as far as on the control. Without a
    `share` no control needed a search, and this one was short."""

    trials: int
    of: int
    share: float | None
    clock: bool = True

    @property
    def sentence(self) -> str:
        if self.share is None:
            ended = f"the search was ended after few gradient evaluations in {self.trials} of {self.of} trials"
            return f"{ended}, and controls were read without one: nothing shows what so short a search finds (budget)"
        how = "time ran out" if self.clock else "the search was ended early"
        why = "that a defence is slow to simulate is no protection" if self.clock else "what did not look found nothing"
        return (
            f"{how} in {self.trials} of {self.of} trials, after {100 * self.share:.0f} % of the control's gradient "
            f"evaluations: {why} (budget.gradient_evaluations gives each as many)"
        )


def cut_short(group: TrialGroup, control: TrialGroup | None) -> list[CutShort]:
    """Whether the searches of a row were. Controls that came back by a read alone show no search's power."""
    late = [t for t in group.scored if t.status in ENDED]
    if control is None or control is group or not late or not control.scored:
        return []
    searched = [t for t in control.scored if _searched(t)]
    spent, usual = (
        statistics.median(t.gradient_evaluations for t in some) for some in (late, searched or control.scored)
    )
    clock = any(t.status == "time_limit" for t in late)
    if not searched and any(_certified(t) for t in control.scored):
        least = LEAST[0] * min(group.scenario.data.batch, LEAST[1])
        return [CutShort(len(late), len(group.trials), None, clock)] if spent < least else []
    return [CutShort(len(late), len(group.trials), spent / usual, clock)] if spent < SHORT * usual else []


def _certified(trial: Trial) -> int:
    return 0 if trial.scores is None else trial.scores.certified


def _searched(trial: Trial) -> bool:
    """Whether more came back than was certified."""
    return trial.scores is not None and sum(trial.scores.recovered) > trial.scores.certified
