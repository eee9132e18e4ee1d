"""What makes an audit's own result unreliable. A flagged row cannot pass a gate."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from leakgauge.study.judging.cut_short import CutShort, cut_short
from leakgauge.study.judging.findings import gain_of
from leakgauge.study.judging.groups import TrialGroup, control_of, shares
from leakgauge.study.judging.records import Role, Trial
from leakgauge.study.judging.results import Finding, Level

FEWEST = 4
"""Clients without which a weaker attack's win may be luck."""
WINS = 0.75
"""Share of the clients that a weaker attack must win, without a loss, to say that the stronger one is broken. Two
attacks that each recover by the toss of a coin do so in less than 1 % of audits."""
NOTHING = 0.5
"""dB: less is no gain over the attack's own prior."""
AGREES = 0.1
"""A restart agrees with the best where it is within this share of the way that the best has come."""


@dataclass(frozen=True)
class WeakerWins:
    """An attack that should be weaker recovers what this one does not: this one is not tuned, or broken."""

    weaker: str
    wins: int
    clients: int

    @property
    def sentence(self) -> str:
        return f"{self.weaker}, which should be weaker, recovers more in {self.wins} of {self.clients} clients"


@dataclass(frozen=True)
class NoGradient:
    """The search had nothing to follow."""

    trials: int
    of: int
    finite: bool

    @property
    def sentence(self) -> str:
        what = "did not move" if self.finite else "was not finite"
        return f"the attack's objective {what} in {self.trials} of {self.of} trials: it had no gradient to follow"


@dataclass(frozen=True)
class ControlNotRecovered:
    """The attack fails without the defence too, so its failure says nothing of it."""

    recovered: float
    clients: int

    @property
    def sentence(self) -> str:
        share = f"{100 * self.recovered:.0f} %"
        return f"of {self.clients} clients without a defence the attack recovers {share}: its failure says nothing"


@dataclass(frozen=True)
class NoBetterThanPrior:
    """Without a defence the reads are no nearer to their own images than to strangers'."""

    gain: float

    @property
    def sentence(self) -> str:
        return (
            "without a defence its pictures are no more like their own images than like other clients' "
            f"({self.gain:+.1f} dB): they come from the attack's guesswork, not from the update"
        )


@dataclass(frozen=True)
class RestartsDisagree:
    """Whether an image comes back is luck of the start: more of them would recover more."""

    clients: int
    of: int

    @property
    def sentence(self) -> str:
        return f"seeds or restarts of the attack disagree in {self.clients} of {self.of} clients: more would find more"


@dataclass(frozen=True)
class Uninformed:
    """The attacker does not know the defence, or no `steps` of the defence say what knowing it gives."""

    @property
    def sentence(self) -> str:
        return (
            "the attacker does not know the defence (knows: defense; one of your own says in its steps what "
            "attackers can use), and hiding it is no defence"
        )


@dataclass(frozen=True)
class BrokenElsewhere:
    """A published attack breaks the defence with more than one update, and none here does."""

    by: str

    @property
    def sentence(self) -> str:
        return f"{self.by}; no attack here does that, so finding nothing says little"


@dataclass(frozen=True)
class MethodRaised:
    """A method that the attack tried ended by an error: what it would have found is not known."""

    method: str
    why: str
    trials: int
    of: int

    @property
    def sentence(self) -> str:
        return f"{self.method} ended by an error in {self.trials} of {self.of} trials ({self.why})"


@dataclass(frozen=True)
class InputsOfLayer:
    """What a layer was given was read and proved, and no picture came of it here: another attacker may make one."""

    layer: str
    examples: int
    clients: int

    @property
    def sentence(self) -> str:
        return (
            f"what {self.layer} was given was read exactly for {self.examples} examples of {self.clients} clients: "
            "features that tell whose data it was, though no picture came of them here"
        )


@dataclass(frozen=True)
class NotUnderstood:
    """The network was not understood: what no attack read of it may be there all the same."""

    why: str
    trials: int
    of: int

    @property
    def sentence(self) -> str:
        return f"{self.why}, in {self.trials} of {self.of} trials: finding nothing says little"


Flag = (
    Uninformed
    | BrokenElsewhere
    | CutShort
    | WeakerWins
    | NoGradient
    | ControlNotRecovered
    | NoBetterThanPrior
    | RestartsDisagree
    | MethodRaised
    | InputsOfLayer
    | NotUnderstood
)


def flags_of(group: TrialGroup, found: Finding, groups: Sequence[TrialGroup]) -> tuple[Flag, ...]:
    """All that apply to a row that is no control and has an attack that applies."""
    if group.control or found.level is Level.NOT_APPLICABLE:
        return ()
    control = control_of(group, groups)
    return (
        *_uninformed(group, found),
        *_broken(group, found),
        *cut_short(group, control),
        *_weaker_wins(group, groups),
        *_no_gradient(group),
        *_control(found, group),
        *_prior(control if control is not None else group, found),
        *_disagree(group, control),
        *_raised(group, found),
        *_layers(group, found),
        *_opaque(group, found),
    )


def _uninformed(group: TrialGroup, found: Finding) -> list[Flag]:
    """But of a naive reading, which stands beside one that knows."""
    scenario, naive = group.scenario, all(t.role is Role.NAIVE for t in group.trials)
    hidden = scenario.defended and "defense" not in scenario.knowledge
    return [Uninformed()] if hidden and not naive and found.level is not Level.EXPOSED else []


def _broken(group: TrialGroup, found: Finding) -> list[Flag]:
    by = group.scenario.broken_by
    return [BrokenElsewhere(by)] if by and found.level is not Level.EXPOSED else []


