"""A frontier: rows, the audits that measure what they leak, and the trainings that measure what they cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from leakgauge.attacks.adaptive import Adapted, Naive
from leakgauge.clients import Protocol, SecureAggregation
from leakgauge.compute import Budget
from leakgauge.data.source import Source, spec
from leakgauge.defenses import Defense, parts_of
from leakgauge.errors import InputError, require
from leakgauge.metrics.metric import Metric
from leakgauge.observation import Known
from leakgauge.resolve import Named, label
from leakgauge.study.contents import data_identity, digest_of, plan_in_words
from leakgauge.study.dealt import Dealt, Key, Selection
from leakgauge.study.described import Description
from leakgauge.study.plan import TRIAL_SECONDS, Plan
from leakgauge.task import Mode, Task
from leakgauge.training.federated import FederatedTraining

UNDEFENDED = "undefended"
"""Family of the row without a defence."""


@dataclass(frozen=True)
class FrontierRow:
    """One point of the frontier.

    Attributes:
        family, strength: where the plan has it; strengths count from 0, weak to strong.
        defense: the mechanism on each client.
        client: what each client runs, without aggregation.
        batch: examples of the attacked client.
        cohort: clients whose updates are aggregated before the server sees them.
        train: whether it is trained with.
    """

    family: str
    strength: int
    defense: Named
    client: Named
    batch: int = 1
    cohort: int = 1
    train: bool = True

    @property
    def place(self) -> str:
        """For readers, e.g. ``noise[1]``."""
        return f"{self.family}[{self.strength}]"

    @property
    def field(self) -> str:
        """Where a plan has it, for errors."""
        return f"defenses.{self.place}"

    @property
    def defended(self) -> bool:
        """Whether a mechanism changes what a client sends, rather than only how many examples are in it."""
        return bool(parts_of(self.defense.value))

    @property
    def steps(self) -> int:
        """Local steps of the attacked clients together: what one candidate of an attack costs in gradients."""
        return int(self.client.value.steps(self.batch) * self.cohort)

    @property
    def training(self) -> str:
        """Rows with the same one share a training: aggregation and the attacked client's batch do not change it."""
        return f"{self.client.label} | {self.defense.label}"

    @property
    def setting(self) -> str:
        """Rows with the same one share an audit."""
        return f"{self.client.label} | {self.batch} | {self.cohort}"


def row_label(row: FrontierRow, usual: FrontierRow) -> str:
    """A row in words: what differs from the undefended one; unique in the plan."""
    parts = [row.defense.label] if row.defended else []
    if row.client.label != usual.client.label:
        parts.append(row.client.label)
    if row.batch != usual.batch:
        parts.append(f"a client of {row.batch} examples")
    if row.cohort > 1:
        parts.append(f"mean over {row.cohort} clients")
    return " + ".join(parts) or "none"


NAIVE, ADAPTED = "naive", "adapted"


@dataclass(frozen=True, eq=False, kw_only=True)
class Utility:
    """The training in simulation that measures accuracy.

    Attributes:
        model: as `Plan.models` has it, fitted to the training data.
        train, test: the data.
        clients, alpha: the training data are dealt to so many by `dirichlet_partition`.
        per_round, rounds, server_lr, evaluate_every: see `FederatedTraining`.
        examples, test_examples: use only so many of the first; `None` for all.
        seed: of partition, weights and draws.
    """

    model: Named
    train: Source
    test: Source
    clients: int = 100
    alpha: float = 0.5
    per_round: int = 10
    rounds: int = 100
    server_lr: float = 1.0
    evaluate_every: int = 10
    examples: int | None = None
    test_examples: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("shape", "classes"):
            ours, theirs = getattr(self.train, name), getattr(self.test, name)
            require(ours == theirs, "utility.test", f"has {name} {theirs}, train has {ours}", "give data that agree")
        kept = min(self.examples or len(self.train), len(self.train))
        few = f"are {self.clients} for {kept} training examples"
        require(self.clients <= kept, "utility.clients", few, "give each at least one example")


