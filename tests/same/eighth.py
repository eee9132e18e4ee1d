"""An eighth list of spellings, written blind and committed before any of them was read: hooks and frozen norms,
adapters that rotate, columns beside the pixels, learned steps, kept constants, and parties that hide a weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from same.spellings import Cut, Lookup, Spelling, linear, plain


def _random(*shape: int, seed: int = 13) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _uniform(*shape: int, seed: int = 13) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def _matrix(w: Tensor) -> nn.Linear:
    made = nn.Linear(w.shape[1], w.shape[0], bias=False)
    made.weight.copy_(w)
    return made


def _picture(rows: Tensor) -> Tensor:
    """Rows as square pictures of three colours."""
    side = int((rows.shape[1] // 3) ** 0.5)
    return rows.view(len(rows), 3, side, side)


def _equal_rate(module: Any, given: tuple[Any, ...]) -> None:
    """Before each call: the weight from the one that is trained, by the size that its fan asks for."""
    del given
    module.weight = module.weight_orig * (2 / module.in_features) ** 0.5


def _hooked(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc = linear(w, b)
    del s.fc.weight
    s.fc.register_parameter("weight_orig", nn.Parameter(w / (2 / w.shape[1]) ** 0.5))
    s.fc.register_forward_pre_hook(_equal_rate)


def _fused(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("running_mean", 0.2 * _random(len(w)).to(w))
    s.register_buffer("running_var", 0.5 + _uniform(len(w)).to(w))
    s.gamma = nn.Parameter(1 + 0.3 * _random(len(w), seed=14).tanh().to(w))
    factor = s.gamma / (s.running_var + 1e-5).sqrt()
    s.beta, s.weight = nn.Parameter(b + factor * s.running_mean), nn.Parameter(w / factor[:, None])


def _folded(s: Any, x: Tensor) -> Tensor:
    """Training for integers: the norm's factor goes into the weight, is taken out again, and the norm follows."""
    factor = s.gamma / (s.running_var + 1e-5).sqrt()
    answers = F.linear(x, s.weight * factor.reshape(-1, 1)) / factor.reshape(1, -1)
    return F.batch_norm(answers, s.running_mean, s.running_var, s.gamma, s.beta, training=False, eps=1e-5)


def _fine(s: Any, w: Tensor, b: Tensor) -> None:
    s.step = nn.Parameter(torch.tensor(2.0**-16).to(w))
    plain(s, w, b)


def _stepped(s: Any, x: Tensor) -> Tensor:
    """Codes of 21 bits by a step that is learned at a smaller rate; rounding lets gradients through."""
    rate = (s.w.numel() * 2.0**20) ** -0.5
    step = s.step * rate + (s.step - s.step * rate).detach()
    scaled = (s.w / step).clamp(-(2.0**20), 2.0**20)
    codes = scaled + (scaled.round() - scaled).detach()
    return F.linear(x, codes * step, s.b)


def _rotation(r: Tensor) -> Tensor:
    """Cayley's map of a few small blocks, as one matrix."""
    skew, eye = r - r.mT, torch.eye(r.shape[-1]).to(r)
    return torch.block_diag(*torch.linalg.solve(eye + skew, eye - skew).unbind(0))


