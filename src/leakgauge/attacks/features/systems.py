"""The linear system of a hidden tensor behind which all signals are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse.linalg import LinearOperator, lsmr
from torch import Tensor
from torch.fx import Node

from leakgauge.attacks.features.inside import Layer
from leakgauge.attacks.features.signals import KnownInside
from leakgauge.attacks.features.zeros import OFF
from leakgauge.attacks.matching.problem import Meter

PATIENCE, ITERATIONS = 300, 1500
"""Iterations of a system that needs the forward equations, and more of them where it gets somewhere."""

HOPELESS, CONVERGED = 1e-2, 1e-6  # residuals at which it is given up, or done
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
    """design · maps = side, and the forward equations where they are needed."""

    known: KnownInside
    layer: Layer
    design: Tensor
    side: Tensor
    values: Tensor
    vectors: Tensor

    @staticmethod
    def of(known: KnownInside, layer: Layer, design: Tensor, side: Tensor) -> System:
        return System(known, layer, design, side, *torch.linalg.eigh(design.T @ design))

    @property
    def alone(self) -> bool:
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
            less = System.of(self.known, self.layer, self.design[kept], self.side[kept])
            if not less.alone or less.dense()[1] > residual / 2:
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

    def iterated(self, forward: Sequence[tuple[Node, Tensor, Tensor]], meter: Meter) -> tuple[Tensor, float]:
        """With the forward equations, by LSMR (Fong and Saunders, 2011), in the coordinates in which the gradients' own
        part is diagonal. What `PATIENCE` iterations make nothing of is given up."""
        channels, unknowns = self.side.shape[1], self.design.shape[1]
        inside, values, bent = self.known.inside, self.known.values, self.known.bent

        def ask(maps: Tensor) -> Tensor:
            """Maps [channels, examples × pixels] → arguments of known kinks, at their active entries."""
            given = self.layer.hidden_of(maps.view(len(maps), inside.examples, -1).transpose(0, 1))
            out = [maps.new_zeros(0)]
            for argument, on, _ in forward:
                known = {n: t for n, t in values.items() if (bend := bent(n)) is None or bend.at is not argument}
                (made,) = inside.run([argument], {**known, self.layer.hidden: given})
                out.append(made.flatten()[on])
            return torch.cat(out)

        zero = torch.zeros(channels, unknowns, dtype=torch.float64)
        base = ask(zero)
        target = torch.cat([zero.new_zeros(0), *(values for _, _, values in forward)]) - base
        scale = 1 / float(target.norm().clamp_min(1e-300)) if forward else 1.0
        probe = torch.randn(zero.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        typical = scale**2 * float((ask(probe) - base).square().sum()) / probe.numel() if forward else 0.0
        own = self.values.clamp_min(0)
        size = (own + max(typical, 1e-9 * float(own[-1]))).sqrt()
        told = own > 1e-14 * own[-1]
        slope = torch.where(told, own.sqrt(), 0.0) / size
        head = (self.vectors.T @ (self.design.T @ self.side)).T / own.sqrt().where(told, torch.inf)

        def maps_of(y: np.ndarray) -> Tensor:
            return (torch.from_numpy(y).view(channels, unknowns) / size) @ self.vectors.T

        def apply(y: np.ndarray) -> np.ndarray:
            meter.tick()
            gradients = torch.from_numpy(y).view(channels, unknowns) * slope
            return torch.cat([gradients.flatten(), scale * (ask(maps_of(y)) - base)]).numpy()

        def adjoint(r: np.ndarray) -> np.ndarray:
            whole = torch.from_numpy(r)
            total = whole[: head.numel()].view(head.shape) * slope
            if forward:
                point = zero.clone().requires_grad_()
                with torch.enable_grad():
                    made = ask(point)
                    back = torch.autograd.grad(made, point, scale * whole[head.numel() :])[0]
                total = total + (back @ self.vectors) / size
            return total.flatten().numpy()

        right = torch.cat([head.flatten(), scale * target]).numpy()
        operator = LinearOperator((len(right), zero.numel()), matvec=apply, rmatvec=adjoint, dtype=np.float64)
        found, left = None, 1.0
        for most in (PATIENCE, ITERATIONS):
            found, *_ = lsmr(operator, right, atol=1e-11, btol=1e-11, conlim=0, maxiter=most, x0=found)
            maps = maps_of(found)
            own_gap, gap = self.design @ maps.T - self.side, scale * (ask(maps) - base - target)
            whole = self.side.square().sum() + (scale * target).square().sum()
            left = float(((own_gap.square().sum() + gap.square().sum()) / whole).sqrt())
            if left > HOPELESS or left < CONVERGED:
                break
        return maps, left
