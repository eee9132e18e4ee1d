"""What fills a row's columns: what it leaks, its accuracy, client time, bytes and privacy budget."""

import hashlib
import statistics
import time
from collections import Counter as Counted
from collections.abc import Callable, Iterable
from pathlib import Path

import cloudpickle
import torch

from leakgauge.attacks.adaptive import Counter, counter_to
from leakgauge.attacks.labels.strategy import made_up
from leakgauge.clients import Protocol, client_update
from leakgauge.compute import Compute
from leakgauge.data.source import spec
from leakgauge.defenses import Defense, NoDefense, parts_of
from leakgauge.defenses.compression import wire_bytes
from leakgauge.draws import Draws
from leakgauge.errors import FOREIGN, InputError
from leakgauge.frontiers.plan import UNDEFENDED, FrontierPlan, FrontierRow
from leakgauge.frontiers.results import TRAINING, UPDATE, Accuracy, ClientTime, CounterUsed, Leakage, Privacy, RowCost
from leakgauge.intervals import proportion_interval
from leakgauge.observation import Observation
from leakgauge.privacy.accounting import Guarantee, Unit, check_delta, epsilon_exchanged, sentence, success_bound
from leakgauge.privacy.guarantee import Mechanism, NoGuarantee, counted, spent_in_one_update
from leakgauge.servers.server import Broadcast
from leakgauge.study.judging.records import Role
from leakgauge.study.judging.results import TrialGroup, groups_of
from leakgauge.study.judging.verdict import told
from leakgauge.study.run import OnTrial, Running
from leakgauge.study.run import run as run_audit
from leakgauge.study.trial import observe
from leakgauge.task import Batch, Mode, Task
from leakgauge.tensors import Tensors
from leakgauge.training import Hands, dirichlet_partition, read_stored
from leakgauge.workers import Executor, Jobs, packed

EXAMPLES = 32  # most examples that the timed client trains on; fewer where a local step of the plan's client has fewer

REPEATS = 5


def cost_of(task: Task, usual: Protocol, client: Protocol, defense: Defense) -> RowCost:
    """Both clients, this one and the plan's own without a defence, train in turn `REPEATS` times on uniform noise; the
    ratio is the median of theirs, so that a machine that is busy for a while moves neither side alone."""
    examples = max(usual.parts(EXAMPLES))
    generator = torch.Generator().manual_seed(0)
    inputs = task.data.low + task.data.range * torch.rand(examples, *task.data.shape, generator=generator)
    batch = Batch(inputs, torch.randint(task.data.classes, (examples,), generator=generator))

    def spent(runs: Protocol, what: Defense, seed: int) -> tuple[float, Tensors]:
        began = time.process_time()
        sent = client_update(task, runs, batch, Draws(seed), defense=what).tensors
        return time.process_time() - began, sent

    plain, sent = spent(usual, NoDefense(), 0)[1], spent(client, defense, 0)[1]
    pairs = [(spent(usual, NoDefense(), i)[0], spent(client, defense, i)[0]) for i in range(REPEATS)]
    spread = ClientTime(
        statistics.median(own for _, own in pairs),
        statistics.median(other for other, _ in pairs),
        round(statistics.median(own / max(other, 1e-9) for other, own in pairs), 2),
    )
    return RowCost(wire_bytes(defense, sent), wire_bytes(NoDefense(), plain), examples, spread)


def exposures(plan: FrontierPlan, row: FrontierRow) -> list[tuple[int, int]]:
    """(examples, rounds): how often the data of the simulation's clients are used, each kind of client once; without a
    simulation, the single update of the row's attacked client."""
    if plan.utility is None:
        return [(row.batch, 1)]
    pairs = zip(partition_of(plan), participations(plan), strict=True)
    return sorted({(len(hand), rounds) for hand, rounds in pairs if rounds})


