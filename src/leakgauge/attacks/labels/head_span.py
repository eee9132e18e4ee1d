"""A classifier's own steps: what it was given lies in the span of its update, and is solved for there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jacrev, vmap

PATIENCE, SLOW = 12, 0.9  # fits end where in so many iterations none has fallen below that share


@dataclass(frozen=True, eq=False)
class HeadSpan:
    """Under soft-max cross-entropy and plain SGD the classifier's update is Σ_t factor·(p_t − y_t)ᵀ·h_t / n_t, with
    p_t = softmax(h_t·W_tᵀ + b_t): it depends on nothing but what the layer is given, whatever the layers below do. The
    n of them lie in the span of its n leading right singular vectors, so that n² coordinates are unknown."""

    basis: Float[Tensor, "n features"]
    weight: Float[Tensor, "outputs n"]  # in that basis, as the bias at the start
    bias: Float[Tensor, " outputs"]
    moved: Float[Tensor, "outputs n"]
    shifted: Float[Tensor, " outputs"] | None  # `None` where no bias trains
    sizes: tuple[int, ...]  # examples of each step
    factor: float = 1.0  # of each step's mean gradient

    @staticmethod
    def of(
        parameters: tuple[Tensor, Tensor | None],
        update: tuple[Tensor, Tensor | None],
        sizes: tuple[int, ...],
        factor: float = 1.0,
    ) -> HeadSpan:
        (weight, bias), (moved, shifted) = parameters, update
        basis = torch.linalg.svd(moved, full_matrices=False).Vh[: sum(sizes)]
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        return HeadSpan(basis, weight @ basis.T, bias, moved @ basis.T, shifted, sizes, factor)

    def residual(self, h: Float[Tensor, "n n"], labels: Float[Tensor, "n outputs"]) -> Float[Tensor, " equations"]:
        """What inputs, in the basis, and labels leave of the update, relative."""
        w, b, moves, tiny = self.weight, self.bias, [], torch.finfo(h.dtype).tiny
        for part, coded in zip(h.split(self.sizes), labels.split(self.sizes), strict=True):
            moves.append(self.factor * ((part @ w.T + b).softmax(1) - coded) / len(part))
            w, b = w + moves[-1].T @ part, b + moves[-1].sum(0)
        slope = torch.cat(moves)
        left: Tensor = ((slope.T @ h - self.moved) / self.moved.norm().clamp_min(tiny)).flatten()
        if self.shifted is None:
            return left
        return torch.cat([left, (slope.sum(0) - self.shifted) / self.shifted.norm().clamp_min(tiny)])


def least_squares(
    residual: Callable[..., Tensor], starts: Float[Tensor, "m *d"], iterations: int, *given: Float[Tensor, "m ..."]
) -> tuple[Float[Tensor, "m *d"], Float[Tensor, " m"]]:
    """Levenberg–Marquardt on ``residual(start, *given)`` of each of m, side by side; where they end, and the norm of
    what is left."""
    value, slopes, found = vmap(residual), vmap(jacrev(residual)), starts
    damping = torch.full((len(found),), 1e-2, dtype=found.dtype)
    left = value(found, *given)
    before = left.norm(dim=1)
    for iteration in range(1, iterations + 1):
        j = slopes(found, *given).flatten(2)
        normal = j.mT @ j
        scale = torch.diag_embed(normal.diagonal(dim1=1, dim2=2) + 1e-12)
        step, _ = torch.linalg.solve_ex(normal + damping[:, None, None] * scale, (j.mT @ left[..., None]))
        tried = found - step.view_as(found)
        after = value(tried, *given)
        better = after.norm(dim=1) < left.norm(dim=1)
        found = torch.where(better.view(-1, *[1] * (found.ndim - 1)), tried, found)
        left = torch.where(better[:, None], after, left)
        damping = torch.where(better, damping / 5, damping * 4).clamp(1e-12, 1e8)
        if iteration % PATIENCE == 0:
            now = left.norm(dim=1)
            if not bool((now < SLOW * before).any()):
                break
            before = now
    return found, left.norm(dim=1)
