"""Scores of all trials → what a reader may conclude. Never "safe"."""

from __future__ import annotations

from typing import Any

from leakgauge.metrics.intervals import proportion_upper
from leakgauge.study.findings import NOT_SAFE, finding, groups_of
from leakgauge.study.gate import judge
from leakgauge.study.grammar import GateConfig

LEVELS = ("exposed", "partial", "inconclusive", "not_recovered", "not_applicable")
"""From the worst on."""


def verdict(records: list[dict[str, Any]], gate: GateConfig | None) -> dict[str, Any]:
    """The ``verdict`` of report.json."""
    groups = groups_of(records)
    images = all(group.thing == "image" for group in groups)
    findings = [finding(group, groups) for group in groups]
    own = [f for f in findings if not f["control"]]
    own.sort(key=lambda f: (LEVELS.index(f["level"]), -_best(f)))
    level = next((name for name in LEVELS if any(f["level"] == name for f in own)), "inconclusive")
    told = [r["explained"] for r in records if r.get("explained") is not None]
    doubt = next((g.doubt for g in groups if g.doubt), "")
    return {
        **({"explained": told[0]} if told else {}),
        "level": "inconclusive" if level == "not_applicable" else level,
        "headline": list(_headline(own, level, "picture" if images else "example", doubt)),
        "findings": own + [f for f in findings if f["control"]],
        "gate": judge(gate, groups).record,
    }


def _best(f: dict[str, Any]) -> float:
    return f["psnr"]["best_for_attacker"] if f["psnr"] else float("-inf")


def _setting(f: dict[str, Any]) -> tuple[str, ...]:
    s = f["scenario"]
    return s["model"], s["client"], s["defense"]


def _words(f: dict[str, Any]) -> str:
    s = f["scenario"]
    defense = "no defence" if s["defense"] == "none" else s["defense"]
    crafted = "" if s["server"] == "honest" else f", as the dishonest server {s['server']} crafted it,"
    return f"{s['model']}{crafted} under {s['client']} with {defense}"


def _headline(own: list[dict[str, Any]], level: str, thing: str, doubt: str) -> tuple[str, str]:
    """Two sentences that a privacy officer understands."""
    settings = sorted({_setting(f) for f in own})
    exposed = [f for f in own if f["level"] == "exposed"]
    leaky = {_setting(f) for f in exposed}
    rest = [s for s in settings if s not in leaky]
    if exposed:
        worst = exposed[0]
        rate = worst["identified"]
        first = (
            f"Client {thing}s came back out of the updates in {len(leaky)} of {_count(settings)}; the worst is "
            f"{_words(worst)}, where {worst['attack']} recovered {worst['recovered']} of {rate['n']} {thing}s, "
            f"the clearest at {worst['psnr']['best_for_attacker']:.1f} dB."
        )
    elif level == "partial":
        first = f"No {thing} came back whole, but the updates say more about who sent them than chance allows."
    elif level == "not_recovered":
        first = f"None of the attacks tried recovered {_a(thing)} in {_count(settings)} tested."
    elif doubt:
        return (
            f"This audit does not settle whether {thing}s can be recovered: its plan does not explain the update.",
            doubt,
        )
    else:
        return (
            f"This audit does not settle whether {thing}s can be recovered.",
            "The attacks failed, did not apply, or did not show their power on an undefended control: the table has "
            "each reason (report.html).",
        )
    return first, doubt or _second(own, settings, rest, thing)


def _second(own: list[dict[str, Any]], settings: list[tuple[str, ...]], rest: list[tuple[str, ...]], thing: str) -> str:
    held = [s for s in rest if _held(own, s)]
    if held:
        images = min(f["images"] for f in own if _setting(f) in held and f["level"] == "not_recovered")
        return (
            f"In {len(held)} of {_count(settings)} these attacks recovered nothing ({images} {thing}s each, so "
            f"up to {100 * proportion_upper(0, images):.0f} % could still be recoverable); {NOT_SAFE}."
        )
    if rest:
        return (
            f"Not cleared either: {_count(rest)}, where the attacks identified {thing}s in part, failed, or were not "
            "shown to have power."
        )
    return "Nothing that was tried here stopped the attacks: every setting needs a stronger defence."


def _a(thing: str) -> str:
    return f"an {thing}" if thing[0] in "aeiou" else f"a {thing}"


def _count(settings: list[tuple[str, ...]]) -> str:
    return "1 setting" if len(settings) == 1 else f"{len(settings)} settings"


def _held(own: list[dict[str, Any]], setting: tuple[str, ...]) -> bool:
    levels = {f["level"] for f in own if _setting(f) == setting} - {"not_applicable"}
    return levels == {"not_recovered"}
