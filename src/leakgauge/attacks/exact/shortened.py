"""By how much a defence of single examples shortens each one's gradient: the example itself tells."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.attacks.exact.sums import Sums, Tail
from leakgauge.batch import Batch
from leakgauge.clients.protocol import example_gradients
from leakgauge.tensors import entries

MOST_ENTRIES = 2**24
"""Of the gradients that are held at once."""


def shortened_by(tail: Tail, sums: Sums, x: Float[Tensor, "k d"], labels: Int[Tensor, " k"]) -> Float[Tensor, " k"]:
    """What clipping of examples multiplies the layer's gradient of each by: 1 without it.

    Args:
        x: what enters the layer, which is the normalised example.
    """
    task = tail.task
    if sums.clip is None or tail.layer.bias is None or not len(x):
        return x.new_ones(len(x))
    inputs, found = task.data.denormalise(x.view(-1, *task.data.shape)), []
    for at in torch.arange(len(x), device=x.device).split(max(1, MOST_ENTRIES // entries(task.parameters))):
        each = example_gradients(task, task.parameters, task.buffers, Batch(inputs[at], labels[at]), None)
        kept = sums.clip.on_example_gradients(each, torch.Generator())
        before, after = (t[tail.layer.bias].flatten(1).norm(dim=1) for t in (each, kept))
        found.append(torch.where(before > 0, after / before, 1.0))
    return torch.cat(found)


def shortened_by_label(
    tail: Tail, sums: Sums, x: Float[Tensor, "k d"], asked: Bool[Tensor, "k labels"] | None = None
) -> Float[Tensor, "k labels"]:
    """The same of each example under each label that it may have, or under those that are asked for, else 1."""
    found = x.new_ones((len(x), len(sums.labels)))
    if sums.clip is None:
        return found
    example, label = (torch.ones_like(found).bool() if asked is None else asked).nonzero(as_tuple=True)
    found[example, label] = shortened_by(tail, sums, x[example], sums.labels[label])
    return found
