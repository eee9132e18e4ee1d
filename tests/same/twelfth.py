"""A twelfth list of spellings, written blind and committed before any of them was read: butterflies and far blocks,
blocks that rebuild what they were given, memories, supernets, lengths and angles, and bases that are drawn anew."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Dirichlet
from torch.nn.utils import parametrize

from same.spellings import Cut, Lookup, Spelling, linear, plain


def _random(*shape: int, seed: int = 31) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _uniform(*shape: int, seed: int = 31) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def _mixing(size: int, scale: float, seed: int = 31) -> Tensor:
    return scale * _random(size, size, seed=seed) / size**0.5


def _near_one(size: int, scale: float) -> Tensor:
    return torch.eye(size) + _mixing(size, scale)


def _matrix(w: Tensor) -> nn.Linear:
    made = nn.Linear(w.shape[1], w.shape[0], bias=False)
    made.weight.copy_(w)
    return made


def _before(w: Tensor, mapped: Tensor) -> Tensor:
    """The weight that has to follow a linear map, of which `mapped` holds the images of all unit rows."""
    return torch.linalg.solve(mapped.double(), w.double().t()).t().to(w).contiguous()


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 1).bit_length()


def _crossed(x: Tensor, twiddles: Tensor) -> Tensor:
    """Numbers 1, 2, 4, … places apart are mixed in pairs, each pair in its own way."""
    for level, twiddle in enumerate(twiddles):
        pairs = x.unflatten(1, (-1, 2, 2**level))
        x = torch.einsum("nbqs,bspq->nbps", pairs, twiddle.unflatten(0, (-1, 2**level))).flatten(1)
    return x


def _butterfly(s: Any, w: Tensor, b: Tensor) -> None:
    size = _power_of_two(w.shape[1])
    levels = size.bit_length() - 1
    angle, gain = math.pi * _random(levels, size // 2), 1 + 0.2 * _random(levels, size // 2, seed=32).tanh()
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=-1) * gain.unsqueeze(-1)
    s.twiddles, s.wide = nn.Parameter(turn.unflatten(-1, (2, 2)).to(w)), size
    images = _crossed(torch.eye(size).double(), s.twiddles.double())
    plain(s, _before(F.pad(w, (0, size - w.shape[1])), images), b)


def _supernet(s: Any, w: Tensor, b: Tensor) -> None:
    (units, inputs), s.units = w.shape, len(w)
    s.transform = nn.Parameter(_near_one(inputs, 0.3).to(w))
    s.largest = linear(_random(units + units // 2, inputs + inputs // 2).to(w) / inputs**0.5, _random(3 * units // 2))
    s.largest.weight[:units, :inputs] = _before(w, s.transform.t())
    s.largest.bias[:units] = b


def _active(s: Any, x: Tensor) -> Tensor:
    """As many units and inputs as the subnet has, and a kernel transformed to its size."""
    weight = s.largest.weight[: s.units, : x.shape[1]] @ s.transform
    return F.linear(x, weight, s.largest.bias[: s.units])


class _Coupled(torch.autograd.Function):
    """A reversible block: nothing of its input is kept, which is rebuilt from its output on the way back."""

    generate_vmap_rule = True

    @staticmethod
    def forward(left: Tensor, right: Tensor, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        left = left + right @ f.t()
        return left, right + left @ g.t()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output, *inputs[2:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        left, right, f, g = ctx.saved_tensors
        rebuilt = right - left @ g.t()
        of_left = grads[0] + grads[1] @ g
        return of_left, grads[1] + of_left @ f, of_left.t() @ rebuilt, grads[1].t() @ left


def _reversible(s: Any, w: Tensor, b: Tensor) -> None:
    left, right = (len(half) for half in torch.arange(w.shape[1]).tensor_split(2))
    s.f = nn.Parameter(0.5 * _random(left, right).to(w) / right**0.5)
    s.g = nn.Parameter(0.5 * _random(right, left, seed=32).to(w) / left**0.5)
    plain(s, _before(w, _both_halves(s, torch.eye(w.shape[1]).to(w))), b)


def _both_halves(s: Any, x: Tensor) -> Tensor:
    return torch.cat(_Coupled.apply(*x.tensor_split(2, dim=1), s.f, s.g), dim=1)


def _overlaps(keys: Tensor, beta: Tensor) -> Tensor:
    return (beta[:, None] * (keys @ keys.t())).tril(-1)


def _memory(s: Any, w: Tensor, b: Tensor) -> None:
    inputs = w.shape[1]
    s.keys, s.beta = nn.Parameter(_near_one(inputs, 0.3).to(w)), nn.Parameter(1 + 0.5 * _random(inputs).to(w))
    keys, beta = F.normalize(s.keys.double(), dim=1), s.beta.double().sigmoid()
    written = torch.linalg.solve(keys.t(), w.double().t())
    s.values = nn.Parameter(((written + _overlaps(keys, beta) @ written) / beta[:, None]).to(w))
    s.bias = nn.Parameter(b.clone())


def _recalled(s: Any, x: Tensor) -> Tensor:
    """By the delta rule: under each key goes what is not recalled there yet; all keys are written at once."""
    keys, beta = F.normalize(s.keys, dim=1), s.beta.sigmoid()
    left = _overlaps(keys, beta) + torch.eye(len(keys), device=x.device).to(x)
    written = torch.linalg.solve_triangular(left, beta[:, None] * s.values, upper=False, unitriangular=True)
    return F.linear(x @ keys.t(), written.t(), s.bias)


def _at_positions(s: Any, count: int) -> Tensor:
    place = (torch.arange(count, device=s.frequency.device).to(s.frequency) + 0.5) / count
    return torch.sin(s.frequency[:, None] * place + s.phase[:, None])


def _continuous(s: Any, w: Tensor, b: Tensor) -> None:
    waves = w.shape[1] + w.shape[1] // 4
    s.frequency = nn.Parameter(torch.pi * (torch.arange(waves) + 0.2 * _random(waves).tanh()).to(w))
    s.phase = nn.Parameter((torch.pi / 2 + 0.3 * _random(waves, seed=32)).to(w))
    read = w.double() @ torch.linalg.pinv(_at_positions(s, w.shape[1]).double())
    s.read = linear(read.to(w), b)


def _soft(s: Any, w: Tensor, b: Tensor) -> None:
    s.threshold = nn.Parameter(torch.full((len(w), 1), -4.0).to(w))
    plain(s, w.sign() * (w.abs() + s.threshold.sigmoid()), b)


def _metric(s: Any, w: Tensor, b: Tensor) -> None:
    s.logarithm = nn.Parameter(_mixing(w.shape[1], 0.4).to(w))
    plain(s, (w.double() @ torch.linalg.matrix_exp(-_symmetric(s.logarithm.double()))).to(w), b)


def _symmetric(t: Tensor) -> Tensor:
    return (t + t.t()) / 2


def _logarithmic(s: Any, x: Tensor) -> Tensor:
    """A number is a sign and a logarithm, so that a product is a sum."""
    (x_sign, x_log), (w_sign, w_log) = ((t.sign(), t.abs().clamp_min(1e-30).log()) for t in (x, s.w))
    return (x_sign[:, None] * w_sign * torch.exp(x_log[:, None] + w_log)).sum(dim=2) + s.b


def _tied(s: Any, w: Tensor, b: Tensor) -> None:
    u, wanted, v = torch.linalg.svd(w.double(), full_matrices=False)
    s.rate = 0.1 / float(wanted[0]) ** 2
    size = wanted.clone()
    for _ in range(60):
        size = wanted / (1 + s.rate * (1 - size.square()))
    plain(s, (u * size @ v).to(w), b)


def _back_projected(s: Any, x: Tensor) -> Tensor:
    """What its answer does not rebuild of the input is answered again, and a little of that is added."""
    answer = F.linear(x, s.w)
    return answer + s.rate * F.linear(x - answer @ s.w, s.w) + s.b


def _almost_orthogonal(s: Any, w: Tensor, b: Tensor) -> None:
    largest, vectors = (t[..., -1] for t in torch.linalg.eigh((w.double().t() @ w.double()).abs()))
    s.gain = nn.Parameter(largest.sqrt().to(w))
    plain(s, w * (vectors.abs() * w.shape[1] ** 0.5).to(w), b)


def _contracted(s: Any, x: Tensor) -> Tensor:
    """Columns scaled so far down that no two inputs come further apart, and one gain."""
    scale = (s.w.t() @ s.w).abs().sum(dim=1).rsqrt()
    return s.gain * F.linear(x * scale, s.w) + s.b


def _hadamard(flat: Tensor) -> Tensor:
    size = len(flat)
    for level in range(size.bit_length() - 1):
        one, other = flat.view(-1, 2, 2**level).unbind(1)
        flat = torch.cat([one + other, one - other], dim=1).flatten()
    return flat / size**0.5


def _turned_whole(s: Any, w: Tensor, b: Tensor) -> None:
    flat = torch.cat([w.flatten(), b])
    size, s.shape = _power_of_two(len(flat)), tuple(w.shape)
    s.register_buffer("signs", _random(size).sign().to(w))
    s.theta = nn.Parameter(_hadamard(s.signs * F.pad(flat, (0, size - len(flat)))))


def _turned_back(s: Any, x: Tensor) -> Tensor:
    units, inputs = s.shape
    flat = s.signs * _hadamard(s.theta)
    return F.linear(x, flat[: units * inputs].view(units, inputs), flat[units * inputs : units * (inputs + 1)])


def _angles(s: Any, w: Tensor, b: Tensor) -> None:
    rows = w.double()
    rest = rows.square().flip(1).cumsum(dim=1).flip(1).sqrt()
    angles = torch.atan2(rest[:, 1:], rows[:, :-1])
    angles[:, -1] = torch.atan2(rows[:, -1], rows[:, -2])
    s.radius, s.angles = nn.Parameter(rest[:, :1].to(w)), nn.Parameter(angles.to(w))
    s.bias = nn.Parameter(b.clone())


def _spherical(s: Any, x: Tensor) -> Tensor:
    lengths = torch.cat([s.radius, s.radius * s.angles.sin().cumprod(dim=1)], dim=1)
    return F.linear(x, lengths * F.pad(s.angles.cos(), (0, 1), value=1.0), s.bias)


class _Symmetric(nn.Module):
    def forward(self, t: Tensor) -> Tensor:
        return t.triu() + t.triu(1).mT

    def right_inverse(self, t: Tensor) -> Tensor:
        return t.triu()


class _Skew(nn.Module):
    def forward(self, t: Tensor) -> Tensor:
        return t.triu(1) - t.triu(1).mT

    def right_inverse(self, t: Tensor) -> Tensor:
        return t.triu(1)


def _parts(s: Any, w: Tensor, b: Tensor) -> None:
    s.size, s.bias = max(w.shape), nn.Parameter(b.clone())
    square = F.pad(w, (0, s.size - w.shape[1], 0, s.size - w.shape[0]))
    s.symmetric, s.skew = _matrix((square + square.t()) / 2), _matrix((square - square.t()) / 2)
    parametrize.register_parametrization(s.symmetric, "weight", _Symmetric())
    parametrize.register_parametrization(s.skew, "weight", _Skew())


def _of_parts(s: Any, x: Tensor) -> Tensor:
    x = F.pad(x, (0, s.size - x.shape[1]))
    out: Tensor = (s.symmetric(x) + s.skew(x))[:, : len(s.bias)] + s.bias
    return out


def _drawn(seed: int, shape: tuple[int, ...]) -> Tensor:
    return _random(*shape, seed=seed) / shape[1] ** 0.5


def _seeded(s: Any, w: Tensor, b: Tensor) -> None:
    s.seed = 1234
    plain(s, w - _drawn(s.seed, tuple(w.shape)).to(w), b)


class _Pixels(Tensor):
    """A tensor that knows what it holds, as do all that are made of it."""


def _typed(s: Any, x: Tensor) -> Tensor:
    answers = F.linear(x.as_subclass(_Pixels), s.w, s.b)
    return answers.as_subclass(Tensor)


def _fine(s: Any, w: Tensor, b: Tensor) -> None:
    apart = _random(*w.shape, 2, 2).to(w) / 9
    cells = w[..., None, None] + apart - apart.mean(dim=(2, 3), keepdim=True)
    plain(s, cells.transpose(1, 2).flatten(2).flatten(0, 1), b)


def _views(s: Any, w: Tensor, b: Tensor) -> None:
    s.log_precision = nn.Parameter(0.5 * _random(3, len(w)).to(w))
    share = s.log_precision.exp() / (1 + s.log_precision.exp().sum(dim=0))
    kernels = [part / by[:, None] for part, by in zip(w.tensor_split(3, dim=1), share, strict=True)]
    offsets = [*(0.1 * _random(2, len(w), seed=32).to(w))]
    offsets.append((b - share[0] * offsets[0] - share[1] * offsets[1]) / share[2])
    s.views = nn.ModuleList(linear(*view) for view in zip(kernels, offsets, strict=True))


def _fused(s: Any, x: Tensor) -> Tensor:
    """A product of normal distributions: one for each third of the features, and a prior around nothing."""
    means = torch.stack([view(part) for view, part in zip(s.views, x.tensor_split(3, dim=1), strict=True)])
    precision = s.log_precision.exp()
    return (precision[:, None] * means).sum(dim=0) / (1 + precision.sum(dim=0))


def _common(s: Any, x: Tensor) -> Tensor:
    mean = x.mean(dim=0, keepdim=True)
    return F.linear(mean, s.w, s.b) + F.linear(x - mean, s.w)


class _Hierarchical(nn.Module):
    """Blocks near the diagonal are cut again or dense, those far from it are products of two factors."""

    def __init__(self, w: Tensor, depth: int) -> None:
        super().__init__()
        if depth == 0:
            self.dense = _matrix(w)
            return
        (one, above), (below, other) = (half.tensor_split(2, dim=1) for half in w.tensor_split(2))
        self.near = nn.ModuleList(_Hierarchical(block, depth - 1) for block in (one, other))
        self.far = nn.ModuleList(self._factors(block) for block in (above, below))

    @staticmethod
    def _factors(block: Tensor) -> nn.Sequential:
        u, size, v = torch.linalg.svd(block, full_matrices=False)
        return nn.Sequential(_matrix(size.sqrt()[:, None] * v), _matrix(u * size.sqrt()))

    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self, "dense"):
            dense: Tensor = self.dense(x)
            return dense
        left, right = x.tensor_split(2, dim=1)
        upper, lower = self.near[0](left) + self.far[0](right), self.far[1](left) + self.near[1](right)
        return torch.cat([upper, lower], dim=1)


def _blocks(s: Any, w: Tensor, b: Tensor) -> None:
    s.blocks, s.bias = _Hierarchical(w, depth=2), nn.Parameter(b.clone())


FACTOR = 10.0
"""How much more than it changed an answer counts."""


def _lazy(s: Any, w: Tensor, b: Tensor) -> None:
    s.start = linear(_random(*w.shape).to(w) / w.shape[1] ** 0.5, 0.1 * _random(len(w), seed=32).to(w))
    s.start.requires_grad_(False)
    s.now = linear(s.start.weight + w / FACTOR, s.start.bias + b / FACTOR)


LAYERS: dict[str, Spelling] = {
    "butterflies of learned pairs": Spelling(
        _butterfly,
        lambda s, x: F.linear(_crossed(F.pad(x, (0, s.wide - x.shape[1])), s.twiddles), s.w, s.b),
        own=True,
    ),
    "cut out of a supernet": Spelling(_supernet, _active, own=True),
    "an input rebuilt from the output": Spelling(
        _reversible, lambda s, x: F.linear(_both_halves(s, x), s.w, s.b), own=True
    ),
    "a memory written by the delta rule": Spelling(_memory, _recalled, own=True),
    "a kernel of waves over places": Spelling(
        _continuous, lambda s, x: F.linear(x, s.read.weight @ _at_positions(s, x.shape[1]), s.read.bias), own=True
    ),
    "what is left above a threshold": Spelling(
        _soft,
        lambda s, x: F.linear(x, s.w.sign() * F.relu(s.w.abs() - s.threshold.sigmoid()), s.b),
        own=True,
    ),
    "the exponential of a symmetric matrix first": Spelling(
        _metric, lambda s, x: F.linear(x @ torch.linalg.matrix_exp(_symmetric(s.logarithm)), s.w, s.b), own=True
    ),
    "products as sums of logarithms": Spelling(plain, _logarithmic),
    "corrected by what it rebuilds": Spelling(_tied, _back_projected, own=True),
    "columns scaled until it contracts": Spelling(_almost_orthogonal, _contracted, own=True),
    "weight and bias turned as one vector": Spelling(_turned_whole, _turned_back, own=True),
    "rows by a radius and angles": Spelling(_angles, _spherical, own=True),
    "a symmetric part and a skew one": Spelling(_parts, _of_parts, own=True),
    "a base drawn anew from its seed": Spelling(
        _seeded, lambda s, x: F.linear(x, _drawn(s.seed, tuple(s.w.shape)).to(x) + s.w, s.b)
    ),
    "a tensor of a class of its own": Spelling(plain, _typed),
    "a weight kept twice as fine": Spelling(
        _fine, lambda s, x: F.linear(x, F.avg_pool2d(s.w.unsqueeze(0), 2).squeeze(0), s.b), own=True
    ),
    "views weighed by their precision": Spelling(_views, _fused, own=True),
    "what the batch has in common, and the rest": Spelling(plain, _common),
    "far blocks in factors": Spelling(_blocks, lambda s, x: s.blocks(x) + s.bias, own=True),
    "ten times what changed since the start": Spelling(_lazy, lambda s, x: FACTOR * (s.now(x) - s.start(x)), own=True),
}
"""As `spellings.LAYERS`."""


def _duelling(s: Any, w: Tensor, b: Tensor) -> None:
    s.value = linear(w.mean(dim=0, keepdim=True), b.mean(dim=0, keepdim=True))
    s.advantage = linear(w + _random(1, w.shape[1]).to(w) / 7, b - 0.3)


def _value_and_advantages(s: Any, x: Tensor) -> Tensor:
    advantage = s.advantage(x)
    out: Tensor = s.value(x) + advantage - advantage.mean(dim=1, keepdim=True)
    return out


def _planes(s: Any, w: Tensor, b: Tensor) -> None:
    direction = F.normalize(w, dim=1)
    within = 0.2 * _random(*w.shape).to(w)
    within -= (within * direction).sum(dim=1, keepdim=True) * direction
    s.points = nn.Parameter(within - direction * (b / w.norm(dim=1))[:, None])
    s.normals = nn.Parameter(w.clone())


def _abstaining(s: Any, w: Tensor, b: Tensor) -> None:
    more = _random(1, w.shape[1]).to(w) / w.shape[1] ** 0.5
    s.fc = linear(torch.cat([w, more]), torch.cat([b, b.new_tensor([-0.5])]))


def _decided(s: Any, x: Tensor) -> Tensor:
    """Shares of the classes among what is not abstained from."""
    shares = s.fc(x).log_softmax(dim=1)
    out: Tensor = shares[:, :-1] - torch.log1p(-shares[:, -1:].exp())
    return out


def _chain(s: Any, w: Tensor, b: Tensor) -> None:
    earlier = _mixing(len(w), 0.5).to(w).tril(-1)
    rows, offsets = w - earlier @ w, b - earlier @ b
    s.links = nn.ModuleList(
        linear(torch.cat([rows[k], earlier[k, :k]])[None], offsets[k : k + 1]) for k in range(len(w))
    )


def _in_a_chain(s: Any, x: Tensor) -> Tensor:
    """Every class is told what was said of those before it."""
    known, size = x, x.shape[1]
    for link in s.links:
        known = torch.cat([known, link(known)], dim=1)
    return known[:, size:]


def _to_base_two(s: Any, x: Tensor) -> Tensor:
    scores = F.linear(x, s.w, s.b) * math.log2(math.e)
    most = scores.detach().amax(dim=1, keepdim=True)
    return (scores - most - (scores - most).exp2().sum(dim=1, keepdim=True).log2()) * math.log(2)


HEADS: dict[str, Spelling] = {
    "a value and advantages": Spelling(_duelling, _value_and_advantages, own=True),
    "a point on every plane, and its normal": Spelling(
        _planes, lambda s, x: ((x.unsqueeze(1) - s.points) * s.normals).sum(dim=2), own=True
    ),
    "the mean of a Dirichlet distribution": Spelling(
        plain, lambda s, x: Dirichlet(F.linear(x, s.w, s.b).exp(), validate_args=False).mean.log()
    ),
    "an abstention taken out again": Spelling(_abstaining, _decided, own=True),
    "classifiers in a chain": Spelling(_chain, _in_a_chain, own=True),
    "shares to the base of two": Spelling(plain, _to_base_two),
}
"""As `spellings.HEADS`."""


def _mantissas(x: Tensor) -> Tensor:
    mantissa, exponent = torch.frexp(x)
    return F.relu(mantissa) * exponent.to(x.dtype).exp2()


def _scattered(x: Tensor) -> Tensor:
    """The larger of what is there and what comes; nothing is there."""
    where = torch.arange(x.shape[-1], device=x.device).expand_as(x)
    return torch.zeros_like(x).scatter_reduce(-1, where, x, reduce="amax", include_self=True)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mantissas cut off, exponents kept": _mantissas,
    "up to six, and what lies above": lambda x: F.relu6(x) + F.relu(x - 6),
    "an exponential unit, less its tail": lambda x: F.elu(x) - torch.expm1(x.clamp_max(0)),
    "scattered into zeros by the larger": _scattered,
    "negatives missing, and filled": lambda x: torch.nan_to_num(torch.where(x > 0, x, float("nan")), nan=0.0),
}
"""As `spellings.ACTIVATIONS`."""


def _luma(x: Tensor) -> Tensor:
    """Every three channels as brightness and two differences of colours, and back."""
    there = torch.tensor([[0.299, 0.587, 0.114], [-0.1687, -0.3313, 0.5], [0.5, -0.4187, -0.0813]]).to(x)
    threes, rest = x.tensor_split([x.shape[1] - x.shape[1] % 3], dim=1)
    luma = torch.einsum("kc,ngchw->ngkhw", there, threes.unflatten(1, (-1, 3)))
    colours = torch.einsum("ck,ngkhw->ngchw", torch.linalg.inv(there), luma).flatten(1, 2)
    return torch.cat([colours, rest], dim=1).flatten(1)


def _contact_sheet(x: Tensor) -> Tensor:
    """All pictures on one sheet, three in a line with a margin between them, and cut out again."""
    (n, _, high, wide), lines = x.shape, -(-len(x) // 3)
    sheet = x.new_ones(x.shape[1], lines * (high + 2), 3 * (wide + 2))
    corners = [(1 + k // 3 * (high + 2), 1 + k % 3 * (wide + 2)) for k in range(n)]
    for picture, (top, left) in zip(x, corners, strict=True):
        sheet[:, top : top + high, left : left + wide] = picture
    return torch.stack([sheet[:, top : top + high, left : left + wide].flatten() for top, left in corners])


def _own_tokens(x: Tensor) -> Tensor:
    """Attention under a mask by which every place sees but itself."""
    tokens = x.flatten(2).transpose(1, 2).contiguous()
    alone = torch.eye(tokens.shape[1], dtype=torch.bool, device=x.device)
    return F.scaled_dot_product_attention(tokens, tokens, tokens, attn_mask=alone).transpose(1, 2).flatten(1)


FLATTENINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "brightness and colours, and back": _luma,
    "a contact sheet, cut": _contact_sheet,
    "running sums and their differences": lambda x: torch.diff(F.pad(x.flatten(1).cumsum(dim=1), (1, 0)), dim=1),
    "positive parts less negative ones": lambda x: (F.relu(x) - F.relu(-x)).flatten(1),
    "places that see but themselves": _own_tokens,
}
"""As `spellings.FLATTENINGS`."""


def _steps(t: Tensor, ids: Tensor) -> Tensor:
    """All steps from row to row, up to a word's."""
    passed = ids.unsqueeze(-1) >= torch.arange(len(t), device=ids.device)
    return passed.to(t) @ torch.diff(t, dim=0, prepend=torch.zeros_like(t[:1]))


