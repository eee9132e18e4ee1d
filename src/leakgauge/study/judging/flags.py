"""What makes an audit's own result unreliable. A flagged row cannot pass a gate."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from leakgauge.study.deal import CONTROLS
from leakgauge.study.judging.findings import by_client, gain_of
from leakgauge.study.judging.records import Role, Trial
from leakgauge.study.judging.results import Finding, Flag, Level, TrialGroup, control_of, shares

FEWEST = 4  # clients without which a weaker attack's win may be luck
WINS = 0.75
"""Share of the clients that a weaker attack must win, without a loss, to say that the stronger one is broken. Two
attacks that each recover by the toss of a coin do so in less than 1 % of audits."""
NOTHING = 0.5  # dB: less is no gain over the attack's own prior
AGREES = 0.1  # a restart agrees with the best where it is within this share of the way that the best has come
SHORT = 0.5  # share of the control's gradient evaluations below which a search that the clock ended was cut short
LEAST = 300, 8
"""Fewest gradient evaluations per example, and most examples counted, with which a search is complete where no control
needed one: half of `auto`'s own."""
ENDED = ("time_limit", "stopped", "out_of_budget", "out_of_steps")  # ends of a search that are not its own
HALF = 0.5  # a part was read where this share of what the best guess leaves open is left open by the read
TARGETS = ("labels", "values", "mask", "nexttoken", "timetoevent")  # kinds of parts that are taught, but for classes


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
        *(_prior(control or group) if open_ else ()),
        *_disagree(group, control),
        *(_unread(group) if open_ else ()),
        *(_parts(group) if open_ else ()),
    )


def _uninformed(group: TrialGroup) -> Iterator[Flag]:
    """Attackers who do not know the defence, but of a naive reading, which stands beside one that knows; and defences
    that a published attack breaks with more than one update."""
    scenario, naive = group.scenario, all(t.role is Role.NAIVE for t in group.trials)
    if scenario.defended and "defense" not in scenario.knowledge and not naive:
        yield Flag(
            "Uninformed",
            "the attacker does not know the defence (knows: defense; one of your own says in its steps what attackers "
            "can use), and hiding it is no defence",
        )
    if scenario.broken_by:
        said = "no attack here does that, so finding nothing says little"
        yield Flag("BrokenElsewhere", f"{scenario.broken_by}; {said}")


def _cut_short(group: TrialGroup, control: TrialGroup | None) -> Iterator[Flag]:
    """Whether the clock, or the attack's own end, cut searches off before they had come as far as on the control.
    Controls that came back by a read alone show no search's power."""
    late = [t for t in group.scored if t.status in ENDED]
    if control is None or control is group or not late or not control.scored:
        return
    # More came back than was certified.
    searched = [t for t in control.scored if t.scores is not None and sum(t.scores.recovered) > t.scores.certified]
    both = late, searched or control.scored
    spent, usual = (statistics.median(t.cost.gradient_evaluations for t in some) for some in both)
    trials = f"in {len(late)} of {len(group.trials)} trials"
    if not searched and control.certified:
        if spent < LEAST[0] * min(group.scenario.data.batch, LEAST[1]):
            yield Flag(
                "SearchNotShown",
                f"the search was ended after few gradient evaluations {trials}, and controls were read without one: "
                "nothing shows what so short a search finds (budget)",
            )
    elif spent < SHORT * usual:
        how, why = "the search was ended early", "what did not look found nothing"
        if any(t.status == "time_limit" for t in late):
            how, why = "time ran out", "that a defence is slow to simulate is no protection"
        yield Flag(
            "CutShort",
            f"{how} {trials}, after {100 * spent / usual:.0f} % of the control's gradient evaluations: {why} "
            "(budget.gradient_evaluations gives each as many)",
        )


def _weaker_wins(group: TrialGroup, groups: Sequence[TrialGroup]) -> Iterator[Flag]:
    for other in groups:
        if other.control or other.scenario != group.scenario or not _should_lose(other.trials[0], group.trials[0]):
            continue
        both = group.recovered.keys() & other.recovered.keys()
        gaps = [statistics.fmean(other.recovered[c]) - statistics.fmean(group.recovered[c]) for c in both]
        wins = sum(gap > 0 for gap in gaps)
        if wins >= max(FEWEST, math.ceil(WINS * len(both))) and not any(gap < 0 for gap in gaps):
            said = f"which should be weaker, recovers more in {wins} of {len(both)} clients"
            yield Flag("WeakerWins", f"{other.attack}, {said}")


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
            where = f"in {len(trials)} of {len(searched)} trials"
            yield Flag("NoGradient", f"the attack's objective {what} {where}: it had no gradient to follow")
            return


