"""The docs' table of defences, from the rows: `python -m reproduce.defences.page` prints it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from leakgauge.attacks.adaptive import Counter, NoneKnown, counter_to
from leakgauge.defenses import parts_of
from leakgauge.intervals import mean_interval
from leakgauge.resolve import resolve_defense
from reproduce.defences import limit as defences_limit
from reproduce.defences.items import EVALUATIONS, SETTINGS, Setting, rows
from reproduce.rog import adapted as rog_adapted

MARGIN = 2.0
"""Decibels above the mean picture from which an attack counts as having recovered something, and what knowing the
defence should be worth where not knowing it costs that much."""

NOT_MEASURED = {
    "clip-examples": "with one example it is `clip`",
    "instahide": "no counter is known",
}
"""Defences without a row, and why."""


def summary(values: list[float]) -> str:
    """Median, and the interval of the mean."""
    interval = mean_interval(values)
    ends = "" if interval.low is None else f" [{interval.low:.1f}, {interval.high:.1f}]"
    return f"{statistics.median(values):.1f}{ends}"


def countered(setting: Setting) -> str:
    """Names of the counters in force."""
    names = []
    for part in parts_of(resolve_defense(setting.defense, "defenses").value):
        found = counter_to(part)
        names.append(found.name if isinstance(found, Counter) else "none known")
        assert isinstance(found, Counter | NoneKnown)
    return ", ".join(names)


def verdict(ceiling: float, naive: float, adapted: float, floor: float, gain: float) -> str:
    """In words, from medians; `gain` is that of adapted − naive by client."""
    if adapted < floor + MARGIN and naive < floor + MARGIN:
        return "not recovered by these attacks"
    if naive > ceiling - MARGIN:
        return "no protection even from a naive attacker"
    if gain >= MARGIN:
        return f"the naive reading flatters it by {gain:.1f} dB"
    return f"knowing it is worth {gain:+.1f} dB"


def table() -> Iterator[str]:
    """Markdown, one line a defence."""
    yield "| defence | counter | clients | no defence | naive | adapted | adapted − naive | mean picture | reading |"
    yield "|---" * 9 + "|"
    found = rows()
    by_client = {(r["defense"], r["image"], r["seed"]): r for r in found}
    for setting in SETTINGS:
        own = [r for r in found if r["defense"] == setting.label]
        ceilings = Setting("none", setting.examples).label
        own = [r for r in own if (ceilings, r["image"], r["seed"]) in by_client]
        if not own:
            continue
        mean = {k: [statistics.fmean(r[k]) for r in own] for k in ("naive", "adapted", "floor")}
        ceiling = [statistics.fmean(by_client[ceilings, r["image"], r["seed"]]["ceiling"]) for r in own]
        gain = [a - n for a, n in zip(mean["adapted"], mean["naive"], strict=True)]
        medians = [statistics.median(v) for v in (ceiling, mean["naive"], mean["adapted"], mean["floor"])]
        cells = [setting.label, countered(setting), str(len(own)), summary(ceiling), summary(mean["naive"])]
        cells += [
            summary(mean["adapted"]),
            summary(gain),
            f"{medians[3]:.1f}",
            verdict(*medians, statistics.median(gain)),
        ]
        yield "| " + " | ".join(cells) + " |"


HEAD = """Untrained LeNet, CIFAR-10 test images of 32 px, FedSGD, labels and training known, {evaluations} gradient
evaluations, the named counter built in. Median PSNR in dB, with the 95 % bootstrap interval of the mean over clients
(an image and a weight seed; images repeat over seeds, so intervals are somewhat too narrow). *No defence* is the same
attack on the same clients without the defence. The rows are of 2026-11-21 (6720cef); `auto` has become stronger since,
so the columns understate both attackers.

*Not recovered*: both attackers less than {margin:g} dB above the mean picture, by medians. *No protection*: naive
within {margin:g} dB of no defence. *Flatters*: knowing the defence is worth {margin:g} dB or more.

"""

LIMIT = """
## Where knowing is worth little

Where noise or rounding is small against the update, what is left to know is how heavy the prior should be. Here it is
tried at {weights} times the counter's own weight, and *the truth* picks the best of them for each client, which no
attacker can. Ten of the clients above, one seed an image.

"""

ROG = """
## With ROG as the base

The recipe `rog` in place of `auto`: its LeNet at 32 px, batches of four CIFAR-10 test pictures, three weight seeds, 100
gradient evaluations, labels and training known (`leakgauge reproduce rog/adapted`). Mean PSNR in dB with its 95 %
interval; without a defence {undefended:.1f} dB, a grey picture {grey:.1f}.

"""


def page() -> str:
    """All tables, in Markdown."""
    absent = "".join(f"* `{name}`: {why}\n" for name, why in NOT_MEASURED.items())
    there = {row["defense"] for row in rows()}
    absent += "".join(f"* `{s.label}`: not measured yet\n" for s in SETTINGS if s.label not in there)
    absent += "* larger batches, more local steps, secure aggregation: nothing to know, "
    absent += "see [frontier](/how-to/frontier.md)\n"
    without = f"\n\nWithout a row:\n\n{absent}"
    weights = ", ".join(f"{weight:g}" for weight in defences_limit.WEIGHTS)
    limit = LIMIT.format(weights=weights) + "\n".join(defences_limit.section()) + "\n"
    rog = ROG.format(**rog_adapted.references()) + "\n".join(rog_adapted.section()) + "\n"
    return HEAD.format(evaluations=EVALUATIONS, margin=MARGIN) + "\n".join(table()) + without + limit + rog


if __name__ == "__main__":
    print(page())
