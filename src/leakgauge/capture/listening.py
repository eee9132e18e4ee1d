"""Hearing the minibatches of a training loop without a line in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

Heard = Callable[[Tensor, Tensor], None]
"""Takes the inputs and the labels of a minibatch."""

LOSSES = (nn.functional.cross_entropy, nn.functional.nll_loss)
"""Functions of torch whose target is a minibatch's labels; the modules of that name call them."""


class _Listener(TorchFunctionMode):
    """Pairs the first tensor that an outermost module is called with with the target of the next loss."""

    def __init__(self, heard: Heard) -> None:
        super().__init__()
        self.heard = heard
        self.depth = 0
        self.inputs: Tensor | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in LOSSES:
            target = kwargs.get("target", args[1] if len(args) > 1 else None)
            inputs, self.inputs = self.inputs, None
            if inputs is not None and isinstance(target, Tensor) and target.shape == inputs.shape[:1]:
                self.heard(inputs, target)
        return func(*args, **kwargs)

    def enters(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not self.depth and torch.is_grad_enabled() and not isinstance(module, nn.modules.loss._Loss):
            self.inputs = next((a for a in args if isinstance(a, Tensor)), self.inputs)
        self.depth += 1

    def leaves(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.depth -= 1


@contextmanager
def listening(heard: Heard) -> Iterator[None]:
    """Calls `heard` with each minibatch that is trained on inside the block.

    Inputs are the first tensor with which an outermost module is called while gradients are recorded; labels are the
    target of the next `torch.nn.functional.cross_entropy` or ``nll_loss``, one class an example. Other losses are not
    heard. Seen in this thread alone.
    """
    listener = _Listener(heard)
    enters = register_module_forward_pre_hook(listener.enters)
    leaves = register_module_forward_hook(listener.leaves, always_call=True)
    try:
        with listener:
            yield
    finally:
        enters.remove()
        leaves.remove()