@dataclass(frozen=True)
class Tolerance:
    """What the recommendation calls good enough.

    Attributes:
        accuracy: loss against the undefended training, as a share (0.02 is two points).
        identified: share of the pictures that the stronger attacker may identify.
    """

    accuracy: float = 0.02
    identified: float = 0.05


@dataclass(frozen=True, eq=False, kw_only=True)
class FrontierPlan:
    """What a frontier measures, in objects. Making one validates everything that can be known before anything runs.
    `leakgauge.frontiers.written` makes one from a file's words.

    Attributes:
        rows: the undefended one first.
        model: as `Plan.models` has it.
        source: of the examples that are attacked.
        images: how many of them are attacked in each row, in batches as the row has them, from `start` on.
        client: what every client runs; a row may change it.
        attack: of both attackers.
        utility: `None` where accuracy is not measured.
        delta, accountant: of the rows that are differentially private.
        identity, written, again: as in `Plan`.

    Other attributes are those of the audits; `budget` is that of the undefended row.

    Raises:
        InputError: names the key and the hint.
    """

    rows: tuple[FrontierRow, ...]
    model: Named
    source: Source
    client: Named
    attack: Named
    name: str = "frontier"
    images: int = 8
    start: int = 0
    mode: Mode = Mode.EVAL
    knows: tuple[Known, ...] = (Known.EXAMPLE_COUNT, Known.LOCAL_TRAINING, Known.DEFENSE)
    budget: Budget = Budget(300)
    trial_seconds: float = TRIAL_SECONDS
    seeds: tuple[int, ...] = (0,)
    gallery: int = 100
    perceptual: Metric | None = None
    utility: Utility | None = None
    delta: float = 1e-5
    accountant: str = "rdp"
    tolerance: Tolerance = Tolerance()
    identity: str | None = None
    written: Mapping[str, Any] | None = None
    again: Callable[[], FrontierPlan] | None = None
    audits: dict[str, tuple[Plan, list[FrontierRow]]] = field(init=False, repr=False, default_factory=dict)
    """Setting → the audit that attacks its rows."""

    def __post_init__(self) -> None:
        seen: dict[str, FrontierRow] = {}
        for row in self.rows:
            same = f"{row.setting} | {row.defense.label}"
            twice = f"is the same as {seen[same].place}" if same in seen else ""
            require(same not in seen, row.field, twice, "give each once")
            seen[same] = row
        groups: dict[str, list[FrontierRow]] = {}
        for row in self.rows:
            groups.setdefault(row.setting, []).append(row)
        self.audits.update({setting: (self._audit(setting, rows), rows) for setting, rows in groups.items()})
        self._check_training()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return super().__reduce_ex__(protocol) if self.again is None else (self.again, ())

    @cached_property
    def config(self) -> dict[str, object]:
        """The plan in words that a file can hold."""
        return dict(self._words.words)

    @cached_property
    def _words(self) -> Description:
        return plan_in_words(self)

    @cached_property
    def digest(self) -> str:
        """Identity of the plan; an output folder belongs to one."""
        return digest_of(self._words, self.identity)

    @property
    def undefended(self) -> FrontierRow:
        return self.rows[0]

    def _audit(self, setting: str, rows: list[FrontierRow]) -> Plan:
        first = rows[0]
        total = first.batch * first.cohort
        plain = frozenset(i for i, row in enumerate(rows) if not row.defended)
        defended = frozenset(range(len(rows))) - plain
        # Without a defence the two attackers are one.
        rules = [Selection(defenses=plain, attacks=frozenset([0]))] if plain else []
        rules += [Selection(defenses=defended, attacks=frozenset([0, 1]))] if defended else []
        value, shown = self.attack.value, {"attack": self.attack.label}
        attackers = (
            Named(label(NAIVE, shown), Naive(attack=value), (NAIVE,)),
            Named(label(ADAPTED, shown), Adapted(attack=value), (ADAPTED,)),
        )
        return Plan(
            name=f"{self.name}: {first.client.label}, {first.batch} x {first.cohort}",
            data=Dealt(self.source, total, max(1, self.images // total), self.start),
            models=(self.model,),
            mode=self.mode,
            clients=(sent_by(first),),
            defenses=tuple(row.defense for row in rows),
            attacks=attackers if defended else attackers[:1],
            knows=self.knows,
            only=tuple(rules),
            budget=self._budget(first),
            trial_seconds=self.trial_seconds,
            seeds=self.seeds,
            gallery=self.gallery,
            perceptual=self.perceptual,
            identity=self.digest,
            again=None if self.again is None else _Part(self.again, setting),
        )

    def _budget(self, row: FrontierRow) -> Budget:
        """Every row gets as many candidates: one costs a gradient for each local step of each client in it. Otherwise
        rows of more steps or clients would look like defences because the search was shorter."""
        gradients = self.budget.gradient_evaluations
        if gradients is not None:
            gradients = max(gradients * row.steps // self.undefended.steps, row.steps)
        return Budget(gradients, self.budget.seconds)

    def trained_task(self, utility: Utility) -> Task:
        """The plan's model with its first weights, fitted to the training data."""
        model, data = utility.model, spec(utility.train)
        return model.value.task(utility.seed, data, self.mode, model.label)  # type: ignore[no-any-return]

    def trainings(self) -> dict[str, FrontierRow]:
        """Each training once: its name, and a row of it."""
        if self.utility is None:
            return {}
        found: dict[str, FrontierRow] = {}
        for row in self.rows:
            if row.train:
                found.setdefault(row.training, row)
        return found

    def training(self, utility: Utility, client: Protocol, defense: Defense) -> FederatedTraining:
        """The simulation of a row."""
        return FederatedTraining(
            rounds=utility.rounds,
            per_round=min(utility.per_round, utility.clients),
            client=client,
            defense=defense,
            server_lr=utility.server_lr,
            evaluate_every=utility.evaluate_every,
            seed=utility.seed,
        )

    def _check_training(self) -> None:
        if self.utility is None:
            return
        task = self.trained_task(self.utility)
        for row in self.trainings().values():
            try:
                row.defense.value.on_task(task)
            except InputError as error:
                where = "utility" if row.family == UNDEFENDED else row.field
                raise InputError(where, error.problem, error.hint) from error

    def contents(self) -> dict[str, str]:
        """What the results rest on beside the text, as it is now: see `leakgauge.study.contents`."""
        found: dict[str, str] = {}
        for setting, (audit, _) in self.audits.items():
            found |= {f"data of {setting}" if key == "data" else key: v for key, v in audit.contents().items()}
        if self.utility is not None:
            u = self.utility
            found |= {"utility.train": data_identity(u.train, []), "utility.test": data_identity(u.test, [])}
        return found

    def attacked_task(self) -> Task:
        """The model as the server broadcasts it to the attacked client, with the first seed."""
        plan, _ = self.audits[self.undefended.setting]
        return plan.broadcast(Key(0, 0, 0, 0, 0, 0)).task


@dataclass(frozen=True)
class _Part:
    """Makes the audit of one setting in another process."""

    again: Callable[[], FrontierPlan]
    setting: str

    def __call__(self) -> Plan:
        return self.again().audits[self.setting][0]


def sent_by(row: FrontierRow) -> Named:
    """What the server receives from: a client of the row, or a cohort of them."""
    if row.cohort == 1:
        return row.client
    name, shown = "secure-aggregation", {"cohort": row.cohort, "client": row.client.label}
    value = SecureAggregation(cohort=row.cohort, client=row.client.value)
    return Named(label(name, shown), value, (name,), row.field)
