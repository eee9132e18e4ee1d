"""How much of a captured update its plan explains, with the round's own examples at hand.

An attack on an update that was made with other weights, another mode or other pictures than the plan says fails, and
its failure would be taken for protection. So one round is simulated from the plan and compared with what was captured.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.clients import rescales_entries
from leakgauge.draws import Draws
from leakgauge.study.explaining.fit import Fit, TensorFit, products
from leakgauge.study.explaining.setting import Setting
from leakgauge.task import Batch
from leakgauge.tensors import Tensors
from leakgauge.update import Update

ENOUGH = 0.95
"""Share of what the right plan would explain below which a plan counts as wrong."""

LEAST, DEVIATIONS = 0.02, 4
"""The least share of what the right plan's pictures add that tells them from others, and the standard deviations over
rounds of the plan by which a captured one may have less."""

ROUNDS = 6
"""Rounds of the plan that are simulated to see how much the right plan would explain: draws are unknown."""

OTHERS = 6
"""Rounds on other people's pictures with the plan's labels, whose mean is what any pictures explain."""

EXACT = 1 - 1e-6
"""Share of its own rounds that a plan explains of which nothing is drawn."""

SLIGHT, GENEROUS = 1e-4, 10.0
"""Share of an update's length that is not looked into, for other orders of summation leave as much; and how many times
the rounding of what was sent may be left."""

ODD, FAINT = 0.5, 1e-3
"""Share of a tensor below which the plan does not explain it, if what is left is more than so much of the update's
length: gradients that are zero but for rounding, as of a bias before BatchNorm, are less. Small tensors hide in the
share of the whole, and reads may rest on them: of labels on the last bias, of inputs on the first."""

CERTAIN = 5.0
"""Standard deviations of chance, 1/√entries, that the right plan's cosine must exceed to be recognised at all."""


@dataclass(frozen=True)
class Cause:
    """What may be wrong with a plan.

    Attributes:
        key: of the plan, e.g. ``mode``.
        change: what to write or look at.
        share: explained with that change; `None` where nothing could be tried.
    """

    key: str
    change: str
    share: float | None


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

    @property
    def its_pictures(self) -> bool:
        """Whether the update shows the plan's pictures, and not just any: where the classifier's part outweighs all
        else, every picture explains nearly all of it."""
        return self.pictures is None or self.pictures[0] >= self.pictures[1] > LEAST

    @property
    def enough(self) -> bool:
        """As much as the right plan would explain, which may be somewhat less than of the rounds that were drawn."""
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
        return self.recognisable and self.enough and not self.too_well and self.its_pictures and not self.causes

    @property
    def record(self) -> dict[str, object]:
        """As in report.json."""
        return {
            **({"round": self.round} if self.round else {}),
            "holds": self.holds,
            "share": _rounded(self.fit.share),
            "cosine": _rounded(self.fit.cosine),
            "norm": _rounded(self.fit.norm),
            "expected": [_rounded(e) for e in self.expected],
            "sentence": self.sentence,
            "tensors": [
                {"name": t.name, "energy": _rounded(t.energy)}
                | {"cosine": _rounded(t.fit.cosine), "norm": _rounded(t.fit.norm)}
                for t in self.tensors
            ],
            "causes": [{"key": c.key, "change": c.change, "share": _rounded(c.share)} for c in self.causes],
        }

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
        if self.enough and not self.causes:
            any_others = "but other pictures with the same labels explain as much, so nothing is concluded"
            return f"{share} {read}, {any_others}. First look at data: the round's own examples (source, start, batch)."
        first = "; then at ".join(f"{c.key}: {c.change}{_percent(c.share)}" for c in self.causes[:3])
        another = self.causes and self.causes[0].share is not None
        better = ", but another account explains clearly more" if another else ", but not every tensor"
        better = better if self.enough and self.its_pictures else ""
        return f"{share} {read}{better}, so nothing is concluded. First look at {first or 'the plan'}."


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def _percent(share: float | None) -> str:
    return "" if share is None else f" ({100 * share:.1f} % explained)"


FindCauses = Callable[[Setting, Update, Draws, Explained], tuple[Cause, ...]]
"""Takes the plan's account, what was captured, draws, and how much the plan explains."""


def explain(
    setting: Setting,
    update: Update,
    draws: Draws,
    find_causes: FindCauses,
    strangers: Float[Tensor, "m *shape"] | None = None,
) -> Explained:
    """Compares one simulated round with what was captured, and looks for the cause where they differ.

    Args:
        strangers: pictures that are not the round's; with them the plan's pictures must explain the update better.

    Raises:
        InputError: the plan's client cannot train at all.
    """
    mean = None if strangers is None else _mean_of_others(setting, update, strangers, draws)
    rounds = (setting.own_round(update, draws.of("round", i)) for i in range(ROUNDS))
    ours, *own = setting.closest(itertools.chain([update], rounds), draws, mean)
    simulated, beyond = setting.guessed(update, draws, ours.guess), [c.beyond for c in own]
    shares = [c.fit.share for c in own]
    entries = sum(t.numel() for t in update.tensors.values())
    parts = {name: products(simulated, {name: tensor}) for name, tensor in update.tensors.items()}
    total = sum(captured for _, captured, _ in parts.values()) or 1.0
    tensors = [TensorFit(name, part[1] / total, Fit.of(*part)) for name, part in parts.items()]
    tensors.sort(key=lambda t: t.energy * (1 - t.fit.share), reverse=True)
    pictures = None
    if mean is not None:
        low = statistics.fmean(beyond) - DEVIATIONS * statistics.stdev(beyond)
        pictures = ours.beyond, min(ENOUGH * min(beyond), low)
    rounded, size = setting.rounded(update), math.sqrt(total)
    odd = [k for k, p in parts.items() if _is_odd(*p, least=max(FAINT * size, GENEROUS * rounded[k]))]
    found = Explained(
        fit=ours.fit,
        expected=(min(shares), max(shares)),
        spread=statistics.stdev(shares),
        recognisable=min(c.fit.cosine for c in own) > CERTAIN / math.sqrt(entries),
        tensors=tuple(tensors),
        pictures=pictures,
        rounding=max(SLIGHT, GENEROUS * math.hypot(*rounded.values()) / size),
        odd=() if rescales_entries(setting.protocol) else tuple(odd),
    )
    doubted = found.drawn and found.fit.share < ENOUGH
    if (found.holds and not doubted and not found.leaves_more) or not found.recognisable or found.too_well:
        return found
    return replace(found, causes=find_causes(setting, update, draws, found))


def _is_odd(simulated: float, captured: float, inner: float, *, least: float) -> bool:
    """Whether the plan explains little of a tensor, from the squared norms and the inner product."""
    missing = math.sqrt(max(simulated + captured - 2 * inner, 0.0))
    return Fit.of(simulated, captured, inner).share < ODD and missing > least


def _mean_of_others(setting: Setting, update: Update, strangers: Tensor, draws: Draws) -> Tensors:
    """Mean of rounds on other people's pictures with the plan's labels."""
    g, mean = draws.generator("others"), {k: torch.zeros_like(v) for k, v in update.tensors.items()}
    for i in range(OTHERS):
        chosen = torch.randint(len(strangers), (len(setting.batch),), generator=g)
        other = replace(setting, batch=Batch(strangers[chosen], setting.batch.labels))
        for name, tensor in other.simulated(update, draws.of("other", i)).items():
            if name in mean:
                mean[name].add_(tensor.detach().to(mean[name]), alpha=1 / OTHERS)
    return mean
