"""No, not yet, or no objection found within what was tested: with the reason and what to do next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from leakgauge.intervals import bounded_upper
from leakgauge.study.grammar import GateConfig
from leakgauge.study.judging.gate import Reason, Why, needed
from leakgauge.study.judging.results import Finding, Level
from leakgauge.study.judging.verdict import Verdict

FEWEST = next(n for n in range(1, 20) if bounded_upper([0.0] * n) < 0.5)
"""Clients without a hit that a row needs before it can say "not recovered"."""


EASIER = (
    "no attack has shown that it works on such clients: give more effort (budget.gradient_evaluations, attacks: "
    "[auto]), or audit clients on whom one does (data.batch: 1, a smaller data.size)"
)


class Answer(Enum):
    """To: may these updates leave the clients as they are?"""

    NO = "no"
    NOT_YET = "not_yet"
    NO_OBJECTION = "no_objection"


@dataclass(frozen=True)
class Next:
    """What to do, and what it costs: more clients, their examples, and minutes on one core; `None` where unknown."""

    step: str
    clients: int | None = None
    examples: int | None = None
    minutes: float | None = None


@dataclass(frozen=True)
class Decision:
    """One sentence of reason, what it rests on in words, and what "no objection" is within, if that is the answer."""

    answer: Answer
    reason: str
    rests_on: str
    next: Next
    limits: str = ""

    @property
    def title(self) -> str:
        """The first words of the page."""
        if self.answer is Answer.NO_OBJECTION:
            return f"No objection found within {self.limits}"
        return {Answer.NO: "No", Answer.NOT_YET: "Not yet"}[self.answer]


@dataclass(frozen=True)
class DecisionScope:
    """What the decision is about, of the plan.

    Attributes:
        captured: one client's captured update, not simulated ones.
        assumed: what the audit took for granted of what travels; empty where nothing is.
    """

    gate: GateConfig | None
    batch: int
    captured: bool
    thing: str = "image"
    assumed: str = ""


def decide(verdict: Verdict, asked: DecisionScope) -> Decision:
    """The answer of an audit.

    *No objection*: the gate passed, and nothing else: page and exit code say the same. *No*: something came back, was
    singled out beyond chance, was read exactly, or a limit of the gate is broken. *Not yet*: everything else.
    """
    own = [f for f in verdict.findings if not f.control]
    rests = _rests_on(own, asked.captured)
    if verdict.gate.passed and asked.gate is not None:
        limits = f"{limits_of(asked.gate)}{f', {asked.assumed}' if asked.assumed else ''}"
        following = Next("audit again when model, local training, defence, server or the kind of data change")
        return Decision(Answer.NO_OBJECTION, _held(own, asked.thing), rests, following, limits)
    answer, reason, following = _grounds(verdict, own, asked)[0]
    return Decision(answer, reason, rests, following)


def _held(own: Sequence[Finding], thing: str) -> str:
    """What passed, and first of all what the gate lets pass."""
    seen = [f.identified for f in own if f.level is Level.PARTIAL and f.identified is not None]
    worst = max(seen, key=lambda i: i.rate, default=None)
    known = ""
    if worst is not None:
        known = f"{worst.count} of {worst.n} {thing}s are singled out, more than by chance, which the gate permits. "
    holds = f"Every limit of the gate holds with 95 % confidence in {_settings(own)} against the attacks tried here"
    return f"{known}{holds}{', none of which searches: texts are only read' * (thing == 'text')}."


def _grounds(verdict: Verdict, own: Sequence[Finding], asked: DecisionScope) -> list[tuple[Answer, str, Next]]:
    """Everything that stands against "no objection", the gravest first."""
    reasons = verdict.gate.reasons
    found = [
        *_leaks(verdict, own),
        *_broken(reasons, Why.BROKEN, Answer.NO, "lower what leaks, or argue for another limit before the audit"),
    ]
    if verdict.explained is not None and not verdict.explained.holds:
        step = "mend the plan until it explains the update, then audit again"
        found.append((Answer.NOT_YET, "The plan does not explain the captured update.", Next(step)))
    local = "keep the running statistics with the client, or use a norm without any, such as GroupNorm"
    found += _broken(reasons, Why.STATISTICS, Answer.NOT_YET, local)
    failing = "mend what failed, then run the same command: trials that ended are kept, --anew runs all of them again"
    found += _broken(reasons, Why.FAILED, Answer.NOT_YET, failing)
    powerless = any(f.power.shown is False for f in own) and not any(f.power.shown for f in own)
    better = EASIER if powerless else "add a stronger attack, seeds or evaluations; the flagged row says which"
    found += _broken(reasons, Why.UNRELIABLE, Answer.NOT_YET, better)
    found += _broken(reasons, Why.UNMEASURED, Answer.NOT_YET, "add an attack that reads it, or change the gate")
    found += _broken(reasons, Why.UNINFORMED, Answer.NOT_YET, "add defense to knows: attackers read about defences")
    searching = "add a search that applies here: auto, if the plan does not name it"
    found += _broken(reasons, Why.UNSEARCHED, Answer.NOT_YET, searching)
    found += _broken(reasons, Why.POWERLESS, Answer.NOT_YET, EASIER)
    unsupported = _broken(reasons, Why.UNSUPPORTED, Answer.NOT_YET, "")
    found += [(answer, text, more_clients(own, asked)) for answer, text, _ in unsupported]
    unsettled = [f for f in own if f.level is Level.INCONCLUSIVE]
    doubted = next((f for f in unsettled if f.flags), None)
    if doubted is not None:
        found.append((Answer.NOT_YET, f"The audit cannot tell yet: {doubted.flags[0].sentence}.", Next(better)))
    elif unsettled or not own:
        found.append((Answer.NOT_YET, f"The audit cannot tell yet: {_open(unsettled)}.", more_clients(own, asked)))
    if verdict.gate.passed is None:
        step = "say in the plan what would be acceptable, e.g. gate: {identified: {max: 0.05}}"
        found.append((Answer.NOT_YET, "The plan has no gate: nothing says which risk would be acceptable.", Next(step)))
    leaking = [f for f in own if f.label_f1 is not None and f.label_f1.leaks]
    if leaking and (asked.gate is None or asked.gate.label_f1 is None):
        step = "decide whether the labels are sensitive, and set gate: {label_f1: {max: …}}"
        found.append(
            (Answer.NOT_YET, f"Labels were read, and no limit is set for them: {label_words(own)}", Next(step))
        )
    return found or [(Answer.NOT_YET, "The gate did not pass.", Next("see its reasons"))]


def _leaks(verdict: Verdict, own: Sequence[Finding]) -> list[tuple[Answer, str, Next]]:
    step = "do not share updates like these: a defence or larger batches first; leakgauge frontier compares them"
    held = list(dict.fromkeys(f.scenario.words for f in own if _stands(own, f)))
    if held:
        step = f"of the settings tested, only {held[0]} stands: audit that alone, or a stronger defence"
        if not any(f.scenario.defended for f in own if f.level in (Level.EXPOSED, Level.PARTIAL)):
            step = f"{held[0]} stands; settings without a defence are left out by gate: {{baseline: true}}"
    leaky = verdict.level in (Level.EXPOSED, Level.PARTIAL)
    return [(Answer.NO, verdict.headline[0], Next(step))] if leaky else []


def _stands(own: Sequence[Finding], finding: Finding) -> bool:
    levels = {f.level for f in own if f.scenario == finding.scenario} - {Level.NOT_APPLICABLE}
    return levels == {Level.NOT_RECOVERED} and not any(f.flags for f in own if f.scenario == finding.scenario)


def _broken(reasons: Sequence[Reason], why: Why, answer: Answer, step: str) -> list[tuple[Answer, str, Next]]:
    of_kind = [r.plain or r.text for r in reasons if r.why is why]
    more = f" ({len(of_kind) - 1} more like it)" if len(of_kind) > 1 else ""
    return [(answer, f"{of_kind[0]}{more}.", Next(step))] if of_kind else []


def more_clients(own: Sequence[Finding], asked: DecisionScope) -> Next:
    """How many more clients the strictest limit takes with none identified, and their price at this audit's pace."""
    gate = asked.gate
    shares = [limit.max for limit in (gate.identified,) if limit] if gate else []
    shares += [gate.psnr.share] if gate and gate.psnr else []
    counts = [n for n in (needed(share) for share in shares) if isinstance(n, int)]
    if len(counts) < len(shares):
        return Next("a limit of 0 needs infinitely many clients: set a limit above 0")
    have = min((f.clients for f in own), default=0)
    missing = max([*counts, FEWEST]) - have
    if missing <= 0:
        return Next("the table says what each row lacks: power, trials that failed, or a flag")
    minutes = sum(f.cost.seconds / f.clients * missing for f in own if f.clients) / 60
    examples = missing * asked.batch
    named = asked.thing if examples == 1 else f"{asked.thing}s"
    of = "" if asked.batch == 1 else f" in {missing} batches"
    words = f"{examples} more {named}{of}, about {duration(minutes)} on one core"
    if asked.captured:
        words = f"one update is one client: audit simulated ones too, by a plan without update: {words}"
    else:
        words = f"{words}: data.batches: {have + missing}"
    return Next(words, missing, examples, round(minutes, 1))


