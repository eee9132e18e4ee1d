"""Several texts under attention to both sides: read in order off one gradient, however attention is written."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.attacks.closed_form import TokenRead
from leakgauge.clients import FedSGD, client_update
from leakgauge.defenses import Defense, NoDefense, noise
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation, Reconstruction, Status
from leakgauge.task import Batch, DataSpec, Task

VOCABULARY, CLASSES, START, END = 2000, 4, 1, 2


class Own(nn.Module):
    """Heads that are cut out of the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.heads = *(nn.Linear(width, width) for _ in range(3)), heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Written(Own):
    """The same, by products and a soft-max: gradients of biases reach their scores alone."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        found: Tensor = ((q @ k.mT / q.shape[3] ** 0.5).softmax(3) @ v).transpose(1, 2).flatten(2)
        return found


class Fused(nn.Module):
    """One weight for all, heads that alternate, scores by `einsum`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.all, self.heads = nn.Linear(width, 3 * width, bias=False), heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.all(x).unflatten(2, (-1, self.heads, 3)).unbind(4)
        scores = torch.einsum("nidh,njdh->nhij", q, k) / q.shape[2] ** 0.5
        return torch.einsum("nhij,njdh->nidh", scores.softmax(3), v).flatten(2)


class Torch(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return found


class Encoder(nn.Module):
    def __init__(self, attention: type[nn.Module], length: int, width: int, *, norm: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Parameter(torch.randn(length, width))
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.attention, self.then, self.head = attention(width, 2), nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.words(ids) + self.places)
        return self.head(F.gelu(self.then(x + self.attention(x))).mean(1))


def read(
    ids: Tensor,
    attention: type[nn.Module] = Own,
    width: int = 64,
    *,
    norm: bool = True,
    frozen: bool = False,
    defense: Defense | None = None,
) -> Reconstruction:
    torch.manual_seed(0)
    model, (count, length) = Encoder(attention, ids.shape[1], width, norm=norm), ids.shape
    model.words.requires_grad_(not frozen)
    data = DataSpec((length,), CLASSES, low=0, high=VOCABULARY - 1, vocabulary=VOCABULARY)
    task, batch = Task.of(model, data, mode="eval"), Batch(ids.float(), torch.arange(count) % CLASSES)
    defense = defense or NoDefense()
    update = client_update(task, FedSGD(), batch, Draws(0), defense=defense)
    knows = Knowledge(example_count=count, local_training=FedSGD(), defense=defense)
    return TokenRead().reconstruct(Observation(task, update, knows), torch.Generator().manual_seed(0))


def texts(count: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(3, VOCABULARY, (count, length), generator=torch.Generator().manual_seed(seed))


def in_order(found: Reconstruction, ids: Tensor) -> bool:
    assert found.tokens is not None
    order = found.tokens.order
    return order is not None and sorted(order.tolist()) == sorted(ids.tolist())


@pytest.mark.parametrize("norm", [True, False], ids=["norm", "sum"])
@pytest.mark.parametrize("attention", [Own, Written, Fused, Torch])
def test_texts_are_read_in_order_however_attention_is_written(attention: type[nn.Module], norm: bool) -> None:
    ids = texts(3, 6)
    found = read(ids, attention, norm=norm)
    assert found.status is Status.EXACT
    assert in_order(found, ids), found.message


def test_rows_that_texts_share_are_found_in_each() -> None:
    """The first and last token of all, one of two texts, two of two others in a chain; and rows that fit because others
    do: where places are added, a token of one place, that of another text there and the first at a second place make up
    the second's there."""
    ids = texts(4, 8, 1)
    ids[:, 0], ids[:, -1] = START, END
    ids[1, 3], ids[2, 4], ids[3, 5] = ids[0, 3], ids[1, 4], ids[2, 2]
    assert in_order(read(ids, width=128), ids)


def test_an_embedding_that_does_not_train_hides_no_order() -> None:
    ids = texts(2, 6, 2)
    assert in_order(read(ids, frozen=True), ids)


class Single(Own):
    """Runs in single precision alone."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(torch.float32) @ torch.eye(x.shape[2])


def test_a_network_that_runs_in_single_precision_alone_keeps_its_tokens() -> None:
    ids = texts(2, 6)
    found = read(ids, Single)
    assert found.status is Status.EXACT
    assert found.tokens is not None
    assert set(found.tokens.counts.sum(0).nonzero().flatten().tolist()) == set(ids.flatten().tolist())


@pytest.mark.slow
def test_six_texts_of_sixteen_tokens() -> None:
    ids = texts(6, 16)
    assert in_order(read(ids, width=192), ids)


def test_noise_that_hides_what_is_bound_gives_no_order() -> None:
    found = read(texts(2, 6), defense=noise(relative=1e-2))
    assert found.tokens is None or found.tokens.order is None


def test_more_rows_than_the_layer_tells_apart_give_no_order_and_no_wrong_token() -> None:
    ids = texts(4, 16)
    found = read(ids, width=48)
    assert found.tokens is not None
    assert found.tokens.order is None
    assert set(found.tokens.counts.sum(0).nonzero().flatten().tolist()) == set(ids.flatten().tolist())
