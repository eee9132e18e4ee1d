"""What an audit stores of its trials, typed; pydantic writes and reads it as the JSON of report.json."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from leakgauge.errors import InputError
from leakgauge.observation import Cost, Tried
from leakgauge.study.judging.part_scores import UNLESS_EMPTY, PartScores, TokenScores, Words

Values = tuple[float | None, ...]
"""One number for each true example; `None` without a reconstruction."""

INTERNED = ("attack", "base", "status", "message", "blind")
"""Texts that many trials share."""


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
    """What was attacked.

    Attributes:
        defended: whether a mechanism stands between the client's examples and its update.
        broken_by: who breaks that mechanism with more than an attack here is given; empty where nobody is known to.
    """

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
    def of_all_clients(self) -> Scenario:
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
class Scores:
    """Of a trial with a result, one entry for each true example.

    Attributes:
        psnr, ssim, mse, lpips: against the original, by the assignment with the least squared error.
        likeness: up to shift, mirror, turn and light (see `leakgauge.metrics.assignment`), to the original or to
            what the client trained on.
        rank: in the line-up; 1 is nearest.
        identified: nearest of the line-up, by structure.
        recovered: identified, and with half of the squared structure that the mean picture leaves explained; or equal
            to the original, or to what the client trained on, to the eye.
        exact: at the cap of PSNR.
        trained_psnr: against what the client trained on; `None` where that is the original.
        certified: reads that the attack proved by its own check.
        gallery, whole: pictures in the line-up, and how many of them are whole other examples rather than crops.
    """

    psnr: Values
    ssim: Values | None
    mse: Values
    lpips: Values | None
    likeness: Values | None
    rank: tuple[int, ...]
    identified: tuple[bool, ...]
    recovered: tuple[bool, ...]
    exact: tuple[bool, ...]
    trained_psnr: Values | None
    certified: int
    gallery: int
    whole: int


@dataclass(frozen=True)
class OtherClients:
    """The same reconstruction held against examples of other clients, by the same assignment and line-up.

    Attributes:
        psnr: of all their examples.
        identified, recovered: how many of each client's examples; all clients have as many.
    """

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


@dataclass(frozen=True)
class LabelScores:
    """Recovered labels as a multiset against the true one.

    Attributes:
        true_counts_f1: of the attack.
        constant_f1: of the best guess that is the same for every client of the source.
        baseline_f1: expected of labels drawn from the class shares.
        confidence: the reader's own, 0 to 1; `None` where it gives none.
        known: whether the attacker was given the labels.
    """

    true_counts_f1: float
    constant_f1: float
    baseline_f1: float
    confidence: float | None
    known: bool


@dataclass(frozen=True)
class TensorShare:
    """How well a plan explains one tensor, and the tensor's share of the update's squared norm."""

    name: str
    energy: float | None
    cosine: float | None
    norm: float | None


@dataclass(frozen=True)
class Cause:
    """What may be wrong with a plan.

    Attributes:
        key: of the plan, e.g. ``mode``.
        change: what to write or look at.
        share: explained with that change; `None` where nothing could be tried.
    """

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
    """One attack on one client's update: an entry of report.json's ``trials``.

    Attributes:
        role, base: what the attack claims to be, and what a naive or adapted reading is a reading of.
        blind: why the update says nothing of its images; empty where it does, or was not asked.
        explained: of a captured update.
        tokens: of texts, what was read of them.
        tried: the methods of an attack of several, in order.
        layers: whose input was read and proved, whether or not a picture came of it.
        parts: of a training step of the user's own, what was read of each.
        restarts: final objective of each restart, where the attack has several.
        trace: (gradient evaluations, objective), `None` for an objective that was not finite.
        words: of data that are no pictures.
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
    tokens: Annotated[TokenScores | None, UNLESS_EMPTY] = None
    tried: tuple[Tried, ...] = ()
    layers: tuple[LayerRead, ...] = ()
    parts: Annotated[tuple[PartScores, ...], UNLESS_EMPTY] = ()
    _: KW_ONLY
    cost: Cost
    words: Annotated[Words | None, UNLESS_EMPTY] = None
    explained: Annotated[Explanation | None, UNLESS_EMPTY] = None

    @property
    def client(self) -> int:
        """Which client of its scenario."""
        assert self.scenario.data.index is not None
        return self.scenario.data.index

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
        texts: dict[str, Any] = {k: sys.intern(getattr(self, k)) for k in INTERNED}
        if scores is not None:
            scores = replace(scores, mse=(), likeness=None, exact=(), trained_psnr=None)
        if other is not None:
            other = replace(other, psnr=(statistics.fmean(other.psnr),) if other.psnr else (), recovered=())
        return replace(
            self,
            scenario=_shared(replace(self.scenario, data=data)),
            **texts,
            scores=scores,
            controls=replace(controls, mean_image=replace(controls.mean_image, psnr=()), other_client=other),
            trace=_ends(self.trace),
            tried=tuple(one for one in self.tried if one.raised or one.opaque),
            words=None,
        )


TRIAL = TypeAdapter(Trial)


def record_of(trial: Trial) -> dict[str, Any]:
    """A trial as report.json has it, in texts that can be written as UTF-8."""
    return dict(readable(TRIAL.dump_python(trial, mode="json")))


def read_trial(record: Mapping[str, Any]) -> Trial:
    """A stored trial.

    Raises:
        InputError: an earlier version wrote it.
    """
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


@lru_cache(4096)
def _shared(scenario: Scenario) -> Scenario:
    """One object for equal ones."""
    return scenario


def _ends(trace: tuple[tuple[int, float | None], ...]) -> tuple[tuple[int, float | None], ...]:
    """The two ends, the first, lowest and highest finite value, and one that is not finite; in order."""
    finite = [(value, i) for i, (_, value) in enumerate(trace) if value is not None]
    kept = {0, len(trace) - 1, *(i for _, i in (*finite[:1], *sorted(finite)[:1], *sorted(finite)[-1:]))}
    kept |= set([i for i, (_, value) in enumerate(trace) if value is None][:1])
    return tuple(trace[i] for i in sorted(kept)) if trace else ()
