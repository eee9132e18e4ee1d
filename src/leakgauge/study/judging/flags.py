"""What makes an audit's own result unreliable. A flagged row cannot pass a gate."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from enum import Enum

from leakgauge.study.deal import CONTROLS
from leakgauge.study.judging.findings import by_client, gain_of
from leakgauge.study.judging.records import Role, Trial, TrialGroup, control_of, shares
from leakgauge.study.judging.results import Finding, Flag, Level

FEWEST = 4
"""Clients without which a weaker attack's win may be luck."""
WINS = 0.75
"""Share of the clients that a weaker attack must win, without a loss, to say that the stronger one is broken. Two
attacks that each recover by the toss of a coin do so in less than 1 % of audits."""
NOTHING = 0.5
"""dB: less is no gain over the attack's own prior."""
AGREES = 0.1
"""A restart agrees with the best where it is within this share of the way that the best has come."""
SHORT = 0.5
"""Share of the control's gradient evaluations below which a search that the clock ended was cut short."""
LEAST = 300, 8
"""Fewest gradient evaluations per example, and most examples counted, with which a search is complete where no control
needed one: half of `auto`'s own."""
ENDED = ("time_limit", "stopped", "out_of_budget", "out_of_steps")
"""How a search ends that did not come to an end by itself."""


class Doubt(Enum):
    """Kinds of flags: the name is the ``kind`` in report.json, the value a template of the sentence."""

    Uninformed = (
        "the attacker does not know the defence (knows: defense; one of your own says in its steps what "
        "attackers can use), and hiding it is no defence"
    )
    BrokenElsewhere = "{by}; no attack here does that, so finding nothing says little"
    CutShort = (
        "{how} in {trials} of {of} trials, after {percent:.0f} % of the control's gradient evaluations: {why} "
        "(budget.gradient_evaluations gives each as many)"
    )
    SearchNotShown = (
        "the search was ended after few gradient evaluations in {trials} of {of} trials, and controls were read "
        "without one: nothing shows what so short a search finds (budget)"
    )
    WeakerWins = "{weaker}, which should be weaker, recovers more in {wins} of {clients} clients"
    NoGradient = "the attack's objective {what} in {trials} of {of} trials: it had no gradient to follow"
    ControlNotRecovered = (
        "of {clients} clients without a defence the attack recovers {percent:.0f} %: its failure says nothing"
    )
    NoBetterThanPrior = (
        "without a defence its pictures are no more like their own images than like other clients' ({gain:+.1f} dB): "
        "they come from the attack's guesswork, not from the update"
    )
    RestartsDisagree = "seeds or restarts of the attack disagree in {clients} of {of} clients: more would find more"
    MethodRaised = "{method} ended by an error in {trials} of {of} trials ({why})"
    InputsOfLayer = (
        "what {layer} was given was read exactly for {examples} examples of {clients} clients: features that tell "
        "whose data it was, though no picture came of them here"
    )
    PartRead = "{part} ({kind}) was read with less than half of the error of the best guess without the update"
    TargetsUnjudged = (
        "what the updates say of {part} ({kind}) has no known limit here: finding nothing of it says little"
    )
    NotUnderstood = "{why}, in {trials} of {of} trials: finding nothing says little"

    def flag(self, **values: str | float) -> Flag:
        return Flag(self.name, self.value.format(**values))


def flags_of(group: TrialGroup, found: Finding, groups: Sequence[TrialGroup]) -> tuple[Flag, ...]:
    """All that apply to a row that is no control and has an attack that applies."""
    if group.control or found.level is Level.NOT_APPLICABLE:
        return ()
    control = control_of(group, groups)
    open_ = found.level is not Level.EXPOSED
    return (
        *(_uninformed(group) if open_ else ()),
        *_cut_short(group, control),
        *_weaker_wins(group, groups),
        *_no_gradient(group),
        *(_control(found, group) if open_ else ()),
        *(_prior(control if control is not None else group) if open_ else ()),
        *_disagree(group, control),
        *(_unread(group) if open_ else ()),
        *(_parts(group) if open_ else ()),
    )


def _uninformed(group: TrialGroup) -> Iterator[Flag]:
    """Attackers who do not know the defence, but of a naive reading, which stands beside one that knows; and defences
    that a published attack breaks with more than one update."""
    scenario, naive = group.scenario, all(t.role is Role.NAIVE for t in group.trials)
    if scenario.defended and "defense" not in scenario.knowledge and not naive:
        yield Doubt.Uninformed.flag()
    if scenario.broken_by:
        yield Doubt.BrokenElsewhere.flag(by=scenario.broken_by)


def _cut_short(group: TrialGroup, control: TrialGroup | None) -> Iterator[Flag]:
    """Whether the clock, or the attack's own end, cut searches off before they had come as far as on the control.
    Controls that came back by a read alone show no search's power."""
    late = [t for t in group.scored if t.status in ENDED]
    if control is None or control is group or not late or not control.scored:
        return
    # More came back than was certified.
    searched = [t for t in control.scored if t.scores is not None and sum(t.scores.recovered) > t.scores.certified]
    spent, usual = (
        statistics.median(t.cost.gradient_evaluations for t in some) for some in (late, searched or control.scored)
    )
    if not searched and control.certified:
        if spent < LEAST[0] * min(group.scenario.data.batch, LEAST[1]):
            yield Doubt.SearchNotShown.flag(trials=len(late), of=len(group.trials))
    elif spent < SHORT * usual:
        clock = any(t.status == "time_limit" for t in late)
        yield Doubt.CutShort.flag(
            trials=len(late),
            of=len(group.trials),
            percent=100 * spent / usual,
            how="time ran out" if clock else "the search was ended early",
            why="that a defence is slow to simulate is no protection" if clock else "what did not look found nothing",
        )


