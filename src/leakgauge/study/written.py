"""A plan in the words of a file, or with objects where the words stand → a `Plan`: the only way from names to parts."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from leakgauge.compute import Budget
from leakgauge.data import Source, open_source
from leakgauge.data.source import spec
from leakgauge.errors import InputError, did_you_mean, require
from leakgauge.metrics.lpips import LPIPS
from leakgauge.metrics.metric import Metric
from leakgauge.observation import Known
from leakgauge.registry import ATTACKS, CLIENTS, DATA, SERVERS
from leakgauge.resolve import Named, resolve, resolve_defense
from leakgauge.study.dealt import Dealt, Selection
from leakgauge.study.grammar import BudgetConfig, DataConfig, OnlyRule, parse
from leakgauge.study.model_spec import loss_of, model_of
from leakgauge.study.plan import Plan, with_read
from leakgauge.task import DataSpec, Mode

OWN = [name for name in DataConfig.model_fields if name not in ("source", "size")]
"""Keys under ``data`` that are not the source's."""


def resolve_plan(raw: Mapping[str, Any]) -> Plan:
    """The plan that the keys of a file describe; objects may stand where the file has names.

    Raises:
        InputError: names the key and the hint.
    """
    config = parse(dict(raw))
    knows = known(config.knows)
    server = resolve(SERVERS, config.server, "server")
    source = source_of(config.data.source, config.data.options, OWN)
    data, mode, loss = spec(source), Mode(config.mode), loss_of(config.loss)
    several = config.model if isinstance(config.model, list) else [config.model]
    models = [
        model_of(m, f"model[{i}]" if len(several) > 1 else "model", data, mode, loss) for i, m in enumerate(several)
    ]
    clients = [resolve(CLIENTS, c, f"clients[{i}]") for i, c in enumerate(config.clients)]
    defenses = [resolve_defense(d, f"defenses[{i}]") for i, d in enumerate(config.defenses)]
    attacks = with_read(server, [resolve(ATTACKS, a, f"attacks[{i}]") for i, a in enumerate(config.attacks)])
    parts = {"model": models, "client": clients, "defense": defenses, "attack": attacks}
    called = config.data.source if isinstance(config.data.source, str) else ""
    dealt = config.data
    return Plan(
        name=config.name,
        data=Dealt(source, dealt.batch, dealt.batches, dealt.start, called, dealt.size),
        models=tuple(models),
        mode=mode,
        clients=tuple(clients),
        defenses=tuple(defenses),
        attacks=tuple(attacks),
        server=server,
        knows=knows,
        only=None if config.only is None else tuple(_rule(r, i, parts) for i, r in enumerate(config.only)),
        budget=budget_of(config.budget),
        trial_seconds=config.budget.trial_seconds,
        seeds=tuple(config.seeds),
        gallery=config.gallery,
        perceptual=perceptual_of(config.lpips, data),
        update=config.update,
        gate=config.gate,
        identity=config.identity,
        written=raw,
        again=partial(resolve_plan, raw),
    )


def known(names: Sequence[str]) -> tuple[Known, ...]:
    """What attackers are given. Raises `InputError` for a field that there is not."""
    fields = [k.value for k in Known]
    for i, name in enumerate(names):
        require(name in fields, f"knows[{i}]", f"unknown field '{name}'", did_you_mean(name, fields))
    return tuple(map(Known, names))


def budget_of(config: BudgetConfig) -> Budget:
    return Budget(config.gradient_evaluations, config.seconds)


def _rule(rule: OnlyRule, number: int, parts: Mapping[str, Sequence[Named]]) -> Selection:
    """Names of labels, or of parts without their parameters, to places in the plan's lists."""

    def places(key: str) -> frozenset[int] | None:
        if (names := rule.names(key)) is None:
            return None
        there = {name for named in parts[key] for name in (named.label, named.name)}
        for name in names:
            require(name in there, f"only[{number}].{key}", f"'{name}' is not in the plan", did_you_mean(name, there))
        return frozenset(i for i, named in enumerate(parts[key]) if {named.label, named.name} & set(names))

    return Selection(places("model"), places("client"), places("defense"), places("attack"), rule.batches)


def source_of(source: Any, options: Mapping[str, Any], own: Collection[str] = ()) -> Source:
    """The source that a plan names, or that it is given.

    Args:
        options: keywords of its constructor.
        own: keys that the plan itself has beside them, for a hint where one is misspelt.

    Raises:
        InputError: names the key.
    """
    kind = source.partition(":")[0] if isinstance(source, str) else ""
    taken = next((entry.parameters for entry in DATA if entry.name == kind), {})
    for key in (key for key in options if key not in taken):
        near = difflib.get_close_matches(key, own, n=1, cutoff=0.6)
        require(not near, f"data.{key}", f"unknown key '{key}'", f"did you mean '{near[0] if near else ''}'?")
    if isinstance(source, Source):
        require(not options, f"data.{next(iter(options), '')}", "is for a source that the plan names", "leave it out")
        return source
    try:
        return open_source(source, **options)
    except InputError as error:
        raise error if error.field.startswith("data") else error.within("data") from error


def perceptual_of(weights: str | None, data: DataSpec) -> Metric | None:
    """LPIPS from a weights file, or through torchmetrics; `None` when not asked for."""
    if weights is None:
        return None
    if weights == "torchmetrics":
        return LPIPS.through_torchmetrics(data_range=data.range, low=data.low)
    return LPIPS(weights=weights, data_range=data.range, low=data.low)
