"""Networks of scenes that the package has not: a vision transformer, and a decoder whose LoRA factors travel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Attention and a perceptron, each behind a LayerNorm and beside the identity; `rank`: of LoRA factors."""

    def __init__(self, width: int, heads: int, *, rank: int = 0, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (Adapted(width, rank) if rank else nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        y = self.before(x)
        q, k, v = (f(y).view(n, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        seen = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
        if self.causal:
            seen = seen.masked_fill(torch.ones(length, length, device=x.device).triu(1).bool(), float("-inf"))
        x = x + self.out((seen.softmax(3) @ v).transpose(1, 2).reshape(n, length, width))
        return x + self.mlp(self.behind(x))


class Adapted(nn.Module):
    """A frozen linear layer and a correction of low rank, as after some steps: its second factor is not zero."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.lora_A, self.lora_B = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)
        nn.init.normal_(self.lora_B.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.lora_B(self.lora_A(x))


class ViT(nn.Module):
    """Patches of 4 px, a position embedding, two blocks, the mean over the patches."""

    def __init__(self, classes: int = 10, channels: int = 3, size: int = 32, width: int = 96, patch: int = 4) -> None:
        super().__init__()
        self.patch = patch
        self.patches = nn.Linear(channels * patch * patch, width)
        self.places = nn.Parameter(torch.randn((size // patch) ** 2, width) / 50)
        self.blocks = nn.Sequential(Block(width, 4), Block(width, 4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        cut = F.unfold(x, self.patch, stride=self.patch).transpose(1, 2)
        return self.head(self.norm(self.blocks(self.patches(cut) + self.places)).mean(1))


class LoRADecoder(nn.Module):
    """A causal decoder that classifies a text by its last state; of its body only LoRA factors of q, k and v train."""

    def __init__(self, vocabulary: int, length: int, classes: int, width: int = 64, rank: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4, rank=rank, causal=True) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_("lora_" in name or name.startswith("head"))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x))[:, -1])
