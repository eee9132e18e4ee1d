"""The linear layer that a stretch of a network comes to, and its gradient out of the update.

Between a tensor h and the next one that is no affine map of it, z = U·(h, 1), stands one linear layer U, in however
many words. Its gradient M = Σ δ ⊗ (h, 1) is in the gradients of the parameters that U is computed from, through a
linear map that both sides know,

    g = K(T_k · M · B_kᵀ),     a_k = B_k·(h, 1),    δ_k = T_k·δ

over the products k of activations a_k and error signals δ_k. Where the map is one to one, M is solved for.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse.linalg import LinearOperator, lsmr
from torch import Tensor, fx

from leakgauge.errors import FOREIGN
from leakgauge.task import Task
from leakgauge.tensors import Tensors
from leakgauge.view.graph import Graph, OuterSum
from leakgauge.view.trace import blank

ITERATIONS, ENDED = 400, 1e-14  # of LSMR at most, and the relative residual, or slope of one, with which it has ended
ITERATIONS_OVER = 7  # what it says where it has not
WRITTEN, CHUNK = 2**24, 128  # entries at most of a map that is written down, and so many columns of it at once
SOON = 50  # iterations after which it is
PROBES = 8  # random vectors that tell the sizes of equations
FAINT = 1e-4  # least size of one, in shares of the mean: none that chance made small weighs out of all measure
RECOVERED = 1e-7  # relative error to which a random gradient is solved for again, where the gradients determine it
ENTRY = 1e-9  # relative error up to which an entry of the parameters' gradients is one of the layer's

Vector = Float[Tensor, " n"]
Linear = Callable[[Vector], Vector]


def single_numbers(linear: Linear, count: int, error: float) -> tuple[Int[Tensor, " m"], Vector] | None:
    """Which of the numbers that a linear map is given each that it makes is, and times what, where it is that and no
    more, as random ones show to a relative error. What is always zero is any of them times zero."""
    one, two = torch.rand(2, count, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    made = linear(one)
    places = (linear(one * torch.arange(1, count + 1)) / made).nan_to_num().round()
    index = places.long().clamp(1, count) - 1
    scale = made / one[index]
    return (index, scale) if torch.allclose(linear(two), scale * two[index], rtol=error, atol=0) else None


def _written(linear: Linear, count: int) -> Linear | None:
    """What a linear map takes nearest to a vector, by its matrix, factored once; `None` where what computes the map
    cannot take many vectors at once."""
    try:
        with warnings.catch_warnings(action="ignore"):  # that some operation takes them one by one
            matrix = torch.func.vmap(linear, chunk_size=CHUNK)(torch.eye(count, dtype=torch.float64)).T
    except FOREIGN:
        return None
    probe = torch.rand(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if not torch.allclose(matrix @ probe, linear(probe), rtol=ENTRY, atol=ENTRY):
        return None
    q, r = torch.linalg.qr(matrix)
    sizes = r.diagonal().abs()
    if len(matrix) >= count and float(sizes.min()) > ENTRY * float(sizes.max()):
        return lambda v: torch.linalg.solve_triangular(r, (q.T @ v)[:, None], upper=True)
    return lambda v: torch.linalg.lstsq(matrix, v[:, None], driver="gelsy").solution


def _least_squares(
    linear: Linear, wanted: Vector, shape: tuple[int, int], written: list[Linear | None]
) -> Float[Tensor, "rows columns"]:
    """What a linear map of a matrix takes nearest to `wanted`: LSMR, and where that does not end, by the map `written`
    down, once for all; where it is too large for that, with equations of one size."""
    count = math.prod(shape)
    small = count * len(wanted) <= WRITTEN

    def back(v: np.ndarray) -> np.ndarray:
        with torch.enable_grad():
            at = torch.zeros(count, dtype=torch.float64, requires_grad=True)
            total = (linear(at) * torch.from_numpy(v).flatten()).sum()
            made = torch.autograd.grad(total, at)[0] if total.requires_grad else torch.zeros_like(at)
        return made.numpy()

    def solved(weights: np.ndarray | float, most: int = ITERATIONS) -> tuple[Tensor, bool]:
        operator = LinearOperator(
            (len(wanted), count),
            lambda m: weights * linear(torch.from_numpy(m).flatten()).numpy(),
            rmatvec=lambda v: back(weights * v),
            dtype=np.float64,
        )
        found, ended = lsmr(operator, weights * wanted.numpy(), atol=ENDED, btol=ENDED, conlim=0, maxiter=most)[:2]
        return torch.from_numpy(found).view(shape), ended != ITERATIONS_OVER

    with torch.no_grad():
        if not written:
            found, ended = solved(1.0, SOON if small else ITERATIONS)
            if ended:
                return found
            written.append(_written(linear, count) if small else None)
        if (inverse := written[0]) is not None:
            return inverse(wanted).view(shape)
        # Equations that parameters' scales make faint, as those of an angle behind a small length, count like others.
        drawn = torch.randint(2, (PROBES, count), generator=torch.Generator().manual_seed(0)).double() * 2 - 1
        sizes = torch.stack([linear(signs) for signs in drawn]).square().mean(0).sqrt()
        return solved((1 / sizes.clamp_min(FAINT * float(sizes.mean()))).numpy())[0]


@dataclass(frozen=True, eq=False)
class OneProduct:
    """One product, T · M · Bᵀ."""

    product: OuterSum
    left: Float[Tensor, "outputs units"] | None  # T; `None` for the identity
    # B, sparse where each activation is one number of h times something; `None` for a sum of error signals
    right: Float[Tensor, "inputs d"] | None
    shift: Float[Tensor, " inputs"]  # activations at h = 0

    def of(self, gradient: Float[Tensor, "units d1"]) -> Tensor:
        """T · M · Bᵀ in the graph's axes."""
        rows = gradient if self.left is None else self.left @ gradient
        found = rows[:, -1:]
        if self.right is not None:
            right, body = self.right, rows[:, :-1]  # no sparse tensor: many gradients may come at once
            seen = body[:, right.indices()[1]] * right.values() if right.is_sparse else body @ right.T
            found = seen + found * self.shift
        return self.product.tensor(found[None])

    @cached_property
    def scale(self) -> Float[Tensor, " d"] | None:
        """What each number of h is read times, where the activations are these numbers, in any order."""
        if self.right is None or not self.right.is_sparse or len(self.right) != self.right.shape[1]:
            return None
        found: Tensor = self.right.sum(0).to_dense()
        return found if bool((found != 0).all()) else None

    def sent(self, tensors: Tensors) -> Float[Tensor, "outputs inputs"]:
        """Its value where it is the gradient of a parameter."""
        return self.product.matrices(tensors[self.product.weight or ""].detach().double().cpu())[0]

    def read(self, tensors: Tensors, last: Float[Tensor, "units 1"]) -> Float[Tensor, "outputs d"]:
        """T·M but for M's last column, which is known, where it is the gradient of a parameter and has a `scale`."""
        assert self.right is not None
        assert self.scale is not None
        rows = last if self.left is None else self.left @ last
        return (self.right.T @ (self.sent(tensors) - rows * self.shift).T).T / self.scale.square()


