"""What the rows say together: one rule, and for each row what else to know of it.

The rule: of the rows that keep accuracy and leak little under the stronger attacker the most accurate is best. Nothing
is assumed about a defence by its name, and rows whose result cannot be relied on are never recommended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakgauge.frontiers.grammar import Tolerance
from leakgauge.frontiers.results import TRAINING, Recommendation, RowResult
from leakgauge.study.judging.gate import needed

HEADLINES = {
    "no bare": "Nothing can be recommended: the undefended row has no result to compare with.",
    "powerless": "The attack identifies no more than {most} of the pictures even without a defence, so this run cannot "
    "tell the defences apart: give the attacker more effort or more knowledge.",
    "not measured": "Accuracy was not measured{why}, so nothing here says what a defence costs.",
    "learned nothing": "The undefended model ({accuracy}) is not shown to do better than the same answer for all "
    "({constant}), so nothing here says what a defence costs: train it longer, or with another rate.",
    "short": "The trainings are too short to recommend a defence: the undefended model was still learning ({less} "
    "after round {before}, {more} after round {after}).",
    "best": "Best of what was tried: {words}, with {shown}.",
    "best of few": "Best of what was tried, on too few pictures to rely on it: {words}, with {shown}. With none "
    "identified it takes {needed} pictures to show {most}.",
    "none": "Nothing tried keeps accuracy within {points:g} points of undefended while at most {most} of the pictures "
    "are identified.",
}
BARE = "Without a defence {seen} pictures are identified{reached}."
OTHERS = "Only a row with an ε is differentially private: the others say what these attacks did, and no more."

NOTES = {
    "front": "on the frontier: no row that is as accurate leaks less",
    "lost": "not compared: without a result of an attack",
    "doubted": "not recommended: {why}",
    "partly": "{why}, which is no protection",
    "fooled": "good only against an attacker who does not know the defence ({naive} of {n} identified, "
    "{adapted} of {m} once it adapts)",
    "shown": "at most {most} identified, with 95 % confidence",
    "few": "quiet on too few pictures to rely on: it takes {needed} to show {most}",
    "labels": "labels are read: F1 {read:.2f}, by the best constant guess {guessed:.2f}",
    "hollow": "its ε promises next to nothing",
    "once": "its ε is of one update, and more in a training",
}


def recommendation(rows: Sequence[RowResult], tolerance: Tolerance) -> Recommendation:
    """What the rows say, in words."""
    judged = [row for row in rows if row.judged]
    bare = next((row for row in judged if row.bare), None)
    front = {id(row) for row in judged if _measured(row) and not any(other.dominates(row) for other in judged)}
    notes = tuple(tuple(_notes(row, tolerance, id(row) in front)) for row in rows)
    if bare is None:
        return Recommendation(HEADLINES["no bare"], (), notes)
    reached = f", and the model reaches {_percent(bare.accuracy.value)} accuracy" if _measured(bare) else ""
    said = (BARE.format(seen=_seen(bare), reached=reached), OTHERS)
    return Recommendation(_headline([row for row in judged if not row.bare], bare, tolerance), said, notes)


def _headline(defended: list[RowResult], bare: RowResult, tolerance: Tolerance) -> str:
    a, most = bare.accuracy, _percent(tolerance.identified)
    if bare.rate <= tolerance.identified:
        return HEADLINES["powerless"].format(most=most)
    if a.value is None:
        why = f" ({a.reason})" if "diverged" in (a.reason or "") else ""
        return HEADLINES["not measured"].format(why=why)
    if a.constant is not None and (a.value if a.low is None else a.low) <= a.constant:
        return HEADLINES["learned nothing"].format(accuracy=_percent(a.value), constant=_percent(a.constant))
    if len(a.curve) > 1 and a.curve[-1][1] - a.curve[-2][1] > tolerance.accuracy:
        (before, less), (after, more) = a.curve[-2:]
        return HEADLINES["short"].format(before=before, after=after, less=_percent(less), more=_percent(more))
    good = [row for row in defended if not row.doubts and row.rate <= tolerance.identified]
    good = [row for row in good if (row.accuracy.value or 0.0) >= a.value - tolerance.accuracy - 1e-9]
    if not good:
        return HEADLINES["none"].format(points=100 * tolerance.accuracy, most=most)
    best = max(good, key=lambda row: (row.accuracy.value, -row.leak[0], -row.leak[1]))
    upper = f"with 95 % confidence at most {100 * best.identified.upper:.0f} %"
    shown = f"{_percent(best.accuracy.value)} accuracy against {_percent(a.value)} without a defence, {_seen(best)} "
    shown += f"pictures identified ({upper}){_bytes(best)}"
    key = "best" if best.identified.upper <= tolerance.identified else "best of few"
    return HEADLINES[key].format(words=best.words, shown=shown, needed=needed(tolerance.identified), most=most)


def _notes(row: RowResult, tolerance: Tolerance, front: bool) -> Iterator[str]:
    if not row.judged:
        yield NOTES["lost"]
        return
    limit = {"most": _percent(tolerance.identified), "needed": needed(tolerance.identified)}
    if front:
        yield NOTES["front"]
    if row.doubts and not row.bare:
        quiet = row.rate <= tolerance.identified
        yield NOTES["doubted" if quiet else "partly"].format(why=row.doubts[0])
    elif not row.bare and row.rate <= tolerance.identified:
        yield NOTES["shown" if row.identified.upper <= tolerance.identified else "few"].format(**limit)
    if row.flatters:
        (naive, _), (adapted, _) = row.both
        yield NOTES["fooled"].format(naive=naive.count, n=naive.n, adapted=adapted.count, m=adapted.n)
    if row.labels is not None:
        yield NOTES["labels"].format(read=row.labels[0], guessed=row.labels[1])
    if row.privacy.hollow:
        yield NOTES["hollow"]
    elif row.privacy.epsilon is not None and row.privacy.scope != TRAINING:
        yield NOTES["once"]


def _measured(row: RowResult) -> bool:
    return row.accuracy.value is not None


def _seen(row: RowResult) -> str:
    return f"{row.identified.count} of {row.identified.n}"


def _bytes(row: RowResult) -> str:
    # Time differs from run to run; sentences are compared byte by byte.
    share = 1.0 if row.cost is None else row.cost.bytes / max(row.cost.bytes_undefended, 1)
    return f", {share:.0%} of the bytes" if round(share, 2) != 1 else ""


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %".replace(".0 %", " %")
