"""A tenth list of spellings, written blind and committed before any of them was read: operators and sets, spikes and
capsules, learned filters, masks and noise, inner steps, checked products, classes in buckets and scans of pictures."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from same.spellings import Cut, Lookup, Spelling, linear, plain


def _random(*shape: int, seed: int = 23) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _uniform(*shape: int, seed: int = 23) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def _matrix(w: Tensor) -> nn.Linear:
    made = nn.Linear(w.shape[1], w.shape[0], bias=False)
    made.weight.copy_(w)
    return made


def _two_factors(size: int) -> tuple[int, int]:
    """The larger one first."""
    second = next(k for k in range(int(size**0.5), 0, -1) if size % k == 0)
    return size // second, second


def _operator(s: Any, w: Tensor, b: Tensor) -> None:
    """Units are places of a function that is asked for."""
    units = len(w)
    number = torch.arange(units).to(w)
    s.register_buffer("places", torch.cos(torch.pi * (number + 0.5)[:, None] / units * number))
    s.trunk = linear(_random(2 * units, units).to(w) * (2 / units) ** 0.5, 0.1 * _random(2 * units, seed=24).to(w))
    s.offset = nn.Parameter(torch.tensor(0.1).to(w))
    inverse = torch.linalg.pinv(s.trunk(s.places).tanh().double())
    s.branch = linear((inverse @ w.double()).to(w), (inverse @ (b - s.offset).double()).to(w))


def _at_places(s: Any, x: Tensor) -> Tensor:
    return torch.einsum("nk,ok->no", s.branch(x), s.trunk(s.places).tanh()) + s.offset


def _doubly_stochastic(scores: Tensor) -> Tensor:
    """Lines and columns are made to add up to one, in turn."""
    for _ in range(10):
        scores = scores - scores.logsumexp(dim=1, keepdim=True)
        scores = scores - scores.logsumexp(dim=0, keepdim=True)
    return scores.exp()


def _transported(s: Any, w: Tensor, b: Tensor) -> None:
    units = len(w)
    near = torch.eye(units) * (2 + torch.tensor(float(units)).log())
    s.scores = nn.Parameter((near + 0.3 * _random(units, units)).to(w))
    plan = _doubly_stochastic(s.scores.double())
    s.fc = linear(torch.linalg.solve(plan, w.double()).to(w), torch.linalg.solve(plan, b.double()).to(w))


def _powers(s: Any, w: Tensor, b: Tensor) -> None:
    s.exponent = nn.Parameter(torch.ones(w.shape[1]).to(w))
    plain(s, w, b)


def _made_normal(x: Tensor, exponent: Tensor) -> Tensor:
    """Yeo and Johnson's power transform of both signs."""
    up = ((x.clamp_min(0) + 1).pow(exponent) - 1) / exponent
    down = ((1 - x.clamp_max(0)).pow(2 - exponent) - 1) / (2 - exponent)
    return torch.where(x >= 0, up, -down)


