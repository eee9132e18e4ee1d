"""Measurements against limits: what a client may conclude. Never "safe"."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from leakgauge.inspection.matrices import Omission, layers
from leakgauge.inspection.result import CRAFTED, CheckLevel, Inspection, RuleFinding, Skipped, Unjudged
from leakgauge.inspection.rule import Limits, Measurement, Part, Received, measure, rules, skipped

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
) -> Inspection:
    """Runs every rule that has what it needs. Deterministic.

    Args:
        received: the model and what it is compared with.
        limits: of the rules' statistics.
        name: what to call the model.
        fingerprint: of the received state.
        hashes: fingerprints that other clients saw.
    """
    known, measured = rules(), measure(received)
    findings = [_finding(rule, known[rule].meaning, m, limits.limits.get(rule)) for rule, m in measured.items()]
    findings += _other_clients(fingerprint, hashes)
    findings.sort(key=lambda f: (-f.score, f.rule))
    level = _level(findings, judged=bool(layers(received.state)[0]))
    return Inspection(
        model=name,
        fingerprint=fingerprint,
        tensors=len(received.state),
        entries=sum(t.numel() for t in received.state.values()),
        given=tuple(part.value for part in Part if received.has((part,))),
        level=level,
        headline=_headline(level, [f for f in findings if f.alarms]),
        findings=tuple(findings),
        skipped=tuple(
            Skipped(rule, tuple(NEEDED[part] for part in parts)) for rule, parts in sorted(skipped(received).items())
        ),
        unjudged=_unjudged(measured, received.state),
        made_by=limits.made_by,
        models=limits.models,
    )


def _finding(rule: str, meaning: str, measured: Measurement, limit: float | None) -> RuleFinding:
    return RuleFinding(rule, measured.statistic, limit, measured.where, measured.evidence, meaning)


def _level(findings: list[RuleFinding], *, judged: bool) -> CheckLevel:
    score = findings[0].score if findings else 0.0
    if score >= CRAFTED:
        return CheckLevel.CRAFTED
    if score >= 1:
        return CheckLevel.SUSPICIOUS
    return CheckLevel.NOTHING_FOUND if judged else CheckLevel.NOT_JUDGED


def _other_clients(own: str, hashes: tuple[str, ...]) -> list[RuleFinding]:
    """The finding about fingerprints of other clients; none where no fingerprint was given."""
    if not hashes:
        return []
    different = sum(h != own for h in hashes)
    saw = f"{different} of {len(hashes)} other clients saw another model" if different else "All saw the same model"
    return [RuleFinding("other-clients", float(different), 1 / CRAFTED, (), f"{saw}.", HASH_MEANING)]


def _headline(level: CheckLevel, alarms: list[RuleFinding]) -> tuple[str, str]:
    if level is CheckLevel.NOT_JUDGED:
        return (
            "No rule could judge this model: it holds no weight matrix of real numbers.",
            "Ask the server for floating-point weights, or give the values that you would train with.",
        )
    if level is CheckLevel.NOTHING_FOUND:
        return (
            "No rule found anything in this model that honest models do not show.",
            "That is no proof: rules know published constructions, and a careful server can stay below their limits.",
        )
    verb = "looks crafted" if level is CheckLevel.CRAFTED else "is unusual"
    count = "1 rule alarms" if len(alarms) == 1 else f"{len(alarms)} rules alarm"
    return (
        f"This model {verb}: {count}, {alarms[0].rule} most clearly.",
        "Do not train on it before the server has explained it.",
    )


def _unjudged(measured: Mapping[str, Measurement], state: Mapping[str, Tensor]) -> tuple[Unjudged, ...]:
    """Each tensor that a rule could not judge, with the reason and the rules."""
    odd = [name for name, t in state.items() if t.dim() > 1 and (t.dtype == torch.bool or t.is_complex())]
    found = {Omission(name, f"no real numbers ({state[name].dtype})"): ["every rule"] for name in odd}
    for rule, m in measured.items():
        for omission in m.unjudged:
            found.setdefault(omission, []).append(rule)
    return tuple(Unjudged(o.name, o.reason, tuple(sorted(found[o]))) for o in sorted(found))
