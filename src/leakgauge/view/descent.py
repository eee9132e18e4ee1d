"""Linear equations of which only the map itself is given, solved by conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakgauge.tensors import Tensors

__all__ = ["least_squares"]

ITERATIONS, FEW = 200, 4
"""At most, and those after which maps that only move and scale entries have ended."""
PROBES = 8
"""Random vectors that estimate the diagonal of the normal equations."""


def _pulled(forth: Callable[[Tensor], Tensors], values: Tensors, like: Tensor) -> Tensor:
    """Kᵀ."""
    with torch.enable_grad():
        at = torch.zeros_like(like, requires_grad=True)
        made = forth(at)
        total = torch.stack([(made[k] * values[k]).sum() for k in values]).sum()
        if not total.requires_grad:
            return torch.zeros_like(like)
        (found,) = torch.autograd.grad(total, at)
    return found


def least_squares(linear: Callable[[Tensor], Tensors], target: Tensors, start: Tensor, mask: Tensor) -> Tensor:
    """What a linear map takes nearest to `target`, zero where `mask` is: conjugate gradients on the normal equations,
    preconditioned by an estimate of their diagonal."""
    generator = torch.Generator(device=start.device).manual_seed(0)

    def forth(m: Tensor) -> Tensors:
        with torch.no_grad():
            return linear(m * mask)

    def back(v: Tensors) -> Tensor:
        return _pulled(linear, v, start) * mask

    found, done = _descended(forth, back, target, start, torch.ones_like(start), FEW)
    if done:  # most maps only move and scale entries
        return found * mask
    diagonal = torch.zeros_like(start)
    for _ in range(PROBES):
        signs = torch.randint(2, start.shape, generator=generator, device=start.device).double() * 2 - 1
        diagonal += signs * back(forth(signs)) / PROBES
    # The estimate of single entries is coarse; those of rows and columns are not.
    rows, columns = (diagonal.mean(axis, keepdim=True).clamp_min(1e-12) for axis in (1, 0))
    weight = 1 / (rows * columns / rows.mean())
    weight = weight.clamp_max(1e6 * float(weight.median()))
    return _descended(forth, back, target, start, weight, ITERATIONS)[0] * mask


def _descended(
    forth: Callable[[Tensor], Tensors],
    back: Callable[[Tensors], Tensor],
    target: Tensors,
    start: Tensor,
    weight: Tensor,
    most: int,
) -> tuple[Tensor, bool]:
    """Conjugate gradients for at most so many steps, and whether they ended before."""
    found, left = start.clone(), dict(target)
    slope = back(left)
    step, first = weight * slope, float((slope * weight * slope).sum())
    size = first
    for _ in range(most):
        if size <= 1e-30 * max(first, 1e-300):
            return found, True
        moved = forth(step)
        length = sum(float(v.square().sum()) for v in moved.values())
        if length <= 0:
            break
        rate = size / length
        found = found + rate * step
        left = {k: left[k] - rate * moved[k] for k in left}
        slope = back(left)
        towards = weight * slope
        new = float((slope * towards).sum())
        step, size = towards + new / size * step, new
    return found, size <= 1e-30 * max(first, 1e-300)
