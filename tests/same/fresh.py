"""A second list of spellings that were written down, and committed, before any of them was run: layers, whole networks,
losses and loops as users' code has them."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from leakgauge.clients import SGD, FedAvg, FedSGD, LocalTraining, SecureAggregation
from leakgauge.clients.protocol import Protocol
from same.readings import CLASSES, INPUTS, UNITS, Weights
from same.spellings import Spelled, Spelling, held, linear, plain

WEIGHTS = Weights.drawn()


class EqualLinear(nn.Module):
    """Equalised learning rate, as StyleGAN has it."""

    def __init__(self, w: Tensor, b: Tensor) -> None:
        super().__init__()
        self.scale = 1 / math.sqrt(w.shape[1])
        self.weight, self.bias = nn.Parameter(w / self.scale), nn.Parameter(b.clone())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.scale, bias=self.bias)


class Symmetric(nn.Module):
    """A parametrisation that changes nothing but the sign, twice."""

    def forward(self, w: Tensor) -> Tensor:
        return w.neg().neg()

    def right_inverse(self, w: Tensor) -> Tensor:
        return w


class Scaled(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w * 0.25

    def right_inverse(self, w: Tensor) -> Tensor:
        return w / 0.25


def _registered(kind: Callable[[], nn.Module]) -> Callable[[Any, Tensor, Tensor], None]:
    def init(s: Any, w: Tensor, b: Tensor) -> None:
        s.inner = linear(w, b)
        parametrize.register_parametrization(s.inner, "weight", kind())

    return init


def _equal(s: Any, w: Tensor, b: Tensor) -> None:
    s.inner = EqualLinear(w, b)


def _named(s: Any, w: Tensor, b: Tensor) -> None:
    s.inner = nn.Sequential(
        OrderedDict([("identity", nn.Identity()), ("fc1", linear(w, b)), ("drop", nn.Dropout(0.0))])
    )


def _no_bias(s: Any, w: Tensor, b: Tensor) -> None:
    s.fc = nn.Linear(w.shape[1], len(w), bias=False)
    s.fc.weight.copy_(w)
    s.shift = nn.Parameter(b.view(1, -1).clone())


def _picture_conv(s: Any, w: Tensor, b: Tensor) -> None:
    s.conv = nn.Conv2d(3, len(w), kernel_size=(4, 4), padding=0)
    s.conv.weight.copy_(w.view(-1, 3, 4, 4))
    s.conv.bias.copy_(b)


def _experts(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("gate", torch.tensor([1.0, 0.0]))
    s.expert = nn.ModuleList([linear(w, b), linear(torch.zeros_like(w), torch.zeros_like(b))])


def _stacked(s: Any, w: Tensor, b: Tensor) -> None:
    """Weights of two heads in one tensor, as attention has them."""
    s.kernel = nn.Parameter(w.view(2, len(w) // 2, -1).transpose(1, 2).contiguous())  # heads, in, out
    s.offset = nn.Parameter(b.view(2, -1).clone())


def _heads(s: Any, x: Tensor) -> Tensor:
    return (torch.einsum("bd,hdk->bhk", x, s.kernel) + s.offset).reshape(len(x), -1)


def _conv_lists(s: Any, w: Tensor, b: Tensor) -> None:
    """A kernel for each channel of the picture, and their sum."""
    s.red, s.green, s.blue = (nn.Linear(16, len(w), bias=False) for _ in range(3))
    for layer, part in zip((s.red, s.green, s.blue), w.split(16, 1), strict=True):
        layer.weight.copy_(part)
    s.bias = nn.Parameter(b.clone())


def _by_colour(s: Any, x: Tensor) -> Tensor:
    r, g, c = x.view(-1, 3, 16).unbind(1)
    return s.red(r) + s.green(g) + s.blue(c) + s.bias


def _numbered(s: Any, w: Tensor, b: Tensor) -> None:
    for i, part in enumerate(w.chunk(4)):
        s.register_parameter(f"weight_{i}", nn.Parameter(part.clone()))
    s.register_parameter("bias", nn.Parameter(b.clone()))


def _affine(s: Any, w: Tensor, b: Tensor) -> None:
    """Mean and spread of the data as ImageNet code keeps them."""
    s.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
    s.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))
    size, shift = (t.expand(1, 3, 4, 4).flatten() for t in (s.std, s.mean))
    plain(s, w * size, b + w @ shift)


def _imagenet(s: Any, x: Tensor) -> Tensor:
    return F.linear(((x.view(-1, 3, 4, 4) - s.mean) / s.std).flatten(1), s.w, s.b)


def _centred_rows(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("offset", w.mean(1, keepdim=True))
    plain(s, w - s.offset, b)


def _frozen_half(s: Any, w: Tensor, b: Tensor) -> None:
    s.a, s.c = linear(w[:48], b[:48]), linear(w[48:], b[48:])
    s.join = nn.Linear(96, 96)
    s.join.weight.copy_(torch.eye(96))
    s.join.bias.zero_()
    s.join.requires_grad_(False)


def _factors_of_signs(s: Any, w: Tensor, b: Tensor) -> None:
    draw = torch.Generator().manual_seed(7)
    s.register_buffer("flip", 2.0 * torch.randint(2, (len(w), 1), generator=draw) - 1)
    plain(s, w * s.flip, b * s.flip[:, 0])


def _temperatures(s: Any, w: Tensor, b: Tensor) -> None:
    s.register_buffer("alpha", torch.full((), 16.0))
    s.register_buffer("rank", torch.full((), 8.0))
    s.register_buffer("base", 0.5 * w)
    s.delta, s.b = nn.Parameter(0.25 * w), nn.Parameter(b.clone())


def _table_conv(s: Any, w: Tensor, b: Tensor) -> None:
    s.fold = nn.Unfold(kernel_size=4)
    plain(s, w, b)


def _homogeneous(s: Any, w: Tensor, b: Tensor) -> None:
    s.w = nn.Parameter(torch.cat([b[:, None], w], 1))


def _reshuffled(s: Any, w: Tensor, b: Tensor) -> None:
    s.down = nn.PixelUnshuffle(2)
    index = s.down(torch.arange(48.0).view(1, 3, 4, 4)).flatten().long()
    plain(s, w[:, index], b)


def _scanned(s: Any, x: Tensor) -> Tensor:
    total = s.b.unsqueeze(0).repeat(len(x), 1)
    for row, part in zip(x.view(-1, 12, 4).unbind(1), s.w.view(len(s.w), 12, 4).unbind(1), strict=True):
        total = total + row @ part.t()
    return total


LAYERS: dict[str, Spelling] = {
    "equalised rate": Spelling(_equal, lambda s, x: s.inner(x)),
    "parametrised twice negative": Spelling(_registered(Symmetric), lambda s, x: s.inner(x)),
    "parametrised scale": Spelling(_registered(Scaled), lambda s, x: s.inner(x)),
    "ordered sequence": Spelling(_named, lambda s, x: s.inner(x)),
    "a shift of its own": Spelling(_no_bias, lambda s, x: s.fc(x) + s.shift),
    "convolution over the picture": Spelling(
        _picture_conv, lambda s, x: s.conv(x.unflatten(1, (3, 4, 4))).squeeze(-1).squeeze(-1)
    ),
    "experts behind a fixed gate": Spelling(
        _experts, lambda s, x: sum(g * e(x) for g, e in zip(s.gate, s.expert, strict=True))
    ),
    "heads in one tensor": Spelling(_stacked, _heads),
    "a layer a colour": Spelling(_conv_lists, _by_colour),
    "numbered parameters": Spelling(
        _numbered, lambda s, x: F.linear(x, torch.vstack([getattr(s, f"weight_{i}") for i in range(4)]), s.bias)
    ),
    "statistics of a data set": Spelling(_affine, _imagenet),
    "a frozen mean of rows": Spelling(_centred_rows, lambda s, x: F.linear(x, s.w + s.offset, s.b)),
    "two layers and a frozen join": Spelling(_frozen_half, lambda s, x: s.join(torch.cat((s.a(x), s.c(x)), dim=-1))),
    "signs of units": Spelling(_factors_of_signs, lambda s, x: F.linear(x, s.w, s.b) * s.flip.T),
    "alpha over rank": Spelling(
        _temperatures, lambda s, x: F.linear(x, s.base, s.b) + (s.alpha / s.rank) * F.linear(x, s.delta)
    ),
    "unfolded picture": Spelling(
        _table_conv, lambda s, x: (s.w @ s.fold(x.view(-1, 3, 4, 4)) + s.b[:, None]).squeeze(2)
    ),
    "ones in front": Spelling(_homogeneous, lambda s, x: F.pad(x, (1, 0), value=1.0) @ s.w.t()),
    "pixels unshuffled": Spelling(_reshuffled, lambda s, x: F.linear(s.down(x.view(-1, 3, 4, 4)).flatten(1), s.w, s.b)),
    "lines of a picture in turn": Spelling(plain, _scanned),
    "hstack of halves": Spelling(
        plain, lambda s, x: torch.hstack((F.linear(x, s.w[:40], s.b[:40]), F.linear(x, s.w[40:], s.b[40:])))
    ),
    "swapped axes": Spelling(plain, lambda s, x: torch.matmul(s.w, x.swapaxes(0, 1)).swapaxes(0, 1).add(s.b)),
    "contiguous and clone": Spelling(plain, lambda s, x: F.linear(x.contiguous().clone(), s.w.clone(), s.b.clone())),
    "positions of a sequence": Spelling(plain, lambda s, x: F.linear(x.unsqueeze(1), s.w, s.b).mean(dim=1)),
    "largest of one": Spelling(plain, lambda s, x: F.linear(x.unsqueeze(1), s.w, s.b).amax(dim=1)),
    "adaptive pool of one": Spelling(
        plain, lambda s, x: F.adaptive_avg_pool2d(F.conv2d(x[..., None, None], s.w[..., None, None], s.b), 1).flatten(1)
    ),
    "lerp of nothing": Spelling(plain, lambda s, x: F.linear(torch.lerp(x, x.detach(), 0.0), s.w, s.b)),
    "clamped pixels": Spelling(plain, lambda s, x: F.linear(x.clamp(0.0, 1.0), s.w, s.b)),
    "nan to numbers": Spelling(plain, lambda s, x: F.linear(torch.nan_to_num(x), s.w, s.b)),
    "float by type": Spelling(plain, lambda s, x: F.linear(x.type(torch.float32), s.w.type_as(x), s.b.type_as(x))),
    "minus one to one": Spelling(
        lambda s, w, b: plain(s, w / 2, b + w.sum(1) / 2), lambda s, x: F.linear(x.mul(2).sub(1), s.w, s.b)
    ),
    "einsum with dots": Spelling(plain, lambda s, x: torch.einsum("...i,oi->...o", x, s.w).add(s.b)),
    "sum of outer products": Spelling(
        held(lambda w: w.T), lambda s, x: torch.stack([torch.mv(s.w.T, row) for row in x.unbind(0)]) + s.b
    ),
}
"""As `spellings.LAYERS`."""


class Classifier(nn.Module):
    """As a tutorial writes it: a body, a head, and a dictionary between them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict(
            {"flat": nn.Flatten(), "hidden": linear(*WEIGHTS.first), "act": nn.ReLU(inplace=True)}
        )
        self.head = linear(*WEIGHTS.head)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.body.values():
            x = part(x)
        return self.head(x)  # type: ignore[no-any-return]


