"""Dealing one data set out to clients whose classes differ."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from leakgauge.errors import require

Hands = tuple[tuple[int, ...], ...]
"""Indices of the examples of each client."""


def dirichlet_partition(labels: Int[Tensor, " n"], clients: int, alpha: float, generator: torch.Generator) -> Hands:
    """Deals every example to exactly one client.

    For each class the clients' shares are drawn from Dirichlet(α, …, α), and the examples of that class, in random
    order, are cut at the cumulated shares (Hsu et al., 2019, as federated benchmarks implement it). Small α gives
    each client few classes; α → ∞ gives all the same mix.

    Differs: a client that would get nothing takes one example of the largest, so that everybody can be asked.

    Args:
        labels: of the examples, any integers.
        clients: how many.
        alpha: α > 0; federated papers use 0.1 to 1.

    Raises:
        InputError: fewer examples than clients, or α that is not positive.
    """
    require(clients > 0, "clients", f"is {clients}", "give a positive number")
    require(alpha > 0, "alpha", f"is {alpha}", "give a positive number, e.g. 0.5")
    require(
        len(labels) >= clients, "clients", f"are {clients} for {len(labels)} examples", "give each at least one example"
    )
    shares = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    hands: list[list[int]] = [[] for _ in range(clients)]
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        ends = np.cumsum(shares.dirichlet(np.full(clients, alpha)))[:-1]
        cuts = np.rint(ends * len(members)).astype(int).tolist()
        for hand, part in zip(hands, members.tensor_split(cuts), strict=True):
            hand += part.tolist()
    for hand in hands:
        if not hand:
            hand.append(max(hands, key=len).pop())
    return tuple(tuple(sorted(hand)) for hand in hands)
