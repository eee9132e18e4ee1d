"""Named tensors: the shape in which parameters, gradients and updates travel."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
"""Parameter name to tensor, in the order of ``module.named_parameters()``."""


def map_tensors(function: Callable[..., Tensor], *trees: Mapping[str, Tensor]) -> Tensors:
    """Applies `function` name by name; the trees share their names."""
    return {name: function(*(tree[name] for tree in trees)) for name in trees[0]}


def inner(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """Sum over all entries of a·b, a scalar."""
    return torch.stack([(a[name] * b[name]).sum() for name in a]).sum()


def squared_norm(a: Mapping[str, Tensor]) -> Tensor:
    """Squared Euclidean norm over all tensors together, a scalar."""
    return inner(a, a)


def entries(a: Mapping[str, Tensor]) -> int:
    """Number of scalars in all tensors together."""
    return sum(tensor.numel() for tensor in a.values())


def cast(a: Mapping[str, Tensor], like: Tensor) -> Tensors:
    """Floating tensors in the dtype and on the device of `like`; integer ones change device only."""
    return {
        name: tensor.to(like) if tensor.is_floating_point() else tensor.to(like.device) for name, tensor in a.items()
    }