class _Best(torch.autograd.Function):
    """Ones where a score is among the best, as large a share of all as is asked; scores learn straight through."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, share: float) -> Tensor:
        flat = scores.flatten()
        best = flat.argsort(descending=True)[: round(share * len(flat))]
        return torch.zeros_like(flat).index_fill(0, best, 1.0).view_as(scores)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        del ctx
        return grads[0], None


def _scored(s: Any, w: Tensor, b: Tensor) -> None:
    s.scores = nn.Parameter(_random(*w.shape).to(w) / 7)
    plain(s, w, b)


STEPS = 5
"""How often a neuron is shown the same picture."""


def _leaking(s: Any, w: Tensor, b: Tensor) -> None:
    beta = torch.tensor(0.8).to(w)
    total, s.beta = sum(beta**k for k in range(STEPS)), nn.Parameter(beta)
    plain(s, w / total, b / total)


def _membrane(s: Any, x: Tensor) -> Tensor:
    """The potential of a readout that never fires."""
    potential = x.new_zeros(len(x), len(s.w))
    for _ in range(STEPS):
        potential = s.beta.clamp(0, 1) * potential + F.linear(x, s.w, s.b)
    return potential


def _shifted(s: Any, w: Tensor, b: Tensor) -> None:
    share = (0.1 + 0.3 * _uniform(w.shape[1])).to(w)
    mix = torch.diag(1 - share) + torch.diag(share[1:], -1)
    s.share = nn.Parameter(share)
    plain(s, torch.linalg.solve_triangular(mix.double(), w.double(), upper=False, left=False).to(w), b)


def _with_the_last(s: Any, x: Tensor) -> Tensor:
    """Of every step a share is taken from the one before."""
    return F.linear(torch.lerp(x, F.pad(x, (1, -1)), s.share), s.w, s.b)


def _band_filters(low: Tensor, width: Tensor) -> Tensor:
    """What a window leaves of the filters that let these bands pass."""
    time = torch.arange(-4, 5, device=low.device).to(low)
    first = 0.02 + low.abs()[:, None]
    last = (first + width.abs()[:, None]).clamp_max(0.5)
    passed = 2 * last * torch.sinc(2 * last * time) - 2 * first * torch.sinc(2 * first * time)
    return (passed * torch.hamming_window(9, periodic=False, dtype=low.dtype, device=low.device)).unsqueeze(1)


def _audible(s: Any, w: Tensor, b: Tensor) -> None:
    s.low = nn.Parameter(torch.tensor([0.03, 0.13, 0.25]).to(w))
    s.width = nn.Parameter(torch.tensor([0.08, 0.1, 0.15]).to(w))
    bands = _random(len(w), 3, w.shape[1]).to(w) / 9
    rest = w - F.conv_transpose1d(bands, _band_filters(s.low, s.width), padding=4).squeeze(1)
    s.kernel, s.bias = nn.Parameter(torch.cat([rest.unsqueeze(1), bands], dim=1)), nn.Parameter(b.clone())


def _with_bands(s: Any, x: Tensor) -> Tensor:
    sound = x.unsqueeze(1)
    heard = torch.cat([sound, F.conv1d(sound, _band_filters(s.low, s.width), padding=4)], dim=1)
    return torch.einsum("nki,oki->no", heard, s.kernel) + s.bias


def _capsules(s: Any, w: Tensor, b: Tensor) -> None:
    (above, pose), (below, size) = (_two_factors(n) for n in w.shape)
    s.agreement = nn.Parameter(0.3 * _random(below, above).to(w))
    shares = s.agreement.softmax(dim=1)[:, :, None, None]
    s.votes = nn.Parameter(w.view(above, pose, below, size).permute(2, 0, 1, 3) / shares)
    s.bias = nn.Parameter(b.view(above, pose).clone())


def _routed_once(s: Any, x: Tensor) -> Tensor:
    """Capsules that share out their votes as they did before anything was seen."""
    below, _, _, size = s.votes.shape
    votes = torch.einsum("nbi,bapi->nbap", x.view(len(x), below, size), s.votes)
    return (torch.einsum("nbap,ba->nap", votes, s.agreement.softmax(dim=1)) + s.bias).flatten(1)


def _choquet(s: Any, x: Tensor) -> Tensor:
    """An integral over levels: each rise, times the weight of all inputs that reach it."""
    order = x.argsort(dim=1)
    rises = torch.diff(x.gather(1, order), dim=1, prepend=torch.zeros_like(x[:, :1]))
    reached = s.w[:, order].flip(-1).cumsum(dim=-1).flip(-1)
    return torch.einsum("ni,oni->no", rises, reached) + s.b


def _checked(s: Any, x: Tensor) -> Tensor:
    """One unit more, which has to be the sum of the others; a fault would be shared out among them."""
    coded, offset = (torch.cat([t, t.sum(dim=0, keepdim=True)]) for t in (s.w, s.b))
    answers, check = F.linear(x, coded, offset).split([len(s.w), 1], dim=1)
    fault = check - answers.sum(dim=1, keepdim=True)
    found = fault.abs() > 0.01 * (1 + answers.abs().sum(dim=1, keepdim=True))
    return torch.where(found, answers + fault / len(s.w), answers)


def _opposed(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("noise", 0.3 * _random(w.shape[1]).to(w))
    plain(s, w, b)


def _both_ways(s: Any, x: Tensor) -> Tensor:
    """The mean of two draws whose noise is opposite."""
    return (F.linear(x + s.noise, s.w, s.b) + F.linear(x - s.noise, s.w, s.b)) / 2


def _even_and_odd(rows: Tensor) -> tuple[Tensor, Tensor]:
    rows = F.pad(rows, (0, rows.shape[1] % 2))
    return rows[:, None, ::2], rows[:, None, 1::2]


def _lifting(s: Any, w: Tensor, b: Tensor) -> None:
    s.predict = nn.Parameter(torch.tensor([[[0.1, 0.5, 0.4]]]).to(w))
    s.update = nn.Parameter(torch.tensor([[[0.2, 0.3, -0.1]]]).to(w))
    even, odd = _even_and_odd(w)
    coarse = even + F.conv_transpose1d(odd, s.predict, padding=1)
    detail = odd - F.conv_transpose1d(coarse, s.update, padding=1)
    plain(s, torch.cat([coarse, detail], dim=2).squeeze(1), b)


def _lifted(s: Any, x: Tensor) -> Tensor:
    """Odd numbers are told from even ones, and these are smoothed by what was not told."""
    even, odd = _even_and_odd(x)
    detail = odd - F.conv1d(even, s.predict, padding=1)
    coarse = even + F.conv1d(detail, s.update, padding=1)
    return F.linear(torch.cat([coarse, detail], dim=2).squeeze(1), s.w, s.b)


def _tracked(s: Any, w: Tensor, b: Tensor) -> None:
    units, inputs = w.shape
    s.observe, s.gain = _matrix(0.2 * _random(inputs, units).to(w) / max(units, inputs) ** 0.5), _matrix(w)
    left = torch.eye(units).double() - w.double() @ s.observe.weight.double()
    s.prior = nn.Parameter(torch.linalg.solve(left, b.double()).to(w))


def _corrected(s: Any, x: Tensor) -> Tensor:
    """A filter's state, corrected by what an observation has of surprise."""
    out: Tensor = s.prior + s.gain(x - s.observe(s.prior))
    return out


