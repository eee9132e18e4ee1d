"""A sixth list of spellings, written blind and committed before any of them was read: what the next twenty users may
bring of encrypted products, tensor networks, adapters, shards, graphs and layers that are solved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal

from same.spellings import Cut, Lookup, Spelling, linear, plain


def _random(*shape: int, seed: int = 6) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _two_factors(size: int) -> tuple[int, int]:
    first = next(k for k in range(int(size**0.5), 0, -1) if size % k == 0)
    return first, size // first


def _train(s: Any, w: Tensor, b: Tensor) -> None:
    """Two cores, each with a part of the outputs' axis and a part of the inputs'."""
    (o1, o2), (i1, i2) = (_two_factors(size) for size in w.shape)
    u, size, v = torch.linalg.svd(w.view(o1, o2, i1, i2).transpose(1, 2).reshape(o1 * i1, -1), full_matrices=False)
    s.left = nn.Parameter((u * size.sqrt()).view(o1, i1, -1))
    s.right = nn.Parameter((size.sqrt()[:, None] * v).view(-1, o2, i2))
    s.bias = nn.Parameter(b.clone())


def _of_train(s: Any, x: Tensor) -> Tensor:
    cells = x.view(len(x), s.left.shape[1], s.right.shape[2])
    return torch.einsum("nij,oir,rpj->nop", cells, s.left, s.right).flatten(1) + s.bias


def _router(s: Any, w: Tensor, b: Tensor) -> None:
    s.router, s.experts = nn.Linear(w.shape[1], 1, bias=False), nn.ModuleList([linear(w, b)])


def _dispatched(s: Any, x: Tensor) -> Tensor:
    """Each expert is given the rows that chose it, and its answers are put back where they belong."""
    shares, chosen = s.router(x).softmax(dim=-1).topk(1, dim=-1)
    out = x.new_zeros(len(x), s.experts[0].out_features)
    for i, expert in enumerate(s.experts):
        rows, rank = torch.where(chosen == i)
        out = out.index_add(0, rows, expert(x[rows]) * shares[rows, rank, None])
    return out


def _entries(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("places", torch.ones_like(w).nonzero().t().contiguous())
    s.values, s.bias, s.shape = nn.Parameter(w.flatten()), nn.Parameter(b.clone()), tuple(w.shape)


def _sparse(s: Any, x: Tensor) -> Tensor:
    kernel = torch.sparse_coo_tensor(s.places, s.values, s.shape, is_coalesced=True, check_invariants=False)
    return torch.sparse.mm(kernel, x.t()).t() + s.bias


def _turned(s: Any, w: Tensor, b: Tensor) -> None:
    q, size = torch.linalg.qr(_random(w.shape[1], w.shape[1]).to(w))[0], w.shape[1]
    s.turn = orthogonal(nn.Linear(size, size, bias=False), orthogonal_map="cayley")
    s.turn.weight = q
    s.fc = linear(w @ s.turn.weight.t(), b)


def _equilibrium(s: Any, w: Tensor, b: Tensor) -> None:
    s.again = nn.Parameter(0.3 * _random(len(w), len(w)).to(w) / len(w) ** 0.5)
    s.register_buffer("eye", torch.eye(len(w)).to(w))
    s.into = linear((s.eye - s.again) @ w, (s.eye - s.again) @ b)


def _settled(s: Any, x: Tensor) -> Tensor:
    """The state that is its own successor under ``again @ state + into(x)``."""
    return torch.linalg.solve(s.eye - s.again, s.into(x).t()).t()


class _PerSample(torch.autograd.Function):
    """Forms the gradient of each example on its way back, and adds them up."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.addmm(b, x, w.t())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        del output
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x, w = ctx.saved_tensors
        each = torch.einsum("no,ni->noi", grads[0], x)
        return grads[0] @ w, each.sum(dim=0), grads[0].sum(dim=0)


def _diagonals(s: Any, w: Tensor, b: Tensor) -> None:
    """The wrapped diagonals, as a matrix is packed for products under encryption."""
    unit, size = torch.arange(len(w)), w.shape[1]
    s.diagonals = nn.Parameter(torch.stack([w[unit, (unit + k) % size] for k in range(size)]))
    s.bias = nn.Parameter(b.clone())


