"""Measurements against limits: what a client may conclude. Never "safe"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from leakgauge.inspection.limits import Limits
from leakgauge.inspection.matrices import layers
from leakgauge.inspection.rule import Measurement, Part, Received, measure, rules, skipped
from leakgauge.version import __version__

SCHEMA_VERSION = 1
CRAFTED = 3.0
"""Score from which a finding counts as crafted rather than suspicious."""

NOT_JUDGED = "not-judged"
LEVELS = ("crafted", "suspicious", "nothing-found", NOT_JUDGED)
"""From the worst on; the last where no weight matrix could be read, so that nothing found would say nothing."""

NEEDED = {
    Part.STATE: "the model's weights",
    Part.MODULE: "the architecture (--model)",
    Part.TASK: "the architecture and data (--model, --data)",
    Part.BATCH: "own examples (--data)",
    Part.REFERENCE: "a trusted model (--reference)",
    Part.PREVIOUS: "the round before (--previous)",
}
"""What a client can give so that a skipped rule runs."""

HASH_MEANING = (
    "A server that sends each client a model of its own can single one out. Honest reasons: another round, or rounding "
    "by the transport."
)


def inspect(
    received: Received, limits: Limits, *, name: str, fingerprint: str, hashes: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The result document: JSON types only, every number finite, the same for the same input.

    A finding's score is statistic ÷ limit (0 for a rule without a limit); ``severity`` is ``note`` below 1,
    ``suspicious`` below 3, else ``crafted``. The model's score is the largest.

    Args:
        received: the model and what it is compared with.
        limits: of the rules' statistics.
        name: what to call the model.
        fingerprint: of the received state.
        hashes: fingerprints that other clients saw.
    """
    known = rules()
    measured = measure(received)
    findings = [_finding(rule, known[rule].meaning, m, limits.limits.get(rule)) for rule, m in measured.items()]
    findings += _other_clients(fingerprint, hashes)
    findings.sort(key=lambda f: (-f["score"], f["rule"]))
    score = findings[0]["score"] if findings else 0.0
    level = LEVELS[0] if score >= CRAFTED else LEVELS[1] if score >= 1 else LEVELS[2]
    if level == LEVELS[2] and not layers(received.state)[0]:
        level = NOT_JUDGED
    alarms = [f for f in findings if f["score"] >= 1]
    return {
        "schema_version": SCHEMA_VERSION,
        "leakgauge_version": __version__,
        "model": name,
        "fingerprint": fingerprint,
        "tensors": len(received.state),
        "entries": sum(t.numel() for t in received.state.values()),
        "given": [part.value for part in Part if received.has((part,))],
        "level": level,
        "score": score,
        "headline": _headline(level, alarms),
        "findings": findings,
        "skipped": [
            {"rule": rule, "needs": [NEEDED[part] for part in parts]}
            for rule, parts in sorted(skipped(received).items())
        ],
        "unjudged": _unjudged(measured, received.state),
        "limits": {"made_by": limits.made_by, "models": limits.models},
    }


def _finding(rule: str, meaning: str, measured: Measurement, limit: float | None) -> dict[str, Any]:
    score = 0.0 if limit is None else measured.statistic / limit
    return {
        "rule": rule,
        "severity": "crafted" if score >= CRAFTED else "suspicious" if score >= 1 else "note",
        "score": score,
        "statistic": measured.statistic,
        "limit": limit,
        "where": list(measured.where),
        "evidence": measured.evidence,
        "meaning": meaning,
    }


def _other_clients(own: str, hashes: tuple[str, ...]) -> list[dict[str, Any]]:
    """The finding about fingerprints of other clients; none where no fingerprint was given."""
    if not hashes:
        return []
    different = sum(h != own for h in hashes)
    saw = f"{different} of {len(hashes)} other clients saw another model" if different else "All saw the same model"
    measured = Measurement(float(different), (), f"{saw}.")
    return [_finding("other-clients", HASH_MEANING, measured, 1 / CRAFTED)]


def _headline(level: str, alarms: list[dict[str, Any]]) -> list[str]:
    if level == NOT_JUDGED:
        return [
            "No rule could judge this model: it holds no weight matrix of real numbers.",
            "Ask the server for floating-point weights, or give the values that you would train with.",
        ]
    if level == "nothing-found":
        return [
            "No rule found anything in this model that honest models do not show.",
            "That is no proof: rules know published constructions, and a careful server can stay below their limits.",
        ]
    said = "looks crafted" if level == "crafted" else "is unusual"
    count = "1 rule says" if len(alarms) == 1 else f"{len(alarms)} rules say"
    return [
        f"This model {said}: {count} so, the clearest being {alarms[0]['rule']}.",
        "Do not train on it before the server has explained it.",
    ]


def _unjudged(measured: Mapping[str, Measurement], state: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Each tensor that a rule could not judge, with the reason and the rules."""
    odd = [name for name, t in state.items() if t.dim() > 1 and (t.dtype == torch.bool or t.is_complex())]
    found: dict[str, list[str]] = {f"{name}: no real numbers ({state[name].dtype})": ["every rule"] for name in odd}
    for rule, m in measured.items():
        for text in m.unjudged:
            found.setdefault(text, []).append(rule)
    split = {text: text.partition(": ") for text in sorted(found)}
    return [{"tensor": s[0], "reason": s[2] or text, "rules": sorted(found[text])} for text, s in split.items()]
