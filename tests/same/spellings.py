"""One function in many words: layers of given weights, each written as somebody writes it.

Every entry computes what its plain form computes, to rounding. So an update of it says as much of the examples, and
whatever is read from the one has to be read from the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

Call = Callable[[Any, Tensor], Tensor]
Init = Callable[[Any, Tensor, Tensor], None]


@dataclass(frozen=True)
class Spelling:
    """One way to write a layer.

    Attributes:
        init: lays weight and bias down in the module.
        call: the layer, of the module and its input.
        own: whether its gradient has entries of its own: weights in another basis, or in factors. A defence of single
            entries (top-k, random-k) then leaves something else of it.
    """

    init: Init
    call: Call
    own: bool = False


class Spelled(nn.Module):
    """A layer of that weight and bias in other words."""

    def __init__(self, spelling: Spelling, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.call = spelling.call
        with torch.no_grad():
            spelling.init(self, weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


def plain(s: Any, w: Tensor, b: Tensor) -> None:
    s.w, s.b = nn.Parameter(w.clone()), nn.Parameter(b.clone())


def linear(w: Tensor, b: Tensor) -> nn.Linear:
    """The plain form."""
    made = nn.Linear(w.shape[1], w.shape[0])
    with torch.no_grad():
        made.weight.copy_(w)
        made.bias.copy_(b)
    return made


def held(change: Callable[[Tensor], Tensor]) -> Init:
    """A weight that the call changes back."""

    def init(s: Any, w: Tensor, b: Tensor) -> None:
        plain(s, change(w).contiguous(), b)

    return init


def _module(s: Any, w: Tensor, b: Tensor) -> None:
    s.inner = linear(w, b)


def _column(s: Any, w: Tensor, b: Tensor) -> None:
    s.w = nn.Parameter(torch.cat([w, b[:, None]], 1))


def _blocks(s: Any, w: Tensor, b: Tensor) -> None:
    s.parts = nn.ModuleList(linear(*part) for part in zip(w.chunk(3), b.chunk(3), strict=True))


def _rotated(s: Any, w: Tensor, b: Tensor) -> None:
    q = torch.linalg.qr(torch.randn(w.shape[1], w.shape[1], generator=torch.Generator().manual_seed(1)))[0]
    s.register_buffer("q", q)
    plain(s, w @ q, b)  # x @ q times (w @ q) is x times w


def _standardised(s: Any, w: Tensor, b: Tensor) -> None:
    drawn = torch.rand(2, w.shape[1], generator=torch.Generator().manual_seed(1))
    s.register_buffer("mu", drawn[0])
    s.register_buffer("sd", drawn[1] + 0.5)
    plain(s, w * s.sd, b + w @ s.mu)


def _permuted(axis: int) -> Init:
    def init(s: Any, w: Tensor, b: Tensor) -> None:
        order = torch.randperm(w.shape[axis], generator=torch.Generator().manual_seed(1))
        s.register_buffer("order", order)
        s.register_buffer("back", order.argsort())
        plain(s, w[order] if axis == 0 else w[:, order], b[order] if axis == 0 else b)

    return init


def _weight_norm(s: Any, w: Tensor, b: Tensor) -> None:
    s.inner = weight_norm(linear(w, b))


def _by_hand(s: Any, w: Tensor, b: Tensor) -> None:
    s.g, s.v, s.b = nn.Parameter(w.norm(dim=1, keepdim=True)), nn.Parameter(3 * w), nn.Parameter(b.clone())


def _adapted(rank: int) -> Init:
    def init(s: Any, w: Tensor, b: Tensor) -> None:
        draw = torch.Generator().manual_seed(1)
        s.up = nn.Parameter(0.1 * torch.randn(w.shape[0], rank, generator=draw))
        s.down = nn.Parameter(0.1 * torch.randn(rank, w.shape[1], generator=draw))
        s.register_buffer("base", w - s.up @ s.down)
        s.b = nn.Parameter(b.clone())

    return init


def _squares(s: Any, w: Tensor, b: Tensor) -> None:
    plain(s, torch.cat([w, torch.zeros_like(w)], 1), b)


def _residual(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("skip", torch.eye(*w.shape))
    plain(s, w - s.skip, b)


def _convolution(s: Any, w: Tensor, b: Tensor) -> None:
    s.inner = nn.Conv1d(1, w.shape[0], w.shape[1])
    s.inner.weight.copy_(w[:, None])
    s.inner.bias.copy_(b)


class Multiply(torch.autograd.Function):
    """A product whose gradient is written by hand."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return x @ w.t() + b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        del output
        ctx.save_for_backward(inputs[0], inputs[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x, w = ctx.saved_tensors
        return grads[0] @ w, grads[0].t() @ x, grads[0].sum(0)


def _valued(s: Any, x: Tensor) -> Tensor:
    out = F.linear(x, s.w, s.b)
    return out if float(out.detach().abs().max()) >= 0 else -out


def _ones(x: Tensor) -> Tensor:
    return x.new_ones(len(x), 1)


LAYERS: dict[str, Spelling] = {
    "functional": Spelling(plain, lambda s, x: F.linear(x, s.w, s.b)),
    "wrapped": Spelling(_module, lambda s, x: s.inner(x)),
    "matmul": Spelling(plain, lambda s, x: x @ s.w.T + s.b),
    "bias first": Spelling(plain, lambda s, x: s.b + x.matmul(s.w.mT)),
    "columns": Spelling(plain, lambda s, x: (s.w @ x.T).T + s.b),
    "stored transposed": Spelling(held(lambda w: w.T), lambda s, x: x @ s.w + s.b),
    "addmm": Spelling(held(lambda w: w.T), lambda s, x: torch.addmm(s.b, x, s.w)),
    "einsum": Spelling(plain, lambda s, x: torch.einsum("ni,oi->no", x, s.w) + s.b),
    "tensordot": Spelling(plain, lambda s, x: torch.tensordot(x, s.w, dims=([1], [1])) + s.b),
    "inner": Spelling(plain, lambda s, x: torch.inner(x, s.w) + s.b),
    "bmm": Spelling(plain, lambda s, x: torch.bmm(s.w.expand(len(x), *s.w.shape), x[:, :, None])[:, :, 0] + s.b),
    "baddbmm": Spelling(
        plain,
        lambda s, x: torch.baddbmm(s.b.expand(len(x), 1, -1), x[:, None], s.w.T.expand(len(x), *s.w.T.shape))[:, 0],
    ),
    "product and sum": Spelling(plain, lambda s, x: (x[:, None, :] * s.w).sum(-1) + s.b),
    "row by row": Spelling(plain, lambda s, x: torch.stack([torch.mv(s.w, row) + s.b for row in x])),
    "vmap": Spelling(plain, lambda s, x: torch.vmap(lambda row: s.w @ row + s.b)(x)),
    "convolution of one pixel": Spelling(
        plain, lambda s, x: F.conv2d(x[:, :, None, None], s.w[:, :, None, None], s.b).flatten(1)
    ),
    "convolution over all": Spelling(_convolution, lambda s, x: s.inner(x[:, None]).flatten(1)),
    "weight of three axes": Spelling(
        held(lambda w: w.unflatten(1, (2, -1))), lambda s, x: F.linear(x, s.w.flatten(1), s.b)
    ),
    "in place": Spelling(plain, lambda s, x: F.linear(x, s.w).add_(s.b)),
    "minus bias": Spelling(plain, lambda s, x: x @ s.w.T - (-s.b)),
    "chunks of rows": Spelling(
        plain, lambda s, x: torch.cat([F.linear(x, *part) for part in zip(s.w.chunk(3), s.b.chunk(3), strict=True)], 1)
    ),
    "a module a chunk": Spelling(_blocks, lambda s, x: torch.cat([part(x) for part in s.parts], 1)),
    "input in halves": Spelling(
        plain,
        lambda s, x: sum(F.linear(*p) for p in zip(x.chunk(2, 1), s.w.chunk(2, 1), strict=True)) + s.b,
    ),
    "bias as a column": Spelling(_column, lambda s, x: torch.cat([x, _ones(x)], 1) @ s.w.T),
    "scaled weight": Spelling(held(lambda w: 2 * w), lambda s, x: F.linear(x, 0.5 * s.w, s.b)),
    "scaled input": Spelling(held(lambda w: 2 * w), lambda s, x: F.linear(0.5 * x, s.w, s.b)),
    "negative input": Spelling(held(lambda w: -w), lambda s, x: F.linear(-x, s.w, s.b)),
    "inverted input": Spelling(
        lambda s, w, b: plain(s, -w, b + w.sum(1)),
        lambda s, x: F.linear(1 - x, s.w, s.b),
    ),
    "fixed rotation": Spelling(_rotated, lambda s, x: F.linear(x @ s.q, s.w, s.b), own=True),
    "standardised by pixel": Spelling(_standardised, lambda s, x: F.linear((x - s.mu) / s.sd, s.w, s.b), own=True),
    "units permuted": Spelling(_permuted(0), lambda s, x: F.linear(x, s.w, s.b)[:, s.back]),
    "inputs permuted": Spelling(_permuted(1), lambda s, x: F.linear(x[:, s.order], s.w, s.b)),
    "weight_norm": Spelling(_weight_norm, lambda s, x: s.inner(x), own=True),
    "weight norm by hand": Spelling(
        _by_hand, lambda s, x: F.linear(x, s.g * s.v / s.v.norm(dim=1, keepdim=True), s.b), own=True
    ),
    "low rank beside": Spelling(_adapted(8), lambda s, x: F.linear(x, s.base, s.b) + x @ s.down.T @ s.up.T, own=True),
    "low rank merged": Spelling(_adapted(8), lambda s, x: F.linear(x, s.base + s.up @ s.down, s.b), own=True),
    "frozen skip": Spelling(_residual, lambda s, x: F.linear(x, s.w, s.b) + x @ s.skip.T),
    "checkpointed": Spelling(plain, lambda s, x: checkpoint(lambda z: F.linear(z, s.w, s.b), x, use_reentrant=False)),
    "gradient by hand": Spelling(plain, lambda s, x: Multiply.apply(x, s.w, s.b)),
    "if on a value": Spelling(plain, _valued),
    "in float64": Spelling(plain, lambda s, x: F.linear(x.double(), s.w.double(), s.b.double()).to(x)),
    "zero times more": Spelling(plain, lambda s, x: F.linear(x, s.w, s.b) + 0 * s.w.sum()),
    "features and squares": Spelling(_squares, lambda s, x: F.linear(torch.cat([x, x**2], 1), s.w, s.b), own=True),
}
"""Of a layer that multiplies rows [n, inputs] by a weight and adds a bias."""


def _sharpened(s: Any, w: Tensor, b: Tensor) -> None:
    plain(s, 2 * w, 2 * b)


HEADS: dict[str, Spelling] = {
    "functional": LAYERS["functional"],
    "matmul": LAYERS["matmul"],
    "stored transposed": LAYERS["stored transposed"],
    "bias as a column": LAYERS["bias as a column"],
    "weight_norm": LAYERS["weight_norm"],
    "scaled weight": LAYERS["scaled weight"],
    "temperature": Spelling(_sharpened, lambda s, x: F.linear(x, s.w, s.b) / 2),
    "log_softmax": Spelling(plain, lambda s, x: F.linear(x, s.w, s.b).log_softmax(1)),
    "less the mean": Spelling(plain, lambda s, x: (y := F.linear(x, s.w, s.b)) - y.mean(1, keepdim=True)),
    "classes permuted": LAYERS["units permuted"],
    "a module a class": Spelling(_blocks, lambda s, x: torch.cat([part(x) for part in s.parts], 1)),
    "checkpointed": LAYERS["checkpointed"],
}
"""Of the layer that gives the logits."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "functional": F.relu,
    "clamp": lambda x: x.clamp(min=0),
    "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "masked": lambda x: x * (x > 0),
    "where": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "half of both": lambda x: (x + x.abs()) / 2,
    "threshold": lambda x: F.threshold(x, 0.0, 0.0),
}
"""Of a rectified linear unit."""

FLATTENINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "flatten": lambda x: x.flatten(1),
    "view": lambda x: x.view(len(x), -1),
    "reshape": lambda x: x.reshape(x.size(0), -1),
    "by channel": lambda x: torch.cat([part.flatten(1) for part in x.unbind(1)], 1),
    "einops": lambda x: x.unfold(1, x.shape[1], 1).squeeze(1).movedim(-1, 1).reshape(len(x), -1),
}
"""Of pictures [n, channels, height, width] to rows; the order of the numbers is the same."""

Lookup = Callable[[Tensor, Tensor], Tensor]
TABLES: dict[str, Lookup] = {
    "functional": lambda t, ids: F.embedding(ids, t),
    "index": lambda t, ids: t[ids],
    "index_select": lambda t, ids: torch.index_select(t, 0, ids.flatten()).unflatten(0, ids.shape),
    "gather": lambda t, ids: torch.gather(t, 0, ids.reshape(-1, 1).expand(-1, t.shape[1])).unflatten(0, ids.shape),
    "one-hot": lambda t, ids: F.one_hot(ids, t.shape[0]).to(t) @ t,
    "stacked": lambda t, ids: torch.stack([t[row] for row in ids]),
}
"""Of a table [vocabulary, width] and texts [n, length]."""


class Table(nn.Module):
    """Words looked up in a table of one's own, and their mean before a head."""

    def __init__(self, table: Tensor, head: nn.Module, lookup: Lookup | None) -> None:
        super().__init__()
        self.words: nn.Module = nn.Embedding.from_pretrained(table.clone(), freeze=False)
        if lookup is not None:
            self.words, self.table = nn.Identity(), nn.Parameter(table.clone())
        self.lookup, self.head = lookup, head

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.words(ids) if self.lookup is None else self.lookup(self.table, ids)
        out: Tensor = self.head(rows.mean(1))
        return out


def _tokens(x: Tensor, side: int) -> Tensor:
    return F.unfold(x, side, stride=side).transpose(1, 2)


def _as_views(x: Tensor, side: int) -> Tensor:
    n, c, h, w = x.shape
    cut = x.view(n, c, h // side, side, w // side, side)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(n, -1, c * side * side)


Cut = Callable[[Tensor, Tensor, Tensor, int], Tensor]
PATCHES: dict[str, Cut] = {
    "functional": lambda x, w, b, p: F.conv2d(x, w.unflatten(1, (-1, p, p)), b, stride=p).flatten(2).transpose(1, 2),
    "unfold": lambda x, w, b, p: F.linear(_tokens(x, p), w, b),
    "views": lambda x, w, b, p: _as_views(x, p) @ w.T + b,
    "einsum": lambda x, w, b, p: torch.einsum("ntk,ok->nto", _as_views(x, p), w) + b,
    "folded in the batch": lambda x, w, b, p: F.linear(_tokens(x, p).flatten(0, 1), w, b).unflatten(0, (len(x), -1)),
}
"""Of patches of `p` pixels a side: pictures, weight [width, channels·p·p], bias and side to [n, patches, width]."""


class Patched(nn.Module):
    """A layer of patches with learned places, a hidden layer for each patch, and a head on their mean."""

    def __init__(self, width: int, side: int, shape: tuple[int, ...], classes: int, spelling: str | Cut | None) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        fan, count = shape[0] * side * side, (shape[1] // side) * (shape[2] // side)
        weight, bias = torch.randn(width, fan, generator=draw) / fan**0.5, 0.1 * torch.randn(width, generator=draw)
        self.side, self.how = side, PATCHES[spelling] if isinstance(spelling, str) else spelling
        if self.how is None:
            self.cut = nn.Conv2d(shape[0], width, side, stride=side)
            with torch.no_grad():
                self.cut.weight.copy_(weight.unflatten(1, (-1, side, side)))
                self.cut.bias.copy_(bias)  # type: ignore[union-attr]
        else:
            self.w, self.b = nn.Parameter(weight), nn.Parameter(bias)
        self.places = nn.Parameter(0.1 * torch.randn(1, count, width, generator=draw))
        self.hidden = linear(torch.randn(width, width, generator=draw) / width**0.5, torch.zeros(width))
        self.head = linear(torch.randn(classes, width, generator=draw) / width**0.5, torch.zeros(classes))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.cut(x).flatten(2).transpose(1, 2) if self.how is None else self.how(x, self.w, self.b, self.side)
        out: Tensor = self.head((self.hidden(rows + self.places).tanh()).mean(1))
        return out
