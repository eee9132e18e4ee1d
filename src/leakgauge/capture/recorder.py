"""Capturing a round as it happens: the update, the weights it began from, and if asked the examples.

A capture never breaks the training that it watches: what goes wrong is logged, and the round goes on. Files are for
their owner alone; examples are written only where the training code hands them over by `seen`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from leakgauge.capture.listening import listening, unbroken
from leakgauge.files import private_folder, replacing
from leakgauge.models.weights import fingerprint
from leakgauge.update import UPDATE, WEIGHTS, Update, UpdateHeader, UpdateKind, trains

EXAMPLES = "examples.npz"
"""File of a captured round's examples."""

MOST_EXAMPLES = 4096
"""Examples of a round that are kept at most."""

BLOCK = 8 << 20
"""Bytes of memory that examples are kept in, before more is asked for."""


@dataclass
class RoundExamples:
    """What a client trained on in one round, in that order, as its network saw it."""

    inputs: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)
    count: int = 0
    spare: Tensor = field(default_factory=lambda: torch.empty(0))

    def add(self, inputs: Tensor, labels: Tensor) -> None:
        """Keeps copies, up to `MOST_EXAMPLES`.

        Raises:
            RuntimeError: tensors without values of their own, as inside `torch.vmap`.
        """
        if self.count < MOST_EXAMPLES:
            n, *shape = inputs.shape
            if len(self.spare) < n or list(self.spare.shape[1:]) != shape:
                rows = max(n, BLOCK // max(1, 4 * math.prod(shape)))
                self.spare = torch.from_numpy(np.empty((rows, *shape), np.float32))  # in huge pages: faster to fill
            x, y = self.spare[:n].copy_(inputs.detach()), labels.detach().to("cpu", copy=True)
            self.inputs.append(x)
            self.labels.append(y)
            self.count, self.spare = self.count + n, self.spare[n:]

    def save(self, path: Path, count: int | None) -> None:
        """Writes the first `count`, one epoch's, as a NumPy archive that `npz:` reads."""
        x, y = torch.cat(self.inputs)[:count], torch.cat(self.labels)[:count]
        with replacing(path) as fresh, fresh.open("wb") as file:
            np.savez(file, x=x.numpy(), y=y.numpy())


_current: ContextVar[RoundExamples | None] = ContextVar("examples of the round that is being captured", default=None)


def seen(inputs: Tensor, labels: Tensor) -> None:
    """Hands a minibatch to the capture that is under way, from inside a training loop; does nothing without one.

    Args:
        inputs: as the network gets them.
        labels: of the loss.
    """
    examples = _current.get()
    if examples is not None:
        with unbroken("examples"):
            examples.add(inputs, labels)


@contextmanager
def watching(*, listen: bool = False) -> Iterator[RoundExamples]:
    """Collects what `seen` is given inside the block, and with `listen` what `leakgauge.capture.listening` hears."""
    examples = RoundExamples()
    token = _current.set(examples)
    try:
        with listening(examples.add) if listen else nullcontext():
            yield examples
    finally:
        _current.reset(token)


@dataclass(frozen=True, kw_only=True)
class Recorder:
    """Writes rounds into folders of their own, ``round-<round>-node-<node>[-<side>]``.

    Attributes:
        folder: where they go; made if it is missing.
        sends: what clients reply with: `None` for their parameters, which are compared with those they received;
            `UpdateKind.DELTA` or `UpdateKind.GRADIENT` where the reply is that already.
        facts: what a reader should know besides, e.g. ``{"optimiser": "Adam"}``.
    """

    folder: Path | str
    sends: UpdateKind | None = None
    facts: Mapping[str, str] = field(default_factory=dict)

    def keep(
        self,
        before: Mapping[str, Tensor],
        reply: Mapping[str, Tensor],
        *,
        round_: str,
        node: str,
        side: str = "",
        count: int | None = None,
        facts: Mapping[str, str] | None = None,
        examples: RoundExamples | None = None,
    ) -> Path:
        """Writes one round.

        Args:
            before: what the client received.
            reply: what it sent, by the same names; it may be a part of them.
            round_, node: whose and when.
            side: client or server, where both capture.
            count: examples, as the client reports them.

        Raises:
            InputError: the two are not of one model.
            OSError: it cannot be written.
        """
        known = {"round": round_, "node": node, "weights": fingerprint(before), **self.facts, **(facts or {})}
        update = self._update(before, reply, count)
        header = UpdateHeader(update.header.kind, count, known)
        folder = private_folder(Path(self.folder) / round_folder(round_, node, side))
        with replacing(folder / WEIGHTS) as fresh:
            save_file({k: v.contiguous() for k, v in before.items()}, fresh)
        if examples is not None and examples.inputs:
            examples.save(folder / EXAMPLES, count)
        Update(update.tensors, header, update.buffers).save(folder / UPDATE)  # last: a folder with it is whole
        return folder

    def _update(self, before: Mapping[str, Tensor], reply: Mapping[str, Tensor], count: int | None) -> Update:
        if self.sends is not None:
            return self._as_sent(before, reply, UpdateHeader(self.sends, count))
        part = {k: before[k] for k in reply if k in before}
        return Update.between(part, reply, example_count=count or None)

    @staticmethod
    def _as_sent(before: Mapping[str, Tensor], reply: Mapping[str, Tensor], header: UpdateHeader) -> Update:
        """A reply that is an update already; statistics of BatchNorm in it are what they came to, as elsewhere."""
        moved = {k: v.detach() for k, v in reply.items() if trains(k, v)}
        beside = {k: v.detach() for k, v in reply.items() if k not in moved}
        if header.kind is UpdateKind.DELTA:
            beside = {k: before[k] + v.to(before[k]) if k in before else v for k, v in beside.items()}
        return Update(moved, header, beside or None)


def round_folder(round_: str, node: str, side: str = "") -> str:
    """Name of a round's folder. Whoever sent the round may have named it: what is no plain name becomes one."""
    return re.sub(r"[^\w.-]", "_", "-".join(filter(None, ("round", round_, "node", node, side))), flags=re.ASCII)[:200]


def named(arrays: Sequence[np.ndarray], names: Sequence[str]) -> dict[str, Tensor]:
    """Nameless arrays in the order of a state dict, as Flower's `NumPyClient` sends them.

    Raises:
        ValueError: more or fewer arrays than names.
    """
    if len(arrays) != len(names):
        raise ValueError(f"{len(arrays)} arrays for {len(names)} names of the state dict")
    return {name: torch.from_numpy(np.array(array)) for name, array in zip(names, arrays, strict=True)}