def _rotating(s: Any, w: Tensor, b: Tensor) -> None:
    s.oft_r = nn.Parameter(0.2 * _random(w.shape[1] // 8, 8, 8).to(w))
    s.base = linear(w @ _rotation(s.oft_r).t(), b)


def _spectral(s: Any, w: Tensor, b: Tensor) -> None:
    u, size, v = torch.linalg.svd(w, full_matrices=False)
    s.register_buffer("u", u[:, 0].contiguous())
    s.register_buffer("v", v[0].contiguous())
    s.gain, s.weight_orig, s.bias = nn.Parameter(size[0].clone()), nn.Parameter(2.5 * w), nn.Parameter(b.clone())


def _of_unit_length(s: Any, x: Tensor) -> Tensor:
    sigma = torch.dot(s.u, torch.mv(s.weight_orig, s.v))
    return F.linear(x, s.gain * (s.weight_orig / sigma), s.bias)


def _accumulator(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("limit", 2 * w.abs().max())
    s.m_hat = nn.Parameter(2 + 0.5 * _random(*w.shape).tanh().to(w))
    s.w_hat = nn.Parameter((w / (s.limit * s.m_hat.sigmoid())).atanh())
    s.bias = nn.Parameter(b.clone())


def _parties(s: Any, w: Tensor, b: Tensor) -> None:
    s.columns = 2 * w.shape[1] // 3
    guest, host = w.tensor_split([s.columns], dim=1)
    s.register_buffer("acc_noise", 0.1 * _random(*host.shape).to(w))
    s.guest, s.host = linear(guest, b), _matrix(host - s.acc_noise)


def _interactive(s: Any, x: Tensor) -> Tensor:
    """A guest's features and a host's, whose weight is kept less a noise that only the host knows."""
    guest, host = x[:, : s.columns], x[:, s.columns :]
    out: Tensor = s.guest(guest) + (s.host(host) + F.linear(host, s.acc_noise))
    return out


def _prompted(s: Any, w: Tensor, b: Tensor) -> None:
    s.prompt = nn.Parameter(_random(12).to(w) / 4)
    beside = _random(len(w), 12, seed=14).to(w) / 7
    s.fc = linear(torch.cat([w, beside], dim=1), b - beside @ s.prompt)


def _located(s: Any, w: Tensor, b: Tensor) -> None:
    kernel = _picture(w)
    side = kernel.shape[-1]
    line = torch.linspace(-1, 1, side).to(w)
    s.register_buffer("coordinates", torch.stack(torch.meshgrid(line, line, indexing="ij"))[None])
    beside = _random(len(w), 2, side, side).to(w) / 7
    s.conv = nn.Conv2d(5, len(w), side)
    s.conv.weight.copy_(torch.cat([kernel, beside], dim=1))
    s.conv.bias.copy_(b - (beside * s.coordinates).sum(dim=(1, 2, 3)))


def _with_coordinates(s: Any, x: Tensor) -> Tensor:
    places = s.coordinates.expand(len(x), -1, -1, -1)
    out: Tensor = s.conv(torch.cat([_picture(x), places], dim=1))
    return out[:, :, 0, 0]


def _incomplete(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("median", 0.3 + 0.4 * _uniform(w.shape[1]).to(w))
    s.fc = linear(torch.cat([w, _random(*w.shape).to(w) / 10], dim=1), b)


def _imputed(s: Any, x: Tensor) -> Tensor:
    """A table's usual start: medians for what is missing, and columns that say what was."""
    missing = torch.isnan(x)
    out: Tensor = s.fc(torch.cat([torch.where(missing, s.median, x), missing.to(x.dtype)], dim=1))
    return out


def _clipped(s: Any, x: Tensor) -> Tensor:
    """Rows clipped to a length that bounds their influence; none is that long."""
    factor = (1e3 / x.norm(dim=1, keepdim=True).clamp_min(1e-6)).clamp(max=1.0)
    return F.linear(x * factor, s.w, s.b)


def _conditioned(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("condition", _random(8).to(w))
    s.fc, s.modulation = linear(w, b), nn.Linear(8, 2 * len(w))
    nn.init.zeros_(s.modulation.weight)
    nn.init.zeros_(s.modulation.bias)


def _modulated(s: Any, x: Tensor) -> Tensor:
    shift, scale = s.modulation(F.silu(s.condition)).chunk(2, dim=-1)
    out: Tensor = s.fc(x) * (1 + scale) + shift
    return out


def _pulled(s: Any, x: Tensor) -> Tensor:
    """The transpose of the map that goes from units to inputs."""
    _, pull = torch.func.vjp(lambda units: units @ s.w, x.new_zeros(len(x), len(s.w)))
    (out,) = pull(x)
    return out + s.b


class _Accumulated(torch.autograd.Function):
    """Its weight's gradient is added up over blocks of rows, to need less memory at a time."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.matmul(x, w.t()) + b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        del output
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x, w = ctx.saved_tensors
        main = torch.zeros_like(w)
        for out, into in zip(grads[0].split(2), x.split(2), strict=True):
            main = torch.addmm(main, out.t(), into)
        return grads[0].matmul(w), main, grads[0].sum(dim=0)


def _haar(rows: Tensor) -> Tensor:
    """One level of the Haar transform: a quarter of means and three of differences."""
    picture = _picture(rows)
    for axis in (2, 3):
        even, odd = picture.unflatten(axis, (-1, 2)).unbind(axis + 1)
        picture = torch.cat([even + odd, even - odd], dim=axis) / 2**0.5
    return picture.flatten(1)


def _local(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("received", w + 0.1 * _random(*w.shape).to(w))
    s.mix = nn.Parameter(0.2 + 0.7 * _uniform(*w.shape).to(w))
    s.local, s.bias = nn.Parameter(s.received + (w - s.received) / s.mix), nn.Parameter(b.clone())


def _aggregated(s: Any, x: Tensor) -> Tensor:
    """What the server sent, and of what is one's own as much as is learned for each entry."""
    weight = s.received + (s.local - s.received) * s.mix.clamp(0, 1)
    return F.linear(x, weight, s.bias)


def _core(s: Any, w: Tensor, b: Tensor) -> None:
    u, size, v = torch.linalg.svd(w, full_matrices=False)
    s.register_buffer("lora_b", u)
    s.register_buffer("lora_a", v)
    s.core, s.bias = nn.Parameter(torch.diag(size)), nn.Parameter(b.clone())


class _FrozenNorm(nn.Module):
    """A batch norm of which everything is a buffer."""

    def __init__(self, size: int, seed: int) -> None:
        super().__init__()
        self.register_buffer("weight", 1 + 0.3 * _random(size, seed=seed).tanh())
        self.register_buffer("bias", 0.1 * _random(size, seed=seed + 1))
        self.register_buffer("running_mean", 0.1 * _random(size, seed=seed + 2))
        self.register_buffer("running_var", 0.5 + _uniform(size, seed=seed))

    def factors(self) -> tuple[Tensor, Tensor]:
        scale: Tensor = self.weight * (self.running_var + 1e-5).rsqrt()  # type: ignore[operator]
        return scale, self.bias - self.running_mean * scale  # type: ignore[operator, return-value]

    def forward(self, x: Tensor) -> Tensor:
        scale, shift = self.factors()
        return x * scale + shift


def _branches(s: Any, w: Tensor, b: Tensor) -> None:
    s.norms = nn.ModuleList(_FrozenNorm(len(w), seed).to(w) for seed in (20, 30, 40))
    (f0, b0), (f1, b1), (f2, b2) = (norm.factors() for norm in s.norms)
    one, two = (_random(*w.shape, seed=seed).to(w) / 7 for seed in (15, 16))
    three = (w - f0[:, None] * one - f1[:, None] * two) / f2[:, None]
    s.branches, s.bias = nn.ModuleList(map(_matrix, (one, two, three))), nn.Parameter(b - b0 - b1 - b2)


def _reparametrisable(s: Any, x: Tensor) -> Tensor:
    out = s.bias
    for branch, norm in zip(s.branches, s.norms, strict=True):
        out = out + norm(branch(x))
    return out


def _keeping(s: Any, w: Tensor, b: Tensor) -> None:
    plain(s, w, b)
    s.kept = {}


def _with_kept(s: Any, x: Tensor) -> Tensor:
    """The column of ones for the bias is made once for each size, kind and place."""
    key = (len(x), x.dtype, x.device)
    if key not in s.kept:
        s.kept[key] = torch.ones(len(x), 1, dtype=x.dtype, device=x.device)
    return torch.addmm(s.kept[key] @ s.b.unsqueeze(0), x, s.w.t())


def _shared(s: Any, w: Tensor, b: Tensor) -> None:
    s.shared, s.gate = linear(w, b), _matrix(_random(3, w.shape[1]).to(w) / 7)
    s.experts = nn.Parameter(w.new_zeros(3, *w.shape))


def _with_experts(s: Any, x: Tensor) -> Tensor:
    shares = s.gate(x).sigmoid()
    out: Tensor = s.shared(x) + torch.einsum("ne,eoi,ni->no", shares, s.experts, x)
    return out


LAYERS: dict[str, Spelling] = {
    "a weight that a hook sets": Spelling(_hooked, lambda s, x: s.fc(x)),
    "a norm folded in and taken out": Spelling(_fused, _folded, own=True),
    "a learned step of fine rounding": Spelling(_fine, _stepped),
    "small rotations of the weight": Spelling(
        _rotating, lambda s, x: F.linear(x, s.base.weight @ _rotation(s.oft_r), s.base.bias), own=True
    ),
    "a spectral length from kept vectors": Spelling(_spectral, _of_unit_length, own=True),
    "a neural accumulator": Spelling(
        _accumulator, lambda s, x: F.linear(x, s.limit * s.w_hat.tanh() * s.m_hat.sigmoid(), s.bias), own=True
    ),
    "a guest and a host with noise": Spelling(_parties, _interactive),
    "a soft prompt beside the input": Spelling(
        _prompted, lambda s, x: s.fc(torch.cat([x, s.prompt.expand(len(x), -1)], dim=1)), own=True
    ),
    "coordinates as two more channels": Spelling(_located, _with_coordinates, own=True),
    "medians and indicators of what is missing": Spelling(_incomplete, _imputed),
    "a length that no row exceeds": Spelling(plain, _clipped),
    "modulated by a condition, not yet": Spelling(_conditioned, _modulated, own=True),
    "pulled back through its transpose": Spelling(plain, _pulled),
    "a weight's gradient in blocks of rows": Spelling(plain, lambda s, x: _Accumulated.apply(x, s.w, s.b)),
    "Haar wavelets of every colour": Spelling(
        lambda s, w, b: plain(s, _haar(w), b), lambda s, x: F.linear(_haar(x), s.w, s.b), own=True
    ),
    "a local weight mixed in by the entry": Spelling(_local, _aggregated, own=True),
    "a core between frozen factors": Spelling(
        _core, lambda s, x: F.linear(F.linear(F.linear(x, s.lora_a), s.core), s.lora_b, s.bias), own=True
    ),
    "branches with frozen norms": Spelling(_branches, _reparametrisable, own=True),
    "a column of ones that is kept": Spelling(_keeping, _with_kept),
    "a shared expert and three of nothing": Spelling(_shared, _with_experts, own=True),
}
"""As `spellings.LAYERS`."""


def _described(s: Any, w: Tensor, b: Tensor) -> None:
    """Classes by embeddings of their descriptions, which are frozen; a projection to them is learned."""
    words = torch.linalg.qr(_random(len(w), len(w)).to(w))[0] * torch.linspace(0.7, 1.4, len(w)).to(w)
    s.register_buffer("descriptions", words)
    s.projection, s.bias = _matrix(torch.linalg.solve(words, w)), nn.Parameter(b.clone())


def _present(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("present", torch.ones(len(w), dtype=torch.bool))
    s.fc = linear(w, b)


def _discriminant(s: Any, w: Tensor, b: Tensor) -> None:
    """Gaussians with means of their own and a covariance that all share."""
    size = w.shape[1]
    drawn = _random(size, size).to(w) / size**0.5
    s.register_buffer("precision", (drawn @ drawn.t() + torch.eye(size).to(w)) / 2)
    s.means = nn.Parameter(torch.linalg.solve(s.precision, w.t()).t().contiguous())
    s.log_prior = nn.Parameter(b + (s.means * w).sum(dim=1) / 2)


def _likelihoods(s: Any, x: Tensor) -> Tensor:
    directions = s.means @ s.precision
    return x @ directions.t() - (directions * s.means).sum(dim=1) / 2 + s.log_prior


def _certain(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("covariance", w.new_zeros(w.shape[1]))
    plain(s, w, b)


def _mean_field(s: Any, x: Tensor) -> Tensor:
    """Logits that are the smaller the less is known of an example; here everything is."""
    variance = (x.square() * s.covariance).sum(dim=1, keepdim=True)
    return F.linear(x, s.w, s.b) / torch.sqrt(1 + torch.pi / 8 * variance)


def _incremental(s: Any, w: Tensor, b: Tensor) -> None:
    cut = len(w) // 2
    s.alpha, s.beta = nn.Parameter(torch.tensor(0.8).to(w)), nn.Parameter(torch.tensor(0.1).to(w))
    s.old, s.new = linear(w[:cut], b[:cut]), linear(w[cut:] / s.alpha, (b[cut:] - s.beta) / s.alpha)


def _two_poolings(s: Any, w: Tensor, b: Tensor) -> None:
    apart = _random(*w.shape).to(w) / 10
    s.fc = linear(torch.cat([w / 2 + apart, w / 2 - apart], dim=1), b)


def _pooled_twice(s: Any, x: Tensor) -> Tensor:
    cells = x[:, :, None, None]
    pooled = torch.cat([F.adaptive_max_pool2d(cells, 1), F.adaptive_avg_pool2d(cells, 1)], dim=1)
    out: Tensor = s.fc(pooled.flatten(1))
    return out


def _normalised_by(s: Any, x: Tensor) -> Tensor:
    """Rows divided by a power of their lengths, against classes that are rare; the power is still nothing."""
    return F.linear(x, s.w / s.w.norm(dim=1, keepdim=True).pow(0.0), s.b)


HEADS: dict[str, Spelling] = {
    "frozen descriptions of classes": Spelling(
        _described, lambda s, x: s.projection(x) @ s.descriptions.t() + s.bias, own=True
    ),
    "absent classes masked, none": Spelling(_present, lambda s, x: s.fc(x).masked_fill(~s.present, float("-inf"))),
    "a discriminant with one covariance": Spelling(_discriminant, _likelihoods, own=True),
    "a mean field of no variance": Spelling(_certain, _mean_field),
    "old classes, and new ones corrected": Spelling(
        _incremental, lambda s, x: torch.cat([s.old(x), s.alpha * s.new(x) + s.beta], dim=1), own=True
    ),
    "the largest and the mean of one cell": Spelling(_two_poolings, _pooled_twice, own=True),
    "lengths to the power of nothing": Spelling(plain, _normalised_by),
    "shares taken in double": Spelling(
        plain, lambda s, x: F.log_softmax(F.linear(x, s.w, s.b), dim=-1, dtype=torch.float64).type_as(x)
    ),
}
"""As `spellings.HEADS`."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "a celu of next to nothing": lambda x: F.celu(x, alpha=1e-8),
    "clipped by two distances": lambda x: (x.abs() - (x - 64.0).abs() + 64.0) / 2,
    "half of one and the root of its square": lambda x: (x + torch.sqrt(x * x + 1e-24)) / 2,
    "the first half of both signs": lambda x: torch.cat([x, -x], dim=-1).relu().chunk(2, dim=-1)[0],
    "the smaller of the negative, negated": lambda x: -torch.minimum(-x, x.new_zeros(())),
    "in place, of a copy": lambda x: F.relu(x.clone(), inplace=True),
}
"""As `spellings.ACTIVATIONS`."""


def _cut_from_one(x: Tensor) -> Tensor:
    return torch.stack(x.reshape(-1).split(x[0].numel()))


def _tokens_and_back(x: Tensor) -> Tensor:
    tokens = x.permute(0, 2, 3, 1).reshape(len(x), -1, x.shape[1])
    return tokens.transpose(1, 2).reshape(len(x), -1)


FLATTENINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "pooled to its own size": lambda x: torch.flatten(F.adaptive_avg_pool2d(x, x.shape[-2:]), 1),
    "one long vector, cut": _cut_from_one,
    "tokens of pixels and back": _tokens_and_back,
    "the last two axes, twice": lambda x: x.flatten(-2).flatten(-2),
}
"""As `spellings.FLATTENINGS`."""


def _not_too_long(t: Tensor, ids: Tensor) -> Tensor:
    rows = F.embedding(ids, t)
    return rows * (1e3 / (rows.norm(dim=-1, keepdim=True) + 1e-7)).clamp(max=1.0)


def _words_that_are(t: Tensor, ids: Tensor) -> Tensor:
    """Places of padding, whose number is negative, would be nothing; there are none."""
    there = ids >= 0
    return F.embedding(ids.clamp_min(0), t) * there.unsqueeze(-1).to(t.dtype)


def _identity_behind(t: Tensor, ids: Tensor) -> Tensor:
    return F.linear(F.embedding(ids, t), torch.eye(t.shape[1], dtype=t.dtype, device=t.device))


TABLES: dict[str, Lookup] = {
    "a length that no word exceeds": _not_too_long,
    "a mask of words that are there": _words_that_are,
    "the table turned": lambda t, ids: t.t()[:, ids].movedim(0, -1),
    "two words at a time": lambda t, ids: torch.cat([F.embedding(part, t) for part in ids.split(2, dim=1)], dim=1),
    "an identity behind": _identity_behind,
}
"""As `spellings.TABLES`."""


def _kernel(x: Tensor, w: Tensor, p: int) -> Tensor:
    return w.view(len(w), x.shape[1], p, p)


def _channels_behind(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """Windows of pictures whose channels come last, and a kernel that was turned to them."""
    x = x.permute(0, 2, 3, 1)
    n, high, wide, c = x.shape
    windows = x.reshape(n, high // p, p, wide // p, p, c).permute(0, 1, 3, 2, 4, 5).reshape(n, -1, p * p * c)
    return windows @ w.view(-1, c, p, p).permute(2, 3, 1, 0).reshape(p * p * c, -1) + b


def _with_ones(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """The bias is the kernel of one more channel."""
    ones = torch.ones_like(x[:, :1])
    more = (b / p**2).view(-1, 1, 1, 1).expand(-1, 1, p, p)
    return F.conv2d(torch.cat([x, ones], dim=1), torch.cat([_kernel(x, w, p), more], dim=1), stride=p).flatten(2).mT


def _whole(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    x = F.pad(x, (0, -x.shape[3] % p, 0, -x.shape[2] % p))
    return F.conv2d(x, _kernel(x, w, p), b, stride=(p, p)).permute(0, 2, 3, 1).flatten(1, 2)


def _inflated(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """A picture is a film of two equal frames; the kernel is shared out over them."""
    film = x.unsqueeze(2).repeat(1, 1, 2, 1, 1)
    kernel = _kernel(x, w, p).unsqueeze(2).repeat(1, 1, 2, 1, 1) / 2
    return F.conv3d(film, kernel, b, stride=(2, p, p)).flatten(2).transpose(1, 2)


def _resized(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    kernel = F.interpolate(_kernel(x, w, p), size=(p, p), mode="bicubic", align_corners=False)
    return F.conv2d(x, kernel, b, stride=p).flatten(2).transpose(1, 2)


def _restored(x: Tensor, w: Tensor, b: Tensor, p: int) -> Tensor:
    """Patches out of order, of which all are kept, and put back in order behind the layer."""
    patches = F.unfold(x, p, stride=p).mT
    order = torch.sin(12.9898 * torch.arange(patches.shape[1], device=x.device)).argsort()
    kept = torch.gather(patches, 1, order.view(1, -1, 1).expand_as(patches))
    out = F.linear(kept, w, b)
    return torch.gather(out, 1, order.argsort().view(1, -1, 1).expand_as(out))


PATCHES: dict[str, Cut] = {
    "windows with channels last": _channels_behind,
    "a channel of ones": _with_ones,
    "padded to whole patches": _whole,
    "a film of two equal frames": _inflated,
    "a kernel resized to its own size": _resized,
    "shuffled, all kept and restored": _restored,
}
"""As `spellings.PATCHES`."""
