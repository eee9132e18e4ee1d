"""Trials that belong together, a group, whose unit is the client, and seeds repeat it; and what an audit says of one,
typed, as report.json has it."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from functools import cached_property
from operator import itemgetter
from typing import Annotated, Any, TypeVar

from pydantic import computed_field

from leakgauge.observation import Cost
from leakgauge.study.judging.records import UNLESS_EMPTY, OtherClients, Scenario, Scores, Trial

Of = TypeVar("Of")


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


class Level(Enum):
    """From the worst on."""

    EXPOSED = "exposed"
    PARTIAL = "partial"
    INCONCLUSIVE = "inconclusive"
    NOT_RECOVERED = "not_recovered"
    NOT_APPLICABLE = "not_applicable"

    @property
    def words(self) -> str:
        return self.value.replace("_", " ")

    @property
    def rank(self) -> int:
        """0 is the worst."""
        return list(Level).index(self)


@dataclass(frozen=True)
class Power:
    """What the attack does without a defence, on the same kind of client: the highest PSNR, whether it works (`None`
    without a control), the control's first trial, and its clients with the mean share of their images recovered."""

    psnr: float | None = None
    shown: bool | None = None
    trial: str | None = None
    clients: int = 0
    recovered: float | None = None


@dataclass(frozen=True)
class PSNRSummary:
    """In dB: the mean over clients with its 95 % interval, and highest, median and lowest of the images."""

    mean: float
    low: float | None
    high: float | None
    highest: float
    median: float
    lowest: float


@dataclass(frozen=True)
class NullPSNR:
    """Of the public picture that is nearest to each truth."""

    mean: float
    high: float
    kind: str = "nearest_public"


@dataclass(frozen=True)
class Identified:
    """How many images were singled out in a line-up."""

    count: int
    n: int
    rate: float
    clients: int
    low: float  # low, high: 95 % interval of the share, over clients: the sample
    high: float
    upper: float  # one-sided 95 % bound
    chance: float  # share of other clients' images that the same reads identified
    beyond: float  # how likely other clients in place of these would be identified as often
    naive: float  # share that the mean public picture identifies
    gallery: int  # size of the line-up
    whole: int  # how many in it are whole other pictures
    worst: int  # most images of one client
    layer: Annotated[str, UNLESS_EMPTY] = ""  # whose input, read and proved, identified what the reads did not


@dataclass(frozen=True)
class Residual:
    """(attack − control) / (1 − control): what an update adds to identifying its images, with a 95 % interval."""

    rate: float
    low: float
    high: float


@dataclass(frozen=True)
class PSNRGain:
    """Mean PSNR of the reads against their own images less that against other clients', in dB, by client."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class LabelLeak:
    """Label F1 by client, and how far it is above the best guess that is the same for all."""

    mean: float
    low: float
    high: float
    upper: float  # one-sided 95 % bound of F1
    baseline: float  # of the best constant guess
    above: float  # above to above_high: F1 less that, by client
    above_low: float
    above_high: float
    confidence: float | None  # the reader's own, mean; `None` where it gives none
    n: int
    right: int  # clients all of whose labels were read
    # whether clients in which the reader beats that guess, those in which it does worse taken off, are by the sign test
    # more than luck gives with 95 % confidence, and by at least half of what the guess lacks
    better: bool
    # whether the reader beats that guess on undefended controls, or reads all of their labels: a reader that assumes
    # another loss fails on both. `None` where it was not tried on any
    shown: bool | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def leaks(self) -> bool | None:
        """`True` beyond the interval, by a sign test, or where every label of several clients was read; `False` where
        no better than the constant guess; `None` where it cannot be told: in few clients, where the reader itself gives
        its answer no confidence, or where it fails on undefended controls as well. One client's own counts are the best
        constant guess for it, so one client never says that labels do not leak."""
        if self.n < 2:
            return None
        if self.above <= 0:
            return None if self.shown is False else False
        read = self.above_low > 0 or self.better or self.right == self.n
        return True if read and self.confidence != 0 else None


@dataclass(frozen=True)
class TokenLeak:
    """Tokens of texts as multisets, by client: F1 with its 95 % interval, and that of the most frequent tokens of other
    texts; and the share of clients whose tokens came back, no others; as often as they occur; as a text in order."""

    mean: float
    low: float
    high: float
    precision: float
    recall: float
    baseline: float
    sets: float
    counts: float
    order: float
    n: int

    @property
    def words(self) -> str:
        how_often = " counts how often" if self.counts < self.sets else ""
        f1 = f"F1 {self.mean:.2f}{how_often}, of the most frequent tokens {self.baseline:.2f}"
        if not self.sets:
            return f"tokens were read with precision {self.precision:.2f} and recall {self.recall:.2f}; {f1}"
        parts = (("as often as they occur", self.counts), ("in order", self.order))
        more = "".join(f", {what} from {share * self.n:.0f}" for what, share in parts if share)
        came = f"the same tokens and no others from {self.sets * self.n:.0f} of {self.n} client{'s' * (self.n != 1)}"
        return f"{came}{more}; {f1}"


@dataclass(frozen=True)
class Flag:
    """Why a row is unreliable."""

    kind: str
    sentence: str


@dataclass(frozen=True)
class Finding:
    """What an attack achieved in a scenario, as in ``verdict.findings``. What needs a result is `None` without one."""

    scenario: Scenario
    attack: str
    control: bool
    level: Level
    trials: int
    failed: int
    images: int
    clients: int
    psnr: PSNRSummary | None
    null_psnr: NullPSNR | None
    ssim_mean: float | None
    lpips_mean: float | None
    identified: Identified | None
    recovered: int | None
    certified: int
    residual_risk: Residual | None
    gain: PSNRGain | None
    label_f1: LabelLeak | None
    power: Power
    cost: Cost
    sentence: str = ""
    flags: tuple[Flag, ...] = ()
    _: KW_ONLY
    tokens: Annotated[TokenLeak | None, UNLESS_EMPTY] = None
