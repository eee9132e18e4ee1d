"""A seventh list of spellings, written blind and committed before any of them was read: secret shares and certified
intervals, upcycled mixtures, grids of ranks, operators of a library's own, and weights in powers and phases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from same.spellings import Cut, Lookup, Spelling, held, linear, plain


def _random(*shape: int, seed: int = 11) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _matrix(w: Tensor) -> nn.Linear:
    made = nn.Linear(w.shape[1], w.shape[0], bias=False)
    made.weight.copy_(w)
    return made


def _picture(rows: Tensor) -> Tensor:
    """Rows as square pictures of three colours."""
    side = int((rows.shape[1] // 3) ** 0.5)
    return rows.view(len(rows), 3, side, side)


def _grid(s: Any, w: Tensor, b: Tensor) -> None:
    s.blocks = nn.ParameterDict()
    for i, line in enumerate(w.tensor_split(2, dim=0)):
        for j, block in enumerate(line.tensor_split(3, dim=1)):
            s.blocks[f"rank_{i}_{j}"] = nn.Parameter(block.clone())
    s.offsets = nn.ParameterList(nn.Parameter(part.clone()) for part in b.tensor_split(2))


def _summed_on_grid(s: Any, x: Tensor) -> Tensor:
    """A panel of the input goes down each column of ranks; what a line of them has is reduced."""
    panels, out = x.tensor_split(3, dim=1), []
    for i, offset in enumerate(s.offsets):
        partial = [torch.mm(panel, s.blocks[f"rank_{i}_{j}"].t()) for j, panel in enumerate(panels)]
        out.append(torch.stack(partial).sum(dim=0) + offset)
    return torch.cat(out, dim=-1)


def _compressed(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("columns", torch.arange(w.shape[1]).repeat(len(w)))
    s.register_buffer("counts", torch.full((len(w),), w.shape[1]))
    s.values, s.bias = nn.Parameter(w.flatten()), nn.Parameter(b.clone())


def _segments(s: Any, x: Tensor) -> Tensor:
    terms = x.t()[s.columns] * s.values.unsqueeze(-1)
    return torch.segment_reduce(terms, "sum", lengths=s.counts, axis=0).t() + s.bias


def _reflectors(s: Any, w: Tensor, b: Tensor) -> None:
    """What a QR factorisation leaves: vectors of reflections below the diagonal, a triangle above."""
    packed, _ = torch.geqrf(w)
    s.vectors, s.triangle = nn.Parameter(packed.tril(-1)[:, : len(w)]), nn.Parameter(packed[: w.shape[1]].triu())
    s.bias = nn.Parameter(b.clone())


def _reflected(s: Any, x: Tensor) -> Tensor:
    below = s.vectors.tril(-1)
    q = torch.linalg.householder_product(below, 2 / (1 + below.square().sum(dim=0)))
    return F.linear(F.linear(x, s.triangle.triu()), q, s.bias)


def _tucker(s: Any, w: Tensor, b: Tensor) -> None:
    cube, letters = _picture(w), ("colours", "lines", "columns")
    for axis, name in enumerate(letters, start=1):
        size = cube.shape[axis]
        factor = torch.linalg.qr(_random(size, size, seed=axis).to(w))[0] * torch.linspace(0.7, 1.4, size).to(w)
        setattr(s, name, nn.Parameter(factor))
        cube = torch.tensordot(cube, torch.linalg.inv(factor), dims=([axis], [1])).movedim(-1, axis)
    s.core, s.bias = nn.Parameter(cube.contiguous()), nn.Parameter(b.clone())


def _of_core(s: Any, x: Tensor) -> Tensor:
    seen = torch.einsum("nchw,ca,hb,wd->nabd", _picture(x), s.colours, s.lines, s.columns)
    return torch.einsum("nabd,oabd->no", seen, s.core) + s.bias


def _upcycled(s: Any, w: Tensor, b: Tensor) -> None:
    """Four copies of a dense layer that was trained before, and a router that is new."""
    s.router = _matrix(_random(4, w.shape[1]).to(w) / 7)
    s.wi, s.bi = nn.Parameter(w.expand(4, -1, -1).clone()), nn.Parameter(b.expand(4, -1).clone())


def _with_capacity(s: Any, x: Tensor) -> Tensor:
    """Two experts for each row; rows go to places in buffers, and come back, by products with masks."""
    shares, chosen = s.router(x).softmax(dim=-1).topk(2, dim=-1)
    shares = shares / shares.sum(dim=-1, keepdim=True)
    masks = F.one_hot(chosen, len(s.wi)).to(x)
    order = masks.flatten(0, 1).cumsum(dim=0).view_as(masks) - 1
    places = (order.unsqueeze(-1) == torch.arange(len(x), device=x.device)).to(x) * masks.unsqueeze(-1)
    dispatch, combine = places.sum(dim=1), torch.einsum("nk,nkec->nec", shares, places)
    answers = torch.einsum("nec,ni,eoi->eco", dispatch, x, s.wi) + s.bi.unsqueeze(1)
    return torch.einsum("nec,eco->no", combine, answers)


def _supported(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("points", _random(w.shape[1] + 16, w.shape[1]).to(w) / w.shape[1] ** 0.5)
    s.dual, s.bias = nn.Parameter(w @ torch.linalg.pinv(s.points)), nn.Parameter(b.clone())


def _machine(s: Any, x: Tensor) -> Tensor:
    gram = torch.einsum("ni,mi->nm", x, s.points)
    return (gram.unsqueeze(1) * s.dual).sum(dim=-1) + s.bias


def _replicated(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("pads", _random(2, w.shape[1]).to(w))
    s.register_buffer("masks", _random(2, *w.shape, seed=12).to(w) / 4)
    plain(s, w, b)


def _three_parties(s: Any, x: Tensor) -> Tensor:
    """Each of three holds two of three shares, multiplies what it has, and the products are added."""
    xs = [x - s.pads.sum(dim=0), *(pad.expand_as(x) for pad in s.pads)]
    ws = [s.w - s.masks.sum(dim=0), *s.masks]
    parties = []
    for i in range(3):
        j = (i + 1) % 3
        parties.append(F.linear(xs[i], ws[i]) + F.linear(xs[i], ws[j]) + F.linear(xs[j], ws[i]))
    return parties[0] + parties[1] + parties[2] + s.b


class _Encode(torch.autograd.Function):
    """A fixed-point number of 20 bits behind the point; its gradient goes straight through."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.round(x * 2.0**20) * 2.0**-20

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        del ctx
        return grads[0]


