"""Readings of MKOR's paper that fail, kept to show that they do: plain cross-entropy, and Eq. (20) to the letter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.observation import Observation
from leakgauge.servers.convolutions import PooledMap, PublishedTaps
from leakgauge.servers.mkor import Separated, negative
from leakgauge.task import Task
from leakgauge.tensors import Tensors
from reproduce.mkor.quiet import absent_classes


@dataclass(frozen=True)
class CrossEntropy:
    """Plain cross-entropy, read as published: ΔW[n]/Δb[n] where Δb[n] < 0. Kept to show that it fails.

    The answer for class n is (K_n·z̄_n − K·z̄/N)/(K_n − K/N): contaminated by the batch's mean z̄ in proportion to K/N,
    and for K = N undefined for each class with one example. Classes whose denominator vanishes are not read.
    """

    def applied(self, task: Task) -> Task:
        return task

    def separate(
        self, rows: Float[Tensor, "classes f"], totals: Float[Tensor, " classes"], observation: Observation
    ) -> Separated | str:
        absent = absent_classes(rows, totals, observation)
        if isinstance(absent, str):
            return f"cross-entropy shares only differences between classes: {absent}"
        own = totals - totals[absent].mean()
        readable = negative(rows, totals) & (totals < 0.05 * own) & ~absent
        remark = "plain cross-entropy as published, mixed with the batch's mean"
        if not bool(readable.any()):
            return f"cross-entropy shares only differences between classes: {remark}, every denominator vanishes"
        return rows, totals, readable, remark


@dataclass(frozen=True, kw_only=True)
class BlockTaps(PublishedTaps):
    """MKOR's Eq. (20) to the letter: only weights from read to written channels are replaced.

    Weights of a written channel from channels that are not read stay, so those leak into it: the features are
    wrong, and the map does not know by how much: by 20 to 27 % in default-initialised VGG16s at 224 px (two
    seeds, 12 images). For comparison only.

    Attributes:
        directions, smooth: as in `PublishedTaps`.
    """

    def craft(self, task: Task, generator: torch.Generator) -> tuple[Tensors, PooledMap]:
        (state, made), honest = super().craft(task, generator), {**task.parameters, **task.buffers}
        for step in made.steps:
            name = step.stage.weight
            unread = torch.ones(step.stage.inputs, dtype=torch.bool)
            unread[step.reads] = False
            others = step.writes[:, None], unread.nonzero().flatten()
            state[name][others] = honest[name][others]
        return state, made
