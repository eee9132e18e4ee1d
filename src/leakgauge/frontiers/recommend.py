"""What the rows say together, in sentences that a person can act on.

Leakage of a row is that under the stronger of the two attackers. Everything is read off the rows; nothing is assumed
about a defence by its name, and only a stated ε is called differential privacy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from leakgauge.frontiers.costs import TRAINING
from leakgauge.frontiers.points import Point, Record, point_of
from leakgauge.frontiers.rows import UNDEFENDED
from leakgauge.privacy.guarantee import Unit
from leakgauge.study.judging.gate import needed

EMPTY, CERTAIN = 50.0, 0.9
"""ε beyond which a guarantee exists on paper (odds may change by a factor of e^50), and the chance of a right guess
that it may leave to be one."""


class Recommendation(TypedDict):
    """As report.json has it."""

    headline: str
    sentences: list[str]


def recommendation(rows: Sequence[Record], tolerance: Mapping[str, float]) -> Recommendation:
    """What the rows say, in words."""
    points = [p for p in (point_of(r) for r in rows) if p is not None]
    bare = next((p for p in points if p.family == UNDEFENDED), None)
    if bare is None:
        return {
            "headline": "Nothing can be recommended: the undefended row has no result to compare with.",
            "sentences": [],
        }
    defended = [p for p in points if p.family != UNDEFENDED]
    doubted = [p for p in defended if p.flags and p.rate <= tolerance["identified"]]
    others = [p for p in defended if p not in doubted]
    found = _of_rest(rows, others, bare, tolerance)
    unreliable = [f"Quiet, but not recommended: {p.words}: {p.flags[0]}." for p in doubted]
    return {"headline": found[0], "sentences": [*found[1:], *unreliable]}


def _of_rest(rows: Sequence[Record], others: list[Point], bare: Point, tolerance: Mapping[str, float]) -> list[str]:
    """The headline and further sentences on rows whose results can be relied on."""
    first = _without_defense(bare)
    undefended = next(r for r in rows if r["family"] == UNDEFENDED)
    if bare.accuracy is None or _learned_nothing(undefended):
        why = _learned_nothing(undefended) or _not_measured(undefended)
        return [first, *_leakage_only(others, bare, tolerance, why), *_about(others, rows)]
    trained = [p for p in others if p.accuracy is not None]
    best, *near = _best(trained, bare, bare.accuracy, tolerance)
    short = _too_short(undefended, tolerance)
    if short:
        return [short, first, f"Not the last word: {best}", *near, *_about(others, rows)]
    whole = [p for p in trained if p.family not in {q.family for q in others if q.accuracy is None}]
    return [best, first, *near, *_dominance([bare, *trained], whole), *_about(others, rows)]


def _too_short(bare: Record, tolerance: Mapping[str, float]) -> str:
    """Where the undefended model was still learning when its training ended, there is no cost to compare yet."""
    curve = bare["accuracy"].get("curve") or []
    if len(curve) < 2 or curve[-1][1] - curve[-2][1] <= tolerance["accuracy"]:
        return ""
    (before, less), (after, more) = curve[-2:]
    return (
        "The trainings are too short to recommend a defence: the undefended model was still learning "
        f"({_percent(less)} after round {before}, {_percent(more)} after round {after})."
    )


def _learned_nothing(bare: Record) -> str:
    """Where the undefended model has learned nothing, every defence costs nothing."""
    value, low, constant = (bare["accuracy"].get(key) for key in ("value", "low", "constant"))
    if value is None or constant is None or (value if low is None else low) > constant:
        return ""
    return (
        f"The undefended model ({_percent(value)}) is not shown to do better than the same answer for all "
        f"({_percent(constant)}), so nothing here says what a defence costs: train it longer, or with another rate."
    )


def _not_measured(bare: Record) -> str:
    why = bare["accuracy"].get("reason") or ""
    diverged = f" ({why})" if "diverged" in why else ""
    return f"Accuracy was not measured{diverged}, so nothing here says what a defence costs."


def _without_defense(bare: Point) -> str:
    reached = "" if bare.accuracy is None else f", and the model reaches {_percent(bare.accuracy)} accuracy"
    return f"Without a defence {bare.count} of {bare.images} pictures are identified{reached}."


def _powerless(most: float) -> str:
    return (
        f"The attack identifies no more than {_percent(most)} of the pictures even without a defence, so this run "
        "cannot tell the defences apart: give the attacker more effort or more knowledge."
    )


def _best(trained: list[Point], bare: Point, full: float, tolerance: Mapping[str, float]) -> list[str]:
    floor, most = full - tolerance["accuracy"] - 1e-9, tolerance["identified"]
    if bare.rate <= most:
        return [_powerless(most)]
    useful = [p for p in trained if (p.accuracy or 0) >= floor]
    quiet = [p for p in trained if p.rate <= most]
    good = [p for p in useful if p.rate <= most]
    if good:
        best = max(good, key=lambda p: (p.accuracy or 0, -p.leak[0], -p.leak[1]))
        reached = f"{_percent(best.accuracy)} accuracy against {_percent(full)} without a defence"
        shown = f"{reached}, {best.seen}{best.cost}"
        if best.upper <= most:
            return [f"Best of what was tried: {best.words}, with {shown}."]
        return [
            f"Best of what was tried, on too few pictures to rely on it: {best.words}, with {shown}. With none "
            f"identified it takes {needed(most)} pictures to show {_percent(most)}."
        ]
    said = [
        f"Nothing tried keeps accuracy within {100 * tolerance['accuracy']:g} points of undefended while at most "
        f"{_percent(most)} of the pictures are identified."
    ]
    if useful:
        near = min(useful, key=lambda p: p.leak)
        said.append(f"Of what keeps accuracy, {near.words} leaks least: {near.count} of {near.images} identified.")
    if quiet:
        near = max(quiet, key=lambda p: p.accuracy or 0)
        said.append(
            f"Of rows with so few identified, {near.words} costs least: {_percent(near.accuracy)} accuracy against "
            f"{_percent(full)}, {near.seen}."
        )
    return said


def dominates(a: Point, b: Point) -> bool:
    """At least as accurate and leaks no more, and better in one of the two. A guarantee is beaten by a better one only,
    of the same unit or of clients: what these attacks did says nothing of the next."""
    if a.accuracy is None or b.accuracy is None:
        return False
    if b.epsilon is not None and not hollow(b):
        narrower = a.unit != b.unit and a.unit != Unit.CLIENT.value
        if a.epsilon is None or narrower or a.epsilon > b.epsilon:
            return False
    return a.accuracy >= b.accuracy and a.leak <= b.leak and (a.accuracy, a.leak) != (b.accuracy, b.leak)


def surely_quieter(a: Point, b: Point) -> bool:
    """Whether the stronger attacker recovers less under `a`, intervals of mean quality apart, and more than the null
    under `b`."""
    low = max(b.ends, key=lambda ends: ends[1])[0]
    return max(high for _, high in a.ends) < low and b.null < low


def _dominance(trained: list[Point], whole: list[Point]) -> list[str]:
    """Of single rows, and of families of which every row is trained (`whole`)."""
    front = [p for p in trained if not any(dominates(q, p) for q in trained)]
    front.sort(key=lambda p: -(p.accuracy or 0))
    words = [f"{p.words} ({_percent(p.accuracy)}, {p.count} of {p.images})" for p in front]
    said = []
    if len(front) < len(trained):
        said.append(
            f"On the frontier, from accurate to quiet: {'; '.join(words)}. For each other row one of these is at "
            "least as accurate and leaks no more. These are point values of one training a row and few pictures: "
            "neighbours may change places."
        )
    families: dict[str, list[Point]] = {}
    for p in whole:
        families.setdefault(p.family, []).append(p)
    beaten: dict[str, list[str]] = {}
    for winner, ours in families.items():
        for loser, theirs in families.items():
            if winner != loser and all(any(dominates(a, b) and surely_quieter(a, b) for a in ours) for b in theirs):
                beaten.setdefault(winner, []).append(loser)
    if beaten:
        winner = max(beaten, key=lambda name: len(beaten[name]))
        said.append(
            f"Dominated by {winner}: {_list(beaten[winner])}. For each of their strengths one of its own is at least "
            "as accurate and leaks less, intervals apart."
        )
    return said


def _leakage_only(others: list[Point], bare: Point, tolerance: Mapping[str, float], why: str) -> list[str]:
    most = tolerance["identified"]
    said = [why]
    if bare.rate <= most:
        return [*said, _powerless(most)]
    shown, seen = [p for p in others if p.upper <= most], [p for p in others if p.rate <= most < p.upper]
    if shown:
        said.append(f"At most {_percent(most)} identified, with 95 % confidence: {_list([p.words for p in shown])}.")
    if seen:
        parts = [f"{p.words} ({p.count} of {p.images})" for p in seen]
        said.append(
            f"No more than {_percent(most)} of the pictures tried were identified under {_list(parts)}: too few "
            f"pictures to rely on it. With none identified it takes {needed(most)} to show {_percent(most)}."
        )
    if others and not shown and not seen:
        near = min(others, key=lambda p: p.leak)
        said.append(
            f"No row stays at or below {_percent(most)} identified; the least is {near.words} with "
            f"{near.count} of {near.images}."
        )
    return said


LITTLE = 0.05
"""Share of pictures identified up to which a defence looks good."""


def flatters(p: Point) -> bool:
    """Whether a defence only looks good: what the naive attacker identifies is little and may be chance, what the
    adapted one does is not."""
    return p.low[0] <= p.chance < p.low[1] and p.naive <= max(p.chance, LITTLE) * p.tried[0]


def helps(p: Point) -> bool:
    """Whether knowing the defence only brings the attacker closer: more identified, and a mean quality beyond both
    intervals."""
    return not flatters(p) and p.ends[1][0] > p.ends[0][1] and p.adapted > p.naive


def _about(others: list[Point], rows: Sequence[Record]) -> list[str]:
    said = []
    fooled = [p for p in others if flatters(p)]
    if fooled:
        parts = [
            f"{p.words} ({p.naive} of {p.tried[0]} identified, {p.adapted} of {p.tried[1]} once it adapts)"
            for p in fooled
        ]
        said.append(f"Good only against an attacker who does not know the defence: {_list(parts)}.")
    helped = [p for p in others if helps(p)]
    if helped:
        parts = [f"{p.words} ({p.naive} of {p.tried[0]}, then {p.adapted} of {p.tried[1]})" for p in helped]
        said.append(f"Knowing the defence brings the attacker closer: {_list(parts)}.")
    private = sorted((p for p in others if p.epsilon is not None), key=lambda p: p.epsilon or 0.0)
    if private:
        parts = [f"{p.words} (ε = {p.epsilon:.3g} for one {p.unit}{_over(p)}{_worth(p)})" for p in private]
        said.append(f"Differentially private: {_list(parts)}. All other rows say what these attacks did, and no more.")
    elif others:
        said.append("No row is differentially private: the numbers say what these attacks did, and no more.")
    partly = [r["label"] for r in rows if point_of(r) and any(f.get("failed") for f in r["leakage"].values())]
    if partly:
        said.append(f"For some pictures an attack gave no result, which is no protection: {_list(partly)}.")
    lost = [r["label"] for r in rows if point_of(r) is None]
    if lost:
        said.append(f"Without a result of an attack, and so not compared: {_list(lost)}.")
    return said


def _over(p: Point) -> str:
    return "" if p.scope == TRAINING else f" in {p.scope}, more in a training"


def _worth(p: Point) -> str:
    return ", which promises next to nothing" if hollow(p) else ""


def hollow(p: Point) -> bool:
    """Whether a row's ε keeps nobody from anything."""
    return p.epsilon is not None and (p.epsilon > EMPTY or p.at_most >= CERTAIN)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %".replace(".0 %", " %")


def _list(parts: Sequence[str]) -> str:
    return (
        "; ".join(parts)
        if any("," in p for p in parts) or len(parts) > 4
        else " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else list(parts))
    )