def _common_to_all(t: Tensor, ids: Tensor) -> Tensor:
    shared = t.mean(dim=0)
    return F.embedding(ids, t - shared) + shared


def _read_from_spectrum(t: Tensor, ids: Tensor) -> Tensor:
    """Columns of the table as sums of waves, which are looked at where a word is."""
    waves = torch.fft.fft(t, dim=0, norm="forward")
    angle = 2 * torch.pi / len(t) * (ids.unsqueeze(-1) * torch.arange(len(t), device=ids.device) % len(t)).to(t)
    return angle.cos() @ waves.real - angle.sin() @ waves.imag


def _nearest(t: Tensor, ids: Tensor) -> Tensor:
    """A code book: of what was looked up, the nearest of all rows."""
    with torch.no_grad():
        nearest = torch.cdist(F.embedding(ids, t), t.expand(len(ids), -1, -1)).argmin(dim=-1)
    return F.embedding(nearest, t)


TABLES: dict[str, Lookup] = {
    "steps up to a word": _steps,
    "less what all words share": _common_to_all,
    "waves over the words": _read_from_spectrum,
    "the nearest in a code book": _nearest,
}
"""As `spellings.TABLES`."""


def _kernel(x: Tensor, w: Tensor, p: int) -> Tensor:
    return w.view(len(w), x.shape[1], p, p)


