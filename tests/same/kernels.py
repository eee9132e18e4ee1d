"""Kernels of convolutions in other words: each an invertible linear map of what the module holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Hold = Callable[[Any, Tensor], None]
Make = Callable[[Any], Tensor]


class Convolution(nn.Module):
    """A convolution whose kernel is made of what `hold` lays down."""

    def __init__(self, words: tuple[Hold, Make], kernel: Tensor, bias: Tensor, stride: int) -> None:
        super().__init__()
        hold, self.make = words
        self.b, self.stride = nn.Parameter(bias.clone()), stride
        with torch.no_grad():
            hold(self, kernel)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.make(self), self.b, stride=self.stride, padding=1)


def plain(s: Any, w: Tensor) -> None:
    s.w = nn.Parameter(w.clone())


def held(change: Callable[[Tensor], Tensor]) -> Hold:
    """A kernel that is changed back."""
    return lambda s, w: plain(s, change(w))


def _masked(s: Any, w: Tensor) -> None:
    s.register_buffer("mask", torch.ones_like(w))
    plain(s, w)


def cosines(size: int) -> Tensor:
    """The orthonormal cosine transform."""
    k = torch.arange(size, dtype=torch.float64)
    rows = (torch.pi / size * (k[:, None] * (k + 0.5))).cos() * (2 / size) ** 0.5
    rows[0] /= 2**0.5
    return rows


def _cosines(s: Any, w: Tensor) -> None:
    one = cosines(w.shape[-1]).float()
    s.register_buffer("basis", torch.kron(one, one))  # of the window, a wave a row
    plain(s, w.flatten(2) @ s.basis.t())


def _haar(s: Any, w: Tensor) -> None:
    """Over pairs of the kernel's inputs: sums and differences."""
    s.register_buffer("basis", torch.tensor([[1.0, 1.0], [1.0, -1.0]]) / 2**0.5)
    plain(s, torch.einsum("ab,ogbhw->ogahw", s.basis, w.unflatten(1, (-1, 2))) if w.shape[1] % 2 == 0 else w)


def _from_haar(s: Any) -> Tensor:
    if s.w.ndim == 4:
        return 1.0 * s.w
    return torch.einsum("ab,ogahw->ogbhw", s.basis, s.w).flatten(1, 2)


def _halves(s: Any, w: Tensor) -> None:
    s.one, s.two = (nn.Parameter(part.clone()) for part in w.chunk(2))


def _colours(s: Any, w: Tensor) -> None:
    s.parts = nn.ParameterList(part.clone() for part in w.unbind(1))


def _dirac(s: Any, w: Tensor) -> None:
    s.register_buffer("base", nn.init.dirac_(torch.empty_like(w)))
    plain(s, w - s.base)


def _lengths(s: Any, w: Tensor) -> None:
    s.g, s.v = nn.Parameter(w.flatten(1).norm(dim=1)), nn.Parameter(3 * w)


def _factors(s: Any, w: Tensor, rank: int) -> None:
    left, sizes, right = torch.linalg.svd(w.flatten(1), full_matrices=False)
    s.up, s.down = nn.Parameter(left[:, :rank] * sizes[:rank]), nn.Parameter(right[:rank].clone())


KERNELS: dict[str, tuple[Hold, Make]] = {
    "a half": (held(lambda w: 2 * w), lambda s: s.w / 2),
    "a mask of ones": (_masked, lambda s: s.w * s.mask),
    "cosines of the window": (_cosines, lambda s: (s.w @ s.basis).unflatten(2, (3, 3))),
    "Haar over inputs": (_haar, _from_haar),
    "halves of the filters": (_halves, lambda s: torch.cat([s.one, s.two])),
    "an input at a time": (_colours, lambda s: torch.stack([*s.parts], 1)),
    "transposed": (held(lambda w: w.transpose(0, 1).contiguous()), lambda s: s.w.transpose(0, 1)),
    "a flat vector": (lambda s, w: plain(s, w.flatten()), lambda s: s.w.view(len(s.b), -1, 3, 3)),
    "beside what hands on": (_dirac, lambda s: s.base + s.w),
    "lengths and directions": (_lengths, lambda s: F.normalize(s.v.flatten(1)).mul(s.g[:, None]).view_as(s.v)),
}

HELD_OUT: dict[str, tuple[Hold, Make]] = {
    "sums along a line": (
        held(lambda w: torch.diff(w, dim=-1, prepend=torch.zeros_like(w[..., :1]))),
        lambda s: s.w.cumsum(-1),
    ),
    "mirrored, in thirds": (
        lambda s, w: setattr(s, "lines", nn.ParameterList(3 * line for line in w.flip(2).unbind(2))),
        lambda s: torch.stack([line / 3 for line in s.lines], 2).flip(2),
    ),
}
"""Written before any was read, and first run when those above were."""

FEWER: dict[str, tuple[Hold, Make]] = {
    "standardised": (
        plain,
        lambda s: (s.w - s.w.mean((1, 2, 3), keepdim=True)) / s.w.std((1, 2, 3), keepdim=True) / s.w[0].numel() ** 0.5,
    ),
    "a rank of four": (
        lambda s, w: _factors(s, w, 4),
        lambda s: (s.up @ s.down).unflatten(1, (-1, 3, 3)),
    ),
}
"""Of which gradients do not tell the kernel's."""


def skewed(condition: float) -> tuple[Hold, Make]:
    """In a basis of the window that is no orthogonal one."""
    draw, one = torch.Generator().manual_seed(3), cosines(3)
    left = torch.linalg.qr(torch.randn(9, 9, generator=draw, dtype=torch.float64))[0]
    sizes = condition ** -torch.linspace(0, 1, 9, dtype=torch.float64)
    basis = (left * sizes @ torch.kron(one, one)).float()

    def hold(s: Any, w: Tensor) -> None:
        s.register_buffer("basis", basis)
        plain(s, (w.flatten(2).double() @ basis.double().inverse()).float())

    return hold, KERNELS["cosines of the window"][1]


class Deep(nn.Module):
    """Pictures of 16 pixels, three convolutions and a head."""

    def __init__(self, words: tuple[Hold, Make] = (plain, lambda s: s.w), width: int = 48) -> None:
        super().__init__()
        draw, sizes = torch.Generator().manual_seed(0), (3, 16, width, width)
        self.layers = nn.ModuleList()
        for into, out, stride in zip(sizes[:-1], sizes[1:], (2, 2, 1), strict=True):
            kernel = torch.randn(out, into, 3, 3, generator=draw) / (4.5 * into) ** 0.5
            bias = 0.1 * torch.randn(out, generator=draw)
            self.layers.append(Convolution(words, kernel, bias, stride))
        self.head = nn.Linear(width, 5)
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(5, width, generator=draw) / width**0.5)
            self.head.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        out: Tensor = self.head(x.mean((2, 3)))
        return out
