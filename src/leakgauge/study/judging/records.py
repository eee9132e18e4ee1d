"""What an audit stores of its trials, typed, and the one place that writes and reads it as JSON."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import lru_cache
from typing import Any

from leakgauge.study.judging.scores import Json, LabelScores, Nulls, Scores, TokenScores, Values, plain


class Role(Enum):
    """What an attack claims to be among others on the same update."""

    STRONGEST = "strongest"  # chooses among all methods: nothing else should beat it
    RECIPE = "recipe"
    NAIVE = "naive"  # reads a defended update as if it were not
    SERVER = "server"  # reads what a dishonest server prepared


@dataclass(frozen=True)
class Data:
    """Where a client's examples come from. `index` and `names` are of one client; `None` and empty for several. Clients
    that hold the same examples have the same index: they are one in every count. Of several captured rounds, `round` is
    the name of one, and `examples` says which of the audit's examples it holds: the same one counts once."""

    source: str
    size: int | None
    kind: str
    batch: int
    index: int | None = None
    names: tuple[str, ...] = ()
    round: str = ""
    examples: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        written = {"source": self.source, "size": self.size, "kind": self.kind, "batch": self.batch}
        if self.index is None:
            return written
        rounds = {"round": self.round, "examples": list(self.examples)} if self.round else {}
        return written | {"index": self.index, "names": list(self.names)} | rounds


@dataclass(frozen=True)
class Scenario:
    """What was attacked.

    Attributes:
        defended: whether a mechanism stands between the client's examples and its update.
        broken_by: who breaks that mechanism with more than an attack here is given; empty where nobody is known to.
    """

    model: str
    mode: str
    server: str
    server_changes: tuple[str, ...]
    client: str
    defense: str
    defended: bool
    knowledge: tuple[str, ...]
    data: Data
    broken_by: str = ""

    @property
    def of_all_clients(self) -> Scenario:
        """Without what tells one client from another."""
        return replace(self, data=replace(self.data, index=None, names=(), round="", examples=()))

    @property
    def words(self) -> str:
        """Model, client and defence, and the server where it is dishonest."""
        crafted = f", from server {self.server}" if self.server_changes else ""
        return f"{self.model}, {self.client}, {self.defense}{crafted}"

    @staticmethod
    def from_json(found: Json) -> Scenario:
        data = found["data"]
        return Scenario(
            model=found["model"],
            mode=found["mode"],
            server=found["server"],
            server_changes=tuple(found.get("server_changes", ())),
            client=found["client"],
            defense=found["defense"],
            defended=found["defended"],
            knowledge=tuple(found["knowledge"]),
            data=Data(
                source=data["source"],
                size=data["size"],
                kind=data.get("kind", "image"),
                batch=data["batch"],
                index=data.get("index"),
                names=tuple(data.get("names", ())),
                round=data.get("round", ""),
                examples=tuple(data.get("examples", ())),
            ),
            broken_by=found.get("broken_by", ""),
        )


@dataclass(frozen=True)
class Explanation:
    """Whether the plan explains the captured update that was attacked; `record` is the whole of it for the page."""

    holds: bool
    sentence: str
    record: Json

    @staticmethod
    def from_json(found: Json) -> Explanation:
        return Explanation(found["holds"], found["sentence"], found)

    def to_json(self) -> dict[str, Any]:
        return dict(self.record)


@dataclass(frozen=True)
class Attempted:
    """One method of an attack of several: how it ended, if by an error, if the network was opaque to it."""

    name: str
    status: str
    why: str
    raised: bool
    opaque: bool = False


@dataclass(frozen=True)
class LayerRead:
    """A layer whose input the attack read from the update and proved, for how many examples.

    Attributes:
        error: estimated relative error of what was read.
    """

    layer: str
    examples: int
    error: float


