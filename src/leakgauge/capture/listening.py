"""Hearing the minibatches of a training loop without a line in it, and never breaking it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from leakgauge.errors import FOREIGN, said

log = logging.getLogger("leakgauge.capture")

BROKEN = (*FOREIGN, MemoryError)
"""What a capture may run into; it is logged."""

Heard = Callable[[Tensor, Tensor], None]
"""Takes the inputs and the labels of a minibatch."""

LOSSES = ("cross_entropy_loss", "nll_loss_nd")
"""Where torch's classification losses end, whoever calls them and by whichever name; the second argument is the
target."""

_native: Any = torch._C._nn
_plain: dict[str, Callable[..., Tensor]] = {}
_listeners: list[_Listener] = []
_lock = threading.Lock()


@contextmanager
def unbroken(what: str) -> Iterator[None]:
    """Logs what goes wrong inside the block, and goes on after it."""
    try:
        yield
    except BROKEN as error:
        log.warning("no capture of %s: %s", what, said(error))


class _Listener:
    """Pairs the first tensor that an outermost module is called with with the target of the next loss.

    Its hook on all modules is away while the outermost one runs: torch calls the modules inside faster without one.
    """

    def __init__(self, heard: Heard) -> None:
        self.heard = heard
        self.thread = threading.get_ident()
        self.inputs: Tensor | None = None
        self.calls = self.pairs = 0
        self.end: RemovableHandle | None = None
        self.hook = register_module_forward_pre_hook(self.enters)
        self.hooks: Any = self.hook.hooks_dict_ref()  # torch's of all modules

    def enters(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self.thread != threading.get_ident() or isinstance(module, nn.modules.loss._Loss):
            return
        try:
            if not isinstance(module, torch.jit.ScriptModule):  # inside one there are no hooks
                self.end = module.register_forward_hook(self.leaves, always_call=True)
                self.hooks.pop(self.hook.id, None)
            for first in args:
                if isinstance(first, Tensor):
                    if first.grad_fn is None and torch.is_grad_enabled():
                        self.inputs = first
                        self.calls += 1
                    break
        except BROKEN as error:
            log.warning("no capture of a model's inputs: %s", said(error))

    def leaves(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.end is not None and self.thread == threading.get_ident():
            self.end.remove()
            self.hooks[self.hook.id] = self.enters

    def trains(self, target: Any) -> None:
        inputs, self.inputs = self.inputs, None
        if inputs is None or inputs is target or not isinstance(target, Tensor):
            return
        if target.shape == inputs.shape[:1]:
            with unbroken("examples"):
                self.heard(inputs, target)
                self.pairs += 1

    def stops(self) -> None:
        self.hook.remove()
        if self.end is not None:
            self.end.remove()
        if self.pairs < self.calls:
            log.warning(
                "%d of %d calls of a model were followed by no cross entropy with one class an example: their examples"
                " are not kept; hand them over by leakgauge.capture.seen",
                self.calls - self.pairs,
                self.calls,
            )


def _through(name: str) -> Callable[..., Tensor]:
    def loss(*args: Any, **kwargs: Any) -> Tensor:
        for listener in tuple(_listeners):
            if listener.thread == threading.get_ident() and len(args) > 1:
                listener.trains(args[1])
        return _plain[name](*args, **kwargs)

    return loss


@contextmanager
def listening(heard: Heard) -> Iterator[None]:
    """Calls `heard` with each minibatch that is trained on inside the block.

    Inputs are the first tensor with which an outermost module is called while gradients are recorded, where nothing
    differentiable made it; labels are the target of the next `torch.nn.functional.cross_entropy` or ``nll_loss``, one
    class an example. Other losses, and losses that are compiled or scripted, are not heard: a warning counts the calls
    that none followed. Seen in this thread alone.
    """
    listener = _Listener(heard)
    with _lock:
        if not _listeners:
            _plain.update({name: getattr(_native, name) for name in LOSSES})
            for name in LOSSES:
                setattr(_native, name, _through(name))
        _listeners.append(listener)
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(listener)
            for name in LOSSES if not _listeners else ():
                setattr(_native, name, _plain[name])
        listener.stops()
