"""frontier.yaml → rows, the audits that measure what they leak, and the trainings that measure what they cost."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from leakgauge.clients import Protocol
from leakgauge.clients.client import refuse_combination
from leakgauge.data import Source, open_source
from leakgauge.data.source import spec
from leakgauge.defenses import Defense
from leakgauge.errors import InputError, require
from leakgauge.frontiers.config import RowConfig, parse, parse_row
from leakgauge.frontiers.rows import UNDEFENDED, Row
from leakgauge.registry import ATTACKS, CLIENTS, MODELS
from leakgauge.resolve import resolve, resolve_defense, split
from leakgauge.study.model_spec import ModelSpec, fitted, model_label
from leakgauge.study.plan import Key, Plan
from leakgauge.task import Mode, Task
from leakgauge.training.federated import FederatedTraining

NAIVE, ADAPTED = "naive", "adapted"


class FrontierPlan:
    """A resolved plan. Making one validates everything that can be known before anything runs.

    Raises:
        InputError: names the key and the hint.
    """

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.config = config = parse(raw)
        resolve(ATTACKS, config.attack, "attack")
        require(not isinstance(config.model, list), "model", "is a list", "give one; each has a frontier of its own")
        self.client = resolve(CLIENTS, config.client, "client")
        self.rows = self._rows()
        self.train = self._source(config.utility.train, "utility.train")
        self.test = self._source(config.utility.test, "utility.test")
        self.audits = self._audits()
        if config.utility.given:
            self._check_training()

    @cached_property
    def digest(self) -> str:
        """Identity of the plan; an output folder belongs to one."""
        return hashlib.sha256(json.dumps(self.raw, sort_keys=True, default=str).encode()).hexdigest()

    @property
    def undefended(self) -> Row:
        return self.rows[0]

    def _rows(self) -> tuple[Row, ...]:
        rows = [self._row(UNDEFENDED, 0, RowConfig(), "defenses")]
        for family, strengths in self.config.defenses.items():
            require(bool(strengths), f"defenses.{family}", "has no strength", "give at least one")
            require(family != UNDEFENDED, f"defenses.{family}", "is always there", "leave it out")
            for i, given in enumerate(strengths):
                field = f"defenses.{family}[{i}]"
                rows.append(self._row(family, i, parse_row(given, field), field))
        seen: dict[str, Row] = {}
        for row in rows:
            same = f"{row.setting} | {row.defense.label}"
            twice = f"is the same as {seen[same].family}[{seen[same].strength}]" if same in seen else ""
            require(same not in seen, f"defenses.{row.family}[{row.strength}]", twice, "give each once")
            seen[same] = row
        return tuple(rows)

    def _row(self, family: str, strength: int, given: RowConfig, field: str) -> Row:
        client, raw_client = self.client, self.config.client
        if given.client is not None:
            client, raw_client = resolve(CLIENTS, given.client, f"{field}.client"), given.client
        require(
            not hasattr(client.value, "cohort"),
            f"{field}.client",
            "aggregates by itself",
            "give what each client runs, and cohort: how many are aggregated",
        )
        defense = resolve_defense(given.defense, field)
        row = Row(
            family=family,
            strength=strength,
            defense=defense,
            raw_defense=given.defense,
            client=client,
            raw_client=raw_client,
            batch=given.batch or self.config.data.batch,
            cohort=given.cohort,
            train=given.train,
        )
        if row.cohort > 1:
            raw = {"secure-aggregation": {"cohort": row.cohort, "client": raw_client}}
            try:
                refuse_combination(resolve(CLIENTS, raw, field).value, defense.value)
            except InputError as error:
                raise InputError(field, error.problem, error.hint) from error
        return row

    def _source(self, given: Any, field: str) -> Source | None:
        if given is None:
            return None
        options = {"source": given} if isinstance(given, str) else given
        fits = isinstance(options, dict) and "source" in options
        require(fits, field, f"cannot read {given!r}", "write parquet:PATH or {source: …, size: 32}")
        try:
            return open_source(options["source"], **{k: v for k, v in options.items() if k != "source"})
        except InputError as error:
            raise InputError(field, f"{error.field} {error.problem}", error.hint) from error

    def _attacked(self) -> dict[str, Any]:
        """``source``, ``size`` and other options of the data that are attacked."""
        data, test = self.config.data, self.config.utility.test
        options = dict(data.model_extra or {})
        if data.size is not None:
            options["size"] = data.size
        if data.source is not None:
            return {"source": data.source} | options
        if test is not None:
            return ({"source": test} if isinstance(test, str) else dict(test)) | options
        return {"source": "samples"} | options

    def _audits(self) -> dict[str, tuple[Plan, list[Row]]]:
        """Setting → the audit plan that attacks its rows."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.setting, []).append(row)
        return {setting: (self._audit(rows), rows) for setting, rows in groups.items()}

    def _audit(self, rows: list[Row]) -> Plan:
        config, first = self.config, rows[0]
        total = first.batch * first.cohort
        client = first.raw_client
        if first.cohort > 1:
            client = {"secure-aggregation": {"cohort": first.cohort, "client": client}}
        plain = [r.defense.label for r in rows if not r.defended]
        defended = [r.defense.label for r in rows if r.defended]
        # Without a defence the two attackers are one.
        only = [{"defense": plain, "attack": NAIVE}] if plain else []
        only += [{"defense": defended, "attack": [NAIVE, ADAPTED]}] if defended else []
        attackers = (NAIVE, ADAPTED) if defended else (NAIVE,)
        raw = {
            "name": f"{config.name}: {first.client.label}, {first.batch} x {first.cohort}",
            "model": config.model,
            "data": {
                **self._attacked(),
                "batch": total,
                "batches": max(1, config.data.images // total),
                "start": config.data.start,
            },
            "mode": config.mode,
            "clients": [client],
            "defenses": [r.raw_defense for r in rows],
            "knows": config.knows,
            "attacks": [{name: {"attack": config.attack}} for name in attackers],
            "only": only,
            "budget": self._budget(first),
            "seeds": config.seeds,
            "gallery": config.gallery,
            "lpips": config.lpips,
        }
        try:
            return Plan(raw)
        except InputError as error:
            raise _at_row(error, rows) from error

    def _budget(self, row: Row) -> dict[str, Any]:
        """Every row gets as many candidates: one costs a gradient for each local step of each client in it. Otherwise
        rows of more steps or clients would look like defences because the search was shorter."""
        budget = self.config.budget.model_dump(exclude_none=True)
        usual = self.undefended
        if (gradients := budget.get("gradient_evaluations")) is not None:
            budget["gradient_evaluations"] = max(gradients * row.steps // usual.steps, row.steps)
        return budget

    def model_for(self, source: Source) -> Task:
        """The plan's model with its first weights, fitted to a source."""
        name, arguments = split(self.config.model, "model")
        weights = arguments.pop("weights", None)
        entry, data = MODELS[name], spec(source)
        full = fitted(entry.parameters, data) | arguments
        made = ModelSpec(entry.build, name, full, weights, "model")
        return made.task(self.config.utility.seed, data, Mode(self.config.mode), model_label(name, arguments, weights))

    def trainings(self) -> dict[str, Row]:
        """Each training once: its name, and a row of it."""
        if not self.config.utility.given:
            return {}
        found: dict[str, Row] = {}
        for row in self.rows:
            if row.train:
                found.setdefault(row.training, row)
        return found

    def training(self, client: Protocol, defense: Defense) -> FederatedTraining:
        """The simulation of a row."""
        u = self.config.utility
        return FederatedTraining(
            rounds=u.rounds,
            per_round=min(u.per_round, u.clients),
            client=client,
            defense=defense,
            server_lr=u.server_lr,
            evaluate_every=u.evaluate_every,
            seed=u.seed,
        )

    def _check_training(self) -> None:
        assert self.train is not None
        assert self.test is not None
        for name in ("shape", "classes"):
            ours, theirs = getattr(self.train, name), getattr(self.test, name)
            require(ours == theirs, "utility.test", f"has {name} {theirs}, train has {ours}", "give data that agree")
        u = self.config.utility
        kept = min(u.examples or len(self.train), len(self.train))
        few = f"are {u.clients} for {kept} training examples"
        require(u.clients <= kept, "utility.clients", few, "give each at least one example")
        task = self.model_for(self.train)
        for row in self.trainings().values():
            try:
                row.defense.value.on_task(task)
            except InputError as error:
                where = "utility" if row.family == UNDEFENDED else f"defenses.{row.family}[{row.strength}]"
                raise InputError(where, error.problem, error.hint) from error

    def attacked_task(self) -> Task:
        """The model as the server broadcasts it to the attacked client, with the first seed."""
        plan, _ = self.audits[self.undefended.setting]
        return plan.broadcast(Key(0, 0, 0, 0, 0, 0)).task


def _at_row(error: InputError, rows: list[Row]) -> InputError:
    """The error with the place in this plan instead of the audit's."""
    found = re.match(r"defenses\[(\d+)\]", error.field)
    if not found:
        return error
    row = rows[int(found[1])]
    return InputError(f"defenses.{row.family}[{row.strength}]", error.problem, error.hint)


def overlaid(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` with some keys changed, mappings merged."""
    merged = dict(raw)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = overlaid(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
