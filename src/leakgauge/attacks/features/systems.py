"""The linear system of a hidden tensor behind which all signals are known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.attacks.features.inside import Layer
from leakgauge.attacks.features.zeros import OFF

DETERMINED = 1e-6  # least eigenvalue, in shares of the largest, of a system that gradients determine, by unit columns


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
    """design · maps = side. Solved in unknowns of unit columns (van der Sluis, 1969): an example that the network is
    sure of has faint signals, and is determined as any other."""

    design: Float[Tensor, "equations unknowns"]
    side: Float[Tensor, "equations channels"]
    sizes: Float[Tensor, " unknowns"]  # of the columns
    values: Float[Tensor, " unknowns"]  # of the Gram matrix of unit columns, ascending
    vectors: Float[Tensor, "unknowns unknowns"]

    @staticmethod
    def of(design: Tensor, side: Tensor) -> System:
        sizes = design.norm(dim=0).clamp_min(1e-300)
        return System(design, side, sizes, *torch.linalg.eigh((design / sizes).T @ (design / sizes)))

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
            left = self.vectors.T @ (self.design.T @ (self.side - self.design @ found) / self.sizes[:, None])
            found = found + self.vectors @ (left / self.values[:, None]) / self.sizes[:, None]
        residual = float((self.design @ found - self.side).norm() / self.side.norm())
        return found.T, residual

    def errors(self, residual: float, count: int) -> Float[Tensor, " n"]:
        """How far off each example's part of the solution is, typically, where errors of equations are alike."""
        equations, unknowns = self.design.shape
        spread = (self.vectors.square() / self.values).sum(1) / self.sizes.square()
        own = residual * float(self.side.norm()) / max(equations - unknowns, 1) ** 0.5
        found: Tensor = own * spread.view(count, -1).sum(1).sqrt()
        return found