def privacy_of(plan: FrontierPlan, row: FrontierRow, met: list[tuple[int, int]], layers: int) -> Privacy:
    """The worst ε over the clients: of the one whose examples are seen most often.

    Nothing is sampled here: a server that receives each update knows who took part, and whether a client shuffles or
    not, each of its examples is in one step of every epoch. Accountants' custom of counting shuffled batches as Poisson
    samples is no bound."""
    if not row.defended and row.family != UNDEFENDED:
        return Privacy(reason="aggregation and batch size are no differential privacy by themselves")
    if plan.mode is Mode.TRAIN and plan.attacked_task().buffers:
        return Privacy(reason="BatchNorm statistics leave the client beside the update, without noise")
    by, found = plan.keys, []
    try:
        for examples, rounds in met:
            spent: Mechanism | Guarantee | NoGuarantee
            spent = spent_in_one_update(row.defense.value, [row.client.value], examples, layers)
            if isinstance(spent, Mechanism):
                steps = spent.releases * rounds
                spent = counted(spent, sample_rate=1.0, steps=steps, delta=by.delta, accountant=by.accountant)
            if isinstance(spent, NoGuarantee):
                return Privacy(reason=spent.reason)
            found.append(spent)
        worst = max(found, key=lambda one: one.epsilon)
        check_delta(by.delta, _units(plan, row, worst.unit), f"{worst.unit.value}s")
    except InputError as error:
        return Privacy(reason=str(error))
    other, guess = epsilon_exchanged([worst.release], worst.delta, worst.accountant), 1 / (1 + by.gallery)
    return Privacy(
        epsilon=float(f"{worst.epsilon:.4g}"),
        delta=worst.delta,
        accountant=worst.accountant,
        unit=worst.unit.value,
        noise_multiplier=float(f"{worst.noise_multiplier:.4g}"),
        sample_rate=float(f"{worst.sample_rate:.4g}"),
        steps=worst.steps,
        exchanged=None if other is None else float(f"{other:.4g}"),
        scope=UPDATE if plan.utility is None else TRAINING,
        robustness=sentence(worst, guess),
        at_most=float(f"{success_bound(worst, guess):.4g}"),
    )


def _units(plan: FrontierPlan, row: FrontierRow, unit: Unit) -> int:
    """Examples or clients of the training; without one, of what is seen of the row."""
    if plan.utility is None:
        return row.batch * row.cohort if unit is Unit.EXAMPLE else row.cohort
    hands = partition_of(plan)
    return sum(len(hand) for hand in hands) if unit is Unit.EXAMPLE else len(hands)


def trainer(plan: FrontierPlan, folder: Path) -> Callable[[str], Accuracy]:
    """Reads the data and builds the model once; what it gives runs a training of that name, from its checkpoint in the
    folder if there is one."""
    u, data = plan.keys.utility, plan.utility
    assert data is not None
    train = read_stored(data.train, spec(data.train), u.examples)
    test = read_stored(data.test, spec(data.test), u.test_examples)
    task, hands = plan.trained_task(data), partition_of(plan)

    def run(name: str) -> Accuracy:
        simulation = plan.training(plan.trainings()[name])
        done = simulation.run(task, train, hands, test, checkpoint=_checkpoint(folder, name))
        score, tested = done.accuracy, len(test.labels)
        ends = {} if score is None else proportion_interval(round(score * tested), tested).rounded(4)
        return Accuracy(
            value=score,
            reason=None if done.diverged is None else f"training diverged in round {done.diverged}",
            name=name,
            **ends,
            tested=tested,
            constant=round(float(test.labels.bincount().max()) / tested, 4),
            diverged=done.diverged,
            curve=done.curve,
            seconds=round(sum(r.seconds for r in done.rounds), 1),
        )

    return run


def partition_of(plan: FrontierPlan) -> Hands:
    assert plan.utility is not None
    u, labels = plan.keys.utility, plan.utility.train.labels
    return dirichlet_partition(labels[: u.examples], u.clients, u.alpha, Draws(u.seed).generator("partition"))