def _stands(trial: Trial) -> bool:
    values = [value for _, value in trial.trace if value is not None]
    return max(values) - min(values) <= 1e-9 * max(abs(v) for v in values)


def _unread(group: TrialGroup) -> Iterator[Flag]:
    """Methods that raised; the layer read for most examples, each client's once; networks that were not understood."""
    raised, opaque = Counter[str](), Counter[str]()
    why: dict[str, str] = {}
    layers = defaultdict[str, Counter[int]](Counter)
    for trial in group.trials:
        broken = {one.name: one.why for one in trial.tried if one.raised}
        raised.update(broken.keys())
        why = broken | why
        opaque.update(dict.fromkeys((one.why for one in trial.tried if one.opaque), 1))
        for layer in trial.layers:
            layers[layer.layer] |= Counter({trial.client: layer.examples})
    of = len(group.trials)
    for method, n in raised.items():
        yield Flag("MethodRaised", f"{method} ended by an error in {n} of {of} trials ({why[method]})")
    if layers:
        name, clients = max(layers.items(), key=lambda item: item[1].total())
        yield Flag(
            "InputsOfLayer",
            f"what {name} was given was read exactly for {clients.total()} examples of {len(clients)} clients: "
            "features that tell whose data it was, though no picture came of them here",
        )
    for words, n in opaque.items():
        yield Flag("NotUnderstood", f"{words}, in {n} of {of} trials: finding nothing says little")


def _parts(group: TrialGroup) -> Iterator[Flag]:
    """Parts that were read though no example came back whole, and targets other than classes, which nothing judges."""
    missed = defaultdict[tuple[str, str], list[tuple[float, float]]](list)
    for trial in group.trials:
        for part in trial.parts:
            missed[part.name, part.kind].append(part.missed)
    for (name, kind), several in missed.items():
        left, guessed = map(sum, zip(*several, strict=True))
        if left < HALF * guessed:
            said = "was read with less than half of the error of the best guess without the update"
            yield Flag("PartRead", f"{name} ({kind}) {said}")
        elif kind in TARGETS:
            said = "has no known limit here: finding nothing of it says little"
            yield Flag("TargetsUnjudged", f"what the updates say of {name} ({kind}) {said}")


def _control(found: Finding, group: TrialGroup) -> Iterator[Flag]:
    """The attack fails without the defence too. Too few clients to show anything: that is said elsewhere."""
    power = found.power
    if power.shown is False and (group.scenario.defended or power.clients >= CONTROLS):
        share = f"{100 * (power.recovered or 0.0):.0f} %"
        said = f"of {power.clients} clients without a defence the attack recovers {share}: its failure says nothing"
        yield Flag("ControlNotRecovered", said)


def _prior(undefended: TrialGroup) -> Iterator[Flag]:
    """Only of undefended clients: behind a good defence no gain is what one wants."""
    gain = None if undefended.scenario.defended else gain_of(undefended)
    if gain is None or (gain.mean >= NOTHING and (gain.low or 0.0) > 0):
        return
    if not sum(shares(undefended.recovered)):
        yield Flag(
            "NoBetterThanPrior",
            "without a defence its pictures are no more like their own images than like other clients' "
            f"({gain.mean:+.1f} dB): they come from the attack's guesswork, not from the update",
        )


def _disagree(group: TrialGroup, control: TrialGroup | None) -> Iterator[Flag]:
    """Whether an image comes back is luck of the start: of the row's clients, or else of the undefended ones."""
    for trials in (group, control or group):
        clients = by_client(trials.scored, lambda t: t)
        torn = sum(map(_torn, clients))
        if 2 * torn > len(clients):
            said = f"seeds or restarts of the attack disagree in {torn} of {len(clients)} clients"
            yield Flag("RestartsDisagree", f"{said}: more would find more")
            return


def _torn(trials: list[Trial]) -> bool:
    """Whether some seeds recover at least half more of a client than others, or one restart stands alone in each."""
    each = [statistics.fmean(t.scores.recovered) for t in trials if t.scores is not None]
    return max(each) - min(each) >= 0.5 or all(map(_alone, trials))


def _alone(trial: Trial) -> bool:
    """Whether one restart of three or more got far further than all others."""
    ends = sorted(v for v in trial.restarts if v is not None)
    begin = next((v for _, v in trial.trace if v is not None), None)
    if len(trial.restarts) < 3 or len(ends) < 2 or begin is None or begin <= ends[0]:
        return False
    return ends[1] - ends[0] > AGREES * (begin - ends[0])
