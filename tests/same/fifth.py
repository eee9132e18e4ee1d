"""A fifth list of spellings: words of the hunt that nobody looks at, written down and committed before any of them was
read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from same.spellings import Lookup, Spelling, linear, plain


def _random(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _walsh(x: Tensor) -> Tensor:
    """The fast Hadamard transform of rows that are padded to a power of two."""
    size, step = 1 << (x.shape[-1] - 1).bit_length(), 1
    y = F.pad(x, (0, size - x.shape[-1]))
    while step < size:
        one, other = y.unflatten(-1, (-1, 2, step)).unbind(-2)
        y, step = torch.stack([one + other, one - other], -2).flatten(-3), 2 * step
    return y / size**0.5


def _incoherent(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("signs", _random(w.shape[1]).sign().to(w))
    plain(s, _walsh(w * s.signs), b)


def _batch_as_groups(s: Any, x: Tensor) -> Tensor:
    n = len(x)
    out = F.conv1d(x.reshape(1, -1, 1), s.w.repeat(n, 1).unsqueeze(-1), s.b.repeat(n), groups=n)
    return out.view(n, -1)


def _depthwise(s: Any, w: Tensor, b: Tensor) -> None:
    out, into = w.shape
    s.each, s.bias = nn.Conv1d(into, into * out, 1, groups=into, bias=False), nn.Parameter(b.clone())
    s.each.weight.copy_(w.t().reshape(-1, 1, 1))


def _principal(s: Any, w: Tensor, b: Tensor) -> None:
    u, size, v = torch.linalg.svd(w, full_matrices=False)
    s.up, s.down = nn.Parameter(u * size.sqrt()), nn.Parameter(size.sqrt()[:, None] * v)
    s.bias = nn.Parameter(b.clone())


class _ToShards(torch.autograd.Function):
    """The same input for every rank; its gradients would be reduced."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        del ctx
        return grads[0]