def _open(unsettled: Sequence[Finding]) -> str:
    """Why the first of them is not settled."""
    if not unsettled:
        return "no attack gave a result"
    first = unsettled[0]
    if first.power.shown is False:
        return "the attack failed here, and it failed on controls where it should succeed: its failure says nothing"
    if first.failed:
        return f"{first.failed} of {first.trials} trials gave no result"
    return "too few clients, or no control that shows whether the attack works on such clients"


def duration(minutes: float) -> str:
    """In words, rounded up to two digits."""
    if minutes < 1:
        return "a minute"
    if minutes < 90:
        return f"{math.ceil(minutes)} minutes"
    return f"{minutes / 60:.2g} hours"


def limits_of(gate: GateConfig) -> str:
    """What a gate allows, in words."""
    parts = []
    if gate.identified is not None:
        parts.append(f"{100 * gate.identified.max:g} % singled out")
    if gate.psnr is not None:
        parts.append(f"{100 * gate.psnr.share:g} % above {gate.psnr.worst:g} dB")
    if gate.label_f1 is not None:
        parts.append(f"a label F1 of {gate.label_f1.max:g}")
    said = ", ".join(parts) or "the gate"
    return f"{said}, settings without a defence left out" if gate.baseline else said


def label_words(own: Sequence[Finding]) -> str:
    """What the updates say about labels, a diagnosis being one."""
    readers = [(f.label_f1, f.certified > 0) for f in own if f.label_f1 is not None]
    measured = [reader for reader, _ in readers]
    if not measured:
        return "not measured: they were given to the attacker, or no attack that reads them gave a result."
    worst = max(measured, key=lambda m: (m.leaks is True, m.shown is not False, m.above))
    if worst.n == worst.right == 1 and (worst, True) in readers:
        return f"read right (F1 {worst.mean:.2f}), beside examples that were certified; a diagnosis is a label."
    if worst.n < 2:
        return f"read with F1 {worst.mean:.2f} (at 1 every label was read); one client cannot tell that from luck."
    numbers = f"F1 {worst.mean:.2f}, best constant guess {worst.baseline:.2f}, {worst.n} clients"
    if worst.leaks is not True and worst.shown is False:
        return f"cannot be told: what reads them fails on undefended controls too ({numbers})."
    if worst.leaks is None and worst.confidence == 0:
        return f"cannot be told: what reads them gives its own answer no confidence ({numbers})."
    better = "read right in every client" if worst.right == worst.n else "read better than by guessing"
    said = {True: better, False: "read no better than by guessing", None: "too few clients to tell"}
    return f"{said[worst.leaks]} ({numbers}); a diagnosis is a label."


def _settings(own: Sequence[Finding]) -> str:
    count = len({f.scenario for f in own})
    return "the setting tested" if count == 1 else f"all {count} settings tested"


def _rests_on(own: Sequence[Finding], captured: bool) -> str:
    attacks = sorted({f.attack for f in own if f.level is not Level.NOT_APPLICABLE})
    trials, evaluations = sum(f.trials for f in own), sum(f.cost.gradient_evaluations for f in own)
    clients = max((f.clients for f in own), default=0)
    real = max((f.trials for f in own), default=1)
    updates = (
        "one captured update" if real == 1 else f"{real} captured updates of {clients} client{'s' * (clients != 1)}"
    )
    who = updates if captured else f"{clients} simulated client{'s' if clients != 1 else ''}"
    count = len({f.scenario for f in own})
    where = f"{count} setting{'s' if count != 1 else ''}"
    minutes = sum(f.cost.seconds for f in own) / 60
    return (
        f"{who}, {where}, {trials} trial{'s' if trials != 1 else ''} of {', '.join(attacks) or 'no attack'}: "
        f"{evaluations:,} gradient evaluations, which took {duration(minutes)} on one core."
    )
