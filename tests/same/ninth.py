"""A ninth list of spellings, written blind and committed before any of them was read: short-time spectra and codes of
numbers, soft rounding and bits, boosted learners, coded rows, learned poles, curved spaces and kept gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence, pad_sequence

from same.spellings import Cut, Lookup, Spelling, linear, plain


def _random(*shape: int, seed: int = 17) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _uniform(*shape: int, seed: int = 17) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def _spectrogram(x: Tensor, window: Tensor) -> Tensor:
    """Real and imaginary parts of frames of 16 numbers, of which each begins 8 behind the one before."""
    frames = torch.stft(
        x, len(window), len(window) // 2, window=window, pad_mode="constant", normalized=True, return_complex=True
    )
    return torch.view_as_real(frames).flatten(1)


def _audible(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("window", torch.hann_window(16).to(w))
    analysis = _spectrogram(torch.eye(w.shape[1]).to(w), s.window)
    plain(s, w @ torch.linalg.pinv(analysis).t(), b)


def _binned(s: Any, w: Tensor, b: Tensor) -> None:
    edges = torch.tensor([0.0, 0.15, 0.4, 0.65, 0.8, 1.0]).to(w)
    s.register_buffer("lows", edges[:-1].clone())
    s.register_buffer("widths", edges.diff())
    plain(s, (w.unsqueeze(-1) * s.widths).flatten(1), b)


def _by_bins(s: Any, x: Tensor) -> Tensor:
    """How full each of five bins is of a number; the first has no floor, and the last no ceiling."""
    full = (x.unsqueeze(-1) - s.lows) / s.widths
    codes = [full[..., :1].clamp_max(1), full[..., 1:-1].clamp(0, 1), full[..., -1:].clamp_min(0)]
    return F.linear(torch.cat(codes, dim=-1).flatten(1), s.w, s.b)


def _blended(s: Any, x: Tensor) -> Tensor:
    """Windows of units that overlap, each with more weight in its middle, over the sum of the weights."""
    out = len(s.w)
    size = min(20, out)
    starts = sorted({*range(0, out - size + 1, max(size // 2, 1)), out - size})
    importance = torch.exp(-torch.linspace(-1.5, 1.5, size, dtype=x.dtype, device=x.device).square())
    total, count = x.new_zeros(len(x), out), x.new_zeros(out)
    for start in starts:
        window = slice(start, start + size)
        total[:, window] += importance * F.linear(x, s.w[window], s.b[window])
        count[window] += importance
    return total / count


class _GradientScale(torch.autograd.Function):
    """Nothing on the way there; the gradient is multiplied on the way back."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        del factor
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        del output
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.factor, None


def _loss_scaled(s: Any, x: Tensor) -> Tensor:
    """Inside of the layer all gradients are 1 024 times as large, so that half a precision can hold them."""
    x, w, b = (_GradientScale.apply(t, 2.0**-10) for t in (x, s.w, s.b))
    out: Tensor = _GradientScale.apply(F.linear(x, w, b), 2.0**10)
    return out


def _compensated(s: Any, x: Tensor) -> Tensor:
    """Kahan's sum over blocks of the inputs, which carries along what rounding has lost."""
    total = s.b.expand(len(x), -1)
    lost = torch.zeros_like(total)
    for part, kernel in zip(x.split(8, dim=1), s.w.split(8, dim=1), strict=True):
        term = torch.mm(part, kernel.t()) - lost
        new = total + term
        total, lost = new, (new - total) - term
    return total


BITS = 4


def _planes(s: Any, w: Tensor, b: Tensor) -> None:
    """Digits of either sign, of which the lowest holds what is left; all are real numbers from 0 to 2."""
    most = w.abs().max()
    size = w.abs() / most * (2**BITS - 1)
    digits = torch.stack([(size.floor() / 2**k).floor() % 2 for k in range(BITS)])
    digits[0] += size - size.floor()
    s.scale, s.bias = nn.Parameter(most.clone()), nn.Parameter(b.clone())
    s.up, s.down = nn.Parameter(digits * (w > 0)), nn.Parameter(digits * (w <= 0))
    s.register_buffer("powers", 2.0 ** torch.arange(BITS).to(w))