class Hooked(nn.Module):
    """Keeps its features as it goes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = linear(*WEIGHTS.first), linear(*WEIGHTS.head)
        self.features: dict[str, Tensor] = {}
        self.hidden.register_forward_hook(lambda _m, _given, out: self.features.update(hidden=out.detach()))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.hidden(x.reshape(x.shape[0], -1))))  # type: ignore[no-any-return]


class TwoHeads(nn.Module):
    """An auxiliary head whose answer is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = linear(*WEIGHTS.first), linear(*WEIGHTS.head)
        self.auxiliary = nn.Linear(UNITS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.hidden(torch.flatten(x, start_dim=1)))
        _ = self.auxiliary(h)
        return self.head(h)  # type: ignore[no-any-return]


class AllRows(nn.Module):
    """All layers in a list of (weight, bias), as a functional loop has them."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.ParameterList([nn.Parameter(t.clone()) for t in (*WEIGHTS.first, *WEIGHTS.head)])

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, INPUTS)
        pairs = list(zip(list(self.values)[::2], list(self.values)[1::2], strict=True))
        for w, b in pairs[:-1]:
            x = torch.relu_(x.mm(w.t()) + b)
        return x.mm(pairs[-1][0].t()) + pairs[-1][1]


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "a dictionary of modules": Classifier,
    "features that are kept": Hooked,
    "a head that is dropped": TwoHeads,
    "a list of pairs": AllRows,
}


def layered(name: str) -> nn.Module:
    """The perceptron with its first layer in these words."""
    return nn.Sequential(nn.Flatten(), Spelled(LAYERS[name], *WEIGHTS.first), nn.ReLU(), linear(*WEIGHTS.head))


@dataclass(frozen=True)
class Loop:
    """A client's loop of one step, and the plain one that sends the same."""

    own: Callable[[int], Protocol]
    same: Protocol


LOOPS: dict[str, Loop] = {
    "an epoch with a batch size": Loop(
        lambda n: LocalTraining(optimiser=SGD(lr=0.1), batch_size=n, epochs=1, shuffle=True), FedAvg(lr=0.1)
    ),
    "momentum in its first step": Loop(lambda _: LocalTraining(optimiser=SGD(lr=0.1, momentum=0.9)), FedAvg(lr=0.1)),
    "accumulated one by one": Loop(
        lambda n: LocalTraining(optimiser=SGD(lr=0.1), batch_size=1, accumulate=n), FedAvg(lr=0.1)
    ),
    "a cohort of single clients": Loop(
        lambda n: FedSGD() if n == 1 else SecureAggregation(cohort=n, client=FedSGD()), FedSGD()
    ),
}
"""32 layers, 4 networks and 4 loops are forty."""
