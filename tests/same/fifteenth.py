"""A fifteenth list of spellings, written blind and committed before any of them was read: filters with feedback,
weights by splines and by effects, tiles and rings of ranks, flows at rest, heads of tests, hazards and chains, and
attention over edges, from latents and into buffers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input, conv2d_weight
from torch.utils.checkpoint import checkpoint

from same import attention
from same.spellings import Cut, Lookup, Spelling, linear, plain


def _random(*shape: int, seed: int = 61) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _order(size: int, seed: int = 61) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed))


def _before(w: Tensor, mapped: Tensor) -> Tensor:
    """The weight that has to follow a linear map, of which `mapped` holds the images of all unit rows."""
    return torch.linalg.solve(mapped.double(), w.double().t()).t().to(w).contiguous()


def _one(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, device=like.device, dtype=like.dtype)


def _cosines(size: int) -> Tensor:
    """The cosine transform, a frequency a row, each of length one."""
    at = torch.arange(size, dtype=torch.float64)
    table = (math.pi / size * (at + 0.5) * at[:, None]).cos() * (2 / size) ** 0.5
    table[0] /= 2**0.5
    return table


def _hartley(x: Tensor) -> Tensor:
    """Real parts less imaginary ones of a spectrum, which undo themselves."""
    spectrum = torch.fft.fft(x, norm="ortho")
    return spectrum.real - spectrum.imag


def _feedback(s: Any, w: Tensor, b: Tensor) -> None:
    s.ahead = nn.Parameter(torch.tensor([0.9, 0.3, 0.1]).to(w))
    s.back = nn.Parameter(torch.tensor([-0.4, 0.1]).to(w))
    plain(s, _before(w, _biquad(s, _one(w.shape[1], w))), b)


def _biquad(s: Any, x: Tensor) -> Tensor:
    """Two samples of the sound and two of the answer are remembered."""
    heard, said = [torch.zeros_like(x[:, 0])] * 2, [torch.zeros_like(x[:, 0])] * 2
    for sample in x.unbind(dim=1):
        heard.append(sample)
        ahead = s.ahead[0] * heard[-1] + s.ahead[1] * heard[-2] + s.ahead[2] * heard[-3]
        said.append(ahead - s.back[0] * said[-1] - s.back[1] * said[-2])
    return torch.stack(said[2:], dim=1)


def _spline(rows: Tensor) -> Tensor:
    """What a cubic spline is at its knots, of its points of control."""
    around = F.pad(rows, (1, 1))
    return (around[:, :-2] + 4 * rows + around[:, 2:]) / 6


def _controls(s: Any, w: Tensor, b: Tensor) -> None:
    plain(s, _before(w, _spline(_one(w.shape[1], w))), b)


def _effects(s: Any, w: Tensor, b: Tensor) -> None:
    s.row, s.column = (nn.Parameter(0.1 * _random(*shape).to(w)) for shape in ((len(w), 1), (1, w.shape[1])))
    plain(s, w - s.row - s.column, b)


def _picture(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("lines", _cosines(len(w)).to(w))
    s.register_buffer("columns", _cosines(w.shape[1]).to(w))
    plain(s, s.lines @ w @ s.columns.t(), b)


def _two_scales(s: Any, w: Tensor, b: Tensor) -> None:
    s.up, s.down = (nn.Parameter((size + 0.1 * _random(len(w), 1).tanh()).to(w)) for size in (1.3, 0.7))
    plain(s, torch.where(w > 0, w / s.up, w / s.down), b)


def _squared(s: Any, w: Tensor, b: Tensor) -> None:
    s.u, s.v = (nn.Parameter((part.relu() + 0.1).sqrt()) for part in (w, -w))
    s.b = nn.Parameter(b.clone())


def _natural(s: Any, w: Tensor, b: Tensor) -> None:
    s.log_precision = nn.Parameter(0.3 * _random(*w.shape).to(w))
    plain(s, w * s.log_precision.exp(), b)


def _detached(s: Any, w: Tensor, b: Tensor) -> None:
    s.length = nn.Parameter(w.norm(dim=1, keepdim=True))
    plain(s, 2 * w, b)


def _tiles(s: Any, w: Tensor, b: Tensor) -> None:
    padded = F.pad(w, (0, -w.shape[1] % 8, 0, -len(w) % 16))
    s.tiles = nn.Parameter(padded.unflatten(1, (-1, 8)).unflatten(0, (-1, 16)).permute(0, 2, 3, 1).contiguous())
    s.b = nn.Parameter(b.clone())


def _packed(s: Any, x: Tensor) -> Tensor:
    """Tiles of eight inputs and sixteen units, as a library for vector instructions packs them."""
    pieces = F.pad(x, (0, -x.shape[1] % 8)).unflatten(1, (-1, 8))
    return torch.einsum("nib,oibp->nop", pieces, s.tiles).flatten(1)[:, : len(s.b)] + s.b


def _ring(s: Any, x: Tensor) -> Tensor:
    """Each of three ranks has a share of the inputs; sums go around until all of them have added theirs."""
    held, found = x.tensor_split(3, dim=1), []
    for place, rows in enumerate(s.w.tensor_split(3)):
        blocks, total = rows.tensor_split(3, dim=1), x.new_zeros(len(x), len(rows))
        for step in range(3):
            rank = (place + step + 1) % 3
            total = total + held[rank] @ blocks[rank].t()
        found.append(total)
    return torch.cat(found, dim=1) + s.b


def _in_place(s: Any, x: Tensor) -> Tensor:
    total = x.new_zeros(len(x), len(s.w))
    for part, block in zip(x.split(16, dim=1), s.w.split(16, dim=1), strict=True):
        total.addmm_(part, block.t())
    return total.add_(s.b)


class _Anew(torch.autograd.Function):
    """Keeps its inputs alone, and is differentiated on the way back."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.linear(x, w, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        del output
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        pull = torch.func.vjp(lambda x, w, b: F.linear(x, w, b), *ctx.saved_tensors)[1]
        found: tuple[Tensor, ...] = pull(grads[0])
        return found


