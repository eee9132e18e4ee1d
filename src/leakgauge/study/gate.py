"""The gate: limits that must hold with 95 % confidence, not on average."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from leakgauge.metrics.intervals import proportion_upper
from leakgauge.study.findings import Group, identified_images, label_scores, power_of, worst_by_image
from leakgauge.study.grammar import GateConfig


@dataclass(frozen=True)
class GateResult:
    """`passed` is `None` without a gate. Every reason is one line a person can act on."""

    passed: bool | None
    reasons: tuple[str, ...] = ()

    @property
    def record(self) -> dict[str, Any]:
        return {"passed": self.passed, "reasons": list(self.reasons)}


def judge(gate: GateConfig | None, groups: list[Group]) -> GateResult:
    """Tests every scenario × attack against the limits.

    A limit is broken when the data exceed it, and *unsupported* ("too few trials") when they do not but
    the interval's end that hurts does: 0 of 8 still allows 31 %. Both fail the gate. So do trials that
    failed, a setting in which no attack that has shown its power was tried, and a captured update that the plan
    does not explain: none of them says anything.

    Args:
        groups: all of the audit, controls included.
    """
    if gate is None:
        return GateResult(None)
    everything, groups = groups, [g for g in groups if not g.control]
    tested = [g for g in groups if g.scores]
    if not tested:
        return GateResult(
            False, ("no attack gave a result, so nothing was tested: add an attack that applies to this model",)
        )
    reasons = [reason for group in tested for reason in _reasons(gate, group)]
    reasons += list(dict.fromkeys(f"explained: {group.doubt}" for group in groups if group.doubt))
    reasons += [_failures(group) for group in groups if group.failed]
    for setting in dict.fromkeys(group.setting for group in groups):
        tried = [group for group in tested if group.setting == setting]
        if not any(power_of(group, everything)["shown"] for group in tried):
            reasons.append(f"power: {setting}: no attack tried here recovers the undefended control, so it cannot pass")
    reasons.sort(key=lambda reason: "too few trials" in reason)  # what is broken before what is unsupported
    return GateResult(not reasons, tuple(reasons))


def _failures(group: Group) -> str:
    message = group.failed[0]["message"] or group.failed[0]["status"]
    return f"failed: {group.title}: {len(group.failed)} of {len(group.records)} trials gave no result ({message})"


def _reasons(gate: GateConfig, group: Group) -> list[str]:
    found = []
    if gate.identified is not None:
        count, n = identified_images(group)
        found.append(_share("identified", count, n, gate.identified.max, group))
    if gate.psnr is not None:
        worst = worst_by_image(group)
        above = sum(value > gate.psnr.worst for value in worst)
        if above:
            found.append(
                f"psnr: {group.title}: worst {group.thing} {max(worst):.1f} dB, the gate allows {gate.psnr.worst:g} dB"
            )
        else:
            found.append(_share(f"psnr above {gate.psnr.worst:g} dB", 0, len(worst), gate.psnr.share, group))
    if gate.label_f1 is not None:
        f1 = label_scores(group)
        if len(f1):
            found.append(_mean("label_f1", f1, gate.label_f1.max, group.title))
    return [reason for reason in found if reason]


def _share(what: str, count: int, n: int, limit: float, group: Group) -> str:
    bound = proportion_upper(count, n)
    if bound <= limit:
        return ""
    if count / n > limit:
        return f"{what}: {group.title}: {count} of {n} {group.thing}s, the gate allows {limit:g}"
    return (
        f"{what}: {group.title}: too few trials: {count} of {n} {group.thing}s still allows {bound:.2f}, "
        f"the gate allows {limit:g}; with none found it takes {needed(limit)} {group.thing}s"
    )


def needed(limit: float, confidence: float = 0.95) -> int | str:
    """Images with no hit that support a limit: the least n with 1 − (1 − confidence)^(1/n) ≤ limit."""
    return (
        "infinitely many"
        if limit <= 0
        else 1
        if limit >= 1
        else math.ceil(math.log(1 - confidence) / math.log(1 - limit))
    )


def _mean(what: str, values: np.ndarray, limit: float, title: str) -> str:
    """Of values in [0, 1]: Hoeffding's bound, which holds for few values and equal ones, where a bootstrap does not."""
    mean = float(values.mean())
    if mean > limit:
        return f"{what}: {title}: mean {mean:.2f}, the gate allows {limit:g}"
    high = min(1.0, mean + math.sqrt(math.log(1 / 0.05) / (2 * len(values))))
    if high <= limit:
        return ""
    return (
        f"{what}: {title}: too few trials: mean {mean:.2f} of {len(values)} still allows {high:.2f}, "
        f"the gate allows {limit:g}"
    )
