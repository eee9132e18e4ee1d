"""Trials, typed: pydantic writes and reads them as the JSON of report.json. Those that belong together are a group; its
unit is the client, and seeds repeat it."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Annotated, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from leakgauge.errors import InputError
from leakgauge.observation import Cost, Tried
from leakgauge.study.judging.scores import (
    UNLESS_EMPTY,
    LabelScores,
    LayerRead,
    Nulls,
    OtherClients,
    PartScores,
    Scores,
    TokenScores,
    Values,
    Words,
)

Of = TypeVar("Of")
Trace = tuple[tuple[int, float | None], ...]


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
    kind: str = "image"
    batch: int = 1
    index: Annotated[int | None, UNLESS_EMPTY] = None
    names: Annotated[tuple[str, ...], UNLESS_EMPTY] = ()
    round: Annotated[str, UNLESS_EMPTY] = ""
    examples: Annotated[tuple[int, ...], UNLESS_EMPTY] = ()


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What was attacked. `broken_by` is who breaks its defence with more than an attack here is given, if anybody."""

    model: str
    mode: str
    server: str
    server_changes: tuple[str, ...] = ()
    client: str
    defense: str
    defended: bool
    knowledge: tuple[str, ...]
    data: Data
    broken_by: str = ""

    @property
    def of_all_clients(self) -> "Scenario":
        """Without what tells one client from another."""
        return replace(self, data=replace(self.data, index=None, names=(), round="", examples=()))

    @property
    def stated(self) -> str:
        """The defence as in the plan, or that there is none."""
        return self.defense if self.defended else "no defence"

    @property
    def words(self) -> str:
        """Model, client and defence, and the server where it is dishonest."""
        crafted = f", from server {self.server}" if self.server_changes else ""
        return f"{self.model}, {self.client}, {self.defense}{crafted}"


@dataclass(frozen=True)
class TensorShare:
    """How well a plan explains one tensor, and the tensor's share of the update's squared norm."""

    name: str
    energy: float | None
    cosine: float | None
    norm: float | None


