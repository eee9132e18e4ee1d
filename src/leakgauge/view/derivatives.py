"""Derivatives of fused operations in elementary ones, so that the products in them are seen; and of one tensor by
another, as solvers take it."""

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import reduce
from typing import Any, cast

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator
from torch import Tensor
from torch._decomp import get_decompositions
from torch.overrides import TorchFunctionMode

from leakgauge.errors import FOREIGN

LARGE = 2**24  # entries of a Jacobian from which on it pays to trace its products, which takes a second
OFTEN = 400  # products that come before


def jacobian(
    function: Callable[[Tensor], Tensor], point: Tensor, tick: Callable[[], None] = lambda: None
) -> tuple[Tensor, LinearOperator]:
    """What a function makes of a point, and its derivative there, which is never formed; `tick` is called before each
    product with it."""
    at = point.detach().clone().requires_grad_()
    with torch.enable_grad():
        made = function(at)
        dual = torch.zeros_like(made, requires_grad=True)
        back = torch.autograd.grad(made, at, dual, create_graph=True)[0]

    traced, done = None, 0

    def forward(step: np.ndarray) -> np.ndarray:
        nonlocal traced, done
        tick()
        done += 1
        if done == OFTEN and made.numel() * at.numel() > LARGE:
            traced = _traced(function, point)
        towards = torch.from_numpy(step).view_as(at).to(at)
        found = traced(towards) if traced else torch.autograd.grad(back, dual, towards, retain_graph=True)[0]
        return found.detach().double().numpy()

    def adjoint(left: np.ndarray) -> np.ndarray:
        towards = torch.from_numpy(left).view_as(made).to(made)
        return torch.autograd.grad(made, at, towards, retain_graph=True)[0].flatten().double().numpy()

    return made.detach(), LinearOperator((made.numel(), at.numel()), forward, adjoint, dtype=np.float64)


def _traced(function: Callable[[Tensor], Tensor], point: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Products with the derivative, as short programs; `None` for a network that torch.func does not take."""
    with warnings.catch_warnings(), torch.enable_grad(), suppress(*FOREIGN):
        warnings.simplefilter("ignore")  # of a constant that is folded, and of what torch itself imports
        return cast(Callable[[Tensor], Tensor], torch.func.linearize(function, point.detach())[1])
    return None


def _bags(
    grad: Tensor, indices: Tensor, offsets: Tensor, bags: Tensor, sizes: Tensor, _most: Tensor, *rest: Any
) -> Any:
    """Gradient of the table behind ``F.embedding_bag`` by its mean or sum."""
    rows, _, mode = rest[:3]
    weights = rest[4] if len(rest) > 4 else None
    if mode > 1:
        return NotImplemented
    if not len(bags):  # which sums may leave out
        bags = torch.searchsorted(offsets, torch.arange(len(indices), device=indices.device), right=True) - 1
    each = grad.index_select(0, bags)
    if mode == 1:
        each = each / sizes.index_select(0, bags).unsqueeze(1)
    if weights is not None:
        each = each * weights.unsqueeze(1)
    return grad.new_zeros(rows, grad.shape[1]).index_add(0, indices, each)


def _looked_up(grad: Tensor, indices: Tensor, rows: int, padding: int, by_frequency: bool) -> Any:
    """Gradient of the table behind ``F.embedding``."""
    if by_frequency:
        return NotImplemented
    if padding >= 0:
        grad = grad.masked_fill((indices == padding).unsqueeze(-1), 0)
    return grad.new_zeros(rows, grad.shape[-1]).index_put([indices], grad, accumulate=True)


def _copied(there: Tensor, from_: Tensor, non_blocking: bool = False) -> Tensor:
    """What is written over a tensor."""
    del non_blocking
    from_ = from_.to(there.dtype)
    return from_ if from_.shape == there.shape else from_.expand_as(there)


def _three(one: Tensor, two: Tensor, three: Tensor, *rest: list[int]) -> Any:
    """``nn.Bilinear`` and its gradients: a product of three tensors with new axes, summed."""
    new = zip((one, two, three), rest[:3], strict=True)
    one, two, three = (reduce(Tensor.unsqueeze, sorted(axes), factor) for factor, axes in new)
    return (one * two * three).sum(rest[3])


def _times_first(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    return torch.conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, 1, pad).permute(2, 0, 1)


_aten = torch.ops.aten
PARTS: dict[Any, Callable[..., Any]] = {
    **get_decompositions([getattr(_aten, f"native_{n}_norm_backward") for n in ("layer", "batch", "group")]),
    **get_decompositions([_aten.silu_backward, _aten.mish_backward]),  # which have no derivative of their own
    _aten._embedding_bag_backward.default: _bags,
    _aten._trilinear.default: _three,
    _aten._weight_norm_interface_backward.default: _aten._weight_norm_differentiable_backward.default,
    _aten.embedding_dense_backward.default: _looked_up,
}
"""Gradients whose parts are to be seen."""
COPIES: dict[Any, Callable[..., Any]] = {_aten.copy.default: _copied}  # what functions write in place


class _Elementary(TorchFunctionMode):
    """Takes ``torch.conv_tbc``, whose gradients are written into tensors part by part, for the convolution of other
    axes that it is."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (_times_first if func is torch.conv_tbc else func)(*args, **(kwargs or {}))


def _names_only(kind: type[Tensor]) -> bool:
    """Whether functions do with a class of tensors as with others."""
    own, plain = (getattr(of.__torch_function__, "__func__", of.__torch_function__) for of in (kind, Tensor))
    same = own in (plain, torch._C._disabled_torch_function_impl)
    return same and kind.__torch_dispatch__ is Tensor.__torch_dispatch__


@contextmanager
def plain_operations() -> Iterator[None]:
    """No fused kernels that hide a layer's parts, no compiled ones, and no classes of tensors that say no more than
    what they hold."""
    with ExitStack() as stack:
        tensors, typed = cast(Any, Tensor), Tensor.as_subclass
        stack.callback(setattr, Tensor, "as_subclass", typed)
        tensors.as_subclass = lambda tensor, kind: tensor if _names_only(kind) else typed(tensor, kind)
        # One describes every tensor to every handler, one tells of errors that are caught.
        for log in map(logging.getLogger, ("torch.__trace", "torch._subclasses.fake_tensor")):
            stack.callback(setattr, log, "disabled", log.disabled)
            log.disabled = True
        fused = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        stack.callback(torch._C._set_mkldnn_enabled, fused)
        if "torch._dynamo" in sys.modules:  # a compiled part runs as it was written
            stack.enter_context(torch._dynamo.config.patch(error_on_nested_fx_trace=False))
        stack.enter_context(_Elementary())
        yield