def _of_bits(s: Any, x: Tensor) -> Tensor:
    weight = torch.einsum("koi,k->oi", s.up - s.down, s.powers) / (2**BITS - 1)
    return F.linear(x, s.scale * weight, s.bias)


def _undecided(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("step", w.abs().max() / 7)
    s.register_buffer("below", (w / s.step).floor())
    s.alpha = nn.Parameter(((w / s.step - s.below + 0.1) / 1.2).logit())
    s.bias = nn.Parameter(b.clone())


def _softly_rounded(s: Any, x: Tensor) -> Tensor:
    """Whether a code is rounded up is learned: a stretched sigmoid that has not yet reached nothing or one."""
    up = (s.alpha.sigmoid() * 1.2 - 0.1).clamp(0, 1)
    return F.linear(x, s.step * (s.below + up), s.bias)


RATE = 0.3
"""What each of the boosted learners counts for."""


def _boosted(s: Any, w: Tensor, b: Tensor) -> None:
    """Three learners, each without a third of the columns, so that every column is known to two."""
    order = torch.randperm(w.shape[1], generator=torch.Generator().manual_seed(17))
    without = torch.arange(w.shape[1])[order.argsort()] % 3
    apart = _random(*w.shape).to(w) / 5
    s.learners = nn.ModuleList()
    for k in range(3):
        columns = (without != k).nonzero().flatten()
        first = without[columns] == (k + 1) % 3  # the other that knows it is the third
        share = torch.where(first, 0.6, 0.4).to(w) * w[:, columns] / RATE
        share += torch.where(first, 1.0, -1.0).to(w) * apart[:, columns]
        s.register_buffer(f"columns_{k}", columns)
        s.learners.append(linear(share, b / 3 / RATE))


def _all_learners(s: Any, x: Tensor) -> Tensor:
    total = x.new_zeros(())
    for k, learner in enumerate(s.learners):
        total = total + RATE * learner(x[:, getattr(s, f"columns_{k}")])
    return total


def _strassen(s: Any, x: Tensor) -> Tensor:
    """Blocks of two matrices, padded to even sizes, by seven products in place of eight."""
    one = F.pad(x, (0, x.shape[1] % 2, 0, len(x) % 2))
    other = F.pad(s.w, (0, s.w.shape[1] % 2, 0, len(s.w) % 2)).t()
    (a, b), (c, d) = (half.chunk(2, dim=1) for half in one.chunk(2, dim=0))
    (e, f), (g, h) = (half.chunk(2, dim=1) for half in other.chunk(2, dim=0))
    p1, p2, p3, p4 = a @ (f - h), (a + b) @ h, (c + d) @ e, d @ (g - e)
    p5, p6, p7 = (a + d) @ (e + h), (b - d) @ (g + h), (a - c) @ (e + f)
    above = torch.cat([p5 + p4 - p2 + p6, p1 + p2], dim=1)
    below = torch.cat([p3 + p4, p1 + p5 - p3 - p7], dim=1)
    return torch.cat([above, below], dim=0)[: len(x), : len(s.w)] + s.b


def _packed(s: Any, x: Tensor) -> Tensor:
    """Sequences of one step: packed, so that no padding is multiplied, and padded again."""
    lengths = torch.ones(len(x), dtype=torch.long)
    packed = pack_padded_sequence(x.unsqueeze(1), lengths, batch_first=True, enforce_sorted=False)
    answers = PackedSequence(
        F.linear(packed.data, s.w, s.b), packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices
    )
    padded, _ = pad_packed_sequence(answers, batch_first=True)
    return padded[:, 0]


def _chebyshev(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Three polynomials of a ring's Laplacian, on numbers that each have a left and a right neighbour."""

    def around(t: Tensor) -> Tensor:
        return -(t.roll(1, dims=-1) + t.roll(-1, dims=-1)) / 2

    once = around(rows)
    return rows, once, 2 * around(once) - rows


def _filter(s: Any, w: Tensor, b: Tensor) -> None:
    one, two = (_random(*w.shape, seed=seed).to(w) / 7 for seed in (17, 18))
    s.kernels = nn.Parameter(torch.stack([w - _chebyshev(one)[1] - _chebyshev(two)[2], one, two]))
    s.bias = nn.Parameter(b.clone())


def _filtered(s: Any, x: Tensor) -> Tensor:
    terms = [F.linear(part, kernel) for part, kernel in zip(_chebyshev(x), s.kernels.unbind(0), strict=True)]
    return torch.stack(terms).sum(dim=0) + s.bias


def _stacked(s: Any, w: Tensor, b: Tensor) -> None:
    size = w.shape[1]
    s.backcast = linear(0.4 * _random(size, size).to(w) / size**0.5, 0.1 * _random(size, seed=18).to(w))
    s.second = linear(_random(*w.shape, seed=19).to(w) / 7, 0.1 * _random(len(w), seed=20).to(w))
    left = s.second.weight
    s.first = linear(w - left + left @ s.backcast.weight, b - s.second.bias + left @ s.backcast.bias)


def _explained(s: Any, x: Tensor) -> Tensor:
    """The first block takes away what it explains of the input; both forecasts are added."""
    out: Tensor = s.first(x) + s.second(x - s.backcast(x))
    return out


def _coded(s: Any, x: Tensor) -> Tensor:
    """The batch in code words for one worker more than it has rows, and their answers decoded."""
    rows, workers = len(x), len(x) + 1
    k, j = torch.arange(workers, device=x.device)[:, None], torch.arange(rows, device=x.device)
    code = (torch.cos(torch.pi * (j + 0.5) * k / workers) * (2 / workers) ** 0.5).to(x)
    code = torch.cat([code[:1] / 2**0.5, code[1:]])
    return code.t() @ F.linear(code @ x, s.w) + s.b


def _conditions(s: Any, w: Tensor, b: Tensor) -> None:
    s.scale = 1.0
    s.condition, s.nothing = (nn.Parameter(0.2 * _random(w.shape[1], seed=seed).to(w)) for seed in (17, 18))
    s.fc = linear(w, b - w @ s.condition)


def _guided(s: Any, x: Tensor) -> Tensor:
    """An answer without the condition, and the way from there to the one with it, as far as the scale says."""
    without, given = s.fc(torch.cat([x + s.nothing, x + s.condition])).chunk(2)
    out: Tensor = without + s.scale * (given - without)
    return out


CURVATURE = 1e-4


def _to_ball(v: Tensor) -> Tensor:
    size = CURVATURE**0.5 * v.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    return torch.tanh(size) * v / size


def _from_ball(v: Tensor) -> Tensor:
    size = CURVATURE**0.5 * v.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    return torch.atanh(size) * v / size


def _moebius(s: Any, x: Tensor) -> Tensor:
    """The product with a weight as hyperbolic networks have it, between the maps to a ball and back."""
    root, points = CURVATURE**0.5, _to_ball(x)
    moved = F.linear(points, s.w)
    before, behind = (t.norm(dim=-1, keepdim=True).clamp_min(1e-12) for t in (points, moved))
    product = torch.tanh(behind / before * torch.atanh(root * before)) * moved / (root * behind)
    return _from_ball(product) + s.b


def _distributed(s: Any, w: Tensor, b: Tensor) -> None:
    for name, part in (("for", w), ("against", -w)):
        positive = part.clamp_min(0) + 0.1
        s.register_parameter(f"scores_{name}", nn.Parameter(positive.log()))
        s.register_parameter(f"size_{name}", nn.Parameter(positive.sum(dim=1)))
    s.bias = nn.Parameter(b.clone())


def _by_shares(s: Any, x: Tensor) -> Tensor:
    """What the inputs are given of what speaks for a unit, less what they are given of what speaks against."""
    above = s.size_for * F.linear(x, s.scores_for.softmax(dim=1))
    return above - s.size_against * F.linear(x, s.scores_against.softmax(dim=1)) + s.bias


def _curves(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("times", torch.cumsum(0.5 + _uniform(w.shape[1]), dim=0).to(w))
    each = torch.trapezoid(torch.eye(w.shape[1]).to(w), s.times)
    s.curves, s.bias = nn.Parameter(w / each), nn.Parameter(b.clone())


def _keeping(s: Any, w: Tensor, b: Tensor) -> None:
    plain(s, w, b)
    s.kept = {}


def _with_heat(s: Any, x: Tensor) -> Tensor:
    """Keeps its answers and their gradient, for a map of what a class was seen by."""
    out = F.linear(x, s.w, s.b)
    s.kept["answers"] = out.detach()
    if out.requires_grad:
        out.register_hook(lambda gradient: s.kept.update(gradient=gradient.detach()))
    return out


def _powers(decay: Tensor, angle: Tensor, steps: int) -> Tensor:
    """What is left of each step, of a mode that turns and decays, when the last one has been seen."""
    age = torch.arange(steps - 1, -1, -1, device=decay.device).to(decay)
    return torch.exp(torch.complex(-decay.exp(), angle)[:, None] * age)


def _poles(s: Any, w: Tensor, b: Tensor) -> None:
    steps = w.shape[1]
    count = (steps + 1) // 2
    decay = ((0.6 + 0.2 * _uniform(count).double()) / steps).log()
    angle = 2 * torch.pi * (torch.arange(count).double() + 0.5) / steps
    modes = _powers(decay, angle, steps)
    read = w.double() @ torch.linalg.pinv(torch.cat([modes.real, -modes.imag]), rtol=1e-6)
    s.decay, s.angle, s.bias = nn.Parameter(decay.to(w)), nn.Parameter(angle.to(w)), nn.Parameter(b.clone())
    s.read = nn.Parameter(torch.stack(read.chunk(2, dim=1), dim=-1).to(w))


def _of_modes(s: Any, x: Tensor) -> Tensor:
    """A diagonal state space with poles near the circle, whose state is read behind the last step."""
    modes = _powers(s.decay, s.angle, x.shape[1])
    state = x.to(modes.dtype) @ modes.t()
    return (state @ torch.view_as_complex(s.read).t()).real + s.bias


def _crosses(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc, s.cross = linear(w, b), nn.Linear(w.shape[1], w.shape[1])
    nn.init.zeros_(s.cross.weight)
    nn.init.zeros_(s.cross.bias)


LAYERS: dict[str, Spelling] = {
    "short-time spectra that overlap": Spelling(
        _audible, lambda s, x: F.linear(_spectrogram(x, s.window), s.w, s.b), own=True
    ),
    "how full the bins of a number are": Spelling(_binned, _by_bins, own=True),
    "windows of units, blended": Spelling(plain, _blended),
    "a loss scale of its own": Spelling(plain, _loss_scaled),
    "a compensated sum": Spelling(plain, _compensated),
    "real numbers for bits": Spelling(_planes, _of_bits, own=True),
    "soft rounding, undecided": Spelling(_undecided, _softly_rounded, own=True),
    "boosted learners of some columns": Spelling(_boosted, _all_learners, own=True),
    "seven products for eight": Spelling(plain, _strassen),
    "sequences packed and padded again": Spelling(plain, _packed),
    "a Chebyshev filter on a ring": Spelling(_filter, _filtered, own=True),
    "blocks that take away what they explain": Spelling(_stacked, _explained, own=True),
    "rows coded for slow workers": Spelling(plain, _coded),
    "guided by a scale of one": Spelling(_conditions, _guided, own=True),
    "a Moebius product in a wide ball": Spelling(plain, _moebius),
    "shares for and against": Spelling(_distributed, _by_shares, own=True),
    "an integral by trapezoids": Spelling(
        _curves, lambda s, x: torch.trapezoid(x.unsqueeze(1) * s.curves, s.times) + s.bias, own=True
    ),
    "gradients kept for a heat map": Spelling(_keeping, _with_heat),
    "modes with learned poles": Spelling(_poles, _of_modes, own=True),
    "crosses that begin at nothing": Spelling(_crosses, lambda s, x: s.fc(x * s.cross(x) + x), own=True),
}
"""As `spellings.LAYERS`."""


def _vocabulary(s: Any, w: Tensor, b: Tensor) -> None:
    size = (len(w) // 8 + 1) * 8
    s.register_buffer("spare", torch.arange(size) >= len(w))
    more = _random(size - len(w), w.shape[1]).to(w) / 7
    s.fc = linear(torch.cat([w, more]), torch.cat([b, b.new_zeros(len(more))]))


def _without_spare(s: Any, x: Tensor) -> Tensor:
    """As many classes as a tensor core likes; those that there are not have no share."""
    shares = s.fc(x).masked_fill(s.spare, float("-inf")).log_softmax(dim=-1)
    return shares[:, : int((~s.spare).sum())]


def _duels(s: Any, w: Tensor, b: Tensor) -> None:
    one, other = torch.triu_indices(len(w), len(w), 1).unbind(0)
    s.register_buffer("one", one)
    s.register_buffer("other", other)
    s.classes, s.pairs = len(w), linear(w[one] - w[other], b[one] - b[other])


def _tallied(s: Any, x: Tensor) -> Tensor:
    """Each class by the mean of its margins over all others."""
    margins = s.pairs(x) / s.classes
    return x.new_zeros(len(x), s.classes).index_add(1, s.one, margins).index_add(1, s.other, -margins)


def _unmixed(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("share", torch.ones(()).to(w))
    plain(s, w, b)


def _mixed_up(s: Any, x: Tensor) -> Tensor:
    """Features mixed with those of another example, whose share is nothing."""
    return F.linear(s.share * x + (1 - s.share) * x.flip(0), s.w, s.b)


def _centres(s: Any, w: Tensor, b: Tensor) -> None:
    s.centres = nn.Parameter(torch.stack([w, _random(*w.shape).to(w) / 7]))
    s.offsets = nn.Parameter(torch.stack([b, torch.full_like(b, -1e3)]))


def _bag(s: Any, x: Tensor) -> Tensor:
    instances = x.unsqueeze(1).repeat(1, 7, 1)
    return F.linear(instances, s.w, s.b).logsumexp(dim=1) - math.log(7)


def _voters(s: Any, w: Tensor, b: Tensor) -> None:
    apart, shift = _random(*w.shape).to(w) / 10, 0.1 * _random(len(w), seed=18).to(w)
    s.voters = nn.ModuleList([linear(w + apart, b - shift), linear(w - apart, b + shift)])


HEADS: dict[str, Spelling] = {
    "spare classes without a share": Spelling(_vocabulary, _without_spare),
    "a scorer for every pair": Spelling(_duels, _tallied, own=True),
    "mixed with another by nothing": Spelling(_unmixed, _mixed_up),
    "the nearer of two centres, one far": Spelling(
        _centres, lambda s, x: (torch.einsum("ni,kci->nkc", x, s.centres) + s.offsets).amax(dim=1)
    ),
    "a bag of equal instances": Spelling(plain, _bag),
    "a geometric mean of two votes": Spelling(
        _voters, lambda s, x: torch.stack([voter(x).log_softmax(dim=-1) for voter in s.voters]).mean(dim=0), own=True
    ),
}
"""As `spellings.HEADS`."""


def _hinges(x: Tensor) -> Tensor:
    """Adaptive pieces whose slopes are nothing at the start."""
    out = x.relu()
    for slope, place in ((0.0, -0.5), (0.0, 0.5)):
        out = out + slope * (place - x).relu()
    return out


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "a six that is far away": lambda x: 256 * F.relu6(x / 256),
    "the slope of half a squared hinge": lambda x: torch.func.grad(lambda z: z.clamp_min(0).square().sum() / 2)(x),
    "drawn from nothing by a mask": lambda x: torch.lerp(torch.zeros_like(x), x, (x > 0).to(x.dtype)),
    "hinges of no slope beside": _hinges,
    "the number of its bucket as a gate": lambda x: x * torch.bucketize(x.detach(), x.new_zeros(1)),
}
"""As `spellings.ACTIVATIONS`."""


def _bordered(x: Tensor) -> Tensor:
    wide = F.pad(x, (2, 1, 1, 2), value=0.5)
    return wide.narrow(2, 1, x.shape[2]).narrow(3, 2, x.shape[3]).reshape(len(x), -1)


def _by_places(x: Tensor) -> Tensor:
    return torch.take(x, torch.arange(x.numel(), device=x.device).view(len(x), -1))


FLATTENINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "a border put on and taken off": _bordered,
    "sequences of one length": lambda x: pad_sequence([picture.ravel() for picture in x], batch_first=True),
    "turned and turned back": lambda x: x.rot90(1, (2, 3)).rot90(-1, (2, 3)).flatten(1),
    "taken by their places": _by_places,
    "a film of one frame": lambda x: x.unsqueeze(1).flatten(2).squeeze(1),
}
"""As `spellings.FLATTENINGS`."""


def _by_rank(t: Tensor, ids: Tensor) -> Tensor:
    """The frequent words come first: a table in the order of their ranks, and every word's rank."""
    order = torch.sin(12.9898 * torch.arange(len(t), device=t.device)).argsort()
    return F.embedding(order.argsort()[ids], t.index_select(0, order))


def _kept_words(t: Tensor, ids: Tensor) -> Tensor:
    """Whole words are dropped, wherever they stand; here none is."""
    return F.embedding(ids, t * F.dropout(t.new_ones(len(t), 1), 0.0))


def _in_order(t: Tensor, ids: Tensor) -> Tensor:
    """Words are read in the order of the memory, and put back where they stand."""
    flat, order = ids.flatten().sort(stable=True)
    return F.embedding(flat, t)[order.argsort()].view(*ids.shape, -1)


def _between(t: Tensor, ids: Tensor) -> Tensor:
    """A place between two rows, as a wave is read from a table; every place is a row's."""
    place = ids.to(t.dtype)
    low = place.floor()
    rows = (F.embedding(row.long(), t) for row in (low, (low + 1).clamp_max(len(t) - 1)))
    return torch.lerp(*rows, (place - low).unsqueeze(-1))


TABLES: dict[str, Lookup] = {
    "words by their rank": _by_rank,
    "whole words dropped, none": _kept_words,
    "read in order and put back": _in_order,
    "a place between two rows": _between,
}
"""As `spellings.TABLES`."""


def _kernel(x: Tensor, w: Tensor, p: int) -> Tensor:
    return w.view(len(w), x.shape[1], p, p)


def _groups(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """Every patch is a group of channels, and all have the same kernel."""
    patches = F.unfold(x, p, stride=p).mT
    count = patches.shape[1]
    out = F.conv1d(patches.reshape(len(x), -1, 1), w.repeat(count, 1).unsqueeze(-1), b.repeat(count), groups=count)
    return out.view(len(x), count, -1)


def _framed(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    out = F.conv2d(x, _kernel(x, w, p), b, stride=p, padding=p)
    return out[:, :, 1:-1, 1:-1].flatten(2).mT


def _tiled(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """The kernel laid out over the whole picture, times it, and the mean of every patch."""
    tiles = _kernel(x, w, p).repeat(1, 1, x.shape[2] // p, x.shape[3] // p)
    product = (x.unsqueeze(1) * tiles).sum(dim=2)
    return (p**2 * F.avg_pool2d(product, p)).flatten(2).mT + b


def _exchanged(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    out = F.conv2d(x.transpose(2, 3), _kernel(x, w, p).transpose(2, 3), b, stride=p)
    return out.transpose(2, 3).flatten(2).transpose(1, 2)


PATCHES: dict[str, Cut] = {
    "patches as groups": _groups,
    "a frame of empty patches, cropped": _framed,
    "a tiled kernel and means": _tiled,
    "lines and columns exchanged": _exchanged,
}
"""As `spellings.PATCHES`."""