def _by_rotations(s: Any, x: Tensor) -> Tensor:
    units = s.diagonals.shape[1]
    slots = x.repeat(1, -(-units // x.shape[1]))
    total = s.diagonals[0] * slots[:, :units]
    for k in range(1, len(s.diagonals)):
        total = total + s.diagonals[k] * slots.roll(-k, dims=1)[:, :units]
    return total + s.bias


def _triple(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("one", _random(w.shape[1]).to(w) / 4)
    s.register_buffer("other", _random(*w.shape, seed=7).to(w) / 4)
    s.register_buffer("product", s.other @ s.one)
    plain(s, w, b)


def _beaver(s: Any, x: Tensor) -> Tensor:
    """Only the differences from a triple's two factors are ever opened."""
    e, f = x - s.one, s.w - s.other
    return F.linear(e, f) + F.linear(s.one, f) + F.linear(e, s.other) + s.product + s.b


def _decaying(s: Any, w: Tensor, b: Tensor) -> None:
    decay, steps = torch.linspace(0.9, 0.99, len(w)).to(w), w.shape[1] // 3
    left = decay[:, None] ** torch.arange(steps - 1, -1, -1)
    s.decay, s.bias = nn.Parameter(decay.logit()), nn.Parameter(b.clone())
    s.kernel = nn.Parameter((w.view(len(w), 3, steps) / left[:, None]).permute(2, 0, 1).contiguous())


def _recurrent(s: Any, x: Tensor) -> Tensor:
    """A linear recurrence over the pixels, three colours a step."""
    state, decay = x.new_zeros(len(x), len(s.bias)), s.decay.sigmoid()
    for pixel, kernel in zip(x.view(len(x), 3, -1).unbind(2), s.kernel.unbind(0), strict=True):
        state = decay * state + pixel @ kernel.t()
    return state + s.bias


def _sharded(s: Any, w: Tensor, b: Tensor) -> None:
    flat, world = torch.cat([w.flatten(), b]), 5
    s.shards = nn.ParameterList(nn.Parameter(p.clone()) for p in F.pad(flat, (0, -len(flat) % world)).chunk(world))
    s.shape = tuple(w.shape)


def _gathered(s: Any, x: Tensor) -> Tensor:
    """The whole layer is gathered for the moment that it is used in."""
    out, into = s.shape
    w, b, _ = torch.cat(list(s.shards)).tensor_split([out * into, out * into + out])
    return F.linear(x, w.view(out, into), b)


def _bayesian(s: Any, w: Tensor, b: Tensor) -> None:
    s.mu, s.rho, s.bias = nn.Parameter(w.clone()), nn.Parameter(torch.full_like(w, -3.0)), nn.Parameter(b.clone())
    s.register_buffer("noise", torch.zeros_like(b))


def _at_its_mean(s: Any, x: Tensor) -> Tensor:
    """Local reparametrisation, with noise that is nothing while the model is not being sampled."""
    variance = F.linear(x.square(), F.softplus(s.rho).square())
    return F.linear(x, s.mu, s.bias) + (variance + 1e-8).sqrt() * s.noise


def _outliers(s: Any, w: Tensor, b: Tensor) -> None:
    order = w.norm(dim=0).argsort(descending=True)
    s.register_buffer("heavy", order[:6].sort().values)
    s.register_buffer("usual", order[6:].sort().values)
    s.register_buffer("scale", w[:, s.usual].abs().amax(dim=1) / 127)
    s.outliers = nn.Parameter(w[:, s.heavy])
    s.codes, s.bias = nn.Parameter(w[:, s.usual] / s.scale[:, None]), nn.Parameter(b.clone())


def _mixed(s: Any, x: Tensor) -> Tensor:
    return F.linear(x[:, s.heavy], s.outliers) + F.linear(x[:, s.usual], s.codes) * s.scale + s.bias


def _decoder(s: Any, w: Tensor, b: Tensor) -> None:
    s.atoms, s.bias = nn.Parameter(w.t().contiguous()), nn.Parameter(b.clone())


def _ranked(s: Any, x: Tensor) -> Tensor:
    """A sparse code's decoder that reads the largest k entries; here k is all of them."""
    values, places = x.topk(len(s.atoms), dim=1)
    return torch.einsum("nk,nko->no", values, s.atoms[places]) + s.bias


def _hadamard(s: Any, w: Tensor, b: Tensor) -> None:
    s.ups = nn.ParameterList([nn.Parameter(_random(len(w), 4, seed=k).to(w) / 4) for k in (1, 2)])
    s.downs = nn.ParameterList([nn.Parameter(_random(4, w.shape[1], seed=k).to(w) / 4) for k in (3, 4)])
    s.base = linear(w - (s.ups[0] @ s.downs[0]) * (s.ups[1] @ s.downs[1]), b)


def _elementwise(s: Any, x: Tensor) -> Tensor:
    delta = (s.ups[0] @ s.downs[0]) * (s.ups[1] @ s.downs[1])
    return F.linear(x, s.base.weight + delta, s.base.bias)


def _descended(s: Any, x: Tensor) -> Tensor:
    """One step from nothing down an energy that is quadratic in the hidden state."""

    def energy(state: Tensor) -> Tensor:
        return state.square().sum() / 2 - (state * F.linear(x, s.w, s.b)).sum()

    return -torch.func.grad(energy)(x.new_zeros(len(x), len(s.w)))


class _Standardised(nn.Module):
    """Rows of no mean and unit variance, behind which a gain and a mean of their own are learned."""

    def __init__(self, w: Tensor) -> None:
        super().__init__()
        self.mean = nn.Parameter(w.mean(dim=1, keepdim=True))
        self.gain = nn.Parameter(w.std(dim=1, keepdim=True, correction=0))

    def forward(self, v: Tensor) -> Tensor:
        return self.gain * F.layer_norm(v, v.shape[1:], eps=1e-9) + self.mean

    def right_inverse(self, w: Tensor) -> Tensor:
        return (w - self.mean) / self.gain


def _standardised(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc = linear(w, b)
    parametrize.register_parametrization(s.fc, "weight", _Standardised(w))


def _factorised(s: Any, w: Tensor, b: Tensor) -> None:
    """A permutation, a unit lower triangle and an upper one whose diagonal is kept as signs and logarithms."""
    order, lower, upper = torch.linalg.lu(w)
    s.register_buffer("order", order)
    s.register_buffer("ones", torch.eye(*lower.shape).to(w))
    s.register_buffer("signs", upper.diagonal().sign())
    s.lower, s.upper, s.sizes = nn.Parameter(lower), nn.Parameter(upper), nn.Parameter(upper.diagonal().abs().log())
    s.bias = nn.Parameter(b.clone())


def _triangles(s: Any, x: Tensor) -> Tensor:
    lower = s.lower.tril(-1) + s.ones
    upper = s.upper.triu(1) + torch.eye(*s.upper.shape).to(x) * (s.signs * s.sizes.exp())[:, None]
    return F.linear(x, s.order @ lower @ upper, s.bias)


def _loops(s: Any, x: Tensor) -> Tensor:
    """A graph convolution over examples that have no neighbours but themselves."""
    adjacency = torch.eye(len(x)).to(x)
    degree = adjacency.sum(dim=1).rsqrt()
    return (degree[:, None] * adjacency * degree) @ (x @ s.w.t()) + s.b


def _polynomials(s: Any, x: Tensor) -> Tensor:
    """A dot product is one coefficient of the product of a polynomial and a reversed one."""
    n = x.shape[1]
    product = torch.fft.rfft(x, n=2 * n)[:, None] * torch.fft.rfft(s.w.flip(1), n=2 * n)
    return torch.fft.irfft(product, n=2 * n)[..., n - 1] + s.b


def _tenants(s: Any, w: Tensor, b: Tensor) -> None:
    s.bank = nn.Parameter(torch.stack([_random(*w.shape).to(w) / 7, w, _random(*w.shape, seed=7).to(w) / 7]))
    s.bias = nn.Parameter(torch.stack([torch.zeros_like(b), b, torch.ones_like(b)]))


def _requested(s: Any, x: Tensor) -> Tensor:
    """Every row is served by the weights of its tenant; these are all of the same one."""
    tenant = torch.ones(len(x), dtype=torch.long, device=x.device)
    return torch.einsum("ni,noi->no", x, s.bank[tenant]) + s.bias[tenant]


LAYERS: dict[str, Spelling] = {
    "a tensor train of two cores": Spelling(_train, _of_train, own=True),
    "rows sent to their expert": Spelling(_router, _dispatched),
    "coordinates of a sparse weight": Spelling(_entries, _sparse),
    "a learned rotation first": Spelling(_turned, lambda s, x: s.fc(s.turn(x)), own=True),
    "an equilibrium that is solved": Spelling(_equilibrium, _settled, own=True),
    "gradients an example, summed": Spelling(plain, lambda s, x: _PerSample.apply(x, s.w, s.b)),
    "diagonals and rotations": Spelling(_diagonals, _by_rotations),
    "a Beaver triple": Spelling(_triple, _beaver),
    "a state that decays over the pixels": Spelling(_decaying, _recurrent, own=True),
    "shards gathered before use": Spelling(_sharded, _gathered),
    "a Bayesian layer at its mean": Spelling(_bayesian, _at_its_mean),
    "outlying columns apart": Spelling(_outliers, _mixed, own=True),
    "the largest k of k": Spelling(_decoder, _ranked),
    "a Hadamard product of factors beside": Spelling(_hadamard, _elementwise, own=True),
    "the gradient of an energy": Spelling(plain, _descended),
    "standardised rows with gains": Spelling(_standardised, lambda s, x: s.fc(x), own=True),
    "triangular factors": Spelling(_factorised, _triangles, own=True),
    "a graph of loops alone": Spelling(plain, _loops),
    "a coefficient of a polynomial product": Spelling(plain, _polynomials),
    "a bank of tenants": Spelling(_tenants, _requested),
}
"""As `spellings.LAYERS`."""


def _streamed(s: Any, x: Tensor) -> Tensor:
    """Logarithms of shares, with a normaliser that is kept up to date over blocks of classes."""
    blocks = [F.linear(x, *block) for block in zip(s.w.split(3), s.b.split(3), strict=True)]
    total = blocks[0].logsumexp(dim=1)
    for block in blocks[1:]:
        total = torch.logaddexp(total, block.logsumexp(dim=1))
    return torch.cat(blocks, dim=1) - total[:, None]


def _two_levels(s: Any, x: Tensor) -> Tensor:
    """The logarithm of a group's share, and of a class's share in its group."""
    groups = F.linear(x, s.w, s.b).tensor_split(2, dim=1)
    shares = torch.stack([group.logsumexp(dim=1) for group in groups], dim=1).log_softmax(dim=1)
    return torch.cat([group.log_softmax(dim=1) + shares[:, i, None] for i, group in enumerate(groups)], dim=1)


def _prior(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("log_prior", torch.linspace(3, 1, len(b)).to(b).log_softmax(dim=0))
    plain(s, w, b - s.log_prior)


def _capped(s: Any, x: Tensor) -> Tensor:
    return 3e3 * torch.tanh(F.linear(x, s.w, s.b) / 3e3)


def _paired(s: Any, w: Tensor, b: Tensor) -> None:
    s.scale = nn.Parameter(torch.tensor(0.7).to(w))
    s.texts, s.bias = nn.Parameter(w / s.scale.exp()), nn.Parameter(b.clone())


def _margins(s: Any, x: Tensor) -> Tensor:
    logits = F.linear(x, s.w, s.b)
    return (logits[:, :, None] - logits[:, None, :]).mean(dim=2)


def _mixture(s: Any, w: Tensor, b: Tensor) -> None:
    s.gate, s.components = nn.Linear(w.shape[1], 1), nn.ModuleList([linear(w, b)])


def _mixed_shares(s: Any, x: Tensor) -> Tensor:
    shares = torch.stack([component(x).log_softmax(dim=-1) for component in s.components], dim=1)
    return torch.logsumexp(s.gate(x).log_softmax(dim=-1)[..., None] + shares, dim=1)


HEADS: dict[str, Spelling] = {
    "a normaliser over blocks": Spelling(plain, _streamed),
    "classes on two levels": Spelling(plain, _two_levels),
    "a soft cap far away": Spelling(plain, _capped),
    "adjusted by a prior": Spelling(_prior, lambda s, x: F.linear(x, s.w, s.b) + s.log_prior),
    "the mean of five passes": Spelling(
        plain, lambda s, x: torch.stack([F.linear(F.dropout(x, 0.0), s.w, s.b) for _ in range(5)]).mean(dim=0)
    ),
    "a scale kept as a logarithm": Spelling(_paired, lambda s, x: s.scale.exp() * x @ s.texts.t() + s.bias, own=True),
    "margins over every other class": Spelling(plain, _margins),
    "a mixture of one softmax": Spelling(_mixture, _mixed_shares),
}
"""As `spellings.HEADS`."""


def _written(x: Tensor) -> Tensor:
    out, above = torch.zeros_like(x), x > 0
    out[above] = x[above]
    return out


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "exponential below, times nothing": lambda x: F.elu(x, alpha=0.0),
    "a learned slope of nothing": lambda x: F.prelu(x, x.new_zeros(1)),
    "a steep softplus": lambda x: F.softplus(x, beta=1e6),
    "half of one and the sign": lambda x: x * (1 + x.sign()) / 2,
    "positives written into zeros": _written,
    "the larger of a stack": lambda x: torch.stack([x, torch.zeros_like(x)], dim=-1).amax(dim=-1),
}
"""As `spellings.ACTIVATIONS`."""


def _strides(x: Tensor) -> Tensor:
    size = x[0].numel()
    return x.contiguous().as_strided((len(x), size), (size, 1))


def _put_back(x: Tensor) -> Tensor:
    """Channels last, as the weights were trained elsewhere, and then in the order that is wanted here."""
    places = torch.arange(x[0].numel(), device=x.device).view(x.shape[1:])
    return x.permute(0, 2, 3, 1).flatten(1).index_select(1, places.permute(1, 2, 0).flatten().argsort())


FLATTENINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "line after line": lambda x: torch.cat([line for plane in x.unbind(1) for line in plane.unbind(1)], dim=1),
    "by strides": _strides,
    "a mask of everything": lambda x: x[:, torch.ones(x.shape[1:], dtype=torch.bool, device=x.device)],
    "channels last and put back": _put_back,
}
"""As `spellings.FLATTENINGS`."""


def _counts(t: Tensor, ids: Tensor) -> Tensor:
    flat = ids.flatten()
    where = torch.stack([torch.arange(len(flat), device=ids.device), flat])
    words = torch.sparse_coo_tensor(where, torch.ones(len(flat)).to(t), (len(flat), len(t)), check_invariants=False)
    return torch.sparse.mm(words, t).unflatten(0, ids.shape)


class _Rows(torch.autograd.Function):
    """Rows of a table, and a gradient that is scattered by hand."""

    generate_vmap_rule = True

    @staticmethod
    def forward(t: Tensor, ids: Tensor) -> Tensor:
        return t.index_select(0, ids.flatten()).view(*ids.shape, t.shape[1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        del output
        ctx.save_for_backward(inputs[1])
        ctx.size = inputs[0].shape

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (ids,) = ctx.saved_tensors
        return grads[0].new_zeros(ctx.size).index_add(0, ids.flatten(), grads[0].flatten(0, -2)), None


def _adaptive(t: Tensor, ids: Tensor) -> Tensor:
    """The frequent words come first in the table; the rare ones are looked up apart."""
    edge = len(t) // 3
    out, frequent = t.new_zeros(*ids.shape, t.shape[1]), ids < edge
    out[frequent] = F.embedding(ids[frequent], t[:edge])
    out[~frequent] = F.embedding(ids[~frequent] - edge, t[edge:])
    return out


TABLES: dict[str, Lookup] = {
    "a sparse matrix of words": _counts,
    "columns in shards": lambda t, ids: torch.cat([F.embedding(ids, part) for part in t.chunk(2, dim=1)], dim=-1),
    "a lookup with its own gradient": lambda t, ids: _Rows.apply(t, ids),
    "frequent words and rare ones": _adaptive,
    "mapped over texts": lambda t, ids: torch.vmap(lambda text: t[text])(ids),
}
"""As `spellings.TABLES`."""


def _kernel(x: Tensor, w: Tensor, p: int) -> Tensor:
    return w.view(len(w), x.shape[1], p, p)


def _volume(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    depth = x.shape[1]
    return F.conv3d(x.unsqueeze(1), _kernel(x, w, p).unsqueeze(1), b, stride=(depth, p, p)).flatten(2).mT


def _thinned(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    return F.conv2d(x, _kernel(x, w, p), b)[:, :, ::p, ::p].flatten(2).mT


def _phases(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """Every place in a patch is a smaller picture of its own."""
    kernel, total = _kernel(x, w, p), b[:, None, None]
    for i in range(p):
        for j in range(p):
            total = total + torch.einsum("nchw,dc->ndhw", x[:, :, i::p, j::p], kernel[:, :, i, j])
    return total.flatten(2).mT


def _by_positions(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    places = torch.arange(x[0].numel(), device=x.device, dtype=torch.float64).view(1, *x.shape[1:])
    index = F.unfold(places, p, stride=p)[0].t().long()
    return F.linear(x.flatten(1)[:, index], w, b)


def _strips(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    kernel = _kernel(x, w, p)
    return torch.cat([F.conv2d(strip, kernel, b, stride=p).squeeze(2).mT for strip in x.split(p, dim=2)], dim=1)


def _colours(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    planes = zip(x.split(1, dim=1), _kernel(x, w, p).split(1, dim=1), strict=True)
    total = torch.stack([F.conv2d(plane, kernel, stride=p) for plane, kernel in planes]).sum(dim=0)
    return total.flatten(2).mT + b


PATCHES: dict[str, Cut] = {
    "a volume with a stride": _volume,
    "every p-th place of all": _thinned,
    "phases added up": _phases,
    "gathered by positions": _by_positions,
    "strips of lines": _strips,
    "a plane at a time": _colours,
}
"""As `spellings.PATCHES`."""