def _set(s: Any, w: Tensor, b: Tensor) -> None:
    s.each, s.pooled = (nn.Parameter(torch.tensor(size).to(w)) for size in (0.9, 0.4))
    share = s.pooled / (s.each - s.pooled)
    plain(s, (w + share * w.mean(dim=1, keepdim=True)) / s.each, b)


def _of_set(s: Any, x: Tensor) -> Tensor:
    """The inputs as a set, whose members know their mean."""
    return F.linear(s.each * x - s.pooled * x.mean(dim=1, keepdim=True), s.w, s.b)


def _modes(s: Any, w: Tensor, b: Tensor) -> None:
    inputs = w.shape[1]
    s.gains = nn.Parameter(0.4 * _random(max(inputs // 4, 1), 2).tanh().to(w))
    kept = torch.view_as_complex(s.gains.clone())
    kept[0] = kept[0].real + 0j
    spectrum = torch.fft.rfft(w)
    spectrum[:, : len(kept)] /= (1 + kept).conj()
    plain(s, torch.fft.irfft(spectrum, n=inputs), b)


def _spectral(s: Any, x: Tensor) -> Tensor:
    """A Fourier layer with a way past it: low modes have gains of their own, and high ones are dropped."""
    modes = torch.view_as_complex(s.gains)
    low = torch.fft.rfft(x)[:, : len(modes)] * modes
    return F.linear(x + torch.fft.irfft(low, n=x.shape[1]), s.w, s.b)


def _sequence(s: Any, w: Tensor, b: Tensor) -> None:
    s.times = 4 if w.shape[1] % 4 == 0 else 1
    s.weight = nn.Parameter(w.unflatten(1, (s.times, -1)).permute(1, 2, 0).contiguous())
    s.bias = nn.Parameter(b.clone())


def _time_first(s: Any, x: Tensor) -> Tensor:
    steps = x.view(len(x), s.times, -1).transpose(0, 1).contiguous()
    return torch.conv_tbc(steps, s.weight, s.bias, 0).squeeze(0)


def _two_of_four(s: Any, w: Tensor, b: Tensor) -> None:
    w = F.pad(w, (0, -w.shape[1] % 4))
    fours = w.unflatten(1, (-1, 4))
    order = fours.abs().argsort(dim=-1, descending=True)
    first = 4 * torch.arange(fours.shape[1])[:, None]
    for name, part in (("heavy", order[..., :2]), ("light", order[..., 2:])):
        columns = (part.sort(dim=-1).values + first).flatten(1)
        s.register_buffer(f"columns_{name}", columns)
        s.register_parameter(name, nn.Parameter(w.gather(1, columns)))
    s.bias = nn.Parameter(b.clone())


def _compressed(s: Any, x: Tensor) -> Tensor:
    """Two entries of every four, each with its place, and the other two likewise."""
    x = F.pad(x, (0, -x.shape[1] % 4))
    return (x[:, s.columns_heavy] * s.heavy).sum(dim=2) + (x[:, s.columns_light] * s.light).sum(dim=2) + s.bias


def _meta(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("support", _uniform(5, w.shape[1]).to(w))
    s.register_buffer("wanted", 0.5 * _random(5, len(w)).to(w))
    s.rate = 1 / w.shape[1]
    given = torch.cat([s.support, torch.ones(5, 1).to(w)], dim=1).double()
    left = torch.cat([w, b[:, None]], dim=1).double() - s.rate / 5 * s.wanted.double().t() @ given
    among = torch.eye(5).double() - s.rate / 5 * given @ given.t()
    start = left + s.rate / 5 * left @ given.t() @ torch.linalg.solve(among, given)
    plain(s, start[:, :-1].to(w), start[:, -1].to(w))


def _adapted(s: Any, x: Tensor) -> Tensor:
    """Fast weights after one step on a task's examples, through which the slow ones learn."""

    def loss(w: Tensor, b: Tensor) -> Tensor:
        return (F.linear(s.support, w, b) - s.wanted).square().sum(dim=1).mean() / 2

    grads = torch.func.grad(loss, argnums=(0, 1))(s.w, s.b)
    w, b = (slow - s.rate * step for slow, step in zip((s.w, s.b), grads, strict=True))
    return F.linear(x, w, b)


def _noisy(s: Any, w: Tensor, b: Tensor) -> None:
    units, inputs = w.shape
    for name, drawn in (("into", _random(inputs)), ("out", _random(units, seed=24))):
        s.register_buffer(name, (drawn.sign() * drawn.abs().sqrt()).to(w))
    s.sigma, s.shift = (nn.Parameter(torch.full_like(t, 0.5 / inputs**0.5)) for t in (w, b))
    plain(s, w - s.sigma * torch.outer(s.out, s.into), b - s.shift * s.out)


def _explored(s: Any, x: Tensor) -> Tensor:
    """Noise in factors that is kept until it is drawn again, of a size that is learned."""
    return F.linear(x, s.w + s.sigma * torch.outer(s.out, s.into), s.b + s.shift * s.out)


def _coils(s: Any, w: Tensor, b: Tensor) -> None:
    place, coil = torch.linspace(0, 1, w.shape[1]).double(), torch.arange(4.0).double()[:, None]
    seen = torch.polar(torch.exp(-2 * (place - coil / 3).square()), 3 * place * (coil + 1))
    s.register_buffer("maps", torch.view_as_real(seen / seen.abs().square().sum(dim=0).sqrt()).to(w))
    plain(s, w, b)


def _from_coils(s: Any, x: Tensor) -> Tensor:
    """What every coil would measure, and the picture from all of them."""
    maps = torch.view_as_complex(s.maps)
    measured = torch.fft.fft(x.unsqueeze(1) * maps, norm="ortho")
    picture = (torch.fft.ifft(measured, norm="ortho") * maps.conj()).sum(dim=1)
    return F.linear(picture.real, s.w, s.b)


LAYERS: dict[str, Spelling] = {
    "a branch and a trunk": Spelling(_operator, _at_places, own=True),
    "units moved by a transport plan": Spelling(
        _transported, lambda s, x: s.fc(x) @ _doubly_stochastic(s.scores).t(), own=True
    ),
    "powers of both signs, at one": Spelling(
        _powers, lambda s, x: F.linear(_made_normal(x, s.exponent), s.w, s.b), own=True
    ),
    "a mask of the best scores, all": Spelling(
        _scored, lambda s, x: F.linear(x, s.w * _Best.apply(s.scores, 1.0), s.b), own=True
    ),
    "a potential that leaks": Spelling(_leaking, _membrane, own=True),
    "a share of the step before": Spelling(_shifted, _with_the_last, own=True),
    "learned bands beside the sound": Spelling(_audible, _with_bands, own=True),
    "capsules before they agree": Spelling(_capsules, _routed_once, own=True),
    "an integral over levels": Spelling(plain, _choquet),
    "a unit that checks the others": Spelling(plain, _checked),
    "two draws of opposite noise": Spelling(_opposed, _both_ways),
    "predicted and updated": Spelling(_lifting, _lifted, own=True),
    "a prior corrected by a surprise": Spelling(_tracked, _corrected, own=True),
    "members of a set and their mean": Spelling(_set, _of_set, own=True),
    "gains of low modes, and a way past": Spelling(_modes, _spectral, own=True),
    "time, batch, channel": Spelling(_sequence, _time_first),
    "two of four, and the other two": Spelling(_two_of_four, _compressed),
    "fast weights after a step": Spelling(_meta, _adapted, own=True),
    "noise in factors, of a learned size": Spelling(_noisy, _explored, own=True),
    "what four coils would measure": Spelling(_coils, _from_coils),
}
"""As `spellings.LAYERS`."""


def _binary(s: Any, w: Tensor, b: Tensor) -> None:
    s.odds = nn.Parameter(w.clone())
    s.prior = nn.Parameter((b.double() - (F.logsigmoid(-w.double()) + math.log(2)).sum(dim=1)).to(w))


def _naive(s: Any, x: Tensor) -> Tensor:
    """How likely a feature is to be there, and not to be, by class and each for itself, and against a coin."""
    there, absent = (F.logsigmoid(odds) + math.log(2) for odds in (s.odds, -s.odds))
    return F.linear(x, there - absent) + (absent.sum(dim=1) + s.prior)


def _questions(s: Any, w: Tensor, b: Tensor) -> None:
    apart, shift = _random(*w.shape).to(w) / 10, 0.1 * _random(len(w), seed=24).to(w)
    both = torch.stack([apart - w / 2, apart + w / 2], dim=1), torch.stack([shift - b / 2, shift + b / 2], dim=1)
    s.fc = linear(*(t.flatten(0, 1) for t in both))


def _yes_over_no(s: Any, x: Tensor) -> Tensor:
    no, yes = s.fc(x).unflatten(1, (-1, 2)).log_softmax(dim=-1).unbind(-1)
    out: Tensor = yes - no
    return out


def _hashed(s: Any, w: Tensor, b: Tensor) -> None:
    classes, size = len(w), len(w) * 3 // 4 + 1
    draw = torch.Generator().manual_seed(23)
    s.register_buffer("bucket", torch.stack([torch.randperm(classes, generator=draw) % size for _ in range(4)]))
    spread = torch.linalg.pinv(F.one_hot(s.bucket, size).movedim(1, 0).flatten(1).double() / 4)
    s.size, s.fc = size, linear((spread @ w.double()).to(w), (spread @ b.double()).to(w))


def _merged(s: Any, x: Tensor) -> Tensor:
    """Four small classifiers of buckets; a class has the mean of the buckets that it falls into."""
    scores = s.fc(x).unflatten(1, (4, s.size))
    return torch.stack([scores[:, k, bucket] for k, bucket in enumerate(s.bucket.unbind(0))]).mean(dim=0)


def _calibrated(s: Any, w: Tensor, b: Tensor) -> None:
    size = len(w)
    s.scaling = linear(torch.eye(size).to(w) + 0.2 * _random(size, size).to(w) / size**0.5, 0.1 * _random(size).to(w))
    left = s.scaling.weight.double()
    s.fc = linear(
        torch.linalg.solve(left, w.double()).to(w), torch.linalg.solve(left, (b - s.scaling.bias).double()).to(w)
    )


def _queries(s: Any, w: Tensor, b: Tensor) -> None:
    groups = F.pad(w, (0, 0, 0, -len(w) % 3)).unflatten(0, (-1, 3))
    s.duplicate, s.bias = nn.Parameter(groups.transpose(1, 2).contiguous()), nn.Parameter(b.clone())


def _pooled_by_group(s: Any, x: Tensor) -> Tensor:
    """Every query is given the features, and answers for three classes."""
    asked = x.unsqueeze(1).expand(-1, len(s.duplicate), -1).transpose(0, 1)
    answers = torch.bmm(asked, s.duplicate).transpose(0, 1).flatten(1)
    return answers[:, : len(s.bias)] + s.bias


def _successors(s: Any, w: Tensor, b: Tensor) -> None:
    s.reward = nn.Parameter(torch.tensor([0.8, -0.5, 0.3]).to(w))
    more, shift = _random(2, *w.shape).to(w) / 10, 0.1 * _random(2, len(w), seed=24).to(w)
    rest = torch.einsum("k,koi->oi", s.reward[1:], more), torch.einsum("k,ko->o", s.reward[1:], shift)
    first, start = (w - rest[0]) / s.reward[0], (b - rest[1]) / s.reward[0]
    s.fc = linear(torch.cat([first[None], more]).flatten(0, 1), torch.cat([start[None], shift]).flatten())


def _expected(s: Any, x: Tensor) -> Tensor:
    """Three features that will be met after every action, and what each of them is worth."""
    return torch.einsum("nko,k->no", s.fc(x).unflatten(1, (3, -1)), s.reward)


HEADS: dict[str, Spelling] = {
    "features that are there or not": Spelling(_binary, _naive, own=True),
    "yes over no": Spelling(_questions, _yes_over_no, own=True),
    "classes that share buckets": Spelling(_hashed, _merged, own=True),
    "calibrated by a matrix": Spelling(_calibrated, lambda s, x: s.scaling(s.fc(x)), own=True),
    "a query for three classes": Spelling(_queries, _pooled_by_group),
    "what is met, and its worth": Spelling(_successors, _expected, own=True),
}
"""As `spellings.HEADS`."""


def _cardioid(x: Tensor) -> Tensor:
    """Complex numbers fade as they turn away from the positive ones."""
    z = torch.complex(x, torch.zeros_like(x))
    return ((1 + torch.cos(z.angle())) / 2 * z).real


def _sign_bit(x: Tensor) -> Tensor:
    """The first bit, shifted over all others, is -1 below zero."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    below = x.detach().view(kind) >> (8 * x.element_size() - 1)
    return x * (1 + below)


def _middle(x: Tensor) -> Tensor:
    bounds = torch.zeros_like(x), torch.full_like(x, float("inf"))
    return torch.stack([bounds[0], x, bounds[1]]).median(dim=0).values


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "a cardioid on the real line": _cardioid,
    "the first bit, shifted": _sign_bit,
    "the middle one of three": _middle,
    "eight channels at a time": lambda x: torch.cat([F.relu(part) for part in x.split(8, dim=-1)], dim=-1),
    "twice a leaky one, less the number": lambda x: 2 * F.leaky_relu(x, negative_slope=0.5) - x,
}
"""As `spellings.ACTIVATIONS`."""


def _four_scans(x: Tensor) -> Tensor:
    """Along lines and along columns, there and back, and all four merged."""
    lines, columns = x.flatten(2), x.transpose(2, 3).flatten(2)
    scans = torch.stack([lines, columns, lines.flip(-1), columns.flip(-1)], dim=1)
    lines, columns = (scans[:, :2] + scans[:, 2:].flip(-1)).unbind(1)
    turned = columns.unflatten(-1, (x.shape[3], x.shape[2])).transpose(2, 3).flatten(2)
    return ((lines + turned) / 4).flatten(1)


def _shifted_windows(x: Tensor) -> Tensor:
    (high, wide), side = x.shape[2:], 1 if x.shape[2] % 2 or x.shape[3] % 2 else 2
    moved = x.roll((-1, -1), dims=(2, 3)).permute(0, 2, 3, 1)
    cut = moved.unflatten(2, (-1, side)).unflatten(1, (-1, side)).transpose(2, 3)
    windows = cut.reshape(-1, side * side, x.shape[1])
    back = windows.view(len(x), high // side, wide // side, side, side, -1).transpose(2, 3)
    return back.reshape(len(x), high, wide, -1).permute(0, 3, 1, 2).roll((1, 1), dims=(2, 3)).flatten(1)


def _overlapping(x: Tensor) -> Tensor:
    """Windows that overlap, added up where they were, over how many there were."""
    size = x.shape[2:]
    side = (min(2, size[0]), min(2, size[1]))
    added, count = (F.fold(F.unfold(t, side), size, side) for t in (x, torch.ones_like(x)))
    return (added / count).flatten(1)


def _unpooled(x: Tensor) -> Tensor:
    largest, places = F.max_pool2d(x, 1, return_indices=True)
    planes = torch.zeros_like(x).flatten(2)
    return planes.scatter(2, places.flatten(2), largest.flatten(2)).flatten(1)


FLATTENINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "four scans, merged": _four_scans,
    "shifted windows and back": _shifted_windows,
    "windows that overlap, averaged": _overlapping,
    "unpooled to where it was": _unpooled,
    "the real part of a complex row": lambda x: torch.complex(x, torch.zeros_like(x)).flatten(1).real,
}
"""As `spellings.FLATTENINGS`."""


def _bisected(t: Tensor, ids: Tensor) -> Tensor:
    """Words have keys, which are looked for in a sorted list."""
    keys = 7 * torch.arange(len(t), device=ids.device) + 3
    return F.embedding(torch.searchsorted(keys, 7 * ids + 3), t)


def _scaled_rows(t: Tensor, ids: Tensor) -> Tensor:
    """Rows over their largest entry, and the largest entries in a table beside."""
    most = t.detach().abs().amax(dim=1, keepdim=True).clamp_min(1e-12)
    return F.embedding(ids, t / most) * F.embedding(ids, most)


def _addressed(t: Tensor, ids: Tensor) -> Tensor:
    """A memory that is addressed by what its slots are labelled with."""
    bit = torch.arange(max((len(t) - 1).bit_length(), 1), device=ids.device)
    labels, wanted = (2.0 * ((n.unsqueeze(-1) >> bit) & 1) - 1 for n in (torch.arange(len(t), device=ids.device), ids))
    return (100 * wanted.to(t) @ labels.to(t).t()).softmax(dim=-1) @ t


TABLES: dict[str, Lookup] = {
    "found by bisection": _bisected,
    "read backwards and turned": lambda t, ids: F.embedding(ids.flip(1), t).flip(1),
    "rows over their largest": _scaled_rows,
    "addressed by labels": _addressed,
}
"""As `spellings.TABLES`."""


def _kernel(x: Tensor, w: Tensor, p: int) -> Tensor:
    return w.view(len(w), x.shape[1], p, p)


def _adjoint(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """The gradient of what would paint a picture out of patches."""
    start = x.new_zeros(len(x), len(w), x.shape[2] // p, x.shape[3] // p)
    _, pull = torch.func.vjp(lambda maps: F.conv_transpose2d(maps, _kernel(x, w, p), stride=p), start)
    (out,) = pull(x)
    return out.flatten(2).mT + b


def _lines_first(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """Every line of the kernel over every line of the picture, and those that belong together added up."""
    lines = _kernel(x, w, p).permute(2, 0, 1, 3).reshape(p * len(w), x.shape[1], 1, p)
    maps = F.conv2d(x, lines, stride=(1, p)).unflatten(1, (p, len(w))).unflatten(3, (-1, p))
    return maps.diagonal(dim1=1, dim2=4).sum(dim=-1).flatten(2).mT + b


def _wider(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    kernel = F.pad(_kernel(x, w, p), (1, 1, 1, 1))
    return F.conv2d(x, kernel, b, stride=p, padding=1).flatten(2).mT


def _in_a_line(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """Pixels patch after patch, as a sequence."""
    pixels = x.unflatten(3, (-1, p)).unflatten(2, (-1, p)).transpose(3, 4).flatten(2)
    return F.conv1d(pixels, w.view(len(w), x.shape[1], p * p), b, stride=p * p).mT


PATCHES: dict[str, Cut] = {
    "the gradient of a painter": _adjoint,
    "lines first, then columns": _lines_first,
    "a kernel with a border of nothing": _wider,
    "pixels in a line": _in_a_line,
}
"""As `spellings.PATCHES`."""
