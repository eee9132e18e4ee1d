"""What the trials of one scenario and attack say of a client's tokens."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from leakgauge.intervals import bounded_interval
from leakgauge.study.judging.groups import TrialGroup
from leakgauge.study.judging.scores import TokenScores


@dataclass(frozen=True)
class TokenLeak:
    """Tokens of texts as multisets, by client.

    Attributes:
        mean, low, high: F1, with its 95 % interval.
        precision, recall: means.
        baseline: F1 of the most frequent tokens of other texts.
        sets, counts, order: share of clients whose tokens came back, no more and no fewer; as often as they occur; and
            as one text in order.
        n: clients.
    """

    mean: float
    low: float
    high: float
    precision: float
    recall: float
    baseline: float
    sets: float
    counts: float
    order: float
    n: int

    @property
    def words(self) -> str:
        """In one clause."""
        if not self.sets:
            return f"tokens were read with precision {self.precision:.2f} and recall {self.recall:.2f}; {self._f1}"
        parts = (("as often as they occur", self.counts), ("in order", self.order))
        more = "".join(f", {what} from {share * self.n:.0f}" for what, share in parts if share)
        came = f"the same tokens and no others from {self.sets * self.n:.0f} of {self.n} client{'s' * (self.n != 1)}"
        return f"{came}{more}; {self._f1}"

    @property
    def _f1(self) -> str:
        how_often = " counts how often" if self.counts < self.sets else ""
        return f"F1 {self.mean:.2f}{how_often}, of the most frequent tokens {self.baseline:.2f}"


def tokens_of(group: TrialGroup) -> TokenLeak | None:
    """`None` where no tokens were read."""
    by_client: dict[int, list[TokenScores]] = defaultdict(list)
    for t in group.scored:
        if t.tokens is not None:
            by_client[t.client].append(t.tokens)
    if not by_client:
        return None

    def mean(value: Callable[[TokenScores], float]) -> float:
        return statistics.fmean(statistics.fmean(map(value, some)) for some in by_client.values())

    f1 = [statistics.fmean(s.f1 for s in some) for some in by_client.values()]
    ends = bounded_interval(f1)
    return TokenLeak(
        mean=round(statistics.fmean(f1), 4),
        low=round(ends.low or 0.0, 3),
        high=round(1.0 if ends.high is None else ends.high, 3),
        precision=round(mean(lambda s: s.precision), 4),
        recall=round(mean(lambda s: s.recall), 4),
        baseline=round(mean(lambda s: s.constant_f1), 4),
        sets=round(mean(lambda s: s.exact_set), 4),
        counts=round(mean(lambda s: s.exact_counts), 4),
        order=round(mean(lambda s: s.in_place == 1), 4),
        n=len(by_client),
    )
