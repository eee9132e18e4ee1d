"""What each row leaks: the audits of the plan, read row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

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
from leakgauge.frontiers.plan import ADAPTED, NAIVE, FrontierPlan, FrontierRow
from leakgauge.frontiers.results import CounterUsed, Leakage, RowFinding
from leakgauge.observation import Observation, Reconstruction
from leakgauge.study.judging.groups import TrialGroup, groups_of
from leakgauge.study.judging.records import Role, Trial
from leakgauge.study.judging.verdict import told
from leakgauge.study.run import OnTrial
from leakgauge.study.run import run as run_audit
from leakgauge.study.trial import observe
from leakgauge.task import Batch


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


def leakage_of(trials: Sequence[Trial], row: FrontierRow) -> Leakage:
    """The findings of a row by attacker; both have the same one where there is no defence to adapt to.

    Args:
        trials: of the audit of the row's setting.
    """
    groups = groups_of(trials)
    mine = [g for g in groups if not g.control and g.scenario.defense == row.defense.label]
    found = {NAIVE if g.trials[0].role is Role.NAIVE else ADAPTED: _finding(g, groups) for g in mine}
    naive = found.get(NAIVE)
    return Leakage(naive, found.get(ADAPTED) if row.defended else naive)


def _finding(group: TrialGroup, groups: list[TrialGroup]) -> RowFinding:
    found = told(group, groups)
    worst: dict[str, float | None] = {}
    for key, of in (("ssim", max), ("lpips", min)):
        values = group.values(key, best=of is max)
        worst[f"{key}_worst"] = round(of(values), 4) if values else None
    made: Mapping[str, Any] = {f.name: getattr(found, f.name, None) for f in fields(RowFinding)} | worst
    return RowFinding(**made)


def counters_of(plan: FrontierPlan, row: FrontierRow) -> tuple[CounterUsed, ...]:
    """The named counter of each part of a row's defence, with what the plan's attacker lacks for it; or why there is
    none."""
    known: list[CounterUsed] = []
    parts = parts_of(row.defense.value)
    seen = _seen(plan, row) if parts else None
    for part in parts:
        found, name = counter_to(part), type(part).__name__
        if isinstance(found, Counter):
            missing = found.lacks(part, seen) if isinstance(seen, Observation) else ""
            known.append(CounterUsed(name, found.name, True, missing, found.because))
        else:
            known.append(CounterUsed(name, None, False, "", found.reason))
    return tuple(known)


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
