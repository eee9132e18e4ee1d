"""A finished frontier as one typed report: every row, what the rows say together, and what was left out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from leakgauge import __version__
from leakgauge.compute import Compute
from leakgauge.files import write_whole
from leakgauge.frontiers import costs as spent
from leakgauge.frontiers.folder import HINT, FrontierFolder, kept
from leakgauge.frontiers.leakage import counters_of, leakage_of
from leakgauge.frontiers.plan import FrontierPlan, FrontierRow, Tolerance, row_label
from leakgauge.frontiers.recommend import Recommendation, recommendation
from leakgauge.frontiers.results import Accuracy, RowCost, RowResult
from leakgauge.observation import Known
from leakgauge.registry import DEFENSES
from leakgauge.study.document import read_trial
from leakgauge.study.judging.records import Trial
from leakgauge.study.judging.scores import plain
from leakgauge.study.run import environment
from leakgauge.study.store import Store
from leakgauge.task import Mode

SCHEMA_VERSION = 3
"""3: without `reads`. 2: findings as in an audit's report.json of schema 2."""

NO_DATA = "no data to train with: give utility.train and utility.test in the plan, or --train and --test"


@dataclass(frozen=True)
class Simulated:
    """The simulation behind the accuracies; all but `measured` and `reason` are empty where there is none."""

    measured: bool
    reason: str | None = None
    train: str | None = None
    test: str | None = None
    clients: int | None = None
    per_round: int | None = None
    rounds: int | None = None
    alpha: float | None = None
    client: str | None = None
    examples_of_a_client: tuple[int, ...] = ()
    rounds_of_a_client: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """What report.json holds; byte-equal between runs once every ``seconds`` and ``created_at`` is deleted."""

    schema_version: int = SCHEMA_VERSION
    leakgauge_version: str = __version__
    created_at: str
    config: Mapping[str, object]
    environment: Mapping[str, object]
    tolerance: Tolerance
    utility: Simulated
    rows: tuple[RowResult, ...]
    recommendation: Recommendation
    not_tried: tuple[str, ...]
    sureness: tuple[str, ...]

    @property
    def name(self) -> str:
        """What the plan is called."""
        return str(self.config.get("name", "frontier"))

    def write(self, path: Path) -> Path:
        """Whole or not at all."""
        text = json.dumps(plain(self), indent=1, allow_nan=False, ensure_ascii=False, default=str)
        return write_whole(path, text + "\n", HINT)


def report_of(plan: FrontierPlan, folder: FrontierFolder, compute: Compute) -> Report:
    """The report of a finished run."""
    trials: dict[str, list[Trial]] = {}
    for setting in plan.audits:
        store = Store.open(folder.audit(setting))
        trials[setting] = [read_trial(record).judged for record in store.each()]
        store.close()
    layers = spent.layers(plan)
    rows = tuple(
        RowResult(
            family=row.family,
            strength=row.strength,
            label=row_label(row, plan.undefended),
            defense=row.defense.label,
            client=row.client.label,
            batch=row.batch,
            cohort=row.cohort,
            counters=counters_of(plan, row),
            accuracy=_accuracy(plan, row, folder),
            cost=kept(folder.costs(row.training), RowCost),
            leakage=leakage_of(trials[row.setting], row),
            privacy=spent.privacy_of(plan, row, spent.exposures(plan, row), layers),
        )
        for row in plan.rows
    )
    return Report(
        created_at=folder.created_at,
        config=plan.config,
        environment=environment(compute),
        tolerance=plan.tolerance,
        utility=_training(plan),
        rows=rows,
        recommendation=recommendation(rows, plan.tolerance),
        not_tried=tuple(not_tried(plan)),
        sureness=tuple(sureness(plan)),
    )


def _accuracy(plan: FrontierPlan, row: FrontierRow, folder: FrontierFolder) -> Accuracy:
    if plan.utility is None:
        return Accuracy(reason=NO_DATA)
    if not row.train:
        return Accuracy(reason="not trained: the plan says train: false")
    return kept(folder.training(row.training), Accuracy) or Accuracy(reason="the training is not finished")


def _training(plan: FrontierPlan) -> Simulated:
    given = plan.utility
    if given is None:
        return Simulated(measured=False, reason=NO_DATA)
    met = spent.exposures(plan, plan.undefended)
    examples, rounds = [e.examples for e in met], [e.rounds for e in met]
    return Simulated(
        measured=True,
        train=given.train.name,
        test=given.test.name,
        clients=given.clients,
        per_round=min(given.per_round, given.clients),
        rounds=given.rounds,
        alpha=given.alpha,
        client=plan.client.label,
        examples_of_a_client=(min(examples), max(examples)),
        rounds_of_a_client=(min(rounds), max(rounds)),
    )


def not_tried(plan: FrontierPlan) -> list[str]:
    """What a reader might think was covered, and was not."""
    named = {name for row in plan.rows for name in row.defense.names}
    absent = [entry.name for entry in DEFENSES if entry.name not in named | {"none"}]
    said = [f"Defences that exist here and are not in this plan: {', '.join(absent)}."] if absent else []
    said += [
        f"Attacks other than {plan.attack.name}, and more effort than "
        f"{plan.budget.gradient_evaluations or 'unlimited'} gradients a trial; in rows of more local steps or "
        "of several clients as many times more, so that each row gets as many candidates.",
        "A server that prepares the model it sends (leakgauge audit, server:), and one that combines the updates of "
        "several rounds.",
        "Updates of later rounds: the attacked client trains the first weights, which is where gradients say most.",
    ]
    if Known.LABELS not in plan.knows:
        said.append("An attacker who knows the labels (knows: labels).")
    if plan.mode is Mode.TRAIN and any(k.endswith("running_mean") for k in plan.attacked_task().buffers):
        said.append("The running statistics of BatchNorm: if they leave the client, no defence here covers them.")
    return said


def sureness(plan: FrontierPlan) -> list[str]:
    """How far the numbers can be trusted, in sentences."""
    images = plan.images
    said = [
        f"Identification rests on about {images} pictures a row and {len(plan.seeds)} "
        f"{'seed' if len(plan.seeds) == 1 else 'seeds'}; intervals are exact (Clopper–Pearson, 95 %). None of "
        f"{images} identified still allows up to {100 * (1 - 0.05 ** (1 / images)):.0f} %.",
        "The same pictures are attacked in every row, so differences between rows are surer than the intervals say.",
    ]
    if plan.utility is not None:
        said.append(
            f"Accuracy is one training of {plan.utility.rounds} rounds a row, with the same partition, "
            "weights and clients in each round. Its interval counts the test examples only, not what another seed "
            "would give: differences of a point or two are noise."
        )
    said.append(
        "The attacked client is a small one, the worst case; training uses all clients as they are. Client time is "
        "processor time of one client, as a ratio to the undefended one in the same minute."
    )
    return said
