"""audit.yaml → Plan: read, validated and resolved before anything runs."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import itertools
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from torch import nn

from leakgauge.audit.resolve import Named, resolve, resolve_defense, split
from leakgauge.compute import Budget
from leakgauge.data import Source, open_source
from leakgauge.data.source import check, client_batches, spec
from leakgauge.errors import InputError, did_you_mean, require
from leakgauge.metrics.lpips import LPIPS
from leakgauge.metrics.metric import Metric
from leakgauge.models.weights import load_weights
from leakgauge.registry import ATTACKS, CLIENTS, MODELS
from leakgauge.task import DataSpec, Mode, Task
from leakgauge.update import Update

KNOWABLE = ("labels", "example_count", "local_training", "buffers", "defense", "draws", "public_data")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DataConfig(BaseModel):
    """Where the clients' data come from, and how it is dealt out. Other keys go to the source, e.g. ``split``."""

    model_config = ConfigDict(extra="allow")

    source: str = "samples"
    size: int | None = Field(default=None, ge=1)
    batch: int = Field(default=1, ge=1)
    batches: int = Field(default=8, ge=1)
    start: int = Field(default=0, ge=0)


class IdentifiedGate(_Strict):
    max: float = Field(ge=0, le=1)


class PsnrGate(_Strict):
    worst: float
    share: float = Field(default=0.05, gt=0, lt=1)


class LabelGate(_Strict):
    max: float = Field(ge=0, le=1)


class GateConfig(_Strict):
    """What must hold, with 95 % confidence, for the audit to pass."""

    identified: IdentifiedGate | None = None
    psnr: PsnrGate | None = None
    label_f1: LabelGate | None = None


class BudgetConfig(_Strict):
    gradient_evaluations: int | None = Field(default=None, ge=1)
    seconds: float | None = Field(default=None, gt=0)


class OnlyRule(_Strict):
    """Keeps the trials that fit every key given; names are those of the plan's lists."""

    model: str | list[str] | None = None
    client: str | list[str] | None = None
    defense: str | list[str] | None = None
    attack: str | list[str] | None = None
    batches: int | None = Field(default=None, ge=1)

    def names(self, key: str) -> list[str] | None:
        """What the rule asks of `key`; `None` for anything."""
        wanted = getattr(self, key)
        return [wanted] if isinstance(wanted, str) else wanted


class PlanConfig(_Strict):
    """The grammar of a plan, as written. See *choose* in the docs."""

    name: str = "audit"
    model: Any = "lenet"
    data: DataConfig = DataConfig()
    mode: Literal["eval", "train"] = "eval"
    clients: list[Any] = Field(default=["fedsgd"], min_length=1)
    defenses: list[Any] = Field(default=["none"], min_length=1)
    server: Any = "honest"
    knows: list[str] = ["example_count", "local_training", "defense"]
    attacks: list[Any] = Field(default=["auto"], min_length=1)
    only: list[OnlyRule] | None = None
    budget: BudgetConfig = BudgetConfig()
    seeds: list[int] = Field(default=[0], min_length=1)
    gallery: int = Field(default=100, ge=1)
    lpips: str | None = None
    update: str | None = None
    gate: GateConfig | None = None

    @field_validator("model")
    @classmethod
    def _some_model(cls, value: Any) -> Any:
        if value in (None, [], {}):
            raise ValueError("names no model")
        return value


def read_yaml(path: Path) -> dict[str, Any]:
    """A plan file as a dictionary.

    Raises:
        InputError: missing, not YAML, or not a mapping.
    """
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"plan {path}", f"cannot be read ({error.strerror})", "give the path of a YAML file"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(
            f"plan {path}", f"is not YAML ({' '.join(str(error).split())})", "see `leakgauge audit --example`"
        ) from error
    require(isinstance(loaded, dict), f"plan {path}", "is not a mapping of keys", "see `leakgauge audit --example`")
    return dict(loaded)


def _config(raw: dict[str, Any]) -> PlanConfig:
    try:
        return PlanConfig.model_validate(raw)
    except ValidationError as error:
        errors = error.errors()
        first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
        path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"]).lstrip(".") or "plan"
        if first["type"] == "extra_forbidden":
            key, known = str(first["loc"][-1]), _keys_beside(first["loc"])
            raise InputError(path, f"unknown key '{key}'", did_you_mean(key, known)) from error
        message = first["msg"].removeprefix("Value error, ")
        raise InputError(path, f"is {first.get('input')!r}", message[0].lower() + message[1:]) from error