class _Aligned(torch.autograd.Function):
    """An error goes back by a random matrix, to which the weight will align itself."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor, way: Tensor) -> Tensor:
        del way
        return F.linear(x, w, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        del output
        ctx.save_for_backward(inputs[0], inputs[3])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, way = ctx.saved_tensors
        return grads[0] @ way, grads[0].t() @ x, grads[0].sum(dim=0), None


def _way_back(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("way", _random(*w.shape).to(w) / len(w) ** 0.5)
    plain(s, w, b)


def _coupling(s: Any, w: Tensor, b: Tensor) -> None:
    s.kept = w.shape[1] // 2
    s.enter = linear(_random(16, s.kept).to(w) / s.kept**0.5, 0.1 * _random(16).to(w))
    changed = 2 * (w.shape[1] - s.kept)
    s.leave = linear(torch.zeros(changed, 16).to(w), torch.zeros(changed).to(w))
    plain(s, w, b)


def _coupled(s: Any, x: Tensor) -> Tensor:
    """A flow's first step: one half says how the other is stretched and moved, which it is not yet."""
    size, shift = s.leave(s.enter(x[:, : s.kept]).tanh()).chunk(2, dim=1)
    return F.linear(torch.cat([x[:, : s.kept], x[:, s.kept :] * size.exp() + shift], dim=1), s.w, s.b)


def _fading(s: Any, w: Tensor, b: Tensor) -> None:
    s.fades = nn.Parameter(0.5 * _random(w.shape[1]).to(w) - 0.5)
    plain(s, _before(w, _scanned(s, _one(w.shape[1], w))), b)


def _scanned(s: Any, x: Tensor) -> Tensor:
    """States of which each keeps a share of the one before, by as many steps as the row's length has bits."""
    kept, state, reach = s.fades.sigmoid(), x, 1
    while reach < x.shape[1]:
        state = state + kept * F.pad(state, (reach, -reach))
        kept = kept * F.pad(kept, (reach, -reach))
        reach *= 2
    return state


