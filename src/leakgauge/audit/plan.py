"""audit.yaml → Plan: read, validated and resolved before anything runs."""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from torch import nn

from leakgauge.audit.resolve import Named, resolve, resolve_defense, split
from leakgauge.compute import Budget
from leakgauge.data import Source, open_source
from leakgauge.data.source import client_batches, spec
from leakgauge.errors import InputError, did_you_mean, require
from leakgauge.models.weights import load_weights
from leakgauge.registry import ATTACKS, CLIENTS, MODELS
from leakgauge.task import DataSpec, Mode, Task

KNOWABLE = ("labels", "example_count", "local_training", "buffers", "defense", "draws", "public_data")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DataConfig(_Strict):
    """Where the clients' data come from, and how it is dealt out."""

    source: str = "samples"
    size: int | None = Field(default=None, ge=1)
    batch: int = Field(default=1, ge=1)
    batches: int = Field(default=8, ge=1)
    start: int = Field(default=0, ge=0)
    options: dict[str, Any] = {}


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
    only: list[dict[str, str | list[str]]] | None = None
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
        first = error.errors()[0]
        path = ".".join(str(p) for p in first["loc"]) or "plan"
        if first["type"] == "extra_forbidden":
            key, known = str(first["loc"][-1]), _keys_beside(first["loc"])
            raise InputError(path, f"unknown key '{key}'", did_you_mean(key, known)) from error
        message = first["msg"].removeprefix("Value error, ")
        raise InputError(path, f"is {first.get('input')!r}", message[0].lower() + message[1:]) from error


def _keys_beside(location: tuple[int | str, ...]) -> list[str]:
    model: Any = PlanConfig
    for part in location[:-1]:
        annotation = model.model_fields[str(part)].annotation
        model = next(
            a
            for a in (annotation, *getattr(annotation, "__args__", ()))
            if isinstance(a, type) and issubclass(a, BaseModel)
        )
    return list(model.model_fields)


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
        self._check_only()

    @cached_property
    def digest(self) -> str:
        """Identity of the plan; an output folder belongs to one."""
        return hashlib.sha256(json.dumps(self.raw, sort_keys=True, default=str).encode()).hexdigest()

    def _source(self) -> Source:
        data = self.config.data
        options = dict(data.options)
        if data.size is not None:
            options["size"] = data.size
        try:
            return open_source(data.source, **options)
        except InputError as error:
            raise (
                error
                if error.field.startswith("data")
                else InputError(f"data.{error.field}", error.problem, error.mend)
            ) from error

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

    def _check_only(self) -> None:
        known = {"model": self.models, "client": self.clients, "defense": self.defenses, "attack": self.attacks}
        for i, rule in enumerate(self.config.only or []):
            for key, wanted in rule.items():
                require(key in known, f"only[{i}]", f"unknown key '{key}'", did_you_mean(key, known))
                labels = {n.label for n in known[key]} | {n.label.split("(")[0] for n in known[key]}
                for name in [wanted] if isinstance(wanted, str) else wanted:
                    require(
                        name in labels, f"only[{i}].{key}", f"'{name}' is not in the plan", did_you_mean(name, labels)
                    )

    def _kept(self, model: int, client: int, defense: int, attack: int) -> bool:
        if self.config.only is None:
            return True
        named = {
            "model": self.models[model].label,
            "client": self.clients[client].label,
            "defense": self.defenses[defense].label,
            "attack": self.attacks[attack].label,
        }

        def fits(key: str, wanted: str | list[str]) -> bool:
            names = [wanted] if isinstance(wanted, str) else wanted
            return any(n in (named[key], named[key].split("(")[0]) for n in names)

        return any(all(fits(k, w) for k, w in rule.items()) for rule in self.config.only)

    def task(self, key: Key) -> Task:
        """The undefended task of a trial: its weights depend on the seed alone."""
        resolver: Resolved = self.models[key.model].value
        return resolver.task(self.config.seeds[key.seed], self.spec, self.mode, self.models[key.model].label)

    def trials(self) -> list[Key]:
        """All trials, the controls that are not among them included."""
        ranges = [range(len(x)) for x in (self.models, self.clients, self.defenses, self.attacks)]
        kept = [
            (m, c, d, a)
            for m in ranges[0]
            for c in ranges[1]
            for d in ranges[2]
            for a in ranges[3]
            if self._kept(m, c, d, a)
        ]
        require(bool(kept), "only", "keeps no trial", "loosen it")
        seeds, batches = range(len(self.config.seeds)), range(len(self.batches))
        keys = [Key(m, c, d, a, s, b) for m, c, d, a in kept for s in seeds for b in batches]
        return keys + self._controls(kept)

    def _controls(self, kept: list[tuple[int, int, int, int]]) -> list[Key]:
        """One known-leaky trial per model and attack: FedSGD, no defence, one example."""
        labels = [(c.label, d.label) for c in self.clients for d in self.defenses]
        in_plan = ("fedsgd", "none") in labels and self.config.data.batch == 1 and self.config.update is None
        pairs = sorted({(m, a) for m, _, _, a in kept})
        if in_plan:
            client = [c.label for c in self.clients].index("fedsgd")
            defense = [d.label for d in self.defenses].index("none")
            pairs = [(m, a) for m, a in pairs if (m, client, defense, a) not in kept]
        return [Key(m, -1, -1, a, 0, b, control=True) for m, a in pairs for b in range(min(2, len(self.batches)))]


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
