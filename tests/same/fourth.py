"""A fourth list of spellings that were written down, and committed, before any of them was read: weights that are made
on the way, inputs that go there and back, compiled networks, and loops of one step that send what a plain one sends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from leakgauge.clients import SGD, FedAvg, FedSGD, LocalTraining, Optimiser
from leakgauge.clients.optimisers import OptimiserState
from leakgauge.clients.protocol import GradientSum
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import UpdateKind
from same.readings import CLASSES, INPUTS, UNITS, Weights
from same.spellings import Spelled, Spelling, held, linear, plain
from same.third import Loop, OneStep

WEIGHTS = Weights.drawn()


def _random(*shape: int, seed: int = 7) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _lazy(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc = nn.LazyLinear(UNITS)
    s.fc(torch.zeros(1, INPUTS))
    s.fc.weight.copy_(w)
    s.fc.bias.copy_(b)


def _scripted(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc = torch.jit.script(linear(w, b))


def _in_heads(s: Any, w: Tensor, b: Tensor) -> None:
    s.w, s.b = nn.Parameter(w.view(4, -1, INPUTS).mT.contiguous()), nn.Parameter(b.view(4, 1, -1).clone())


def _positive(s: Any, w: Tensor, b: Tensor) -> None:
    """The difference of two positive weights, each kept as what softplus makes it of."""
    s.up, s.down = (nn.Parameter((part + 0.1).expm1().log()) for part in (w.clamp(min=0), (-w).clamp(min=0)))
    s.b = nn.Parameter(b.clone())


def _attended(s: Any, w: Tensor, b: Tensor) -> None:
    s.query, s.key, s.value = nn.Linear(INPUTS, UNITS), nn.Linear(INPUTS, UNITS), linear(w, b)


def _attention(s: Any, x: Tensor) -> Tensor:
    """Of one token to itself."""
    q, k, v = (part(x)[:, None] for part in (s.query, s.key, s.value))
    return F.scaled_dot_product_attention(q, k, v)[:, 0]


def _gated(s: Any, w: Tensor, b: Tensor) -> None:
    s.gate, s.experts = nn.Linear(INPUTS, 1), nn.ModuleList([linear(w, b)])


def _routed(s: Any, x: Tensor) -> Tensor:
    shares = s.gate(x).softmax(dim=-1)
    return torch.stack([share[:, None] * e(x) for share, e in zip(shares.unbind(1), s.experts, strict=True)]).sum(0)


def _coloured(s: Any, w: Tensor, b: Tensor) -> None:
    s.mix, s.fc = nn.Conv2d(3, 3, 1), linear(w, b)
    s.mix.weight.copy_(torch.eye(3)[:, :, None, None])
    s.mix.bias.zero_()


def _offset(s: Any, w: Tensor, b: Tensor) -> None:
    s.place = nn.Parameter(0.1 * _random(INPUTS))
    s.fc = linear(w, b - w @ s.place)


def _gains(s: Any, w: Tensor, b: Tensor) -> None:
    s.gain = nn.Parameter(1 + 0.3 * _random(INPUTS).tanh())
    s.fc = linear(w / s.gain, b)


def _parts(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("order", torch.randperm(UNITS, generator=torch.Generator().manual_seed(2)))
    plain(s, w[s.order], b)


def _block(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc, s.block, s.alpha = linear(w, b), nn.Linear(INPUTS, INPUTS), nn.Parameter(torch.zeros(()))


def _windows(s: Any, w: Tensor, b: Tensor) -> None:
    wide = torch.zeros(UNITS, 2 * INPUTS)
    wide[:, ::2] = w
    s.wide, s.b = nn.Parameter(wide), nn.Parameter(b.clone())


def _sampled(x: Tensor) -> Tensor:
    """Every pixel where it is, as a spatial transformer that moves nothing."""
    where = F.affine_grid(torch.eye(2, 3).expand(len(x), 2, 3), [len(x), 3, 4, 4], align_corners=True)
    return F.grid_sample(x.view(-1, 3, 4, 4), where, mode="nearest", align_corners=True).flatten(1)


def _up_and_down(x: Tensor) -> Tensor:
    return F.avg_pool2d(F.interpolate(x.view(-1, 3, 4, 4), scale_factor=2), 2).flatten(1)


def _cropped(x: Tensor) -> Tensor:
    return F.pad(x.view(-1, 3, 4, 4), (1, 1, 1, 1), mode="reflect")[..., 1:-1, 1:-1].flatten(1)


def _picked(s: Any, x: Tensor) -> Tensor:
    return F.linear(torch.take_along_dim(x, s.order[None], dim=1), s.w, s.b)


def _reordered(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("order", torch.randperm(INPUTS, generator=torch.Generator().manual_seed(4)))
    plain(s, w[:, s.order], b)


LAYERS: dict[str, Spelling] = {
    "lazy": Spelling(_lazy, lambda s, x: s.fc(x)),
    "scripted": Spelling(_scripted, lambda s, x: s.fc(x)),
    "heads in a batch of products": Spelling(
        _in_heads, lambda s, x: torch.baddbmm(s.b, x.expand(4, -1, -1), s.w).permute(1, 0, 2).flatten(1)
    ),
    "a Fourier transform and back": Spelling(
        plain, lambda s, x: F.linear(torch.fft.irfft(torch.fft.rfft(x), n=INPUTS), s.w, s.b)
    ),
    "sparse features": Spelling(plain, lambda s, x: torch.sparse.mm(x.to_sparse(), s.w.T) + s.b),
    "twice as large and back": Spelling(plain, lambda s, x: F.linear(_up_and_down(x), s.w, s.b)),
    "taken along an axis": Spelling(_reordered, _picked),
    "a logarithm and back": Spelling(plain, lambda s, x: F.linear(torch.expm1(torch.log1p(x)), s.w, s.b)),
    "differences of positive weights": Spelling(
        _positive, lambda s, x: F.linear(x, F.softplus(s.up) - F.softplus(s.down), s.b), own=True
    ),
    "bounded weights": Spelling(
        held(lambda w: (w / 2).atanh()), lambda s, x: F.linear(x, 2 * s.w.tanh(), s.b), own=True
    ),
    "dropped connections, none": Spelling(plain, lambda s, x: F.linear(x, F.dropout(s.w, 0.0), s.b)),
    "attention of one token": Spelling(_attended, _attention),
    "an expert without rivals": Spelling(_gated, _routed),
    "a mix of colours at its start": Spelling(_coloured, lambda s, x: s.fc(s.mix(x.view(-1, 3, 4, 4)).flatten(1))),
    "a learned offset": Spelling(_offset, lambda s, x: s.fc(x + s.place)),
    "learned gains": Spelling(_gains, lambda s, x: s.fc(x * s.gain)),
    "from squared distances": Spelling(
        plain,
        lambda s, x: (x.square().sum(1)[:, None] + s.w.square().sum(1) - (x[:, None] - s.w).square().sum(2)) / 2 + s.b,
    ),
    "the middle of a correlation": Spelling(
        plain, lambda s, x: F.conv1d(x[:, None], s.w[:, None], padding=INPUTS - 1)[..., INPUTS - 1] + s.b
    ),
    "parts added where they belong": Spelling(
        _parts, lambda s, x: x.new_zeros(len(x), UNITS).index_add(1, s.order, F.linear(x, s.w)) + s.b
    ),
    "padded and cropped": Spelling(plain, lambda s, x: F.linear(_cropped(x), s.w, s.b)),
    "the batch comes last": Spelling(plain, lambda s, x: torch.einsum("oi,in->on", s.w, x.t()).t().add(s.b)),
    "every other column": Spelling(_windows, lambda s, x: F.linear(x, s.wide[:, ::2], s.b)),
    "a spatial transformer at rest": Spelling(plain, lambda s, x: F.linear(_sampled(x), s.w, s.b)),
    "a block that begins at zero": Spelling(_block, lambda s, x: s.fc(x + s.alpha * s.block(x).relu())),
}


def _whole(first: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), first or linear(*WEIGHTS.first), nn.ReLU(), linear(*WEIGHTS.head))


def layered(name: str) -> nn.Module:
    """The perceptron with its first layer in these words."""
    return _whole(Spelled(LAYERS[name], *WEIGHTS.first))


class Residual(nn.Module):
    """A block behind the hidden layer that adds nothing yet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.up, self.down = _whole()[:3], nn.Linear(UNITS, 24), nn.Linear(24, UNITS)
        self.head = linear(*WEIGHTS.head)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        out: Tensor = self.head(h + self.down(F.gelu(self.up(h))))
        return out


