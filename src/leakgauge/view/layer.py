"""The linear layer that a stretch of a network comes to, and its gradient out of the update.

Between a tensor h and the next one that is no affine map of it, z = U·(h, 1), stands one linear layer U, in however
many words. Its gradient M = Σ δ ⊗ (h, 1) is in the gradients of the parameters that U is computed from, through a
linear map that both sides know,

    g = K(T_k · M · B_kᵀ),     a_k = B_k·(h, 1),    δ_k = T_k·δ

over the products k of activations a_k and error signals δ_k. Where the map is one to one, M is solved for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse.linalg import LinearOperator, lsmr
from torch import Tensor, fx

from leakgauge.task import Task
from leakgauge.tensors import Tensors
from leakgauge.view.graph import Graph, OuterSum
from leakgauge.view.trace import blank

DENSE = 2**22
"""Entries of a map of activations that is solved at once."""
ITERATIONS, ENDED = 200, 1e-14
"""Of LSMR at most, and the relative residual, or slope of one, with which it has ended."""
ITERATIONS_OVER = 7
"""What it says where it has not."""
PROBES = 8
"""Random vectors that estimate the diagonal of the normal equations."""
FAINT = 1e-4
"""Of that diagonal's mean, so that an estimate that chance made small or negative weighs nothing out of all measure."""


def _least_squares(linear: Callable[[Tensor], Tensors], target: Tensors, mask: Tensor) -> Tensor:
    """What a linear map takes nearest to `target`, zero where `mask` is: LSMR, and where that does not end,
    preconditioned by an estimate of the normal equations' diagonal."""
    wanted, shape = torch.cat([t.flatten() for t in target.values()]), mask.shape

    def forth(m: Tensor) -> Tensor:
        return torch.cat([t.flatten() for t in linear(m.view(shape) * mask).values()])

    def back(v: Tensor) -> Tensor:
        with torch.enable_grad():
            at = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
            total = (forth(at) * v).sum()
            found = torch.autograd.grad(total, at)[0] if total.requires_grad else torch.zeros_like(at)
        return found.flatten()

    def solved(weight: Tensor, own: Tensor) -> tuple[Tensor, bool]:
        operator = LinearOperator(
            (len(wanted), mask.numel()),
            lambda m: (own * forth(weight * torch.from_numpy(m).flatten())).numpy(),
            rmatvec=lambda v: (weight * back(own * torch.from_numpy(v).flatten())).numpy(),
            dtype=np.float64,
        )
        found, ended = lsmr(operator, (own * wanted).numpy(), atol=ENDED, btol=ENDED, conlim=0, maxiter=ITERATIONS)[:2]
        return (weight * torch.from_numpy(found)).view(shape), ended != ITERATIONS_OVER

    with torch.no_grad():
        even, alike = torch.ones(mask.numel(), dtype=torch.float64), torch.ones_like(wanted)
        found, ended = solved(even, alike)
        if ended:
            return found * mask
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randint(2, (PROBES, mask.numel()), generator=generator).double() * 2 - 1
        made = [forth(signs) for signs in drawn]
        each = torch.stack([signs * back(own) for signs, own in zip(drawn, made, strict=True)])
        diagonal = each.mean(0).view(shape)
        if bool(((each - each.mean(0)).abs() <= 1e-12 * each.mean(0)).all()):  # it only scales entries
            return torch.where(diagonal > 0, back(wanted).view(shape) / diagonal, 0.0) * mask
        # Equations that parameters' scales make faint, as those of an angle behind a small length.
        sizes = torch.stack(made).square().mean(0).sqrt()
        equal = 1 / sizes.clamp_min(FAINT * float(sizes.mean()))
        found, ended = solved(even, equal)
        if ended:
            return found * mask
        # The estimate of single entries is coarse; those of rows and columns are not.
        least = FAINT * diagonal.mean().abs()
        rows, columns = (diagonal.mean(axis, keepdim=True).clamp_min(least) for axis in (1, 0))
        weight = rows.mean() / (rows * columns)
        return solved(weight.clamp_max(1e6 * float(weight.median())).sqrt().flatten(), alike)[0] * mask


@dataclass(frozen=True, eq=False)
class OneProduct:
    """One product: T, and B by index, scale and shift where each activation is one number of h, else as a matrix."""

    product: OuterSum
    left: Float[Tensor, "outputs units"] | None
    index: Tensor | None
    right: Float[Tensor, "inputs d"] | None
    shift: Float[Tensor, " inputs"]

    def matrix(self, width: int) -> Float[Tensor, "inputs d"]:
        """B."""
        assert self.right is not None
        if self.index is None:
            return self.right
        return torch.zeros(len(self.index), width, dtype=torch.float64).scatter_(
            1, self.index[:, None], self.right[:, None]
        )

    def of(self, gradient: Float[Tensor, "units d1"]) -> Tensor:
        """T · M · Bᵀ in the graph's axes."""
        rows = gradient if self.left is None else self.left @ gradient
        if self.product.activation is None:
            return self.product.tensor(rows[:, -1:][None])
        body, last = rows[:, :-1], rows[:, -1:]
        if self.index is not None:
            assert self.right is not None
            found = body[:, self.index] * self.right
        else:
            assert self.right is not None
            found = body @ self.right.T
        return self.product.tensor((found + last * self.shift)[None])


