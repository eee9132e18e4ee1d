"""Whether a plan explains its captured update: what was measured, and what a reader is told.

An attack on an update that was made with other weights, another mode or other pictures than the plan says fails, and
its failure would be taken for protection. So one round is simulated from the plan and compared with what was captured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from leakgauge.study.explaining.setting import Fit, TensorFit
from leakgauge.study.judging.records import Cause, Explanation, TensorShare

ENOUGH = 0.95
"""Share of what the right plan would explain below which a plan counts as wrong."""

WHOLE = 0.98
"""As much where nothing is drawn: what is left is the arithmetic of another machine or of half precision."""

LEAST, DEVIATIONS = 0.02, 4
"""The least share of what the right plan's pictures add that tells them from others, and the standard deviations over
rounds of the plan by which a captured one may have less."""

EXACT = 1 - 1e-6
"""Share of its own rounds that a plan explains of which nothing is drawn."""

UNORDERED = "rounds in other orders explain each other in part alone: a wrong plan could not be told from the right one"
RECORD = (
    "Record the order of the steps with the examples: CaptureMod(…, examples=True), or leakgauge.capture.seen(inputs,"
    " labels) in the training loop"
)


@dataclass(frozen=True)
class Explained:
    """Whether a plan explains its captured update.

    Attributes:
        fit: of the whole update, with the closest of several orders where they are drawn.
        expected: what the plan explains of its own rounds, at least and at most: less than all where noise, order or
            dropout are drawn.
        spread: standard deviation of that over the plan's rounds.
        rounding: share of the update's length that rounding may leave unexplained, generously.
        odd: tensors that the plan explains little of beyond their rounding; none of Adam, whose steps are as large
            where a gradient is nothing but rounding.
        recognisable: whether the right plan's cosine stands out of chance at all.
        pictures: how much of what the plan's own pictures add to any others with their labels is in the update, and is
            at least in the right plan's; `None` where there were no others to compare with.
        tensors: tensor by tensor, the least explained first.
        causes: the likeliest first; empty where the plan explains the update, and no other account does so clearly
            better.
        round: name of the captured round, where there are several.
        unordered: whether rounds in other orders differ so much that no plan can be told from another, and the order of
            this one was not recorded.
    """

    fit: Fit
    expected: tuple[float, float]
    recognisable: bool
    tensors: tuple[TensorFit, ...]
    causes: tuple[Cause, ...] = ()
    pictures: tuple[float, float] | None = None
    round: str = ""
    spread: float = 0.0
    rounding: float = math.inf
    odd: tuple[str, ...] = ()
    unordered: bool = False

    @property
    def its_pictures(self) -> bool:
        """Whether the update shows the plan's pictures, and not just any: where the classifier's part outweighs all
        else, every picture explains nearly all of it."""
        return self.pictures is None or self.pictures[0] >= self.pictures[1] > LEAST

    @property
    def enough(self) -> bool:
        """As much as the right plan would explain, which may be somewhat less than of the rounds that were drawn."""
        if self.expected[0] > EXACT:
            return self.fit.share >= WHOLE
        return self.fit.share >= ENOUGH * (self.expected[0] - self.spread)

    @property
    def drawn(self) -> bool:
        """Whether the right plan, too, may leave something unexplained: a wrong one may then explain enough."""
        return self.expected[0] < ENOUGH

    @property
    def leaves_more(self) -> bool:
        """Whether something is left that neither draws nor rounding account for: reads that need all of an update fail
        for less."""
        return self.expected[0] > EXACT and (self.fit.left > self.rounding or bool(self.odd))

    @property
    def too_well(self) -> bool:
        """Whether the update holds clearly less noise than the plan says."""
        return self.expected[1] < ENOUGH and self.fit.share > (1 + self.expected[1]) / 2

    @property
    def holds(self) -> bool:
        """Whether results on this update mean what the plan says."""
        doubted = self.unordered or self.too_well or bool(self.causes)
        return self.recognisable and self.enough and self.its_pictures and not doubted

    @property
    def record(self) -> Explanation:
        """As in report.json."""
        return Explanation(
            round=self.round,
            holds=self.holds,
            share=_rounded(self.fit.share),
            cosine=_rounded(self.fit.cosine),
            norm=_rounded(self.fit.norm),
            expected=tuple(_rounded(e) for e in self.expected),
            sentence=self.sentence,
            tensors=tuple(
                TensorShare(t.name, *(_rounded(v) for v in (t.energy, t.fit.cosine, t.fit.norm))) for t in self.tensors
            ),
            causes=tuple(replace(c, share=_rounded(c.share)) for c in self.causes),
        )

    @property
    def sentence(self) -> str:
        """For terminal and page."""
        much = f"{100 * self.fit.share:.1f} %" if self.fit.share >= 0.0005 else "nothing"
        share = f"The plan explains {much} of {self.round or 'this update'}"
        read = f"(cosine {self.fit.cosine:.3f}, norm {self.fit.norm:.3g} of the captured)"
        if self.drawn:
            low, high = (100 * max(e, 0.0) for e in self.expected)
            read += f"; of rounds of its own it explains {low:.0f} to {high:.0f} %"
        if self.holds:
            left = f"It leaves {self.fit.left:.1e} of its length, more than the rounding of what was sent"
            return f"{share} {read}.{f' {left}: exact reads may fail for that alone.' if self.leaves_more else ''}"
        if not self.recognisable:
            return f"{share} {read}: under so much noise no plan could be told from another, so nothing is concluded."
        if self.too_well:
            return f"{share} {read}: more than its defence allows. First look at defenses: the update holds less noise."
        if self.unordered and not self.causes:
            return f"{share} {read}, and {UNORDERED}, so nothing is concluded. {RECORD}."
        if self.enough and not self.causes:
            any_others = "but other pictures with the same labels explain as much, so nothing is concluded"
            return f"{share} {read}, {any_others}. First look at data: the round's own examples (source, start, batch)."
        first = "; then at ".join(f"{c.key}: {c.change}{_percent(c.share)}" for c in self.causes[:3])
        another = self.causes and (self.causes[0].share or 0) > self.fit.share
        better = ", but another account explains clearly more" if another else ", but not every tensor"
        better = better if self.enough and self.its_pictures and not self.unordered else ""
        return f"{share} {read}{better}, so nothing is concluded. First look at {first or 'the plan'}."


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def _percent(share: float | None) -> str:
    return "" if share is None else f" ({100 * share:.1f} % explained)"
