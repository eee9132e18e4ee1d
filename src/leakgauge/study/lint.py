"""Everything that an audit's plan gives away before it runs."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text

from leakgauge.attacks.closed_form import LinearRead, PatchRead, RankOneRead, RowDifferences, TokenRead
from leakgauge.attacks.exact.peeling import Peeling
from leakgauge.clients import client_update
from leakgauge.clients.protocol import Protocol
from leakgauge.compute import Budget
from leakgauge.defenses import Defense, steps_of
from leakgauge.defenses.steps import EntryGrid, EntryMask, Noise, PerExampleScale, Scale
from leakgauge.draws import Draws
from leakgauge.errors import FOREIGN, InputError, count_of, few, said
from leakgauge.observation import Attack, Knowledge, Known, Observation, Status
from leakgauge.privacy.guarantee import DELTA, NoGuarantee, in_words, spent_in_one_update
from leakgauge.risk import lint as rules
from leakgauge.risk.count import hidden_inputs
from leakgauge.risk.lint import LintFinding, LintSeverity, lint_update, read_lint, sorted_findings
from leakgauge.study.database import identity_of
from leakgauge.study.deal import Key
from leakgauge.study.judging.gate import needed
from leakgauge.study.plan import Plan
from leakgauge.task import Task
from leakgauge.update import Update
from leakgauge.view.undone import plainer

READS: dict[str, Attack] = {
    "tokens": TokenRead(),
    "closed-form": LinearRead(),
    "rank-one": RankOneRead(),
    "patches": PatchRead(),
    "peeling": Peeling(),
}
"""Reads that certify themselves: they try, and say by their own check whether it came out exactly."""
READ_SECONDS = 20.0  # longest that one read may take; the audit's own attacks have their own budgets
READ_OUT = ("exact-read", "bins-of-a-first-layer", "input-of-biased-layer")  # rules of examples that came out
HIGH_EPSILON = 10.0  # ε of one release above which little noise is called out; a round is rarely the only one


def lint_once(plan: Plan, folder: Path, *, anew: bool) -> tuple[list[LintFinding], bool]:
    """The findings, the gravest first, and whether they are new: those kept beside an audit of the same plan and
    contents stand."""
    if not anew and (folder / rules.LINT).exists():
        with suppress(InputError):  # damaged
            found = read_lint(folder, identity_of(plan.digest, plan.contents()))
            if all(f.rule != rules.NOT_RUN for f in found):
                return found, False
    return sorted_findings(lint_plan(plan)), True


def lint_plan(plan: Plan) -> Iterator[LintFinding]:
    """One client of each model, protocol and defence is simulated with the plan's first batch, and read."""
    settings: dict[tuple[int, int, int, int], Key] = {}
    for key in plan.trials():
        if not key.control:
            settings.setdefault((key.model, key.client, key.defense, key.batch if plan.rounds else 0), key)
    found = {key: list(_setting(plan, key)) for key in settings.values()}
    yield from dict.fromkeys(f for findings in found.values() for f in findings)  # of a model, what is opaque once
    read = {(key.model, plan.clients[key.client].label) for key in found if any(f.rule in READ_OUT for f in found[key])}
    rounds: dict[tuple[int, ...], str] = {}
    for client in plan.clients:
        with suppress(InputError):  # a batch that it cannot share: said where it is simulated
            if not client.value.rescales_entries:
                rounds.setdefault(client.value.parts(plan.data.batch), client.label)
    for index, model in enumerate(plan.models):
        own = [key for key in found if key.model == index]
        if own:
            unread = {parts: label for parts, label in rounds.items() if (index, label) not in read}
            yield from _hidden(plan.broadcast(own[0]).task, model.label, rounds, unread)
    for client in plan.clients:
        loop, seen = client.value.loop, ""
        if loop is not None and loop.batch_size == 1 == loop.accumulate:
            seen = "steps of one example: no other example hides in its gradient"
        elif plan.data.batch == 1:
            seen = "a client holds one example: nothing else is in its update"
        if seen:
            hint = "larger batches, and clipping with noise"
            yield LintFinding("batch-of-one", LintSeverity.MEDIUM, client.label, seen, hint)
    yield from of_data(plan)
    yield from of_gate(plan)
    for defense in plan.defenses:
        yield from lint_defense(defense.value, defense.label, [c.value for c in plan.clients], plan.data.batch)


