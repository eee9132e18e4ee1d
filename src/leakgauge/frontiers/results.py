"""The report of a frontier, typed: what each row leaks, costs and guarantees, and what the rows say together.

One rule recommends: of the rows that keep accuracy and leak little under the stronger attacker the most accurate is
best. Nothing is assumed about a defence by its name, and rows whose result cannot be relied on are never recommended.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from leakgauge import __version__
from leakgauge.files import json_text, write_whole
from leakgauge.frontiers.plan import UNDEFENDED, Tolerance
from leakgauge.privacy.accounting import Unit
from leakgauge.study.judging.gate import needed
from leakgauge.study.judging.results import Finding, Identified, PSNRSummary

SCHEMA_VERSION = 4

TRAINING, UPDATE = "the whole training", "one update"  # what an ε counts
EMPTY, CERTAIN = 50.0, 0.9
"""ε beyond which a guarantee exists on paper (odds may change by a factor of e^50), and the chance of a right guess
that it may leave to be one."""
LITTLE = 0.05  # share of pictures identified up to which a defence looks good


@dataclass(frozen=True)
class Accuracy:
    """Test accuracy after a training, with the interval of a share of so many test examples."""

    value: float | None = None  #: `None` where it was not measured, and `reason` says why
    reason: str | None = None
    name: str = ""
    low: float | None = None
    high: float | None = None
    tested: int | None = None
    constant: float | None = None  #: what the same answer for all test examples would score
    diverged: int | None = None  #: the round after which a parameter was not finite
    curve: tuple[tuple[int, float], ...] = ()  #: (round, accuracy) where it was evaluated
    seconds: float | None = None


@dataclass(frozen=True)
class ClientTime:
    """Processor time of this row's client and of the plan's without a defence, and their median ratio."""

    client: float
    undefended: float
    relative: float


@dataclass(frozen=True)
class RowCost:
    """Bytes that a client sends, beside those of the undefended update, and its time on so many examples."""

    bytes: int
    bytes_undefended: int
    examples: int
    seconds: ClientTime


@dataclass(frozen=True)
class Privacy:
    """ε of the client whose examples are used most often; `epsilon` is `None` where there is none, for a `reason`."""

    epsilon: float | None = None
    reason: str | None = None
    delta: float | None = None
    accountant: str | None = None
    unit: str | None = None
    noise_multiplier: float | None = None
    sample_rate: float | None = None
    steps: int | None = None
    exchanged: float | None = None
    scope: str | None = None
    robustness: str | None = None
    at_most: float | None = None

    @property
    def hollow(self) -> bool:
        """Whether an ε keeps nobody from anything."""
        return self.epsilon is not None and (self.epsilon > EMPTY or (self.at_most or 0.0) >= CERTAIN)

    def beaten_by(self, other: "Privacy") -> bool:
        """Whether the other guarantee is at least as good: smaller, of the same unit or of clients."""
        if self.epsilon is None or self.hollow:
            return True
        narrower = other.unit != self.unit and other.unit != Unit.CLIENT.value
        return other.epsilon is not None and not narrower and other.epsilon <= self.epsilon


@dataclass(frozen=True)
class CounterUsed:
    """What an attacker who knows one part of the defence does about it, and what the plan's lacks for that."""

    part: str
    counter: str | None
    known: bool
    missing: str
    because: str


@dataclass(frozen=True)
class Leakage:
    """Under the attacker who takes the update for an undefended one, and under the one who knows the defence."""

    naive: Finding | None
    adapted: Finding | None

    @property
    def each(self) -> tuple[Finding, ...]:
        return tuple(found for found in (self.naive, self.adapted) if found)


