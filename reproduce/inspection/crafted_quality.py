"""How good the pictures are that a dishonest server reads from an honest client of its crafted model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakgauge.clients import FedSGD, client_update
from leakgauge.draws import Draws
from leakgauge.metrics.metric import PSNR
from leakgauge.observation import Knowledge, Observation
from leakgauge.servers import Broadcast
from leakgauge.task import Batch, Task


@dataclass(frozen=True)
class Quality:
    """What the server reads from an honest client with one example of each of some classes.

    Attributes:
        psnr: mean over examples, dB, clamped pictures; unread ones count as the grey picture.
        grey: the same of the mean picture alone.
        read: share of examples with an answer of their class.
    """

    psnr: float
    grey: float
    read: float


def quality(task: Task, broadcast: Broadcast, batch: Batch, generator: torch.Generator) -> Quality:
    """Reads one FedSGD update of `batch` cut to one example a class, of at most half of the classes."""
    labels = batch.labels
    first = [int((labels == c).nonzero()[0]) for c in labels.unique()][: max(1, task.data.classes // 2)]
    own = batch.take(torch.tensor(first))
    update = client_update(broadcast.task, FedSGD(), own, Draws(0))
    seen = Observation(broadcast.task, update, Knowledge(example_count=len(own), crafting=broadcast.crafting))
    grey = own.inputs.mean((0, 2, 3), keepdim=True).expand_as(own.inputs).clone()
    guess, read = grey.clone(), 0
    assert broadcast.crafting is not None
    try:
        found = broadcast.crafting.reconstruct(seen, generator)
    except ZeroDivisionError:  # wires of the size of an honest layer that starts at zero carry nothing
        return Quality(float(PSNR()(grey, own.inputs).mean()), float(PSNR()(grey, own.inputs).mean()), 0.0)
    if found.inputs is not None and found.labels is not None and bool(torch.isfinite(found.inputs).all()):
        for picture, label in zip(found.inputs, found.labels, strict=True):
            at = (own.labels == label).nonzero().flatten()
            if len(at):
                guess[at[0]], read = picture.clamp(0, 1).to(grey), read + 1
    psnr = PSNR()
    score, base = psnr(guess, own.inputs), psnr(grey, own.inputs)
    return Quality(float(score.clamp(max=60).mean()), float(base.mean()), read / len(own))
