"""What each row leaks: the audits of the plan, read row by row."""

from __future__ import annotations

from typing import Any

from leakgauge.attacks.adaptive import Counter, counter_to, parts_of
from leakgauge.audit.findings import Group, by_image, finding, groups_of
from leakgauge.audit.run import OnTrial
from leakgauge.audit.run import run as run_audit
from leakgauge.compute import Compute
from leakgauge.defenses import Defense
from leakgauge.frontier.folder import Folder
from leakgauge.frontier.plan import ADAPTED, NAIVE, FrontierPlan
from leakgauge.frontier.rows import Row

KEPT = (
    "level", "images", "trials", "failed", "psnr", "null_psnr", "ssim_mean", "lpips_mean", "identified", "recovered",
    "label_f1", "power", "cost", "sentence",
)  # fmt: skip
"""Of a finding of the audit."""


def run_leakage(
    plan: FrontierPlan, folder: Folder, *, workers: int, compute: Compute, on_trial: OnTrial | None = None
) -> None:
    """Runs all audits that are not finished. Everything is stored trial by trial, without pictures."""
    sizes = {setting: len(audit.trials()) for setting, (audit, _) in plan.audits.items()}
    before = 0
    for setting, (audit, _) in plan.audits.items():
        offset = before

        def say(done: int, _: int, last: str, offset: int = offset) -> None:
            if on_trial is not None:
                on_trial(offset + done, sum(sizes.values()), last)

        store = run_audit(
            audit, folder.audit(setting), workers=workers, compute=compute, counts_only=True, on_trial=say
        )
        store.close()
        before += sizes[setting]


def leakage_of(records: list[dict[str, Any]], row: Row) -> dict[str, Any]:
    """The findings of a row by attacker; both have the same one where there is no defence to adapt to.

    Args:
        records: trials of the audit of the row's setting.
    """
    groups = groups_of(records)
    mine = [g for g in groups if not g.control and g.scenario["defense"] == row.defense.label]
    found = {g.attack.partition("(")[0]: _finding(g, groups) for g in mine}
    naive = found.get(NAIVE)
    return {NAIVE: naive, ADAPTED: found.get(ADAPTED) if row.defended else naive}


def _finding(group: Group, groups: list[Group]) -> dict[str, Any]:
    record = finding(group, groups)
    chosen = {key: record[key] for key in KEPT} | {"attack": group.attack}
    for key, worst in (("ssim", max), ("lpips", min)):
        values = [worst(v) for v in by_image(group, key).values()]
        chosen[f"{key}_worst"] = round(worst(values), 4) if values else None
    return chosen


def counters_of(defense: Defense) -> list[dict[str, Any]]:
    """The named counter of each part of a defence, or why there is none."""
    known = []
    for part in parts_of(defense):
        found = counter_to(part)
        named = isinstance(found, Counter)
        known.append(
            {
                "part": type(part).__name__,
                "counter": found.name if isinstance(found, Counter) else None,
                "because": found.because if isinstance(found, Counter) else found.reason,
                "known": named,
            }
        )
    return known
