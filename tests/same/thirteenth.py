"""A thirteenth list of spellings, written blind and committed before any of them was read: books of codes, weights that
are decoded, state spaces, multivectors, polynomials of features, curves of weights, and gates that begin even."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from same.spellings import Cut, Lookup, Spelling, linear, plain


def _random(*shape: int, seed: int = 41) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _order(size: int, seed: int = 41) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed))


def _near_one(size: int, scale: float, seed: int = 41) -> Tensor:
    return torch.eye(size) + scale * _random(size, size, seed=seed) / size**0.5


def _before(w: Tensor, mapped: Tensor) -> Tensor:
    """The weight that has to follow a linear map, of which `mapped` holds the images of all unit rows."""
    return (w.double() @ torch.linalg.pinv(mapped.double()).mT).to(w).contiguous()


def _divisor(size: int) -> int:
    return max(k for k in range(1, math.isqrt(size) + 1) if size % k == 0)


def _books(s: Any, w: Tensor, b: Tensor) -> None:
    """Groups of four weights, each the sum of a code of either book, times the scale of its row."""
    s.inputs, s.scale = w.shape[1], nn.Parameter(w.abs().amax(dim=1, keepdim=True))
    groups = F.pad(w / s.scale, (0, -w.shape[1] % 4)).reshape(-1, 4)
    s.register_buffer("first", _order(len(groups)))
    s.register_buffer("second", _order(len(groups), seed=42) // 4)
    s.coarse, s.bias = nn.Parameter(0.4 * _random(len(groups) // 4 + 1, 4).to(w)), nn.Parameter(b.clone())
    s.fine = nn.Parameter((groups - s.coarse[s.second])[s.first.argsort()])


def _from_books(s: Any, x: Tensor) -> Tensor:
    codes = F.embedding(s.first, s.fine) + F.embedding(s.second, s.coarse)
    return F.linear(x, codes.view(len(s.bias), -1)[:, : s.inputs] * s.scale, s.bias)


def _latent(s: Any, w: Tensor, b: Tensor) -> None:
    s.latent, s.encoder = nn.Parameter(_random(6).to(w)), linear(_random(10, 6).to(w) / 2, _random(10, seed=42).to(w))
    wanted, hidden = torch.cat([w.flatten(), b]), s.encoder(s.latent).tanh()
    decoder = 0.02 * _random(len(wanted), 10).to(w)
    s.shape, s.decoder = tuple(w.shape), linear(decoder, wanted - decoder @ hidden)


def _decoded(s: Any, x: Tensor) -> Tensor:
    units, inputs = s.shape
    weight, bias = s.decoder(s.encoder(s.latent).tanh()).split([units * inputs, units])
    return F.linear(x, weight.view(units, inputs), bias)


def _steps(s: Any, w: Tensor, b: Tensor) -> None:
    plain(s, torch.diff(w, dim=0, prepend=torch.zeros_like(w[:1])), torch.diff(b, prepend=torch.zeros_like(b[:1])))


def _state_space(s: Any, w: Tensor, b: Tensor) -> None:
    """A state that turns, in continuous time, and is read after the last pixel."""
    size = w.shape[1] + w.shape[1] % 2
    angle = 2 * math.pi * (torch.arange(size // 2) + 0.5) / size
    s.log_step = nn.Parameter(torch.zeros(1).to(w))
    rates = torch.stack([torch.zeros(size // 2), -(angle / 2).tan(), (angle / 2).tan(), torch.zeros(size // 2)], dim=1)
    s.rates = nn.Parameter((2 * torch.block_diag(*rates.view(-1, 2, 2))).to(w))
    s.enters = nn.Parameter((1 + 0.1 * _random(size)).to(w))
    s.read = linear(_before(w, _states(s, torch.eye(w.shape[1]).to(w))), b)


def _states(s: Any, x: Tensor) -> Tensor:
    half = s.rates * s.log_step.exp() / 2
    one = torch.eye(len(half), device=x.device).to(x)
    step = torch.linalg.solve(one - half, one + half)
    enters = torch.linalg.solve(one - half, s.enters) * s.log_step.exp()
    state = x.new_zeros(len(x), len(half))
    for pixel in x.unbind(dim=1):
        state = state @ step.t() + pixel[:, None] * enters
    return state


def _products() -> Tensor:
    """Of multivectors of the plane (1, e1, e2, e12): entry [i, j, k] is the share of k in i times j."""
    basis = torch.tensor([[[1, 0], [0, 1]], [[1, 0], [0, -1]], [[0, 1], [1, 0]], [[0, 1], [-1, 0]]]).float()
    return torch.einsum("iab,jbc,kac->ijk", basis, basis, basis) / 2


def _multivectors(s: Any, w: Tensor, b: Tensor) -> None:
    """A weight from the left for each basis multivector from the right."""
    s.register_buffer("table", _products().to(w))
    s.inputs, s.bias = w.shape[1], nn.Parameter(b.clone())
    blocks = F.pad(w, (0, -w.shape[1] % 4, 0, -w.shape[0] % 4)).unflatten(1, (-1, 4)).unflatten(0, (-1, 4))
    products = torch.einsum("ipj,jmq->impq", s.table, s.table).reshape(16, 16)
    wanted = blocks.permute(3, 1, 0, 2)
    left = torch.linalg.solve(products.t(), wanted.reshape(16, -1)).view(wanted.shape)
    s.left = nn.Parameter(left.permute(2, 3, 0, 1).contiguous())


def _both_sides(s: Any, x: Tensor) -> Tensor:
    x = F.pad(x, (0, -x.shape[1] % 4)).unflatten(1, (-1, 4))
    from_left = torch.einsum("ncp,ocim,ipj->nojm", x, s.left, s.table)
    return torch.einsum("nojm,jmq->noq", from_left, s.table).flatten(1)[:, : len(s.bias)] + s.bias


def _planes(s: Any, w: Tensor, b: Tensor) -> None:
    """Groups of four weights as 24 planes of signs, each with a size that is learned."""
    groups, planes, sizes = F.pad(w, (0, -w.shape[1] % 4)).unflatten(1, (-1, 4)), [], []
    for _ in range(24):
        planes.append(torch.where(groups < 0, -1.0, 1.0).to(w))
        sizes.append(groups.abs().mean(dim=2))
        groups = groups - planes[-1] * sizes[-1][..., None]
    sizes[0] = sizes[0] + (groups * planes[0]).mean(dim=2)
    s.register_buffer("planes", torch.stack(planes))
    s.sizes, s.bias = nn.Parameter(torch.stack(sizes)), nn.Parameter(b.clone())


def _weighed(s: Any, x: Tensor) -> Tensor:
    return F.linear(x, (s.planes * s.sizes[..., None]).sum(dim=0).flatten(1)[:, : x.shape[1]], s.bias)


def _edit(s: Any, w: Tensor, b: Tensor) -> None:
    rank = min(4, len(w))
    s.raw = nn.Parameter(torch.linalg.qr(_random(len(w), rank))[0].to(w) + 0.1 * _random(len(w), rank, seed=42).to(w))
    basis = torch.linalg.qr(s.raw.double())[0]
    says = basis.t().to(w) + 0.4 * _random(rank, len(w), seed=43).to(w) / len(w) ** 0.5
    s.source = linear(says, 0.1 * _random(rank, seed=44).to(w))
    edited = torch.eye(len(w)).double() + basis @ (s.source.weight.double() - basis.t())
    offset = b.double() - basis @ s.source.bias.double()
    s.fc = linear(torch.linalg.solve(edited, w.double()).to(w), torch.linalg.solve(edited, offset).to(w))


def _edited(s: Any, x: Tensor) -> Tensor:
    """In a learned subspace the answers are replaced by what another layer says."""
    answers, basis = s.fc(x), torch.linalg.qr(s.raw)[0]
    out: Tensor = answers + (s.source(answers) - answers @ basis) @ basis.t()
    return out


def _canonical(s: Any, w: Tensor, b: Tensor) -> None:
    colours = _divisor(w.shape[1])
    places, rank = w.shape[1] // colours, 2 * w.shape[1]
    s.colours, s.places = (nn.Parameter(_random(k, rank, seed=seed).to(w)) for k, seed in ((colours, 41), (places, 42)))
    s.read = linear(_before(w, _components(s, torch.eye(w.shape[1]).to(w))), b)


def _components(s: Any, x: Tensor) -> Tensor:
    return torch.einsum("ncp,cr,pr->nr", x.unflatten(1, (len(s.colours), -1)), s.colours, s.places)


def _legendre(s: Any, w: Tensor, b: Tensor) -> None:
    """Of a pixel x, with t = 2x - 1, x is half of P0(t) and P1(t); there is no bias but the sum of all P0."""
    first = (w / 2 + (b / w.shape[1])[:, None]).clone()
    s.coefficients = nn.Parameter(torch.stack([first, w / 2, torch.zeros_like(w), torch.zeros_like(w)], dim=2))


def _polynomials(s: Any, x: Tensor) -> Tensor:
    t = 2 * x - 1
    values = torch.stack([torch.ones_like(t), t, (3 * t**2 - 1) / 2, (5 * t**3 - 3 * t) / 2], dim=2)
    return torch.einsum("nik,oik->no", values, s.coefficients)


def _graph(s: Any, w: Tensor, b: Tensor) -> None:
    s.sources, s.targets = (nn.Parameter(_random(w.shape[1], 8, seed=k).to(w) / 2) for k in (41, 42))
    plain(s, _before(w, _spread(s, torch.eye(w.shape[1]).to(w))), b)


def _spread(s: Any, x: Tensor) -> Tensor:
    """Every pixel hears of those that its embedding is near to."""
    return x + 0.5 * x @ (s.sources @ s.targets.t()).softmax(dim=1)


def _excited(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc, few = linear(w, b), max(w.shape[1] // 4, 1)
    s.squeeze = linear(_random(few, w.shape[1]).to(w) / w.shape[1] ** 0.5, 0.1 * _random(few, seed=42).to(w))
    s.excite = linear(torch.zeros(w.shape[1], few).to(w), torch.zeros(w.shape[1]).to(w))


def _pieces(s: Any, w: Tensor, b: Tensor) -> None:
    s.pieces = linear(w.repeat(3, 1), b.repeat(3))


def _denominator(s: Any, w: Tensor, b: Tensor) -> None:
    s.above, s.below = linear(w, b), nn.Parameter(torch.zeros(w.shape[1], 1).to(w))


def _fading(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("alpha", torch.tensor(0.7).to(w))
    few = (w.shape[1] + 1) // 2
    s.old = linear(_random(len(w), few).to(w) / few**0.5, 0.1 * _random(len(w), seed=42).to(w))
    images = _coarse(torch.eye(w.shape[1]).to(w))
    s.new = linear((w - 0.3 * s.old.weight @ images.t()) / 0.7, (b - 0.3 * s.old.bias) / 0.7)


def _coarse(x: Tensor) -> Tensor:
    return F.avg_pool1d(x.unsqueeze(1), 2, ceil_mode=True).squeeze(1)


def _curve(s: Any, w: Tensor, b: Tensor) -> None:
    s.t = 0.3
    start, end = (linear(_random(*w.shape, seed=k).to(w) / w.shape[1] ** 0.5, _random(len(w)).to(w)) for k in (41, 42))
    near, bent, far = (1 - s.t) ** 2, 2 * s.t * (1 - s.t), s.t**2
    weight, bias = w - near * start.weight - far * end.weight, b - near * start.bias - far * end.bias
    s.bends = nn.ModuleList([start, linear(weight / bent, bias / bent), end])


def _on_the_curve(s: Any, x: Tensor) -> Tensor:
    """A Bézier curve with three points of control, each a whole layer."""
    shares = (1 - s.t) ** 2, 2 * s.t * (1 - s.t), s.t**2
    weight = sum(share * bend.weight for share, bend in zip(shares, s.bends, strict=True))
    return F.linear(x, weight, sum(share * bend.bias for share, bend in zip(shares, s.bends, strict=True)))


def _kernels(s: Any, w: Tensor, b: Tensor) -> None:
    s.route = linear(_random(3, w.shape[1]).to(w) / w.shape[1] ** 0.5, 0.1 * _random(3, seed=42).to(w))
    plain(s, w.repeat(3, 1, 1), b.repeat(3, 1))


def _mixed_anew(s: Any, x: Tensor) -> Tensor:
    shares = s.route(x).softmax(dim=1)
    weights, biases = torch.einsum("nk,koi->noi", shares, s.w), shares @ s.b
    return torch.baddbmm(biases.unsqueeze(2), weights, x.unsqueeze(2)).squeeze(2)


class _Preconditioned(torch.autograd.Function):
    """A weight as it is, whose gradient is multiplied by a matrix on its way."""

    generate_vmap_rule = True

    @staticmethod
    def forward(w: Tensor, by: Tensor) -> Tensor:
        del by
        return w.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        del output
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0] @ ctx.saved_tensors[0], None


def _preconditioner(s: Any, w: Tensor, b: Tensor) -> None:
    factor = _near_one(w.shape[1], 0.4)
    s.register_buffer("by", (factor @ factor.t()).to(w))
    plain(s, w, b)


def _members(s: Any, w: Tensor, b: Tensor) -> None:
    shares = torch.tensor([0.5, 0.3, 0.2]).to(w)
    apart, off = _random(3, *w.shape).to(w) / w.shape[1] ** 0.5, 0.1 * _random(3, len(w)).to(w)
    s.log_shares = nn.Parameter(shares.log())
    s.weight = nn.Parameter(w + apart - torch.einsum("m,moi->oi", shares, apart))
    s.bias = nn.Parameter(b + off - shares @ off)
    s.shell = [nn.Linear(w.shape[1], w.shape[0], device="meta")]  # in a list, so that it is no module of this one


def _averaged(s: Any, x: Tensor) -> Tensor:
    answers = torch.vmap(lambda w, b: functional_call(s.shell[0], {"weight": w, "bias": b}, (x,)))(s.weight, s.bias)
    return torch.einsum("m,mno->no", s.log_shares.softmax(dim=0), answers)


def _monarch(s: Any, w: Tensor, b: Tensor) -> None:
    one = _divisor(w.shape[1])
    other = w.shape[1] // one
    s.first = nn.Parameter(torch.stack([_near_one(other, 0.5, seed=k) for k in range(one)]).to(w))
    s.second = nn.Parameter(torch.stack([_near_one(one, 0.5, seed=100 + k) for k in range(other)]).to(w))
    plain(s, _before(w, _shuffled_blocks(s, torch.eye(w.shape[1]).to(w))), b)


def _shuffled_blocks(s: Any, x: Tensor) -> Tensor:
    x = torch.einsum("nbi,bji->njb", x.unflatten(1, (len(s.first), -1)), s.first)
    return torch.einsum("nbi,bji->nbj", x, s.second).flatten(1)


LAYERS: dict[str, Spelling] = {
    "codes of two books, added": Spelling(_books, _from_books, own=True),
    "a weight decoded from one latent": Spelling(_latent, _decoded, own=True),
    "rows as steps from the last": Spelling(
        _steps, lambda s, x: F.linear(x, s.w.cumsum(dim=0), s.b.cumsum(dim=0)), own=True
    ),
    "a state by the bilinear rule": Spelling(_state_space, lambda s, x: s.read(_states(s, x)), own=True),
    "multivectors multiplied from both sides": Spelling(_multivectors, _both_sides, own=True),
    "signs of many planes, weighed": Spelling(_planes, _weighed, own=True),
    "answers edited in a subspace": Spelling(_edit, _edited, own=True),
    "sums of products of three vectors": Spelling(_canonical, lambda s, x: s.read(_components(s, x)), own=True),
    "hyperbolic sines of what is kept": Spelling(
        lambda s, w, b: plain(s, torch.asinh(20 * w), torch.asinh(20 * b)),
        lambda s, x: F.linear(x, s.w.sinh() / 20, s.b.sinh() / 20),
        own=True,
    ),
    "Legendre polynomials of every feature": Spelling(_legendre, _polynomials, own=True),
    "a learned graph between the pixels": Spelling(_graph, lambda s, x: F.linear(_spread(s, x), s.w, s.b), own=True),
    "squeezed and excited, evenly": Spelling(
        _excited, lambda s, x: s.fc(x * (2 * s.excite(s.squeeze(x).relu()).sigmoid())), own=True
    ),
    "a smooth maximum of equal pieces": Spelling(
        _pieces, lambda s, x: s.pieces(x).unflatten(1, (3, -1)).logsumexp(dim=1) - math.log(3), own=True
    ),
    "over a denominator that begins even": Spelling(
        _denominator, lambda s, x: s.above(x) / (1 + x @ s.below), own=True
    ),
    "a new layer faded in": Spelling(_fading, lambda s, x: torch.lerp(s.old(_coarse(x)), s.new(x), s.alpha), own=True),
    "a point on curved weights": Spelling(_curve, _on_the_curve, own=True),
    "kernels mixed anew for every picture": Spelling(_kernels, _mixed_anew, own=True),
    "a gradient preconditioned on its way": Spelling(
        _preconditioner, lambda s, x: F.linear(x, _Preconditioned.apply(s.w, s.by), s.b), own=True
    ),
    "members mapped, then averaged": Spelling(_members, _averaged, own=True),
    "blocks, a shuffle, and blocks": Spelling(
        _monarch, lambda s, x: F.linear(_shuffled_blocks(s, x), s.w, s.b), own=True
    ),
}
"""As `spellings.LAYERS`."""


def _partition(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc, s.log_partition = linear(w, b), linear(_random(1, w.shape[1]).to(w) / 7, b[:1] + 0.4)


def _heat(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc, s.heat = linear(w, b), linear(torch.zeros_like(w[:1]), torch.zeros_like(b[:1]))


def _teacher(s: Any, w: Tensor, b: Tensor) -> None:
    s.teacher = linear(_random(*w.shape).to(w) / w.shape[1] ** 0.5, 0.1 * _random(len(w), seed=42).to(w))
    s.teacher.requires_grad_(False)
    s.student = linear(w - s.teacher.weight, b - s.teacher.bias)


def _machine(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc, s.factors = linear(w, b), nn.Parameter(_random(w.shape[1], 5).to(w) / 7)
    s.pairs = nn.Parameter(torch.zeros(5, len(w)).to(w))


def _with_pairs(s: Any, x: Tensor) -> Tensor:
    """A factorisation machine, whose products of two features have no say yet."""
    products = ((x @ s.factors).square() - x.square() @ s.factors.square()) / 2
    return F.linear(x, s.fc.weight, s.fc.bias) + products @ s.pairs


def _centres(s: Any, w: Tensor, b: Tensor) -> None:
    plain(s, w.repeat_interleave(2, dim=0), b.repeat_interleave(2))


def _neighbours(s: Any, w: Tensor, b: Tensor) -> None:
    s.kernel = nn.Parameter(torch.tensor([[[0.2, 1.0, -0.3]]]).to(w))
    images = F.conv1d(torch.eye(len(w)).to(w).unsqueeze(1), s.kernel, padding=1).squeeze(1).t()
    s.fc = linear(torch.linalg.solve(images, w), torch.linalg.solve(images, b))


HEADS: dict[str, Spelling] = {
    "less a partition that is learned": Spelling(_partition, lambda s, x: s.fc(x) - s.log_partition(x), own=True),
    "a heat that begins at one": Spelling(_heat, lambda s, x: s.fc(x) / s.heat(x).exp(), own=True),
    "a teacher's scores, and a student's": Spelling(_teacher, lambda s, x: s.teacher(x) + s.student(x)),
    "pairs of features, silent yet": Spelling(_machine, _with_pairs, own=True),
    "two centres for every class": Spelling(
        _centres,
        lambda s, x: F.linear(x, s.w, s.b).unflatten(1, (-1, 2)).logsumexp(dim=2) - math.log(2),
        own=True,
    ),
    "a convolution along the classes": Spelling(
        _neighbours, lambda s, x: F.conv1d(s.fc(x).unsqueeze(1), s.kernel, padding=1).squeeze(1), own=True
    ),
}
"""As `spellings.HEADS`."""


def _beside_nothing(x: Tensor) -> Tensor:
    return torch.stack([torch.zeros_like(x), x], dim=-1)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sorted beside nothing, the last": lambda x: _beside_nothing(x).sort(dim=-1).values[..., -1],
    "a running maximum from nothing": lambda x: _beside_nothing(x).cummax(dim=-1).values[..., -1],
    "the larger, where both are numbers": lambda x: torch.fmax(x, torch.zeros_like(x)),
    "the highest quantile beside nothing": lambda x: _beside_nothing(x).quantile(1.0, dim=-1),
    "signs copied, and the mean": lambda x: (x + torch.copysign(x, torch.ones_like(x))) / 2,
}
"""As `spellings.ACTIVATIONS`."""


def _zigzag(x: Tensor) -> Tensor:
    """Pixels along the diagonals, as in a JPEG file, and put back."""
    high, wide = x.shape[2:]
    places = sorted((i + j, i if (i + j) % 2 else j, i * wide + j) for i in range(high) for j in range(wide))
    order = torch.tensor([place for _, _, place in places], device=x.device)
    return x.flatten(2)[:, :, order][:, :, order.argsort()].flatten(1)


FLATTENINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "a mirror beside it, cut off": lambda x: torch.cat([x, x.flip(3)], dim=3)[..., : x.shape[3]].flatten(1),
    "along diagonals and back": _zigzag,
    "every pixel twice, every second taken": lambda x: x.flatten(1).repeat_interleave(2, dim=1)[:, ::2],
    "a diagonal of blocks, summed": lambda x: (
        torch.block_diag(*x.flatten(1).unsqueeze(1)).unflatten(1, (len(x), -1)).sum(dim=1)
    ),
    "the mean of three copies": lambda x: x.expand(3, *x.shape).mean(dim=0).flatten(1),
}
"""As `spellings.FLATTENINGS`."""


def _sharp(t: Tensor, ids: Tensor) -> Tensor:
    """Attention over all words, so sharp that only one is seen."""
    return (1e3 * F.one_hot(ids, len(t)).to(t)).softmax(dim=-1) @ t


def _between_sums(t: Tensor, ids: Tensor) -> Tensor:
    sums = F.pad(t.double().cumsum(dim=0), (0, 0, 1, 0))
    return (F.embedding(ids + 1, sums) - F.embedding(ids, sums)).to(t)


def _directions(t: Tensor, ids: Tensor) -> Tensor:
    lengths = t.norm(dim=1, keepdim=True)
    return F.embedding(ids, t / lengths) * F.embedding(ids, lengths)


def _started(t: Tensor, ids: Tensor) -> Tensor:
    """A token at the start of every text, of a row behind all words, that is cut off again."""
    rows = torch.cat([t, torch.ones_like(t[:1])])
    return F.embedding(F.pad(ids, (1, 0), value=len(t)), rows)[:, 1:]


TABLES: dict[str, Lookup] = {
    "one word seen by sharp attention": _sharp,
    "between two running sums": _between_sums,
    "directions and lengths of words": _directions,
    "a start token, cut off": _started,
}
"""As `spellings.TABLES`."""


def _kernel(x: Tensor, w: Tensor, p: int) -> Tensor:
    return w.view(len(w), x.shape[1], p, p)


def _brightness(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """The mean of a patch, and what is left without it."""
    patches = F.unfold(x, p, stride=p).mT
    mean = patches.mean(dim=2, keepdim=True)
    return F.linear(patches - mean, w) + mean * w.sum(dim=1) + b


def _upside_down(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    answers = F.conv2d(x.flip(2, 3), _kernel(x, w, p).flip(2, 3), b, stride=p)
    return answers.flip(2, 3).flatten(2).mT


def _one_unit(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    kernels = _kernel(x, w, p).split(1)
    maps = [F.conv2d(x, kernel, offset, stride=p) for kernel, offset in zip(kernels, b.split(1), strict=True)]
    return torch.cat(maps, dim=1).flatten(2).mT


def _split(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    return F.linear(torch.stack([t.flatten(1) for s in x.split(p, dim=2) for t in s.split(p, dim=3)], dim=1), w, b)


PATCHES: dict[str, Cut] = {
    "a patch's brightness, and the rest": _brightness,
    "upside down, and turned back": _upside_down,
    "a map for one unit each": _one_unit,
    "split by lines, then by columns": _split,
}
"""As `spellings.PATCHES`."""
