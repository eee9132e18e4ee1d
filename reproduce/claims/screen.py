"""The claims as text: the first screen, one paper with its reasons, and tables for the docs."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from reproduce.claims.frozen import Each, claims_of, digest
from reproduce.claims.verdict import Decision, Verdict, decisions

PAPERS = ("inverting-gradients", "qian-hansen", "mkor", "rog", "ci-net")
"""In the order in which they are printed."""
ROOM = 80


def counted(found: Sequence[Decision]) -> str:
    """``3 hold, 2 open, 12 not run``, in the verdicts' order."""
    counts = Counter(decision.verdict for decision in found)
    return ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])


def measure_text(decision: Decision) -> str:
    """``+5.05 [3.77, 6.33] dB PSNR, higher is better; paper +4.84; grey picture 14.1``. A long name of a metric stands
    last, where a narrow screen cuts it."""
    metric = claims_of(decision.paper).metrics[decision.claim.metric]
    compared = isinstance(decision.claim.rule, Each)
    unit = "" if compared else metric.unit
    ours = "" if decision.judged.ours == "–" else decision.judged.ours + (";" if compared else "")
    better, paper = f"{metric.better} is better", f"paper {decision.published}" if decision.published else ""
    tail = [text for text in (paper, decision.judged.floor) if text]
    number = " ".join(filter(None, (ours, unit if ours else "")))
    name = metric.name if ours or not unit else f"{metric.name} in {unit}"
    text = "; ".join([f"{number} {name}, {better}".strip(), *tail])
    if len(text) <= ROOM - 3 or not ours:
        return text
    return "; ".join([f"{number.removesuffix(';')}, {better}", *tail, metric.name])


def first_screen() -> Iterator[str]:
    """Two or three lines a headline claim under its paper, at most 40 lines of 80 columns."""
    everything = {paper: decisions(paper) for paper in PAPERS}
    for paper, found in everything.items():
        yield _cut(f"{claims_of(paper).words}: {counted(found)}")
        for decision in found:
            if decision.claim.headline:
                yield from told(decision)
    every = [decision for found in everything.values() for decision in found]
    left = [d for d in every if d.claim.rule is None]
    untestable = sum(bool(d.claim.untestable) for d in left)
    dear = len(left) - untestable
    yield from textwrap.wrap(
        f"{len(every)} claims asked; {len(left)} left out: {untestable} cannot be tested here, {dear} cost too much, "
        "most of them a GPU. All of them, and why: leakgauge reproduce PAPER",
        ROOM,
    )


def told(decision: Decision) -> Iterator[str]:
    """A claim and its verdict, the number, and what stands in or why there is none, at 80 columns each."""
    yield _cut(f" {decision.claim.place}: {decision.claim.line}", f" – {decision.verdict.value}")
    if decision.claim.rule is not None:
        yield _cut(f"   {measure_text(decision)}")
    if decision.judged.why:
        yield _cut(f"   {decision.judged.why}")


def _cut(text: str, end: str = "") -> str:
    room = ROOM - len(end)
    return (text if len(text) <= room else text[: room - 1].rsplit(" ", 1)[0].rstrip(";,:") + " …") + end


def of_paper(paper: str) -> Iterator[str]:
    """Each claim of a paper: what the paper says, what was asked of which sample, and what came out."""
    yield f"{claims_of(paper).words}: {counted(decisions(paper))}; list {digest(paper)}"
    for decision in decisions(paper):
        claim = decision.claim
        yield f"{claim.place}: {claim.line} – {decision.verdict.value}"
        yield f"    the paper: {claim.says}"
        yield f"    {measure_text(decision)}"
        if decision.judged.why:
            yield f"    {decision.judged.why}"
        if claim.rule is not None:
            yield f"    sample: {claim.sample}; {claim.units} units ({claim.unit}); margin: {claim.margin}"
        for start, found in decision.by_start.items():
            yield f"    start {start}: {found.verdict.value}, {found.ours}, commit {found.commit}"


def markdown() -> Iterator[str]:
    """The table that opens the page *measured*."""
    yield "| paper | place | claim | metric | published | ours [95 %] | floor | verdict | why, or what stands in |"
    yield "|---" * 9 + "|"
    for paper in PAPERS:
        for decision in decisions(paper):
            metric = claims_of(paper).metrics[decision.claim.metric]
            unit = f", {metric.unit}" if metric.unit else ""
            cells = (
                paper,
                decision.claim.place,
                decision.claim.line,
                f"{metric.name}{unit}, {metric.better} is better",
                decision.published or "–",
                decision.judged.ours,
                decision.judged.floor or "–",
                f"*{decision.verdict.value}*",
                decision.judged.why or "–",
            )
            yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def differences() -> Iterator[str]:
    """Where two starts or machines came to different verdicts, one line each."""
    for paper in PAPERS:
        for decision in decisions(paper):
            if len({found.verdict for found in decision.by_start.values()}) > 1:
                starts = "; ".join(f"start {s}: {j.verdict.value}, {j.ours}" for s, j in decision.by_start.items())
                yield from textwrap.wrap(f"{paper} {decision.claim.id}: {starts}", 120)
