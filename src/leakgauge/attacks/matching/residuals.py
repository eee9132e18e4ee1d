"""Data terms as sums of squares, and matrix-free products with their Jacobian."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.matching.objectives import Cosine, SquaredL2
from leakgauge.tensors import Tensors, squared_norm


@singledispatch
def residual(objective: object, simulated: Tensors, observed: Tensors) -> Float[Tensor, " m"]:
    """r with ‖r‖² = objective(simulated, observed), all tensors in one vector.

    An objective of your own gets one by ``residual.register(YourObjective)``; see `has_residual`.
    """
    del simulated, observed
    raise TypeError(f"{type(objective).__name__} is not known as a sum of squares")


def has_residual(objective: object) -> bool:
    """Whether an objective is known as a sum of squares."""
    return residual.dispatch(type(objective)) is not residual.dispatch(object)


@residual.register(SquaredL2)
def _(objective: SquaredL2, simulated: Tensors, observed: Tensors) -> Float[Tensor, " m"]:
    del objective
    return torch.cat([(simulated[k] - observed[k]).flatten() for k in observed])


@residual.register(Cosine)
def _(objective: Cosine, simulated: Tensors, observed: Tensors) -> Float[Tensor, " m"]:
    """1 − cos is half the squared distance of the two unit vectors. A zero update stays zero: ½ here, 1 there."""
    del objective
    tiny = torch.finfo(next(iter(observed.values())).dtype).tiny
    ours, theirs = (squared_norm({k: t[k] for k in observed}).clamp_min(tiny).sqrt() for t in (simulated, observed))
    return torch.cat([(simulated[k] / ours - observed[k] / theirs).flatten() for k in observed]) / 2**0.5


@dataclass(frozen=True, eq=False)
class Squares:
    """A loss as ‖residual‖² + prior, both functions of the variables of one restart."""

    residual: Callable[[Tensors], Float[Tensor, " m"]]
    prior: Callable[[Tensors], Float[Tensor, ""]]


class Linearisation:
    """The residual r and the prior P at one point of one restart, and products with their derivatives.

    Vectors over the variables are flat, in their order. `charge` is called before anything that costs a
    gradient evaluation: r itself, each Jᵀu, each Jv, and the first Jv once more, for the graph they share.
    The prior does not touch the network and is free.

    Attributes:
        residual: r, of length m.
        data: ‖r‖².
        prior: P.
    """

    def __init__(self, squares: Squares, point: Tensors, charge: Callable[[], None]) -> None:
        self._charge = charge
        charge()
        leaves = {k: v[0].detach().requires_grad_() for k, v in point.items()}
        self._leaves = list(leaves.values())
        self._residual = squares.residual(leaves)
        self._prior = squares.prior(leaves)
        self.residual = self._residual.detach()
        self.data, self.prior = self.residual.square().sum(), self._prior.detach()
        self._dual: tuple[Tensor, Tensor] | None = None
        self._slope: Tensor | None = None

    def transposed(self, u: Float[Tensor, " m"]) -> Float[Tensor, " d"]:
        """Jᵀu, by reverse mode."""
        self._charge()
        return self._grad(self._residual, u)

    def product(self, v: Float[Tensor, " d"]) -> Float[Tensor, " m"]:
        """Jv, as the derivative of u ↦ ⟨Jᵀu, v⟩: the graph of Jᵀu is built once a point."""
        if self._dual is None:
            self._charge()
            u = torch.zeros_like(self.residual, requires_grad=True)
            self._dual = u, self._grad(self._residual, u, graph=True)
        self._charge()
        u, pulled = self._dual
        return torch.autograd.grad(pulled, u, v, retain_graph=True)[0]

    def prior_slope(self) -> Float[Tensor, " d"]:
        """∇P."""
        if self._slope is None:
            self._slope = self._grad(self._prior, None, graph=True) if self._prior.requires_grad else self._zeros()
        return self._slope.detach()

    def prior_curvature(self, v: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        """∇²P·v."""
        self.prior_slope()
        if self._slope is None or not self._slope.requires_grad:
            return self._zeros()
        return self._grad(self._slope, v)

    def _grad(self, of: Tensor, along: Tensor | None, *, graph: bool = False) -> Tensor:
        if not of.requires_grad:
            return self._zeros()
        slopes = torch.autograd.grad(
            of, self._leaves, along, create_graph=graph, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return torch.cat([s.flatten() for s in slopes])

    def _zeros(self) -> Tensor:
        return torch.cat([torch.zeros_like(leaf).flatten() for leaf in self._leaves])
