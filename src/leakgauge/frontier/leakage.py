"""What each row leaks: the audits of the plan, read row by row."""

from __future__ import annotations

from typing import Any

import torch

from leakgauge.attacks.adaptive import Counter, counter_to, parts_of
from leakgauge.audit.findings import Group, by_image, finding, groups_of
from leakgauge.audit.run import OnTrial
from leakgauge.audit.run import run as run_audit
from leakgauge.audit.trial import observe
from leakgauge.compute import Compute
from leakgauge.draws import Draws
from leakgauge.frontier.folder import Folder
from leakgauge.frontier.plan import ADAPTED, NAIVE, FrontierPlan
from leakgauge.frontier.rows import Row
from leakgauge.observation import Observation
from leakgauge.task import Batch
from leakgauge.tensors import map_tensors
from leakgauge.update import Update, UpdateHeader

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


def counters_of(plan: FrontierPlan, row: Row) -> list[dict[str, Any]]:
    """The named counter of each part of a row's defence, with what the plan's attacker lacks for it; or why there is
    none."""
    known = []
    for part in parts_of(row.defense.value):
        found = counter_to(part)
        told = {"part": type(part).__name__, "counter": None, "known": isinstance(found, Counter), "missing": ""}
        if isinstance(found, Counter):
            told |= {"counter": found.name, "because": found.because, "missing": found.missing(part, _seen(plan, row))}
        else:
            told["because"] = found.reason
        known.append(told)
    return known


def _seen(plan: FrontierPlan, row: Row) -> Observation:
    """As the attacker of the row sees a client, whose update is zero: only what is known of it matters here."""
    audit, _ = plan.audits[row.setting]
    task = row.defense.value.on_task(plan.attacked_task())
    client = audit.clients[0].value
    examples = row.batch * row.cohort
    nothing = Update(map_tensors(torch.zeros_like, task.parameters), UpdateHeader(client.kind, examples, {}))
    labels = torch.zeros(examples, dtype=torch.int64)
    batch = Batch(torch.zeros((examples, *task.data.shape)), labels)
    seen = observe(audit, plan.attacked_task(), nothing, Draws(0), audit.clients[0], row.defense, batch, batch.inputs)
    assert isinstance(seen, Observation)
    return seen
