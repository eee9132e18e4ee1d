"""Attention in other words, all of the same weights, and a network of one block around it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEADS = 2


class Attention(nn.Module):
    """Queries, keys and values by three layers; the plain form."""

    def __init__(self, width: int, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (cut(part(x)) for part in (self.q, self.k, self.v))
        return self.out(joined(masked(q @ k.mT / q.shape[3] ** 0.5, self.causal).softmax(3) @ v))


def cut(x: Tensor) -> Tensor:
    return x.unflatten(2, (HEADS, -1)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def masked(scores: Tensor, causal: bool) -> Tensor:
    if not causal:
        return scores
    return scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), float("-inf"))


class Worded(nn.Module):
    """The same weights in one parameter each, or held as a word holds them."""

    def __init__(self, plain: Attention) -> None:
        super().__init__()
        self.causal, self.out = plain.causal, plain.out
        parts = plain.q, plain.k, plain.v
        self.w = nn.Parameter(torch.stack([part.weight.detach() for part in parts]))
        self.b = nn.Parameter(torch.stack([part.bias.detach() for part in parts]))

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (cut(part) for part in F.linear(x, self.w.flatten(0, 1), self.b.flatten()).chunk(3, 2))
        return q, k, v


class Fused(Worded):
    """Torch's own product of scores."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.out(joined(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)))


class Summed(Worded):
    """Products as sums over letters, a soft-max by its logarithm."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = masked(torch.einsum("nhid,nhjd->nhij", q, k) / q.shape[3] ** 0.5, self.causal)
        shares = (scores - scores.logsumexp(3, keepdim=True)).exp()
        return self.out(torch.einsum("nhij,nhjd->nihd", shares, v).flatten(2))


class Single(Worded):
    """One head after the other."""

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for q, k, v in zip(*(part.unbind(1) for part in self.split(x)), strict=True):
            scores = masked((q @ k.mT / q.shape[2] ** 0.5)[:, None], self.causal)[:, 0]
            found.append(torch.bmm(scores.softmax(2), v))
        return self.out(torch.cat(found, 2))


class Double(Worded):
    """In float64 within."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.double() for part in self.split(x))
        made = masked(q @ k.mT / q.shape[3] ** 0.5, self.causal).softmax(3) @ v
        return self.out(joined(made).to(x))


class Torch(nn.Module):
    """Torch's module."""

    def __init__(self, plain: Attention) -> None:
        super().__init__()
        self.causal = plain.causal
        self.inner = nn.MultiheadAttention(plain.q.in_features, HEADS, batch_first=True)
        parts = plain.q, plain.k, plain.v
        with torch.no_grad():
            self.inner.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
            self.inner.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
            self.inner.out_proj.load_state_dict(plain.out.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1) if self.causal else None
        return self.inner(x, x, x, attn_mask=mask, need_weights=False)[0]


class Transposed(Worded):
    """Places before examples."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1).contiguous()
        q, k, v = (
            part.unflatten(2, (HEADS, -1)).permute(1, 2, 0, 3)
            for part in torch.baddbmm(self.b[:, None], x.flatten(0, 1).expand(3, -1, -1), self.w.mT).unflatten(
                1, x.shape[:2]
            )
        )
        made = masked((q / q.shape[3] ** 0.5) @ k.transpose(2, 3), self.causal).softmax(3) @ v
        return self.out(made.permute(2, 0, 1, 3).flatten(2)).transpose(0, 1)


class Exponent(Worded):
    """A soft-max by hand, with its largest taken off."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = masked(q @ k.mT * q.shape[3] ** -0.5, self.causal)
        raised = (scores - scores.amax(3, keepdim=True).detach()).exp()
        return self.out(joined((raised @ v) / raised.sum(3, keepdim=True)))


WORDS: dict[str, Callable[[Attention], nn.Module]] = {
    "fused": Fused,
    "sums": Summed,
    "a head at a time": Single,
    "in float64": Double,
    "torch's": Torch,
}
FRESH: dict[str, Callable[[Attention], nn.Module]] = {"places first": Transposed, "soft-max by hand": Exponent}
"""Words that were fresh once, and are looked at now."""


class Block(nn.Module):
    """What enters, attention and a layer, both beside the identity, the mean over places, and the classes."""

    def __init__(self, enter: nn.Module, places: int, width: int, classes: int, *, causal: bool) -> None:
        super().__init__()
        self.enter, self.places = enter, nn.Parameter(0.3 * torch.randn(places, width))
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, causal=causal)
        self.then, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x) + self.places
        x = x + self.attention(self.norm(x))
        return self.head((x + self.down(F.gelu(self.up(self.then(x))))).mean(1))


class Cut(nn.Module):
    """Pictures as squares, each by the same layer."""

    def __init__(self, channels: int, side: int, width: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(channels, width, side, side)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).flatten(2).transpose(1, 2)


class Looked(nn.Module):
    """Rows of a table."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x.long())
