"""A network of somebody's own, made ready to be called as a pure function."""

from __future__ import annotations

import copy

from torch import nn

from leakgauge.errors import FOREIGN, InputError, require, said


def own_copy(module: nn.Module) -> nn.Module:
    """A private copy whose gradients can be differentiated again: no sparse ones, nothing worked out twice.

    Raises:
        InputError: it has lazy layers, or cannot be copied.
    """
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
    return made
