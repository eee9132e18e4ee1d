"""A finished row of a frontier, typed: what it leaks, what it costs, and what it guarantees."""

from __future__ import annotations

from dataclasses import dataclass, field

from leakgauge.frontiers.plan import UNDEFENDED
from leakgauge.privacy.guarantee import Unit
from leakgauge.study.judging.results import (
    Flag,
    Identified,
    LabelLeak,
    Level,
    NullPSNR,
    Power,
    PSNRGain,
    PSNRSummary,
    Residual,
    TotalCost,
)

TRAINING, UPDATE = "the whole training", "one update"
"""What an ε counts."""
EMPTY, CERTAIN = 50.0, 0.9
"""ε beyond which a guarantee exists on paper (odds may change by a factor of e^50), and the chance of a right guess
that it may leave to be one."""


@dataclass(frozen=True)
class RowFinding:
    """What one attacker achieved: fields of an audit's `Finding` that a row keeps, and the worst image."""

    level: Level
    images: int
    trials: int
    failed: int
    psnr: PSNRSummary | None
    null_psnr: NullPSNR | None
    ssim_mean: float | None
    lpips_mean: float | None
    identified: Identified | None
    recovered: int | None
    label_f1: LabelLeak | None
    power: Power
    cost: TotalCost
    sentence: str
    clients: int
    flags: tuple[Flag, ...]
    residual_risk: Residual | None
    gain: PSNRGain | None
    attack: str = ""
    ssim_worst: float | None = None
    lpips_worst: float | None = None


@dataclass(frozen=True)
class Accuracy:
    """Test accuracy after a training, with the interval of a share of so many test examples.

    Attributes:
        value: `None` where it was not measured, and `reason` says why.
        constant: what the same answer for all test examples would score.
        diverged: the round after which a parameter was not finite.
        curve: (round, accuracy) where it was evaluated.
    """

    value: float | None = None
    reason: str | None = None
    name: str = ""
    low: float | None = None
    high: float | None = None
    tested: int | None = None
    constant: float | None = None
    diverged: int | None = None
    curve: tuple[tuple[int, float], ...] = ()
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

    def beaten_by(self, other: Privacy) -> bool:
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

    naive: RowFinding | None
    adapted: RowFinding | None


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
        """Whether it is the undefended row."""
        return self.family == UNDEFENDED

    @property
    def judged(self) -> bool:
        """Whether both attackers have a result."""
        return all(f is not None and f.identified and f.psnr for f in (self.leakage.naive, self.leakage.adapted))

    @property
    def both(self) -> tuple[tuple[Identified, PSNRSummary], tuple[Identified, PSNRSummary]]:
        """Identification and quality under the naive and the adapted attacker; of a `judged` row."""
        found = []
        for f in (self.leakage.naive, self.leakage.adapted):
            assert f is not None
            assert f.identified is not None
            assert f.psnr is not None
            found.append((f.identified, f.psnr))
        return found[0], found[1]

    @property
    def identified(self) -> Identified:
        """Under the stronger attacker; ties go to the one with fewer pictures."""
        return max((seen for seen, _ in self.both), key=lambda seen: (seen.count / seen.n, -seen.n))

    @property
    def rate(self) -> float:
        return self.identified.count / self.identified.n

    @property
    def null(self) -> float:
        """Mean PSNR that needs no update, in dB."""
        found = (self.leakage.naive, self.leakage.adapted)
        return max((f.null_psnr.mean for f in found if f and f.null_psnr), default=float("-inf"))

    @property
    def leak(self) -> tuple[float, float]:
        """Order of leakage: identification, then the better mean PSNR, where below the null all are equal."""
        return self.rate, max(*(psnr.mean for _, psnr in self.both), self.null)

    @property
    def labels(self) -> tuple[float, float] | None:
        """(mean F1 of the better reader, what the best constant guess has), where labels leak beyond their interval."""
        scores = [f.label_f1 for f in (self.leakage.naive, self.leakage.adapted) if f and f.label_f1]
        return max(((s.mean, s.baseline) for s in scores if s.leaks), default=None)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why its leakage cannot be relied on: an attack that broke on pictures, or a flag of the adapted one."""
        found = [f for f in (self.leakage.naive, self.leakage.adapted) if f]
        lost = max(found, key=lambda f: f.failed, default=None)
        said = [f"{lost.failed} of {lost.trials} trials gave no result"] if lost and lost.failed else []
        return (*said, *(flag.sentence for flag in (self.leakage.adapted.flags if self.leakage.adapted else ())))

    @property
    def words(self) -> str:
        """Its label, with the family where that says more."""
        if self.bare:
            return "no defence"
        plain = ["".join(c for c in text.lower() if c.isalnum()) for text in (self.family, self.label)]
        return self.label if plain[0] in plain[1] else f"{self.label} ({self.family})"
