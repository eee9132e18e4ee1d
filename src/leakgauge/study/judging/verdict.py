"""Scores of all trials → what a reader may conclude, and its few lines. Never "safe"."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import TypeAdapter

from leakgauge.errors import count_of
from leakgauge.intervals import bounded_upper
from leakgauge.study.grammar import GateConfig
from leakgauge.study.judging.findings import NOT_SAFE, finding, without_power
from leakgauge.study.judging.flags import flags_of
from leakgauge.study.judging.gate import GateResult, Reason, came_back, capital, judge
from leakgauge.study.judging.records import UNLESS_EMPTY, Explanation, Scenario, Trial
from leakgauge.study.judging.results import Finding, Level, TrialGroup, groups_of


@dataclass(frozen=True)
class Verdict:
    """`findings` has the worst first and controls last; `explained` is of a captured update."""

    level: Level
    headline: tuple[str, str]
    findings: tuple[Finding, ...]
    gate: GateResult
    explained: Annotated[Explanation | None, UNLESS_EMPTY] = None


VERDICT = TypeAdapter(Verdict)  # writes the ``verdict`` of report.json


def verdict(
    trials: Sequence[Trial], gate: GateConfig | None, proof: str = "", lacking: Sequence[Reason] = ()
) -> Verdict:
    """What all trials of an audit say together; the last two as `judge` takes them."""
    groups = groups_of(trials)
    if gate is not None and gate.baseline and any(g.scenario.defended and not g.control for g in groups):
        groups = [g if g.scenario.defended else replace(g, control=True) for g in groups]
    found = [(group, told(group, groups)) for group in groups]
    rows = [(group, f) for group, f in found if not group.control]
    own = sorted((f for _, f in rows), key=lambda f: (f.level.rank, -_highest(f)))
    worst = next((f.level for f in own if f.level is not Level.NOT_APPLICABLE), Level.INCONCLUSIVE)
    level = Level.EXPOSED if proof else worst
    doubt = next((group.doubt for group in groups if group.doubt), "")
    things = {group.thing for group in groups}
    return Verdict(
        level=level,
        headline=_headline(own, level, things.pop() if len(things) == 1 else "example", doubt, proof),
        findings=(*own, *(f for group, f in found if group.control)),
        gate=judge(gate, rows, proof, lacking),
        explained=min((t.explained for t in trials if t.explained is not None), key=lambda e: e.holds, default=None),
    )


def told(group: TrialGroup, groups: Sequence[TrialGroup]) -> Finding:
    """The finding with its flags and its sentence. What is flagged cannot say that nothing came back."""
    found = finding(group, groups)
    flags = flags_of(group, found, groups)
    unsure = flags and found.level is Level.NOT_RECOVERED
    found = replace(found, flags=flags, level=Level.INCONCLUSIVE if unsure else found.level)
    return replace(found, sentence=_sentence(group, found))


def _highest(found: Finding) -> float:
    return found.psnr.highest if found.psnr else float("-inf")


def _sentence(group: TrialGroup, found: Finding) -> str:
    first = group.trials[0]
    if found.level is Level.NOT_APPLICABLE:
        return f"{group.title}: not applicable ({first.message})."
    if found.identified is None:
        return f"{group.title}: no result in {found.trials} trials ({first.message or first.status})."
    thing, seen = group.thing, found.identified
    read = f"{seen.count} of {seen.n} {thing}s identified"
    read += "" if found.psnr is None else f", highest PSNR {found.psnr.highest:.1f} dB"
    back = came_back(found)
    said = {
        Level.EXPOSED: f"{group.title}: {back} ({read}).",
        Level.PARTIAL: f"{group.title}: no {thing} recovered, but more identified than by chance ({read}).",
        Level.NOT_RECOVERED: f"{group.title}: not recovered by this attack ({read}); {NOT_SAFE}.",
        Level.INCONCLUSIVE: f"{group.title}: inconclusive ({read}); {_why(group, found)}.",
    }[found.level]
    blind = next((t.blind for t in group.trials if t.blind), "")
    more = (group.rounds, blind, *(f"unreliable: {flag.sentence}" for flag in found.flags))
    return " ".join([said, *(f"{capital(text)}." for text in more if text)])


def _why(group: TrialGroup, found: Finding) -> str:
    if group.doubt:
        return "the plan does not explain the captured update, see above"
    if found.failed:
        return f"{found.failed} of {found.trials} trials gave no result"
    if not found.power.shown:
        return without_power(found.power)
    if found.flags:
        return "nothing came back, but this row cannot be relied on"
    if not group.compared:
        return f"no other {group.thing}s to compare with that are not all but the same, so chance is not known"
    return f"too few clients to exclude that half of such {group.thing}s can be identified"


def _headline(own: Sequence[Finding], level: Level, thing: str, doubt: str, proof: str) -> tuple[str, str]:
    """Two sentences that a privacy officer understands."""
    settings = list(dict.fromkeys(f.scenario for f in own))
    of = count_of(len(settings), "setting")
    exposed = [f for f in own if f.level is Level.EXPOSED]
    if proof and not exposed:
        first = f"Client {thing}s can be read exactly, without a search: {proof}."
        return first, "That the attacks tried here recovered less protects nobody: add closed-form and auto to them."
    leaky = {f.scenario for f in exposed}
    unsettled = f"This audit does not settle whether {thing}s can be recovered"
    if level is Level.EXPOSED:
        worst = max(exposed, key=lambda f: (bool(f.recovered), _highest(f)))
        s, highest = worst.scenario, "" if worst.psnr is None else f" (highest PSNR {worst.psnr.highest:.1f} dB)"
        whole = {f.scenario for f in exposed if f.recovered or f.certified or f.tokens}
        how = "singled out" if not whole else "reconstructed" if whole == leaky else "reconstructed or singled out"
        crafted = f", as the dishonest server {s.server} crafted it," if s.server_changes else ""
        first = (
            f"Client {thing}s were {how} in {len(leaky)} of {of}. Worst case: "
            f"{s.model}{crafted}, {s.client}, {s.stated}; by {worst.attack}, {came_back(worst)}{highest}."
        )
    elif level is Level.PARTIAL:
        first = f"No {thing} came back whole, but the updates say more about who sent them than chance allows."
    elif level is Level.NOT_RECOVERED:
        first = f"None of the attacks tried recovered a{'n' * (thing[0] in 'aeiou')} {thing} in {of} tested."
    elif doubt:
        first = f"{unsettled}: its plan does not explain the update."
    else:
        broken = [f for f in own if f.failed and f.level is not Level.NOT_APPLICABLE]
        why = "The attacks failed, did not apply, or did not show their power on undefended controls"
        if broken and not any(f.identified for f in own):
            why = f"Nothing was tested. {broken[0].sentence.rstrip('.')}"
        if flagged := [f.flags[0] for f in own if f.flags]:
            return f"{unsettled}.", f"What was tried is unreliable: {flagged[0].sentence}."
        return f"{unsettled}.", f"{why}: the table has each reason (report.html)."
    if doubt:
        return first, doubt
    rest = [s for s in settings if s not in leaky]
    held = [s for s in rest if stands(own, s)]
    if held:
        clients = min(f.clients for f in own if f.scenario in held and f.level is Level.NOT_RECOVERED)
        second = (
            f"In {len(held)} of {of} these attacks recovered nothing. With {clients} clients each, these attacks may "
            f"still succeed on up to {100 * bounded_upper([0.0] * clients):.0f} % of such clients (95 % confidence), "
            f"and stronger ones on more; {NOT_SAFE}."
        )
    elif rest:
        second = (
            f"Not cleared{' either' * (rest != settings)}: {count_of(len(rest), 'setting')}, where the attacks "
            f"identified {thing}s in part, failed, were not shown to have power, or cannot be relied on."
        )
    elif not any(s.defended for s in settings):
        second = "No defence was in use: add one, and audit again."
    else:
        second = "Nothing that was tried here stopped the attacks: every setting needs a stronger defence."
    return first, second


def stands(own: Sequence[Finding], setting: Scenario) -> bool:
    """Whether nothing that applies there recovered anything, as far as that can be told."""
    return {f.level for f in own if f.scenario == setting} - {Level.NOT_APPLICABLE} == {Level.NOT_RECOVERED}


def setting_rows(verdict: Verdict) -> list[tuple[str, str, str, str]]:
    """For each setting that is no control, the worst first: what tells it from the others, the level of its worst
    attack, images identified by the attack that identified the largest share, and the highest PSNR of any image."""
    by = defaultdict[Scenario, list[Finding]](list)
    for found in verdict.findings:
        if not found.control:
            by[found.scenario].append(found)
    names = [(s.model, s.client, s.defense, s.server) for s in by]
    differ = [i for i, column in enumerate(zip(*names, strict=True)) if len(set(column)) > 1] or [2]
    rows = []
    for parts, several in zip(names, by.values(), strict=True):
        level = min((f.level for f in several), key=lambda level: level.rank)
        seen = max((f.identified for f in several if f.identified is not None), key=lambda i: i.rate, default=None)
        highest = max((f.psnr.highest for f in several if f.psnr is not None), default=None)
        identified = "–" if seen is None else f"{seen.count}/{seen.n}"
        psnr = "–" if highest is None else f"{highest:.1f} dB"
        rows.append((", ".join(parts[i] for i in differ), level.words, identified, psnr))
    return rows


HEADS = ("setting", "verdict", "identified", "highest PSNR")  # of the columns of `setting_rows`
