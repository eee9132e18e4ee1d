"""An eleventh list of spellings, written blind and committed before any of them was read: splines and unrolled steps,
graphs of causes, sums of Kronecker products, pads and masks that cancel, implicit steps, and answers of other tasks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from same.spellings import Cut, Lookup, Spelling, linear, plain


def _random(*shape: int, seed: int = 29) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _uniform(*shape: int, seed: int = 29) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def _square(size: int, scale: float) -> Tensor:
    return scale * _random(size, size) / size**0.5


def _two_factors(size: int) -> tuple[int, int]:
    """The larger one first."""
    second = next(k for k in range(int(size**0.5), 0, -1) if size % k == 0)
    return size // second, second


def _undone(behind: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias in front of a matrix of units."""
    left = behind.double()
    return torch.linalg.solve(left, w.double()).to(w), torch.linalg.solve(left, b.double()).to(w)


KNOTS, FIRST, STEP = 7, -1.0, 0.5
"""How many a spline has, where the first one lies and how far they are apart."""


def _splines(s: Any, w: Tensor, b: Tensor) -> None:
    knots = FIRST + STEP * torch.arange(KNOTS).to(w)
    s.heights = nn.Parameter(w[:, :, None] * knots + b[:, None, None] / w.shape[1])


def _between_knots(s: Any, x: Tensor) -> Tensor:
    """A function of its own on every edge: straight from knot to knot, and onwards from the outer ones."""
    place = (x - FIRST) / STEP
    below = place.detach().floor().clamp(0, KNOTS - 2)
    share = (place - below).unsqueeze(-1)
    one, next_one = (F.one_hot(k, KNOTS).to(x) for k in (below.long(), below.long() + 1))
    return torch.einsum("nik,oik->no", one * (1 - share) + next_one * share, s.heights)


def _unrolled(s: Any, w: Tensor, b: Tensor) -> None:
    s.lateral = nn.Parameter(_square(len(w), 0.3).to(w))
    s.threshold = nn.Parameter(torch.zeros_like(b))
    power = [torch.linalg.matrix_power(s.lateral, k) for k in range(4)]
    plain(s, *_undone(torch.stack(power).sum(dim=0), w, b))


def _iterated(s: Any, x: Tensor) -> Tensor:
    """Three steps to a code, shrunk at each by what is learned and begins at nothing."""
    drive = F.linear(x, s.w, s.b)
    code = drive
    for _ in range(3):
        code = drive + code @ s.lateral.t()
        code = code.sign() * F.relu(code.abs() - s.threshold)
    return code


def _causes(s: Any, w: Tensor, b: Tensor) -> None:
    s.arrows = nn.Parameter(_square(w.shape[1], 0.5).to(w))
    left = torch.eye(w.shape[1]).double() - s.arrows.double().triu(1)
    plain(s, torch.linalg.solve(left, w.double().t()).t().to(w), b)


def _unexplained(s: Any, x: Tensor) -> Tensor:
    """What no earlier variable explains."""
    return F.linear(x - x @ s.arrows.triu(1), s.w, s.b)


def _sparsemax(scores: Tensor) -> Tensor:
    """The nearest shares that add up to one."""
    ranked = scores.sort(descending=True).values
    more = ranked.cumsum(dim=0) - 1
    kept = (torch.arange(1, len(scores) + 1, device=scores.device) * ranked > more).sum().unsqueeze(0)
    return (scores - more.gather(0, kept - 1) / kept).clamp_min(0)


def _attentive(s: Any, w: Tensor, b: Tensor) -> None:
    inputs = w.shape[1]
    s.scores = nn.Parameter(0.6 * _uniform(inputs).to(w) / inputs)
    plain(s, w / (inputs * _sparsemax(s.scores)), b)