@dataclass(frozen=True, eq=False)
class Effective:
    """A linear layer of the network as it comes to be.

    Attributes:
        given: h, one tensor or several side by side.
        output: z.
        weight, bias: U. The bias is what z is at h = 0.
        moves: whether the gradients determine that of the bias; else it stays as it is.
        parameters: from which U is computed, and nothing else is.
        used: those whose gradients tell it.
        rows: which combinations of its rows the gradients determine, orthonormal; `None` for all.
    """

    graph: Graph
    given: tuple[fx.Node, ...]
    output: fx.Node
    weight: Float[Tensor, "units d"]
    bias: Float[Tensor, " units"]
    moves: bool
    parameters: tuple[str, ...]
    used: tuple[str, ...]
    parts: tuple[OneProduct, ...]
    rows: Float[Tensor, "r units"] | None = None

    @cached_property
    def _double(self) -> Task:
        return self.graph.task.to(torch.empty((), dtype=torch.float64))

    def gradients(self, gradient: Float[Tensor, "units d1"]) -> Tensors:
        """K: what the parameters' gradients are where that of the layer is given."""
        graph = self.graph
        held = {p.product.node: p.of(gradient) for p in self.parts}
        wanted = [graph.trace.gradients[name] for name in self.used]
        task = self._double if gradient.device.type == "cpu" else graph.task.to(gradient)
        found = graph.trace.evaluate([n for n in wanted if n is not None], task, blank(task, 1), given=held)
        return dict(zip(self.used, found, strict=True))

    def solved(self, sent: Tensors) -> Float[Tensor, "units d1"]:
        """The layer's gradient that explains those of the parameters, in the least squares' sense, in float64."""
        like = next(iter(sent.values()))
        direct = self._direct(sent) if self.rows is None else self._in_rows(sent)
        if direct is not None:
            return direct
        start = torch.zeros(len(self.weight), self.weight.shape[1] + 1, dtype=torch.float64, device=like.device)
        if self.rows is None and self.places is not None:
            where, sign = (t.to(like.device) for t in self.places)
            found = torch.cat([sent[k].detach().double().flatten() for k in self.used])[where] * sign
            start[:, : self._columns] = found.view(len(start), -1)
            return start
        mask = torch.ones(start.shape, dtype=torch.float64)
        mask[:, -1] = float(self.moves)
        target = {k: sent[k].detach().double().cpu() for k in self.used}
        scale = max(float(v.abs().max()) for v in target.values())
        if not scale > 0 or not math.isfinite(scale):
            return start
        target = {k: v / scale for k, v in target.items()}
        return scale * _least_squares(self.gradients, target, mask).to(start.device)

    @property
    def _columns(self) -> int:
        return self.weight.shape[1] + self.moves

    @cached_property
    def places(self) -> tuple[Int[Tensor, " entries"], Float[Tensor, " entries"]] | None:
        """Where each entry of the layer's gradient stands among those of the parameters used, in one row, and its sign;
        `None` where not each of either is one of the other, as two random gradients show."""
        count = sum(self.graph.task.parameters[k].numel() for k in self.used)
        if count != len(self.weight) * self._columns or set(self.used) != set(self.parameters):
            return None
        generator, found = torch.Generator().manual_seed(1), []
        for _ in range(2):
            truth = torch.randn(len(self.weight), self.weight.shape[1] + 1, generator=generator, dtype=torch.float64)
            truth[:, -1] *= self.moves
            with torch.no_grad():
                sent = torch.cat([g.flatten() for g in self.gradients(truth).values()])
            kept = truth[:, : self._columns].flatten()
            if not torch.allclose(sent.norm(), kept.norm(), rtol=1e-9):
                return None
            where = torch.empty(count, dtype=torch.long)
            where[kept.abs().argsort()] = sent.abs().argsort()
            if not torch.allclose(sent[where].abs(), kept.abs(), rtol=1e-9, atol=0):
                return None
            found.append((where, (sent[where] * kept).sign()))
        (one, sign), (two, same) = found
        return (one, sign) if torch.equal(one, two) and torch.equal(sign, same) else None

    @cached_property
    def whole(self) -> bool:
        """Whether weight and bias of the layer hold the entries of one parameter each."""
        if self.is_direct and set(self.parameters) == set(self.used) and self.unscaled:
            return True
        if self.rows is not None or self.places is None:
            return False
        sizes = torch.tensor([self.graph.task.parameters[k].numel() for k in self.used])
        whose = torch.searchsorted(sizes.cumsum(0), self.places[0], right=True).view(-1, self._columns)
        ends = (whose[:, : self.weight.shape[1]].unique(), whose[:, self.weight.shape[1] :].unique())
        return len(ends[0]) == 1 and len(ends[1]) == self.moves and len(torch.cat(ends).unique()) == len(self.used)

    @property
    def unscaled(self) -> bool:
        parts = [p for p in self.parts if p.right is not None]
        return all(bool((p.right.abs() == 1).all()) and not bool(p.shift.any()) for p in parts if p.right is not None)

    @property
    def is_direct(self) -> bool:
        """Whether every entry of the layer's gradient is one of the parameters'."""
        if self.rows is not None:
            return False
        bodies = [p for p in self.parts if p.product.activation is not None]
        lasts = [p for p in self.parts if p.product.activation is None]
        if any(p.left is not None or p.product.weight is None for p in self.parts) or len(bodies) != 1:
            return False
        index = bodies[0].index
        whole = index is not None and torch.equal(index.sort().values, torch.arange(self.weight.shape[1]))
        return whole and (len(lasts) > 0 if self.moves else not bool(bodies[0].shift.any()))

    def _direct(self, sent: Tensors) -> Tensor | None:
        """By one division or one solve, where the layer's units are those of the parameters."""
        bodies = [p for p in self.parts if p.product.activation is not None]
        last = next((p for p in self.parts if p.product.activation is None), None)
        if (
            any(p.left is not None or p.product.weight is None for p in self.parts)
            or (self.moves and last is None)
            or not bodies
        ):
            return None
        if not self.is_direct and sum(p.matrix(self.weight.shape[1]).numel() for p in bodies) > DENSE:
            return None
        like = sent[self.used[0]]
        found = torch.zeros(len(self.weight), self.weight.shape[1] + 1, dtype=torch.float64, device=like.device)
        if self.moves and last is not None:
            found[:, -1] = last.product.matrices(sent[last.product.weight or ""].detach().double())[0, :, 0]
        values = [p.product.matrices(sent[p.product.weight or ""].detach().double())[0] for p in bodies]
        values = [v - found[:, -1:] * p.shift.to(like.device) for v, p in zip(values, bodies, strict=True)]
        if self.is_direct and bodies[0].index is not None and bodies[0].right is not None:
            found[:, bodies[0].index.to(like.device)] = values[0] / bodies[0].right.to(like.device)
        else:
            every = torch.cat([p.matrix(self.weight.shape[1]) for p in bodies]).to(like.device)
            found[:, :-1] = torch.linalg.lstsq(every, torch.cat(values, 1).T).solution.T
        return found

    @cached_property
    def projections(self) -> list[OneProduct]:
        """Products that are a parameter's gradient and read all of h number by number: each is T·M, as that of the
        first of two factors."""
        every = torch.arange(self.weight.shape[1])
        own = [p for p in self.parts if p.left is not None and p.index is not None and p.product.weight is not None]
        return [p for p in own if p.index is not None and torch.equal(p.index.sort().values, every)]

    @cached_property
    def shift(self) -> OneProduct | None:
        """The gradient of the layer's own bias."""
        own = (p for p in self.parts if p.product.activation is None and p.left is None and p.product.weight)
        return next(own, None)

    def _in_rows(self, sent: Tensors) -> Tensor | None:
        """What `projections` say of M in the rows that they determine."""
        if self.rows is None or not self.projections:
            return None
        like = sent[self.used[0]]
        last = torch.zeros(len(self.weight), dtype=torch.float64, device=like.device)
        if self.moves and self.shift is not None:
            last = self.shift.product.matrices(sent[self.shift.product.weight or ""].detach().double())[0, :, 0]
        sides, values = [], []
        for p in self.projections:
            assert p.left is not None
            assert p.index is not None
            assert p.right is not None
            left, index, right = (t.to(like.device) for t in (p.left, p.index, p.right))
            value = p.product.matrices(sent[p.product.weight or ""].detach().double())[0]
            value = (value - (left @ last)[:, None] * p.shift.to(like.device)) / right
            sides.append(left @ self.rows.to(like.device).T)
            values.append(torch.empty_like(value).index_copy_(1, index, value))
        found = self.rows.to(like.device).T @ torch.linalg.lstsq(torch.cat(sides), torch.cat(values)).solution
        return torch.cat([found, last[:, None]], 1)