class Answer(NamedTuple):
    """What a network says, by name."""

    logits: Tensor
    features: Tensor


class Named(nn.Module):
    """Answers with what it saw on the way, too."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = _whole()[:3], linear(*WEIGHTS.head)

    def forward(self, pictures: Tensor) -> Answer:
        features = self.body(pictures)
        return Answer(self.head(features), features)


class Frozen(nn.Module):
    """Brings its pictures into shape under ``no_grad``."""

    def __init__(self) -> None:
        super().__init__()
        (w, b), self.norm = WEIGHTS.first, nn.BatchNorm2d(3, affine=False)
        self.norm.running_mean, self.norm.running_var = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.05, 0.06, 0.07])
        each = (self.norm.running_var + self.norm.eps).sqrt().repeat_interleave(16)
        self.fc1 = linear(w * each, b + w @ self.norm.running_mean.repeat_interleave(16))
        self.fc2 = linear(*WEIGHTS.head)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.norm(x).flatten(1)
        out: Tensor = self.fc2(F.relu(self.fc1(x)))
        return out


class Prototypes(nn.Module):
    """A score by distance from a point for each class, and a prior."""

    def __init__(self) -> None:
        super().__init__()
        w, b = WEIGHTS.head
        self.body, self.points = _whole()[:3], nn.Parameter(w / 2)
        self.prior = nn.Parameter(b + (w / 2).square().sum(1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        out: Tensor = self.prior - (h[:, None] - self.points).square().sum(-1)
        return out


class BothSigns(nn.Module):
    """Keeps what is below zero beside what is above; the head does not look at it yet."""

    def __init__(self) -> None:
        super().__init__()
        w, b = WEIGHTS.head
        self.fc, self.head = linear(*WEIGHTS.first), linear(torch.cat([w, torch.zeros(CLASSES, UNITS)], 1), b)

    def forward(self, x: Tensor) -> Tensor:
        z = self.fc(x.flatten(1))
        out: Tensor = self.head(torch.cat([z, -z], dim=1).relu())
        return out


def _compiled() -> nn.Module:
    made: nn.Module = torch.compile(_whole(), backend="eager")  # type: ignore[assignment]
    return made


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "compiled": _compiled,
    "scripted as a whole": lambda: torch.jit.script(_whole()),
    "a graph of torch.fx": lambda: fx.symbolic_trace(_whole()),
    "a block that adds nothing": Residual,
    "an answer of named parts": Named,
    "a part without gradients": lambda: Frozen().eval(),
    "distances from prototypes": Prototypes,
    "both signs of a layer": BothSigns,
}


@dataclass(frozen=True, kw_only=True)
class PseudoGradient(OneStep):
    """Sends how far it moved, divided by its rate."""

    @property
    def kind(self) -> UpdateKind:
        return UpdateKind.GRADIENT

    def linear(self, examples: int) -> GradientSum:
        return GradientSum((1.0,), (examples,))

    def sent(self, start: Tensor, gradient: Tensor) -> Tensor:
        return (start - (start - self.lr * gradient)) / self.lr


@dataclass(frozen=True, kw_only=True)
class FirstMoment(Optimiser):
    """Adam's mean of gradients with its correction, and nothing that divides it."""

    lr: float = 0.1
    beta: float = 0.9

    def step(self, gradient: Tensors, parameters: Tensors, state: OptimiserState) -> tuple[Tensors, OptimiserState]:
        before, t = state.moments.get("mean", map_tensors(torch.zeros_like, gradient)), state.steps + 1
        mean = map_tensors(lambda m, g: self.beta * m + (1 - self.beta) * g, before, gradient)
        moved = map_tensors(lambda p, m: p - self.lr * m / (1 - self.beta**t), parameters, mean)
        return moved, OptimiserState(t, {"mean": mean})


