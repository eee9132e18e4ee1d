"""What an audit will take before its gate can decide."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from leakgauge.compute import Budget, Compute
from leakgauge.errors import FOREIGN, InputError, said
from leakgauge.observation import Status
from leakgauge.study.dealt import Key
from leakgauge.study.deciding.decision import FEWEST
from leakgauge.study.grammar import GateConfig
from leakgauge.study.judging.gate import needed
from leakgauge.study.judging.records import Trial
from leakgauge.study.plan import Plan
from leakgauge.study.trial import run_trial


@dataclass(frozen=True)
class TrialCost:
    """Of the trials of one model, client, defence and attack.

    Attributes:
        trials: controls included.
        seconds: of one trial, as measured on one.
        is_least: the trial was cut off, so that one takes at least as long.
        problem: why it could not be measured.
    """

    label: str
    trials: int
    seconds: float
    is_least: bool
    problem: str = ""


@dataclass(frozen=True)
class Estimate:
    """A forecast of an audit.

    Attributes:
        costs: by model, client and attack.
        clients: that each setting has.
        needed: clients that the gate needs in each setting if none is identified; `None` without such a limit, and
            infinite where the limit is zero.
        batch: examples of a client.
        doubts: why no search is known to recover such clients; empty where one is, or where nothing was compared.
    """

    costs: tuple[TrialCost, ...]
    clients: int
    needed: float | None
    batch: int = 1
    doubts: tuple[str, ...] = ()

    @property
    def trials(self) -> int:
        return sum(cost.trials for cost in self.costs)

    @property
    def seconds(self) -> float:
        """Of all trials one after the other."""
        return sum(cost.trials * cost.seconds for cost in self.costs)

    @property
    def is_least(self) -> bool:
        return any(cost.is_least or cost.problem for cost in self.costs)


def estimate(
    plan: Plan, *, seconds: float, compute: Compute, on_probe: Callable[[str], None] | None = None
) -> Estimate:
    """Runs one trial of each model, client and attack, cut off after `seconds` where the attack listens to a budget.

    A cut-off trial of an attack with a budget in gradient evaluations is extrapolated by what it had spent.
    """
    probes: dict[tuple[int, int, int], Key] = {}
    counts: Counter[tuple[int, int, int]] = Counter()
    for key in plan.trials():
        group = key.model, key.client, key.attack
        counts[group] += 1
        if group not in probes or (probes[group].control and not key.control):
            probes[group] = key
    whole, found = plan.budget, []
    cut = seconds if whole.seconds is None else min(seconds, whole.seconds)
    for group, key in (*list(probes.items())[:1], *probes.items()):  # the first loads libraries: its time is not kept
        label = ", ".join((plan.models[group[0]].label, plan.clients[group[1]].label, plan.attacks[group[2]].label))
        if on_probe is not None:
            on_probe(label)
        budget = Budget(whole.gradient_evaluations, cut)
        began = time.perf_counter()
        try:
            ran = run_trial(plan, key, compute=compute, counts_only=True, budget=budget)
        except InputError as error:
            found.append(TrialCost(label, counts[group], 0.0, False, str(error)))
            continue
        except FOREIGN as error:
            found.append(TrialCost(label, counts[group], 0.0, False, said(error)))
            continue
        took = time.perf_counter() - began
        trial = Trial.from_json(ran.record)
        is_cut = trial.status == Status.TIME_LIMIT.value and whole.seconds is None
        spent = trial.gradient_evaluations
        if is_cut and whole.gradient_evaluations and spent:
            took, is_cut = took * max(1.0, whole.gradient_evaluations / spent), False
        found.append(TrialCost(label, counts[group], took, is_cut))
    clients = len({plan.data.holder(number) for number in range(len(plan.batches))})
    needs = max([*_needs(plan.gate), float(FEWEST)]) if _needs(plan.gate) else None
    return Estimate(tuple(found[1:]), clients, needs, plan.data.batch, tuple(doubts_of(plan)))


def doubts_of(plan: Plan) -> Iterator[str]:
    """What of a plan's clients lies beyond those that a search here has been seen to recover without a defence."""
    shape, batch = plan.spec.shape, plan.data.batch
    if batch > 1 and plan.spec.is_image and max(shape[-2:]) > SHOWN_SIDE:
        yield f"pictures of {max(shape[-2:])} px in batches"
    if batch > SHOWN_BATCH:
        yield f"{batch} examples in one update"
    for client in plan.clients:
        if batch > 1 and client.value.rescales_entries:
            yield f"Adam and its like over {batch} examples"
        elif client.value.steps(batch) > SHOWN_STEPS:
            yield f"{client.value.steps(batch)} local steps"


SHOWN_SIDE, SHOWN_BATCH, SHOWN_STEPS = 32, 8, 16
"""Up to which searches recover undefended clients in the tests and tables of this project: side of pictures in batches,
examples of an update, local steps. Exact reads know no such limit; `leakgauge lint` says where there is one."""


def _needs(gate: GateConfig | None) -> list[float]:
    """Clients for each limit on a share."""
    if gate is None:
        return []
    shares = [gate.identified.max] if gate.identified is not None else []
    shares += [gate.psnr.share] if gate.psnr is not None else []
    return [math.inf if isinstance(n := needed(share), str) else float(n) for share in shares]
