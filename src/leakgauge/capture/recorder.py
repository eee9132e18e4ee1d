"""Capturing a round as it happens: the update, the weights it began from, and if asked the examples.

A capture never breaks the training that it watches: what goes wrong is logged, and the round goes on. Files are for
their owner alone; examples, and the order in which they were trained on, are written only where the training code hands
them over by `seen` or is listened to.
"""

import hashlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from leakgauge.errors import FOREIGN, said
from leakgauge.files import fingerprint_of_file, private_folder, replacing
from leakgauge.models.weights import fingerprint
from leakgauge.tensors import apart, dense
from leakgauge.update import EXAMPLES, UPDATE, WEIGHTS, Update, UpdateHeader, UpdateKind, round_folder, trains

MOST_EXAMPLES = 4096  # examples of a round that are kept at most


@dataclass
class RoundExamples:
    """What a client trained on in one round, as its network saw it, each example once, and what made each minibatch."""

    # inputs, labels: examples in the order in which they first came, a tensor for each minibatch that had new ones
    inputs: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)
    # a digest for each example of each minibatch, in their order
    steps: list[list[bytes]] = field(default_factory=list)
    places: dict[bytes, int] = field(default_factory=dict)  # of each digest, among the examples that are kept

    def add(self, inputs: Tensor, labels: Tensor) -> None:
        """Keeps copies of what is new, up to `MOST_EXAMPLES`, and the order of all."""
        n, x = len(inputs), inputs.detach().to("cpu", torch.float32, copy=True)
        y = labels.detach().to("cpu", copy=True)
        rows = zip(x.reshape(n, -1).numpy(), y.reshape(n, -1).numpy(), strict=True)
        step = [hashlib.blake2b(one.tobytes() + label.tobytes(), digest_size=16).digest() for one, label in rows]
        new: list[int] = []
        for i, digest in enumerate(step):
            if digest not in self.places and len(self.places) < MOST_EXAMPLES:
                self.places[digest] = len(self.places)
                new.append(i)
        self.steps.append(step)
        if new:
            self.inputs.append(x if len(new) == n else x[new])
            self.labels.append(y if len(new) == n else y[new])

    def save(self, path: Path, count: int | None) -> None:
        """Writes a NumPy archive that ``capture:`` and ``npz:`` read: the first `count` examples, one epoch's, as ``x``
        and ``y``; those that came later (augmented) as ``later_x`` and ``later_y``; and the order of the steps, as
        indices into both (``order``) and the size of each minibatch (``sizes``), where all examples were kept."""
        x, y = torch.cat(self.inputs), torch.cat(self.labels)
        if (ordered := self._ordered(count)) is None:
            arrays = {"x": x[:count], "y": y[:count]}
        else:
            rows, order = ordered
            x, y, end = x[rows], y[rows], len(rows) if count is None else count
            arrays = {"x": x[:end], "y": y[:end], "later_x": x[end:], "later_y": y[end:]}
            arrays |= {"order": torch.tensor(order), "sizes": torch.tensor([len(step) for step in self.steps])}
        with replacing(path) as fresh, fresh.open("wb") as file:
            np.savez(file, **{name: value.numpy() for name, value in arrays.items()})  # type: ignore[arg-type]

    def _ordered(self, count: int | None) -> tuple[list[int], list[int]] | None:
        """Which kept example each row is, and the order of the steps as rows; `None` where not all were kept. A client
        may hold one example several times: as often as an epoch has it, or else a minibatch."""
        visits = [digest for step in self.steps for digest in step]
        if not all(digest in self.places for digest in visits):
            return None
        times, epochs = Counter(visits), len(visits) / count if count else 0.0
        within = Counter[bytes]()
        for step in self.steps:
            within |= Counter(step)
        whole = epochs > 0 and epochs.is_integer()
        copies = {d: int(n / epochs) if whole and n % epochs == 0 else within[d] for d, n in times.items()}
        rows: dict[tuple[bytes, int], int] = {}
        met, order = Counter[bytes](), []
        for digest in visits:
            order.append(rows.setdefault((digest, met[digest] % copies[digest]), len(rows)))
            met[digest] += 1
        return [self.places[digest] for digest, _ in rows], order


_current: ContextVar[RoundExamples | None] = ContextVar("examples of the round that is being captured", default=None)


def seen(inputs: Tensor, labels: Tensor) -> None:
    """Hands a minibatch to the capture that is under way, from inside a training loop, as the network and the loss get
    it; does nothing without one."""
    if (examples := _current.get()) is not None:
        with unbroken("examples"):
            examples.add(inputs, labels)


@contextmanager
def watching(*, listen: bool = False) -> Iterator[RoundExamples]:
    """Collects what `seen` is given inside the block, and with `listen` what `Listening` hears."""
    examples = RoundExamples()
    token = _current.set(examples)
    try:
        with Listening(examples) if listen else nullcontext():
            yield examples
    finally:
        _current.reset(token)