DARK = 0.07  # share of the range below which all values of deep pictures lie that hold 12 of 16 bits


def of_data(plan: Plan) -> Iterator[LintFinding]:
    """Data as nobody meant them: values of a deeper file's lowest bits, and clients of one class each."""
    batches = [plan.source.read(indices) for indices in plan.data.indices[:CLIENTS]]
    spec = plan.spec
    brightest = max((float(b.inputs.max()) - spec.low) / spec.range for b in batches if b.inputs.numel())
    if spec.is_image and brightest < DARK:
        seen = f"no value of {len(batches)} clients is above {100 * brightest:.1f} % of the range"
        hint = "files of 16 bits that use 12: data.bits: 12; or set data.high"
        yield LintFinding("dark-data", LintSeverity.MEDIUM, plan.source.name, seen, hint)
    classes = [set(b.labels.tolist()) for b in batches if b.labels.ndim == 1 and not b.labels.is_floating_point()]
    if plan.data.batch > 1 and len(classes) > 1 and spec.classes > 1 and all(len(c) == 1 for c in classes):
        seen = f"each of {len(classes)} clients holds one class: their labels say nothing about a reader of labels"
        hint = "shuffle the rows of a file that is sorted by its target, unless your clients are so"
        yield LintFinding("one-class-clients", LintSeverity.MEDIUM, plan.source.name, seen, hint)


def of_gate(plan: Plan) -> Iterator[LintFinding]:
    """A limit that so few clients cannot show to hold, whatever comes back of them."""
    gate = plan.keys.gate
    if gate is None or gate.identified is None:
        return
    clients, limit = len(plan.data.indices), gate.identified.max
    least = needed(limit)
    if isinstance(least, int) and clients < least:
        seen = f"the gate allows {100 * limit:g} %, and {count_of(clients, 'client')} without a hit cannot show it"
        more = f"rounds of {least} clients" if plan.keys.update is not None else f"data.batches: {least}"
        hint = f"{more}, or argue for a higher gate.identified.max"
        yield LintFinding("too-few-clients", LintSeverity.MEDIUM, plan.source.name, seen, hint)


CLIENTS = 8  # clients whose examples are looked at


def _setting(plan: Plan, key: Key) -> Iterator[LintFinding]:
    client, defense = plan.clients[key.client], plan.defenses[key.defense]
    where = f"{plan.models[key.model].label}, {client.label}, {defense.label}"
    where += f", {plan.rounds[key.batch].name}" if len(plan.rounds) > 1 else ""
    draws, batch, task = Draws(0), plan.examples(key).batch, plan.broadcast(key).task
    try:
        if plan.keys.update is not None:
            update = plan.captured(key.batch)
        else:
            update = client_update(task, client.value, batch, draws, defense=defense.value, send_buffers=True)
            told = update.header.example_count if Known.EXAMPLE_COUNT in plan.knows else None
            update = replace(update, header=replace(update.header, example_count=told))
        knowledge = Knowledge(example_count=len(batch), local_training=client.value, defense=defense.value)
        observation, _ = plainer(Observation(defense.value.on_task(task), update, knowledge))
    except FOREIGN as error:  # a model, protocol or defence may be anybody's
        yield _not_read(where, f"the client could not be simulated ({said(error)})")
        return
    known = plan.keys.update is not None or Known.BUFFERS in plan.knows
    yield from _statistics(update, observation.task, where, known=known)
    steps = steps_of(defense.value)
    rounded, thinned = (any(isinstance(step, kind) for step in steps) for kind in (EntryGrid, EntryMask))
    yield from lint_update(replace(update, buffers=None), where, observation, rounded=rounded, thinned=thinned)
    yield from _exact_reads(observation, draws, where)
    yield from _bins(observation, draws, where)
    for one in observation.not_understood:  # by the reads above
        if one.opaque:
            seen = f"{one.why}: a read that finds nothing says little"
            hint = "write that part in linear layers, convolutions, tables and functions without parameters"
            yield LintFinding(rules.OPAQUE, LintSeverity.MEDIUM, plan.models[key.model].label, seen, hint)


