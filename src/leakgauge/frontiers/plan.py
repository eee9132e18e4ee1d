"""A frontier: rows, the audits that measure what they leak, and the trainings that measure what they cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

from pydantic import Field, model_validator

from leakgauge.attacks.adaptive import Adapted, Naive
from leakgauge.clients import SecureAggregation
from leakgauge.clients.client import refuse_combination
from leakgauge.data.arrays import Parts
from leakgauge.data.source import Source, spec
from leakgauge.defenses import parts_of
from leakgauge.errors import InputError, blamed_on, require
from leakgauge.observation import Known
from leakgauge.registry import ATTACKS, CLIENTS
from leakgauge.resolve import Named, label, resolve, resolve_defense
from leakgauge.study.deal import Dealt, Key, Selection
from leakgauge.study.grammar import BudgetConfig, PlanConfig, SourceConfig, Strict, validated
from leakgauge.study.identity import Described, data_identity
from leakgauge.study.plan import Plan, known, model_of, perceptual_of, source_of
from leakgauge.task import Mode, Task
from leakgauge.training import FederatedTraining

UNDEFENDED = "undefended"  # family of the row without a defence


class AttackedConfig(SourceConfig):
    """The examples that are attacked: by default of the test data of `utility` where these are given, in their own
    size, else of ``samples``. A row may change `batch`."""

    images: int = Field(default=8, ge=1)


class Utility(Strict):
    """The training in simulation, see `FederatedTraining`. Without `train` and `test` accuracy is not measured."""

    train: SourceConfig | None = None
    test: SourceConfig | None = None
    clients: int = Field(default=100, ge=1)
    alpha: float = Field(default=0.5, gt=0)
    per_round: int = Field(default=10, ge=1)
    rounds: int = Field(default=100, ge=1)
    server_lr: float = Field(default=1.0, gt=0)
    evaluate_every: int = Field(default=10, ge=1)
    examples: int | None = Field(default=None, ge=1)
    test_examples: int | None = Field(default=None, ge=1)
    seed: int = 0


class Tolerance(Strict):
    """What the recommendation calls good enough."""

    accuracy: float = Field(default=0.02, ge=0, lt=1)
    identified: float = Field(default=0.05, ge=0, lt=1)


class RowConfig(Strict):
    """One strength in long form; in short it is its defence."""

    defense: Any = "none"
    client: Any = None
    batch: int | None = Field(default=None, ge=1)
    cohort: int = Field(default=1, ge=1)
    train: bool = True

    @model_validator(mode="before")
    @classmethod
    def _long(cls, value: Any) -> Any:
        is_long = isinstance(value, dict) and value and set(value) <= set(cls.model_fields)
        return value if is_long else {"defense": value}


class FrontierConfig(Strict):
    """A frontier plan as written, in the words of audit plans where both have them. See *Keys of a frontier* in the
    docs. The budget is the undefended row's; rows whose candidates cost more gradients get as many more."""

    name: str = "frontier"
    identity: str | None = None
    model: Any = "small-convnet"
    mode: Literal["eval", "train"] = "eval"
    data: AttackedConfig = AttackedConfig()
    client: Any = Field({"fedavg": {"epochs": 1, "batch_size": 32, "lr": 0.2, "shuffle": True}})
    knows: list[str] = Field(["example_count", "local_training", "defense"])
    attack: Any = "auto"
    budget: BudgetConfig = BudgetConfig(gradient_evaluations=300)
    seeds: list[int] = Field(default=[0], min_length=1)
    gallery: int = Field(default=100, ge=1)
    lpips: str | None = None
    defenses: dict[str, list[RowConfig]] = Field(min_length=1)
    utility: Utility = Utility()
    delta: float = Field(default=1e-5, gt=0, lt=1)
    accountant: Literal["rdp", "prv"] = "rdp"
    tolerance: Tolerance = Tolerance()


@dataclass(frozen=True)
class FrontierRow:
    """One point of the frontier: where the plan has it, with strengths counted from 0, weak to strong, and what
    `RowConfig` says of it. The client is what each of a cohort runs."""

    family: str
    strength: int
    defense: Named
    client: Named
    batch: int = 1
    cohort: int = 1
    train: bool = True

    @property
    def field(self) -> str:
        return f"defenses.{self.family}[{self.strength}]"

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

    @property
    def sender(self) -> Named:
        """What the server receives from: one client, or the aggregate of a cohort."""
        if self.cohort == 1:
            return self.client
        name, shown = "secure-aggregation", {"cohort": self.cohort, "client": self.client.label}
        value = SecureAggregation(cohort=self.cohort, client=self.client.value)
        return Named(label(name, shown), value, (name,), self.field)


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


