"""The linear system of a hidden tensor behind which all signals are known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.attacks.features.inside import Layer
from leakgauge.attacks.features.zeros import OFF

DETERMINED = 1e-6  # least eigenvalue, in shares of the largest, of a system that the gradients alone determine


def design_of(layer: Layer, signal: Float[Tensor, "n places filters"]) -> Float[Tensor, "equations unknowns"]:
    """What the gradient of a layer is of one channel of its input: [filters × offsets, examples × pixels]."""
    index, pixels = layer.unfolding.index, layer.unfolding.pixels
    filters, offsets = signal.shape[2], index.shape[1]
    made = signal.new_zeros(filters, offsets, len(signal), pixels + 1)
    for k in range(offsets):
        made[:, k].index_add_(2, index[:, k], signal.permute(2, 0, 1))
    return made[..., :pixels].reshape(filters * offsets, -1)


@dataclass(frozen=True, eq=False)
class System:
    """design · maps = side."""

    design: Float[Tensor, "equations unknowns"]
    side: Float[Tensor, "equations channels"]
    values: Float[Tensor, " unknowns"]  # of design.T @ design, ascending
    vectors: Float[Tensor, "unknowns unknowns"]

    @staticmethod
    def of(design: Tensor, side: Tensor) -> System:
        return System(design, side, *torch.linalg.eigh(design.T @ design))

    @property
    def determined(self) -> bool:
        """Whether the gradients determine it."""
        return float(self.values[0]) > DETERMINED * float(self.values[-1])

    def firm(self, owner: Int[Tensor, " equations"]) -> tuple[System, bool]:
        """Without the filters that leave more than others, as long as the rest then leaves much less: what a wrong
        zero behind one adds to its gradient no input explains. And whether there are such. `owner` is the filter of
        each equation."""
        system, odd = self, torch.zeros(int(owner.max()) + 1, dtype=torch.bool)
        while True:
            found, residual = system.dense()
            left = (self.design @ found.T - self.side).square().sum(1)
            filters = left.new_zeros(len(odd)).index_add_(0, owner, left).sqrt()
            trial = odd | (filters > OFF * filters[~odd & (filters > 0)].median())
            kept = ~trial[owner]
            if torch.equal(trial, odd) or int(kept.sum()) < self.design.shape[1]:
                return system, bool(odd.any())
            less = System.of(self.design[kept], self.side[kept])
            if not less.determined or less.dense()[1] > residual / 2:
                return system, bool(odd.any())
            system, odd = less, trial

    def dense(self) -> tuple[Tensor, float]:
        """By the normal equations, refined twice."""
        found = torch.zeros(self.design.shape[1], self.side.shape[1], dtype=torch.float64)
        for _ in range(3):
            left = self.vectors.T @ (self.design.T @ (self.side - self.design @ found))
            found = found + self.vectors @ (left / self.values[:, None])
        residual = float((self.design @ found - self.side).norm() / self.side.norm())
        return found.T, residual