def _integral(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """The sum over a patch, from four corners of the sums over all that lies above and to the left."""
    tiles = _kernel(x, w, p).repeat(1, 1, x.shape[2] // p, x.shape[3] // p)
    product = torch.einsum("nchw,dchw->ndhw", x, tiles)
    corners = F.pad(product.cumsum(dim=2).cumsum(dim=3), (1, 0, 1, 0))[:, :, ::p, ::p]
    sums = corners[..., 1:, 1:] - corners[..., :-1, 1:] - corners[..., 1:, :-1] + corners[..., :-1, :-1]
    return sums.flatten(2).mT + b


def _standard_kernel(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """A kernel of no mean and unit variance; both are given back behind it."""
    deviation, mean = torch.std_mean(w, dim=1, keepdim=True)
    answers = F.conv2d(x, _kernel(x, (w - mean) / deviation, p), stride=p)
    sums = F.avg_pool2d(x, p, divisor_override=1).sum(dim=1, keepdim=True)
    return (answers * deviation[..., None] + sums * mean[..., None]).flatten(2).mT + b


def _own_patch(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """Every pixel sends what it means for the units to the patch that it lies in."""
    line, column = (torch.arange(size, device=x.device) for size in x.shape[2:])
    patch = line[:, None] // p * (x.shape[3] // p) + column // p
    kernel = _kernel(x, w, p)[:, :, line[:, None] % p, column % p]
    sent = torch.einsum("nchw,dchw->nhwd", x, kernel).flatten(1, 2)
    answers = x.new_zeros(len(x), x.shape[2] * x.shape[3] // p**2, len(w))
    return answers.index_add(1, patch.flatten(), sent) + b


def _class_token(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """A token for the class is put in front of the patches, and left out behind the layer."""
    patches = F.unfold(x, p, stride=p).mT
    tokens = torch.cat([torch.zeros_like(patches[:, :1]), patches], dim=1)
    return F.linear(tokens, w, b)[:, 1:]


PATCHES: dict[str, Cut] = {
    "corners of an integral image": _integral,
    "a standard kernel, and its size given back": _standard_kernel,
    "every pixel adds to its patch": _own_patch,
    "a class token that is left out": _class_token,
}
"""As `spellings.PATCHES`."""