@dataclass(frozen=True)
class RowResult:
    """One point of the frontier as report.json has it. Leakage is judged under the stronger of the two attackers."""

    family: str
    strength: int
    label: str
    defense: str
    client: str
    batch: int
    cohort: int
    counters: tuple[CounterUsed, ...]
    accuracy: Accuracy
    cost: RowCost | None
    leakage: Leakage
    privacy: Privacy = field(default_factory=Privacy)

    @property
    def bare(self) -> bool:
        return self.family == UNDEFENDED

    @property
    def both(self) -> tuple[tuple[Identified, PSNRSummary], ...]:
        """Identification and quality under the naive and the adapted attacker; of each that has a result."""
        return tuple((f.identified, f.psnr) for f in self.leakage.each if f.identified and f.psnr)

    @property
    def judged(self) -> bool:
        """Whether both attackers have a result."""
        return len(self.both) == 2

    @property
    def identified(self) -> Identified:
        """Under the stronger attacker; ties go to the one with fewer pictures."""
        return max((seen for seen, _ in self.both), key=lambda seen: (seen.count / seen.n, -seen.n))

    @property
    def rate(self) -> float:
        return self.identified.count / self.identified.n

    @property
    def leak(self) -> tuple[float, float]:
        """Order of leakage: identification, then the better mean PSNR, where below the null all are equal."""
        nulls = [f.null_psnr.mean for f in self.leakage.each if f.null_psnr]
        return self.rate, max(*(psnr.mean for _, psnr in self.both), *nulls)

    @property
    def labels(self) -> tuple[float, float] | None:
        """(mean F1 of the better reader, what the best constant guess has), where labels leak beyond their interval."""
        scores = [f.label_f1 for f in self.leakage.each if f.label_f1]
        return max(((s.mean, s.baseline) for s in scores if s.leaks), default=None)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why its leakage cannot be relied on: an attack that broke on pictures, or a flag of the adapted one."""
        lost = max(self.leakage.each, key=lambda f: f.failed, default=None)
        said = [f"{lost.failed} of {lost.trials} trials gave no result"] if lost and lost.failed else []
        return (*said, *(flag.sentence for flag in (self.leakage.adapted.flags if self.leakage.adapted else ())))

    @property
    def flatters(self) -> bool:
        """Whether a defence only looks good: what the naive attacker identifies is little and may be chance, what the
        adapted one does is not."""
        (naive, _), (adapted, _) = self.both
        chance = max(naive.chance, adapted.chance)
        return naive.low <= chance < adapted.low and naive.count <= max(chance, LITTLE) * naive.n

    @property
    def words(self) -> str:
        """Its label, with the family where that says more."""
        if self.bare:
            return "no defence"
        plain = ["".join(c for c in text.lower() if c.isalnum()) for text in (self.family, self.label)]
        return self.label if plain[0] in plain[1] else f"{self.label} ({self.family})"

    def dominates(self, other: "RowResult") -> bool:
        """At least as accurate and leaks no more, and better in one of the two. A guarantee is beaten by a better one
        only: what these attacks did says nothing of the next."""
        ours, theirs = self.accuracy.value, other.accuracy.value
        if ours is None or theirs is None or not other.privacy.beaten_by(self.privacy):
            return False
        return ours >= theirs and self.leak <= other.leak and (ours, self.leak) != (theirs, other.leak)


@dataclass(frozen=True)
class Recommendation:
    """What the rows say together: what is best, why or why not, and for each row what else to know of it."""

    headline: str
    sentences: tuple[str, ...]
    notes: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Simulated:
    """The simulation behind the accuracies; `reason` says why there is none."""

    measured: bool
    reason: str | None = None
    train: str | None = None
    test: str | None = None
    client: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    examples_of_a_client: tuple[int, ...] = ()
    rounds_of_a_client: tuple[int, ...] = ()


@dataclass(frozen=True)
class AttackEffort:
    """What both attackers had, and what was not tried."""

    attack: str
    gradient_evaluations: int | None  #: of a trial of the undefended row; `None` for any number.
    images: int
    seeds: int
    labels: bool
    statistics: bool  #: whether the model has running statistics, which no defence here covers
    absent: tuple[str, ...]  #: registered defences that are not in the plan


@dataclass(frozen=True, kw_only=True)
class Report:
    """What report.json holds; byte-equal between runs once every ``seconds`` and ``created_at`` is deleted."""

    schema_version: int = SCHEMA_VERSION
    leakgauge_version: str = __version__
    created_at: str
    config: Mapping[str, object]
    environment: Mapping[str, object]
    tolerance: Mapping[str, float]
    utility: Simulated
    tried: AttackEffort
    rows: tuple[RowResult, ...]
    recommendation: Recommendation

    @property
    def name(self) -> str:
        return str(self.config.get("name", "frontier"))

    def write(self, path: Path) -> Path:
        record = TypeAdapter(Report).dump_python(self, mode="json", fallback=str)
        return write_whole(path, json_text(record), "free space, then run the same command: what is finished is kept")


def recommendation(rows: Sequence[RowResult], tolerance: Tolerance) -> Recommendation:
    judged = [row for row in rows if row.judged]
    bare = next((row for row in judged if row.bare), None)
    trained = [row for row in judged if row.accuracy.value is not None]
    front = {id(row) for row in trained if not any(other.dominates(row) for other in judged)}
    notes = tuple(tuple(_notes(row, tolerance, id(row) in front)) for row in rows)
    if bare is None:
        none = "Nothing can be recommended: the undefended row has no result to compare with."
        return Recommendation(none, (), notes)
    a = bare.accuracy
    reached = "" if a.value is None else f", and the model reaches {_percent(a.value)} accuracy"
    said = (
        f"Without a defence {_seen(bare)} pictures are identified{reached}.",
        "Only a row with an ε is differentially private: the others say what these attacks did, and no more.",
    )
    return Recommendation(_headline([row for row in judged if not row.bare], bare, tolerance), said, notes)


def _headline(defended: list[RowResult], bare: RowResult, tolerance: Tolerance) -> str:
    a, most = bare.accuracy, _percent(tolerance.identified)
    if bare.rate <= tolerance.identified:
        return (
            f"The attack identifies no more than {most} of the pictures even without a defence, so this run cannot "
            "tell the defences apart: give the attacker more effort or more knowledge."
        )
    if a.value is None:
        why = f" ({a.reason})" if "diverged" in (a.reason or "") else ""
        return f"Accuracy was not measured{why}, so nothing here says what a defence costs."
    if a.constant is not None and (a.value if a.low is None else a.low) <= a.constant:
        return (
            f"The undefended model ({_percent(a.value)}) is not shown to do better than the same answer for all "
            f"({_percent(a.constant)}), so nothing here says what a defence costs: train it longer, or with another "
            "rate."
        )
    if len(a.curve) > 1 and a.curve[-1][1] - a.curve[-2][1] > tolerance.accuracy:
        (before, less), (after, more) = a.curve[-2:]
        return (
            "The trainings are too short to recommend a defence: the undefended model was still learning "
            f"({_percent(less)} after round {before}, {_percent(more)} after round {after})."
        )
    good = [row for row in defended if not row.doubts and row.rate <= tolerance.identified]
    good = [row for row in good if (row.accuracy.value or 0.0) >= a.value - tolerance.accuracy - 1e-9]
    if not good:
        return (
            f"Nothing tried keeps accuracy within {100 * tolerance.accuracy:g} points of undefended while at most "
            f"{most} of the pictures are identified."
        )
    best = max(good, key=lambda row: (row.accuracy.value, -row.leak[0], -row.leak[1]))
    # Time differs from run to run; sentences are compared byte by byte.
    share = 1.0 if best.cost is None else best.cost.bytes / max(best.cost.bytes_undefended, 1)
    upper = best.identified.upper
    shown = (
        f"{best.words}, with {_percent(best.accuracy.value)} accuracy against {_percent(a.value)} without a defence, "
        f"{_seen(best)} pictures identified (with 95 % confidence at most {100 * upper:.0f} %)"
        + f", {share:.0%} of the bytes"
        * (round(share, 2) != 1)
    )
    if upper <= tolerance.identified:
        return f"Best of what was tried: {shown}."
    return (
        f"Best of what was tried, on too few pictures to rely on it: {shown}. With none identified it takes "
        f"{needed(tolerance.identified)} pictures to show {most}."
    )


def _notes(row: RowResult, tolerance: Tolerance, front: bool) -> Iterator[str]:
    if not row.judged:
        yield "not compared: without a result of an attack"
        return
    quiet, most = row.rate <= tolerance.identified, _percent(tolerance.identified)
    if front:
        yield "on the frontier: no row that is as accurate leaks less"
    if row.doubts and not row.bare:
        yield f"not recommended: {row.doubts[0]}" if quiet else f"{row.doubts[0]}, which is no protection"
    elif quiet and not row.bare:
        shown = row.identified.upper <= tolerance.identified
        few = f"quiet on too few pictures to rely on: it takes {needed(tolerance.identified)} to show {most}"
        yield f"at most {most} identified, with 95 % confidence" if shown else few
    if row.flatters:
        (naive, _), (adapted, _) = row.both
        yield (
            f"good only against an attacker who does not know the defence ({naive.count} of {naive.n} identified, "
            f"{adapted.count} of {adapted.n} once it adapts)"
        )
    if row.labels is not None:
        yield f"labels are read: F1 {row.labels[0]:.2f}, by the best constant guess {row.labels[1]:.2f}"
    if row.privacy.hollow:
        yield "its ε promises next to nothing"
    elif row.privacy.epsilon is not None and row.privacy.scope != TRAINING:
        yield "its ε is of one update, and more in a training"


def _seen(row: RowResult) -> str:
    return f"{row.identified.count} of {row.identified.n}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %".replace(".0 %", " %")