class _FromShards(torch.autograd.Function):
    """Gathers what the ranks have; each is given its part of the gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*parts: Tensor) -> Tensor:
        return torch.cat(parts, -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        del output
        ctx.sizes = [part.shape[-1] for part in inputs]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.contiguous() for part in grads[0].split(ctx.sizes, -1))


class _ColumnParallel(nn.Module):
    """All ranks of a parallel layer in one process."""

    def __init__(self, w: Tensor, b: Tensor, world: int) -> None:
        super().__init__()
        self.ranks = nn.ModuleList(linear(*p) for p in zip(w.tensor_split(world), b.tensor_split(world), strict=True))

    def forward(self, x: Tensor) -> Tensor:
        x = _ToShards.apply(x)
        out: Tensor = _FromShards.apply(*(rank(x) for rank in self.ranks))
        return out


def _parallel(s: Any, w: Tensor, b: Tensor) -> None:
    s.layer = _ColumnParallel(w, b, world=2)


def _views(s: Any, x: Tensor) -> Tensor:
    one, other = F.linear(torch.cat([x, x]), s.w, s.b).chunk(2)
    return (one + other) / 2


def _gated(s: Any, w: Tensor, b: Tensor) -> None:
    s.fused = linear(torch.cat([w, torch.zeros_like(w)]), torch.cat([b, torch.full_like(b, 30.0)]))


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = len(cos)
    a, b, rest = x[:, :half], x[:, half : 2 * half], x[:, 2 * half :]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], dim=-1)


def _rotary(s: Any, w: Tensor, b: Tensor) -> None:
    half = w.shape[1] // 2
    angles = 7 * 10000.0 ** (-torch.arange(half) / half)
    s.register_buffer("cos", angles.cos().to(w))
    s.register_buffer("sin", angles.sin().to(w))
    plain(s, _turned(w, s.cos, s.sin), b)


def _spectrum(s: Any, w: Tensor, b: Tensor) -> None:
    s.spectrum, s.bias = nn.Parameter(torch.view_as_real(torch.fft.rfft(w)).clone()), nn.Parameter(b.clone())


def _of_spectrum(s: Any, x: Tensor) -> Tensor:
    kernel = torch.fft.irfft(torch.view_as_complex(s.spectrum), n=x.shape[1])
    return F.linear(x, kernel, s.bias)


GROUP = 16


def _each(t: Tensor, columns: int) -> Tensor:
    return t.repeat_interleave(GROUP, dim=1)[:, :columns]


def _codes(s: Any, w: Tensor, b: Tensor) -> None:
    low = torch.stack([part.amin(1) for part in w.split(GROUP, 1)], 1)
    high = torch.stack([part.amax(1) for part in w.split(GROUP, 1)], 1)
    s.register_buffer("scale", ((high - low) / 15).clamp_min(1e-3))
    s.register_buffer("zero", -low / s.scale)
    plain(s, w / _each(s.scale, w.shape[1]) + _each(s.zero, w.shape[1]), b)


def _decoded(s: Any, x: Tensor) -> Tensor:
    scale, zero = (_each(t, x.shape[1]) for t in (s.scale, s.zero))
    return F.linear(x, (s.w - zero) * scale, s.b)


def _dynamic(s: Any, x: Tensor) -> Tensor:
    most = x.detach().abs().amax(dim=-1, keepdim=True).clamp_min(1e-12)
    return F.linear(x / most, s.w) * most + s.b


def _sorted(s: Any, x: Tensor) -> Tensor:
    order = x.detach().sum(dim=-1).argsort(descending=True)
    return F.linear(x[order], s.w, s.b)[order.argsort()]


def _edges(s: Any, w: Tensor, b: Tensor) -> None:
    order = torch.randperm(w.numel(), generator=torch.Generator().manual_seed(5))
    s.register_buffer("target", order // w.shape[1])
    s.register_buffer("source", order % w.shape[1])
    s.strength, s.bias = nn.Parameter(w.flatten()[order]), nn.Parameter(b.clone())


def _messages(s: Any, x: Tensor) -> Tensor:
    sent = x[:, s.source] * s.strength
    return x.new_zeros(len(x), len(s.bias)).index_add(1, s.target, sent) + s.bias


def _lines(s: Any, w: Tensor, b: Tensor) -> None:
    s.lines = nn.Parameter(torch.stack([(b / w.shape[1])[:, None].expand_as(w), w], dim=-1))


def _on_edges(s: Any, x: Tensor) -> Tensor:
    basis = torch.stack([x**0, x], dim=-1)
    return torch.einsum("nik,oik->no", basis, s.lines)


def _tangent(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("w0", 0.9 * w)
    s.register_buffer("b0", 0.9 * b)
    s.dw, s.db = nn.Parameter(0.1 * w), nn.Parameter(0.1 * b)


def _expanded(s: Any, x: Tensor) -> Tensor:
    """The network's first Taylor polynomial in its weights, from two passes backwards."""
    at, pull = torch.func.vjp(lambda w, b: F.linear(x, w, b), s.w0, s.b0)
    _, push = torch.func.vjp(pull, torch.zeros_like(at))
    (along,) = push((s.dw, s.db))
    return at + along


def _whitened(s: Any, w: Tensor, b: Tensor) -> None:
    size = w.shape[1]
    drawn = _random(size, size).to(w) / size**0.5
    s.register_buffer("lower", torch.linalg.cholesky(drawn @ drawn.T + torch.eye(size).to(w)))
    plain(s, w @ s.lower, b)


def _white(s: Any, x: Tensor) -> Tensor:
    return F.linear(torch.linalg.solve_triangular(s.lower, x.T, upper=False).T, s.w, s.b)


def _split_precision(s: Any, x: Tensor) -> Tensor:
    high = x.to(torch.bfloat16).to(x.dtype)
    return F.linear(high, s.w) + F.linear(x - high, s.w) + s.b


def _as_complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(F.pad(x, (0, x.shape[1] % 2)).unflatten(-1, (-1, 2)).contiguous())


