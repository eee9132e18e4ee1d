"""What the rules measure on models of the zoo, one line of JSON a model, so that an interrupted run goes on."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path

import torch

import leakgauge.servers.inspection as inspection
from leakgauge.servers.inspection import Part, measure, rules
from reproduce.crafted import crafted, quality
from reproduce.zoo import Zoo, ZooModel

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
        split, kind, index: which model; `kind` honest, lookalike or of `reproduce.crafted.KINDS`.
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


def version() -> str:
    """A hash of the rules' sources: statistics of older rules are not used."""
    folder = Path(inspection.__path__[0])
    text = b"".join(file.read_bytes() for file in sorted(folder.glob("*.py")))
    return hashlib.sha256(text).hexdigest()[:12]


def tensor_rules() -> frozenset[str]:
    """Rules that need nothing but tensors."""
    return frozenset(name for name, rule in rules().items() if set(rule.needs) <= {Part.STATE})


def everyday_rules() -> frozenset[str]:
    """Rules that need no reference and no previous round."""
    rare = {Part.REFERENCE, Part.PREVIOUS}
    return frozenset(name for name, rule in rules().items() if not rare & set(rule.needs))


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
                if received.has(rule.needs):
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


def judged(zoo: Zoo, kind: str, indices: Iterable[int], scenario: Scenario, file: Path) -> list[Judged]:
    """Reads, or generates and judges, the models of a kind; every new one is written at once and then dropped."""
    done, lines, split = read(file), [], zoo.split.name.lower()
    for index in indices:
        line = done.get((scenario.name.lower(), split, kind, index))
        if line is None:
            line = _fresh(zoo, kind, index, scenario)
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(asdict(line) | {"asked": kind}) + "\n")
        lines.append(line)
    return lines


def _fresh(zoo: Zoo, kind: str, index: int, scenario: Scenario) -> Judged:
    split = zoo.split.name.lower()
    if kind == HONEST:
        return judge(zoo.honest(index), split, index, scenario)
    model, host, broadcast = crafted(zoo, kind, index)
    seen = None
    if kind.startswith("mkor") and scenario is Scenario.WHOLE:
        found = quality(host.task, broadcast, host.batch, torch.Generator().manual_seed(index))
        seen = {name: round(value, 3) for name, value in asdict(found).items()}
    return judge(model, split, index, scenario, seen)
