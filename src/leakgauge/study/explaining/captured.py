"""What a plan must agree on with the captured update that it audits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from leakgauge.clients.protocol import Protocol
from leakgauge.data.source import Source, public
from leakgauge.draws import Draws
from leakgauge.errors import require
from leakgauge.models.weights import tied
from leakgauge.study.explaining.causes import Evidence, explain
from leakgauge.study.explaining.explained import Explained
from leakgauge.study.explaining.recorded import Recorded
from leakgauge.study.explaining.setting import Setting
from leakgauge.task import Batch, Task
from leakgauge.tensors import unwrapped
from leakgauge.update import Update

STRANGERS = 64
"""Other examples that show whether an update belongs to the plan's weights."""

WINDOWS = 16
"""Other places of the source that are tried for the round's examples."""

WEIGHTS = "weights: a file of the parameters that the server broadcast, before local training"


def refuse_contradiction(update: Update, protocol: Protocol, *, examples: int, has_weights: bool) -> None:
    """Raises `InputError` where a plan says otherwise than the header of its update, or leaves its model to chance.

    An attack on a misread update fails for reasons that have nothing to do with privacy, and its failure would be
    taken for protection.

    Args:
        update: as captured.
        protocol: the plan's.
        examples: the plan's, of one client.
        has_weights: whether the plan says which parameters the client was sent.
    """
    header = update.header
    require(
        has_weights,
        "model",
        "names no weights, and an update belongs to those that its client was sent",
        f"add {WEIGHTS}",
    )
    count = header.example_count
    require(
        count is None or count == examples,
        "data.batch",
        f"is {examples}, and the update's header says that {count} example{'s' * (count != 1)} made it",
        f"set it to {count}, with the examples of that round",
    )
    sends, sent = protocol.kind.value, header.kind.value
    fitting = "fedavg" if sent == "delta" else "fedsgd"
    require(
        sends == sent,
        "clients[0]",
        f"sends a {sends}, and the update's header says that it is a {sent}",
        f"give a protocol that sends a {sent}, e.g. {fitting}, or capture the update anew",
    )


def read_update(path: Path | str, task: Task) -> Update:
    """A captured update in the terms of its model: what the model freezes and the update leaves as it was is no part of
    it, as where a whole state dict travels and adapters alone train; nor is a wrapper's prefix before every name, or
    the second name of a tied parameter.

    Raises:
        InputError: unreadable, of another model, zero, or it changes what the model freezes.
    """
    update = _once(Update.load(path), task)
    frozen = [k for k in update.tensors if k in task.buffers and k not in task.parameters]
    changed = [k for k in frozen if bool((update.tensors[k] != 0).any())]
    require(
        not changed,
        "update",
        f"changes {', '.join(changed[:3])}, which the model freezes",
        "freeze in the model what the client froze, and nothing else",
    )
    missing = [k for k in task.parameters if k not in update.tensors]
    require(
        not missing or not update.tensors.keys() <= task.parameters.keys() | set(frozen),
        "update",
        f"does not match the model: missing {', '.join(missing[:3])}",
        "audit it with the model that made it; freeze what did not train (requires_grad_(False))",
    )
    kept = {k: v for k, v in update.tensors.items() if k not in frozen}
    update = replace(update, tensors={k: kept[k] for k in task.parameters if k in kept} | kept)
    update.check(task.parameters)
    moved = any(bool((v != 0).any()) for v in update.tensors.values())
    require(
        moved, "update", "is zero in every entry: nothing was trained", "capture a round in which the client trains"
    )
    return update


def _once(update: Update, task: Task) -> Update:
    """Each parameter under the name that the model has for it, and once."""
    tensors, twice = unwrapped(update.tensors), tied(task.module)
    for name, first in twice.items():
        if name in tensors and first in tensors:
            same = torch.equal(tensors[name], tensors[first])
            hint = f"the model ties them: train with {name} and {first} as one parameter, or untie the model"
            require(same, "update", f"moves {name} otherwise than {first}", hint)
    tensors = {twice.get(k, k): v for k, v in tensors.items() if twice.get(k) not in tensors}
    return replace(update, tensors=tensors)


def explained_by(
    update: Update,
    setting: Setting,
    source: Source,
    indices: list[int],
    draws: Draws,
    *,
    received: str | None = None,
    recorded: Recorded | None = None,
) -> Explained:
    """How much of a captured update the plan explains; where it does not, other examples of its source are tried.

    Args:
        update: as captured.
        setting: the plan's account of the round.
        source: where the plan takes the round's examples from, at `indices`.
        draws: of the check alone.
        received: fingerprint of the plan's weights, to compare with what the capture recorded.
        recorded: the round as the capture heard it.

    Raises:
        InputError: the plan's client cannot train.
    """
    size, here = len(indices), indices[0]

    def elsewhere() -> Iterator[tuple[str, Batch]]:
        starts = {min(size * i * max(1, len(source) // size // WINDOWS), len(source) - size) for i in range(WINDOWS)}
        near = {here + k for k in range(-size, size + 1)} | {here + k * size for k in range(-4, 5)}
        inside = starts | {s for s in near if 0 <= s <= len(source) - size}
        for start in sorted(inside, key=lambda s: (abs(s - here), s)):
            if start != here:
                yield f"start: {start}", source.read(range(start, start + size))

    strangers = public(source, indices, STRANGERS, draws.generator("public"))
    said = update.header.protocol.get("weights")
    weights = None if said is None or received is None else said == received
    return explain(setting, update, draws, Evidence(strangers, elsewhere, recorded, weights))