@dataclass(frozen=True, eq=False)
class UtilityData:
    """What the simulated trainings train and test on, and the plan's model fitted to it."""

    model: Named
    train: Source
    test: Source


@dataclass(frozen=True, eq=False, kw_only=True)
class FrontierPlan(Described):
    """What a frontier measures. Making one validates everything that can be known before anything runs."""

    keys: FrontierConfig
    rows: tuple[FrontierRow, ...]  #: the undefended one first
    model: Named  #: as `leakgauge.study.plan.Plan` has it, fitted to the attacked examples
    source: Source
    attack: Named
    utility: UtilityData | None  #: data of the trainings; `None` where accuracy is not measured.
    written: Mapping[str, Any]  #: the plan in the words of its file
    #: setting → the audit that attacks its rows
    audits: dict[str, Plan] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        seen: dict[str, FrontierRow] = {}
        groups: dict[str, list[FrontierRow]] = {}
        for row in self.rows:
            same = seen.setdefault(f"{row.setting} | {row.defense.label}", row)
            require(same is row, row.field, f"is the same as {same.field}", "give each once")
            groups.setdefault(row.setting, []).append(row)
        self.audits.update({setting: self._audit(setting, rows) for setting, rows in groups.items()})
        if self.utility is None:
            return
        u, data = self.keys.utility, self.utility
        for name in ("shape", "classes"):
            ours, theirs = getattr(data.train, name), getattr(data.test, name)
            require(ours == theirs, "utility.test", f"has {name} {theirs}, train has {ours}", "give data that agree")
        kept = min(u.examples or len(data.train), len(data.train))
        few = f"are {u.clients} for {kept} training examples"
        require(u.clients <= kept, "utility.clients", few, "give each at least one example")
        task = self.trained_task(data)
        for row in self.trainings().values():
            with blamed_on("utility" if row.family == UNDEFENDED else row.field):
                row.defense.value.on_task(task)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return resolve_frontier, (self.written,)

    @property
    def mode(self) -> Mode:
        return Mode(self.keys.mode)

    @property
    def undefended(self) -> FrontierRow:
        return self.rows[0]

    def _audit(self, setting: str, rows: list[FrontierRow]) -> Plan:
        first, config = rows[0], self.keys
        total = first.batch * first.cohort
        plain = frozenset(i for i, row in enumerate(rows) if not row.defended)
        defended = frozenset(range(len(rows))) - plain
        # Without a defence the two attackers are one.
        rules = [Selection(defenses=plain, attacks=frozenset([0]))] if plain else []
        rules += [Selection(defenses=defended, attacks=frozenset([0, 1]))] if defended else []
        value, shown = self.attack.value, {"attack": self.attack.label}
        attackers = (
            Named(label("naive", shown), Naive(attack=value), ("naive",)),
            Named(label("adapted", shown), Adapted(attack=value), ("adapted",)),
        )
        keys = PlanConfig.model_construct(  # checked as the frontier's own
            name=f"{config.name}: {first.client.label}, {first.batch} x {first.cohort}",
            identity=self.digest,
            mode=config.mode,
            budget=self._budget(first),
            seeds=config.seeds,
            gallery=config.gallery,
        )
        return Plan(
            keys=keys,
            data=Dealt(self.source, total, max(1, config.data.images // total), config.data.start),
            models=(self.model,),
            clients=(first.sender,),
            defenses=tuple(row.defense for row in rows),
            attacks=attackers if defended else attackers[:1],
            knows=known(config.knows),
            only=tuple(rules),
            perceptual=perceptual_of(config.lpips, spec(self.source)),
            again=partial(_audit_of, self.written, setting),
        )

    def _budget(self, row: FrontierRow) -> BudgetConfig:
        """Every row gets as many candidates: one costs a gradient for each local step of each client in it. Otherwise
        rows of more steps or clients would look like defences because the search was shorter."""
        budget = self.keys.budget
        if (gradients := budget.gradient_evaluations) is None:
            return budget
        scaled = max(gradients * row.steps // self.undefended.steps, row.steps)
        return budget.model_copy(update={"gradient_evaluations": scaled})

    def trained_task(self, data: UtilityData) -> Task:
        seed, model = self.keys.utility.seed, data.model
        return model.value.task(seed, spec(data.train), self.mode, model.label)  # type: ignore[no-any-return]

    def trainings(self) -> dict[str, FrontierRow]:
        """Each training once: its name, and a row of it."""
        found: dict[str, FrontierRow] = {}
        for row in self.rows:
            if row.train and self.utility is not None:
                found.setdefault(row.training, row)
        return found

    def training(self, row: FrontierRow) -> FederatedTraining:
        u = self.keys.utility
        return FederatedTraining(
            rounds=u.rounds,
            per_round=min(u.per_round, u.clients),
            client=row.client.value,
            defense=row.defense.value,
            server_lr=u.server_lr,
            evaluate_every=u.evaluate_every,
            seed=u.seed,
        )

    def contents(self) -> dict[str, str]:
        """What the trainings rest on beside the text, as it is now; each audit compares its own."""
        found = self.audits[self.undefended.setting].contents()
        if self.utility is not None:
            pairs = (("utility.train", self.utility.train), ("utility.test", self.utility.test))
            found |= {name: data_identity(source, []) for name, source in pairs}
        return found

    def attacked_task(self) -> Task:
        """The model as the server broadcasts it to the attacked client, with the first seed."""
        return self.audits[self.undefended.setting].broadcast(Key(0, 0, 0, 0, 0, 0)).task


def _audit_of(written: Mapping[str, Any], setting: str) -> Plan:
    return resolve_frontier(written).audits[setting]


def resolve_frontier(raw: Mapping[str, Any]) -> FrontierPlan:
    """The plan that the keys of a file describe; objects may stand where the file has names."""
    config = validated(FrontierConfig, dict(raw), "see `leakgauge frontier --example`")
    attack = resolve(ATTACKS, config.attack, "attack")
    require(not isinstance(config.model, list), "model", "is a list", "give one; each has a frontier of its own")
    hidden = "leaves out 'defense', which the adapted attacker has"
    require(Known.DEFENSE in known(config.knows), "knows", hidden, "add defense")
    rows, mode = _rows(config), Mode(config.mode)
    train, test = (_trained(getattr(config.utility, name), f"utility.{name}") for name in ("train", "test"))
    source = _attacked(config, test)
    model, data = model_of(config.model, "model", spec(source), mode), None
    if train is not None and test is not None:
        with blamed_on("utility.train"):
            data = UtilityData(model_of(config.model, "model", spec(train), mode), train, test)
    return FrontierPlan(keys=config, rows=rows, model=model, source=source, attack=attack, utility=data, written=raw)


def _rows(config: FrontierConfig) -> tuple[FrontierRow, ...]:
    usual, rows = resolve(CLIENTS, config.client, "client"), list[FrontierRow]()
    require(UNDEFENDED not in config.defenses, f"defenses.{UNDEFENDED}", "is always there", "leave it out")
    hint = "give what each client runs, and cohort: how many are aggregated"
    for family, strengths in {UNDEFENDED: [RowConfig(defense="none")], **config.defenses}.items():
        require(bool(strengths), f"defenses.{family}", "has no strength", "give at least one")
        for i, given in enumerate(strengths):
            place = f"defenses.{family}[{i}]"
            client = usual if given.client is None else resolve(CLIENTS, given.client, f"{place}.client")
            require(not client.value.aggregates, f"{place}.client", "aggregates by itself", hint)
            defense, batch = resolve_defense(given.defense, place), given.batch or config.data.batch
            rows.append(FrontierRow(family, i, defense, client, batch, given.cohort, given.train))
            with blamed_on(place):
                refuse_combination(rows[-1].sender.value, defense.value)
    return tuple(rows)


def _trained(given: SourceConfig | None, field: str) -> Source | None:
    if given is None:
        return None
    try:
        return _whole(source_of(given.source, given.options))
    except InputError as error:
        raise InputError(field, f"{error.field}: {error.problem}", error.hint) from error


def _attacked(config: FrontierConfig, test: Source | None) -> Source:
    """The plan's own source, else the test data as they are or with the options that the plan adds, else samples."""
    own, given = config.data.options, config.utility.test or SourceConfig(source="samples")
    if config.data.source is not None:
        return _whole(source_of(config.data.source, own, ("batch", "images", "start")))
    return test if test is not None and not own else _whole(source_of(given.source, given.options | own))


def _whole(source: Source | Parts) -> Source:
    problem = "is of named parts, of which no accuracy is known"
    require(isinstance(source, Source), "data.source", problem, "audit it, or give images or a table")
    return cast(Source, source)
