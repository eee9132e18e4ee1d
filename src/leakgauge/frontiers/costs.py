"""What a row costs: client time, bytes, and the privacy budget."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

from leakgauge.clients import Protocol, client_update
from leakgauge.defenses import Defense, NoDefense, layers_of
from leakgauge.defenses.wire import wire_bytes
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.frontiers.accuracy import participations, partition_of
from leakgauge.frontiers.plan import UNDEFENDED, FrontierPlan, FrontierRow
from leakgauge.frontiers.results import TRAINING, UPDATE, ClientTime, Privacy, RowCost
from leakgauge.privacy.accounting import check_delta
from leakgauge.privacy.guarantee import Guarantee, NoGuarantee, Unit, exchanged, guarantee, mechanism
from leakgauge.privacy.one_update import LocalUse, local_batch
from leakgauge.privacy.rero import sentence, success_bound
from leakgauge.task import Batch, Mode, Task
from leakgauge.tensors import Tensors

EXAMPLES = 32
"""Most examples that the timed client trains on; fewer where a local step of the plan's client has fewer."""

REPEATS = 5


def cost_of(task: Task, usual: Protocol, client: Protocol, defense: Defense) -> RowCost:
    """Both clients, this one and the plan's own without a defence, train in turn `REPEATS` times on uniform noise; the
    ratio is the median of theirs, so that a machine that is busy for a while moves neither side alone.

    Args:
        usual: what the plan's client runs.
    """
    examples = local_batch(usual, EXAMPLES)
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


@dataclass(frozen=True)
class Participation:
    """How often a client's data are used.

    Attributes:
        examples: that it holds.
        rounds: in which it trains.
    """

    examples: int
    rounds: int


def exposures(plan: FrontierPlan, row: FrontierRow) -> list[Participation]:
    """Those of the simulation's clients, each kind once; without one, the row's attacked client's single update."""
    if plan.utility is None:
        return [Participation(row.batch, 1)]
    pairs = zip(partition_of(plan), participations(plan), strict=True)
    return [Participation(n, rounds) for n, rounds in sorted({(len(hand), rounds) for hand, rounds in pairs if rounds})]


def privacy_of(plan: FrontierPlan, row: FrontierRow, met: list[Participation], layers: int) -> Privacy:
    """The worst ε over the clients: of the one whose examples are seen most often.

    Nothing is sampled here: a server that receives each update knows who took part, and whether a client shuffles or
    not, each of its examples is in one step of every epoch. Accountants' custom of counting shuffled batches as Poisson
    samples is no bound.
    """
    if not row.defended and row.family != UNDEFENDED:
        return Privacy(reason="aggregation and batch size are no differential privacy by themselves")
    if plan.mode is Mode.TRAIN and plan.attacked_task().buffers:
        return Privacy(reason="BatchNorm statistics leave the client beside the update, without noise")
    try:
        spent = [_of(plan, row, exposure, layers) for exposure in met]
    except InputError as error:
        return Privacy(reason=str(error))
    without = next((s for s in spent if isinstance(s, NoGuarantee)), None)
    if without is not None:
        return Privacy(reason=without.reason)
    worst = max((s for s in spent if isinstance(s, Guarantee)), key=lambda s: s.epsilon)
    other, guess = exchanged(worst), 1 / (1 + plan.config.gallery)
    try:
        check_delta(plan.config.delta, _units(plan, row, worst.unit), f"{worst.unit.value}s")
    except InputError as error:
        return Privacy(reason=str(error))
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


def _of(plan: FrontierPlan, row: FrontierRow, met: Participation, layers: int) -> Guarantee | NoGuarantee:
    use, defense = LocalUse.of(row.client.value, met.examples), row.defense.value
    found = mechanism(defense, examples=use.smallest, layers=layers, gradient=use.gradient)
    if isinstance(found, NoGuarantee):
        return found
    steps = 1 if found.unit is Unit.CLIENT else use.steps
    return guarantee(
        defense,
        sample_rate=1.0,
        steps=steps * met.rounds,
        delta=plan.config.delta,
        accountant=plan.config.accountant,
        examples=use.smallest,
        layers=layers,
        gradient=use.gradient,
    )


def _units(plan: FrontierPlan, row: FrontierRow, unit: Unit) -> int:
    """Examples or clients of the training; without one, of what is seen of the row."""
    if plan.utility is None:
        return row.batch * row.cohort if unit is Unit.EXAMPLE else row.cohort
    hands = partition_of(plan)
    return sum(len(hand) for hand in hands) if unit is Unit.EXAMPLE else len(hands)


def layers(plan: FrontierPlan) -> int:
    """Number of layers, counted as Fed-CDP clips them."""
    return len(layers_of(plan.attacked_task().parameters))
