"""ε of a row over the whole training, or of one update where none is simulated; or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leakgauge.clients import FedAvg, LocalTraining, Protocol
from leakgauge.defenses import layers_of
from leakgauge.errors import InputError
from leakgauge.frontier.accuracy import participations, partition_of
from leakgauge.frontier.plan import FrontierPlan
from leakgauge.frontier.rows import UNDEFENDED, Row, local_batch
from leakgauge.privacy.accounting import check_delta
from leakgauge.privacy.guarantee import Guarantee, NoGuarantee, Unit, exchanged, guarantee, mechanism
from leakgauge.privacy.rero import sentence, success_bound
from leakgauge.update import UpdateKind

TRAINING, UPDATE = "the whole training", "one update"
"""What an ε counts."""


@dataclass(frozen=True)
class Exposure:
    """How often a client's data are used.

    Attributes:
        examples: that it holds.
        rounds: in which it trains.
    """

    examples: int
    rounds: int


def exposures(plan: FrontierPlan, row: Row) -> list[Exposure]:
    """Those of the simulation's clients, each kind once; without one, the row's attacked client's single update."""
    if not plan.config.utility.given:
        return [Exposure(row.batch, 1)]
    pairs = zip(partition_of(plan), participations(plan), strict=True)
    return [Exposure(n, rounds) for n, rounds in sorted({(len(hand), rounds) for hand, rounds in pairs if rounds})]


def privacy_of(plan: FrontierPlan, row: Row, met: list[Exposure], layers: int) -> dict[str, Any]:
    """The worst ε over the clients: of the one whose examples are seen most often.

    Nothing is sampled here: a server that receives each update knows who took part, and whether a client shuffles or
    not, each of its examples is in one step of every epoch. Accountants' custom of counting shuffled batches as Poisson
    samples is no bound: with z = 1 and 13 epochs of 6 steps (rate .18) it gives ε 11.5 where 21.2 can be shown.
    """
    if not row.defended and row.family != UNDEFENDED:
        return {"epsilon": None, "reason": "aggregation and batch size are no differential privacy by themselves"}
    if plan.config.mode == "train" and plan.attacked_task().buffers:
        return {"epsilon": None, "reason": "BatchNorm statistics leave the client beside the update, without noise"}
    try:
        spent = [_of(plan, row, exposure, layers) for exposure in met]
    except InputError as error:
        return {"epsilon": None, "reason": str(error)}
    without = next((s for s in spent if isinstance(s, NoGuarantee)), None)
    if without is not None:
        return {"epsilon": None, "reason": without.reason}
    worst = max((s for s in spent if isinstance(s, Guarantee)), key=lambda s: s.epsilon)
    other, guess = exchanged(worst), 1 / (1 + plan.config.gallery)
    try:
        check_delta(plan.config.delta, _units(plan, row, worst.unit), f"{worst.unit.value}s")
    except InputError as error:
        return {"epsilon": None, "reason": str(error)}
    return {
        "epsilon": float(f"{worst.epsilon:.4g}"),
        "delta": worst.delta,
        "accountant": worst.accountant,
        "unit": worst.unit.value,
        "noise_multiplier": float(f"{worst.noise_multiplier:.4g}"),
        "sample_rate": float(f"{worst.sample_rate:.4g}"),
        "steps": worst.steps,
        "exchanged": None if other is None else float(f"{other:.4g}"),
        "scope": TRAINING if plan.config.utility.given else UPDATE,
        "robustness": sentence(worst, guess),
        "at_most": float(f"{success_bound(worst, guess):.4g}"),
        "reason": None,
    }


def _of(plan: FrontierPlan, row: Row, met: Exposure, layers: int) -> Guarantee | NoGuarantee:
    client, defense = row.client.value, row.defense.value
    step = local_batch(client, met.examples)
    smallest = met.examples % step or step  # the last step of an epoch, in which noise on a mean counts least
    gradient = client.kind is UpdateKind.GRADIENT
    found = mechanism(defense, examples=smallest, layers=layers, gradient=gradient)
    if isinstance(found, NoGuarantee):
        return found
    rate, steps = (1.0, 1) if found.unit is Unit.CLIENT else sampling(client, met.examples)
    return guarantee(
        defense,
        sample_rate=rate,
        steps=steps * met.rounds,
        delta=plan.config.delta,
        accountant=plan.config.accountant,
        examples=smallest,
        layers=layers,
        gradient=gradient,
    )


def _units(plan: FrontierPlan, row: Row, unit: Unit) -> int:
    """Examples or clients of the training; without one, of what is seen of the row."""
    if not plan.config.utility.given:
        return row.batch * row.cohort if unit is Unit.EXAMPLE else row.cohort
    hands = partition_of(plan)
    return sum(len(hand) for hand in hands) if unit is Unit.EXAMPLE else len(hands)


def sampling(client: Protocol, examples: int) -> tuple[float, int]:
    """Sample rate of an example in a local step, and in how many steps of a round it is drawn at that rate."""
    return 1.0, client.epochs if isinstance(client, FedAvg | LocalTraining) else client.steps(examples)


def layers(plan: FrontierPlan) -> int:
    """Of the attacked model, as fed-cdp clips them."""
    return len(layers_of(plan.attacked_task().parameters))
