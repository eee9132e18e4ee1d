"""A board: a folder with scenes, defences, and a JSON for each row that was measured."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from leakgauge.attacks.recipes.auto import Auto, Search
from leakgauge.errors import did_you_mean, refusing, require
from leakgauge.files import json_text, read_json, write_whole
from leakgauge.resolve import resolve_defense
from leakgauge.study.deal import Key
from leakgauge.study.grammar import read_yaml
from leakgauge.study.identity import data_identity
from leakgauge.study.judging.records import Trial
from leakgauge.study.judging.results import Level
from leakgauge.study.plan import Plan, resolve_plan
from leakgauge.tensors import fingerprint

NONE, PRIOR, EXTERNAL = "no defence", "prior only", "external"
"""Rows that are no defence of the board's own code."""
KNOWS = ["example_count", "local_training", "labels", "defense"]
AUTO, SEARCH = "auto", "search"
BOTH = ({"adapted": {"attack": AUTO}}, {"naive": {"attack": AUTO}})
LOCK = "scenes.lock.json"


@dataclass(frozen=True)
class BoardCell:
    """What one attacker came to on all clients of a scene, by the rules of the board.

    Attributes:
        count, n, low, high: examples singled out, of how many, and the 95 % interval of the share over clients.
        recovered, certified: examples that came back, and reads that the update itself proved.
        stands: whether the count may be read; else `said` is why not.
    """

    count: int
    n: int
    low: float
    high: float
    recovered: int
    certified: int
    psnr: float | None
    highest: float | None
    stands: bool
    said: str = ""
    flags: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()  #: the flags in sentences
    level: str = ""  #: of the finding, as in a report

    @property
    def order(self) -> tuple[float, float]:
        """The larger, the worse."""
        return self.count / max(self.n, 1), self.highest or 0.0

    @property
    def leaks(self) -> bool:
        return self.recovered > 0 or self.level in (Level.EXPOSED.value, Level.PARTIAL.value)

    @property
    def calm(self) -> bool:
        """Whether nothing came back from a search with power, without a flag and without a trial that failed."""
        return self.level == Level.NOT_RECOVERED.value


@dataclass(frozen=True)
class BoardPrivacy:
    """ε of one update at δ = 1e-5 as the code states it, or why there is none, and the part that canaries refute."""

    epsilon: float | None = None
    unit: str = ""
    reason: str = ""
    refuted: float | None = None
    outcome: str = "not tested"


@dataclass(frozen=True, kw_only=True)
class BoardRow:
    """A defence, or what stands beside them, in a scene. `trials` are those of the row without a defence alone: what
    the others are judged against. `accuracy`: points lost, of test examples."""

    scene: str
    digest: str
    label: str
    kind: str = "defence"
    defense: Any = None
    reported: str | None = None
    naive: BoardCell | None = None
    adapted: BoardCell | None = None
    power: BoardCell | None = None
    privacy: BoardPrivacy = BoardPrivacy()
    accuracy: float | None = None
    seconds: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""
    code: str = ""  #: digest of code of the user's own
    trials: tuple[Trial, ...] = ()

    @property
    def cells(self) -> tuple[BoardCell, ...]:
        return tuple(cell for cell in (self.naive, self.adapted) if cell is not None)

    @property
    def worst(self) -> BoardCell | None:
        """What the row is ranked by: the worse cell where something leaked, or where both attackers' counts may be
        read."""
        cells = [cell for cell in self.cells if cell.stands]
        readable = len(cells) == len(self.cells) or any(cell.leaks for cell in cells)
        return max(cells, key=lambda cell: cell.order) if cells and readable else None

    @property
    def sure(self) -> bool:
        """Whether it has a rank: something leaked, or both attackers came to nothing that a report would rely on."""
        return self.worst is not None and (any(cell.leaks for cell in self.cells) or all(c.calm for c in self.cells))

    @property
    def certified(self) -> int:
        return max((cell.certified for cell in self.cells), default=0)

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(flag for cell in self.cells for flag in cell.flags))


ROW = TypeAdapter(BoardRow)


def own_code(plan: Plan) -> str:
    """Of modules that are none of this package's: of a defence, a network."""
    found = plan.contents()
    return "".join(found[key][:12] for key in sorted(found) if key.startswith("module "))


