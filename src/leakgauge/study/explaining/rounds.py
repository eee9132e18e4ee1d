"""Captured rounds: whose they are, what a plan must agree on with each, and the order in which their clients trained,
which makes a right plan explain all of an update.

That order is as secret as the examples. It judges plans, in `leakgauge.study.explaining`, and no attack is given it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from leakgauge.clients import LocalTraining, Protocol
from leakgauge.data.arrays import CAPTURE, read_archive
from leakgauge.draws import Draws
from leakgauge.errors import InputError, require
from leakgauge.models.weights import tied
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.tensors import unwrapped
from leakgauge.update import EXAMPLES, UPDATE, WEIGHTS, Update, round_folder


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


CHANCE = 1e-3
"""A loader that shuffles repeats the first epoch's minibatches by accident less often than a plan is doubted for."""

SAME = 1e-4
"""Share of the range by which two values of one pixel may differ: pictures are rescaled in other orders of rounding."""

TOLD = ("epochs", "batch_size", "drop_last", "shuffle")  # what steps tell of local training


@dataclass(frozen=True, kw_only=True)
class InOrder(LocalTraining):
    recorded: tuple[Int[Tensor, " b"], ...] = ()

    def order(self, examples: int, draws: Draws) -> list[Tensor]:
        return list(self.recorded)

    def parts(self, examples: int) -> tuple[int, ...]:
        return tuple(len(part) for part in self.recorded)

    def linear(self, examples: int) -> None:
        return None


