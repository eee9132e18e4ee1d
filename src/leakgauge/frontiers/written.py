"""A frontier plan in the words of a file, which are those of audit plans, or with objects where words stand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from leakgauge.clients.client import refuse_combination
from leakgauge.data.source import Source, spec
from leakgauge.errors import InputError, require
from leakgauge.frontiers.plan import UNDEFENDED, FrontierPlan, FrontierRow, Tolerance, Utility, sent_by
from leakgauge.observation import Known
from leakgauge.registry import ATTACKS, CLIENTS
from leakgauge.resolve import Named, resolve, resolve_defense
from leakgauge.study.grammar import BudgetConfig, Strict, validated
from leakgauge.study.model_spec import model_of
from leakgauge.study.written import budget_of, known, perceptual_of, source_of
from leakgauge.task import Mode


class AttackedConfig(BaseModel):
    """The examples that are attacked. Other keys go to the source, e.g. ``split``.

    Attributes:
        source: as in an audit plan; the test data of `utility` where these are given, else ``samples``.
        size: side of the pictures; where the source is that of `utility`, its own size.
        batch: examples of the attacked client; a row may change it.
        images: how many examples are attacked in each row, in batches as the row has them.
        start: the first of them.
    """

    model_config = ConfigDict(extra="allow")

    source: Any = None  # or from Python a `Source`
    size: int | None = Field(default=None, ge=1)
    batch: int = Field(default=1, ge=1)
    images: int = Field(default=8, ge=1)
    start: int = Field(default=0, ge=0)

    @property
    def options(self) -> dict[str, Any]:
        """Keywords of the source."""
        return dict(self.model_extra or {}) | ({} if self.size is None else {"size": self.size})


class UtilityConfig(Strict):
    """The training in simulation. Without `train` and `test` accuracy is not measured.

    Attributes:
        train, test: a source as under ``data`` of an audit plan, or ``{source: …, size: 32}``.
        clients, alpha: the training data are dealt to so many by `dirichlet_partition`.
        per_round, rounds, server_lr, evaluate_every: see `FederatedTraining`.
        examples, test_examples: use only so many of the first.
        seed: of partition, weights and draws.
    """

    train: Any = None
    test: Any = None
    clients: int = Field(default=100, ge=1)
    alpha: float = Field(default=0.5, gt=0)
    per_round: int = Field(default=10, ge=1)
    rounds: int = Field(default=100, ge=1)
    server_lr: float = Field(default=1.0, gt=0)
    evaluate_every: int = Field(default=10, ge=1)
    examples: int | None = Field(default=None, ge=1)
    test_examples: int | None = Field(default=None, ge=1)
    seed: int = 0


class ToleranceConfig(Strict):
    """What the recommendation calls good enough.

    Attributes:
        accuracy: loss against the undefended training, as a share (0.02 is two points).
        identified: share of the pictures that the stronger attacker may identify.
    """

    accuracy: float = Field(default=0.02, ge=0, lt=1)
    identified: float = Field(default=0.05, ge=0, lt=1)


class FrontierConfig(Strict):
    """A frontier plan as written.

    Attributes:
        client: what every client runs, in training and when it is attacked; a row may change it.
        defenses: family → its strengths, from weak to strong. A strength is a defence as in an audit plan, or a
            mapping of `ROW_KEYS`. The undefended row is always there.
        delta, accountant: of the rows that are differentially private.
    """

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
    defenses: dict[str, list[Any]] = Field(min_length=1)
    utility: UtilityConfig = UtilityConfig()
    delta: float = Field(default=1e-5, gt=0, lt=1)
    accountant: Literal["rdp", "prv"] = "rdp"
    tolerance: ToleranceConfig = ToleranceConfig()


ROW_KEYS = ("defense", "client", "batch", "cohort", "train")
"""What one strength may say: the defence, the clients' protocol, the examples of the attacked client, how many clients
are aggregated before the server sees anything, and ``train: false`` for a defence too slow to train with."""


class RowConfig(Strict):
    """One strength in long form."""

    defense: Any = "none"
    client: Any = None
    batch: int | None = Field(default=None, ge=1)
    cohort: int = Field(default=1, ge=1)
    train: bool = True


EXAMPLE = "see `leakgauge frontier --example`"


def parse(raw: dict[str, Any]) -> FrontierConfig:
    """Raises `InputError` that names the key and the hint."""
    return validated(FrontierConfig, raw, EXAMPLE)


def parse_row(raw: Any, field: str) -> RowConfig:
    """A strength, short or long."""
    if isinstance(raw, dict) and raw and set(raw) <= set(ROW_KEYS):
        return validated(RowConfig, raw, EXAMPLE, f"{field}.")
    return RowConfig(defense=raw)


def resolve_frontier(raw: Mapping[str, Any]) -> FrontierPlan:
    """The plan that the keys of a file describe; objects may stand where the file has names.

    Raises:
        InputError: names the key and the hint.
    """
    config = parse(dict(raw))
    attack = resolve(ATTACKS, config.attack, "attack")
    require(not isinstance(config.model, list), "model", "is a list", "give one; each has a frontier of its own")
    knows = known(config.knows)
    hidden = "leaves out 'defense', which the adapted attacker has"
    require(Known.DEFENSE in knows, "knows", hidden, "add defense")
    client, mode = resolve(CLIENTS, config.client, "client"), Mode(config.mode)
    rows = _rows(config, client)
    train, test = (_trained(getattr(config.utility, name), f"utility.{name}") for name in ("train", "test"))
    source = _attacked(config, test)
    utility = None
    if train is not None and test is not None:
        given = {name: value for name, value in config.utility if name not in ("train", "test")}
        fitted = model_of(config.model, "model", spec(train), mode)
        utility = Utility(model=fitted, train=train, test=test, **given)
    return FrontierPlan(
        name=config.name,
        rows=rows,
        model=model_of(config.model, "model", spec(source), mode),
        source=source,
        images=config.data.images,
        start=config.data.start,
        mode=mode,
        client=client,
        attack=attack,
        knows=knows,
        budget=budget_of(config.budget),
        trial_seconds=config.budget.trial_seconds,
        seeds=tuple(config.seeds),
        gallery=config.gallery,
        perceptual=perceptual_of(config.lpips, spec(source)),
        utility=utility,
        delta=config.delta,
        accountant=config.accountant,
        tolerance=Tolerance(**config.tolerance.model_dump()),
        identity=config.identity,
        written=raw,
        again=partial(resolve_frontier, raw),
    )


def _rows(config: FrontierConfig, client: Named) -> tuple[FrontierRow, ...]:
    rows = [_row(config, client, UNDEFENDED, 0, RowConfig())]
    for family, strengths in config.defenses.items():
        require(bool(strengths), f"defenses.{family}", "has no strength", "give at least one")
        require(family != UNDEFENDED, f"defenses.{family}", "is always there", "leave it out")
        for i, given in enumerate(strengths):
            rows.append(_row(config, client, family, i, parse_row(given, f"defenses.{family}[{i}]")))
    return tuple(rows)


def _row(config: FrontierConfig, client: Named, family: str, strength: int, given: RowConfig) -> FrontierRow:
    place = f"defenses.{family}[{strength}]"
    if given.client is not None:
        client = resolve(CLIENTS, given.client, f"{place}.client")
    aggregates = client.value.aggregates
    hint = "give what each client runs, and cohort: how many are aggregated"
    require(not aggregates, f"{place}.client", "aggregates by itself", hint)
    row = FrontierRow(
        family=family,
        strength=strength,
        defense=resolve_defense(given.defense, place),
        client=client,
        batch=given.batch or config.data.batch,
        cohort=given.cohort,
        train=given.train,
    )
    if row.cohort > 1:
        try:
            refuse_combination(sent_by(row).value, row.defense.value)
        except InputError as error:
            raise InputError(place, error.problem, error.hint) from error
    return row


def _trained(given: Any, field: str) -> Source | None:
    """A source of the training's, as an audit plan has it under ``data``; `None` where there is none."""
    if given is None:
        return None
    options = given if isinstance(given, dict) else {"source": given}
    fits = isinstance(options.get("source"), str | Source)
    require(fits, field, f"cannot read {given!r}", "write parquet:PATH or {source: …, size: 32}")
    try:
        return _of(options)
    except InputError as error:
        raise InputError(field, f"{error.field} {error.problem}", error.hint) from error


def _of(options: Mapping[str, Any]) -> Source:
    return source_of(options["source"], {key: value for key, value in options.items() if key != "source"})


def _attacked(config: FrontierConfig, test: Source | None) -> Source:
    """The plan's own source, else the test data as they are or with the options that the plan adds, else samples."""
    own = config.data.options
    if config.data.source is not None:
        return source_of(config.data.source, own, ("batch", "images", "start"))
    if test is not None and not own:
        return test
    given = config.utility.test if test is not None else "samples"
    return _of((given if isinstance(given, dict) else {"source": given}) | own)


def overlaid(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` with some keys changed, mappings merged."""
    merged = dict(raw)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = overlaid(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
