"""The claims as text: one line each in 80 columns, one paper with its reasons, and a table for the docs."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator

from reproduce.claims.claim import Claim, Decision, percent
from reproduce.claims.papers import CLAIMS

SHORT = {"inverting-gradients": "IG", "qian-hansen": "QH", "mkor": "MK", "rog": "RO", "ci-net": "CI"}


def decided(paper: str = "") -> list[tuple[Claim, Decision]]:
    """Every claim with its verdict, or those of one paper."""
    return [(claim, claim.decide()) for claim in CLAIMS if paper in ("", claim.paper)]


def _line(where: str, words: str, published: str, ours: str, effort: str, verdict: str) -> str:
    return f"{where:<7} {words:<25} {published:>6} {ours:<18} {effort:>4} {verdict}".rstrip()


def first_screen() -> Iterator[str]:
    """One line a claim, at most 80 columns and 40 lines."""
    found = decided()
    yield _line("where", "claim", "paper", "ours [95 %]", "part", "verdict")
    for claim, decision in found:
        where = f"{SHORT[claim.paper]} {claim.where}"
        yield _line(where, claim.words, claim.published, decision.ours, decision.least, decision.verdict.value)
    counts = Counter(decision.verdict.value for _, decision in found)
    said = "; ".join(f"{n} {verdict}" for verdict, n in counts.most_common())
    yield from textwrap.wrap(f"{said}. Part: of steps, batch, width, images", 80)


def of_paper(paper: str) -> Iterator[str]:
    """Each claim of a paper with what was spent, the reason for its verdict, and the commits of its rows."""
    for claim, decision in decided(paper):
        yield f"{claim.where}  {claim.words}: {decision.verdict.value}"
        yield f"    published {claim.published}, ours {decision.ours}"
        spent = ", ".join(f"{percent(share)} of the {name}" for name, share in decision.effort.items())
        if spent:
            yield f"    spent {spent}"
        if decision.why:
            yield f"    {decision.why}"
        yield f"    rows: {claim.item}" + (f", commit {', '.join(decision.commits)}" if decision.commits else "")


def markdown() -> Iterator[str]:
    """The table that opens the page *measured*."""
    yield "| paper | where | claim | published | ours [95 %] | effort | verdict | why | rows | commit |"
    yield "|---" * 10 + "|"
    for claim, decision in decided():
        spent = ", ".join(f"{name} {percent(share)}" for name, share in decision.effort.items()) or "–"
        cells = (
            claim.paper,
            claim.where,
            claim.words,
            claim.published,
            decision.ours,
            spent,
            f"*{decision.verdict.value}*",
            decision.why or "–",
            claim.item,
            ", ".join(decision.commits) or "–",
        )
        yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