@torch.library.custom_op("same_seventh::project", mutates_args=())
def _project(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.addmm(b, x, w.t())


@_project.register_fake
def _(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    del b
    return x.new_empty(x.shape[0], w.shape[0])


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs[:2])


def _pull(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, w = ctx.saved_tensors
    return grad @ w, grad.t() @ x, grad.sum(dim=0)


_project.register_autograd(_pull, setup_context=_keep)


def _tangent(s: Any, x: Tensor) -> Tensor:
    """Where the layer is at nothing, and its Jacobian there times the input."""
    origin = x.new_zeros(x.shape[1])
    slopes, at = torch.func.jacrev(lambda z: (y := s.w @ z + s.b, y), has_aux=True)(origin)
    return torch.einsum("oi,ni->no", slopes, x) + at


def _integrated(s: Any, x: Tensor) -> Tensor:
    """An ordinary differential equation from time 0 to 1, in three steps of Runge and Kutta."""

    def field(t: float, state: Tensor) -> Tensor:
        return 2 * t * F.linear(x, s.w, s.b) + 0 * state

    state, step = x.new_zeros(len(x), len(s.w)), 1 / 3
    for i in range(3):
        k1 = field(i * step, state)
        k2 = field((i + 0.5) * step, state + step / 2 * k1)
        k3 = field((i + 0.5) * step, state + step / 2 * k2)
        k4 = field((i + 1) * step, state + step * k3)
        state = state + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return state


def _gates(s: Any, w: Tensor, b: Tensor) -> None:
    s.log_alpha = nn.Parameter(torch.full((w.shape[1],), 6.0).to(w))
    plain(s, w, b)


def _open(s: Any, x: Tensor) -> Tensor:
    """The stretched sigmoids of a penalty on the number of inputs, as they are at rest."""
    gates = (s.log_alpha.sigmoid() * (1.1 + 0.1) - 0.1).clamp(0.0, 1.0)
    return F.linear(x * gates, s.w, s.b)


def _decomposed(s: Any, w: Tensor, b: Tensor) -> None:
    s.seasonal, s.trend = linear(w, b / 2), linear(w, b / 2)


def _trend_and_rest(s: Any, x: Tensor) -> Tensor:
    trend = F.avg_pool1d(F.pad(x.unsqueeze(1), (2, 2), mode="replicate"), 5, stride=1).squeeze(1)
    out: Tensor = s.seasonal(x - trend) + s.trend(trend)
    return out


def _mirrored(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The parts that a mirror keeps and that it turns around, each from one half of the picture."""
    left, right = _picture(rows).chunk(2, dim=3)
    right = right.flip(3)
    return (left + right).flatten(1) / 2**0.5, (left - right).flatten(1) / 2**0.5


def _irreducible(s: Any, w: Tensor, b: Tensor) -> None:
    even, odd = _mirrored(w)
    s.even, s.odd = linear(even, b), _matrix(odd)


def _equivariant(s: Any, x: Tensor) -> Tensor:
    even, odd = _mirrored(x)
    out: Tensor = s.even(even) + s.odd(odd)
    return out


def _block_floats(s: Any, w: Tensor, b: Tensor) -> None:
    blocks = w.unflatten(1, (-1, 16))
    exponents = blocks.abs().amax(dim=-1, keepdim=True).log2().ceil().int()
    s.register_buffer("exponents", exponents)
    s.mantissas, s.bias = nn.Parameter(torch.ldexp(blocks, -exponents)), nn.Parameter(b.clone())


def _polar(s: Any, w: Tensor, b: Tensor) -> None:
    pairs = torch.complex(w[0::2].contiguous(), w[1::2].contiguous())
    s.magnitude, s.phase, s.bias = nn.Parameter(pairs.abs()), nn.Parameter(pairs.angle()), nn.Parameter(b.clone())


def _of_phases(s: Any, x: Tensor) -> Tensor:
    kernel = torch.polar(s.magnitude, s.phase)
    return torch.view_as_real(x.to(kernel.dtype) @ kernel.t()).flatten(1) + s.bias


def _interval(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("radius", torch.zeros(()).to(w))
    plain(s, w, b)


def _bounds(s: Any, x: Tensor) -> Tensor:
    """The middle of the bounds of a ball around the input, whose radius is still nothing."""
    low, high, up, down = x - s.radius, x + s.radius, s.w.clamp(min=0), s.w.clamp(max=0)
    lower = F.linear(low, up) + F.linear(high, down) + s.b
    upper = F.linear(high, up) + F.linear(low, down) + s.b
    return (lower + upper) / 2


def _rotated_and_summed(s: Any, x: Tensor) -> Tensor:
    """Packed products, of which every slot has the sum after as many rotations as a tree is deep."""
    slots = 1 << (x.shape[1] - 1).bit_length()
    spare = (0, slots - x.shape[1])
    total, shift = F.pad(x, spare).unsqueeze(1) * F.pad(s.w, spare), slots // 2
    while shift:
        total, shift = total + total.roll(-shift, dims=-1), shift // 2
    return total[..., 0] + s.b


def _paired(s: Any, x: Tensor) -> Tensor:
    """Winograd's inner product: half as many products, of sums of an input and a weight."""
    (x1, x2), (w1, w2) = (t.unflatten(1, (-1, 2)).unbind(-1) for t in (x, s.w))
    crossed = ((x1[:, None] + w2) * (x2[:, None] + w1)).sum(dim=-1)
    return crossed - (x1 * x2).sum(dim=1, keepdim=True) - (w1 * w2).sum(dim=1) + s.b


LAYERS: dict[str, Spelling] = {
    "blocks on a grid of ranks": Spelling(_grid, _summed_on_grid),
    "segments of compressed rows": Spelling(_compressed, _segments),
    "reflectors and a triangle": Spelling(_reflectors, _reflected, own=True),
    "a Tucker core and its factors": Spelling(_tucker, _of_core, own=True),
    "an upcycled mixture with a capacity": Spelling(_upcycled, _with_capacity, own=True),
    "support vectors of a linear kernel": Spelling(_supported, _machine, own=True),
    "replicated shares of three parties": Spelling(_replicated, _three_parties),
    "fixed point, straight through": Spelling(
        plain, lambda s, x: F.linear(_Encode.apply(x), _Encode.apply(s.w), _Encode.apply(s.b))
    ),
    "an operator of a library": Spelling(plain, lambda s, x: _project(x, s.w, s.b)),
    "a Jacobian at nothing": Spelling(plain, _tangent),
    "a differential equation": Spelling(plain, _integrated),
    "hard concrete gates, all open": Spelling(_gates, _open),
    "trend and remainder": Spelling(_decomposed, _trend_and_rest, own=True),
    "even and odd under a mirror": Spelling(_irreducible, _equivariant, own=True),
    "mantissas with an exponent a block": Spelling(
        _block_floats, lambda s, x: F.linear(x, (s.mantissas * s.exponents.exp2()).flatten(1), s.bias), own=True
    ),
    "magnitudes and phases": Spelling(_polar, _of_phases, own=True),
    "an interval of no width": Spelling(_interval, _bounds),
    "a tree of rotations": Spelling(plain, _rotated_and_summed),
    "half as many products": Spelling(plain, _paired),
    "powers of weights": Spelling(
        held(lambda w: w.sign() * w.abs().sqrt()), lambda s, x: F.linear(x, s.w * s.w.abs(), s.b), own=True
    ),
}
"""As `spellings.LAYERS`."""


def _offloaded(s: Any, x: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return F.linear(x, s.w, s.b)


class _Bounded(torch.autograd.Function):
    """Nothing on the way there; on the way back a bound that no gradient meets."""

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
        return grads[0].clamp(-1e4, 1e4)


def _constrained(s: Any, x: Tensor) -> Tensor:
    """Keras's constraint on the length of what goes into a unit."""
    lengths = s.kernel.square().sum(dim=0, keepdim=True).sqrt()
    kernel = s.kernel * (lengths.clamp(0, 1e3) / (1e-7 + lengths))
    return torch.matmul(x, kernel) + s.bias


def _kernel_first(s: Any, w: Tensor, b: Tensor) -> None:
    s.kernel, s.bias = nn.Parameter(w.t().contiguous()), nn.Parameter(b.clone())


def _given_back(s: Any, x: Tensor) -> Tensor:
    """Reversible normalisation: each row's mean and deviation are taken away before and given back behind."""
    mean = x.mean(dim=1, keepdim=True)
    deviation = (x.var(dim=1, keepdim=True, correction=0) + 1e-5).sqrt()
    return F.linear((x - mean) / deviation, s.w) * deviation + mean * s.w.sum(dim=1) + s.b


def _log_ratios(s: Any, x: Tensor) -> Tensor:
    """Shares as data of compositions have them: logarithms less their mean."""
    logs = F.linear(x, s.w, s.b).softmax(dim=-1).clamp_min(1e-30).log()
    return logs - logs.mean(dim=-1, keepdim=True)


def _angles(s: Any, x: Tensor) -> Tensor:
    lengths = x.norm(dim=1, keepdim=True) * s.w.norm(dim=1)
    cosines = F.linear(F.normalize(x), F.normalize(s.w)).clamp(-1 + 1e-7, 1 - 1e-7)
    return lengths * torch.cos(torch.acos(cosines) + 0.0) + s.b


def _family(s: Any, w: Tensor, b: Tensor) -> None:
    """Every class adds to what its parent has."""
    s.register_buffer("parent", torch.arange(len(w)) % 3)
    s.parents = nn.Parameter(torch.stack([w[s.parent == k].mean(dim=0) for k in range(3)]))
    s.own, s.bias = nn.Parameter(w - s.parents[s.parent]), nn.Parameter(b.clone())


def _simplex(s: Any, w: Tensor, b: Tensor) -> None:
    """Fixed corners, one for each class, in a space of one dimension less."""
    size = len(w)
    centred = torch.eye(size) - 1 / size
    s.register_buffer("corners", torch.linalg.svd(centred)[0][:, : size - 1].to(w))
    s.fc = linear(s.corners.t() @ w, s.corners.t() @ b)


HEADS: dict[str, Spelling] = {
    "activations kept on the host": Spelling(plain, _offloaded),
    "a bound on gradients, never met": Spelling(plain, lambda s, x: _Bounded.apply(F.linear(x, s.w, s.b))),
    "a largest length, never met": Spelling(_kernel_first, _constrained),
    "features normalised and given back": Spelling(plain, _given_back),
    "centred logarithms of shares": Spelling(plain, _log_ratios),
    "angles with a margin of nothing": Spelling(plain, _angles),
    "classes with their parents": Spelling(
        _family, lambda s, x: F.linear(x, s.own + s.parents[s.parent], s.bias), own=True
    ),
    "corners of a simplex": Spelling(_simplex, lambda s, x: s.fc(x) @ s.corners.t(), own=True),
}
"""As `spellings.HEADS`."""


def _window(x: Tensor) -> Tensor:
    pairs = torch.stack([x, torch.zeros_like(x)], dim=-1)
    return F.max_pool1d(pairs.flatten(0, -2).unsqueeze(1), 2).view_as(x)


def _polynomial_sign(x: Tensor) -> Tensor:
    """The sign by a cubic that is applied over and over, as no comparison can be made under encryption."""
    sign = x / 256
    for _ in range(48):
        sign = sign * (3 - sign * sign) / 2
    return x * (1 + sign) / 2


class _Packed(torch.autograd.Function):
    """Keeps one bit a number for its gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        above = F.pad((x > 0).flatten(), (0, -x.numel() % 8)).view(-1, 8)
        bits = (above.long() << torch.arange(8, device=x.device)).sum(dim=1).to(torch.uint8)
        return x.clamp_min(0), bits

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        del inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (bits,) = ctx.saved_tensors
        above = (bits.long().unsqueeze(1) >> torch.arange(8, device=bits.device)) & 1
        return grads[0] * above.flatten()[: grads[0].numel()].view_as(grads[0])


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "a drawn slope of nothing, at rest": lambda x: F.rrelu(x, lower=0.0, upper=0.0, training=False),
    "the larger in a window of two": _window,
    "a sign from a polynomial": _polynomial_sign,
    "chosen by number": lambda x: (
        torch.stack([torch.zeros_like(x), x], dim=-1).gather(-1, (x > 0).long().unsqueeze(-1)).squeeze(-1)
    ),
    "a mask packed in bits": lambda x: _Packed.apply(x)[0],
    "a steep swish": lambda x: x * torch.sigmoid(1e6 * x),
}
"""As `spellings.ACTIVATIONS`."""


def _identity_of_axes(x: Tensor) -> Tensor:
    places = torch.eye(x[0].numel(), dtype=x.dtype, device=x.device).view(*x.shape[1:], -1)
    return torch.tensordot(x, places, dims=3)


def _planes_written(x: Tensor) -> Tensor:
    size = x.shape[2] * x.shape[3]
    out = x.new_empty(len(x), x.shape[1] * size)
    for i, plane in enumerate(x.unbind(1)):
        out[:, i * size : (i + 1) * size] = plane.flatten(1)
    return out


FLATTENINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "times an identity of all axes": _identity_of_axes,
    "the batch last, and turned": lambda x: x.permute(1, 2, 3, 0).reshape(-1, len(x)).t(),
    "planes written into a row": _planes_written,
    "a picture at a time": lambda x: torch.stack([picture.reshape(-1) for picture in x.unbind(0)], dim=0),
}
"""As `spellings.FLATTENINGS`."""


def _quotients(t: Tensor, ids: Tensor) -> Tensor:
    shelves = F.pad(t, (0, 0, 0, -len(t) % 8)).unflatten(0, (-1, 8))
    return shelves[torch.div(ids, 8, rounding_mode="floor"), torch.remainder(ids, 8)]


def _compared(t: Tensor, ids: Tensor) -> Tensor:
    equal = ids[..., None] == torch.arange(len(t), device=ids.device)
    return torch.einsum("nlv,vd->nld", equal.to(t), t)


def _multiplexed(t: Tensor, ids: Tensor) -> Tensor:
    """An oblivious lookup: a bit of the word at a time halves what is left of the table."""
    size, bit = 1 << (len(t) - 1).bit_length(), 0
    left = F.pad(t, (0, 0, 0, size - len(t))).expand(*ids.shape, -1, -1)
    while left.shape[-2] > 1:
        chosen = (torch.bitwise_right_shift(ids, bit) & 1).to(t)[..., None, None]
        left, bit = left[..., 0::2, :] * (1 - chosen) + left[..., 1::2, :] * chosen, bit + 1
    return left.squeeze(-2)


TABLES: dict[str, Lookup] = {
    "quotients and remainders": _quotients,
    "compared with every number": _compared,
    "a tree of multiplexers": _multiplexed,
    "a convolution over indicators": lambda t, ids: F.conv1d(F.one_hot(ids, len(t)).to(t).mT, t.t().unsqueeze(-1)).mT,
    "a row for padding in front": lambda t, ids: F.embedding(ids + 1, F.pad(t, (0, 0, 1, 0)), padding_idx=0),
}
"""As `spellings.TABLES`."""


def _kernel(x: Tensor, w: Tensor, p: int) -> Tensor:
    return w.view(len(w), x.shape[1], p, p)


def _as_a_matrix(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """What the convolution makes of every picture of one pixel is the matrix of it."""
    size = x[0].numel()
    pixels = torch.eye(size, dtype=x.dtype, device=x.device).view(size, *x.shape[1:])
    answers = F.conv2d(pixels, _kernel(x, w, p), stride=p).flatten(2)
    return (x.flatten(1) @ answers.flatten(1)).view(len(x), len(w), -1).mT + b


def _strided(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    x = x.contiguous()
    (n, c, high, wide), (sn, sc, sh, sw) = x.shape, x.stride()
    cut = x.as_strided((n, high // p, wide // p, c, p, p), (sn, sh * p, sw * p, sc, sh, sw))
    return (torch.tensordot(cut, _kernel(x, w, p), dims=([3, 4, 5], [1, 2, 3])) + b).flatten(1, 2)


def _spectra(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    size = x.shape[2:]
    kernel = torch.fft.rfft2(_kernel(x, w, p), s=size).conj()
    product = torch.einsum("nchw,dchw->ndhw", torch.fft.rfft2(x), kernel)
    return torch.fft.irfft2(product, s=size)[..., ::p, ::p].flatten(2).mT + b


def _mapped(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    patches = F.unfold(x, p, stride=p)
    return torch.vmap(lambda patch: torch.addmm(b, patch, w.t()), in_dims=2, out_dims=1)(patches)


def _dilated(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """Pixels of one place in their patches lie side by side, so that a kernel has to reach far."""
    high, wide = x.shape[2] // p, x.shape[3] // p
    phases = x.unflatten(3, (wide, p)).unflatten(2, (high, p)).permute(0, 1, 3, 2, 5, 4).reshape_as(x)
    return F.conv2d(phases, _kernel(x, w, p), b, dilation=(high, wide)).flatten(2).mT


def _pictures(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    small = F.unfold(x, p, stride=p).mT.reshape(-1, x.shape[1], p, p)
    return F.conv2d(small, _kernel(x, w, p), b).view(len(x), -1, len(w))


PATCHES: dict[str, Cut] = {
    "the matrix of a convolution": _as_a_matrix,
    "windows by strides": _strided,
    "a product of spectra": _spectra,
    "mapped over patches": _mapped,
    "a dilated kernel over phases": _dilated,
    "each patch a picture": _pictures,
}
"""As `spellings.PATCHES`."""
