"""A fourteenth list of spellings, written blind and committed before any of them was read: signals with their phases,
weights as shares and as differences, hashed features, heads as energies and evidence, and attention as it is cached,
packed and merged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from same import attention
from same.spellings import Cut, Lookup, Spelling, linear, plain


def _random(*shape: int, seed: int = 51) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _order(size: int, seed: int = 51) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed))


def _before(w: Tensor, mapped: Tensor) -> Tensor:
    """The weight that has to follow a linear map, of which `mapped` holds the images of all unit rows."""
    return torch.linalg.solve(mapped.double(), w.double().t()).t().to(w).contiguous()


def _cosines(size: int) -> Tensor:
    """The cosine transform, a frequency a row, each of length one."""
    at = torch.arange(size, dtype=torch.float64)
    table = (math.pi / size * (at + 0.5) * at[:, None]).cos() * (2 / size) ** 0.5
    table[0] /= 2**0.5
    return table


def _normed(s: Any, w: Tensor, b: Tensor) -> None:
    draw = torch.rand(3, w.shape[1], generator=torch.Generator().manual_seed(51)).to(w)
    s.register_buffer("mean", draw[0])
    s.register_buffer("var", 0.1 + 0.3 * draw[1])
    s.gain, s.shift = nn.Parameter(0.5 + draw[2]), nn.Parameter(0.1 * _random(w.shape[1]).to(w))
    times = s.gain / (s.var + 1e-5).sqrt()
    plain(s, w / times, b + w @ (s.mean - s.shift / times))


def _over_statistics(s: Any, x: Tensor) -> Tensor:
    """A batch norm of the features themselves, by its running statistics."""
    return F.linear(F.batch_norm(x, s.mean, s.var, s.gain, s.shift, training=False), s.w, s.b)


def _turned(x: Tensor) -> Tensor:
    """The analytic signal along a row: what it is, and what it is a quarter of a turn later."""
    size = x.shape[1]
    keep = torch.zeros(size, device=x.device, dtype=x.dtype)
    keep[0], keep[1 : (size + 1) // 2] = 1, 2
    if size % 2 == 0:
        keep[size // 2] = 1
    signal = torch.fft.ifft(torch.fft.fft(x) * keep)
    return torch.cat([signal.real, signal.imag], dim=1)


def _analytic(s: Any, w: Tensor, b: Tensor) -> None:
    late = _random(*w.shape).to(w) / w.shape[1] ** 0.5
    images = _turned(torch.eye(w.shape[1]).to(w))[:, w.shape[1] :]
    s.fc = linear(torch.cat([w - late @ images.t(), late], dim=1), b)


def _scalars(s: Any, w: Tensor, b: Tensor) -> None:
    s.before, s.times, s.after = (nn.Parameter(torch.full((1,), k).to(w)) for k in (0.1, 1.5, -0.2))
    plain(s, w / 1.5, b - 0.1 * w.sum(dim=1) + 0.2)


def _currents(s: Any, w: Tensor, b: Tensor) -> None:
    def inverse(positive: Tensor) -> Tensor:
        return positive + (-torch.expm1(-positive)).log()

    s.excites, s.inhibits = (nn.Parameter(inverse(part.relu() + 0.3)) for part in (w, -w))
    s.b = nn.Parameter(b.clone())


def _shares(s: Any, w: Tensor, b: Tensor) -> None:
    floor = w.amin(dim=1, keepdim=True) - 0.1
    size = (w - floor).sum(dim=1, keepdim=True)
    s.floor, s.size, s.shares = nn.Parameter(floor), nn.Parameter(size), nn.Parameter(((w - floor) / size).log())
    s.b = nn.Parameter(b.clone())


def _by_distance(s: Any, x: Tensor) -> Tensor:
    """Products as what the squares of two vectors say that the square of their difference does not."""
    apart = (x.unsqueeze(1) - s.w).square().sum(dim=2)
    return (x.square().sum(dim=1, keepdim=True) + s.w.square().sum(dim=1) - apart) / 2 + s.b


def _hashed(s: Any, w: Tensor, b: Tensor) -> None:
    buckets = 2 * w.shape[1] + 1
    s.register_buffer("bucket", _order(buckets)[: w.shape[1]])
    s.register_buffer("sign", torch.where(_random(w.shape[1]) < 0, -1.0, 1.0).to(w))
    wide = torch.zeros(len(w), buckets).to(w)
    wide[:, s.bucket] = w * s.sign
    plain(s, wide, b)


def _in_buckets(s: Any, x: Tensor) -> Tensor:
    found = x.new_zeros(len(x), s.w.shape[1]).index_add(1, s.bucket, x * s.sign)
    return F.linear(found, s.w, s.b)


def _from_last(s: Any, w: Tensor, b: Tensor) -> None:
    plain(s, w, b)
    s.level = nn.Parameter(w.sum(dim=1))


def _concept(s: Any, w: Tensor, b: Tensor) -> None:
    basis = torch.linalg.qr(_random(w.shape[1], min(4, w.shape[1])))[0].to(w)
    s.register_buffer("basis", basis)
    one, other = (_random(*w.shape, seed=k).to(w) / w.shape[1] ** 0.5 for k in (51, 52))
    s.concept = nn.Parameter(w + one - one @ basis @ basis.t())
    s.rest = linear(w + other @ basis @ basis.t(), b)


def _without_concept(s: Any, x: Tensor) -> Tensor:
    seen = x @ s.basis @ s.basis.t()
    out: Tensor = s.rest(x - seen) + F.linear(seen, s.concept)
    return out


def _square(s: Any, w: Tensor, b: Tensor) -> None:
    s.square, s.units = nn.Parameter(0.1 * _random(8, 8).to(w)), len(w)
    plain(s, w - _folded(s, torch.eye(w.shape[1]).to(w)).t(), b)


def _folded(s: Any, x: Tensor) -> Tensor:
    few = F.pad(x, (0, -x.shape[1] % 8)).unflatten(1, (-1, 8)).sum(dim=1) @ s.square.t()
    return few.repeat(1, -(-s.units // 8))[:, : s.units]


def _relative(s: Any, w: Tensor, b: Tensor) -> None:
    s.up, s.down = (nn.Parameter(0.3 * _random(*k).to(w)) for k in ((len(w), 4), (4, w.shape[1])))
    times = 1 + 0.3 * (s.up @ s.down)
    s.base, s.b = nn.Parameter(w / times), nn.Parameter(b.clone())


def _diagonals(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("waves", _cosines(w.shape[1]).to(w))
    s.first, s.second = (nn.Parameter((0.2 * _random(w.shape[1], seed=k)).exp().to(w)) for k in (51, 52))
    plain(s, _before(w, _between_transforms(s, torch.eye(w.shape[1]).to(w))), b)


def _between_transforms(s: Any, x: Tensor) -> Tensor:
    return ((x * s.first) @ s.waves.t() * s.second) @ s.waves


class _Traced(nn.Module):
    def __init__(self, w: Tensor, b: Tensor) -> None:
        super().__init__()
        plain(self, w, b)

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(torch.matmul(x, torch.transpose(self.w, 0, 1)), self.b)  # type: ignore[arg-type]


def _graph(s: Any, w: Tensor, b: Tensor) -> None:
    s.graph = torch.fx.symbolic_trace(_Traced(w, b))


def _by_slices(s: Any, x: Tensor) -> Tensor:
    out = x.new_empty(len(x), len(s.w))
    for start in range(0, len(x), 3):
        out[start : start + 3] = F.linear(x[start : start + 3], s.w, s.b)
    return out


def _slope(s: Any, w: Tensor, b: Tensor) -> None:
    plain(s, w, b)
    s.slope = nn.Parameter(torch.ones_like(b))


def _gates(s: Any, w: Tensor, b: Tensor) -> None:
    s.gates = nn.Parameter(0.3 * _random(w.shape[1]).to(w))
    plain(s, w / (s.gates.softmax(dim=0) * w.shape[1]), b)


def _centre(s: Any, w: Tensor, b: Tensor) -> None:
    s.centre = nn.Parameter(0.4 + 0.1 * _random(w.shape[1]).to(w))
    plain(s, w, b + w @ s.centre)


LAYERS: dict[str, Spelling] = {
    "running statistics of the features": Spelling(_normed, _over_statistics, own=True),
    "an analytic signal, both parts": Spelling(_analytic, lambda s, x: s.fc(_turned(x)), own=True),
    "scalar biases around it, and a multiplier": Spelling(
        _scalars, lambda s, x: s.times * F.linear(x + s.before, s.w) + s.b + s.after, own=True
    ),
    "excitation less inhibition": Spelling(
        _currents, lambda s, x: F.linear(x, F.softplus(s.excites) - F.softplus(s.inhibits), s.b), own=True
    ),
    "shares of a row, its size and its floor": Spelling(
        _shares, lambda s, x: F.linear(x, s.shares.softmax(dim=1) * s.size + s.floor, s.b), own=True
    ),
    "what squared distances leave": Spelling(plain, _by_distance),
    "features hashed to signed buckets": Spelling(_hashed, _in_buckets, own=True),
    "less the last value, and its level": Spelling(
        _from_last, lambda s, x: F.linear(x - x[:, -1:], s.w, s.b) + x[:, -1:] * s.level, own=True
    ),
    "a concept taken out and read apart": Spelling(_concept, _without_concept, own=True),
    "a square update, folded and repeated": Spelling(
        _square, lambda s, x: F.linear(x, s.w, s.b) + _folded(s, x), own=True
    ),
    "a weight changed by shares of itself": Spelling(
        _relative, lambda s, x: F.linear(x, s.base + 0.3 * s.base * (s.up @ s.down), s.b), own=True
    ),
    "diagonals between cosine transforms": Spelling(
        _diagonals, lambda s, x: F.linear(_between_transforms(s, x), s.w, s.b), own=True
    ),
    "traced to a graph": Spelling(_graph, lambda s, x: s.graph(x)),
    "slices written into an empty answer": Spelling(plain, _by_slices),
    "a slope below nothing that begins at one": Spelling(
        _slope, lambda s, x: F.prelu(F.linear(x, s.w, s.b), s.slope), own=True
    ),
    "gates that share out the features": Spelling(
        _gates, lambda s, x: F.linear(x * (s.gates.softmax(dim=0) * x.shape[1]), s.w, s.b), own=True
    ),
    "a learned centre taken off": Spelling(_centre, lambda s, x: F.linear(x - s.centre, s.w, s.b), own=True),
}
"""As `spellings.LAYERS`."""


def _means(s: Any, w: Tensor, b: Tensor) -> None:
    plain(s, w, b + w.square().sum(dim=1) / 2)


def _silent(s: Any, w: Tensor, b: Tensor) -> None:
    s.wide, s.enter = linear(w, b), linear(_random(16, w.shape[1]).to(w) / w.shape[1] ** 0.5, _random(16).to(w) / 7)
    s.leave = nn.Parameter(torch.zeros(len(w), 16).to(w))


def _common(s: Any, w: Tensor, b: Tensor) -> None:
    s.common = nn.Parameter(_random(w.shape[1]).to(w) / w.shape[1] ** 0.5)
    plain(s, w - s.common, b)


def _nuisance(s: Any, w: Tensor, b: Tensor) -> None:
    s.classes, s.sources = linear(w, b), linear(_random(3, w.shape[1]).to(w) / 7, _random(3, seed=52).to(w))


def _sites(s: Any, w: Tensor, b: Tensor) -> None:
    order = _order(len(w))
    s.classes, half = len(w), len(w) // 2
    s.register_buffer("here", order[:half])
    s.register_buffer("there", order[half:])
    s.one, s.other = (linear(w[k], b[k]) for k in (s.here, s.there))


def _in_slots(s: Any, x: Tensor) -> Tensor:
    empty = x.new_zeros(len(x), s.classes)
    return empty.index_copy(1, s.here, s.one(x)).index_copy(1, s.there, s.other(x))


def _transition(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc, s.transition = linear(w, b), nn.Parameter(torch.eye(len(w)).to(w))


def _experts(s: Any, w: Tensor, b: Tensor) -> None:
    s.cut = w.shape[1] // 2
    s.one, s.other = linear(w[:, : s.cut], 0.3 * b), linear(w[:, s.cut :], 0.7 * b)


def _digits(s: Any, w: Tensor, b: Tensor) -> None:
    base = math.isqrt(len(w) - 1) + 1
    number = torch.arange(len(w))
    s.register_buffer("high", number // base)
    s.register_buffer("low", number % base)
    s.highs, s.lows = (nn.Parameter(_random(base, w.shape[1], seed=k).to(w) / w.shape[1] ** 0.5) for k in (51, 52))
    plain(s, w - s.highs[s.high] - s.lows[s.low], b)


def _baseline(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc, s.expected = linear(w, 0.3 * _random(len(w)).to(w)), nn.Parameter(b.clone())


HEADS: dict[str, Spelling] = {
    "energies, negated": Spelling(lambda s, w, b: plain(s, -w, -b), lambda s, x: -F.linear(x, s.w, s.b)),
    "squared distances to means, with a handicap": Spelling(
        _means, lambda s, x: s.b - (x.unsqueeze(1) - s.w).square().sum(dim=2) / 2, own=True
    ),
    "a hidden layer beside it, silent yet": Spelling(
        _silent, lambda s, x: s.wide(x) + F.linear(s.enter(x).relu(), s.leave), own=True
    ),
    "a vector that all classes share": Spelling(_common, lambda s, x: F.linear(x, s.w + s.common, s.b), own=True),
    "logits of a distribution": Spelling(
        plain, lambda s, x: Categorical(logits=F.linear(x, s.w, s.b), validate_args=False).logits
    ),
    "a nuisance summed out": Spelling(
        _nuisance,
        lambda s, x: (s.classes(x).unsqueeze(2) + s.sources(x).unsqueeze(1)).logsumexp(dim=2),
        own=True,
    ),
    "what each feature says of the classes": Spelling(
        plain,
        lambda s, x: F.linear(x, s.w.log_softmax(dim=0) + math.log(len(s.w)), s.b.log_softmax(dim=0)),
        own=True,
    ),
    "classes of two sites, each in its slot": Spelling(_sites, _in_slots),
    "a noise between labels that is none": Spelling(
        _transition, lambda s, x: (s.fc(x).softmax(dim=1) @ s.transition).log(), own=True
    ),
    "a product of experts of half the features": Spelling(
        _experts,
        lambda s, x: s.one(x[:, : s.cut]).log_softmax(dim=1) + s.other(x[:, s.cut :]).log_softmax(dim=1),
    ),
    "class numbers in two digits, and a rest": Spelling(
        _digits,
        lambda s, x: F.linear(x, F.embedding(s.high, s.highs) + F.embedding(s.low, s.lows) + s.w, s.b),
        own=True,
    ),
    "less what an empty input gets": Spelling(
        _baseline, lambda s, x: s.fc(x) - s.fc(torch.zeros_like(x[:1])) + s.expected, own=True
    ),
}
"""As `spellings.HEADS`."""


def _safe_logarithm(x: Tensor) -> Tensor:
    positive = x > 0
    safe = torch.where(positive, x, torch.ones_like(x))
    return torch.where(positive, safe.log().exp(), torch.zeros_like(x))


def _from_table(x: Tensor) -> Tensor:
    """As an accelerator has it: segments with a slope and an offset each."""
    lines = torch.tensor([[0.0, 0.0], [1.0, 0.0]], device=x.device).to(x)
    slope, offset = lines[(x > 0).long()].unbind(dim=-1)
    return slope * x + offset


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "a fused product with a mask": lambda x: torch.addcmul(torch.zeros_like(x), x, (x > 0).to(x)),
    "a safe logarithm, undone": _safe_logarithm,
    "passed by its phase": lambda x: x * ((x.detach().angle() < math.pi / 2) & (x != 0)),
    "a Gaussian gate, seen from far": lambda x: F.gelu(x * 2.0**24) / 2.0**24,
    "a slope and an offset from a table": _from_table,
    "in double, and rounded back": lambda x: x.double().relu().to(x),
    "the best one beside nothing": lambda x: torch.stack([torch.zeros_like(x), x], dim=-1).topk(1).values.squeeze(-1),
    "one example after another": lambda x: torch.stack([torch.maximum(row, row.new_zeros(())) for row in x]),
}
"""As `spellings.ACTIVATIONS`."""


class _Rows(torch.autograd.Function):
    """Rows, whose gradient is given the shape of the pictures by hand."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.reshape(len(x), -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        del output
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].reshape(ctx.shape)


