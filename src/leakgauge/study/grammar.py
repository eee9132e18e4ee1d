"""The grammar of a plan in YAML, and the example plan."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from leakgauge.errors import InputError, did_you_mean, refusing, require


class Strict(BaseModel):
    """Settings without unknown keys and without NaN."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class SourceConfig(BaseModel):
    """Where examples come from: a source by name, or from Python itself. Other keys go to it, e.g. ``split``."""

    model_config = ConfigDict(extra="allow")

    source: Any = None
    size: int | None = Field(default=None, ge=1)
    batch: int = Field(default=1, ge=1)
    start: int = Field(default=0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) or hasattr(value, "read") else value  # a name, or a source

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {}) | ({} if self.size is None else {"size": self.size})


class DataConfig(SourceConfig):
    """The clients' data, and how many of them there are."""

    source: Any = "samples"
    batches: int = Field(default=8, ge=1)


class ShareGate(Strict):
    max: float = Field(ge=0, le=1)


class PsnrGate(Strict):
    worst: float
    share: float = Field(default=0.05, gt=0, lt=1)


class GateConfig(Strict):
    """What must hold, with 95 % confidence, for the audit to pass. With `baseline`, settings without a defence are
    there to compare with: they are judged as controls, and are not what is signed off. With `vetted`, every attack and
    defence of the plan must be shown by more than an oracle: see `leakgauge list`."""

    identified: ShareGate | None = None
    psnr: PsnrGate | None = None
    label_f1: ShareGate | None = None
    baseline: bool = False
    vetted: bool = False

    @model_validator(mode="after")
    def _limits_something(self) -> "GateConfig":
        if self.identified is None and self.psnr is None and self.label_f1 is None:
            raise ValueError("Name a limit, e.g. {identified: {max: 0.05}}")
        return self


class BudgetConfig(Strict):
    gradient_evaluations: int | None = Field(default=None, ge=1)
    seconds: float | None = Field(default=None, gt=0)
    trial_seconds: float = Field(default=21_600.0, gt=0)


class OnlyRule(Strict):
    """Keeps the trials that fit every key given; names are those of the plan's lists."""

    model: str | list[str] | None = None
    client: str | list[str] | None = None
    defense: str | list[str] | None = None
    attack: str | list[str] | None = None
    batches: int | None = Field(default=None, ge=1)


class PlanConfig(Strict):
    """The grammar of a plan, as written. See *choose* in the docs."""

    name: str = "audit"
    identity: str | None = None
    model: Any = "lenet"
    data: DataConfig = DataConfig()
    mode: Literal["eval", "train"] = "eval"
    loss: Any = "cross-entropy"
    clients: list[Any] = Field(default=["fedsgd"], min_length=1)
    defenses: list[Any] = Field(default=["none"], min_length=1)
    server: Any = "honest"
    knows: list[str] = ["example_count", "local_training", "defense"]
    attacks: list[Any] = Field(default=["auto"], min_length=1)
    only: list[OnlyRule] | None = None
    budget: BudgetConfig = BudgetConfig()
    seeds: list[Annotated[int, Field(ge=-(2**63), lt=2**63)]] = Field(default=[0], min_length=1)
    gallery: int = Field(default=100, ge=1, le=1_000_000)
    lpips: str | None = None
    update: str | list[str] | None = None
    gate: GateConfig | None = None

    @field_validator("model")
    @classmethod
    def _some_model(cls, value: Any) -> Any:
        if value in (None, [], {}):
            raise ValueError("names no model")
        return value


class _OneValueAKey(yaml.SafeLoader):
    """Refuses a key that stands twice: plain YAML would silently keep the last, and with it lose a gate."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        twice = [name for name in names if names.count(name) > 1]
        require(not twice, str(twice[0]) if twice else "", "stands twice in the plan", "write it once")
        return dict(super().construct_mapping(node, deep))


def read_yaml(path: Path | None, room: str = "study") -> dict[str, Any]:
    """A plan file as a dictionary; `None` for the example embedded in that folder of the package. Raises `InputError`
    where it is missing, not YAML, or not a mapping."""
    if path is None:
        return dict(yaml.safe_load(example_text(room)))
    try:
        with refusing(f"plan {path}", "cannot be read", "give the path of a YAML file", OSError):
            text = path.read_text(encoding="utf-8")
        loaded = yaml.load(text, _OneValueAKey)
    except InputError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a value that is none of its type; brackets
        raise InputError(f"plan {path}", f"is not YAML ({_where(error)})", "see `leakgauge audit --example`") from error
    require(isinstance(loaded, dict), f"plan {path}", "is not a mapping of keys", "see `leakgauge audit --example`")
    return dict(loaded)


def _where(error: Exception) -> str:
    """What the parser says, with the place and without the lines around it."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


Model = TypeVar("Model", bound=BaseModel)
HINTS = {
    "list_type": "write a list",
    "too_short": "name at least one",
    "model_type": "write a mapping, e.g. {max: 0.05} in the gate or {source: samples} under data",
    "int_parsing": "give a whole number",
    "float_parsing": "give a number",
    "finite_number": "give a finite number",
}
"""What to write instead, where pydantic's own words are about types."""


def parse(raw: dict[str, Any]) -> PlanConfig:
    return validated(PlanConfig, raw, "see `leakgauge audit --example`")


def validated(model: type[Model], raw: dict[str, Any], example: str) -> Model:
    """The settings in `raw`; `InputError` names the first key that is wrong, and the hint."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        errors = error.errors()
        first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
        path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"]).lstrip(".") or "plan"
        if first["type"] == "extra_forbidden":
            *place, key = first["loc"]
            beside: type[BaseModel] = model
            for name in (name for name in place if isinstance(name, str)):
                beside = _model_in(beside.model_fields[name].annotation) or beside
            raise InputError(path, f"unknown key '{key}'", did_you_mean(str(key), beside.model_fields)) from error
        if first["type"] == "missing":
            raise InputError(path, "is missing", example) from error
        field = model.model_fields.get(str(first["loc"][0]))
        usual = field.default if field is not None and first["type"] == "list_type" else None
        message = HINTS.get(first["type"], first["msg"].removeprefix("Value error, "))
        message += f", e.g. [{usual[0]}]" if isinstance(usual, list) else ""
        raise InputError(path, f"is {first.get('input')!r}", message[0].lower() + message[1:]) from error


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for a in get_args(annotation) if (found := _model_in(a))), None)


def example_text(room: str = "study") -> str:
    return files(f"leakgauge.{room}").joinpath("example.yaml").read_text(encoding="utf-8")
