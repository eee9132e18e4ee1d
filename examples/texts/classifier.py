"""A text classifier as people write it: words and their places, a transformer encoder, the mean over the text."""

import torch
from torch import Tensor, nn


class Classifier(nn.Module):
    def __init__(self, vocabulary: int, length: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.places = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        padding = ids == 0
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        x = self.encoder(x, src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1).to(x.dtype)
        return self.head((x * kept).sum(1) / kept.sum(1))