def _weaker_wins(group: TrialGroup, groups: Sequence[TrialGroup]) -> list[Flag]:
    mine = group.trials[0]
    flags: list[Flag] = []
    for other in groups:
        if other.control or other.scenario != group.scenario or not _should_lose(other.trials[0], mine):
            continue
        both = group.recovered.keys() & other.recovered.keys()
        gaps = [statistics.fmean(other.recovered[c]) - statistics.fmean(group.recovered[c]) for c in both]
        wins = sum(gap > 0 for gap in gaps)
        if wins >= max(FEWEST, math.ceil(WINS * len(both))) and not any(gap < 0 for gap in gaps):
            flags.append(WeakerWins(other.attack, wins, len(both)))
    return flags


def _should_lose(weaker: Trial, stronger: Trial) -> bool:
    if stronger.role is Role.STRONGEST:
        return weaker.role in (Role.RECIPE, Role.NAIVE)
    return stronger.role is Role.RECIPE and weaker.role is Role.NAIVE and weaker.base == stronger.base


def _no_gradient(group: TrialGroup) -> list[Flag]:
    """In half of the trials or more: a search that ends where it began."""
    searched = [t for t in group.trials if (t.trace and t.gradient_evaluations) or t.status == "non_finite"]
    broken = [t for t in searched if t.status == "non_finite" or any(value is None for _, value in t.trace)]
    still = [t for t in searched if t not in broken and _stands(t) and not _came_back(t)]
    for trials, finite in ((broken, False), (still, True)):
        if trials and 2 * len(trials) >= len(searched):
            return [NoGradient(len(trials), len(searched), finite)]
    return []


def _came_back(trial: Trial) -> bool:
    """Whether a read was right before any search: there was nothing left to follow."""
    return trial.scores is not None and bool(trial.scores.certified or all(trial.scores.recovered))


def _stands(trial: Trial) -> bool:
    values = [value for _, value in trial.trace if value is not None]
    return max(values) - min(values) <= 1e-9 * max(abs(v) for v in values)


def _raised(group: TrialGroup, found: Finding) -> list[Flag]:
    if found.level is Level.EXPOSED:
        return []
    first: dict[str, str] = {}
    times: Counter[str] = Counter()
    for trial in group.trials:
        broken = {one.name: one.why for one in trial.tried if one.raised}
        times.update(broken.keys())
        first = broken | first
    return [MethodRaised(name, first[name], n, len(group.trials)) for name, n in times.items()]


def _layers(group: TrialGroup, found: Finding) -> list[Flag]:
    """The layer that was read for most examples, those of a client counted once."""
    if found.level is Level.EXPOSED:
        return []
    most: dict[str, dict[int, int]] = {}
    for trial in group.trials:
        for one in trial.layers:
            clients = most.setdefault(one.layer, {})
            clients[trial.client] = max(clients.get(trial.client, 0), one.examples)
    if not most:
        return []
    layer, clients = max(most.items(), key=lambda item: sum(item[1].values()))
    return [InputsOfLayer(layer, sum(clients.values()), len(clients))]


def _opaque(group: TrialGroup, found: Finding) -> list[Flag]:
    if found.level is Level.EXPOSED:
        return []
    times = Counter(why for t in group.trials for why in dict.fromkeys(one.why for one in t.tried if one.opaque))
    return [NotUnderstood(why, n, len(group.trials)) for why, n in times.items()]


def _control(found: Finding, group: TrialGroup) -> list[Flag]:
    if found.power.shown is not False or found.level is Level.EXPOSED:
        return []
    if not group.scenario.defended and found.power.clients < 5:  # too few to show anything: that is said elsewhere
        return []
    return [ControlNotRecovered(found.power.recovered or 0.0, found.power.clients)]


def _prior(undefended: TrialGroup, found: Finding) -> list[Flag]:
    """Only of undefended clients: behind a good defence no gain is what one wants."""
    gain = None if undefended.scenario.defended else gain_of(undefended)
    if gain is None or found.level is Level.EXPOSED or (gain.mean >= NOTHING and (gain.low or 0.0) > 0):
        return []
    identified = sum(shares(undefended.recovered))
    return [NoBetterThanPrior(gain.mean)] if not identified else []


def _disagree(group: TrialGroup, control: TrialGroup | None) -> list[Flag]:
    """Of the row's own clients, or of the undefended ones where the row has nothing to disagree on."""
    for trials in (group, *([] if control is None or control is group else [control])):
        torn = [client for client, members in _by_client(trials).items() if _torn(members)]
        of = len(_by_client(trials))
        if of and 2 * len(torn) > of:
            return [RestartsDisagree(len(torn), of)]
    return []


def _by_client(group: TrialGroup) -> dict[int, list[Trial]]:
    found: dict[int, list[Trial]] = {}
    for trial in group.scored:
        found.setdefault(trial.client, []).append(trial)
    return found


def _torn(trials: list[Trial]) -> bool:
    """Whether some seeds recover at least half more of a client than others, or one restart stands alone in each."""
    each = [statistics.fmean(t.scores.recovered) for t in trials if t.scores is not None]
    if len(each) > 1 and max(each) - min(each) >= 0.5:
        return True
    return all(_alone(t) for t in trials)


def _alone(trial: Trial) -> bool:
    """Whether one restart of three or more got far further than all others."""
    ends = sorted(v for v in trial.restarts if v is not None)
    begin = next((v for _, v in trial.trace if v is not None), None)
    if len(trial.restarts) < 3 or len(ends) < 2 or begin is None or begin <= ends[0]:
        return False
    return ends[1] - ends[0] > AGREES * (begin - ends[0])
