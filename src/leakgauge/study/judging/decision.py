"""The page's answer (no, not yet, or no objection within what was tested), its reason, and what to do next."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from leakgauge.errors import count_of
from leakgauge.intervals import bounded_upper
from leakgauge.risk.lint import HIDDEN, UNSENT, LintFinding
from leakgauge.study.grammar import GateConfig
from leakgauge.study.judging.gate import Why, needed
from leakgauge.study.judging.results import Finding, Level
from leakgauge.study.judging.verdict import Verdict, stands

FEWEST = next(n for n in range(1, 20) if bounded_upper([0.0] * n) < 0.5)
"""Clients without a hit that a row needs before it can say "not recovered"."""

EASIER = (
    "no attack has shown that it works on such clients: give more effort (budget.gradient_evaluations, attacks: "
    "[auto]), or audit clients on whom one does (data.batch: 1, a smaller data.size)"
)
SIMULATED = (
    "no attack has shown that it works on such rounds: give more effort (budget.gradient_evaluations), and try this "
    "plan without update and with data.batch: 1, which simulates the easiest clients that train so"
)
"""The same of captured rounds, whose batches and pictures are what they are."""
ASSUMED = "if the running statistics of BatchNorm stay with the client (knows: buffers if they travel)"


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
        if self.answer is Answer.NO_OBJECTION:
            return f"No objection found within {self.limits}"
        return {Answer.NO: "No", Answer.NOT_YET: "Not yet"}[self.answer]


STEPS = {
    Why.BROKEN: "lower what leaks, or argue for another limit before the audit",
    Why.UNEXPLAINED: "mend the plan until it explains the update, then audit again",
    Why.STATISTICS: "keep the running statistics with the client, or use a norm without any, such as GroupNorm",
    Why.FAILED: (
        "mend what failed, then run the same command: trials that ended are kept, --anew runs all of them again"
    ),
    Why.UNRELIABLE: "add a stronger attack, seeds or evaluations; the flagged row says which",
    Why.UNMEASURED: "add an attack that reads it, or change the gate",
    Why.UNINFORMED: "add defense to knows: attackers read about defences",
    Why.UNSEARCHED: "add a search that applies here: auto, if the plan does not name it",
    Why.POWERLESS: "",
    Why.UNVETTED: "name vetted attacks and defences alone (leakgauge list says which are), or leave vetted out",
    Why.UNSUPPORTED: "",
}
"""What to do about each kind of reason of the gate, the gravest first. The first says "no", the others "not yet"."""


def decide(verdict: Verdict, gate: GateConfig | None, *, captured: bool, lint: Sequence[LintFinding] = ()) -> Decision:
    """*No objection*: the gate passed, and nothing else: page and exit code say the same. *No*: something came back,
    was singled out beyond chance, was read exactly, or a limit of the gate is broken. *Not yet*: everything else."""
    own = [f for f in verdict.findings if not f.control]
    rests = _rests_on(own, captured)
    if verdict.gate.passed and gate is not None:
        assumed = f", {ASSUMED}" if any(f.rule == UNSENT for f in lint) else ""
        following = Next("audit again when model, local training, defence, server or the kind of data change")
        return Decision(Answer.NO_OBJECTION, _held(own), rests, following, limits_of(gate) + assumed)
    answer, reason, following = next(_grounds(verdict, own, gate, captured, lint))
    return Decision(answer, reason, rests, following)


def _held(own: Sequence[Finding]) -> str:
    """What passed, and first of all what the gate lets pass."""
    seen = [f.identified for f in own if f.level is Level.PARTIAL and f.identified is not None]
    worst = max(seen, key=lambda i: i.rate, default=None)
    count, thing = len({f.scenario for f in own}), own[0].scenario.data.kind
    settings = "the setting tested" if count == 1 else f"all {count} settings tested"
    holds = f"Every limit of the gate holds with 95 % confidence in {settings} against the attacks tried here"
    holds += ", none of which searches: texts are only read." if thing == "text" else "."
    if worst is None:
        return holds
    return f"{worst.count} of {worst.n} {thing}s are singled out, more than by chance, which the gate permits. {holds}"


def _grounds(
    verdict: Verdict, own: Sequence[Finding], gate: GateConfig | None, captured: bool, lint: Sequence[LintFinding]
) -> Iterator[tuple[Answer, str, Next]]:
    """Everything that stands against "no objection", the gravest first."""
    if verdict.level in (Level.EXPOSED, Level.PARTIAL):
        yield Answer.NO, verdict.headline[0], Next(_less(own, lint))
    powerless = any(f.power.shown is False for f in own) and not any(f.power.shown for f in own)
    easier = SIMULATED if captured else EASIER
    doubted = easier if powerless else STEPS[Why.UNRELIABLE]
    for why, step in (STEPS | {Why.UNRELIABLE: doubted, Why.POWERLESS: easier}).items():
        of_kind = [r for r in verdict.gate.reasons if r.why is why]
        if why is Why.UNEXPLAINED:
            if verdict.explained is not None and not verdict.explained.holds:
                yield Answer.NOT_YET, "The plan does not explain the captured update.", Next(step)
        elif of_kind:
            following = more_clients(own, gate, captured) if why is Why.UNSUPPORTED else Next(step)
            more = f" ({len(of_kind) - 1} more like it)" if len(of_kind) > 1 else ""
            said = f"{of_kind[0].plain or of_kind[0].text}{more}."
            yield Answer.NO if why is Why.BROKEN else Answer.NOT_YET, said, following
    unsettled = [f for f in own if f.level is Level.INCONCLUSIVE]
    flagged = next((f.flags[0] for f in unsettled if f.flags), None)
    if flagged is not None:
        yield Answer.NOT_YET, f"The audit cannot tell yet: {flagged.sentence}.", Next(doubted)
    elif unsettled or not own:
        said = unsettled[0].sentence if unsettled else "no attack gave a result."
        yield Answer.NOT_YET, f"The audit cannot tell yet: {said}", more_clients(own, gate, captured)
    if verdict.gate.passed is None:
        step = "say in the plan what would be acceptable, e.g. gate: {identified: {max: 0.05}}"
        yield Answer.NOT_YET, "The plan has no gate: nothing says which risk would be acceptable.", Next(step)
    leaking = [f for f in own if f.label_f1 is not None and f.label_f1.leaks]
    if leaking and (gate is None or gate.label_f1 is None):
        step = "decide whether the labels are sensitive, and set gate: {label_f1: {max: …}}"
        yield Answer.NOT_YET, f"Labels were read, and no limit is set for them: {label_words(own)}", Next(step)
    yield Answer.NOT_YET, "The gate did not pass.", Next("see its reasons")


def _less(own: Sequence[Finding], lint: Sequence[LintFinding]) -> str:
    """What to do where updates leak. A larger batch helps beyond what a layer is read at, which the lint counts."""
    held = list(dict.fromkeys(f.scenario.words for f in own if stands(own, f.scenario)))
    if held and any(f.scenario.defended for f in own if f.level in (Level.EXPOSED, Level.PARTIAL)):
        return f"of the settings tested, only {held[0]} stands: audit that alone, or a stronger defence"
    if held:
        return f"{held[0]} stands; settings without a defence are left out by gate: {{baseline: true}}"
    layers = next((f.hint for f in lint if f.rule == HIDDEN), "")
    batches = f"of batches the lint says: {layers}" if layers else "leakgauge count says which batches layers give away"
    return f"do not share updates like these: a defence first, which leakgauge frontier compares; {batches}"


def more_clients(own: Sequence[Finding], gate: GateConfig | None, captured: bool) -> Next:
    """How many more clients without a hit the strictest limit on a share takes, and their price at this pace."""
    limits = [] if gate is None or gate.identified is None else [gate.identified.max]
    limits += [] if gate is None or gate.psnr is None else [gate.psnr.share]
    wanted, have = needed(min(limits, default=1.0)), min((f.clients for f in own), default=0)
    if isinstance(wanted, str):
        return Next("a limit of 0 needs infinitely many clients: set a limit above 0")
    missing = max(wanted, FEWEST) - have
    if missing <= 0:
        return Next("the table says what each row lacks: power, trials that failed, or a flag")
    minutes = sum(f.cost.seconds / f.clients * missing for f in own if f.clients) / 60
    batch, thing = (own[0].scenario.data.batch, own[0].scenario.data.kind) if own else (1, "image")
    of, examples = "" if batch == 1 else f" in {missing} batches", missing * batch
    words = f"{count_of(examples, f'more {thing}')}{of}, about {duration(minutes)} on one core"
    simulated = f"one update is one client: audit simulated ones too, by a plan without update: {words}"
    words = simulated if captured else f"{words}: data.batches: {have + missing}"
    return Next(words, missing, examples, round(minutes, 1))


def duration(minutes: float) -> str:
    if minutes < 1:
        return "a minute"
    return f"{math.ceil(minutes)} minutes" if minutes < 90 else f"{minutes / 60:.2g} hours"


def limits_of(gate: GateConfig) -> str:
    parts = []
    if gate.identified is not None:
        parts.append(f"{100 * gate.identified.max:g} % singled out")
    if gate.psnr is not None:
        parts.append(f"{100 * gate.psnr.share:g} % above {gate.psnr.worst:g} dB")
    if gate.label_f1 is not None:
        parts.append(f"a label F1 of {gate.label_f1.max:g}")
    parts += ["settings without a defence left out"] * gate.baseline + ["parts of vetted code alone"] * gate.vetted
    return ", ".join(parts)


def label_words(own: Sequence[Finding]) -> str:
    """What the updates say about labels, a diagnosis being one."""
    measured = [(f.label_f1, f.certified > 0) for f in own if f.label_f1 is not None]
    if not measured:
        return "not measured: they were given to the attacker, or no attack that reads them gave a result."
    worst = max((leak for leak, _ in measured), key=lambda m: (m.leaks is True, m.shown is not False, m.above))
    if worst.n == worst.right == 1 and (worst, True) in measured:
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


def _rests_on(own: Sequence[Finding], captured: bool) -> str:
    attacks = sorted({f.attack for f in own if f.level is not Level.NOT_APPLICABLE})
    trials, evaluations = sum(f.trials for f in own), sum(f.cost.gradient_evaluations for f in own)
    clients = max((f.clients for f in own), default=0)
    real = max((f.trials for f in own), default=1)
    updates = "one captured update" if real == 1 else f"{real} captured updates of {count_of(clients, 'client')}"
    who = updates if captured else count_of(clients, "simulated client")
    where = count_of(len({f.scenario for f in own}), "setting")
    took = duration(sum(f.cost.seconds for f in own) / 60)
    return (
        f"{who}, {where}, {count_of(trials, 'trial')} of {', '.join(attacks) or 'no attack'}: "
        f"{evaluations:,} gradient evaluations, which took {took} by the clock."
    )
