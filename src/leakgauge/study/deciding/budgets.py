"""ε of one update under each defence of a plan, as the decision page states it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from leakgauge.errors import FOREIGN
from leakgauge.privacy.guarantee import NoGuarantee
from leakgauge.privacy.one_update import USEFUL, Spent, in_words, spent_in_one_update
from leakgauge.privacy.rero import sentence as robust
from leakgauge.privacy.rero import success_bound
from leakgauge.registry import CLIENTS
from leakgauge.resolve import resolve, resolve_defense
from leakgauge.risk.lint import SENT, LintFinding

DELTA = 1e-5
GUESS = 1e-3
"""Chance of a right guess without the update, for which the bound on reconstruction is stated."""


def budgets(config: Mapping[str, Any], lint: Sequence[LintFinding]) -> list[dict[str, object]]:
    """ε of one update and what it says of reconstruction, for each defence of the plan, or why there is none."""
    batch = (config.get("data") or {}).get("batch", 1)
    raw = any(f.rule == SENT for f in lint)
    found = []
    for i, described in enumerate(config.get("defenses") or ["none"]):
        entry: dict[str, object] = {"defense": str(described), "epsilon": None, "delta": None}
        try:
            named = resolve_defense(described, f"defenses[{i}]")
            clients = [resolve(CLIENTS, c, "clients").value for c in config.get("clients") or ["fedsgd"]]
            spent = spent_in_one_update(named.value, clients, batch)
        except FOREIGN as error:  # an object of the user's own, of which the report keeps a description
            found.append(entry | {"reason": f"not known: {error}"})
            continue
        entry["defense"] = named.label
        if isinstance(spent, NoGuarantee):
            found.append(entry | {"reason": spent.reason})
        elif raw:
            found.append(entry | {"reason": "running statistics leave the client beside the update, without noise"})
        else:
            found.append(entry | _stated(spent))
    return found


def _stated(spent: Spent) -> dict[str, object]:
    z, steps = spent.mechanism.noise_multiplier, spent.releases
    try:
        epsilon = spent.epsilon(DELTA)
    except FOREIGN:
        epsilon = math.inf
    if epsilon >= USEFUL:
        return {"reason": f"noise over clip is {z:.3g}: ε is {in_words(epsilon)}"}
    release = (z, steps, 1.0)
    counted = "one Gaussian release" if steps == 1 else f"the {steps} noisy local steps of one update that meet it"
    return {
        "epsilon": round(epsilon, 4),
        "delta": DELTA,
        "unit": f"one {spent.mechanism.unit.value}, there or not",
        "releases": steps,
        "at_most": float(f"{success_bound(release, GUESS):.4g}"),
        "robustness": robust(release, GUESS),
        "reason": f"exact for {counted} without sampling; rounds and tuning add to it: leakgauge privacy",
    }