def _exact_reads(observation: Observation, draws: Draws, where: str) -> Iterator[LintFinding]:
    """The first read that certifies an example, after all that raised or came to no end."""
    batch = observation.examples or 0
    for name, read in READS.items():
        try:
            found = read.reconstruct(observation, draws.generator(name), budget=Budget(seconds=READ_SECONDS))
        except FOREIGN as error:
            yield _not_read(where, f"{name} raised {said(error)}")
            continue
        if found.status is Status.TIME_LIMIT:
            yield _not_read(where, f"{name} had not ended after {READ_SECONDS:g} s")
        proved = 0 if found.certified is None else int(found.certified.sum())
        if proved or (found.status is Status.EXACT and (found.inputs is not None or found.tokens is not None)):
            if found.inputs is not None:
                what = f"{min(proved or len(found.inputs), batch)} of {batch} examples exactly"
            else:
                whole = found.tokens is not None and found.tokens.whole
                what = f"the tokens of all {batch} examples exactly" if whole else "tokens of the examples"
            hint = "see the defences that stop it: leakgauge frontier"
            seen = f"{name} reads {what}: {found.message}"
            yield LintFinding("exact-read", LintSeverity.HIGH, where, seen, hint)
            return


def _bins(observation: Observation, draws: Draws, where: str) -> Iterator[LintFinding]:
    """What bins in a first layer give away, whoever put them there; of large batches too, where nothing is proved."""
    try:
        found = RowDifferences(plausible=True).read(observation, draws.generator("bins"))
    except FOREIGN as error:
        yield _not_read(where, f"bins raised {said(error)}")
        return
    if found.inputs is not None:
        hint = "do not train on such a network: leakgauge inspect looks at what a server sends"
        yield LintFinding("bins-of-a-first-layer", LintSeverity.HIGH, where, f"an imprint: {found.message}", hint)


def _hidden(
    task: Task, model: str, rounds: Mapping[tuple[int, ...], str], unread: Mapping[tuple[int, ...], str]
) -> Iterator[LintFinding]:
    """Layers that give their inputs away at the plan's batch, where nothing is done to the update; and that none does.
    `rounds`: examples of each step that one update sums, and whose they are; `unread`: those of which no example was
    read either."""
    try:
        layers = hidden_inputs(task)
    except FOREIGN as error:
        yield _not_read(model, f"its hidden inputs could not be counted ({said(error)})")
        return
    for parts, client in rounds.items():
        found, passes, where = [one for one in layers if one.whole(parts)], sum(parts), f"{model}, {client}"
        several = f" of {passes} examples and steps, all in one update," if len(parts) > 1 else f" at batch {passes},"
        if found:
            most = max(found, key=lambda one: one.largest)
            seen = f"{len(found)} layers give what they are given away whole{several} without a search; {most.words}"
            hint = f"more than {most.largest} examples a {'round' if len(parts) > 1 else 'step'}, or a defence that "
            hint += "fills or empties the row space: noise, top-k"
            yield LintFinding(rules.HIDDEN, LintSeverity.MEDIUM, where if len(parts) > 1 else model, seen, hint)
        elif layers and parts in unread:
            seen = f"no layer gives what it is given away whole{several} and no example is read: only searches are left"
            hint = "an audit ends without an answer where searches do not bring its controls back; data.batch: 1 is "
            hint += "likeliest to end with one"
            yield LintFinding(rules.SEARCHED, LintSeverity.LOW, where, seen, hint)


def _not_read(where: str, why: str) -> LintFinding:
    return LintFinding("not-read", LintSeverity.LOW, where, why, "see the row in the audit")


