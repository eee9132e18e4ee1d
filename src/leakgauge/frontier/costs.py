"""Client time and bytes of a row, measured on a small client's local training."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from leakgauge.clients import Protocol, client_update
from leakgauge.defenses import Defense, NoDefense
from leakgauge.defenses.wire import wire_bytes
from leakgauge.draws import Draws
from leakgauge.frontier.folder import Folder, keep, kept
from leakgauge.frontier.plan import FrontierPlan
from leakgauge.frontier.rows import local_batch
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors

EXAMPLES = 32
"""Of the client that is timed, at most; fewer where a local step of the plan's client has fewer."""

REPEATS = 5


def measure(plan: FrontierPlan, folder: Folder, *, on_row: Callable[[int, int], None] | None = None) -> None:
    """Measures what is not yet measured, row by row; `on_row` is told how many are done, of how many."""
    task = plan.attacked_task()
    for done, row in enumerate(plan.rows):
        if on_row is not None:
            on_row(done + 1, len(plan.rows))
        file = folder.costs(row.training)
        if kept(file) is None:
            keep(file, cost_of(task, plan.client.value, row.client.value, row.defense.value))


def cost_of(task: Task, usual: Protocol, client: Protocol, defense: Defense) -> dict[str, Any]:
    """Bytes sent, with those of the undefended update, and under ``seconds`` the processor time of a client.

    Both clients, this one and the plan's own without a defence, train in turn `REPEATS` times on uniform noise;
    ``relative`` is the median of the ratios, so that a machine that is busy for a while moves neither side alone.

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
    return {
        "bytes": wire_bytes(defense, sent),
        "bytes_undefended": wire_bytes(NoDefense(), plain),
        "examples": examples,
        "seconds": {
            "client": statistics.median(own for _, own in pairs),
            "undefended": statistics.median(other for other, _ in pairs),
            "relative": round(statistics.median(own / max(other, 1e-9) for other, own in pairs), 2),
        },
    }
