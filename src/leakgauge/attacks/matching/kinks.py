"""How the masks of ReLUs would change: a slope for the search where the true one is zero almost everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from leakgauge.errors import Checked, positive


class _Activation(Function):
    """ReLU, or leaky ReLU with `low`, whose derivative is the mask: its value is exact, its own derivative a hat."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, low: float, masks: SmearedMasks) -> Tensor:
        del masks
        return F.leaky_relu(x, low) if low else x.relu()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, SmearedMasks], output: Tensor) -> None:
        del output
        x, ctx.low, ctx.masks = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, *towards: Tensor) -> tuple[Tensor, None, None]:
        (outer,), (x,), masks = towards, ctx.saved_tensors, ctx.masks
        half = masks.width * x.detach().var(correction=0).sqrt().clamp_min(torch.finfo(x.dtype).tiny)
        place = (x / half).clamp(-1, 1)
        rising = masks.weight * (1 - ctx.low) * (place - place * place.abs() / 2)  # whose slope is the hat
        return torch.where(x > 0, outer, ctx.low * outer) + outer * (rising - rising.detach()), None, None


def _relu(x: Tensor, inplace: bool = False) -> tuple[Tensor, float, bool]:
    return x, 0.0, inplace


def _leaky(x: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> tuple[Tensor, float, bool]:
    return x, negative_slope, inplace


_KNOWN: dict[Callable[..., Any], Callable[..., tuple[Tensor, float, bool]]] = {
    F.relu: _relu,
    torch.relu: _relu,
    Tensor.relu: _relu,
    torch.relu_: partial(_relu, inplace=True),
    Tensor.relu_: partial(_relu, inplace=True),
    F.leaky_relu: _leaky,
    F.leaky_relu_: partial(_leaky, inplace=True),
}
"""Every way to call one → its input, the slope below zero, and whether it writes into its input."""


class _Smeared(TorchFunctionMode):
    def __init__(self, masks: SmearedMasks) -> None:
        super().__init__()
        self._masks = masks

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if (known := _KNOWN.get(func)) is None:
            return func(*args, **given)
        x, low, inplace = known(*args, **given)
        if not x.is_floating_point():
            return func(*args, **given)
        made = _Activation.apply(x.clone() if inplace else x, low, self._masks)  # type: ignore[no-untyped-call]
        return x.copy_(made) if inplace else made


@dataclass(frozen=True, kw_only=True)
class SmearedMasks(Checked):
    """The derivative of a ReLU's mask, which is zero almost everywhere, stood for by a hat around zero.

    The gradient of a ReLU network depends on its input through the masks as well: which units are on. Here values and
    first derivatives are the network's own, so that a simulated update is the client's to the last digit; in *its*
    derivative each mask m(x) has m'(x) = weight · max(0, 1 − abs(x)/h)/h, with h = width · the standard deviation of
    all that enters the activation. So the slope is not that of the objective, and suits minimisers that do not compare
    the two (Adam, not a line search).

    Source: the surrogate gradients of spiking networks (Neftci, Mostafa and Zenke, 2019), one derivative higher.
    Reaches ReLU and leaky ReLU however they are called from the model's code; other kinks stay as they are.
    """

    width: float = positive(1.0)
    weight: float = positive(0.05)

    def active(self) -> AbstractContextManager[object]:
        """Activations that are called within are smeared, in every later derivative too."""
        return _Smeared(self)