def _statistics(update: Update, task: Task, where: str, *, known: bool) -> Iterator[LintFinding]:
    """Buffers that local training moved, running statistics among them; and whether it is `known` that they travel."""
    own, counters = task.buffers, "num_batches_tracked"
    sent = {k: v for k, v in (update.buffers or {}).items() if not k.endswith(counters) and k in own}
    moved = [k for k, v in sent.items() if v.shape != own[k].shape or not torch.equal(v.to(own[k]), own[k])]
    if not moved:
        return
    named = few(list(dict.fromkeys(k.rpartition(".")[0] or k for k in moved)), 3)
    hint = "keep them with the client, freeze the layer, or use a norm without any, such as GroupNorm"
    if known:
        said = f"the update also carries running statistics of {named}, raw: no defence covers them, and less the "
        said += "broadcast ones they are the batch's own; no attack here reads pictures from them alone"
    else:
        said = f"running statistics of {named} move with the client's data, and are taken to stay with the client; "
        said += "most frameworks send them, and no defence covers them"
        hint = f"say knows: buffers if they travel; else {hint}"
    yield LintFinding(rules.SENT if known else rules.UNSENT, LintSeverity.MEDIUM, where, said, hint)


def lint_defense(defense: Defense, label: str, clients: Sequence[Protocol], examples: int) -> Iterator[LintFinding]:
    """Clip and noise that do not do what they are there for."""
    steps = steps_of(defense)
    noisy = [i for i, step in enumerate(steps) if isinstance(step, Noise) and step.gaussian]
    clips = [i for i, step in enumerate(steps) if isinstance(step, Scale | PerExampleScale)]
    found = spent_in_one_update(defense, clients, examples)
    if not isinstance(found, NoGuarantee):
        epsilon = found.epsilon(DELTA)
        one = "release" if found.releases == 1 else f"update, {found.releases} local steps with an example,"
        seen = f"noise over clip is {found.noise_multiplier:.3g}: ε of one {one} is {in_words(epsilon)} "
        seen += f"(δ = {DELTA:g}, unit: one {found.unit.value}), and rounds add to it"
        hint = "a noise multiplier of 1 or more; leakgauge privacy counts the rounds"
        if epsilon > HIGH_EPSILON:
            yield LintFinding("little-noise", LintSeverity.MEDIUM, label, seen, hint)
    elif noisy and clips and min(noisy) < max(clips):
        seen = "the noise is added before the clip, which scales both down: how much noise is left depends on the data"
        yield LintFinding("noise-before-clip", LintSeverity.MEDIUM, label, seen, "clip first, then add noise")
    elif noisy or clips:
        hint = "use dp-sgd or client-dp, or clip right before noise of a fixed size"
        yield LintFinding("no-guarantee", LintSeverity.LOW, label, f"states no ε: {found.reason}", hint)


SHOWN = 3  # findings of a rule that the terminal shows; the JSON file has all


def print_findings(console: Console, found: Sequence[LintFinding]) -> None:
    """By rule, with the smallest change that helps, and a line that counts."""
    for (severity, rule, hint), members in _by_rule(found).items():
        console.print(Text(f"{severity.value}: {rule}", style="bold" if severity is LintSeverity.HIGH else ""))
        for f in members[:SHOWN]:
            console.print(Text(f"  {f.where}: {f.evidence}"))
        if len(members) > SHOWN:
            console.print(Text(f"  and {len(members) - SHOWN} more"))
        console.print(Text(f"  what helps: {hint}"))
    console.print(Text(f"{_counted(found)}. No finding means that these rules saw nothing, no more."))


def print_rules(console: Console, found: Sequence[LintFinding], where: str) -> None:
    """A line a rule, and where the rest is to be read."""
    for (severity, rule, _), members in _by_rule(found).items():
        settings = list(dict.fromkeys(f.where for f in members))
        others = f", and {len(settings) - 1} more" if len(settings) > 1 else ""
        words = f"{severity.value}: {rule}: {settings[0]}{others}"
        style = "bold" if severity is LintSeverity.HIGH else ""
        console.print(Text(words, style=style), no_wrap=True, overflow="ellipsis")
    console.print(Text(f"lint: {_counted(found)}; evidence and what helps: {where}"))


def _by_rule(found: Sequence[LintFinding]) -> dict[tuple[LintSeverity, str, str], list[LintFinding]]:
    groups = defaultdict(list)
    for f in found:
        groups[f.severity, f.rule, f.hint].append(f)
    return groups


def _counted(found: Sequence[LintFinding]) -> str:
    counts = ", ".join(f"{sum(f.severity is s for f in found)} {s.value}" for s in LintSeverity)
    return f"{len(found)} findings: {counts}"
