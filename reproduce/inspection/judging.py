"""What the rules measure on models of the zoo, one line of JSON a model, so that an interrupted run goes on."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path

import torch

import leakgauge.inspection.rule as rule_contract
from leakgauge.errors import InputError
from leakgauge.inspection.rule import measure, rules
from reproduce.inspection.crafted import crafted
from reproduce.inspection.crafted_quality import quality
from reproduce.inspection.zoo import Zoo, ZooModel

HONEST, LOOKALIKE = "honest", "lookalike"
BROKEN = (ValueError, RuntimeError, IndexError, KeyError, TypeError, AttributeError, AssertionError)
"""What a rule that breaks its contract may raise."""


class Scenario(Enum):
    """What the client has. The value is whether it has more than tensors."""

    TENSORS = False
    WHOLE = True


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One model's statistics.

    Attributes:
        scenario: what the client had: tensors, or also model, task and its own examples.
        split, kind, index: which model; `kind` honest, lookalike or of `reproduce.inspection.crafted.KINDS`.
        statistics: by rule; a rule that lacked something is absent.
        failed: rules that raised, with the message. Counted as no alarm.
        quality: of a reconstruction by the dishonest server, where measured.
        seconds: of all rules together.
    """

    scenario: str
    split: str
    kind: str
    index: int
    family: str
    state: str
    description: str
    statistics: Mapping[str, float]
    failed: Mapping[str, str] = field(default_factory=dict)
    quality: Mapping[str, float] | None = None
    seconds: float = 0.0
    version: str = ""


@cache
def version() -> str:
    """A hash of the rules' sources, of what they import of the package, and of the zoo's: older lines are not used.

    After a change in a dishonest server, delete the lines of its kind.
    """
    package = rule_contract.__name__.rpartition(".")[0]
    todo = {rule.measure.__module__ for rule in rules().values()}
    done: set[str] = set()
    while todo:
        name = todo.pop()
        done.add(name)
        named = (getattr(thing, "__module__", None) for thing in vars(sys.modules[name]).values())
        todo |= {m for m in named if m and m.startswith(package) and m not in done}
    here = Path(__file__).parent
    files = [Path(file) for name in sorted(done) if (file := sys.modules[name].__file__)]
    files += [*sorted(here.glob("zoo*.py")), here / "crafted.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def judge(
    model: ZooModel, split: str, index: int, scenario: Scenario, measured: Mapping[str, float] | None = None
) -> Judged:
    """All rules on a model as the client of that scenario has it."""
    received, began, failed = model.received(whole=scenario.value), time.perf_counter(), {}
    try:
        statistics = {name: found.statistic for name, found in measure(received).items()}
    except BROKEN:
        # One rule failed: find out which, keep the others.
        statistics = {}
        for name, rule in rules().items():
            try:
                if not received.lacks(rule.needs):
                    statistics[name] = float(rule.measure(received).statistic)
            except BROKEN as error:
                failed[name] = f"{type(error).__name__}: {error}"[:200]
    return Judged(
        scenario=scenario.name.lower(),
        split=split,
        kind=model.kind,
        index=index,
        family=model.family,
        state=model.state,
        description=model.description[:400],
        statistics=statistics,
        failed=failed,
        quality=measured,
        seconds=round(time.perf_counter() - began, 3),
        version=version(),
    )


Key = tuple[str, str, str, int]


def read(file: Path) -> dict[Key, Judged]:
    """Lines of the present rules, by scenario, split, kind asked for and number. A torn line is left out."""
    found, current = {}, version()
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            raw = json.loads(line)
        except json.JSONDecodeError:
            continue
        asked = raw.pop("asked")
        if raw["version"] == current:
            found[raw["scenario"], raw["split"], asked, raw["index"]] = Judged(**raw)
    return found


def judged(
    zoo: Zoo, kind: str, indices: Iterable[int], scenario: Scenario, file: Path
) -> Iterator[tuple[int, Judged | InputError]]:
    """Reads, or generates and judges, the models of a kind; every new one is written at once and then dropped.

    Yields the number and its line, or why the dishonest server found no host for it.
    """
    done, split = read(file), zoo.split.name.lower()
    file.parent.mkdir(parents=True, exist_ok=True)
    for index in indices:
        line = done.get((scenario.name.lower(), split, kind, index))
        if line is None:
            try:
                line = _fresh(zoo, kind, index, scenario)
            except InputError as error:
                yield index, error
                continue
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(asdict(line) | {"asked": kind}) + "\n")
        yield index, line


def _fresh(zoo: Zoo, kind: str, index: int, scenario: Scenario) -> Judged:
    split = zoo.split.name.lower()
    if kind in (HONEST, LOOKALIKE):
        return judge(zoo.honest(index) if kind == HONEST else zoo.lookalike(index), split, index, scenario)
    model, host, broadcast = crafted(zoo, kind, index)
    seen = None
    if kind.startswith("mkor") and scenario is Scenario.WHOLE:
        found = quality(host.task, broadcast, host.batch, torch.Generator().manual_seed(index))
        seen = {name: round(value, 3) for name, value in asdict(found).items()}
    return judge(model, split, index, scenario, seen)
