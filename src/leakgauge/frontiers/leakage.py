"""What each row leaks: the audits of the plan, read row by row."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

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
from leakgauge.frontiers.plan import FrontierPlan, FrontierRow
from leakgauge.frontiers.results import CounterUsed, Leakage
from leakgauge.observation import Observation, Reconstruction
from leakgauge.study.judging.groups import TrialGroup, groups_of
from leakgauge.study.judging.records import Role
from leakgauge.study.judging.verdict import told
from leakgauge.study.run import OnTrial
from leakgauge.study.run import run as run_audit
from leakgauge.study.trial import observe
from leakgauge.task import Batch


def run_leakage(
    plan: FrontierPlan, folder: Path, *, pool: Executor, compute: Compute, on_trial: OnTrial
) -> list[Leakage]:
    """Runs all audits that are not finished, each in a folder of its own, without pictures; an answer for each row."""
    total, before = sum(len(audit.trials()) for audit, _ in plan.audits.values()), 0
    groups: dict[str, list[TrialGroup]] = {}
    for setting, (audit, _) in plan.audits.items():

        def say(done: int, _: int, last: str, offset: int = before) -> None:
            on_trial(offset + done, total, last)

        place = folder / hashlib.sha256(setting.encode()).hexdigest()[:16]
        store = run_audit(audit, place, executor=pool, compute=compute, counts_only=True, on_trial=say)
        groups[setting] = groups_of([trial.judged for trial in store.trials()])
        store.close()
        before += len(audit.trials())
    return [leakage_of(groups[row.setting], row) for row in plan.rows]


def leakage_of(groups: Sequence[TrialGroup], row: FrontierRow) -> Leakage:
    """The findings of a row by attacker; both have the same one where there is no defence to adapt to.

    Args:
        groups: of the audit of the row's setting.
    """
    mine = [g for g in groups if not g.control and g.scenario.defense == row.defense.label]
    found = {g.trials[0].role is Role.NAIVE: told(g, groups) for g in mine}
    return Leakage(found.get(True), found.get(not row.defended))


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