@dataclass(frozen=True, eq=False)
class Recorded:
    """A captured round as its network saw it, and which examples made each minibatch. The first `own` are those of one
    epoch, in the order in which they came. Never part of an observation."""

    inputs: Float[Tensor, "n *shape"]
    labels: Int[Tensor, " n"]
    steps: tuple[Int[Tensor, " b"], ...]
    own: int

    @staticmethod
    def read(file: Path) -> "Recorded | None":
        """From a capture's archive; `None` where there is none, or without an order."""
        if not file.is_file():
            return None
        try:
            order, sizes = read_archive(file, (("order",), ("sizes",)), CAPTURE)
        except InputError:
            read_archive(file, (("x",),), CAPTURE)
            return None
        x, y, later, labels = read_archive(file, (("x",), ("y",), ("later_x",), ("later_y",)), CAPTURE)
        whole = order.dtype.kind in "iu" and sizes.dtype.kind in "iu" and int(sizes.sum()) == order.size > 0
        alike = later.shape[1:] == x.shape[1:] and len(later) == len(labels) and len(x) == len(y)
        known = len(x) + len(later)
        inside = whole and alike and int(sizes.min()) > 0 and 0 <= int(order.min()) <= int(order.max()) < known
        require(inside, "data.source", f"{file} has an order that is not of its examples", "capture the round anew")
        steps = torch.from_numpy(order.astype(np.int64)).split(sizes.tolist())
        inputs, targets = (torch.cat([torch.from_numpy(t) for t in both]) for both in ((x, later), (y, labels)))
        return Recorded(inputs.float(), targets, tuple(steps), len(x))

    def placed(self, batch: Batch, data: DataSpec) -> tuple[Batch, tuple[Tensor, ...]] | None:
        """The plan's examples with those that came later, and the steps as indices into them; `None` where the plan's,
        as its network would see them, are not those of the round."""
        if len(batch) != self.own or batch.inputs.shape[1:] != self.inputs.shape[1:]:
            return None
        places = _matched(data.normalise(batch.inputs).float(), self.inputs[: self.own])
        if places is None or not torch.equal(batch.labels[places].double(), self.labels[: self.own].double()):
            return None
        later = data.denormalise(self.inputs[self.own :])
        where = torch.cat([places, torch.arange(self.own, len(self.inputs))])
        labels = torch.cat([batch.labels, self.labels[self.own :].to(batch.labels)])
        return Batch(torch.cat([batch.inputs, later.to(batch.inputs)]), labels), tuple(where[s] for s in self.steps)

    def rescaled(self, batch: Batch, data: DataSpec) -> DataSpec | None:
        """The normalisation under which the plan's examples are those of the round; `None` where none does that."""
        if len(batch) != self.own or batch.inputs.shape[1:] != self.inputs.shape[1:] or batch.inputs.ndim < 3:
            return None
        raw, seen = batch.inputs.float(), self.inputs[: self.own]
        alike = torch.einsum("icp,jcp->ij", _shape_of(raw), _shape_of(seen)) / (raw.shape[1] * raw[0, 0].numel())
        rows, columns = linear_sum_assignment(alike.numpy(), maximize=True)
        if float(alike[rows, columns].min()) < 1 - SAME:
            return None
        x, z = (t.transpose(0, 1).flatten(1).double() for t in (raw[rows], seen[columns]))
        std = x.std(1) / z.std(1)
        mean = x.mean(1) - std * z.mean(1)
        if not bool(((std > 0) & std.isfinite()).all()):
            return None
        found = replace(data, mean=tuple(mean.tolist()), std=tuple(std.tolist()))
        return found if self.placed(batch, found) is not None else None

    def training(self) -> tuple[int, int, bool] | None:
        """(epochs, batch size, whether the last smaller minibatch was left out); `None` of no loop over epochs."""
        sizes = [len(step) for step in self.steps]
        size, total = max(sizes), sum(sizes)
        for drop_last in (False, True):
            epoch = [size] * (self.own // size) + ([] if drop_last or not self.own % size else [self.own % size])
            epochs = total // max(sum(epoch), 1)
            if epoch and epochs and sizes == epoch * epochs:
                return epochs, size, drop_last
        return None

    def shuffled(self, epochs: int) -> bool | None:
        """Whether a later epoch has other minibatches than the first; `None` where either may be by chance."""
        steps, an_epoch = [frozenset(step.tolist()) for step in self.steps], len(self.steps) // epochs
        if any(max(step) >= self.own for step in steps):
            return None  # augmented: no two epochs hold the same rows
        if steps != steps[:an_epoch] * epochs:
            return True
        log = math.lgamma(self.own + 1) - sum(math.lgamma(len(step) + 1) for step in steps[:an_epoch])
        return None if an_epoch < 2 or (epochs - 1) * log < -math.log(CHANCE) else False


def loop_of(protocol: Protocol) -> LocalTraining | None:
    """Local training whose steps visit examples in an order; `None` of other protocols."""
    return protocol if type(protocol) is LocalTraining else None


def in_order(protocol: Protocol, steps: tuple[Tensor, ...]) -> Protocol:
    loop = loop_of(protocol) if steps else None
    return protocol if loop is None else InOrder(**vars(loop), recorded=steps)


def corrected(protocol: Protocol, recorded: Recorded) -> tuple[LocalTraining, list[tuple[str, str]]] | None:
    """The plan's local training as the steps were recorded, and each key that says otherwise, with its value; `None`
    where either is no loop over epochs."""
    loop, found = loop_of(protocol), recorded.training()
    if loop is None or found is None:
        return None
    epochs, size, drop_last = found
    shuffled, own = recorded.shuffled(epochs), recorded.own
    right = replace(
        loop,
        epochs=epochs,
        batch_size=loop.batch_size if min(loop.batch_size or own, own) == size else size,
        drop_last=drop_last if own % size else loop.drop_last,
        shuffle=loop.shuffle if shuffled is None else shuffled,
    )
    other = {key: getattr(right, key) for key in TOLD if getattr(right, key) != getattr(loop, key)}
    return right, [(f"clients[0].{key}", str(value).lower()) for key, value in other.items()]


def _shape_of(x: Float[Tensor, "n c *shape"]) -> Float[Tensor, "n c p"]:
    """Each channel of each picture without its own mean and spread, which no normalisation changes."""
    flat = x.flatten(2)
    flat = flat - flat.mean(2, keepdim=True)
    return flat / flat.square().mean(2, keepdim=True).sqrt().clamp_min(1e-12)


def _matched(ours: Tensor, theirs: Tensor) -> Int[Tensor, " n"] | None:
    """For each of their rows the index of ours that equals it, each once; `None` where there is none."""
    if torch.equal(ours, theirs):
        return torch.arange(len(ours))
    a, b = ours.flatten(1), theirs.flatten(1)
    equal = torch.cdist(b, a, p=torch.inf) <= SAME * (b.max() - b.min()).clamp_min(1e-12)
    rows, places = linear_sum_assignment(equal.numpy(), maximize=True)
    return torch.from_numpy(places) if bool(equal[rows, places].all()) else None
