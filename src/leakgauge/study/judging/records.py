"""Trials, typed: pydantic writes and reads them as the JSON of report.json. What a result scores against the truth:
pictures, labels, texts, cells of tables, parts of a batch."""

import statistics
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from functools import lru_cache
from operator import itemgetter
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from leakgauge.errors import InputError
from leakgauge.observation import Cost, Tried

Values = tuple[float | None, ...]  # one number for each true example; `None` without a reconstruction

UNLESS_EMPTY = Field(exclude_if=lambda value: value in (None, "", ()))
"""Left out of the JSON where there is nothing to say."""


@dataclass(frozen=True)
class PartScores:
    """One part of a training step's batch, what was read of it beside the truth."""

    name: str
    kind: str  # picture, volume, series, text, numbers, categories, or what is taught: labels, values, mask, …
    measure: str  # `equal`, the share of its entries that are; or `error`, the mean absolute one in shares of the range
    values: Values
    guess: tuple[float, ...]  # `values` of the best guess that is the same for all, from other clients' examples

    @property
    def missed(self) -> tuple[float, float]:
        """What the read and the guess leave open, over the examples that were read."""
        both = [(v, g) for v, g in zip(self.values, self.guess, strict=True) if v is not None]
        left = [(1 - v, 1 - g) if self.measure == "equal" else (v, g) for v, g in both]
        return sum(v for v, _ in left), sum(g for _, g in left)


@dataclass(frozen=True)
class TokenScores:
    """The tokens of a client's texts as a multiset against the true one, padding left out."""

    precision: float
    recall: float
    f1: float
    constant_f1: float  # of the most frequent tokens of other texts, as often as they occur there
    exact_set: bool
    exact_counts: bool
    counted: bool  # whether the attack read how often tokens occur; else each counts once
    in_place: float | None  # of texts that were read in order, the share of their tokens in their places


@dataclass(frozen=True)
class Words:
    """Examples and reads in words: cells of tables, or texts, whose `form` is in order, or their tokens. Columns, true
    and read are `None` where a report shows the share that matches alone."""

    match: list[float]
    columns: Annotated[tuple[str, ...] | None, UNLESS_EMPTY] = None
    true: Annotated[list[list[str]] | None, UNLESS_EMPTY] = None
    read: Annotated[list[list[str] | None] | None, UNLESS_EMPTY] = None
    form: Annotated[str | None, Field(exclude_if=lambda value: value is None)] = None


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Of a trial with a result, one entry for each true example."""

    psnr: Values  # psnr to lpips: against the original, by the assignment with the least squared error
    ssim: Values | None = None
    mse: Values
    lpips: Values | None = None
    # up to shift, mirror, turn and light (see `leakgauge.metrics.likeness`), to the original or to what was trained on
    likeness: Values | None = None
    rank: tuple[int, ...]  # in the line-up; 1 is nearest
    identified: tuple[bool, ...]  # nearest of the line-up, by structure
    # identified, and with half of the squared structure that the mean picture leaves explained; or equal to the
    # original, or to what the client trained on, to the eye
    recovered: tuple[bool, ...]
    exact: tuple[bool, ...]  # at the cap of PSNR
    trained_psnr: Values | None = None  # against what the client trained on; `None` where that is the original
    certified: int  # reads that the attack proved by its own check
    gallery: int  # pictures in the line-up
    whole: int  # how many of them are whole other examples rather than crops
    layer: Annotated[str, UNLESS_EMPTY] = ""  # whose input, read and proved, identified what the reads did not


@dataclass(frozen=True)
class OtherClients:
    """The same reconstruction held against examples of other clients, by the same assignment and line-up: the PSNR of
    all, and how many of each client's were identified and recovered; all clients have as many."""

    psnr: tuple[float, ...]
    identified: tuple[int, ...]
    recovered: tuple[int, ...]


@dataclass(frozen=True)
class MeanImage:
    """The mean public picture: its PSNR to each truth, and how many examples it identifies."""

    psnr: tuple[float, ...]
    identified: int


@dataclass(frozen=True)
class NearestPublic:
    """PSNR of the public picture nearest to each truth."""

    psnr: tuple[float, ...]


@dataclass(frozen=True)
class Nulls:
    """What an attacker without this update could show; `other_client` is `None` without a result."""

    mean_image: MeanImage
    nearest_public: NearestPublic
    other_client: OtherClients | None

    @staticmethod
    def of(mean: tuple[float, ...], picked: int, nearest: tuple[float, ...], others: OtherClients | None) -> "Nulls":
        """From the PSNR of the mean and of the nearest picture, and how many examples the mean one identifies."""
        return Nulls(MeanImage(mean, picked), NearestPublic(nearest), others)


@dataclass(frozen=True)
class LabelScores:
    """Recovered labels as a multiset against the true one, or known to the attacker; beside the best guess that is the
    same for every client of the source, labels drawn from the class shares, and the reader's own confidence, 0 to 1."""

    true_counts_f1: float
    constant_f1: float
    baseline_f1: float
    confidence: float | None
    known: bool


@dataclass(frozen=True)
class LayerRead:
    """A layer whose input was read and proved, for how many examples, and the estimated relative error of that."""

    layer: str
    examples: int
    error: float


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
