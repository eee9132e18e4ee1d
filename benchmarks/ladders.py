"""Which exact reads an undefended client allows, and the smallest change of its update that stops each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from leakgauge.attacks.closed_form import LinearRead, TokenRead
from leakgauge.attacks.exact import Peeling
from leakgauge.attacks.recipes.exact_reads import EXACT
from leakgauge.attacks.recipes.order_search import orders_of, read_head_steps, several_steps
from leakgauge.clients import client_update
from leakgauge.defenses import Defense, Quantise, TopK, noise
from leakgauge.draws import Draws
from leakgauge.errors import FOREIGN
from leakgauge.frontiers.plan import FrontierPlan
from leakgauge.metrics.likeness import pairwise_mse
from leakgauge.metrics.metric import counts_of, uncovered
from leakgauge.observation import Attack, Knowledge, Known, Observation, Reconstruction
from leakgauge.task import Batch, DataSpec
from leakgauge.view.entries import undecayed

EXACTLY, SEEN = 45.0, 20.0
"""dB above which a read is exact, and above which a person sees the picture."""

MOST_ORDERS = 121
"""Orders of labels that are tried, as `order-search` has it."""


@dataclass(frozen=True)
class Ladder:
    """One kind of change, from weak to strong."""

    words: str  # with a place for the strength
    rungs: tuple[tuple[str, Defense], ...]


LADDERS = (
    Ladder("noise of {} of the update's norm", tuple((f"1e-{k}", noise(relative=10.0**-k)) for k in range(8, -1, -1))),
    Ladder("rounding to {} steps each way", tuple((str(n), Quantise(levels=n)) for n in (32767, 1023, 127, 7, 1))),
    Ladder("top-k that keeps {}", tuple((f"{k:g}", TopK(keep=k)) for k in (0.99, 0.9, 0.5, 0.1, 0.01))),
)

SPARSE, ORDER, TOKENS = "peeling and sparse directions", "order of the labels", "tokens of texts"

READS: dict[str, Attack] = {
    "closed form of one example": LinearRead(),
    **{m.name: m.attack for m in EXACT if m.name != "peeling"},
    "peeling": Peeling(directions=0),
    SPARSE: Peeling(),
    TOKENS: TokenRead(),
}


@dataclass(frozen=True)
class Stopped:
    """The first rung at which no example is exact any more, and the first at which none is above 20 dB, or no text has
    half of its tokens named; empty where no rung does that."""

    change: str
    exact: str
    seen: str


@dataclass(frozen=True)
class ReadRow:
    """One read of one undefended client.

    Attributes:
        read: its name.
        client, batch: who was read.
        exact: examples that came back above 45 dB; texts all of whose tokens were named, and no token of no text; of
            the order of the labels all or none.
        stopped: for each ladder.
    """

    read: str
    client: str
    batch: int
    exact: int
    stopped: tuple[Stopped, ...]


def reads_of(plan: FrontierPlan) -> list[ReadRow]:
    """Every read of the plan's undefended client that reads something."""
    row, audit = plan.undefended, plan.audits[plan.undefended.setting]
    task = plan.attacked_task()
    batch = plan.source.read(audit.data.indices[0])
    known = audit.knows
    found: list[ReadRow] = []

    def observed(defense: Defense | None) -> Observation:
        update = client_update(task, row.client.value, batch, Draws(0), defense=defense)
        knowledge = Knowledge(
            labels=batch.labels if Known.LABELS in known else None,
            example_count=len(batch) if Known.EXAMPLE_COUNT in known else None,
            local_training=row.client.value if Known.LOCAL_TRAINING in known else None,
            defense=defense if Known.DEFENSE in known else None,
        )
        return undecayed(Observation(task, update, knowledge))

    def tried(name: str, defense: Defense | None) -> tuple[int, int]:
        seen = observed(defense)
        if name == ORDER:
            return _ordered(seen, batch)
        found = READS[name].reconstruct(seen, torch.Generator().manual_seed(0), budget=audit.budget)
        return _texts(found, batch, task.data) if name == TOKENS else _near(found, batch, task.data)

    for name in (TOKENS, ORDER) if task.data.is_text else (*READS, ORDER):
        method = partial(tried, name)
        try:
            exact, _ = method(None)
            # The search for sparse directions is a read of its own where peeling stalls.
            if exact and not (name == SPARSE and any(r.read == "peeling" and r.exact >= exact for r in found)):
                stopped = tuple(_stop(ladder, method) for ladder in LADDERS)
                found.append(ReadRow(name, row.client.label, len(batch), exact, stopped))
        except FOREIGN:
            continue  # the model or the protocol does not suit this read
    return found


def _near(found: Reconstruction, batch: Batch, data: DataSpec) -> tuple[int, int]:
    """Examples that come back above 45 and above 20 dB."""
    if found.inputs is None or not len(found.inputs):
        return 0, 0
    error = pairwise_mse(found.inputs, batch.inputs, data_range=data.range, low=data.low).amin(0) / data.range**2
    quality = -10 * error.clamp_min(1e-30).log10()
    return int((quality > EXACTLY).sum()), int((quality > SEEN).sum())


def _texts(found: Reconstruction, batch: Batch, data: DataSpec) -> tuple[int, int]:
    """Texts all of whose tokens are named, where no others are; and half, where as many others are at most."""
    if found.tokens is None:
        return 0, 0
    own = counts_of(batch.inputs, data.vocabulary, data.padding)
    named = found.tokens.counts.cpu().sum(0) > 0
    if data.padding is not None:
        named[data.padding] = False
    right = int((named & (own.sum(0) > 0)).sum())
    others = int(named.sum()) - right
    missing = uncovered(named.long()[None], own)[0]
    return int((missing == 0).sum()) * (others == 0), int((missing <= 0.5).sum()) * (others <= right)


def _ordered(seen: Observation, batch: Batch) -> tuple[int, int]:
    """Whether the order that the client drew is among those that the last layer's steps leave; by one who is not told
    the defence."""
    client = several_steps(seen)
    if client is None or client.loop is None:
        return 0, 0
    size, g = client.parts(len(batch))[0], torch.Generator().manual_seed(0)
    orders = list(orders_of(batch.labels.tolist(), size, MOST_ORDERS, g))
    if not 1 < len(orders) < MOST_ORDERS:
        return 0, 0
    naive = Observation(seen.task, seen.update, Knowledge(batch.labels, len(batch), client))
    steps = read_head_steps(naive, orders, g)
    visited = [batch.labels[i].tolist() for i in client.loop.order(len(batch), Draws(0))]
    drawn = tuple(label for part in visited for label in sorted(part))
    right = drawn in steps and len(steps) < len(orders)
    return int(right), int(right)


def _stop(ladder: Ladder, method: Callable[[Defense | None], tuple[int, int]]) -> Stopped:
    """By bisection: a stronger change is taken to stop what a weaker one stops."""
    tried: dict[int, tuple[int, int]] = {}

    def first(which: int) -> str:
        low, high = 0, len(ladder.rungs)
        while low < high:
            middle = (low + high) // 2
            if middle not in tried:
                tried[middle] = method(ladder.rungs[middle][1])
            low, high = (middle + 1, high) if tried[middle][which] else (low, middle)
        return ladder.rungs[low][0] if low < len(ladder.rungs) else ""

    return Stopped(ladder.words, first(0), first(1))