def _weaker_wins(group: TrialGroup, groups: Sequence[TrialGroup]) -> Iterator[Flag]:
    mine = group.trials[0]
    for other in groups:
        if other.control or other.scenario != group.scenario or not _should_lose(other.trials[0], mine):
            continue
        both = group.recovered.keys() & other.recovered.keys()
        gaps = [statistics.fmean(other.recovered[c]) - statistics.fmean(group.recovered[c]) for c in both]
        wins = sum(gap > 0 for gap in gaps)
        if wins >= max(FEWEST, math.ceil(WINS * len(both))) and not any(gap < 0 for gap in gaps):
            yield Doubt.WeakerWins.flag(weaker=other.attack, wins=wins, clients=len(both))


def _should_lose(weaker: Trial, stronger: Trial) -> bool:
    if stronger.role is Role.STRONGEST:
        return weaker.role in (Role.RECIPE, Role.NAIVE)
    return stronger.role is Role.RECIPE and weaker.role is Role.NAIVE and weaker.base == stronger.base


def _no_gradient(group: TrialGroup) -> Iterator[Flag]:
    """In half of the trials or more: a search that ends where it began."""
    searched = [t for t in group.trials if (t.trace and t.cost.gradient_evaluations) or t.status == "non_finite"]
    broken = [t for t in searched if t.status == "non_finite" or any(value is None for _, value in t.trace)]
    # Where a read was right before any search, there was nothing left to follow.
    right = {t.id for t in group.scored if t.scores is not None and (t.scores.certified or all(t.scores.recovered))}
    still = [t for t in searched if t not in broken and t.id not in right and _stands(t)]
    for trials, what in ((broken, "was not finite"), (still, "did not move")):
        if trials and 2 * len(trials) >= len(searched):
            yield Doubt.NoGradient.flag(what=what, trials=len(trials), of=len(searched))
            return


def _stands(trial: Trial) -> bool:
    values = [value for _, value in trial.trace if value is not None]
    return max(values) - min(values) <= 1e-9 * max(abs(v) for v in values)


def _unread(group: TrialGroup) -> Iterator[Flag]:
    """Methods that raised; the layer read for most examples, each client's once; networks that were not understood."""
    why: dict[str, str] = {}
    raised, opaque = Counter[str](), Counter[str]()
    layers: dict[str, Counter[int]] = {}
    for trial in group.trials:
        broken = {one.name: one.why for one in trial.tried if one.raised}
        raised.update(broken.keys())
        why = broken | why
        opaque.update(dict.fromkeys((one.why for one in trial.tried if one.opaque), 1))
        for layer in trial.layers:
            clients = layers.setdefault(layer.layer, Counter())
            clients[trial.client] = max(clients[trial.client], layer.examples)
    of = len(group.trials)
    for method, n in raised.items():
        yield Doubt.MethodRaised.flag(method=method, why=why[method], trials=n, of=of)
    if layers:
        name, clients = max(layers.items(), key=lambda item: item[1].total())
        yield Doubt.InputsOfLayer.flag(layer=name, examples=clients.total(), clients=len(clients))
    for words, n in opaque.items():
        yield Doubt.NotUnderstood.flag(why=words, trials=n, of=of)


def _parts(group: TrialGroup) -> Iterator[Flag]:
    """Parts that were read though no example came back whole, and targets other than classes, which nothing judges."""
    kinds: dict[str, str] = {}
    left, guessed = defaultdict[str, float](float), defaultdict[str, float](float)
    for trial in group.trials:
        for part in trial.parts:
            kinds[part.name] = part.kind
            ours, theirs = part.missed
            left[part.name] += ours
            guessed[part.name] += theirs
    for name, kind in kinds.items():
        if left[name] < HALF * guessed[name]:
            yield Doubt.PartRead.flag(part=name, kind=kind)
        elif kind in TARGETS:
            yield Doubt.TargetsUnjudged.flag(part=name, kind=kind)


HALF = 0.5
"""A part was read where this share of what the best guess leaves open is left open by the read."""
TARGETS = ("labels", "values", "mask", "nexttoken", "timetoevent")
"""Kinds of parts that are taught, but for classes."""


def _control(found: Finding, group: TrialGroup) -> Iterator[Flag]:
    """The attack fails without the defence too. Too few clients to show anything: that is said elsewhere."""
    few = not group.scenario.defended and found.power.clients < CONTROLS
    if found.power.shown is False and not few:
        percent = 100 * (found.power.recovered or 0.0)
        yield Doubt.ControlNotRecovered.flag(clients=found.power.clients, percent=percent)


def _prior(undefended: TrialGroup) -> Iterator[Flag]:
    """Only of undefended clients: behind a good defence no gain is what one wants."""
    gain = None if undefended.scenario.defended else gain_of(undefended)
    if gain is None or (gain.mean >= NOTHING and (gain.low or 0.0) > 0):
        return
    if not sum(shares(undefended.recovered)):
        yield Doubt.NoBetterThanPrior.flag(gain=gain.mean)


def _disagree(group: TrialGroup, control: TrialGroup | None) -> Iterator[Flag]:
    """Whether an image comes back is luck of the start: of the row's clients, or else of the undefended ones."""
    for trials in (group, *([] if control is None or control is group else [control])):
        clients = by_client(trials.scored, lambda t: t)
        torn = sum(map(_torn, clients))
        if 2 * torn > len(clients):
            yield Doubt.RestartsDisagree.flag(clients=torn, of=len(clients))
            return


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
