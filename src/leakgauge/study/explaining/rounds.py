"""Captured rounds that a plan audits: which are of one client, and what the plan must agree on with each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components

from leakgauge.clients.protocol import Protocol
from leakgauge.data.source import Source, public
from leakgauge.draws import Draws
from leakgauge.errors import require
from leakgauge.files import fingerprint_of_file
from leakgauge.models.weights import fingerprint, read_model, tied, weights_path
from leakgauge.study.explaining.causes import Evidence, explain
from leakgauge.study.explaining.record import Recorded
from leakgauge.study.explaining.setting import Explained, Setting
from leakgauge.task import Batch, Task
from leakgauge.tensors import unwrapped
from leakgauge.update import EXAMPLES, UPDATE, WEIGHTS, Update, round_folder

STRANGERS = 64  # other examples that show whether an update belongs to the plan's weights
WINDOWS = 16  # other places of the source that are tried for the round's examples


@dataclass(frozen=True)
class CapturedRound:
    """One captured round: its update, and what the client received, `None` where the plan's model says it."""

    update: Path
    weights: Path | None = None

    @property
    def name(self) -> str:
        return self.update.parent.name

    @property
    def node(self) -> str:
        """Whose it is, as the capture recorded; empty where it is not known."""
        return Update.load(self.update).header.protocol.get("node", "")

    @property
    def examples(self) -> Path | None:
        """The folder with the round's examples: its own, or that of another side of the same round and node."""
        folder, known = self.update.parent, Update.load(self.update).header.protocol
        same = folder.with_name(round_folder(known.get("round", ""), known.get("node", "")))
        sides = sorted(folder.parent.glob(f"{escape(same.name)}-*")) if known else []
        return next((place for place in (folder, same, *sides) if (place / EXAMPLES).is_file()), None)


def rounds_of(update: str | Sequence[str] | None) -> tuple[CapturedRound, ...]:
    """A plan's ``update``: a file, the folder of a round, or a list of such folders."""
    if update is None:
        return ()
    if isinstance(update, str) and not Path(update).is_dir():
        return (CapturedRound(Path(update)),)
    single, folders = isinstance(update, str), [update] if isinstance(update, str) else list(update)
    for i, text in enumerate(folders):
        whole = all((Path(text) / file).is_file() for file in (UPDATE, WEIGHTS))
        key = "update" if single else f"update[{i}]"
        require(whole, key, f"'{text}' holds no {UPDATE} and {WEIGHTS}", "name folders of captured rounds")
    once = len(set(folders)) == len(folders) > 0
    require(once, "update", "names no round, or one of them twice", "give each folder once")
    return tuple(CapturedRound(Path(text) / UPDATE, Path(text) / WEIGHTS) for text in folders)


def clients_of(nodes: Sequence[str], holders: Sequence[int]) -> list[int]:
    """For each round the first of the same client: of one node, or on the same examples, as `holders` says. Rounds of
    unknown nodes (empty) may be of one client, and count as one: more would be taken for independent."""
    rounds = list(zip(nodes, holders, strict=True))
    same = [[a == b or i == j or not (a and b) for b, j in rounds] for a, i in rounds]
    clients = connected_components(np.array(same))[1].tolist()
    return [clients.index(client) for client in clients]


def refuse_contradiction(update: Update, protocol: Protocol, *, examples: int, has_weights: bool) -> None:
    """Raises `InputError` where a plan says otherwise than the header of its update, or leaves its model to chance: an
    attack on a misread update fails for other reasons, and its failure would be taken for protection."""
    header = update.header
    unknown = "names no weights, and an update belongs to those that its client was sent"
    hint = "add weights: a file of the parameters that the server broadcast, before local training"
    require(has_weights, "model", unknown, hint)
    count = header.example_count
    other = f"is {examples}, and the update's header says that {count} example{'s' * (count != 1)} made it"
    require(count in (None, examples), "data.batch", other, f"set it to {count}, with the examples of that round")
    sends, sent = protocol.kind.value, header.kind.value
    other = f"sends a {sends}, and the update's header says that it is a {sent}"
    fitting = "fedavg" if sent == "delta" else "fedsgd"
    hint = f"give a protocol that sends a {sent}, e.g. {fitting}, or capture the update anew"
    require(sends == sent, "clients[0]", other, hint)


def read_update(path: Path | str, task: Task) -> Update:
    """A captured update in the terms of its model: what the model freezes and the update leaves as it was is no part of
    it, as where a whole state dict travels and adapters alone train; nor is a wrapper's prefix before every name, or
    the second name of a tied parameter. Raises `InputError`: unreadable, of another model, zero, or it changes what the
    model freezes."""
    update = _once(Update.load(path), task)
    frozen = [k for k in update.tensors if k in task.buffers and k not in task.parameters]
    changed = [k for k in frozen if bool((update.tensors[k] != 0).any())]
    hint = "freeze in the model what the client froze, and nothing else"
    require(not changed, "update", f"changes {', '.join(changed[:3])}, which the model freezes", hint)
    missing = [k for k in task.parameters if k not in update.tensors]
    part = bool(missing) and update.tensors.keys() <= task.parameters.keys() | set(frozen)
    hint = "audit it with the model that made it; freeze what did not train (requires_grad_(False))"
    require(not part, "update", f"does not match the model: missing {', '.join(missing[:3])}", hint)
    kept = {k: v for k, v in update.tensors.items() if k not in frozen}
    update = replace(update, tensors={k: kept[k] for k in task.parameters if k in kept} | kept)
    update.check(task.parameters)
    moved = any(bool((v != 0).any()) for v in update.tensors.values())
    hint = "capture a round in which the client trains"
    require(moved, "update", "is zero in every entry: nothing was trained", hint)
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


def explained_round(
    captured: CapturedRound,
    update: Update,
    setting: Setting,
    source: Source,
    indices: list[int],
    draws: Draws,
    *,
    weights: str | None = None,
) -> Explained:
    """How much of a captured round the plan explains; where it does not, other examples of its source are tried."""
    size, here = len(indices), indices[0]

    def elsewhere() -> Iterator[tuple[str, Batch]]:
        starts = {min(size * i * max(1, len(source) // size // WINDOWS), len(source) - size) for i in range(WINDOWS)}
        near = {here + k for k in range(-size, size + 1)} | {here + k * size for k in range(-4, 5)}
        inside = starts | {s for s in near if 0 <= s <= len(source) - size}
        for start in sorted(inside - {here}, key=lambda s: (abs(s - here), s)):
            yield f"start: {start}", source.read(range(start, start + size))

    file = captured.weights or (None if weights is None else weights_path(weights))
    said = update.header.protocol.get("weights")
    same = None if said is None or file is None else said == fingerprint(read_model(file, "model.weights"))
    recorded = own = None
    if (place := captured.examples) is not None:
        recorded = Recorded.read(place / EXAMPLES)
        wrote = Update.load(place / UPDATE).header.protocol.get("examples") if (place / UPDATE).is_file() else None
        own = None if wrote is None else wrote == fingerprint_of_file(place / EXAMPLES)
    alone = recorded is not None and len(source) == size  # then the record says whether these are the round's
    strangers = None if alone else public(source, indices, STRANGERS, draws.generator("public"))
    return explain(setting, update, draws, Evidence(strangers, elsewhere, recorded, same, own))
