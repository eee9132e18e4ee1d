"""Fully connected networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from leakgauge.errors import require
from leakgauge.models.lenet import ACTIVATIONS, Activation
from leakgauge.registry import MODELS


@MODELS.register("mlp")
def mlp(
    *,
    classes: int = 10,
    shape: Sequence[int] = (3, 32, 32),
    hidden: Sequence[int] = (64,),
    activation: Activation = "relu",
    bias: bool = True,
) -> nn.Module:
    """Linear layers on the flattened input, torch's default initialisation. Its first layer gives the input away."""
    require(all(units > 0 for units in hidden), "hidden", f"is {list(hidden)}", "give positive numbers of units")
    sizes = [math.prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after, bias=bias), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes, bias=bias))
