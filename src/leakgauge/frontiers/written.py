"""A frontier plan in the words of a file, or with objects where the words stand → a `FrontierPlan`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from leakgauge.clients import SecureAggregation
from leakgauge.clients.client import refuse_combination
from leakgauge.data.source import Source, spec
from leakgauge.errors import InputError, require
from leakgauge.frontiers.grammar import FrontierConfig, RowConfig, parse, parse_row
from leakgauge.frontiers.plan import FrontierPlan, Tolerance, Utility, sent_by
from leakgauge.frontiers.rows import UNDEFENDED, FrontierRow
from leakgauge.observation import Known
from leakgauge.registry import ATTACKS, CLIENTS
from leakgauge.resolve import Named, resolve, resolve_defense
from leakgauge.study.model_spec import model_of
from leakgauge.study.written import budget_of, known, perceptual_of, source_of
from leakgauge.task import Mode


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
    aggregates = isinstance(client.value, SecureAggregation)
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