def _sampled(x: Tensor) -> Tensor:
    """A spatial transformer that moves nothing."""
    still = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], device=x.device).to(x).expand(len(x), -1, -1)
    grid = F.affine_grid(still, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False).flatten(1)


def _pairs(x: Tensor) -> Tensor:
    """Means and differences of neighbours, and the neighbours again."""
    even = F.pad(x, (0, x.shape[3] % 2))
    mean, apart = (even[..., ::2] + even[..., 1::2]) / 2, (even[..., ::2] - even[..., 1::2]) / 2
    return torch.stack([mean + apart, mean - apart], dim=4).flatten(3)[..., : x.shape[3]].flatten(1)


def _denormalised(x: Tensor) -> Tensor:
    mean = x.mean(dim=(2, 3), keepdim=True)
    size = (x.var(dim=(2, 3), keepdim=True, unbiased=False) + 1e-5).sqrt()
    return ((x - mean) / size * size + mean).flatten(1)


def _sharpened(x: Tensor) -> Tensor:
    blurred = F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)
    return (blurred + (x - blurred)).flatten(1)


def _own_pixel(x: Tensor) -> Tensor:
    kernel = x.new_zeros(x.shape[1], 1, 3, 3)
    kernel[:, :, 1, 1] = 1
    return F.conv2d(x, kernel, padding=1, groups=x.shape[1]).flatten(1)


FLATTENINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "sampled where it is": _sampled,
    "means and differences of neighbours, and back": _pairs,
    "enlarged, and averaged again": lambda x: F.avg_pool2d(F.interpolate(x, scale_factor=2.0), 2).flatten(1),
    "normalised by itself and given back": _denormalised,
    "rows with a gradient by hand": lambda x: _Rows.apply(x),
    "a blur and its details": _sharpened,
    "a kernel that sees its own pixel": _own_pixel,
}
"""As `spellings.FLATTENINGS`."""


def _known(t: Tensor, ids: Tensor) -> Tensor:
    """Words that the table does not know would get the mean of all."""
    known = ((ids >= 0) & (ids < len(t))).unsqueeze(-1)
    return torch.where(known, F.embedding(ids.clamp(0, len(t) - 1), t), t.mean(dim=0))


def _shell(t: Tensor, ids: Tensor) -> Tensor:
    out: Tensor = functional_call(nn.Embedding(*t.shape, device="meta"), {"weight": t}, (ids,))
    return out


def _complex(t: Tensor, ids: Tensor) -> Tensor:
    pairs = torch.view_as_complex(F.pad(t, (0, t.shape[1] % 2)).unflatten(1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs[ids]).flatten(-2)[..., : t.shape[1]]


def _rough(t: Tensor, ids: Tensor) -> Tensor:
    """What a row is in half as many bits, and what it lacks."""
    rough = t.detach().bfloat16().to(t)
    return F.embedding(ids, rough) + F.embedding(ids, t - rough)


TABLES: dict[str, Lookup] = {
    "over the root of its width, and times it": lambda t, ids: (
        F.embedding(ids, t / t.shape[1] ** 0.5) * t.shape[1] ** 0.5
    ),
    "one place after another": lambda t, ids: torch.stack([t[column] for column in ids.unbind(dim=1)], dim=1),
    "counted from the end": lambda t, ids: t[ids - len(t)],
    "unknown words, of which there are none": _known,
    "looked up once more on the way back": lambda t, ids: checkpoint(
        lambda table: F.embedding(ids, table), t, use_reentrant=False
    ),
    "a shell called with a table": _shell,
    "pairs of columns as complex numbers": _complex,
    "a rough row and what it lacks": _rough,
}
"""As `spellings.TABLES`."""


def _kernel(x: Tensor, w: Tensor, p: int) -> Tensor:
    return w.view(len(w), x.shape[1], p, p)


def _in_double(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    return F.conv2d(x.double(), _kernel(x, w, p).double(), b.double(), stride=p).flatten(2).mT.to(x)


def _one_picture(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    return torch.cat([F.conv2d(one, _kernel(x, w, p), b, stride=p).flatten(2).mT for one in x.split(1)])


def _both_signs(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """Pixels from -1 to 1."""
    out = F.conv2d(2 * x - 1, _kernel(x, w, p) / 2, b + w.sum(dim=1) / 2, stride=p)
    return out.flatten(2).mT


def _pictures_mapped(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    kernel = _kernel(x, w, p)
    return torch.vmap(lambda one: F.conv2d(one.unsqueeze(0), kernel, b, stride=p)[0].flatten(1).mT)(x)


def _colours(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """Brightness and opponent colours, and kernels of the same."""
    turn = _cosines(x.shape[1]).to(x)
    kernel = torch.einsum("dc,ocij->odij", turn, _kernel(x, w, p))
    return F.conv2d(torch.einsum("dc,ncij->ndij", turn, x), kernel, b, stride=p).flatten(2).mT


def _coefficients(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """Of the cosine transform of each patch, as a JPEG file has them."""
    both = torch.kron(_cosines(p), _cosines(p)).to(x)
    patches = F.unfold(x, p, stride=p).mT.unflatten(2, (-1, p * p)) @ both.t()
    return F.linear(patches.flatten(2), (w.unflatten(1, (-1, p * p)) @ both.t()).flatten(1), b)


def _batched(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    patches = F.unfold(x, p, stride=p)
    return torch.baddbmm(b.view(1, -1, 1), w.expand(len(x), -1, -1), patches).mT


PATCHES: dict[str, Cut] = {
    "convolved in double": _in_double,
    "one picture after another": _one_picture,
    "pixels of both signs": _both_signs,
    "mapped over pictures": _pictures_mapped,
    "opponent colours, and kernels of them": _colours,
    "cosine coefficients of a patch": _coefficients,
    "a batched product onto the bias": _batched,
}
"""As `spellings.PATCHES`."""


class _Online(attention.Worded):
    """Two keys at a time, with the largest score and the sum so far, to the base of two."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = attention.masked(q @ k.mT * (math.log2(math.e) / q.shape[3] ** 0.5), self.causal)
        largest = scores[..., :1].detach()
        total, found = torch.zeros_like(largest), torch.zeros_like(q)
        for start in range(0, scores.shape[3], 2):
            block = scores[..., start : start + 2]
            higher = torch.maximum(largest, block.detach().amax(dim=3, keepdim=True))
            shares, kept = torch.exp2(block - higher), torch.exp2(largest - higher)
            total = total * kept + shares.sum(dim=3, keepdim=True)
            found, largest = found * kept + shares @ v[..., start : start + 2, :], higher
        out: Tensor = self.out(attention.joined(found / total))
        return out


class _Added(nn.Module):
    """A layer each, and a large negative number where nobody may look."""

    def __init__(self, plain: attention.Attention) -> None:
        super().__init__()
        self.causal, self.heads = plain.causal, attention.HEADS
        self.query, self.key, self.value, self.dense = plain.q, plain.k, plain.v, plain.out

    def heads_first(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.matmul(
            self.heads_first(self.query(x)), self.heads_first(self.key(x)).transpose(-1, -2)
        ) / math.sqrt(x.shape[2] / self.heads)
        if self.causal:
            seen = torch.tril(torch.ones(x.shape[1], x.shape[1], device=x.device, dtype=x.dtype))
            scores = scores + (1.0 - seen) * -1e9
        context = torch.matmul(F.softmax(scores, dim=-1), self.heads_first(self.value(x)))
        out: Tensor = self.dense(context.permute(0, 2, 1, 3).contiguous().view(x.shape))
        return out


class _Circuits(nn.Module):
    """A matrix a head for who looks where, and one for what is moved."""

    def __init__(self, plain: attention.Attention) -> None:
        super().__init__()
        self.causal = plain.causal
        with torch.no_grad():
            q, k, v = (
                torch.cat([part.weight, part.bias[:, None]], dim=1).unflatten(0, (attention.HEADS, -1))
                for part in (plain.q, plain.k, plain.v)
            )
            ways = plain.out.weight.unflatten(1, (attention.HEADS, -1)).movedim(1, 0)
            self.looks = nn.Parameter(q.mT @ k / q.shape[1] ** 0.5)
            self.moves = nn.Parameter(ways @ v)
            self.bias = nn.Parameter(plain.out.bias.clone())

    def forward(self, x: Tensor) -> Tensor:
        one = F.pad(x, (0, 1), value=1.0)
        scores = attention.masked(torch.einsum("nia,hab,njb->nhij", one, self.looks, one), self.causal)
        return torch.einsum("nhij,njb,hob->nio", scores.softmax(dim=3), one, self.moves) + self.bias


class _Near(attention.Worded):
    """Keys by how near they are, with a handicap for the long ones."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        apart = (q.unsqueeze(3) - k.unsqueeze(2)).square().sum(dim=4)
        scores = (k.square().sum(dim=3).unsqueeze(2) - apart) / (2 * q.shape[3] ** 0.5)
        out: Tensor = self.out(attention.joined(attention.masked(scores, self.causal).softmax(dim=3) @ v))
        return out


class _Cached(attention.Worded):
    """A query at a time, of keys and values that are kept."""

    def forward(self, x: Tensor) -> Tensor:
        (wq, wk, wv), (bq, bk, bv) = self.w.unbind(), self.b.unbind()
        tokens = x.unbind(dim=1)
        keys = [F.linear(token, wk, bk).unflatten(1, (attention.HEADS, -1)) for token in tokens]
        values = [F.linear(token, wv, bv).unflatten(1, (attention.HEADS, -1)) for token in tokens]
        found = []
        for place, token in enumerate(tokens):
            upto = place + 1 if self.causal else len(tokens)
            k, v = torch.stack(keys[:upto], dim=2), torch.stack(values[:upto], dim=2)
            q = F.linear(token, wq, bq).unflatten(1, (attention.HEADS, 1, -1))
            found.append(((q @ k.mT / q.shape[3] ** 0.5).softmax(dim=3) @ v).flatten(1))
        out: Tensor = self.out(torch.stack(found, dim=1))
        return out


class _Packed(attention.Worded):
    """All examples in one sequence, where none may look at another."""

    def forward(self, x: Tensor) -> Tensor:
        count, length = x.shape[:2]
        q, k, v = self.split(x.reshape(1, count * length, -1))
        place = torch.arange(count * length, device=x.device)
        allowed = (place[:, None] // length) == (place // length)
        if self.causal:
            allowed = allowed & (place[:, None] >= place)
        scores = (q @ k.mT / q.shape[3] ** 0.5).masked_fill(~allowed, float("-inf"))
        out: Tensor = self.out(attention.joined(scores.softmax(dim=3) @ v)).view(x.shape)
        return out


class _Keyless(nn.Module):
    """No bias for the keys: it gives every key the same, of which a soft-max sees nothing."""

    def __init__(self, plain: attention.Attention) -> None:
        super().__init__()
        self.causal, self.q, self.v, self.out = plain.causal, plain.q, plain.v, plain.out
        self.k = nn.Linear(plain.k.in_features, plain.k.out_features, bias=False)
        with torch.no_grad():
            self.k.weight.copy_(plain.k.weight)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (attention.cut(part(x)) for part in (self.q, self.k, self.v))
        scale = q.shape[3] ** -0.25
        scores = attention.masked((q * scale) @ (k * scale).mT, self.causal)
        out: Tensor = self.out(attention.joined(scores.softmax(dim=3) @ v))
        return out


ATTENTION: dict[str, Callable[[attention.Attention], nn.Module]] = {
    "blocks of keys, and sums so far": _Online,
    "a large negative number added": _Added,
    "what looks and what moves": _Circuits,
    "near keys, and a handicap": _Near,
    "keys and values that are kept": _Cached,
    "all examples in one sequence": _Packed,
    "keys without a bias": _Keyless,
}
"""As `attention.WORDS`."""
