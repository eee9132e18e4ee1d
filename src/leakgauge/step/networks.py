"""A network of somebody's own, made ready to be called as a pure function."""

from __future__ import annotations

import copy

import torch
from torch import nn

from leakgauge.errors import FOREIGN, InputError, require, said


def own_copy(module: nn.Module) -> nn.Module:
    """A private copy whose gradients can be differentiated again: no sparse ones, nothing worked out twice.

    Raises:
        InputError: it has lazy layers, or cannot be copied.
    """
    module = unwrapped_module(module)
    _refuse_packed(module)
    lazy = any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters())
    require(not lazy, "model", "has lazy layers that have seen no example", "call it once before it is audited")
    try:
        made = copy.deepcopy(module)
    except FOREIGN as error:
        hint = "give a fresh module; torch.nn.utils.parametrizations.weight_norm can be copied, the old one cannot"
        raise InputError("model", f"cannot be copied ({said(error)})", hint) from error
    for part in made.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            part.sparse = False
        stop = getattr(part, "gradient_checkpointing_disable", None)
        if callable(stop):
            stop()
    return made


def unwrapped_module(module: nn.Module) -> nn.Module:
    """The network inside `nn.DataParallel` and its kin."""
    while isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        module = module.module
    return module


def _refuse_packed(module: nn.Module) -> None:
    """Weights of 4 or 8 bits stand for real ones that no gradient is taken of twice."""
    for name, parameter in module.named_parameters():
        if not parameter.is_floating_point() or hasattr(parameter, "quant_state"):
            kind = str(parameter.dtype).removeprefix("torch.")
            problem = f"holds packed weights ('{name}' is {kind}), of which no second derivative is taken"
            raise InputError("model", problem, "load the base in bfloat16 or float32: the adapter's update is the same")


def computing_type(module: nn.Module) -> torch.dtype:
    """The float type that a network is given its inputs in: that of its first parameter, frozen or not."""
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