@dataclass(frozen=True, kw_only=True)
class Recorder:
    """Writes rounds into folders of their own, ``round-<round>-node-<node>[-<side>]``."""

    folder: Path | str
    # what clients reply with: `None` for their parameters, which are compared with those they received;
    # `UpdateKind.DELTA` or `UpdateKind.GRADIENT` where the reply is that already.
    sends: UpdateKind | None = None
    # what a reader should know besides, e.g. ``{"optimiser": "Adam"}``.
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
        """Writes one round: what the client received, and its reply, of the same names or a part of them. `side` is
        client or server, where both capture. Raises `InputError`: the two are not of one model; `OSError`: it cannot be
        written."""
        before, reply = dense(before), dense(reply)
        known = {"round": round_, "node": node, "weights": fingerprint(before), **self.facts, **(facts or {})}
        update = self._update(before, reply, count)
        folder = private_folder(Path(self.folder) / round_folder(round_, node, side))
        with replacing(folder / WEIGHTS) as fresh:
            save_file(apart(before), fresh)
        if examples is not None and examples.inputs:
            examples.save(folder / EXAMPLES, count)
            known["examples"] = fingerprint_of_file(folder / EXAMPLES)
        header = replace(update.header, example_count=count, protocol=known)
        replace(update, header=header).save(folder / UPDATE)  # last: a folder with it is whole
        return folder

    def _update(self, before: Mapping[str, Tensor], reply: Mapping[str, Tensor], count: int | None) -> Update:
        """Statistics of BatchNorm in a reply that is an update already are what they came to, as elsewhere."""
        if self.sends is None:
            return Update.between({k: before[k] for k in reply if k in before}, reply, example_count=count or None)
        moved = {k: v.detach() for k, v in reply.items() if trains(k, v)}
        beside = {k: v.detach() for k, v in reply.items() if k not in moved}
        if self.sends is UpdateKind.DELTA:
            beside = {k: before[k] + v.to(before[k]) if k in before else v for k, v in beside.items()}
        return Update(moved, UpdateHeader(self.sends), beside or None)


def named(arrays: Sequence[np.ndarray], names: Sequence[str]) -> dict[str, Tensor]:
    """Nameless arrays in the order of a state dict, as Flower's `NumPyClient` sends them."""
    if len(arrays) != len(names):
        raise ValueError(f"{len(arrays)} arrays for {len(names)} names of the state dict")
    return {name: torch.from_numpy(np.array(array)) for name, array in zip(names, arrays, strict=True)}


log = logging.getLogger("leakgauge.capture")

LOSSES = ("cross_entropy_loss", "nll_loss_nd")
"""Where torch's classification losses end, by whichever name they are called; the second argument is the target."""

_native: Any = torch._C._nn
_plain: dict[str, Callable[..., Tensor]] = {}
_listening: "list[Listening]" = []
_lock = threading.Lock()


@contextmanager
def unbroken(what: str) -> Iterator[None]:
    """Logs what goes wrong inside the block, and goes on after it."""
    try:
        yield
    except FOREIGN as error:
        log.warning("no capture of %s: %s", what, said(error))


class Listening:
    """Adds each minibatch that is trained on inside the block.

    Inputs are the first tensor with which an outermost module is called while gradients are recorded, where nothing
    differentiable made it; labels are the target of the next `torch.nn.functional.cross_entropy` or ``nll_loss``, a
    class for each example or each of its places. Other losses, and those that are compiled or scripted, are not heard:
    a warning counts the calls that none followed. Seen in this thread alone.

    Its hook on all modules is away while the outermost one runs: torch calls the modules inside faster without one.
    """

    def __init__(self, examples: RoundExamples) -> None:
        self.examples, self.thread = examples, threading.get_ident()
        self.inputs: Tensor | None = None
        self.calls = self.pairs = 0
        self.end: RemovableHandle | None = None

    def __enter__(self) -> None:
        self.hook = register_module_forward_pre_hook(self.enters)
        self.hooks: Any = self.hook.hooks_dict_ref()  # torch's of all modules
        with _lock:
            for name in LOSSES if not _listening else ():
                _plain[name] = getattr(_native, name)
                setattr(_native, name, _heard(name))
            _listening.append(self)

    def enters(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self.thread != threading.get_ident() or isinstance(module, nn.modules.loss._Loss):
            return
        with unbroken("a model's inputs"):
            if not isinstance(module, torch.jit.ScriptModule):  # inside one there are no hooks
                self.end = module.register_forward_hook(self.leaves, always_call=True)
                self.hooks.pop(self.hook.id, None)
            for first in args:  # a generator would cost a step two calls more
                if isinstance(first, Tensor):
                    if first.grad_fn is None and torch.is_grad_enabled():
                        self.inputs = first
                        self.calls += 1
                    break

    def leaves(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.end is not None and self.thread == threading.get_ident():
            self.end.remove()
            self.hooks[self.hook.id] = self.enters

    def trains(self, target: Any) -> None:
        inputs, self.inputs = self.inputs, None
        if inputs is None or inputs is target or not isinstance(target, Tensor):
            return
        if target.shape[:1] != inputs.shape[:1] or target.is_floating_point():
            return
        with unbroken("examples"):
            self.examples.add(inputs, target)
            self.pairs += 1

    def __exit__(self, *_: object) -> None:
        with _lock:
            _listening.remove(self)
            for name in LOSSES if not _listening else ():
                setattr(_native, name, _plain[name])
        self.hook.remove()
        if self.end is not None:
            self.end.remove()
        if self.pairs < self.calls:
            log.warning(
                "%d of %d calls of a model were followed by no cross entropy of classes: their examples are not kept;"
                " hand them over by leakgauge.capture.seen",
                self.calls - self.pairs,
                self.calls,
            )


def _heard(name: str) -> Callable[..., Tensor]:
    def loss(*args: Any, **kwargs: Any) -> Tensor:
        for one in tuple(_listening):
            if one.thread == threading.get_ident() and len(args) > 1:
                one.trains(args[1])
        return _plain[name](*args, **kwargs)

    return loss
