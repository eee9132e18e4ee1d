"""Spellings that were held out while the first ones were mended, and all of both."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from same import spellings
from same.spellings import Spelling, held, plain


def _reflected(s: Any, w: Tensor, b: Tensor) -> None:
    size = w.shape[1]
    s.register_buffer("h", torch.eye(size) - 2 * torch.ones(size, size) / size)
    plain(s, w @ s.h, b)


def _rows(s: Any, w: Tensor, b: Tensor) -> None:
    s.rows = nn.ParameterList([nn.Parameter(row.clone()) for row in w])
    s.b = nn.Parameter(b.clone())


def _deltas(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("w0", w.clone())
    s.register_buffer("b0", b.clone())
    s.dw, s.db = nn.Parameter(torch.zeros_like(w)), nn.Parameter(torch.zeros_like(b))


def _transposed(s: Any, w: Tensor, b: Tensor) -> None:
    s.inner = nn.ConvTranspose1d(w.shape[1], w.shape[0], 1)
    s.inner.weight.copy_(w.T[:, :, None])
    s.inner.bias.copy_(b)


def _bilinear(s: Any, w: Tensor, b: Tensor) -> None:
    s.inner = nn.Bilinear(w.shape[1], 1, w.shape[0])
    s.inner.weight.copy_(w[:, :, None])
    s.inner.bias.copy_(b)


def _channels(s: Any, w: Tensor, b: Tensor) -> None:
    s.inner = nn.Conv1d(w.shape[1], w.shape[0], 1)
    s.inner.weight.copy_(w[:, :, None])
    s.inner.bias.copy_(b)


def _spectral(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("size", torch.linalg.matrix_norm(w, 2))
    plain(s, w / s.size, b)


def _scaled(s: Any, w: Tensor, b: Tensor) -> None:
    s.scale = nn.Parameter(torch.ones(len(w)))
    plain(s, w, b)


def _two(s: Any, w: Tensor, b: Tensor) -> None:
    s.p, s.q, s.b = nn.Parameter(0.3 * w), nn.Parameter(0.7 * w), nn.Parameter(b.clone())


def _flat(s: Any, w: Tensor, b: Tensor) -> None:
    s.all, s.sizes = nn.Parameter(torch.cat([w.flatten(), b])), tuple(w.shape)


def _cut(s: Any, x: Tensor) -> Tensor:
    out, into = s.sizes
    return F.linear(x, s.all[: out * into].view(out, into), s.all[out * into :])


def _padded(s: Any, w: Tensor, b: Tensor) -> None:
    s.w, s.b = nn.Parameter(F.pad(w, (3, 5))), nn.Parameter(b.clone())


def _summed(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("sums", torch.tril(torch.ones(w.shape[1], w.shape[1])))
    plain(s, w @ torch.linalg.inv(s.sums), b)


def _columns(s: Any, x: Tensor) -> Tensor:
    out = s.b.expand(len(x), -1)
    for j in range(0, x.shape[1], 12):
        out = out + x[:, j : j + 12] @ s.w[:, j : j + 12].T
    return out


def _tempered(s: Any, w: Tensor, b: Tensor) -> None:
    plain(s, w / 4, b)
    s.register_buffer("t", torch.tensor(4.0))


FURTHER: dict[str, Spelling] = {
    "fixed reflection": Spelling(_reflected, lambda s, x: F.linear(F.linear(x, s.h), s.w, s.b), own=True),
    "a parameter a row": Spelling(_rows, lambda s, x: F.linear(x, torch.stack(list(s.rows)), s.b)),
    "a product a row": Spelling(_rows, lambda s, x: torch.stack([(x * row).sum(1) for row in s.rows], 1) + s.b),
    "frozen base and delta": Spelling(_deltas, lambda s, x: F.linear(x, s.w0 + s.dw, s.b0 + s.db)),
    "transposed convolution": Spelling(_transposed, lambda s, x: s.inner(x[:, :, None])[:, :, 0]),
    "bilinear with one": Spelling(_bilinear, lambda s, x: s.inner(x, x.new_ones(len(x), 1))),
    "convolution of channels": Spelling(_channels, lambda s, x: s.inner(x[:, :, None]).flatten(1)),
    "spectral scale": Spelling(_spectral, lambda s, x: F.linear(x, s.w * s.size, s.b)),
    "layer scale": Spelling(_scaled, lambda s, x: s.scale * F.linear(x, s.w, s.b), own=True),
    "sum of two weights": Spelling(_two, lambda s, x: F.linear(x, s.p + s.q, s.b), own=True),
    "one flat parameter": Spelling(_flat, _cut),
    "columns in a loop": Spelling(plain, _columns),
    "padded input": Spelling(_padded, lambda s, x: F.linear(F.pad(x, (3, 5)), s.w, s.b)),
    "cumulative sum": Spelling(_summed, lambda s, x: F.linear(x.cumsum(1), s.w, s.b), own=True),
    "product of three": Spelling(_summed, lambda s, x: torch.linalg.multi_dot([x, s.sums.T, s.w.T]) + s.b, own=True),
    "centred by hand": Spelling(
        lambda s, w, b: plain(s, w, b + 0.5 * w.sum(1)), lambda s, x: F.linear(x - 0.5, s.w, s.b)
    ),
    "flipped input": Spelling(held(lambda w: w.flip(1)), lambda s, x: F.linear(x.flip(1), s.w, s.b)),
    "einsum of three": Spelling(
        plain, lambda s, x: torch.einsum("bi,ji,j->bj", x, s.w, torch.ones(len(s.w)).to(x)) + s.b
    ),
    "blocks that broadcast": Spelling(
        plain, lambda s, x: torch.cat([x[:, None] @ part.T[None] for part in s.w.split(16)], 2).squeeze(1) + s.b
    ),
    "bias in the middle": Spelling(plain, lambda s, x: 2 * (F.linear(x, s.w) / 2 + s.b / 2)),
}
"""As `spellings.LAYERS`."""

FURTHER_HEADS: dict[str, Spelling] = {
    "constant scale": Spelling(_tempered, lambda s, x: s.t * (x @ s.w.T) + s.b),
    "log of softmax": Spelling(plain, lambda s, x: F.linear(x, s.w, s.b).softmax(1).log()),
    "dropout of nothing": Spelling(plain, lambda s, x: F.linear(F.dropout(x, 0.0), s.w, s.b)),
    "einsum": Spelling(plain, lambda s, x: torch.einsum("nk,ck->nc", x, s.w) + s.b),
}
"""As `spellings.HEADS`."""

LAYERS = spellings.LAYERS | FURTHER
HEADS = spellings.HEADS | FURTHER_HEADS