def _keys_beside(location: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = PlanConfig
    for part in location[:-1]:
        if isinstance(part, str):
            model = _model_in(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside ``Model | None`` or ``list[Model]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for a in get_args(annotation) if (found := _model_in(a))), None)


@dataclass(frozen=True)
class Key:
    """Which trial: indices into the plan's lists. `control` marks one added to show that an attack has power."""

    model: int
    client: int
    defense: int
    attack: int
    seed: int
    batch: int
    control: bool = False


class Plan:
    """A resolved plan. Making one validates everything that can be known before running.

    Raises:
        InputError: names the key and the mend.
    """

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.config = config = _config(raw)
        self.mode = Mode(config.mode)
        self.budget = Budget(config.budget.gradient_evaluations, config.budget.seconds)
        for i, field in enumerate(config.knows):
            require(field in KNOWABLE, f"knows[{i}]", f"unknown field '{field}'", did_you_mean(field, KNOWABLE))
        server, _ = split(config.server, "server")
        require(server == "honest", "server", f"unknown name '{server}'", "known: honest")
        self.source: Source = self._source()
        self.spec: DataSpec = spec(self.source)
        models = config.model if isinstance(config.model, list) else [config.model]
        self.models = [self._model(m, f"model[{i}]" if len(models) > 1 else "model") for i, m in enumerate(models)]
        self.clients = [resolve(CLIENTS, c, f"clients[{i}]") for i, c in enumerate(config.clients)]
        self.defenses = [resolve_defense(d, f"defenses[{i}]") for i, d in enumerate(config.defenses)]
        self.attacks = [resolve(ATTACKS, a, f"attacks[{i}]") for i, a in enumerate(config.attacks)]
        self.batches = self._batches()
        check(self.source, [i for batch in self.batches for i in batch])
        self.perceptual = self._perceptual()
        self._check_only()
        self._check_update()

    @cached_property
    def digest(self) -> str:
        """Identity of the plan; an output folder belongs to one."""
        return hashlib.sha256(json.dumps(self.raw, sort_keys=True, default=str).encode()).hexdigest()

    def _source(self) -> Source:
        data = self.config.data
        options = dict(data.model_extra or {})
        if data.size is not None:
            options["size"] = data.size
        own = [name for name in DataConfig.model_fields if name not in ("source", "size")]
        for key in options:
            near = difflib.get_close_matches(key, own, n=1, cutoff=0.6)
            require(not near, f"data.{key}", f"unknown key '{key}'", f"did you mean '{near[0] if near else ''}'?")
        try:
            return open_source(data.source, **options)
        except InputError as error:
            raise error if error.field.startswith("data") else error.within("data") from error

    def _batches(self) -> list[list[int]]:

        return client_batches(self.source, self.config.data.batch, self.config.data.batches, self.config.data.start)

    def _model(self, given: Any, field: str) -> Named:
        name, arguments = split(given, field)
        weights = arguments.pop("weights", None)
        try:
            entry = MODELS[name]
        except InputError as error:
            raise InputError(field, error.problem, error.mend) from error
        shown = resolve_label(name, arguments, weights)
        defaults = {"classes": self.spec.classes, "shape": self.spec.shape}
        if self.spec.is_image:
            defaults |= {"channels": self.spec.shape[0], "size": self.spec.shape[-1]}
        accepted = inspect.signature(entry.build).parameters
        full = {k: v for k, v in defaults.items() if k in accepted} | arguments
        resolver = Resolved(entry.build, name, full, weights, field)
        resolver.task(0, self.spec, self.mode, shown)
        return Named(shown, resolver)

    def _perceptual(self) -> Metric | None:
        """LPIPS from a weights file, or through torchmetrics; `None` when not asked for."""
        weights = self.config.lpips
        if weights is None:
            return None
        if weights == "torchmetrics":
            return LPIPS.through_torchmetrics(data_range=self.spec.range, low=self.spec.low)
        return LPIPS(weights=weights, data_range=self.spec.range, low=self.spec.low)

    def _check_update(self) -> None:
        if self.config.update is None:
            return
        one = [
            ("clients", self.clients),
            ("defenses", self.defenses),
            ("model", self.models),
            ("seeds", self.config.seeds),
        ]
        for field, values in [*one, ("data.batches", self.batches)]:
            require(
                len(values) == 1, field, f"has {len(values)} entries, and an update file is one client's", "give one"
            )
        Update.load(self.config.update).check(self.task(self.trials()[0]).parameters)

    def _check_only(self) -> None:
        known = {"model": self.models, "client": self.clients, "defense": self.defenses, "attack": self.attacks}
        for i, rule in enumerate(self.config.only or []):
            for key, parts in known.items():
                labels = {n.label for n in parts} | {n.label.split("(")[0] for n in parts}
                for name in rule.names(key) or []:
                    require(
                        name in labels, f"only[{i}].{key}", f"'{name}' is not in the plan", did_you_mean(name, labels)
                    )

    def _kept(self, model: int, client: int, defense: int, attack: int) -> int:
        """How many batches of a combination the plan asks for."""
        if self.config.only is None:
            return len(self.batches)
        named = {
            "model": self.models[model].label,
            "client": self.clients[client].label,
            "defense": self.defenses[defense].label,
            "attack": self.attacks[attack].label,
        }

        def fits(rule: OnlyRule, key: str) -> bool:
            names = rule.names(key)
            return names is None or named[key] in names or named[key].split("(")[0] in names

        asked = [rule.batches or len(self.batches) for rule in self.config.only if all(fits(rule, k) for k in named)]
        return min(max(asked, default=0), len(self.batches))

    def task(self, key: Key) -> Task:
        """The undefended task of a trial: its weights depend on the seed alone."""
        resolver: Resolved = self.models[key.model].value
        return resolver.task(self.config.seeds[key.seed], self.spec, self.mode, self.models[key.model].label)

    def trials(self) -> list[Key]:
        """All trials, the controls that are not among them included."""
        sizes = [range(len(x)) for x in (self.models, self.clients, self.defenses, self.attacks)]
        kept = {combination: count for combination in itertools.product(*sizes) if (count := self._kept(*combination))}
        require(bool(kept), "only", "keeps no trial", "loosen it")
        seeds = range(len(self.config.seeds))
        keys = [Key(*combination, s, b) for combination, count in kept.items() for s in seeds for b in range(count)]
        return keys + self._controls(set(kept))

    def _controls(self, kept: set[tuple[int, ...]]) -> list[Key]:
        """Two known-leaky trials a model and attack: FedSGD, no defence, one example; none where the plan has them."""
        pairs = sorted({(m, a) for m, _, _, a in kept})
        clients, defenses = [c.label for c in self.clients], [d.label for d in self.defenses]
        alone = self.config.data.batch == 1 and self.config.update is None
        if alone and "fedsgd" in clients and "none" in defenses:
            plain = clients.index("fedsgd"), defenses.index("none")
            pairs = [(m, a) for m, a in pairs if (m, *plain, a) not in kept]
        batches = range(min(2, len(self.batches)))
        return [Key(m, -1, -1, a, 0, b, control=True) for m, a in pairs for b in batches]