def _every_turn(s: Any, x: Tensor) -> Tensor:
    """A picture and its filters are turned alike, and the answers averaged."""
    turns = [x.shape[1] * k // 4 for k in range(4)]
    return sum(F.linear(x.roll(turn, 1), s.w.roll(turn, 1)) for turn in turns) / 4 + s.b


def _partial(s: Any, x: Tensor) -> Tensor:
    """What is missing counts as nothing, and what is there as much more."""
    there = torch.isfinite(x)
    seen = there.to(x).mean(dim=1, keepdim=True).clamp_min(1e-6)
    return F.linear(torch.where(there, x, torch.zeros_like(x)), s.w) / seen + s.b


def _polar(s: Any, w: Tensor, b: Tensor) -> None:
    u, lengths, v = torch.linalg.svd(w.double(), full_matrices=False)
    s.root = nn.Parameter((v.t() * lengths.sqrt() @ v).to(w).contiguous())
    plain(s, (u @ v).to(w).contiguous(), b)


def _isometric(s: Any, x: Tensor) -> Tensor:
    """A stretch, and then a matrix that a few of Newton's steps make an isometry."""
    rows = s.w
    for _ in range(3):
        rows = 1.5 * rows - 0.5 * rows @ rows.t() @ rows
    return F.linear(x @ s.root @ s.root.t(), rows, s.b)


def _corrected(s: Any, x: Tensor) -> Tensor:
    """The value is a better one, and the gradient the usual one's."""
    out = F.linear(x, s.w, s.b)
    with torch.no_grad():
        better = F.linear(x.double(), s.w.double(), s.b.double()).to(x)
    return out + (better - out).detach()


def _vectors(s: Any, w: Tensor, b: Tensor) -> None:
    rank = 12
    s.register_buffer("down", _random(rank, w.shape[1]).to(w) / w.shape[1] ** 0.5)
    s.register_buffer("up", _random(len(w), rank, seed=62).to(w) / rank**0.5)
    s.inner, s.outer = (nn.Parameter(0.3 + 0.1 * _random(size).to(w)) for size in (rank, len(w)))
    plain(s, w - s.outer[:, None] * (s.up * s.inner) @ s.down, b)


def _sine(s: Any, w: Tensor, b: Tensor) -> None:
    s.up, s.down = (nn.Parameter(0.2 * _random(*k).to(w)) for k in ((len(w), 3), (3, w.shape[1])))
    plain(s, w - (10 * s.up @ s.down).sin() / w.shape[1], b)


def _few(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("places", _order(w.numel())[: max(w.numel() // 20, 1)])
    s.values = nn.Parameter(0.2 * _random(len(s.places)).to(w))
    plain(s, w.flatten().index_add(0, s.places, -s.values).view_as(w), b)


def _with_few(s: Any, x: Tensor) -> Tensor:
    weight = s.w.flatten().index_add(0, s.places, s.values).view_as(s.w)
    return F.linear(x, weight, s.b)


def _below(s: Any, w: Tensor, b: Tensor) -> None:
    s.above = linear(w, b)
    s.below = linear(_random(*w.shape).to(w) / w.shape[1] ** 0.5, torch.full_like(b, -100.0))


def _pipeline(s: Any, w: Tensor, b: Tensor) -> None:
    order = _order(w.shape[1])
    s.register_buffer("scaled", order[: w.shape[1] // 2])
    s.register_buffer("passed", order[w.shape[1] // 2 :])
    draw = torch.rand(2, len(s.scaled), generator=torch.Generator().manual_seed(61)).to(w)
    s.register_buffer("mean", draw[0])
    s.register_buffer("size", 0.2 + draw[1])
    plain(s, torch.cat([w[:, s.scaled] * s.size, w[:, s.passed]], dim=1), b + w[:, s.scaled] @ s.mean)


def _after_pipeline(s: Any, x: Tensor) -> Tensor:
    """Some columns are scaled, the rest is passed on, and so they come in another order."""
    columns = [(x[:, s.scaled] - s.mean) / s.size, x[:, s.passed]]
    return F.linear(torch.cat(columns, dim=1), s.w, s.b)


def _placed(s: Any, x: Tensor) -> Tensor:
    """As features of pictures are put where a text has places for them."""
    out = x.new_zeros(len(x), len(s.w))
    return out.masked_scatter(torch.ones_like(out, dtype=torch.bool), F.linear(x, s.w, s.b))


def _tasks(s: Any, w: Tensor, b: Tensor) -> None:
    s.w, s.biases = nn.Parameter(w.clone()), nn.Embedding.from_pretrained(0.1 * _random(4, len(b)).to(b), freeze=False)
    s.biases.weight[2] = b
    s.register_buffer("task", torch.tensor([2]))


LAYERS: dict[str, Spelling] = {
    "a Hartley transform first": Spelling(
        lambda s, w, b: plain(s, _hartley(w), b), lambda s, x: F.linear(_hartley(x), s.w, s.b), own=True
    ),
    "a filter with feedback": Spelling(_feedback, lambda s, x: F.linear(_biquad(s, x), s.w, s.b), own=True),
    "points of control of a cubic spline": Spelling(_controls, lambda s, x: F.linear(x, _spline(s.w), s.b), own=True),
    "effects of rows and columns, and what is left": Spelling(
        _effects, lambda s, x: F.linear(x, s.w + s.row + s.column, s.b), own=True
    ),
    "the whole weight as a picture of cosines": Spelling(
        _picture, lambda s, x: F.linear(x, s.lines.t() @ s.w @ s.columns, s.b), own=True
    ),
    "a scale for positive weights and one for negative": Spelling(
        _two_scales, lambda s, x: F.linear(x, s.up * s.w.clamp(min=0) + s.down * s.w.clamp(max=0), s.b), own=True
    ),
    "a square less another": Spelling(_squared, lambda s, x: F.linear(x, s.u * s.u - s.v * s.v, s.b), own=True),
    "products with a precision, and over it": Spelling(
        _natural, lambda s, x: F.linear(x, s.w / s.log_precision.exp(), s.b), own=True
    ),
    "over a length that has no gradient": Spelling(
        _detached,
        lambda s, x: F.linear(x, s.length * s.w / s.w.norm(dim=1, keepdim=True).detach(), s.b),
        own=True,
    ),
    "tiles of eight by sixteen": Spelling(_tiles, _packed),
    "sums that go around a ring": Spelling(plain, _ring),
    "blocks added up in place": Spelling(plain, _in_place),
    "a product with an alpha and a beta": Spelling(
        lambda s, w, b: plain(s, w / 2, 4 * b),
        lambda s, x: torch.addmm(s.b, x, s.w.t(), beta=0.25, alpha=2.0),
    ),
    "differentiated on its way back": Spelling(plain, lambda s, x: _Anew.apply(x, s.w, s.b)),
    "an error that goes back another way": Spelling(_way_back, lambda s, x: _Aligned.apply(x, s.w, s.b, s.way)),
    "a coupling that changes nothing yet": Spelling(_coupling, _coupled, own=True),
    "a scan that doubles its reach": Spelling(_fading, lambda s, x: F.linear(_scanned(s, x), s.w, s.b), own=True),
    "a picture and its filters, turned alike": Spelling(plain, _every_turn),
    "over the share that is there": Spelling(plain, _partial),
    "a stretch, then an isometry": Spelling(_polar, _isometric, own=True),
    "a better value, and the usual gradient": Spelling(plain, _corrected),
    "two vectors between random matrices, beside": Spelling(
        _vectors,
        lambda s, x: F.linear(x, s.w, s.b) + s.outer * F.linear(s.inner * F.linear(x, s.down), s.up),
        own=True,
    ),
    "sines of a product of factors, beside": Spelling(
        _sine, lambda s, x: F.linear(x, s.w + (10 * s.up @ s.down).sin() / x.shape[1], s.b), own=True
    ),
    "a few entries that learn apart": Spelling(_few, _with_few, own=True),
    "the larger of two pieces, one far below": Spelling(
        _below, lambda s, x: torch.maximum(s.above(x), s.below(x)), own=True
    ),
    "some columns scaled, the rest passed on": Spelling(_pipeline, _after_pipeline, own=True),
    "answers put where a mask has room": Spelling(plain, _placed),
    "a bias that is looked up by task": Spelling(_tasks, lambda s, x: F.linear(x, s.w) + s.biases(s.task), own=True),
}
"""As `spellings.LAYERS`."""


def _adjacent(s: Any, w: Tensor, b: Tensor) -> None:
    s.steps = linear(torch.diff(w, dim=0), torch.diff(b))


def _last(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc = linear((w - w.mean(dim=0))[:-1], (b - b.mean())[:-1])


def _balanced(s: Any, x: Tensor) -> Tensor:
    """Effects that add up to nothing."""
    first = s.fc(x)
    return torch.cat([first, -first.sum(dim=1, keepdim=True)], dim=1)


def _items(s: Any, w: Tensor, b: Tensor) -> None:
    s.log_slope = nn.Parameter(0.3 * _random(len(w)).to(w))
    slope = s.log_slope.exp()
    plain(s, w / slope[:, None], -b / slope)


def _hazards(s: Any, x: Tensor) -> Tensor:
    """Logarithms of shares, from how likely each class is when it was none before it."""
    scores = F.linear(x, s.w, s.b)
    later = [scores[:, place:].logsumexp(dim=1) for place in range(1, scores.shape[1])]
    odds = scores[:, :-1] - torch.stack(later, dim=1)
    survived = F.logsigmoid(-odds).cumsum(dim=1)
    return F.pad(F.logsigmoid(odds), (0, 1)) + F.pad(survived, (1, 0))


def _down_a_tree(scores: Tensor) -> Tensor:
    if scores.shape[1] == 1:
        return torch.zeros_like(scores)
    left, right = scores.tensor_split(2, dim=1)
    odds = left.logsumexp(dim=1, keepdim=True) - right.logsumexp(dim=1, keepdim=True)
    return torch.cat([F.logsigmoid(odds) + _down_a_tree(left), F.logsigmoid(-odds) + _down_a_tree(right)], dim=1)


def _beta(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc, s.a = linear(w, b), nn.Parameter(torch.ones_like(b))
    s.against, s.c = (nn.Parameter(torch.zeros_like(b)) for _ in range(2))


def _beta_calibrated(s: Any, x: Tensor) -> Tensor:
    """Logarithms of a share and of what is not its own, each times a number for the class."""
    logs = s.fc(x).log_softmax(dim=1)
    return s.a * logs - s.against * torch.log1p(-logs.exp().clamp(max=1 - 1e-6)) + s.c


def _straight(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("knots", torch.linspace(-4, 4, 9).to(w))
    s.fc, s.heights = linear(w, b), nn.Parameter(s.knots.repeat(len(w), 1))


def _piecewise(s: Any, x: Tensor) -> Tensor:
    """A curve for each class from knot to knot, and on beyond the outer ones, which still is straight."""
    slopes = s.heights.diff(dim=1) / s.knots.diff()
    beyond = s.fc(x).unsqueeze(2) - s.knots[:-1]
    bends = slopes.diff(dim=1)
    return s.heights[:, 0] + slopes[:, 0] * beyond[..., 0] + (bends * beyond[..., 1:].relu()).sum(dim=2)


def _amateur(s: Any, w: Tensor, b: Tensor) -> None:
    s.amateur = linear(_random(*w.shape).to(w) / w.shape[1] ** 0.5, 0.1 * _random(len(w)).to(w))
    s.expert = linear((w + 0.5 * s.amateur.weight) / 1.5, (b + 0.5 * s.amateur.bias) / 1.5)


def _concentrated(s: Any, w: Tensor, b: Tensor) -> None:
    s.log_kappa = nn.Parameter(w.norm(dim=1).log())
    plain(s, 3 * w, b)


def _by_class(s: Any, w: Tensor, b: Tensor) -> None:
    s.scale, s.shift = nn.Parameter((0.2 * _random(len(w))).exp().to(w)), nn.Parameter(0.2 * _random(len(w)).to(w))
    s.fc = linear(w / s.scale[:, None], (b - s.shift) / s.scale)


def _asked(s: Any, w: Tensor, b: Tensor) -> None:
    size = w.shape[1]
    asks = torch.eye(size) + 0.4 * _random(size, size) / size**0.5
    offset = 0.1 * _random(size).to(w)
    s.query, s.keys = linear(asks.to(w), offset), nn.Parameter(_before(w, asks.t()) * size**0.5)
    s.bias = nn.Parameter(b - s.keys @ offset / size**0.5)


def _pointed(s: Any, x: Tensor) -> Tensor:
    """Where a query would look among the classes."""
    return s.query(x) @ s.keys.t() / x.shape[1] ** 0.5 + s.bias


def _label_chain(s: Any, w: Tensor, b: Tensor) -> None:
    s.start, s.end = (nn.Parameter(0.1 * _random(len(w), seed=k).to(w)) for k in (61, 62))
    s.turns, s.emits = nn.Parameter(0.1 * _random(len(w), len(w)).to(w)), linear(w, b - s.start - s.end)


def _forward_algorithm(s: Any, x: Tensor) -> Tensor:
    """A random field over a sequence of labels, whose length is one: no label turns into another."""
    emitted = s.emits(x).unsqueeze(1)
    alpha = s.start + emitted[:, 0]
    for place in range(1, emitted.shape[1]):
        alpha = (alpha.unsqueeze(2) + s.turns).logsumexp(dim=1) + emitted[:, place]
    alpha = alpha + s.end + 0 * s.turns.sum()
    return alpha - alpha.logsumexp(dim=1, keepdim=True)


def _second_look(s: Any, w: Tensor, b: Tensor) -> None:
    first, offset = _random(*w.shape).to(w) / w.shape[1] ** 0.5, 0.1 * _random(len(w)).to(w)
    says = (0.4 * _random(len(w), len(w), seed=62) / len(w) ** 0.5).to(w)
    s.guess, s.again = linear(first, offset), linear(torch.cat([w - says @ first, says], dim=1), b - says @ offset)


HEADS: dict[str, Spelling] = {
    "odds over the class before, added up": Spelling(
        _adjacent, lambda s, x: F.pad(s.steps(x).cumsum(dim=1), (1, 0)), own=True
    ),
    "a last class that balances the others": Spelling(_last, _balanced, own=True),
    "how hard a class is, and how steep": Spelling(
        _items, lambda s, x: s.log_slope.exp() * (F.linear(x, s.w) - s.b), own=True
    ),
    "a class, if it was none before it": Spelling(plain, _hazards),
    "yes or no, down a tree": Spelling(plain, lambda s, x: _down_a_tree(F.linear(x, s.w, s.b))),
    "a beta curve over the shares, at rest": Spelling(_beta, _beta_calibrated, own=True),
    "a curve of pieces, still straight": Spelling(_straight, _piecewise, own=True),
    "an expert against an amateur": Spelling(_amateur, lambda s, x: 1.5 * s.expert(x) - 0.5 * s.amateur(x), own=True),
    "mean directions and concentrations": Spelling(
        _concentrated, lambda s, x: s.log_kappa.exp() * F.linear(x, F.normalize(s.w, dim=1)) + s.b, own=True
    ),
    "a scale and a shift for each class": Spelling(_by_class, lambda s, x: s.fc(x) * s.scale + s.shift, own=True),
    "where a query looks among the classes": Spelling(_asked, _pointed, own=True),
    "a chain of one label": Spelling(_label_chain, _forward_algorithm, own=True),
    "a first guess, and a second look": Spelling(
        _second_look, lambda s, x: s.again(torch.cat([x, s.guess(x)], dim=1)), own=True
    ),
}
"""As `spellings.HEADS`."""


def _two_lines(x: Tensor) -> Tensor:
    """A tropical polynomial: the largest of two lines through nothing."""
    slopes = torch.tensor([0.0, 1.0], device=x.device).to(x)
    return (x.unsqueeze(-1) * slopes).amax(dim=-1)


def _switches(x: Tensor) -> Tensor:
    """A diagonal matrix of what is on, as a theory of deep linear networks writes it."""
    return (torch.diag_embed((x > 0).to(x)) @ x.unsqueeze(-1)).squeeze(-1)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "the largest of two lines": _two_lines,
    "a diagonal of switches": _switches,
    "a hard swish, seen from far": lambda x: F.hardswish(x * 2.0**20) / 2.0**20,
    "the logarithm of a steep sigmoid": lambda x: -F.logsigmoid(-x * 2.0**20) / 2.0**20,
    "between nothing and infinity": lambda x: x.clip(0.0, math.inf),
    "its tangent along itself": lambda x: torch.func.jvp(F.relu, (x,), (x,))[1],
    "it, and what its negative would leave": lambda x: x + F.relu(-x),
    "gated by itself, a million times": lambda x: F.glu(torch.cat([x, x * 2.0**20], dim=-1), dim=-1),
    "a product over letters with its switch": lambda x: torch.einsum("n...,n...->n...", x, (x > 0).to(x)),
}
"""As `spellings.ACTIVATIONS`."""


def _grey_levels(x: Tensor) -> Tensor:
    """Whole levels of grey, and what lies between them."""
    levels = (x.detach() * 255).round() / 255
    return (levels + (x - levels)).flatten(1)


def _interlaced(x: Tensor) -> Tensor:
    """Even lines and odd ones, as a television is sent them, and woven together."""
    even, odd = x[:, :, ::2], x[:, :, 1::2]
    odd = F.pad(odd, (0, 0, 0, even.shape[2] - odd.shape[2]))
    return torch.stack([even, odd], dim=3).flatten(2, 3)[:, :, : x.shape[2]].flatten(1)


def _centred_twice(x: Tensor) -> Tensor:
    """Means of lines and of columns, and what is left without both."""
    line, column, all_of_it = (x.mean(dim=d, keepdim=True) for d in ((3,), (2,), (2, 3)))
    left = x - line - column + all_of_it
    return (left + line + (column - all_of_it)).flatten(1)


def _fortran(x: Tensor) -> Tensor:
    column_major = x.permute(0, 3, 2, 1).reshape(len(x), -1)
    return column_major.view(len(x), *x.shape[:0:-1]).permute(0, 3, 2, 1).flatten(1)


def _compressed(x: Tensor) -> Tensor:
    """All cosines of lines and columns, none of them dropped."""
    lines, columns = (_cosines(size).to(x) for size in x.shape[2:])
    return (lines.t() @ (lines @ x @ columns.t()) @ columns).flatten(1)


FLATTENINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "levels of grey, and what lies between": _grey_levels,
    "two half-pictures, woven": _interlaced,
    "means of lines and columns, and the rest": _centred_twice,
    "stored column by column, and put back": _fortran,
    "cosines of lines and columns, all kept": _compressed,
    "resized to what it is": lambda x: F.interpolate(x, size=x.shape[2:], mode="bilinear").flatten(1),
    "the largest in a window of one": lambda x: F.max_pool2d(x, 1).flatten(1),
    "mapped over colours": lambda x: torch.vmap(lambda plane: plane.flatten(1), in_dims=1, out_dims=1)(x).flatten(1),
}
"""As `spellings.FLATTENINGS`."""


def _by_remainder(t: Tensor, ids: Tensor) -> Tensor:
    """Three servers, of which each has every third word."""
    out = t.new_zeros(*ids.shape, t.shape[1])
    for server in range(3):
        shard = t[server::3]
        rows = F.embedding((ids // 3).clamp(max=len(shard) - 1), shard)
        out = torch.where((ids % 3 == server).unsqueeze(-1), rows, out)
    return out


def _in_cosines(t: Tensor, ids: Tensor) -> Tensor:
    basis = _cosines(t.shape[1]).to(t)
    return F.embedding(ids, t @ basis.t()) @ basis


def _every_word(t: Tensor, ids: Tensor) -> Tensor:
    """The places of one word after another are filled."""
    out = t.new_zeros(*ids.shape, t.shape[1])
    for word, row in enumerate(t.unbind(0)):
        out = torch.where((ids == word).unsqueeze(-1), row, out)
    return out


TABLES: dict[str, Lookup] = {
    "every third word on a server": _by_remainder,
    "in another basis, and back": _in_cosines,
    "one word after another": _every_word,
    "by numbers of Python's": lambda t, ids: torch.stack(
        [torch.stack([t[word] for word in text]) for text in ids.tolist()]
    ),
    "indicators and tables in a batch of products": lambda t, ids: torch.bmm(
        F.one_hot(ids, len(t)).to(t), t.expand(len(ids), -1, -1)
    ),
    "a tenth of a row, and nine that stand still": lambda t, ids: (
        0.1 * F.embedding(ids, t) + 0.9 * F.embedding(ids, t.detach())
    ),
    "mapped over columns": lambda t, ids: torch.vmap(lambda column: column[ids], in_dims=1, out_dims=-1)(t),
    "numbers of 32 bits": lambda t, ids: F.embedding(ids.int(), t),
}
"""As `spellings.TABLES`."""


def _kernel(x: Tensor, w: Tensor, p: int) -> Tensor:
    return w.view(len(w), x.shape[1], p, p)


def _two_signs(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    kernel = _kernel(x, w, p)
    on, off = (F.conv2d(x, part.relu(), stride=p) for part in (kernel, -kernel))
    return (on - off).flatten(2).mT + b


def _again(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    out = checkpoint(lambda z: F.conv2d(z, _kernel(x, w, p), b, stride=p), x, use_reentrant=False)
    return out.flatten(2).mT


class _Convolve(torch.autograd.Function):
    """Patches, whose gradients are asked for by name."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, kernel: Tensor, b: Tensor) -> Tensor:
        return F.conv2d(x, kernel, b, stride=kernel.shape[-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        del output
        ctx.save_for_backward(inputs[0], inputs[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x, kernel = ctx.saved_tensors
        side = kernel.shape[-1]
        into = conv2d_input(list(x.shape), kernel, grads[0], stride=side)
        of_kernel = conv2d_weight(x, list(kernel.shape), grads[0], stride=side)
        return into, of_kernel, grads[0].sum(dim=(0, 2, 3))


def _one_product(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """All columns of all pictures beside one another, and one large product."""
    columns = F.unfold(x, p, stride=p)
    wide = columns.transpose(0, 1).reshape(columns.shape[1], -1)
    return (w @ wide + b[:, None]).view(len(w), len(x), -1).permute(1, 2, 0)


def _from_corner(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """How pixels differ from the corner of their patch, and the corner."""
    patches = F.unfold(x, p, stride=p).mT.unflatten(2, (x.shape[1], -1))
    corner, kernel = patches[..., :1], w.unflatten(1, (x.shape[1], -1))
    differ = (patches - corner).flatten(2) @ w.t()
    return differ + corner.squeeze(-1) @ kernel.sum(dim=2).t() + b


def _as_groups(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """Every picture is a group of one large picture's channels, as where each has a kernel of its own."""
    kernel = _kernel(x, w, p).repeat(len(x), 1, 1, 1)
    out = F.conv2d(x.reshape(1, -1, *x.shape[2:]), kernel, b.repeat(len(x)), stride=p, groups=len(x))
    return out.view(len(x), len(w), -1).mT


def _at_each_place(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """A layer that is local, of which all places have the same weight."""
    patches = F.unfold(x, p, stride=p).permute(2, 0, 1)
    weights = w.t().expand(len(patches), -1, -1)
    return torch.bmm(patches, weights).transpose(0, 1) + b


PATCHES: dict[str, Cut] = {
    "positive kernels less negative ones": _two_signs,
    "convolved again on the way back": _again,
    "gradients of a kernel, asked for by name": lambda x, w, b, p: (
        _Convolve.apply(x, _kernel(x, w, p), b).flatten(2).mT
    ),
    "one large product of all columns": _one_product,
    "differences from a corner, and the corner": _from_corner,
    "pictures as groups of one": _as_groups,
    "a weight at each place, all the same": _at_each_place,
}
"""As `spellings.PATCHES`."""


class _Sink(attention.Worded):
    """A score for nowhere, which takes next to nothing yet."""

    def __init__(self, plain: attention.Attention) -> None:
        super().__init__(plain)
        self.sink = nn.Parameter(torch.full((attention.HEADS, 1, 1), -30.0).to(self.w))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = attention.masked(q @ k.mT / q.shape[3] ** 0.5, self.causal)
        with_sink = torch.cat([scores, self.sink.expand(*scores.shape[:3], 1)], dim=3)
        out: Tensor = self.out(attention.joined(with_sink.softmax(dim=3)[..., :-1] @ v))
        return out


class _Chunked(attention.Worded):
    """Two queries at a time, whose scores are computed again on the way back."""

    def found(self, q: Tensor, k: Tensor, v: Tensor, start: int) -> Tensor:
        scores = q @ k.mT / q.shape[3] ** 0.5
        if self.causal:
            place = torch.arange(k.shape[2], device=q.device)
            later = place > place[start : start + q.shape[2], None]
            scores = scores.masked_fill(later, torch.finfo(scores.dtype).min)
        return scores.softmax(dim=3) @ v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        parts = [
            checkpoint(self.found, part, k, v, 2 * number, use_reentrant=False)
            for number, part in enumerate(q.split(2, dim=2))
        ]
        out: Tensor = self.out(attention.joined(torch.cat(parts, dim=2)))
        return out


class _TurnedAlike(attention.Worded):
    """Queries and keys in another basis, of which their products see nothing."""

    turn: Tensor

    def __init__(self, plain: attention.Attention) -> None:
        super().__init__(plain)
        size = self.w.shape[1] // attention.HEADS
        self.register_buffer("turn", torch.linalg.qr(_random(size, size))[0].to(self.w))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = (q @ self.turn) @ (k @ self.turn).mT / q.shape[3] ** 0.5
        out: Tensor = self.out(attention.joined(attention.masked(scores, self.causal).softmax(dim=3) @ v))
        return out


class _SideBySide(nn.Module):
    """One layer, in which query, key and value of a head stand side by side."""

    def __init__(self, plain: attention.Attention) -> None:
        super().__init__()
        self.causal, self.dense = plain.causal, plain.out
        parts = plain.q, plain.k, plain.v
        with torch.no_grad():
            weight, bias = (
                torch.stack([of.unflatten(0, (attention.HEADS, -1)) for of in kind], dim=1).flatten(0, 2)
                for kind in ([part.weight for part in parts], [part.bias for part in parts])
            )
        self.query_key_value = linear(weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.query_key_value(x).unflatten(2, (attention.HEADS, -1)).transpose(1, 2)
        q, k, v = mixed.chunk(3, dim=3)
        scores = attention.masked(q @ k.mT * q.shape[3] ** -0.5, self.causal)
        out: Tensor = self.dense(attention.joined(scores.softmax(dim=3) @ v))
        return out


class _Talking(attention.Worded):
    """Heads that might tell each other of their scores and shares, and do not yet."""

    def __init__(self, plain: attention.Attention) -> None:
        super().__init__(plain)
        self.before, self.after = (nn.Parameter(_one(attention.HEADS, self.w)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = torch.einsum("nhij,gh->ngij", q @ k.mT / q.shape[3] ** 0.5, self.before)
        shares = attention.masked(scores, self.causal).softmax(dim=3)
        out: Tensor = self.out(attention.joined(torch.einsum("nhij,gh->ngij", shares, self.after) @ v))
        return out


class _Edges(attention.Worded):
    """Places are nodes, and shares are what the edges into a node have in it."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        every = torch.ones(x.shape[1], x.shape[1], device=x.device)
        target, source = (every.tril() if self.causal else every).nonzero().unbind(dim=1)
        scores = (q[:, :, target] * k[:, :, source]).sum(dim=3) / q.shape[3] ** 0.5
        raised = (scores - scores.detach().amax(dim=2, keepdim=True)).exp()
        total = raised.new_zeros(q.shape[:3]).index_add(2, target, raised)
        shares = raised / total[:, :, target]
        found = torch.zeros_like(q).index_add(2, target, shares.unsqueeze(3) * v[:, :, source])
        out: Tensor = self.out(attention.joined(found))
        return out


class _Latent(nn.Module):
    """Keys and values from one latent, which is all that would be kept."""

    def __init__(self, plain: attention.Attention) -> None:
        super().__init__()
        self.causal, self.q, self.out = plain.causal, plain.q, plain.out
        width = plain.k.in_features
        with torch.no_grad():
            down = (torch.eye(width) + 0.4 * _random(width, width) / width**0.5).to(plain.k.weight)
            self.down = linear(down, torch.zeros_like(plain.k.bias))
            self.up_k, self.up_v = (linear(_before(part.weight, down.t()), part.bias) for part in (plain.k, plain.v))

    def forward(self, x: Tensor) -> Tensor:
        latent = self.down(x)
        q, k, v = (attention.cut(part) for part in (self.q(x), self.up_k(latent), self.up_v(latent)))
        scores = attention.masked(q @ k.mT / q.shape[3] ** 0.5, self.causal)
        out: Tensor = self.out(attention.joined(scores.softmax(dim=3) @ v))
        return out


class _Buffer(attention.Worded):
    """Scores multiplied into an empty buffer, heads and examples in one axis."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.flatten(0, 1) for part in self.split(x))
        empty = q.new_empty(len(q), x.shape[1], x.shape[1])
        scores = torch.baddbmm(empty, q, k.mT, beta=0.0, alpha=q.shape[2] ** -0.5).view(len(x), -1, *empty.shape[1:])
        shares = attention.masked(scores, self.causal).softmax(dim=3).flatten(0, 1)
        out: Tensor = self.out(attention.joined(torch.bmm(shares, v).unflatten(0, (len(x), -1))))
        return out


class _KeysFirst(attention.Worded):
    """A line of scores for each key, and shares along the other axis."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = attention.masked((k @ q.mT / q.shape[3] ** 0.5).mT, self.causal).mT
        out: Tensor = self.out(attention.joined((v.mT @ scores.softmax(dim=2)).mT))
        return out


class _OwnAnswers(attention.Worded):
    """Each head writes an answer of full width, and these are added."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        shares = attention.masked(q @ k.mT / q.shape[3] ** 0.5, self.causal).softmax(dim=3)
        ways = self.out.weight.unflatten(1, (attention.HEADS, -1)).transpose(0, 1)
        return (shares @ (v @ ways.mT)).sum(dim=1) + self.out.bias


ATTENTION: dict[str, Callable[[attention.Attention], nn.Module]] = {
    "a score for nowhere": _Sink,
    "two queries at a time, and again": _Chunked,
    "queries and keys turned alike": _TurnedAlike,
    "query, key and value of a head side by side": _SideBySide,
    "heads that could talk": _Talking,
    "edges between places": _Edges,
    "keys and values from one latent": _Latent,
    "scores into an empty buffer": _Buffer,
    "keys first": _KeysFirst,
    "an answer of each head's own": _OwnAnswers,
}
"""As `attention.WORDS`."""