@dataclass(frozen=True)
class Scene:
    """What every defence is measured on: the keys of a plan, its clients, and what it broadcasts."""

    name: str
    title: str
    seconds: float  #: CPU seconds of one attacker on one client, about
    words: Mapping[str, Any]
    folder: Path

    def plan(
        self, defense: Any, attacks: Sequence[Any] = ({"adapted": {"attack": AUTO}}, {"naive": {"attack": AUTO}})
    ) -> Plan:
        """The trials of one defence. Raises `InputError` where it does not apply here."""
        words = json.loads(json.dumps(self.words).replace("{board}", str(self.folder)))
        own = {
            "name": self.name,
            "identity": self.name,
            "knows": KNOWS,
            "defenses": [defense],
            "attacks": list(attacks),
        }
        return resolve_plan(words | own)

    @cached_property
    def undefended(self) -> Plan:
        """`auto`, and the search that it would go on to alone."""
        return self.plan("none", (AUTO, {SEARCH: Search(Auto())}))

    @cached_property
    def digest(self) -> str:
        """Of the plan's words, the data and the weights."""
        plan = self.undefended
        task = plan.broadcast(Key(0, 0, 0, 0, 0, 0)).task
        parts = json.dumps(self.words, sort_keys=True), own_code(plan), data_identity(plan.source, plan.data.indices)
        return hashlib.sha256("\0".join((*parts, fingerprint(*task.parameters.values()))).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Asked:
    """A defence as `defences.yaml` has it."""

    defense: Any
    reported: str | None = None


@dataclass(frozen=True)
class Board:
    """The folder."""

    folder: Path

    @cached_property
    def scenes(self) -> dict[str, Scene]:
        if str(self.folder) not in sys.path:  # its networks
            sys.path.append(str(self.folder))
        found = read_yaml(self.folder / "scenes.yaml")
        return {
            name: Scene(name, one["title"], float(one["seconds"]), one["plan"], self.folder)
            for name, one in found.items()
        }

    def chosen(self, names: Sequence[str]) -> list[Scene]:
        """Those scenes, or all, the cheapest first. Raises `InputError`: an unknown one, or one that has another digest
        than the board's: other data, weights or words."""
        for name in names:
            require(name in self.scenes, "--scene", f"unknown name '{name}'", did_you_mean(name, self.scenes))
        lock = read_json(self.folder / LOCK)
        found = sorted((self.scenes[name] for name in names or self.scenes), key=lambda scene: scene.seconds)
        for scene in found:
            hint = "take scenes and data of a release as they are, or begin a board of your own with its own lock"
            require(lock.get(scene.name) == scene.digest, scene.name, f"is {scene.digest} here, not the board's", hint)
        return found

    @property
    def asked(self) -> list[Asked]:
        with refusing("defences.yaml", "cannot be read", "write a list of defense and reported"):
            return [Asked(**one) for one in read_yaml(self.folder / "defences.yaml")["defences"]]

    def place(self, scene: str, label: str) -> Path:
        return self.folder / "rows" / scene / f"{re.sub(r'[^a-z0-9.-]+', '-', label.lower()).strip('-')}.json"

    def row(self, scene: Scene, label: str) -> BoardRow | None:
        """One that was measured in the scene as it is; none where it was not."""
        place = self.place(scene.name, label)
        if not place.exists():
            return None
        found = ROW.validate_python(read_json(place))
        return found if found.digest == scene.digest else None

    def keep(self, row: BoardRow) -> Path:
        place = self.place(row.scene, row.label)
        place.parent.mkdir(parents=True, exist_ok=True)
        text = json_text(ROW.dump_python(row, mode="json"))
        return write_whole(place, text.replace(json.dumps(str(self.folder))[1:-1], "{board}"))

    def rows(self) -> Iterator[BoardRow]:
        """All that were measured in the board's scenes as they are, with what `defences.yaml` reports now."""
        lock = read_json(self.folder / LOCK)
        reported = {resolve_defense(one.defense, "defense").label: one.reported for one in self.asked}
        for path in sorted((self.folder / "rows").glob("*/*.json")):
            row = ROW.validate_python(read_json(path))
            if lock.get(row.scene) == row.digest:
                yield replace(row, reported=reported.get(row.label, row.reported))


def ranked(rows: Sequence[BoardRow]) -> list[BoardRow]:
    """Those of one scene that have a rank: the fewest examples first. Rows that are no defence are none."""
    own = [row for row in rows if row.sure and row.kind not in (NONE, PRIOR)]
    return sorted(own, key=lambda row: row.worst.order if row.worst is not None else (0.0, 0.0))
