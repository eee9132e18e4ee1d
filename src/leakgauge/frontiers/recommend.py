"""What the rows say together: one rule, and templates with the rows' numbers.

The rule: of the rows that keep accuracy and leak little under the stronger attacker the most accurate is best. Nothing
is assumed about a defence by its name, only a stated ε is called differential privacy, and rows whose result cannot be
relied on are never recommended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakgauge.frontiers.plan import Tolerance
from leakgauge.frontiers.results import TRAINING, RowResult
from leakgauge.study.judging.gate import needed

LITTLE = 0.05
"""Share of pictures identified up to which a defence looks good."""

SENTENCES = {
    "no bare": "Nothing can be recommended: the undefended row has no result to compare with.",
    "bare": "Without a defence {seen} pictures are identified{reached}.",
    "powerless": "The attack identifies no more than {most} of the pictures even without a defence, so this run cannot "
    "tell the defences apart: give the attacker more effort or more knowledge.",
    "best": "Best of what was tried: {words}, with {shown}.",
    "best of few": "Best of what was tried, on too few pictures to rely on it: {words}, with {shown}. With none "
    "identified it takes {needed} pictures to show {most}.",
    "none": "Nothing tried keeps accuracy within {points:g} points of undefended while at most {most} of the pictures "
    "are identified.",
    "useful": "Of what keeps accuracy, {words} leaks least: {seen} identified.",
    "quiet": "Of rows with so few identified, {words} costs least: {accuracy} accuracy against {full}, {found}.",
    "short": "The trainings are too short to recommend a defence: the undefended model was still learning ({less} "
    "after round {before}, {more} after round {after}).",
    "learned nothing": "The undefended model ({accuracy}) is not shown to do better than the same answer for all "
    "({constant}), so nothing here says what a defence costs: train it longer, or with another rate.",
    "not measured": "Accuracy was not measured{why}, so nothing here says what a defence costs.",
    "front": "On the frontier, from accurate to quiet: {rows}. For each other row one of these is at least as accurate "
    "and leaks no more. These are point values of one training a row and few pictures: neighbours may change places.",
    "shown": "At most {most} identified, with 95 % confidence: {rows}.",
    "few": "No more than {most} of the pictures tried were identified under {rows}: too few pictures to rely on it. "
    "With none identified it takes {needed} to show {most}.",
    "loud": "No row stays at or below {most} identified; the least is {words} with {seen}.",
    "fooled": "Good only against an attacker who does not know the defence: {rows}.",
    "private": "Differentially private: {rows}. All other rows say what these attacks did, and no more.",
    "not private": "No row is differentially private: the numbers say what these attacks did, and no more.",
    "partly": "For some pictures an attack gave no result, which is no protection: {rows}.",
    "lost": "Without a result of an attack, and so not compared: {rows}.",
    "doubted": "Quiet, but not recommended: {words}: {why}.",
    "not the last": "Not the last word: {best}",
}


@dataclass(frozen=True)
class Recommendation:
    """As report.json has it."""

    headline: str
    sentences: tuple[str, ...]


def recommendation(rows: Sequence[RowResult], tolerance: Tolerance) -> Recommendation:
    """What the rows say, in words."""
    judged = [r for r in rows if r.judged]
    bare = next((r for r in judged if r.bare), None)
    if bare is None:
        return Recommendation(SENTENCES["no bare"], ())
    defended = [r for r in judged if not r.bare]
    doubted = [r for r in defended if r.doubts and r.rate <= tolerance.identified]
    others = [r for r in defended if r not in doubted]
    said = [*_of_rest(others, bare, tolerance), *_about(others, rows)]
    said += [SENTENCES["doubted"].format(words=r.words, why=r.doubts[0]) for r in doubted]
    return Recommendation(said[0], tuple(said[1:]))


def _of_rest(others: list[RowResult], bare: RowResult, tolerance: Tolerance) -> list[str]:
    """The headline and what follows from accuracy and leakage."""
    a = bare.accuracy
    reached = "" if a.value is None else f", and the model reaches {_percent(a.value)} accuracy"
    first = SENTENCES["bare"].format(seen=_seen(bare), reached=reached)
    if a.value is None:
        why = f" ({a.reason})" if "diverged" in (a.reason or "") else ""
        return [first, SENTENCES["not measured"].format(why=why), *_leakage_only(others, bare, tolerance)]
    if a.constant is not None and (a.value if a.low is None else a.low) <= a.constant:
        why = SENTENCES["learned nothing"].format(accuracy=_percent(a.value), constant=_percent(a.constant))
        return [first, why, *_leakage_only(others, bare, tolerance)]
    trained = [r for r in others if r.accuracy.value is not None]
    best, *near = _best(trained, bare, a.value, tolerance)
    if len(a.curve) > 1 and a.curve[-1][1] - a.curve[-2][1] > tolerance.accuracy:
        (before, less), (after, more) = a.curve[-2:]
        ends = {"before": before, "after": after, "less": _percent(less), "more": _percent(more)}
        return [SENTENCES["short"].format(**ends), first, SENTENCES["not the last"].format(best=best), *near]
    return [best, first, *near, *_front([bare, *trained])]


def _best(trained: list[RowResult], bare: RowResult, full: float, tolerance: Tolerance) -> list[str]:
    floor, most = full - tolerance.accuracy - 1e-9, tolerance.identified
    if bare.rate <= most:
        return [SENTENCES["powerless"].format(most=_percent(most))]
    useful, quiet = [r for r in trained if _value(r) >= floor], [r for r in trained if r.rate <= most]
    if good := [r for r in useful if r in quiet]:
        best = max(good, key=lambda r: (_value(r), -r.leak[0], -r.leak[1]))
        shown = f"{_percent(_value(best))} accuracy against {_percent(full)} without a defence, {_found(best)}"
        key = "best" if best.identified.upper <= most else "best of few"
        words = {"words": best.words, "shown": shown + _bytes(best), "needed": needed(most), "most": _percent(most)}
        return [SENTENCES[key].format(**words)]
    said = [SENTENCES["none"].format(points=100 * tolerance.accuracy, most=_percent(most))]
    if useful:
        near = min(useful, key=lambda r: r.leak)
        said.append(SENTENCES["useful"].format(words=near.words, seen=_seen(near)))
    if quiet:
        near = max(quiet, key=_value)
        numbers = {"accuracy": _percent(_value(near)), "full": _percent(full), "found": _found(near)}
        said.append(SENTENCES["quiet"].format(words=near.words, **numbers))
    return said


def dominates(a: RowResult, b: RowResult) -> bool:
    """At least as accurate and leaks no more, and better in one of the two. A guarantee is beaten by a better one only:
    what these attacks did says nothing of the next."""
    if a.accuracy.value is None or b.accuracy.value is None or not b.privacy.beaten_by(a.privacy):
        return False
    ours, theirs = (a.accuracy.value, a.leak), (b.accuracy.value, b.leak)
    return ours[0] >= theirs[0] and a.leak <= b.leak and ours != theirs


def _front(trained: list[RowResult]) -> list[str]:
    front = sorted((r for r in trained if not any(dominates(q, r) for q in trained)), key=_value, reverse=True)
    words = "; ".join(f"{r.words} ({_percent(_value(r))}, {_seen(r)})" for r in front)
    return [SENTENCES["front"].format(rows=words)] if len(front) < len(trained) else []


def _leakage_only(others: list[RowResult], bare: RowResult, tolerance: Tolerance) -> list[str]:
    most = tolerance.identified
    numbers = {"most": _percent(most), "needed": needed(most)}
    if bare.rate <= most:
        return [SENTENCES["powerless"].format(**numbers)]
    shown = [r for r in others if r.identified.upper <= most]
    few = [r for r in others if r.rate <= most < r.identified.upper]
    said = [SENTENCES["shown"].format(rows=_list([r.words for r in shown]), **numbers)] if shown else []
    if few:
        said.append(SENTENCES["few"].format(rows=_list([f"{r.words} ({_seen(r)})" for r in few]), **numbers))
    if others and not said:
        near = min(others, key=lambda r: r.leak)
        said = [SENTENCES["loud"].format(words=near.words, seen=_seen(near), **numbers)]
    return said


def flatters(row: RowResult) -> bool:
    """Whether a defence only looks good: what the naive attacker identifies is little and may be chance, what the
    adapted one does is not."""
    (naive, _), (adapted, _) = row.both
    chance = max(naive.chance, adapted.chance)
    return naive.low <= chance < adapted.low and naive.count <= max(chance, LITTLE) * naive.n


def _about(others: list[RowResult], rows: Sequence[RowResult]) -> list[str]:
    """What else the rows show, each in a sentence where there is any."""

    def both(row: RowResult) -> str:
        (naive, _), (adapted, _) = row.both
        return f"{row.words} ({naive.count} of {naive.n} identified, {adapted.count} of {adapted.n} once it adapts)"

    def private(row: RowResult) -> str:
        p = row.privacy
        over = "" if p.scope == TRAINING else f" in {p.scope}, more in a training"
        worth = ", which promises next to nothing" if p.hollow else ""
        return f"{row.words} (ε = {p.epsilon:.3g} for one {p.unit}{over}{worth})"

    stated = sorted((r for r in others if r.privacy.epsilon is not None), key=lambda r: r.privacy.epsilon or 0.0)
    partly = [r for r in rows if r.judged and any(f and f.failed for f in (r.leakage.naive, r.leakage.adapted))]
    told = {
        "fooled": [both(r) for r in others if flatters(r)],
        "private": [private(r) for r in stated],
        "not private": [""] if others and not stated else [],
        "partly": [r.label for r in partly],
        "lost": [r.label for r in rows if not r.judged],
    }
    return [SENTENCES[key].format(rows=_list(parts)) for key, parts in told.items() if parts]


def _value(row: RowResult) -> float:
    return row.accuracy.value or 0.0


def _seen(row: RowResult) -> str:
    return f"{row.identified.count} of {row.identified.n}"


def _found(row: RowResult) -> str:
    """``2 of 8 pictures identified``, and what that allows."""
    told = "" if row.labels is None else "; labels are read: F1 {:.2f}, by the best constant guess {:.2f}"
    most = f"with 95 % confidence at most {100 * row.identified.upper:.0f} %"
    return f"{_seen(row)} pictures identified ({most}{told.format(*(row.labels or ()))})"


def _bytes(row: RowResult) -> str:
    # Time differs from run to run; sentences are compared byte by byte.
    share = 1.0 if row.cost is None else row.cost.bytes / max(row.cost.bytes_undefended, 1)
    return f", {share:.0%} of the bytes" if round(share, 2) != 1 else ""


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %".replace(".0 %", " %")


def _list(parts: Sequence[str]) -> str:
    if any("," in p for p in parts) or len(parts) > 4:
        return "; ".join(parts)
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else list(parts))