@dataclass(frozen=True, kw_only=True)
class Proximal(Optimiser):
    """Pulled back to where it began."""

    lr: float = 0.1
    pull: float = 0.5

    def step(self, gradient: Tensors, parameters: Tensors, state: OptimiserState) -> tuple[Tensors, OptimiserState]:
        began = state.moments.get("began", parameters)
        moved = map_tensors(lambda p, g, p0: p - self.lr * (g + self.pull * (p - p0)), parameters, gradient, began)
        return moved, OptimiserState(state.steps + 1, {"began": began})


@dataclass(frozen=True, kw_only=True)
class Bounded(Optimiser):
    """The gradient's length is cut at a length that it never has."""

    lr: float = 0.1
    most: float = 1e6

    def step(self, gradient: Tensors, parameters: Tensors, state: OptimiserState) -> tuple[Tensors, OptimiserState]:
        norm = torch.stack([g.norm() for g in gradient.values()]).norm()
        factor = (self.most / (norm + 1e-6)).clamp(max=1.0)
        return map_tensors(lambda p, g: p - self.lr * factor * g, parameters, gradient), OptimiserState(state.steps + 1)


@dataclass(frozen=True, kw_only=True)
class Averaged(Optimiser):
    """The mean of two copies that took the same step."""

    lr: float = 0.1

    def step(self, gradient: Tensors, parameters: Tensors, state: OptimiserState) -> tuple[Tensors, OptimiserState]:
        one, _ = SGD(lr=self.lr).step(gradient, parameters, OptimiserState())
        other, _ = SGD(lr=self.lr).step(gradient, parameters, OptimiserState())
        return map_tensors(lambda a, b: (a + b) / 2, one, other), OptimiserState(state.steps + 1)


