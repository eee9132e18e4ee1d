"""Text classifiers as people write them, and texts of known tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCABULARY, LENGTH, CLASSES = 400, 32, 5


class Encoder(nn.Module):
    """A transformer encoder with places, padding left out, and the mean over the text."""

    def __init__(self, width: int = 64, *, causal: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, width, padding_idx=0), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, width, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head, self.causal = nn.Linear(width, CLASSES), causal

    def forward(self, ids: Tensor) -> Tensor:
        hidden = ids == 0
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1) if self.causal else None
        x = self.body(self.words(ids) + self.places.weight, mask=later, src_key_padding_mask=hidden)
        kept = (~hidden)[..., None].to(x.dtype)
        return self.head((x * kept).sum(1) / kept.sum(1))


class Decoder(nn.Module):
    """Causal attention written by hand behind a norm, and the mean of the first places, padding with them.

    Attributes:
        seen: how many places the answer rests on.
    """

    def __init__(self, width: int = 144, *, placed: bool = True, seen: int = LENGTH) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.norm, self.then = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.wide, self.back = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head, self.placed, self.seen = nn.Linear(width, CLASSES), placed, seen

    def forward(self, ids: Tensor) -> Tensor:
        size = ids.shape[1]
        x = self.words(ids) + (self.places.weight[:size] if self.placed else 0)
        y = self.norm(x)
        scores = self.query(y) @ self.key(y).transpose(1, 2) / y.shape[2] ** 0.5
        later = torch.ones(size, size, dtype=torch.bool).triu(1)
        x = x + scores.masked_fill(later, -torch.inf).softmax(2) @ self.value(y)
        x = x + self.back(self.wide(self.then(x)).relu())
        return self.head(x[:, : self.seen].mean(1))


class Bag(nn.Module):
    """The mean of the words, with sparse gradients, and a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(VOCABULARY, 24, mode="mean", padding_idx=0, sparse=True)
        self.head = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, CLASSES))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.bag(ids))


class Maxima(nn.Module):
    """Convolutions and the largest answer of each: many words never show."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.conv, self.head = nn.Embedding(VOCABULARY, 16), nn.Conv1d(16, 6, 3), nn.Linear(6, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.conv(self.words(ids).transpose(1, 2)).relu().amax(2))


class Tied(nn.Module):
    """The output layer is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(VOCABULARY, 16), nn.Linear(16, 16)
        self.out = nn.Linear(16, VOCABULARY, bias=False)
        self.out.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.mix(self.words(ids).mean(1)).tanh())


class Frozen(Bag):
    def __init__(self) -> None:
        super().__init__()
        self.bag.weight.requires_grad_(False)


def texts(count: int, seed: int = 0) -> Tensor:
    """Of 18 to 32 tokens, frequent ones often, filled up with 0."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.zeros(count, LENGTH, dtype=torch.long)
    for row in ids:
        size = int(torch.randint(18, LENGTH + 1, (), generator=g))
        row[:size] = 1 + torch.multinomial(1 / torch.arange(1.0, VOCABULARY), size, replacement=True, generator=g)
    return ids