@dataclass(frozen=True)
class Cause:
    """What may be wrong with a plan: its key, what to write or look at, and the share explained with that change."""

    key: str
    change: str
    share: float | None = None


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Whether the plan explains the captured update that was attacked: as `Explained` has it, rounded."""

    round: Annotated[str, UNLESS_EMPTY] = ""
    holds: bool
    share: float | None = None
    cosine: float | None = None
    norm: float | None = None
    expected: tuple[float | None, ...] = ()
    sentence: str
    tensors: tuple[TensorShare, ...] = ()
    causes: tuple[Cause, ...] = ()


@dataclass(frozen=True)
class Trial:
    """One attack on one client's update: an entry of report.json's ``trials``."""

    id: str
    scenario: Scenario
    attack: str
    role: Role
    base: str  # what a naive or adapted reading is a reading of
    seed: int
    control: bool
    status: str
    message: str
    blind: str  # why the update says nothing of its images; empty where it does, or was not asked
    scores: Scores | None
    labels: LabelScores | None
    controls: Nulls
    restarts: Values
    trace: Trace  # (gradient evaluations, objective), `None` for an objective that was not finite
    tokens: Annotated[TokenScores | None, UNLESS_EMPTY] = None
    tried: tuple[Tried, ...] = ()
    layers: tuple[LayerRead, ...] = ()  # whose input was read and proved, whether or not a picture came of it
    parts: Annotated[tuple[PartScores, ...], UNLESS_EMPTY] = ()
    _: KW_ONLY
    cost: Cost
    words: Annotated[Words | None, UNLESS_EMPTY] = None
    explained: Annotated[Explanation | None, UNLESS_EMPTY] = None

    @property
    def client(self) -> int:
        assert self.scenario.data.index is not None
        return self.scenario.data.index

    @property
    def applies(self) -> bool:
        return self.status != "not_applicable"

    @property
    def judged(self) -> "Trial":
        """What verdict, flags and gate ask of it, in some two kilobytes: what only a reader sees is left out."""
        scores, other = self.scores, self.controls.other_client
        finite = [step for step in self.trace if step[1] is not None]
        ends = sorted(finite, key=itemgetter(1))
        lost = [step for step in self.trace if step[1] is None]
        if scores is not None:
            scores = replace(scores, mse=(), likeness=None, exact=(), trained_psnr=None)
        if other is not None:
            other = replace(other, psnr=(statistics.fmean(other.psnr),) if other.psnr else (), recovered=())
        return replace(
            self,
            scenario=_shared(replace(self.scenario, data=replace(self.scenario.data, names=()))),
            scores=scores,
            controls=replace(self.controls, mean_image=replace(self.controls.mean_image, psnr=()), other_client=other),
            # The first objective of a search, its lowest and its highest, and one that is not finite.
            trace=(*finite[:1], *ends[:1], *ends[-1:], *lost[:1]),
            tried=tuple(one for one in self.tried if one.raised or one.opaque),
            words=None,
        )


@lru_cache(4096)
def _shared(scenario: Scenario) -> Scenario:
    return scenario


TRIAL = TypeAdapter(Trial)


def record_of(trial: Trial) -> dict[str, Any]:
    """As report.json has it, in texts that can be written as UTF-8."""
    return dict(readable(TRIAL.dump_python(trial, mode="json")))


def read_trial(record: Mapping[str, Any]) -> Trial:
    try:
        return TRIAL.validate_python(record)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        problem = f"trial {record.get('id')} was stored by another version ({key}: {first['msg'].lower()})"
        raise InputError("folder", problem, "run the audit again in a new folder") from error


def readable(value: Any) -> Any:
    """Data whose texts can be written as UTF-8; bytes of a file name that are none are shown as numbers."""
    if isinstance(value, dict):
        return {key: readable(inside) for key, inside in value.items()}
    if isinstance(value, list):
        return [readable(inside) for inside in value]
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value


@dataclass(frozen=True)
class TrialGroup:
    """All trials of one scenario and attack, controls among them only in groups of their own."""

    scenario: Scenario
    attack: str
    control: bool
    trials: tuple[Trial, ...]

    @property
    def thing(self) -> str:
        """What an example of the data is called: image, or example where the data are none."""
        return self.scenario.data.kind

    @property
    def title(self) -> str:
        return f"{self.attack} on {self.scenario.words}"

    @cached_property
    def scored(self) -> list[Trial]:
        return [t for t in self.trials if t.scores is not None]

    @cached_property
    def scores(self) -> list[Scores]:
        return [t.scores for t in self.trials if t.scores is not None]

    @property
    def failed(self) -> list[Trial]:
        """Trials without a result. Where the attack applies to none, there are none; where it says of some clients that
        it does not apply to them, it was not tried on those, and nothing is known of them."""
        return [t for t in self.trials if t.scores is None] if any(t.applies for t in self.trials) else []

    @property
    def rounds(self) -> str:
        """What several captured rounds are together, and which gave most; empty for one, and for simulated clients."""
        names = {t.scenario.data.round for t in self.trials} - {""}
        if not names:
            return ""
        clients = len({t.client for t in self.trials})
        said = f"{len(names)} rounds of {clients} client{'s' * (clients != 1)}, each {self.thing} counted once"
        gave = []
        for trial, s in zip(self.scored, self.scores, strict=True):
            most = max((p for p in s.psnr if p is not None), default=0.0)
            gave.append((trial.scenario.data.round, s.certified, sum(s.recovered), sum(s.identified), most))
        if gave:
            name, *_, seen, most = max(gave, key=itemgetter(1, 2, 3, 4))
            said += f"; {name} gave most ({seen} identified, highest PSNR {most:.1f} dB)"
        return f"{said}; rounds were attacked one by one, and together they may say more"

    @property
    def doubt(self) -> str:
        """Why results on a captured update mean nothing: the plan does not explain it. Empty where it does."""
        return next((t.explained.sentence for t in self.trials if t.explained and not t.explained.holds), "")

    @property
    def others(self) -> list[OtherClients]:
        """The reads held against other clients, as far as there were such."""
        return [t.controls.other_client for t in self.scored if t.controls.other_client is not None]

    @property
    def compared(self) -> bool:
        """Whether every read was held against other clients, which says what chance gives."""
        return len(self.others) == len(self.scored)

    @cached_property
    def identified(self) -> dict[int, list[bool]]:
        """Client → which of its images were identified in some seed."""
        return self.images("identified", any)

    @cached_property
    def recovered(self) -> dict[int, list[bool]]:
        """Client → which of its images were recovered in some seed. A client whose trials all failed has none."""
        size = self.scenario.data.batch
        return {t.client: [False] * size for t in self.trials} | self.images("recovered", any)

    @property
    def certified(self) -> int:
        return sum(s.certified for s in self.scores)

    def values(self, score: str, over_seeds: Callable[[list[Any]], float] = statistics.fmean) -> list[float]:
        """One number for each image with that score."""
        return [value for images in self.images(score, over_seeds).values() for value in images]

    def images(self, score: str, over_seeds: Callable[[list[Any]], Of]) -> dict[int, list[Of]]:
        """Client → for each of its images with a score, what that is over the seeds."""
        found: dict[int, dict[int, list[Any]]] = defaultdict(lambda: defaultdict(list))
        for trial in self.scored:
            same = trial.scenario.data.examples
            for slot, value in enumerate(getattr(trial.scores, score) or ()):
                if value is not None:
                    found[trial.client][same[slot] if same else slot].append(value)
        return {client: list(map(over_seeds, images.values())) for client, images in found.items()}


def shares(flags: dict[int, list[bool]]) -> list[float]:
    return [statistics.fmean(client) for client in flags.values()]


def groups_of(trials: Sequence[Trial]) -> list[TrialGroup]:
    found: dict[tuple[Scenario, str, bool], list[Trial]] = defaultdict(list)
    for trial in trials:
        found[(trial.scenario.of_all_clients, trial.attack, trial.control)].append(trial)
    return [TrialGroup(*of, tuple(members)) for of, members in found.items()]


def control_of(group: TrialGroup, groups: Sequence[TrialGroup]) -> TrialGroup | None:
    """The same attack on the same kind of client without a defence: added controls, or the plan's own."""

    def kind(of: TrialGroup) -> tuple[object, ...]:
        s = of.scenario
        return of.attack, s.model, s.server, s.client, s.data.batch

    alike = (g for g in groups if kind(g) == kind(group) and not g.scenario.defended)
    # An added control first: where an update file was audited, its own trial is no control.
    return min(alike, key=lambda g: not g.control, default=None)
