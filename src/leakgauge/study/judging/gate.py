"""The gate: limits that must hold with 95 % confidence, not on average."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated

from pydantic import PlainSerializer

from leakgauge.intervals import bounded_lower, bounded_upper, proportion_interval
from leakgauge.study.grammar import GateConfig
from leakgauge.study.judging.findings import BY_CHANCE, by_strangers, without_power
from leakgauge.study.judging.records import Role, Scenario
from leakgauge.study.judging.results import Finding, LabelLeak, Level, TrialGroup, shares

SURE = 0.98  # confidence of each end where a share and what chance gives are compared


class Why(Enum):
    """Kinds of reasons, in the order in which they are told."""

    BROKEN = "over a limit"  # by the data
    STATISTICS = "with running statistics that travel uncovered"
    UNEXPLAINED = "on an update that the plan does not explain"
    FAILED = "without a result"
    UNRELIABLE = "flagged as unreliable"
    UNMEASURED = "with a limit on what was not measured, or none on what was"
    LABELS = "with labels that were read and no limit on them"
    UNINFORMED = "tried only by attackers who do not know the defence"
    POWERLESS = "without an attack that was shown to work"
    UNSEARCHED = "tried by reads alone, without a search"
    UNVETTED = "not vetted"
    UNSUPPORTED = "with too few clients to say that a limit holds"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Reason:
    """What a person can act on: the rule that failed, e.g. ``identified``, and what is wrong or missing; `plain` is for
    somebody who signs, if not the whole text. Without setting or attack it is of the whole audit, or setting."""

    why: Why
    rule: str
    words: str
    plain: str = ""
    setting: str = ""
    attack: str = ""

    @property
    def text(self) -> str:
        where = f"{self.attack} on {self.setting}" if self.attack else self.setting
        return ": ".join(filter(None, (self.rule, where, self.words)))


@dataclass(frozen=True)
class GateResult:
    """`passed` is `None` without a gate."""

    passed: bool | None
    reasons: tuple[Annotated[Reason, PlainSerializer(lambda reason: reason.text, return_type=str)], ...] = ()

    @property
    def sentence(self) -> str:
        """One line: the decision, and how many reasons of each kind there are; empty without a gate."""
        if self.passed is not False:
            return "gate passed" if self.passed else ""
        counts = Counter(reason.why for reason in self.reasons)
        return "gate failed: " + ", ".join(f"{counts[why]} {why.value}" for why in Why if counts[why])


def judge(
    gate: GateConfig | None, rows: Sequence[tuple[TrialGroup, Finding]], proof: str = "", lacking: Sequence[Reason] = ()
) -> GateResult:
    """Tests every scenario × attack against the limits.

    A limit is broken when the data exceed it, and *unsupported* when they do not but the interval's end that hurts
    does: 0 of 8 clients still allow 31 %. Both fail the gate. So do, whatever the limits: an exact read, a row that is
    exposed, flagged or undecided, failed trials, a limit on what no attack measured, and a setting in which no attack
    was tried that has shown its power, knows the defence and searches.

    `rows` are no controls; `proof` says what was read exactly before any trial, empty where nothing was; `lacking` what
    the audit lacks beside its rows, such as trials that have not run."""
    if gate is None:
        return GateResult(None, tuple(lacking))
    tested = [(group, found) for group, found in rows if group.scored]
    if not tested:
        return GateResult(False, (*lacking, *_nothing([group for group, _ in rows])))
    reasons = [*lacking]
    if proof:
        reasons.append(Reason(Why.BROKEN, "exact", f"{proof}; an exact read always fails the gate"))
    for group, found in rows:
        reasons += _placed(group, _of_row(gate, group, found))
    doubts = dict.fromkeys(group.doubt for group, _ in rows if group.doubt)
    reasons += [Reason(Why.UNEXPLAINED, "explained", doubt) for doubt in doubts]
    for setting in dict.fromkeys(group.scenario for group, _ in rows):
        here = [(group, found) for group, found in rows if group.scenario == setting]
        reasons += (replace(reason, setting=setting.words) for reason in _of_setting(gate, setting, here))
    reasons.sort(key=lambda reason: list(Why).index(reason.why))
    return GateResult(not reasons, tuple(reasons))


def _placed(group: TrialGroup, reasons: Iterable[Reason]) -> list[Reason]:
    return [replace(reason, setting=group.scenario.words, attack=group.attack) for reason in reasons]


def _nothing(groups: Sequence[TrialGroup]) -> list[Reason]:
    """Why nothing was tested: every trial failed, each with its own message, or no attack applies."""
    failed = [reason for group in groups for reason in _placed(group, _failures(group))]
    if not failed:
        why = "no attack gave a result, so nothing was tested: add an attack that applies to this model"
        return [Reason(Why.FAILED, "", why)]
    which = "every trial failed" if all(group.failed for group in groups) else "every trial failed or did not apply"
    first = failed[0].text.removeprefix("failed: ")
    return [Reason(Why.FAILED, "failed", f"{which}, so nothing was tested: {first}; report.html has each"), *failed[1:]]


def _failures(group: TrialGroup) -> Iterator[Reason]:
    if group.failed:
        said = group.failed[0].message or group.failed[0].status
        yield Reason(Why.FAILED, "failed", f"{len(group.failed)} of {len(group.trials)} trials gave no result ({said})")


def _of_setting(gate: GateConfig, setting: Scenario, rows: Sequence[tuple[TrialGroup, Finding]]) -> Iterator[Reason]:
    here = [(group, found) for group, found in rows if group.scored]
    readers = [found.label_f1 for _, found in here if found.label_f1 is not None]
    if gate.label_f1 is not None and all(reader.shown is False for reader in readers):
        none = "no attack that reads labels reads those of the undefended controls, so its failure says nothing"
        if not readers:
            none = "no attack read labels, or they are given (knows: labels), so its limit on them says nothing"
        yield Reason(Why.UNMEASURED, "label_f1", none)
    if gate.identified is None and any(found.level is Level.PARTIAL for _, found in here):
        none = "more are identified than by chance, and the gate has no limit on that (identified: {max: …})"
        yield Reason(Why.UNMEASURED, "identified", none)
    if gate.label_f1 is None and any(reader.leaks for reader in readers):
        none = "they are read better than by guessing, and the gate has no limit on that (label_f1: {max: …})"
        yield Reason(Why.LABELS, "labels", none)
    able, told = [group for group, found in here if found.power.shown], "defense" in setting.knowledge
    if not able:
        none = "no attack tried here gave a result, so nothing was tested"
        if here:
            best = max((found.power for _, found in here), key=lambda power: power.recovered or 0.0)
            none = f"{without_power(best)}: it cannot pass"
        yield Reason(Why.POWERLESS, "power", none, capital(none))
    elif setting.defended and not (told and any(t.role is not Role.NAIVE for group in able for t in group.trials)):
        none = "only attackers who do not know the defence were tried (knows: defense), and hiding it is no defence"
        yield Reason(Why.UNINFORMED, "knowledge", none, capital(none))
    if able and not any(map(_searches, able)):
        advice = "add auto to attacks"
        idle = (group for group, _ in rows if not group.scored)
        if (missed := next(filter(_searches, idle), None)) is not None:
            why = missed.trials[0].message or missed.trials[0].status
            advice = f"{missed.attack} {'failed' if missed.failed else 'did not apply'} ({why})"
        none = f"only reads without a search were tried, and a search may find what they miss: {advice}"
        yield Reason(Why.UNSEARCHED, "search", none, capital(none))


def capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _searches(group: TrialGroup) -> bool:
    """Whether an attack looked for what no closed form reads. For texts there is no such attack."""
    return group.thing == "text" or any(t.role is Role.STRONGEST or t.trace for t in group.trials)


def _of_row(gate: GateConfig, group: TrialGroup, found: Finding) -> Iterator[Reason]:
    """Why it cannot be relied on, and the limits that do not hold where it has a result."""
    yield from _failures(group)
    for flag in found.flags:
        yield Reason(Why.UNRELIABLE, "unreliable", flag.sentence, f"This result cannot be relied on: {flag.sentence}")
    if not group.scored:
        return
    if found.level is Level.INCONCLUSIVE and not (group.failed or group.doubt or found.flags):
        yield Reason(Why.UNDECIDED, "undecided", found.sentence.removeprefix(f"{group.title}: ").rstrip("."))
    if found.level is Level.EXPOSED:
        yield Reason(Why.BROKEN, "exposed", f"{came_back(found)}; no limit lets that pass")
    if gate.identified is not None:
        yield from _identified(group, found, gate.identified.max)
    if gate.psnr is not None and found.tokens is not None:
        none = "texts have no PSNR, so the limit says nothing: give identified, or leave it out"
        yield Reason(Why.UNMEASURED, "psnr", none)
    elif gate.psnr is not None:
        limit, highest = gate.psnr.worst, group.images("psnr", max)
        above = {client: [v > limit for v in values] for client, values in highest.items()}
        if any(map(any, above.values())):
            most = max(map(max, highest.values()))
            yield Reason(Why.BROKEN, "psnr", f"highest PSNR {most:.1f} dB, the gate allows {limit:g} dB")
        else:
            yield from _share(f"psnr above {limit:g} dB", above, gate.psnr.share, group)
    if gate.label_f1 is not None and found.label_f1 is not None:
        yield from _labels(found.label_f1, gate.label_f1.max)


def came_back(found: Finding) -> str:
    thing, seen = found.scenario.data.kind, found.identified
    if found.tokens is not None:
        return found.tokens.words
    assert seen is not None
    if found.recovered or not (found.certified or found.residual_risk):
        return f"{found.recovered} of {seen.n} {thing}s recovered"
    if found.certified:
        return f"{found.certified} reads certified by the attack itself"
    told = f"told from others by what {seen.layer} was given" if seen.layer else "singled out among look-alikes"
    return f"{seen.count} of {seen.n} {thing}s {told}"


def _identified(group: TrialGroup, found: Finding, limit: float) -> Iterator[Reason]:
    """The limit on the share that is singled out. Where that is over it by no more than strangers may be singled out by
    the same reads, what the update adds to chance is held against the limit instead, both ends by their bounds."""
    plain, seen = next(_share("identified", group.identified, limit, group), None), found.identified
    if plain is None or seen is None or found.residual_risk is None:
        yield from [] if plain is None else [plain]
        return
    words = f"{seen.count} of {seen.n} {group.thing}s are told from others, {100 * seen.chance:.0f} % by chance"
    who = "one client is" if seen.clients == 1 else f"{seen.clients} clients are"
    few = f"{words}; {who} too few to say that at most {100 * limit:g} % can be"
    unsupported, most = plain.why is Why.UNSUPPORTED, proportion_interval(*by_strangers(group)).high or 0.0
    if seen.beyond > BY_CHANCE and seen.rate - most <= limit * (1 - most):
        strangers = [statistics.fmean(o.identified) / group.scenario.data.batch for o in group.others if o.identified]
        chance = bounded_lower(strangers, SURE) if strangers else 0.0
        if (bounded_upper(shares(group.identified), SURE) - chance) / max(1 - chance, 1e-9) <= limit:
            return
        if not unsupported and group.compared:
            text = f"not enough clients: {words}; more than {needed(limit)} clients are needed"
            plain, unsupported = Reason(Why.UNSUPPORTED, "identified", text), True
    yield replace(plain, plain=few) if unsupported else plain


def _share(what: str, flags: dict[int, list[bool]], limit: float, group: TrialGroup) -> Iterator[Reason]:
    each = shares(flags)
    bound, count, n = bounded_upper(each), sum(map(sum, flags.values())), sum(map(len, flags.values()))
    if n and count / n > limit:
        said = "can be told from others by what was read" if what == "identified" else f"came back with a {what}"
        plain = f"{count} of {n} {group.thing}s {said}, and {100 * limit:g} % are allowed"
        yield Reason(Why.BROKEN, what, f"{count} of {n} {group.thing}s, the gate allows {limit:g}", plain)
    elif bound > limit:
        text = (
            f"not enough clients: {count} of {n} {group.thing}s in {len(each)} clients give a 95 % upper bound of "
            f"{bound:.2f}, above the limit of {limit:g}; at least {needed(limit)} clients without a hit are needed"
        )
        yield Reason(Why.UNSUPPORTED, what, text)


def needed(limit: float) -> int | str:
    """Clients without a hit that support a limit: the least n with 1 − (1 − 0.95)^(1/n) ≤ limit."""
    if limit <= 0:
        return "infinitely many"
    return 1 if limit >= 1 else math.ceil(math.log(1 - 0.95) / math.log(1 - limit))


def _labels(leak: LabelLeak, limit: float) -> Iterator[Reason]:
    if leak.mean > limit and leak.above <= 0:
        same = f"mean {leak.mean:.2f}, and the best guess that is the same for every client {leak.baseline:.2f}"
        told = "nothing can be told: clients of few classes, as a table sorted by its target makes; shuffle its rows"
        yield Reason(Why.UNMEASURED, "label_f1", f"{same}: {told}", f"Of labels {told}")
    elif leak.mean > limit:
        yield Reason(Why.BROKEN, "label_f1", f"mean {leak.mean:.2f}, the gate allows {limit:g}")
    elif leak.upper > limit:
        text = (
            f"not enough clients: a mean of {leak.mean:.2f} over {leak.n} clients gives a 95 % upper bound of "
            f"{leak.upper:.2f}, above the limit of {limit:g}"
        )
        yield Reason(Why.UNSUPPORTED, "label_f1", text)