def resolve_label(name: str, arguments: dict[str, Any], weights: str | None) -> str:
    """How reports call a model."""
    shown = [f"{k}={v}" for k, v in arguments.items()] + ([f"weights={Path(weights).name}"] if weights else [])
    return f"{name}({', '.join(shown)})" if shown else name


@dataclass(frozen=True)
class Resolved:
    """A model's constructor with its arguments, and where its weights come from."""

    build: Any
    name: str
    arguments: dict[str, Any]
    weights: str | None
    field: str

    def module(self, seed: int) -> nn.Module:
        """The model; one without weights draws them from `seed`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = resolve(MODELS, {self.name: self.arguments}, self.field).value
        require(
            isinstance(module, nn.Module),
            self.field,
            f"'{self.name}' gives a {type(module).__name__}",
            "return a torch.nn.Module",
        )
        if self.weights is not None:
            load_weights(module, Path(self.weights), self.field)
        return module  # type: ignore[no-any-return]

    def task(self, seed: int, data: DataSpec, mode: Mode, label: str) -> Task:
        """Raises `InputError` when model and data do not fit."""
        try:
            return Task.of(self.module(seed), data, mode=mode, name=label)
        except InputError as error:
            raise InputError(error.field.replace("model", self.field, 1), error.problem, error.mend) from error
