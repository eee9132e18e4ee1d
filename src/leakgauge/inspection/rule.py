"""A received model: read, checked and identified; what a rule is, what it measures, the limits from which it alarms."""

import copy
import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.data.source import open_source, spec
from leakgauge.errors import InputError, few, refusing, require
from leakgauge.inspection.matrices import Omission
from leakgauge.models.weights import read_model
from leakgauge.registry import MODELS, RULES
from leakgauge.resolve import resolve
from leakgauge.task import DataSpec, Task
from leakgauge.tensors import dense, differences


class Part(Enum):
    """A part of `Received` that a rule may need; the value is the field's name."""

    STATE = "state"
    MODULE = "module"
    TASK = "task"
    REFERENCE = "reference"
    PREVIOUS = "previous"


@dataclass(frozen=True, eq=False)
class Received:
    """A model as it came from the server, and what the client can compare it with. `None` is not at hand."""

    state: Mapping[str, Tensor]  # names to tensors, as received; always there.
    module: nn.Module | None = None  # the architecture with `state` loaded, in eval mode
    task: Task | None = None  # the same with data format, loss and mode
    reference: Mapping[str, Tensor] | None = None  # a state dict that the client trusts, of the same architecture
    previous: Mapping[str, Tensor] | None = None  # the state dict of the round before

    def lacks(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Those that are not at hand."""
        return tuple(part for part in parts if getattr(self, part.value) is None)


@dataclass(frozen=True)
class Measurement:
    """What one rule saw in one model: its most suspicious place."""

    statistic: float  # ≥ 0, finite, larger is more suspicious; its unit is the rule's.
    where: tuple[str, ...]  # names of tensors or layers, the worst first
    evidence: str  # one sentence with the numbers that a person can check
    unjudged: tuple[Omission, ...] = ()  # what the rule should have judged and could not


def most_suspicious(
    found: list[tuple[float, str, str]],
    nothing: str,
    unjudged: list[Omission],
    *,
    share: float = 0.0,
    least: float = 0.0,
) -> Measurement:
    """The layer of the largest statistic, of each layer's with its name and the evidence; named with it are those of at
    least that `share` of it, and `least`. `nothing`: what is said where there is none."""
    order = sorted(found, key=lambda one: -one[0])
    if not order:
        return Measurement(0.0, (), nothing, tuple(unjudged))
    top, _, evidence = order[0]
    where = tuple(name for statistic, name, _ in order if statistic >= max(least, share * top))
    return Measurement(top, where, evidence, tuple(unjudged))


@dataclass(frozen=True)
class Rule:
    """A test of one property."""

    # deterministic; does not change the received model, and never reads what the rule did not ask for.
    measure: Callable[[Received], Measurement]
    needs: tuple[Part, ...]  # parts without which the rule is skipped, and listed as skipped
    meaning: str  # what a server gains by it, and what an honest reason could be; for the page.


def register(
    name: str, meaning: str, *, needs: tuple[Part, ...] = (Part.STATE,)
) -> Callable[[Callable[[Received], Measurement]], Callable[[Received], Measurement]]:
    """Makes a rule of what measures; its docstring and the `meaning` are what ``leakgauge list rules`` says of it."""

    def add(measure: Callable[[Received], Measurement]) -> Callable[[Received], Measurement]:
        def build() -> Rule:
            return Rule(measure, needs, meaning)

        build.__doc__ = f"{inspect.getdoc(measure)}\n\n{meaning}"
        said = "the task: architecture, values and data format" if Part.TASK in needs else ""
        RULES.register(name, needs=said)(build)
        return measure

    return add


def rules() -> dict[str, Rule]:
    return {entry.name: entry.build() for entry in RULES}


def measure(received: Received) -> dict[str, Measurement]:
    """What every rule saw that has what it needs, by the rule's name.

    Deterministic; `received` is not changed. Raises `ValueError` where a rule broke its contract (a statistic below
    zero)."""
    measured = {name: rule.measure(received) for name, rule in rules().items() if not received.lacks(rule.needs)}
    for name, found in measured.items():
        if not math.isfinite(found.statistic):
            omission = Omission(found.where[0] if found.where else "model", "too large to compute with")
            measured[name] = Measurement(0.0, found.where, "Its numbers run over here.", (omission,))
        elif found.statistic < 0:
            raise ValueError(f"rule '{name}' measured {found.statistic}")
    return measured


@dataclass(frozen=True, kw_only=True)
class Limits:
    """From which statistic on a rule alarms. `made_by`: the command that measured them."""

    limits: Mapping[str, float]
    made_by: str
    models: int

    def __post_init__(self) -> None:
        for rule, limit in self.limits.items():
            require(math.isfinite(limit) and limit > 0, f"limits.{rule}", f"is {limit}", "give a positive number")

    @staticmethod
    def packaged() -> "Limits":
        return Limits(**json.loads(files(__package__).joinpath("limits.json").read_text(encoding="utf-8")))


def read_hashes(texts: Iterable[str]) -> tuple[str, ...]:
    """Fingerprints as other clients passed them on, in lower case; ``sha256:`` may stand before them. Raises
    `InputError` where one is not 64 hexadecimal digits."""
    found = []
    for text in texts:
        digits = text.strip().lower().removeprefix("sha256:")
        if re.fullmatch("[0-9a-f]{64}", digits) is None:
            raise InputError("--hash", f"'{text}' is no fingerprint", "give the 64 digits that inspect prints")
        found.append(digits)
    return tuple(found)


SHOWN = 3  # tensors that a message names


def agrees(expected: Mapping[str, Tensor], given: Mapping[str, Tensor], field: str) -> None:
    """Raises `InputError` unless both hold the same names and shapes; names the first tensors that differ."""
    wrong = differences(expected, given)
    hint = "give a state dict of the same architecture, and name that architecture"
    require(not wrong, field, f"does not fit: {few(wrong, SHOWN)}", hint)


def build(given: "nn.Module | Spec", state: Mapping[str, Tensor], field: str) -> nn.Module:
    """The architecture with the received weights, in eval mode: a copy of the module, or one as a plan names it.
    Raises `InputError`: unknown, cannot be built, or names and shapes differ from the received ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with refusing(field, "cannot be built", "give {name: {parameter: value}}", RuntimeError, TypeError):
            module: Any = given if isinstance(given, nn.Module) else resolve(MODELS, given, field).value
    kind = type(module).__name__
    require(isinstance(module, nn.Module), field, f"'{given}' gives a {kind}", "return a torch.nn.Module")
    agrees(module.state_dict(), state, field)
    module = copy.deepcopy(module)
    module.load_state_dict(state)
    return module.eval()  # type: ignore[no-any-return]


def data_format(given: DataSpec | Mapping[str, Any]) -> DataSpec:
    """The format of the client's examples: that of a source as under ``data`` in a plan, or of a folder's path."""
    if isinstance(given, DataSpec):
        return given
    options = dict(given)
    source = str(options.pop("source"))
    return spec(open_source(f"folder:{source}" if Path(source).is_dir() else source, **options))


Spec = str | Mapping[str, Any]  # a name as in a plan, or ``{name: {parameter: value}}``
State = Mapping[str, Tensor] | Path | str  # a state dict, or a file of one


def received(
    state: State,
    *,
    model: nn.Module | Spec | None = None,
    data: DataSpec | Mapping[str, Any] | None = None,
    reference: State | None = None,
    previous: State | None = None,
    option: str = "",
) -> Received:
    """Everything that the rules may look at. `option` stands before the names of arguments in errors. Raises
    `InputError` where a file or a name cannot be used, or they do not fit each other; names the tensor."""
    tensors = _read(state, "state")
    others: list[Mapping[str, Tensor] | None] = []
    for field, other in ((f"{option}reference", reference), (f"{option}previous", previous)):
        others.append(None if other is None else _read(other, field))
        agrees(tensors, tensors if others[-1] is None else others[-1], field)
    require(data is None or model is not None, f"{option}data", "needs the architecture", f"give {option}model, too")
    module = None if model is None else build(model, tensors, f"{option}model")
    task = None if data is None or module is None else Task.of(module.float(), data_format(data))
    return Received(tensors, module, task, *others)


def _read(given: State, field: str) -> Mapping[str, Tensor]:
    return dense(given) if isinstance(given, Mapping) else read_model(Path(given), field)
