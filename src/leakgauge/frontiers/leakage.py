"""What each row leaks: the audits of the plan, read row by row."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from leakgauge.attacks.adaptive import Counter, counter_to
from leakgauge.attacks.labels.head import made_up
from leakgauge.clients import client_update
from leakgauge.compute import Compute
from leakgauge.data.lent import Lent
from leakgauge.defenses import parts_of
from leakgauge.draws import Draws
from leakgauge.errors import FOREIGN, said
from leakgauge.executor import Executor
from leakgauge.frontiers.folder import FrontierFolder
from leakgauge.frontiers.plan import ADAPTED, NAIVE, FrontierPlan
from leakgauge.frontiers.rows import FrontierRow
from leakgauge.observation import Observation, Reconstruction
from leakgauge.study.judging.groups import TrialGroup, groups_of
from leakgauge.study.judging.records import Role, Trial
from leakgauge.study.judging.verdict import told
from leakgauge.study.run import OnTrial
from leakgauge.study.run import run as run_audit
from leakgauge.study.trial import observe
from leakgauge.task import Batch

KEPT = (
    "level", "images", "trials", "failed", "psnr", "null_psnr", "ssim_mean", "lpips_mean", "identified", "recovered",
    "label_f1", "power", "cost", "sentence", "clients", "flags", "residual_risk", "gain",
)  # fmt: skip
"""Of a finding of the audit."""


def run_leakage(
    plan: FrontierPlan, folder: FrontierFolder, *, pool: Executor, compute: Compute, on_trial: OnTrial | None = None
) -> None:
    """Runs all audits that are not finished. Everything is stored trial by trial, without pictures."""
    sizes = {setting: len(audit.trials()) for setting, (audit, _) in plan.audits.items()}
    before = 0
    for setting, (audit, _) in plan.audits.items():
        offset = before

        def say(done: int, _: int, last: str, offset: int = offset) -> None:
            if on_trial is not None:
                on_trial(offset + done, sum(sizes.values()), last)

        store = run_audit(audit, folder.audit(setting), executor=pool, compute=compute, counts_only=True, on_trial=say)
        store.close()
        before += sizes[setting]


def leakage_of(trials: Sequence[Trial], row: FrontierRow) -> dict[str, object]:
    """The findings of a row by attacker; both have the same one where there is no defence to adapt to.

    Args:
        trials: of the audit of the row's setting.
    """
    groups = groups_of(trials)
    mine = [g for g in groups if not g.control and g.scenario.defense == row.defense.label]
    found = {NAIVE if g.trials[0].role is Role.NAIVE else ADAPTED: _finding(g, groups) for g in mine}
    naive = found.get(NAIVE)
    return {NAIVE: naive, ADAPTED: found.get(ADAPTED) if row.defended else naive}


def _finding(group: TrialGroup, groups: list[TrialGroup]) -> dict[str, object]:
    record = told(group, groups)
    written = record.to_json()
    chosen = {key: written[key] for key in KEPT} | {"attack": group.attack}
    for key, worst in (("ssim", max), ("lpips", min)):
        values = group.values(key, best=worst is max)
        chosen[f"{key}_worst"] = round(worst(values), 4) if values else None
    return chosen


def counters_of(plan: FrontierPlan, row: FrontierRow) -> list[dict[str, object]]:
    """The named counter of each part of a row's defence, with what the plan's attacker lacks for it; or why there is
    none."""
    known: list[dict[str, object]] = []
    parts = parts_of(row.defense.value)
    seen = _seen(plan, row) if parts else None
    for part in parts:
        found = counter_to(part)
        is_known = isinstance(found, Counter)
        told: dict[str, object] = {"part": type(part).__name__, "counter": None, "known": is_known, "missing": ""}
        if isinstance(found, Counter):
            missing = found.missing(part, seen) if isinstance(seen, Observation) else ""
            told |= {"counter": found.name, "because": found.because, "missing": missing}
        else:
            told["because"] = found.reason
        known.append(told)
    return known


def _seen(plan: FrontierPlan, row: FrontierRow) -> Observation | Reconstruction:
    """As the attacker of the row sees a client, who holds noise: whether a later stage has covered an earlier one shows
    on an update alone."""
    audit, _ = plan.audits[row.setting]
    task, client, draws = plan.attacked_task(), audit.clients[0], Draws(0)
    examples = row.batch * row.cohort
    inputs = made_up(task.data, examples, draws.generator("inputs"))
    batch = Batch(inputs, torch.arange(examples) % task.data.classes)
    shown = Lent.of(batch.inputs, len(batch), task.data.shape, task.data.low, task.data.high)
    try:
        update = client_update(task, client.value, batch, draws, defense=row.defense.value)
    except FOREIGN as error:  # a defence may be anybody's
        return Reconstruction.not_applicable(said(error))
    return observe(audit, task, update, draws, client, row.defense, batch, shown)