def _observed(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc = linear(w, b)
    s.register_buffer("most", torch.zeros(()).to(w))


def _observer(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        s.most.copy_(torch.maximum(s.most, x.detach().abs().max()))
    out: Tensor = s.fc(x)
    return out


LAYERS: dict[str, Spelling] = {
    "random Hadamard": Spelling(_incoherent, lambda s, x: F.linear(_walsh(x * s.signs), s.w, s.b), own=True),
    "the batch as groups": Spelling(plain, _batch_as_groups),
    "depthwise with a multiplier": Spelling(
        _depthwise, lambda s, x: s.each(x.unsqueeze(-1)).view(*x.shape, -1).sum(dim=1) + s.bias
    ),
    "principal factors": Spelling(_principal, lambda s, x: F.linear(F.linear(x, s.down), s.up, s.bias), own=True),
    "column parallel": Spelling(_parallel, lambda s, x: s.layer(x)),
    "two views in one batch": Spelling(plain, _views),
    "a gate held open": Spelling(_gated, lambda s, x: F.glu(s.fused(x), dim=-1), own=True),
    "rotary angles": Spelling(_rotary, lambda s, x: F.linear(_turned(x, s.cos, s.sin), s.w, s.b), own=True),
    "weights in the frequency domain": Spelling(_spectrum, _of_spectrum, own=True),
    "codes, scales and zero points": Spelling(_codes, _decoded, own=True),
    "a dynamic scale a row": Spelling(plain, _dynamic),
    "sorted and unsorted": Spelling(plain, _sorted),
    "rows padded to eight": Spelling(
        plain, lambda s, x: F.linear(F.pad(x, (0, 0, 0, -len(x) % 8)), s.w, s.b)[: len(x)]
    ),
    "messages along edges": Spelling(_edges, _messages),
    "a line on every edge": Spelling(_lines, _on_edges, own=True),
    "a tangent of its weights": Spelling(_tangent, _expanded),
    "whitened by a Cholesky factor": Spelling(_whitened, _white, own=True),
    "high and low parts": Spelling(plain, _split_precision),
    "real part of a complex product": Spelling(
        plain, lambda s, x: (_as_complex(x) @ _as_complex(s.w).mH).real.add(s.b)
    ),
    "an observer of its range": Spelling(_observed, _observer),
}
"""As `spellings.LAYERS`."""


def _cosines(s: Any, x: Tensor) -> Tensor:
    lengths = x.norm(dim=1, keepdim=True) * s.w.norm(dim=1)
    return lengths * F.linear(F.normalize(x), F.normalize(s.w)) + s.b


def _against_first(s: Any, x: Tensor) -> Tensor:
    logits = F.linear(x, s.w, s.b)
    return logits - logits[:, :1]


def _reference(s: Any, w: Tensor, b: Tensor) -> None:
    s.odds = linear(w[:-1] - w[-1], b[:-1] - b[-1])


def _stable(s: Any, x: Tensor) -> Tensor:
    logits = F.linear(x, s.w, s.b)
    return logits - logits.detach().amax(dim=-1, keepdim=True)


def _candidates(s: Any, w: Tensor, b: Tensor) -> None:
    s.items = nn.Embedding.from_pretrained(w.clone(), freeze=False)
    s.popularity = nn.Embedding.from_pretrained(b[:, None].clone(), freeze=False)


def _scores(s: Any, x: Tensor) -> Tensor:
    every = torch.arange(s.items.num_embeddings, device=x.device)
    return (x.unsqueeze(1) * s.items(every)).sum(dim=-1) + s.popularity(every).squeeze(-1)


def _tied(s: Any, w: Tensor, b: Tensor) -> None:
    s.table, s.decoder = nn.Embedding(*w.shape), linear(w, b)
    s.table.weight = s.decoder.weight


def _committee(s: Any, w: Tensor, b: Tensor) -> None:
    apart = _random(*w.shape).to(w) / 10
    s.heads = nn.ModuleList([linear(w + apart, b), linear(w - apart, b)])


HEADS: dict[str, Spelling] = {
    "cosines times lengths": Spelling(plain, _cosines),
    "against the first class": Spelling(plain, _against_first),
    "a reference class": Spelling(_reference, lambda s, x: F.pad(s.odds(x), (0, 1)), own=True),
    "less the largest": Spelling(plain, _stable),
    "scores of candidates": Spelling(_candidates, _scores),
    "tied to an embedding": Spelling(_tied, lambda s, x: s.decoder(x)),
    "a committee of two": Spelling(
        _committee, lambda s, x: torch.stack([head(x) for head in s.heads]).mean(dim=0), own=True
    ),
    "a map of class activations": Spelling(
        plain, lambda s, x: F.conv1d(x[..., None].expand(-1, -1, 4), s.w[..., None], s.b).mean(dim=-1)
    ),
}
"""As `spellings.HEADS`."""


class _Rectify(torch.autograd.Function):
    """Keeps signs alone for its gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        above = x > 0
        return x.masked_fill(~above, 0.0), above

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        del inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (above,) = ctx.saved_tensors
        return grads[0] * above


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "leaky by nothing": lambda x: F.leaky_relu(x, negative_slope=0.0),
    "hardtanh without a top": lambda x: F.hardtanh(x, 0.0, torch.finfo(x.dtype).max),
    "masked fill": lambda x: x.masked_fill(x < 0, 0.0),
    "a function that keeps signs": lambda x: _Rectify.apply(x)[0],
    "less the negative part": lambda x: x - x.clamp_max(0),
    "a step as a gate": lambda x: x * torch.heaviside(x.detach(), x.new_zeros(())),
}
"""As `spellings.ACTIVATIONS`."""


def _by_coordinates(x: Tensor) -> Tensor:
    shape = x.shape[1:]
    c, h, w = torch.unravel_index(torch.arange(shape.numel(), device=x.device), shape)
    return x[:, c, h, w]


FLATTENINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "one patch of everything": lambda x: F.unfold(x, x.shape[2:]).squeeze(-1),
    "by coordinates": _by_coordinates,
    "ravel, mapped": torch.vmap(torch.ravel),
    "channels-last memory": lambda x: x.to(memory_format=torch.channels_last).reshape(len(x), -1),
}
"""As `spellings.FLATTENINGS`."""


def _flat_positions(t: Tensor, ids: Tensor) -> Tensor:
    width = t.shape[1]
    return torch.take(t, ids.unsqueeze(-1) * width + torch.arange(width, device=t.device))


def _vocabulary_parallel(t: Tensor, ids: Tensor) -> Tensor:
    """Every shard answers with zeros where a word is another's."""
    start, out = 0, t.new_zeros(*ids.shape, t.shape[1])
    for shard in t.tensor_split(2):
        foreign = (ids < start) | (ids >= start + len(shard))
        local = (ids - start).masked_fill(foreign, 0)
        out = out + F.embedding(local, shard).masked_fill(foreign.unsqueeze(-1), 0.0)
        start += len(shard)
    return out


def _once(t: Tensor, ids: Tensor) -> Tensor:
    words, where = torch.unique(ids, return_inverse=True)
    return F.embedding(where, F.embedding(words, t))


TABLES: dict[str, Lookup] = {
    "bags of one word": lambda t, ids: F.embedding_bag(ids.reshape(-1, 1), t, mode="sum").view(*ids.shape, -1),
    "flat positions": _flat_positions,
    "vocabulary parallel": _vocabulary_parallel,
    "each word once": _once,
    "taken along the words": lambda t, ids: torch.take_along_dim(t.expand(len(ids), -1, -1), ids.unsqueeze(-1), dim=1),
}
"""As `spellings.TABLES`."""


def _windows(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    cut = x.unfold(2, p, p).unfold(3, p, p)
    return F.linear(cut.permute(0, 2, 3, 1, 4, 5).flatten(3), w, b).flatten(1, 2)


def _depth(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    return F.conv2d(F.pixel_unshuffle(x, p), w[:, :, None, None], b).flatten(2).mT


def _contracted(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    cut, kernel = x.unflatten(3, (-1, p)).unflatten(2, (-1, p)), w.unflatten(1, (-1, p, p))
    return torch.einsum("nchiwj,dcij->nhwd", cut, kernel).flatten(1, 2) + b


def _cropped(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    rows, columns = range(0, x.shape[2], p), range(0, x.shape[3], p)
    crops = [x[:, :, i : i + p, j : j + p].reshape(len(x), -1) for i in rows for j in columns]
    return torch.stack([F.linear(crop, w, b) for crop in crops], dim=1)


PATCHES: dict[str, Callable[[Tensor, Tensor, Tensor, int], Tensor]] = {
    "windows of both axes": _windows,
    "space to depth and one pixel": _depth,
    "contracted over three axes": _contracted,
    "crops in a loop": _cropped,
}
"""As `spellings.PATCHES`."""