def _checkpoint(folder: Path, name: str) -> Path:
    return folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.checkpoint"


def _begin(ground: tuple[bytes, Compute, Path]) -> Callable[[str], Accuracy]:
    plan, compute, folder = ground
    compute.apply()
    return trainer(cloudpickle.loads(plan), folder)


def run_trainings(
    plan: FrontierPlan,
    names: Iterable[str],
    folder: Path,
    keep: Callable[[Accuracy], None],
    pool: Executor,
    how: Compute,
) -> None:
    """Runs trainings of these names, each from its checkpoint in `folder`; `keep` is given the result."""

    def ended(found: Accuracy) -> None:
        keep(found)
        _checkpoint(folder, found.name).unlink(missing_ok=True)

    pool.run_all(Jobs(names, ended, begin=_begin, ground=(packed(plan, "frontier"), how, folder), kept="trainings"))


def participations(plan: FrontierPlan) -> tuple[int, ...]:
    """How often each client of the simulation trains: the draw of clients does not depend on the training."""
    u, simulation = plan.keys.utility, plan.training(plan.undefended)
    times = Counted(client for number in range(u.rounds) for client in simulation.asked(u.clients, number))
    return tuple(times[client] for client in range(u.clients))


def run_leakage(
    plan: FrontierPlan, folder: Path, *, pool: Executor, compute: Compute, on_trial: OnTrial
) -> list[Leakage]:
    """Runs all audits that are not finished, each in a folder of its own, without pictures; an answer for each row."""
    total, before = sum(len(audit.trials()) for audit in plan.audits.values()), 0
    groups: dict[str, list[TrialGroup]] = {}
    for setting, audit in plan.audits.items():

        def say(done: int, _: int, last: str, offset: int = before) -> None:
            on_trial(offset + done, total, last)

        place = folder / hashlib.sha256(setting.encode()).hexdigest()[:16]
        how = Running(executor=pool, compute=compute, counts_only=True, on_trial=say)
        store = run_audit(audit, place, how)
        groups[setting] = groups_of([trial.judged for trial in store.trials()])
        store.close()
        before += len(audit.trials())
    leakage = []
    for row in plan.rows:
        beside = groups[row.setting]
        mine = [g for g in beside if not g.control and g.scenario.defense == row.defense.label]
        found = {g.trials[0].role is Role.NAIVE: told(g, beside) for g in mine}
        # Both attackers have the same finding where there is no defence to adapt to.
        leakage.append(Leakage(found.get(True), found.get(not row.defended)))
    return leakage


def counters_of(plan: FrontierPlan, row: FrontierRow) -> tuple[CounterUsed, ...]:
    """The named counter of each part of a row's defence, with what the plan's attacker lacks for it; or why there is
    none."""
    parts = parts_of(row.defense.value)
    seen = _seen(plan, row) if parts else None

    def used(part: Defense) -> CounterUsed:
        found, name = counter_to(part), type(part).__name__
        if not isinstance(found, Counter):
            return CounterUsed(name, None, False, "", found.reason)
        missing = "" if seen is None else found.lacks(seen)
        return CounterUsed(name, found.name, True, missing, found.because)

    return tuple(map(used, parts))


def _seen(plan: FrontierPlan, row: FrontierRow) -> Observation | None:
    """As the row's attacker sees a client, who holds noise: only an update shows whether one stage covers another.
    `None` where that client cannot be simulated."""
    audit = plan.audits[row.setting]
    task, client, draws = plan.attacked_task(), audit.clients[0], Draws(0)
    examples = row.batch * row.cohort
    inputs = made_up(task.data, examples, draws.generator("inputs"))
    batch = Batch(inputs, torch.arange(examples) % task.data.classes)
    try:
        update = client_update(task, client.value, batch, draws, defense=row.defense.value)
        return observe(audit, Broadcast(task), update, draws, client, row.defense, batch, batch.inputs)
    except FOREIGN:  # a defence may be anybody's
        return None