def _smaller(x: Tensor) -> Tensor:
    return F.adaptive_avg_pool1d(x.unsqueeze(1), (x.shape[1] + 1) // 2).squeeze(1)


def _larger(x: Tensor, size: int) -> Tensor:
    return F.interpolate(x.unsqueeze(1), size=size, mode="linear").squeeze(1)


def _pyramid(s: Any, w: Tensor, b: Tensor) -> None:
    inputs = w.shape[1]
    s.coarse = nn.Parameter(w @ _larger(torch.eye((inputs + 1) // 2).to(w), inputs).t())
    plain(s, w, b)


def _two_levels(s: Any, x: Tensor) -> Tensor:
    """A small copy, and what it lacks."""
    small = _smaller(x)
    return F.linear(small, s.coarse) + F.linear(x - _larger(small, x.shape[1]), s.w, s.b)


def _blinded(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("pads", _random(8, w.shape[1]).to(w))
    plain(s, w, b)


def _outsourced(s: Any, x: Tensor) -> Tensor:
    """Inputs go to a faster device under a pad, whose product is taken off in the enclave."""
    which = torch.arange(len(x), device=x.device) % len(s.pads)
    prepared = F.linear(s.pads, s.w)
    return F.linear(x + s.pads[which], s.w) - prepared[which] + s.b


class _Damped(torch.autograd.Function):
    """The same number, and a share of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float) -> Tensor:
        ctx.share = share
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.share, None


def _pairwise(s: Any, x: Tensor) -> Tensor:
    """Neighbours are added, and again, so that the order is the same on every machine."""
    terms = x.unsqueeze(1) * s.w
    while terms.shape[-1] > 1:
        terms = F.pad(terms, (0, terms.shape[-1] % 2))
        terms = terms[..., ::2] + terms[..., 1::2]
    return terms.squeeze(-1) + s.b


def _turning(mixing: Tensor) -> Tensor:
    """A flow that neither grows nor fades, but for a little friction."""
    return mixing - mixing.t() - 0.1 * torch.eye(len(mixing), device=mixing.device).to(mixing)


def _antisymmetric(s: Any, w: Tensor, b: Tensor) -> None:
    s.mixing = nn.Parameter(_square(len(w), 0.5).to(w))
    s.fc = linear(*_undone(torch.eye(len(w)).to(w) + 0.5 * _turning(s.mixing), w, b))


def _one_step(s: Any, x: Tensor) -> Tensor:
    hidden: Tensor = s.fc(x)
    return hidden + 0.5 * hidden @ _turning(s.mixing).t()


def _kronecker(s: Any, w: Tensor, b: Tensor) -> None:
    (p, q), (i, j) = (_two_factors(n) for n in w.shape)
    arranged = w.view(p, q, i, j).transpose(1, 2).reshape(p * i, q * j)
    u, lengths, v = torch.linalg.svd(arranged, full_matrices=False)
    s.outer = nn.Parameter((u * lengths.sqrt()).t().reshape(-1, p, i).contiguous())
    s.inner = nn.Parameter((v * lengths.sqrt()[:, None]).view(-1, q, j).contiguous())
    s.bias = nn.Parameter(b.clone())


def _kronecker_terms(s: Any, x: Tensor) -> Tensor:
    grid = x.unflatten(1, (s.outer.shape[2], s.inner.shape[2]))
    return torch.einsum("nij,rpi,rqj->npq", grid, s.outer, s.inner).flatten(1) + s.bias


def _diffusing(s: Any, w: Tensor, b: Tensor) -> None:
    size = w.shape[1]
    edges = torch.diff(torch.eye(size), dim=0).to(w)
    s.register_buffer("laplacian", edges.t() @ edges)
    s.time = nn.Parameter(torch.tensor(0.4).to(w))
    plain(s, w + s.time * w @ s.laplacian, b)


def _diffused(s: Any, x: Tensor) -> Tensor:
    """Heat after an implicit step of a time that is learned."""
    size = len(s.laplacian)
    step = torch.eye(size, device=x.device).to(x) + s.time.abs() * s.laplacian
    return F.linear(torch.linalg.solve(step, x.t()).t(), s.w, s.b)


def _fraction(x: Tensor, order: Tensor) -> Tensor:
    """Differences of an order between none and one: the past fades as a power."""
    lag = torch.arange(1, x.shape[1], device=x.device).to(x)
    past = torch.cat([torch.ones_like(lag[:1]), ((lag - 1 - order) / lag).cumprod(dim=0)])
    padded = F.pad(x.unsqueeze(1), (len(past) - 1, 0))
    return F.conv1d(padded, past.flip(0).view(1, 1, -1)).squeeze(1)


def _remembering(s: Any, w: Tensor, b: Tensor) -> None:
    s.order = nn.Parameter(torch.tensor(0.4).to(w))
    filtered = _fraction(torch.eye(w.shape[1]).double(), s.order.double()).t()
    plain(s, torch.linalg.solve_triangular(filtered, w.double(), upper=False, left=False).to(w), b)


def _factors(s: Any, w: Tensor, b: Tensor) -> None:
    inputs = w.shape[1]
    s.loadings = nn.Parameter(0.5 * _random(inputs, 4).to(w) / inputs**0.5)
    s.log_noise = nn.Parameter(0.2 * _random(inputs, seed=30).to(w))
    plain(s, w * s.log_noise.exp() + w @ s.loadings @ s.loadings.t(), b)


def _by_precision(s: Any, x: Tensor) -> Tensor:
    """Over the covariance of a factor model, by Woodbury's identity."""
    scaled = x / s.log_noise.exp()
    weighted = s.loadings / s.log_noise.exp()[:, None]
    core = torch.eye(weighted.shape[1], device=x.device).to(x) + s.loadings.t() @ weighted
    explained = torch.cholesky_solve((scaled @ s.loadings).t(), torch.linalg.cholesky(core))
    return F.linear(scaled - (weighted @ explained).t(), s.w, s.b)


def _block_list(s: Any, w: Tensor, b: Tensor) -> None:
    (s.high, p), (wide, q) = (_two_factors(n) for n in w.shape)
    order = torch.randperm(s.high * wide, generator=torch.Generator().manual_seed(29))
    blocks = w.view(s.high, p, wide, q).transpose(1, 2).flatten(0, 1)
    s.blocks, s.bias = nn.Parameter(blocks[order].contiguous()), nn.Parameter(b.clone())
    s.register_buffer("line", order // wide)
    s.register_buffer("column", order % wide)


def _where_blocks_lie(s: Any, x: Tensor) -> Tensor:
    pieces = x.unflatten(1, (-1, s.blocks.shape[2]))[:, s.column]
    parts = torch.einsum("nbj,bpj->nbp", pieces, s.blocks)
    empty = parts.new_zeros(len(x), s.high, s.blocks.shape[1])
    return empty.index_add(1, s.line, parts).flatten(1) + s.bias


def _slope(x: Tensor) -> Tensor:
    padded = F.pad(x.unsqueeze(1), (1, 1), mode="replicate").squeeze(1)
    return (padded[:, 2:] - padded[:, :-2]) / 2


def _dynamic(s: Any, w: Tensor, b: Tensor) -> None:
    first, second = _random(2, *w.shape).to(w) / 9
    slope = _slope(torch.eye(w.shape[1]).to(w)).t()
    plain(s, torch.cat([w - first @ slope - second @ slope @ slope, first, second], dim=1), b)


def _with_slopes(s: Any, x: Tensor) -> Tensor:
    """Features, how they change, and how that changes."""
    change = _slope(x)
    return F.linear(torch.cat([x, change, _slope(change)], dim=1), s.w, s.b)


def _steer(module: Any, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
    del args
    steered: Tensor = out + module.direction
    return steered


def _steered(s: Any, w: Tensor, b: Tensor) -> None:
    direction = 0.3 * _random(len(w)).to(w)
    s.fc = linear(w, b - direction)
    s.fc.direction = nn.Parameter(direction)
    s.fc.register_forward_hook(_steer)


def _few_waves(coefficients: Tensor, places: Tensor, like: Tensor) -> Tensor:
    """A weight of a few frequencies."""
    spectrum = torch.zeros_like(like).index_put(tuple(places), coefficients)
    return torch.fft.ifft2(spectrum, norm="forward").real


def _waves(s: Any, w: Tensor, b: Tensor) -> None:
    picked = torch.randperm(w.numel(), generator=torch.Generator().manual_seed(29))[:20]
    s.register_buffer("places", torch.stack([picked // w.shape[1], picked % w.shape[1]]))
    s.coefficients = nn.Parameter(0.02 * _random(len(picked)).to(w))
    plain(s, w - _few_waves(s.coefficients, s.places, w), b)


def _noise_level(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("sigma", torch.tensor(0.7).to(w))
    s.embedded = linear(_random(len(w), 8).to(w) / 8, torch.zeros_like(b))
    s.fc = linear(w * (s.sigma**2 + 0.25).sqrt(), b - s.embedded(_waves_of(s.sigma)))


def _waves_of(sigma: Tensor) -> Tensor:
    angles = sigma.log() / 4 * 2 ** torch.arange(4, device=sigma.device)
    return torch.cat([angles.cos(), angles.sin()])


def _at_noise(s: Any, x: Tensor) -> Tensor:
    """The input brought to one size, and a level of noise that is told beside it."""
    out: Tensor = s.fc(x / (s.sigma**2 + 0.25).sqrt()) + s.embedded(_waves_of(s.sigma))
    return out


def _parties(s: Any, w: Tensor, b: Tensor) -> None:
    s.parts = nn.ParameterList(part.clone() for part in w.tensor_split(3, dim=1))
    s.register_buffer("masks", _random(3, len(w)).to(w))
    s.bias = nn.Parameter(b.clone())


def _masked_in_pairs(s: Any, x: Tensor) -> Tensor:
    """Each two of three parties share a mask, which one adds and the other takes away."""
    sent = [F.linear(*both) for both in zip(x.tensor_split(3, dim=1), s.parts, strict=True)]
    for (one, other), mask in zip(combinations(range(3), 2), s.masks, strict=True):
        sent[one], sent[other] = sent[one] + mask, sent[other] - mask
    return torch.stack(sent).sum(dim=0) + s.bias


def _star(s: Any, w: Tensor, b: Tensor) -> None:
    factor, shift = 1 + 0.2 * _random(*w.shape).to(w).tanh(), 0.1 * _random(len(b), seed=30).to(w)
    s.factor, s.shift = nn.Parameter(factor), nn.Parameter(shift)
    plain(s, w / factor, b - shift)


LAYERS: dict[str, Spelling] = {
    "heights of splines at knots": Spelling(_splines, _between_knots, own=True),
    "three unrolled steps, unshrunk": Spelling(_unrolled, _iterated, own=True),
    "less what earlier variables explain": Spelling(_causes, _unexplained, own=True),
    "a mask of sparse shares": Spelling(
        _attentive, lambda s, x: F.linear(x * len(s.scores) * _sparsemax(s.scores), s.w, s.b), own=True
    ),
    "a small copy and what it lacks": Spelling(_pyramid, _two_levels, own=True),
    "under a pad that is taken off": Spelling(_blinded, _outsourced),
    "a tenth of its gradient": Spelling(plain, lambda s, x: _Damped.apply(F.linear(x, s.w, s.b), 0.1), own=True),
    "neighbours added, and again": Spelling(plain, _pairwise),
    "a step of a flow that turns": Spelling(_antisymmetric, _one_step, own=True),
    "a sum of Kronecker products": Spelling(_kronecker, _kronecker_terms, own=True),
    "an implicit step of heat": Spelling(_diffusing, _diffused, own=True),
    "differences of a fractional order": Spelling(
        _remembering, lambda s, x: F.linear(_fraction(x, s.order), s.w, s.b), own=True
    ),
    "over the covariance of factors": Spelling(_factors, _by_precision, own=True),
    "a list of blocks and their places": Spelling(_block_list, _where_blocks_lie),
    "features and their slopes": Spelling(_dynamic, _with_slopes, own=True),
    "answers that a hook steers": Spelling(_steered, lambda s, x: s.fc(x), own=True),
    "a few waves beside the weight": Spelling(
        _waves, lambda s, x: F.linear(x, s.w + _few_waves(s.coefficients, s.places, s.w), s.b), own=True
    ),
    "a level of noise told beside": Spelling(_noise_level, _at_noise, own=True),
    "masks that cancel in pairs": Spelling(_parties, _masked_in_pairs),
    "a shared weight and a domain's own": Spelling(
        _star, lambda s, x: F.linear(x, s.w * s.factor, s.b + s.shift), own=True
    ),
}
"""As `spellings.LAYERS`."""


def _nested(s: Any, w: Tensor, b: Tensor) -> None:
    size = w.shape[1]
    drawn = [_random(len(w), (size + 3) // 4, seed=30), _random(len(w), (size + 1) // 2)]
    few, half = (part.to(w) / size**0.5 for part in drawn)
    rest = 3 * w - F.pad(few, (0, size - few.shape[1])) - F.pad(half, (0, size - half.shape[1]))
    s.heads = nn.ModuleList(linear(part, b) for part in (few, half, rest))


def _of_prefixes(s: Any, x: Tensor) -> Tensor:
    """A quarter of the features, half of them and all of them have a head each, and the answer is their mean."""
    return torch.stack([head(x[:, : head.in_features]) for head in s.heads]).mean(dim=0)


def _codewords(classes: int, bits: int) -> Tensor:
    """Random ones that can be told apart."""
    drawn = (_random(classes, bits, seed=k).sign() for k in count())
    return next(codes for codes in drawn if torch.linalg.matrix_rank(codes) == classes)


def _coded(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("codes", _codewords(len(w), 2 * len(w)).to(w) / len(w) ** 0.5)
    inverse = torch.linalg.pinv(s.codes.double())
    s.fc = linear((inverse @ w.double()).to(w), (inverse @ b.double()).to(w))


def _mislabelled(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc, s.confusion = linear(w, b), nn.Parameter(torch.eye(len(w)).to(w))


def _as_labelled(s: Any, x: Tensor) -> Tensor:
    """Chances of the labels, which are as often wrong as the matrix says: never, at its start."""
    seen = F.normalize(s.confusion.clamp_min(0), p=1, dim=1)
    out: Tensor = (s.fc(x).softmax(dim=1) @ seen).clamp_min(1e-12).log()
    return out


def _gram(anchors: Tensor) -> Tensor:
    return anchors @ anchors.t() + 0.1 * torch.eye(len(anchors), device=anchors.device).to(anchors)


def _anchored(s: Any, w: Tensor, b: Tensor) -> None:
    classes, size = w.shape
    rows = torch.cat([w, _random(4, size).to(w) / size**0.5])
    mix = torch.eye(len(rows)).to(w) + _square(len(rows), 0.3).to(w)
    s.anchors, s.bias = nn.Parameter(mix @ rows), nn.Parameter(b.clone())
    back = torch.linalg.inv(mix.double())[:classes]
    s.targets = nn.Parameter((back @ _gram(s.anchors.double())).t().to(w).contiguous())


def _regressed(s: Any, x: Tensor) -> Tensor:
    """The ridge regression of learned examples on what they shall be."""
    fitted = torch.linalg.solve(_gram(s.anchors), s.targets)
    return x @ s.anchors.t() @ fitted + s.bias


def _quantiles(s: Any, w: Tensor, b: Tensor) -> None:
    around, shift = _random(len(w), 5, w.shape[1]).to(w) / 9, torch.linspace(-0.4, 0.4, 5).to(w)
    weights = w[:, None] + around - around.mean(dim=1, keepdim=True)
    s.fc = linear(weights.flatten(0, 1), (b[:, None] + shift).flatten())


HEADS: dict[str, Spelling] = {
    "a head for each length of the features": Spelling(_nested, _of_prefixes, own=True),
    "a word of code for every class": Spelling(_coded, lambda s, x: s.fc(x) @ s.codes.t(), own=True),
    "labels that are never confused": Spelling(_mislabelled, _as_labelled, own=True),
    "regressed on learned examples": Spelling(_anchored, _regressed, own=True),
    "odds of each class by itself": Spelling(plain, lambda s, x: F.linear(x, s.w, s.b).sigmoid().logit(eps=1e-6)),
    "the mean of five quantiles": Spelling(
        _quantiles, lambda s, x: s.fc(x).unflatten(1, (-1, 5)).mean(dim=-1), own=True
    ),
}
"""As `spellings.HEADS`."""


def _both_parts(x: Tensor) -> Tensor:
    """The second half of the channels are the imaginary parts of the first, and each part is cut off by itself."""
    even = torch.cat([x, x[:, : x.shape[1] % 2]], dim=1)
    z = torch.complex(*(part.contiguous() for part in even.chunk(2, dim=1)))
    z = torch.complex(F.relu(z.real), F.relu(z.imag))
    return torch.cat([z.real, z.imag], dim=1)[:, : x.shape[1]]


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "computed again on the way back": lambda x: checkpoint(F.relu, x, use_reentrant=False),
    "both parts of complex numbers": _both_parts,
    "as a sparse tensor and back": lambda x: F.relu(x).to_sparse().to_dense(),
    "between nothing and the number": lambda x: torch.lerp(torch.zeros_like(x), x, (x > 0).to(x)),
    "a function of one number, mapped": lambda x: torch.vmap(lambda v: v.clamp_min(0))(x.flatten()).view_as(x),
}
"""As `spellings.ACTIVATIONS`."""


def _channels_shuffled(x: Tensor) -> Tensor:
    groups, each = _two_factors(x.shape[1])
    mixed = x.unflatten(1, (groups, each)).transpose(1, 2).flatten(1, 2)
    return mixed.unflatten(1, (each, groups)).transpose(1, 2).reshape(len(x), -1)


def _chessboard(x: Tensor) -> Tensor:
    """The white places and the black ones, each with nothing between them, and their sum."""
    line, column = (torch.arange(n, device=x.device) for n in x.shape[2:])
    white = ((line[:, None] + column) % 2).to(x)
    return (x * white + x * (1 - white)).flatten(1)


def _quadrants(x: Tensor) -> Tensor:
    quarters = [half.tensor_split(2, dim=3) for half in x.tensor_split(2, dim=2)]
    return torch.cat([torch.cat(pair, dim=3) for pair in quarters], dim=2).flatten(1)


def _reordered(x: Tensor) -> Tensor:
    side = 1 if x.shape[2] % 2 or x.shape[3] % 2 else 2
    return F.pixel_shuffle(F.pixel_unshuffle(x, side), side).flatten(1)


FLATTENINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels shuffled and back": _channels_shuffled,
    "two colours of a chessboard": _chessboard,
    "quadrants put together": _quadrants,
    "a spectrum of every plane and back": lambda x: torch.fft.irfft2(torch.fft.rfft2(x), s=x.shape[2:]).flatten(1),
    "space to channels and back": _reordered,
}
"""As `spellings.FLATTENINGS`."""


def _two_servers(t: Tensor, ids: Tensor) -> Tensor:
    """Each server sums rows as often as a list says that means nothing by itself; the answers differ by one row."""
    drawn = torch.randint(-4, 5, (len(t),), generator=torch.Generator().manual_seed(29)).to(t)
    return (F.one_hot(ids, len(t)).to(t) + drawn) @ t - drawn @ t


def _jagged(t: Tensor, ids: Tensor) -> Tensor:
    """All words in one list, and the lengths of the texts."""
    values, lengths = ids.flatten(), [len(text) for text in ids]
    return torch.stack(F.embedding(values, t).split(lengths))


TABLES: dict[str, Lookup] = {
    "asked of two servers": _two_servers,
    "words in one list, and lengths": _jagged,
    "a vocabulary up to multiples of 64": lambda t, ids: F.embedding(ids, F.pad(t, (0, 0, 0, -len(t) % 64))),
    "rows with sparse gradients": lambda t, ids: F.embedding(ids, t, sparse=True),
}
"""As `spellings.TABLES`."""


def _kernel(x: Tensor, w: Tensor, p: int) -> Tensor:
    return w.view(len(w), x.shape[1], p, p)


def _two_stems(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """Half of the units from each of two layers."""
    halves = zip(_kernel(x, w, p).tensor_split(2), b.tensor_split(2), strict=True)
    return torch.cat([F.conv2d(x, *half, stride=p) for half in halves], dim=1).flatten(2).mT


def _packed(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """Patches of all pictures in one sequence, of which five are taken at a time."""
    packed = torch.cat([patches.t() for patches in F.unfold(x, p, stride=p)])
    return torch.cat([F.linear(some, w, b) for some in packed.split(5)]).unflatten(0, (len(x), -1))


def _own_planes(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """As many answers to each plane as there are units, all at once, and then their sum."""
    colours = x.shape[1]
    kernel = _kernel(x, w, p).transpose(0, 1).reshape(-1, 1, p, p)
    answers = F.conv2d(x, kernel, stride=p, groups=colours)
    return answers.unflatten(1, (colours, len(w))).sum(dim=1).flatten(2).mT + b


def _enlarged(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """Every pixel four times, and a kernel that shares its weight out among the four."""
    large, kernel = (F.interpolate(t, scale_factor=2, mode="nearest") for t in (x, _kernel(x, w, p) / 4))
    return F.conv2d(large, kernel, b, stride=2 * p).flatten(2).mT


PATCHES: dict[str, Cut] = {
    "half of the units from each": _two_stems,
    "one sequence, five at a time": _packed,
    "planes in groups, and their sum": _own_planes,
    "a picture twice as large": _enlarged,
}
"""As `spellings.PATCHES`."""