@dataclass(frozen=True, kw_only=True)
class InDouble(Optimiser):
    """Steps in twice the precision, and back."""

    lr: float = 0.1

    def step(self, gradient: Tensors, parameters: Tensors, state: OptimiserState) -> tuple[Tensors, OptimiserState]:
        moved = map_tensors(lambda p, g: (p.double() - self.lr * g.double()).to(p.dtype), parameters, gradient)
        return moved, OptimiserState(state.steps + 1)


LOOPS: dict[str, Loop] = {
    "a pseudo-gradient": Loop(lambda _: PseudoGradient(), FedSGD()),
    "a pseudo-gradient in parts": Loop(lambda _: PseudoGradient(most=2), FedSGD()),
    "a corrected mean of gradients": Loop(lambda _: LocalTraining(optimiser=FirstMoment()), FedAvg(lr=0.1)),
    "a pull to the start": Loop(lambda _: LocalTraining(optimiser=Proximal()), FedAvg(lr=0.1)),
    "a bound that is never met": Loop(lambda _: LocalTraining(optimiser=Bounded()), FedAvg(lr=0.1)),
    "the mean of two copies": Loop(lambda _: LocalTraining(optimiser=Averaged()), FedAvg(lr=0.1)),
    "in double precision": Loop(lambda n: LocalTraining(optimiser=InDouble(), batch_size=n), FedAvg(lr=0.1)),
    "one by one, with a sum's rate": Loop(lambda _: OneStep(most=1), FedAvg(lr=0.1)),
}