@dataclass(frozen=True)
class Trial:
    """One attack on one client's update.

    Attributes:
        role, base: what the attack claims to be, and what a naive or adapted reading is a reading of.
        blind: why the update says nothing of its images; empty where it does, or was not asked.
        explained: of a captured update.
        tokens: of texts, what was read of them.
        tried: the methods of an attack of several, in order.
        layers: whose input was read and proved, whether or not a picture came of it.
        restarts: final objective of each restart, where the attack has several.
        trace: (gradient evaluations, objective), `None` for an objective that was not finite.
    """

    id: str
    scenario: Scenario
    attack: str
    role: Role
    base: str
    seed: int
    control: bool
    status: str
    message: str
    blind: str
    scores: Scores | None
    labels: LabelScores | None
    controls: Nulls
    restarts: Values
    trace: tuple[tuple[int, float | None], ...]
    gradient_evaluations: int
    seconds: float
    explained: Explanation | None = None
    tokens: TokenScores | None = None
    tried: tuple[Attempted, ...] = ()
    layers: tuple[LayerRead, ...] = ()

    @property
    def client(self) -> int:
        """Which client of its scenario."""
        assert self.scenario.data.index is not None
        return self.scenario.data.index

    @property
    def gave(self) -> tuple[int, int, int, float]:
        """How much came back, to compare with other trials: certified, recovered, identified, highest PSNR."""
        s = self.scores
        if s is None:
            return 0, 0, 0, 0.0
        highest = max((p for p in s.psnr if p is not None), default=0.0)
        return s.certified, sum(s.recovered), sum(s.identified), highest

    @property
    def applies(self) -> bool:
        """Whether the attack applies to this update at all."""
        return self.status != "not_applicable"

    @property
    def judged(self) -> Trial:
        """What verdict, flags and gate ask of it, in some two kilobytes: names, and scores and baselines that only a
        reader sees, are left out; of a trace its length, ends and whether it is finite; of other clients' PSNR the
        mean."""
        scores, controls, other = self.scores, self.controls, self.controls.other_client
        data = replace(self.scenario.data, names=())
        if scores is not None:
            scores = replace(scores, mse=(), likeness=None, exact=(), trained_psnr=None)
        if other is not None:
            other = replace(other, psnr=(statistics.fmean(other.psnr),) if other.psnr else (), recovered=())
        return replace(
            self,
            scenario=_shared(replace(self.scenario, data=data)),
            attack=sys.intern(self.attack),
            base=sys.intern(self.base),
            status=sys.intern(self.status),
            message=sys.intern(self.message),
            blind=sys.intern(self.blind),
            scores=scores,
            controls=replace(controls, mean_image=(), other_client=other),
            trace=_ends(self.trace),
            tried=tuple(one for one in self.tried if one.raised or one.opaque),
        )

    def to_json(self) -> dict[str, Any]:
        """An entry of report.json's ``trials``."""
        written = {f.name: plain(getattr(self, f.name)) for f in fields(self)}
        cost = {key: written.pop(key) for key in ("gradient_evaluations", "seconds")}
        for optional in ("explained", "tokens"):
            if written[optional] is None:
                del written[optional]
        return written | {"cost": cost}

    @staticmethod
    def from_json(found: Json) -> Trial:
        """Raises `KeyError` for a record of another schema."""
        scores, labels = found["scores"], found["labels"]
        return Trial(
            id=found["id"],
            scenario=Scenario.from_json(found["scenario"]),
            attack=found["attack"],
            role=Role(found["role"]),
            base=found["base"],
            seed=found["seed"],
            control=found["control"],
            status=found["status"],
            message=found["message"],
            blind=found["blind"],
            scores=None if scores is None else Scores.from_json(scores),
            labels=None if labels is None else LabelScores(**labels),
            controls=Nulls.from_json(found["controls"]),
            restarts=tuple(found["restarts"]),
            trace=tuple((evaluations, objective) for evaluations, objective in found["trace"]),
            gradient_evaluations=found["cost"]["gradient_evaluations"],
            seconds=found["cost"]["seconds"],
            explained=None if found.get("explained") is None else Explanation.from_json(found["explained"]),
            tokens=None if found.get("tokens") is None else TokenScores(**found["tokens"]),
            tried=tuple(Attempted(**one) for one in found.get("tried", ())),
            layers=tuple(LayerRead(**one) for one in found.get("layers", ())),
        )


@lru_cache(4096)
def _shared(scenario: Scenario) -> Scenario:
    """One object for equal ones."""
    return scenario


def _ends(trace: tuple[tuple[int, float | None], ...]) -> tuple[tuple[int, float | None], ...]:
    """First, lowest and highest finite value, and one that is not finite if there is one; in order."""
    finite = [i for i, (_, value) in enumerate(trace) if value is not None]
    if len(trace) <= 4:
        return trace
    kept = {*finite[:1], next((i for i, (_, value) in enumerate(trace) if value is None), len(trace) - 1)}
    if finite:
        kept |= {min(finite, key=lambda i: trace[i][1] or 0.0), max(finite, key=lambda i: trace[i][1] or 0.0)}
    return tuple(trace[i] for i in sorted(kept)) if len(kept) > 1 else trace[:2]
