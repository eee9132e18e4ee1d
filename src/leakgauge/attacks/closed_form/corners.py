"""Which rows of a layer's gradient one example alone drives: the corners of all that lie in the data's range."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def corners(x: Float[Tensor, "k d"], count: int, first: Sequence[int] = ()) -> list[int]:
    """Rows that lie farthest out, those that come `first` and then one by one: the farthest from the affine hull of
    those before it.

    A row is a mixture of what its examples are, with shares that sum to one. Where no share is negative it lies within
    the hull of the examples, and a convex function of it (the distance from a flat) is largest at one of them.

    Source: the successive projection algorithm of separable factorisation (Gillis & Vavasis, 2014, Algorithm 1), on the
    affine hull.

    Returns:
        At most `count` of k, in that order.
    """
    start, chosen = list(first)[:count], list[int]()
    away = (x - x[start[0]] if start else x - x.mean(0)).double()
    while len(chosen) < min(count, len(x)):
        length = torch.linalg.vector_norm(away, dim=1)
        length[chosen] = -1.0
        chosen.append(start[len(chosen)] if len(chosen) < len(start) else int(length.argmax()))
        if len(chosen) == 1:
            away = (x - x[chosen[0]]).double()
        elif float(length[chosen[-1]]) > 0:
            side = away[chosen[-1]] / length[chosen[-1]]
            away = away - torch.outer(away @ side, side)
    return chosen
