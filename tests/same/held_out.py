"""Spellings that were written down, and committed, before any of them was run."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from same.spellings import Init, Spelling, held, linear, plain


def _buffers(init: Init = plain, **made: Any) -> Init:
    """Beside what `init` lays down, buffers that are made of the weight."""

    def both(s: Any, w: Tensor, b: Tensor) -> None:
        init(s, w, b)
        for name, make in made.items():
            s.register_buffer(name, make(w))

    return both


def _twice(s: Any, w: Tensor, b: Tensor) -> None:
    s.one, s.two = linear(w[::2], b[::2]), linear(w[1::2], b[1::2])


def _interleaved(s: Any, x: Tensor) -> Tensor:
    return torch.stack([s.one(x), s.two(x)], 2).flatten(1)


def _dictionary(s: Any, w: Tensor, b: Tensor) -> None:
    s.held = nn.ParameterDict({"kernel": nn.Parameter(w.T.contiguous()), "offset": nn.Parameter(b.clone())})


def _slices(s: Any, w: Tensor, b: Tensor) -> None:
    s.parts = nn.ParameterList([nn.Parameter(part.clone()) for part in w.split(16, 1)])
    s.b = nn.Parameter(b.clone())


def _volume(s: Any, w: Tensor, b: Tensor) -> None:
    s.inner = nn.Conv3d(3, len(w), (1, 4, 4))
    s.inner.weight.copy_(w.view(-1, 3, 1, 4, 4))
    s.inner.bias.copy_(b)


def _strided(s: Any, w: Tensor, b: Tensor) -> None:
    s.inner = nn.Conv1d(3, len(w), 16, stride=16)
    s.inner.weight.copy_(w.view(-1, 3, 16))
    s.inner.bias.copy_(b)


def _grouped(s: Any, w: Tensor, b: Tensor) -> None:
    """Two halves of the input, each with all units, as groups of a convolution; their answers are added."""
    s.inner = nn.Conv1d(w.shape[1], 2 * len(w), 1, groups=2, bias=False)
    s.inner.weight.copy_(torch.cat(w.chunk(2, 1))[:, :, None])
    s.b = nn.Parameter(b.clone())


def _over(s: Any, w: Tensor, b: Tensor) -> None:
    s.g, s.v, s.b = nn.Parameter(w.norm()), nn.Parameter(w / w.norm()), nn.Parameter(b.clone())


def _logarithm(s: Any, w: Tensor, b: Tensor) -> None:
    s.size, s.b = nn.Parameter(w.abs().clamp_min(1e-9).log()), nn.Parameter(b.clone())
    s.register_buffer("sign", w.sign())


def _affine(s: Any, w: Tensor, b: Tensor) -> None:
    s.norm = nn.BatchNorm1d(w.shape[1], affine=False).eval()
    s.norm.running_mean.fill_(0.25)
    s.norm.running_var.fill_(0.5)
    size = (0.5 + s.norm.eps) ** 0.5
    plain(s, w * size, b + 0.25 * w.sum(1))


def _after(s: Any, w: Tensor, b: Tensor) -> None:
    s.norm = nn.BatchNorm1d(len(w), affine=False).eval()
    s.norm.running_mean.fill_(0.1)
    s.norm.running_var.fill_(2.0)
    size = (2.0 + s.norm.eps) ** 0.5
    plain(s, w * size, b * size + 0.1)


def _square(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("q", torch.linalg.qr(torch.randn(len(w), len(w), generator=torch.Generator().manual_seed(2)))[0])
    plain(s, s.q.T @ w, s.q.T @ b)


def _hadamard(s: Any, w: Tensor, b: Tensor) -> None:
    drawn = torch.randint(2, (w.shape[1],), generator=torch.Generator().manual_seed(2))
    s.register_buffer("signs", 2.0 * drawn - 1)
    plain(s, w * s.signs, b)


def _differences(s: Any, w: Tensor, b: Tensor) -> None:
    """Rows as differences from the row before."""
    plain(s, torch.cat([w[:1], w[1:] - w[:-1]]), b)


def _shared(s: Any, w: Tensor, b: Tensor) -> None:
    s.all = nn.Parameter(torch.cat([w, b[:, None], torch.zeros(len(w), 3)], 1))


def _adapter(s: Any, w: Tensor, b: Tensor) -> None:
    plain(s, w, b)
    s.extra = nn.Linear(w.shape[1], len(w), bias=False)
    s.extra.weight.zero_()
    s.extra.weight.requires_grad_(False)


def _two_biases(s: Any, w: Tensor, b: Tensor) -> None:
    s.w, s.b, s.c = nn.Parameter(w.clone()), nn.Parameter(0.5 * b), nn.Parameter(0.5 * b)


def _bag(s: Any, w: Tensor, b: Tensor) -> None:
    s.table, s.b = nn.Parameter(w.T.contiguous()), nn.Parameter(b.clone())


def _weighed(s: Any, x: Tensor) -> Tensor:
    every = torch.arange(x.shape[1]).expand(len(x), -1)
    return F.embedding_bag(every, s.table, mode="sum", per_sample_weights=x) + s.b


def _written(s: Any, x: Tensor) -> Tensor:
    out = x.new_zeros(len(x), len(s.w))
    for at in range(0, len(s.w), 24):
        out[:, at : at + 24] = F.linear(x, s.w[at : at + 24], s.b[at : at + 24])
    return out


def _reduced(s: Any, x: Tensor) -> Tensor:
    out = s.b.expand(len(x), -1)
    for part, own in zip(x.split(16, 1), s.parts, strict=True):
        out = torch.addmm(out, part, own.T)
    return out


def _masked(s: Any, x: Tensor) -> Tensor:
    return F.linear(x, s.w.masked_fill(s.none, 0.0), s.b)


HELD_OUT: dict[str, Spelling] = {
    "even and odd units": Spelling(_twice, _interleaved),
    "a dictionary of parameters": Spelling(_dictionary, lambda s, x: x @ s.held["kernel"] + s.held["offset"]),
    "a parameter a slice": Spelling(_slices, lambda s, x: F.linear(x, torch.cat(list(s.parts), 1), s.b)),
    "slices added up": Spelling(_slices, _reduced),
    "convolution of a volume": Spelling(_volume, lambda s, x: s.inner(x.view(-1, 3, 1, 4, 4)).flatten(1)),
    "convolution with a stride": Spelling(_strided, lambda s, x: s.inner(x.view(-1, 3, 16)).flatten(1)),
    "convolution in groups": Spelling(_grouped, lambda s, x: s.inner(x[:, :, None]).view(len(x), 2, -1).sum(1) + s.b),
    "one length for all": Spelling(_over, lambda s, x: F.linear(x, s.g * s.v / s.v.norm(), s.b), own=True),
    "logarithms and signs": Spelling(_logarithm, lambda s, x: F.linear(x, s.sign * s.size.exp(), s.b), own=True),
    "a norm with fixed statistics before": Spelling(_affine, lambda s, x: F.linear(s.norm(x), s.w, s.b)),
    "a norm with fixed statistics behind": Spelling(_after, lambda s, x: s.norm(F.linear(x, s.w, s.b))),
    "a fixed rotation behind": Spelling(_square, lambda s, x: F.linear(x, s.w, s.b) @ s.q.T, own=True),
    "signs of inputs": Spelling(_hadamard, lambda s, x: F.linear(x * s.signs, s.w, s.b)),
    "rows as differences": Spelling(_differences, lambda s, x: F.linear(x, s.w.cumsum(0), s.b), own=True),
    "answers as differences": Spelling(_differences, lambda s, x: F.linear(x, s.w).cumsum(1) + s.b, own=True),
    "columns that nothing reads": Spelling(_shared, lambda s, x: F.linear(x, s.all[:, :-4], s.all[:, -4])),
    "a frozen adapter beside": Spelling(_adapter, lambda s, x: F.linear(x, s.w, s.b) + s.extra(x)),
    "two biases": Spelling(_two_biases, lambda s, x: F.linear(x, s.w, s.b) + s.c, own=True),
    "a bag with weights": Spelling(_bag, _weighed),
    "written into zeros": Spelling(plain, _written),
    "a mask that hides nothing": Spelling(_buffers(none=lambda w: torch.zeros_like(w).bool()), _masked),
    "kron of one": Spelling(plain, lambda s, x: F.linear(x, torch.kron(s.w, s.w.new_ones(1, 1)), s.b)),
    "outer of two sums": Spelling(plain, lambda s, x: torch.einsum("nki,oki->no", x[:, None], s.w[:, None]) + s.b),
    "chain of einsums": Spelling(
        plain, lambda s, x: torch.einsum("no,o->no", torch.einsum("ni,oi->no", x, s.w), torch.ones(len(s.w))) + s.b
    ),
    "matrix times vectors": Spelling(plain, lambda s, x: (s.w @ x[..., None])[..., 0] + s.b),
    "vector times matrix": Spelling(plain, lambda s, x: (x[:, None] @ s.w.T)[:, 0] + s.b),
    "dot of every pair": Spelling(plain, lambda s, x: torch.linalg.vecdot(x[:, None], s.w[None]) + s.b),
    "rolled both": Spelling(held(lambda w: w.roll(7, 1)), lambda s, x: F.linear(x.roll(7, 1), s.w, s.b)),
    "transposed twice": Spelling(plain, lambda s, x: F.linear(x.T.contiguous().T, s.w.T.clone().T, s.b)),
    "a square picture": Spelling(
        held(lambda w: w.view(-1, 3, 4, 4).transpose(2, 3).reshape(len(w), -1)),
        lambda s, x: F.linear(x.view(-1, 3, 4, 4).transpose(2, 3).flatten(1), s.w, s.b),
    ),
    "channels last": Spelling(
        held(lambda w: w.view(-1, 3, 4, 4).permute(0, 2, 3, 1).reshape(len(w), -1)),
        lambda s, x: F.linear(x.view(-1, 3, 4, 4).permute(0, 2, 3, 1).flatten(1), s.w, s.b),
    ),
    "doubled input": Spelling(
        plain, lambda s, x: F.linear(torch.cat([x, x], 1), torch.cat([s.w, torch.zeros_like(s.w)], 1), s.b)
    ),
    "halves swapped": Spelling(
        held(lambda w: torch.cat(w.chunk(2, 1)[::-1], 1)),
        lambda s, x: F.linear(torch.cat(x.chunk(2, 1)[::-1], 1), s.w, s.b),
    ),
    "mean and times": Spelling(plain, lambda s, x: (x[:, None] * s.w).mean(2) * x.shape[1] + s.b),
    "plus and minus": Spelling(plain, lambda s, x: F.linear(x + 1, s.w, s.b) - s.w.sum(1)),
    "minus the negative": Spelling(held(lambda w: -w), lambda s, x: -F.linear(x, s.w, -s.b)),
    "divided by a number": Spelling(held(lambda w: 255 * w), lambda s, x: F.linear(x / 255, s.w, s.b)),
    "to and from pixels": Spelling(
        held(lambda w: w / 255), lambda s, x: F.linear((255 * x - 128), s.w, s.b + 128 * s.w.sum(1))
    ),
    "under no autocast": Spelling(
        plain, lambda s, x: torch.autocast("cpu", enabled=False)(lambda v: F.linear(v, s.w, s.b))(x)
    ),
    "one example at a time": Spelling(plain, lambda s, x: torch.cat([F.linear(row[None], s.w, s.b) for row in x])),
    "pairs of examples": Spelling(plain, lambda s, x: torch.cat([F.linear(part, s.w, s.b) for part in x.split(2)])),
    "map over rows of the weight": Spelling(
        plain, lambda s, x: torch.vmap(lambda row, one: x @ row + one, out_dims=1)(s.w, s.b)
    ),
    "scatter of columns": Spelling(
        plain, lambda s, x: x.new_zeros(len(x), len(s.w)).index_add(1, torch.arange(len(s.w)), F.linear(x, s.w)) + s.b
    ),
    "a picked copy": Spelling(plain, lambda s, x: F.linear(x, torch.stack([s.w, 2 * s.w])[0], s.b)),
}
"""As `spellings.LAYERS`."""
