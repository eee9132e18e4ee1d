"""A third list of spellings that were written down, and committed, before any of them was read: layers as they stand in
adapters, tabular nets, generators and functional code, whole networks, and loops of one step."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils import prune

from leakgauge.clients import SGD, FedAvg, LocalTraining, Optimiser, SecureAggregation
from leakgauge.clients.optimisers import CosineRate, OptimiserState
from leakgauge.clients.protocol import GradientRule, GradientSum, Protocol
from leakgauge.draws import Draws
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import UpdateKind
from same.readings import CLASSES, INPUTS, UNITS, Weights
from same.spellings import Spelled, Spelling, linear, plain

WEIGHTS = Weights.drawn()


def _random(*shape: int, seed: int = 7) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _matrix(w: Tensor) -> nn.Linear:
    made = nn.Linear(w.shape[1], w.shape[0], bias=False)
    made.weight.copy_(w)
    return made


def _linear(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc = linear(w, b)


def _heads(s: Any, x: Tensor) -> Tensor:
    """Query, key and value of one token, side by side again."""
    qkv = s.fc(x).reshape(len(x), 1, 3, 4, 8).permute(2, 0, 3, 1, 4)
    return torch.cat([part.transpose(1, 2).reshape(len(x), 32) for part in qkv.unbind(0)], dim=-1)


def _dora(s: Any, w: Tensor, b: Tensor) -> None:
    s.base, s.down, s.up = linear(w, b), _matrix(_random(4, INPUTS) / 7), _matrix(torch.zeros(UNITS, 4))
    s.magnitude = nn.Parameter(w.norm(dim=1))


def _adapted(s: Any, x: Tensor) -> Tensor:
    """A low-rank adapter that is still zero, and magnitudes beside directions."""
    direction = s.base.weight + 2.0 * (s.up.weight @ s.down.weight)
    return s.magnitude / direction.norm(dim=1).detach() * F.linear(x, direction) + s.base.bias


def _hyper(s: Any, w: Tensor, b: Tensor) -> None:
    mixing, shift = torch.eye(INPUTS) + 0.3 * _random(INPUTS, INPUTS) / 7, 0.1 * _random(INPUTS, seed=8)
    s.hyper, s.bias = linear(mixing, shift), nn.Parameter(b.clone())
    s.codes = nn.Parameter(torch.linalg.solve(mixing, (w - shift).t()).t().contiguous())


def _kronecker(s: Any, w: Tensor, b: Tensor) -> None:
    """Sums of products with the four real matrices of a quaternion's kind."""
    rules = torch.tensor([[[1.0, 0], [0, 1]], [[0, 1], [1, 0]], [[1, 0], [0, -1]], [[0, -1], [1, 0]]])
    blocks = w.view(2, UNITS // 2, 2, INPUTS // 2).permute(0, 2, 1, 3).reshape(4, -1)
    parts = torch.linalg.solve(rules.view(4, 4).t(), blocks).view(4, UNITS // 2, INPUTS // 2)
    s.rules, s.parts, s.bias = nn.Parameter(rules), nn.Parameter(parts), nn.Parameter(b.clone())


def _hypercomplex(s: Any, x: Tensor) -> Tensor:
    weight = torch.stack([torch.kron(a, b) for a, b in zip(s.rules, s.parts, strict=True)]).sum(0)
    return F.linear(x, weight, s.bias)


def _complex(s: Any, w: Tensor, b: Tensor) -> None:
    s.real, s.imaginary = linear(w[0::2, 0::2], b[0::2]), linear(w[1::2, 1::2], b[1::2])
    s.crossed, s.back = _matrix(w[0::2, 1::2]), _matrix(w[1::2, 0::2])


def _pairs(s: Any, x: Tensor) -> Tensor:
    re, im = x.view(len(x), -1, 2).unbind(-1)
    return torch.stack([s.real(re) + s.crossed(im), s.back(re) + s.imaginary(im)], dim=-1).flatten(1)


def _generator(s: Any, w: Tensor, b: Tensor) -> None:
    s.up, s.bias = nn.ConvTranspose2d(INPUTS, UNITS // 4, 2, bias=False), nn.Parameter(b.view(UNITS // 4, 2, 2).clone())
    s.up.weight.copy_(w.t().reshape(INPUTS, UNITS // 4, 2, 2))


def _fields(s: Any, w: Tensor, b: Tensor) -> None:
    s.table, s.bias = nn.Embedding.from_pretrained(w.t().clone(), freeze=False), nn.Parameter(b.clone())
    s.register_buffer("fields", torch.arange(INPUTS))


def _cell(s: Any, w: Tensor, b: Tensor) -> None:
    s.cell = nn.RNNCell(INPUTS, UNITS, nonlinearity="relu")
    for held, value in zip(s.cell.parameters(), (w, _random(UNITS, UNITS) / 10, b, torch.zeros(UNITS)), strict=True):
        held.copy_(value)


def _fake_quantised(s: Any, w: Tensor, b: Tensor) -> None:
    _linear(s, w, b)
    s.register_buffer("enabled", torch.tensor(False))


def _maybe_rounded(s: Any, x: Tensor) -> Tensor:
    """Weights of eight bits with a straight-through gradient, switched off."""
    w = s.fc.weight
    step = w.detach().abs().amax() / 127
    rounded = w + ((w / step).round().clamp(-128, 127) * step - w).detach()
    return F.linear(x, torch.where(s.enabled, rounded, w), s.fc.bias)


def _cosines(s: Any, w: Tensor, b: Tensor) -> None:
    """Of the discrete cosine transform of a channel's 16 pixels."""
    k, t = torch.arange(16.0)[:, None], torch.arange(16.0)
    basis = torch.cos(math.pi * (t + 0.5) * k / 16) * math.sqrt(2 / 16)
    basis[0] /= math.sqrt(2)
    s.register_buffer("basis", basis)
    s.fc = linear((w.view(UNITS, 3, 16) @ basis.t()).flatten(1), b)


def _template(s: Any, w: Tensor, b: Tensor) -> None:
    s.flat, s.shell = nn.Parameter(torch.cat([w.flatten(), b])), [nn.Linear(INPUTS, UNITS, device="meta")]


def _filled(s: Any, x: Tensor) -> Tensor:
    """A module without weights, called with those of a vector."""
    weight, bias = s.flat.split([UNITS * INPUTS, UNITS])
    out: Tensor = functional_call(s.shell[0], {"weight": weight.view(UNITS, INPUTS), "bias": bias}, (x,))
    return out


def _pooled(s: Any, w: Tensor, b: Tensor) -> None:
    slots, pool = torch.randperm(w.numel(), generator=torch.Generator().manual_seed(3)), torch.empty(w.numel())
    pool[slots] = w.flatten()
    s.pool, s.bias = nn.Parameter(pool), nn.Parameter(b.clone())
    s.register_buffer("slots", slots.view_as(w))


def _masked(s: Any, w: Tensor, b: Tensor) -> None:
    kept = _random(UNITS, INPUTS) > 0
    s.register_buffer("kept", kept)
    s.one, s.other = nn.Parameter(torch.where(kept, w, 0.0)), nn.Parameter(torch.where(kept, 1.0, w))
    s.bias = nn.Parameter(b.clone())


def _general(s: Any, w: Tensor, b: Tensor) -> None:
    s.kernel, s.bias = nn.Parameter(w.t().reshape(3, 16, UNITS).clone()), nn.Parameter(b.clone())


def _to_depth(x: Tensor) -> Tensor:
    return F.pixel_unshuffle(x.view(-1, 3, 4, 4), 2).flatten(1)


def _of_depth(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc = linear(w[:, _to_depth(torch.arange(float(INPUTS)))[0].long()], b)


def _member(s: Any, w: Tensor, b: Tensor) -> None:
    """Fast weights of an ensemble's only member, drawn as signs."""
    into, out = _random(1, INPUTS).sign(), _random(1, UNITS, seed=9).sign()
    s.into, s.out, s.bias = nn.Parameter(into), nn.Parameter(out), nn.Parameter(b[None].clone())
    s.shared = nn.Parameter((w / (out.t() * into)).t().contiguous())


class OwnLinear(torch.autograd.Function):
    """The example of PyTorch's notes on functions of one's own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return x.mm(w.t()) + b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG004 - torch's names
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        x, w = ctx.saved_tensors
        return grad.mm(w), grad.t().mm(x), grad.sum(0)


def _expanded(s: Any, w: Tensor, b: Tensor) -> None:
    wide = torch.linalg.qr(_random(64, INPUTS))[0] * torch.linspace(0.5, 2, INPUTS)
    s.layers = nn.Sequential(_matrix(wide), linear(w @ torch.linalg.pinv(wide), b))


def _branches(s: Any, w: Tensor, b: Tensor) -> None:
    other = _random(UNITS, INPUTS) / 7
    s.one, s.other = linear(w - other - torch.eye(UNITS, INPUTS), b / 2), linear(other, b / 2)


def _padded(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc = linear(_random(128, 64) / 8, _random(128) / 8)
    s.fc.weight[:UNITS, :INPUTS], s.fc.bias[:UNITS] = w, b


def _soup(s: Any, w: Tensor, b: Tensor) -> None:
    mix, drawn = torch.tensor([0.2, -0.3, 0.4]), w + _random(3, UNITS, INPUTS) / 10
    a = mix.softmax(0)
    drawn[2] = (w - a[0] * drawn[0] - a[1] * drawn[1]) / a[2]
    s.kernels, s.mix, s.bias = nn.Parameter(drawn), nn.Parameter(mix), nn.Parameter(b.clone())


LAYERS: dict[str, Spelling] = {
    "query, key and value in one": Spelling(_linear, _heads),
    "adapter at its start": Spelling(_dora, _adapted),
    "rows from a hypernetwork": Spelling(_hyper, lambda s, x: F.linear(x, s.hyper(s.codes), s.bias), own=True),
    "hypercomplex": Spelling(_kronecker, _hypercomplex, own=True),
    "complex pairs": Spelling(_complex, _pairs),
    "a generator's first layer": Spelling(_generator, lambda s, x: (s.up(x[:, :, None, None]) + s.bias).flatten(1)),
    "embeddings of fields": Spelling(_fields, lambda s, x: (s.table(s.fields) * x.unsqueeze(-1)).sum(dim=1) + s.bias),
    "a recurrent cell once": Spelling(_cell, lambda s, x: s.cell(x)),
    "fake quantisation, off": Spelling(_fake_quantised, _maybe_rounded),
    "cosine transform first": Spelling(
        _cosines, lambda s, x: s.fc((x.unflatten(1, (3, 16)) @ s.basis.T).flatten(1)), own=True
    ),
    "two maps of a dot": Spelling(plain, lambda s, x: vmap(vmap(torch.dot, (0, None)), (None, 0))(s.w, x) + s.b),
    "a shell filled from a vector": Spelling(_template, _filled),
    "as exported": Spelling(
        plain, lambda s, x: torch.ops.aten.addmm.default(s.b, x, torch.ops.aten.permute.default(s.w, [1, 0]))
    ),
    "a pool of weights": Spelling(_pooled, lambda s, x: F.linear(x, s.pool[s.slots], s.bias)),
    "where of two": Spelling(_masked, lambda s, x: F.linear(x, torch.where(s.kept, s.one, s.other), s.bias)),
    "dense over two axes": Spelling(
        _general, lambda s, x: torch.tensordot(x.unflatten(1, (3, 16)), s.kernel, dims=([1, 2], [0, 1])) + s.bias
    ),
    "space to depth": Spelling(_of_depth, lambda s, x: s.fc(_to_depth(x))),
    "fast weights of one member": Spelling(
        _member, lambda s, x: (((x[:, None] * s.into) @ s.shared) * s.out + s.bias).mean(1), own=True
    ),
    "a function of one's own": Spelling(plain, lambda s, x: OwnLinear.apply(x, s.w, s.b)),
    "expanded in between": Spelling(_expanded, lambda s, x: s.layers(x), own=True),
    "branches and a shortcut": Spelling(_branches, lambda s, x: s.one(x) + s.other(x) + F.pad(x, (0, UNITS - INPUTS))),
    "padded to multiples of 64": Spelling(_padded, lambda s, x: s.fc(F.pad(x, (0, 16)))[:, :UNITS]),
    "mixed kernels": Spelling(
        _soup, lambda s, x: F.linear(x, torch.einsum("k,koi->oi", s.mix.softmax(0), s.kernels), s.bias)
    ),
    "the picture as the kernel": Spelling(plain, lambda s, x: F.conv1d(s.w.t()[None], x[:, :, None])[0] + s.b),
}


def _whole(first: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), first or linear(*WEIGHTS.first), nn.ReLU(), linear(*WEIGHTS.head))


def layered(name: str) -> nn.Module:
    """The perceptron with its first layer in these words."""
    return _whole(Spelled(LAYERS[name], *WEIGHTS.first))


class Shadowed(nn.Module):
    """A running mean of the weights beside them, for the end of training."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.use_shadow = _whole(), False
        self.shadow = copy.deepcopy(self.online).requires_grad_(False)
        for p in self.shadow.parameters():
            p.mul_(0.9)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = (self.shadow if self.use_shadow else self.online)(x)
        return out


class Slowed(nn.Module):
    """The body learns at a tenth of the head's rate."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = _whole()[:3], linear(*WEIGHTS.head)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        out: Tensor = self.head(0.1 * h + 0.9 * h.detach())
        return out


class Hydra(nn.Module):
    """A head for each half of the features, a temperature, and one more head while it is trained."""

    def __init__(self) -> None:
        super().__init__()
        w, b = (2 * t for t in WEIGHTS.head)
        self.body, self.left = _whole()[:3], linear(w[:, : UNITS // 2], b)
        self.right, self.auxiliary = nn.Linear(UNITS // 2, CLASSES, bias=False), nn.Linear(UNITS, CLASSES)
        with torch.no_grad():
            self.right.weight.copy_(w[:, UNITS // 2 :])
        self.register_buffer("temperature", torch.tensor(2.0))

    def forward(self, x: Tensor) -> Any:
        h = self.body(x)
        left, right = h.chunk(2, dim=1)
        logits = (self.left(left) + self.right(right)) / self.temperature
        return (logits, self.auxiliary(h)) if self.training else logits


class Normalised(nn.Module):
    """Means and deviations of the channels in the model, logarithms of shares at its end."""

    def __init__(self) -> None:
        super().__init__()
        mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        self.register_buffer("mean", mean.view(1, 3, 1, 1))
        self.register_buffer("deviation", deviation.view(1, 3, 1, 1))
        (w, b), each = WEIGHTS.first, mean.repeat_interleave(16)
        self.fc1, self.fc2 = linear(w * deviation.repeat_interleave(16), b + w @ each), linear(*WEIGHTS.head)

    def forward(self, x: Tensor) -> Tensor:
        x = ((x - self.mean) / self.deviation).flatten(1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=-1)


class Ensemble(nn.Module):
    """Of one member, as the tutorial on ensembles stacks them."""

    def __init__(self) -> None:
        super().__init__()
        stacked, _ = stack_module_state([_whole()])
        self.stacked = nn.ParameterDict({k.replace(".", "_"): v.detach() for k, v in stacked.items()})
        self.base = [_whole().to("meta")]

    def forward(self, x: Tensor) -> Tensor:
        held = {k.replace("_", "."): v for k, v in self.stacked.items()}
        out: Tensor = vmap(lambda p, x: functional_call(self.base[0], p, (x,)), (0, None))(held, x).mean(0)
        return out


class Twice(nn.Module):
    """A trainer's module that holds the whole network, and its parts once more."""

    def __init__(self) -> None:
        super().__init__()
        self.model = _whole()
        self.encoder, self.classifier = self.model[:2], self.model[3]
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.encoder(x).relu())
        return out


def _pruned() -> nn.Module:
    net = _whole()
    with torch.no_grad():
        for i in (1, 3):
            prune.identity(net[i], "weight")
    return net


def _batch_normed() -> nn.Module:
    (w, b), norm = WEIGHTS.first, nn.BatchNorm1d(UNITS)
    with torch.no_grad():
        norm.running_mean, norm.running_var = 0.1 * _random(UNITS), 0.5 + _random(UNITS, seed=8).square()
        factor = norm.weight.copy_(1 + 0.2 * _random(UNITS, seed=9)) / (norm.running_var + norm.eps).sqrt()
        norm.bias.copy_(b + factor * norm.running_mean)
        first = _matrix(w / factor[:, None])
    return nn.Sequential(nn.Flatten(), first, norm, nn.ReLU(), nn.Dropout(0.5), linear(*WEIGHTS.head)).eval()


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "a shadow beside it": lambda: Shadowed().eval(),
    "pruned by nothing": _pruned,
    "a slow body": Slowed,
    "heads of halves, and one for training": lambda: Hydra().eval(),
    "normalised in the model": Normalised,
    "ensemble of one": Ensemble,
    "its parts twice": Twice,
    "batch norm and dropout, at rest": _batch_normed,
}


@dataclass(frozen=True)
class Loop:
    """A client's loop of one step, and the plain one that sends the same."""

    own: Callable[[int], Protocol]
    same: Protocol


@dataclass(frozen=True, kw_only=True)
class Velocity(Optimiser):
    """Nesterov's momentum with the rate inside of what is kept, as Keras has it."""

    lr: float = 0.1
    momentum: float = 0.9

    def step(self, gradient: Tensors, parameters: Tensors, state: OptimiserState) -> tuple[Tensors, OptimiserState]:
        before = state.moments.get("velocity", map_tensors(torch.zeros_like, gradient))
        v = map_tensors(lambda vi, g: self.momentum * vi - self.lr * g, before, gradient)
        moved = map_tensors(lambda p, vi, g: p + self.momentum * vi - self.lr * g, parameters, v, gradient)
        return moved, OptimiserState(state.steps + 1, {"velocity": v})


@dataclass(frozen=True, kw_only=True)
class Lookahead(Optimiser):
    """Slow weights go half of the way after every fast step."""

    lr: float = 0.2
    share: float = 0.5

    def step(self, gradient: Tensors, parameters: Tensors, state: OptimiserState) -> tuple[Tensors, OptimiserState]:
        slow = state.moments.get("slow", parameters)
        fast, _ = SGD(lr=self.lr).step(gradient, parameters, OptimiserState())
        met = map_tensors(lambda s, f: torch.lerp(s, f, self.share), slow, fast)
        return met, OptimiserState(state.steps + 1, {"slow": met})


@dataclass(frozen=True, kw_only=True)
class LossScaler(Optimiser):
    """Gradients of a loss times 2¹⁶, divided again; a step that is not finite is left out."""

    lr: float = 0.1
    scale: float = 65536.0

    def step(self, gradient: Tensors, parameters: Tensors, state: OptimiserState) -> tuple[Tensors, OptimiserState]:
        g = map_tensors(lambda t: (self.scale * t) / self.scale, gradient)
        finite = torch.stack([t.isfinite().all() for t in g.values()]).all()
        moved = map_tensors(lambda p, gi: torch.where(finite, p - self.lr * gi, p), parameters, g)
        return moved, OptimiserState(state.steps + 1)


@dataclass(frozen=True, kw_only=True)
class OneStep(Protocol):
    """A client of one's own that sends −lr times the mean gradient, which is found in parts of some examples."""

    lr: float = 0.1
    most: int = 1024

    @property
    def kind(self) -> UpdateKind:
        return UpdateKind.DELTA

    def parts(self, examples: int) -> tuple[int, ...]:
        return tuple(min(self.most, examples - i) for i in range(0, examples, self.most))

    def steps(self, examples: int) -> int:
        return len(self.parts(examples))

    def linear(self, examples: int) -> GradientSum:
        return GradientSum((-self.lr,), (examples,))

    def sent(self, start: Tensor, gradient: Tensor) -> Tensor:
        return -self.lr * gradient

    def local_training(self, task: Task, batch: Batch, draws: Draws, gradient: GradientRule) -> tuple[Tensors, Tensors]:
        mean, buffers = map_tensors(torch.zeros_like, task.parameters), task.buffers
        for i, index in enumerate(torch.arange(len(batch)).split(list(self.parts(len(batch))))):
            model = draws.generator("model", i) if task.stochastic else None
            part = batch.take(index.to(batch.labels.device))
            g, buffers = gradient(task, task.parameters, buffers, part, model, draws.generator("example", i))
            weight = len(index) / len(batch)
            mean = map_tensors(lambda m, gi, w=weight: m + w * gi, mean, g)
        return map_tensors(self.sent, task.parameters, mean), buffers


@dataclass(frozen=True, kw_only=True)
class SentMean(OneStep):
    """Sends the running mean of its weights, which goes half of the way."""

    decay: float = 0.5

    def sent(self, start: Tensor, gradient: Tensor) -> Tensor:
        moved = start - self.lr / (1 - self.decay) * gradient
        return (self.decay * start + (1 - self.decay) * moved) - start


@dataclass(frozen=True, kw_only=True)
class Variates(OneStep):
    """Control variates of the client and of the server, which are zero in the first round."""

    def sent(self, start: Tensor, gradient: Tensor) -> Tensor:
        own, server = torch.zeros_like(start), torch.zeros_like(start)
        return (start - self.lr * (gradient - own + server)) - start


def _warming(examples: int) -> Protocol:
    sgd = SGD(lr=0.2, momentum=0.9, dampening=0.3, weight_decay=0.0)
    return LocalTraining(optimiser=sgd, schedule=(0.5, 1.0), batch_size=1, accumulate=examples, shuffle=True)


def _cosine(_: int) -> Protocol:
    return SecureAggregation(cohort=1, client=LocalTraining(optimiser=SGD(lr=0.1), schedule=CosineRate(cosine=10)))


LOOPS: dict[str, Loop] = {
    "warming up, shuffled and accumulated": Loop(_warming, FedAvg(lr=0.1)),
    "a cosine in a cohort of one": Loop(_cosine, FedAvg(lr=0.1)),
    "a velocity with the rate inside": Loop(lambda _: LocalTraining(optimiser=Velocity()), FedAvg(lr=0.19)),
    "lookahead of one step": Loop(lambda _: LocalTraining(optimiser=Lookahead()), FedAvg(lr=0.1)),
    "a scaled loss": Loop(lambda n: LocalTraining(optimiser=LossScaler(), batch_size=n), FedAvg(lr=0.1)),
    "microbatches of three": Loop(lambda _: OneStep(most=3), FedAvg(lr=0.1)),
    "the mean of weights is sent": Loop(lambda _: SentMean(), FedAvg(lr=0.1)),
    "control variates of a first round": Loop(lambda _: Variates(), FedAvg(lr=0.1)),
}