def leaves_of(graph: Graph, names: Iterable[str]) -> tuple[Task, Tensors]:
    """The task in double precision, and of its parameters those to take derivatives by."""
    leaves = {k: graph.double.parameters[k].detach().requires_grad_() for k in names}
    return replace(graph.double, parameters={**graph.double.parameters, **leaves}), leaves


def pulled_back(made: list[Tensor], leaves: Tensors, signals: Iterable[Tensor]) -> Tensors:
    """The derivative of Σ ⟨signal, made⟩ by the parameters, itself with one by the signals."""
    sent = [signal.reshape(value.shape) for value, signal in zip(made, signals, strict=True)]
    with torch.enable_grad():
        found = torch.autograd.grad(made, [*leaves.values()], sent, True, True, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


@dataclass(frozen=True, eq=False)
class Effective:
    """A linear layer of the network as it comes to be."""

    graph: Graph
    given: tuple[fx.Node, ...]  # h, one tensor or several side by side; none of weights
    output: fx.Node  # z
    weight: Float[Tensor, "units d"]  # weight, bias: U. The bias is what z is at h = 0.
    bias: Float[Tensor, " units"]
    moves: bool  # whether the gradients determine that of the bias; else it stays as it is
    parameters: tuple[str, ...]  # from which U is computed, and nothing else is
    used: tuple[str, ...]  # those whose gradients tell it
    parts: tuple[OneProduct, ...]
    # which combinations of its rows the gradients determine, orthonormal; `None` for all
    rows: Float[Tensor, "r units"] | None = None
    nodes: tuple[fx.Node, ...] = ()  # each a weight that it is the bias for, of a layer that is given nothing
    balanced: bool = False  # whether the error signals of an example sum to nothing, as a soft-max has them

    @property
    def shape(self) -> tuple[int, int]:
        """Of what the gradients determine of M."""
        return len(self.weight), self.weight.shape[1] + self.moves

    def gradients(self, gradient: Float[Tensor, "units d1"]) -> Tensors:
        """K: what the parameters' gradients are where that of the layer is given."""
        held = {p.product.node: p.of(gradient) for p in self.parts}
        wanted = [node for name in self.used if (node := self.graph.trace.gradients[name]) is not None]
        found = self.graph.trace.evaluate(wanted, self.graph.double, blank(self.graph.double, 1), given=held)
        return dict(zip(self.used, found, strict=True))

    def _made(self, entries: Vector) -> Vector:
        """K from what it determines of M to all entries of the parameters' gradients, each in one row."""
        return torch.cat([g.flatten() for g in self.gradients(self._padded(entries.view(self.shape))).values()])

    def _padded(self, found: Float[Tensor, "units determined"]) -> Float[Tensor, "units d1"]:
        found = found - found.mean(0) if self.balanced else found
        return found if self.moves else torch.cat([found, torch.zeros_like(found[:, :1])], 1)

    def solved(self, sent: Tensors) -> Float[Tensor, "units d1"]:
        """The layer's gradient that explains those of the parameters, in the least squares' sense, in float64."""
        like = next(iter(sent.values()))
        if self.rows is not None and self.projections:  # which say of M what is in the rows that they determine
            last, sides = self._last(sent), [p.left @ self.rows.T for p in self.projections if p.left is not None]
            values = [p.read(sent, last) for p in self.projections]
            found = self.rows.T @ torch.linalg.lstsq(torch.cat(sides), torch.cat(values)).solution
            return torch.cat([found, last], 1).to(like.device)
        wanted = torch.cat([sent[k].detach().double().flatten() for k in self.used])
        if self.rows is None and self.entries is not None:
            where, scale = (t.to(like.device) for t in self.entries)
            return self._padded((wanted[where] / scale).view(self.shape))
        if self.rows is None and self.body is not None:
            last = self._last(sent)
            return torch.cat([self.body.read(sent, last), last], 1).to(like.device)
        size = float(wanted.abs().max())
        if not size > 0 or not math.isfinite(size):
            return self._padded(wanted.new_zeros(self.shape))
        found = size * _least_squares(self._made, wanted.cpu() / size, self.shape, self._written)
        return self._padded(found).to(like.device)

    def spread(self, errors: Tensors) -> Float[Tensor, "units d1"]:
        """How far errors of the parameters' gradients, of any sign, put its own: each where it is one of them, else
        twice what they come to in the mean."""
        if self.entries is not None:
            return self.solved(errors).abs()
        draw, squares = torch.Generator().manual_seed(0), torch.zeros((), dtype=torch.float64)
        for _ in range(PROBES):
            drawn = {k: e * (2.0 * torch.randint(2, e.shape, generator=draw) - 1).to(e) for k, e in errors.items()}
            squares = squares + self.solved(drawn).square()
        return 2 * (squares / PROBES).sqrt()

    def drawn(self, generator: torch.Generator) -> tuple[Tensor, Tensors]:
        """A random gradient, and what it makes of the parameters' gradients."""
        truth = self._padded(torch.randn(self.shape, generator=generator, dtype=torch.float64))
        with torch.no_grad():
            return truth, self.gradients(truth)

    @property
    def determined(self) -> bool:
        """Whether a random gradient of the layer is found again."""
        if self.entries is not None:
            return True
        truth, sent = self.drawn(torch.Generator().manual_seed(1))
        if sum(int(g.count_nonzero()) for g in sent.values()) < math.prod(self.shape):
            return False  # whatever solving, which takes long where it cannot end, would say
        return bool((self.solved(sent) - truth).norm() <= RECOVERED * truth.norm())

    @cached_property
    def _written(self) -> list[Linear | None]:
        """K's inverse, once solving took too long without; `None` where K cannot be written down."""
        return []

    @cached_property
    def entries(self) -> tuple[Int[Tensor, " n"], Vector] | None:
        """Where each entry of M stands among those of the parameters used, in one row, and what it is times there;
        `None` where not each of either is one of the other."""
        count = math.prod(self.shape)
        if count != sum(self.graph.task.parameters[k].numel() for k in self.used):
            return None
        with torch.no_grad():
            found = single_numbers(self._made, count, ENTRY)
        if found is None or not bool((found[1] != 0).all()) or bool((found[0].bincount(minlength=count) != 1).any()):
            return None
        near = (found[1].abs() - 1).abs() <= ENTRY
        where, scale = found[0].argsort(), torch.where(near, found[1].sign(), found[1])
        return where, scale[where]

    def tensors(self, name: str, gradient: Float[Tensor, "units d1"]) -> Tensors:
        """What of a gradient, or the like, is of the tensors that stand for it where it is held at `name`."""
        kept = gradient if self.rows is None else self.rows.to(gradient.device) @ gradient
        return {f"{name}.weight": kept[:, :-1]} | ({f"{name}.bias": kept[:, -1]} if self.moves else {})

    @property
    def entrywise(self) -> bool:
        """Whether every entry of the layer is one of the parameters', with a sign, and the other way round."""
        if self.rows is not None or set(self.used) != set(self.parameters) or self.entries is None:
            return False
        return bool((self.entries[1].abs() == 1).all())

    @cached_property
    def whole(self) -> bool:
        """Whether weight and bias of the layer hold the entries of one parameter each."""
        if not self.entrywise or self.entries is None:
            return False
        sizes = torch.tensor([self.graph.task.parameters[k].numel() for k in self.used])
        whose = torch.searchsorted(sizes.cumsum(0), self.entries[0], right=True).view(self.shape)
        ends = (whose[:, : self.weight.shape[1]].unique(), whose[:, self.weight.shape[1] :].unique())
        return len(ends[0]) == 1 and len(ends[1]) == self.moves and len(torch.cat(ends).unique()) == len(self.used)

    @cached_property
    def projections(self) -> list[OneProduct]:
        """Products that are a parameter's gradient and read all of h number by number: each is T·M, as that of the
        first of two factors."""
        return [p for p in self.parts if p.left is not None and p.scale is not None and p.product.weight is not None]

    @cached_property
    def shift(self) -> OneProduct | None:
        """The gradient of the layer's own bias."""
        own = (p for p in self.parts if p.product.activation is None and p.left is None and p.product.weight)
        return next(own, None)

    @cached_property
    def body(self) -> OneProduct | None:
        """The only product that reads h, where the parameters' gradients are it, scaled number by number, and M's last
        column."""
        bodies = [p for p in self.parts if p.right is not None]
        own = all(p.left is None and p.product.weight is not None for p in self.parts)
        told = self.shift is not None or not self.moves
        return bodies[0] if own and told and len(bodies) == 1 and bodies[0].scale is not None else None

    def _last(self, sent: Tensors) -> Float[Tensor, "units 1"]:
        """M's last column, as the layer's own bias tells it."""
        if self.moves and self.shift is not None:
            return self.shift.sent(sent)
        return torch.zeros(len(self.weight), 1, dtype=torch.float64)
