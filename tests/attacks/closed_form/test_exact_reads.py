"""Reads of one example where a first layer has no bias, and where it cuts a picture into patches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from leakgauge.attacks.closed_form import LinearRead, PatchRead, RankOneRead
from leakgauge.clients import FedSGD, client_update
from leakgauge.data import Samples, spec
from leakgauge.defenses import Defense, RandomK, TopK, noise
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR
from leakgauge.observation import Attack, Knowledge, Observation, Reconstruction, Status
from leakgauge.task import Batch, DataSpec, Task

PHOTOS = Samples(size=32)


class Transformer(nn.Module):
    """A user's own: pictures cut by a convolution or by hand, with or without a class token or a frame around them."""

    def __init__(self, *, by_hand: bool = False, token: bool = False, framed: bool = False) -> None:
        super().__init__()
        self.by_hand, self.framed = by_hand, framed
        self.embed = nn.Linear(192, 64) if by_hand else nn.Conv2d(3, 64, 8, 8)
        self.first = nn.Parameter(0.1 * torch.randn(1, int(token), 64))
        self.where = nn.Parameter(0.02 * torch.randn(16 + int(token), 64))
        self.block = nn.TransformerEncoderLayer(64, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(64, PHOTOS.classes)

    def forward(self, x: Tensor) -> Tensor:
        if self.by_hand:
            tokens = self.embed(x.view(-1, 3, 4, 8, 4, 8).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2))
        elif self.framed:
            tokens = self.embed(nn.functional.pad(x, (8,) * 4))[:, :, 1:-1, 1:-1].flatten(2).transpose(1, 2)
        else:
            tokens = self.embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(x), -1, -1), tokens], 1) + self.where
        return self.head(self.block(tokens).mean(1))


def dense(*, bias: bool = False) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 32, bias=bias), nn.ReLU(), nn.Linear(32, PHOTOS.classes))


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(7200, PHOTOS.classes))


def read(
    attack: Attack, build: Callable[[], nn.Module], n: int = 1, defense: Defense | None = None, *, labels: bool = True
) -> tuple[Reconstruction, Tensor]:
    torch.manual_seed(0)
    task, batch = Task.of(build(), spec(PHOTOS)), PHOTOS.read(range(n))
    update = client_update(task, FedSGD(), batch, Draws(0), defense=defense)
    known = Knowledge(batch.labels if labels else None, n, FedSGD(), defense=defense)
    found = attack.reconstruct(Observation(task, update, known), torch.Generator().manual_seed(0))
    scores = torch.zeros(n) if found.inputs is None else PSNR()(found.inputs, batch.inputs)
    return found, scores


@pytest.mark.parametrize("labels", [True, False], ids=["labels known", "labels read"])
@pytest.mark.parametrize(
    ("attack", "build"),
    [
        (PatchRead(), Transformer),
        (PatchRead(), lambda: Transformer(token=True)),
        (PatchRead(), lambda: Transformer(by_hand=True)),
        (PatchRead(), lambda: Transformer(framed=True)),
        (PatchRead(), lambda: dense(bias=True)),
        (RankOneRead(), dense),
    ],
)
def test_one_example_is_read_exactly_and_proved(attack: Attack, build: Callable[[], nn.Module], labels: bool) -> None:
    found, scores = read(attack, build, labels=labels)
    assert found.status is Status.EXACT
    assert bool(found.certified.all())
    assert float(scores) > 100


@pytest.mark.parametrize(("attack", "build", "n"), [(PatchRead(), Transformer, 4), (RankOneRead(), dense, 2)])
def test_what_they_cannot_read_they_say(attack: Attack, build: Callable[[], nn.Module], n: int) -> None:
    several = read(attack, build, n)[0]
    assert several.status is Status.NOT_APPLICABLE
    assert "several examples" in several.message or "16 parts of each example" in several.message
    elsewhere = read(attack, convolutions)[0]
    assert elsewhere.status is Status.NOT_APPLICABLE


@pytest.mark.parametrize("strength", [1e-4, 1e-1])
@pytest.mark.parametrize(("attack", "build", "least"), [(PatchRead(), Transformer, 0), (RankOneRead(), dense, 40)])
def test_behind_noise_nothing_is_certified(
    attack: Attack, build: Callable[[], nn.Module], strength: float, least: float
) -> None:
    """Yet noise of a tenth of the update's norm leaves the first singular vector as it was."""
    found, scores = read(attack, build, defense=noise(relative=strength))
    assert float(scores) > least
    assert found.status is not Status.EXACT
    assert found.certified is None or not bool(found.certified.any())


@pytest.mark.parametrize("unbiased", [False, True])
def test_entries_that_random_k_left_out_follow_from_the_others(unbiased: bool) -> None:
    """They were taken for zeros: 24 dB at a half of the entries."""
    found, scores = read(RankOneRead(), dense, defense=RandomK(keep=0.5, unbiased=unbiased))
    assert found.status is Status.EXACT
    assert float(scores) > 100


def test_columns_of_which_no_entry_was_sent_are_not_proved() -> None:
    found, _ = read(RankOneRead(), dense, defense=TopK(keep=0.02))
    assert found.status is Status.CONVERGED
    assert not bool(found.certified.any())


class Factors(nn.Module):
    """A frozen layer with trained factors of low rank beside it, and its bias trained or not."""

    def __init__(self, inputs: int, units: int, *, bias: bool) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, units)
        self.base.weight.requires_grad_(False)
        self.base.bias.requires_grad_(bias)
        self.down, self.up = (
            nn.Parameter(torch.randn(8, inputs) / inputs**0.5),
            nn.Parameter(0.02 * torch.randn(units, 8)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


@pytest.mark.parametrize(
    ("attack", "bias", "side", "units"),
    [(LinearRead(), True, 8, 64), (RankOneRead(), False, 8, 64), (LinearRead(), True, 32, 512)],
)
def test_a_picture_in_front_of_factors_of_low_rank_is_read_and_proved(
    attack: Attack, bias: bool, side: int, units: int
) -> None:
    """The widest has fifty times more weights than its factors have entries, and nothing of it is solved for but what
    the first factor's gradient holds."""
    torch.manual_seed(0)
    data = DataSpec((3, side, side), 10)
    first = Factors(3 * side * side, units, bias=bias)
    t = Task.of(nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(units, 10)), data)
    batch = Batch(torch.rand(1, *data.shape, generator=torch.Generator().manual_seed(0)), torch.tensor([3]))
    for defense, status in ((None, Status.EXACT), (noise(relative=0.1), Status.CONVERGED)):
        update = client_update(t, FedSGD(), batch, Draws(0), defense=defense)
        known = Knowledge(example_count=1, local_training=FedSGD(), labels=batch.labels, defense=defense)
        found = attack.reconstruct(Observation(t, update, known), torch.Generator().manual_seed(0))
        assert found.inputs is None or found.status is status
        assert defense is not None or float(PSNR()(found.inputs, batch.inputs)) > 100  # type: ignore[arg-type]


class Kronecker(nn.Module):
    """A first layer with a bias, whose weight is made of two matrices: noise on them is none on it."""

    def __init__(self, front: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.front, self.left = front, nn.Parameter(torch.randn(8, 6) / 3)
        self.right, self.bias = nn.Parameter(torch.randn(4, 2) / 2), nn.Parameter(torch.zeros(32))
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.kron(self.left, self.right)
        return self.head(torch.tanh(nn.functional.linear(self.front(x.flatten(1)), weight, self.bias)))


@pytest.mark.parametrize(
    ("front", "relative", "proved"),
    [(torch.neg, 1e-8, True), (torch.neg, 1e-2, False), (torch.abs, 1e-8, False), (torch.relu, 1e-8, False)],
    ids=["faint noise", "loud noise", "signs are lost", "what is negative is lost"],
)
def test_an_example_is_proved_where_noise_can_have_moved_it_little(
    front: Callable[[Tensor], Tensor], relative: float, proved: bool
) -> None:
    """By the layer's own equations: nothing explains an update behind noise to rounding."""
    data, known = DataSpec((12,), 5, low=-1.0), 0
    for seed in range(4):
        torch.manual_seed(seed)
        task = Task.of(Kronecker(front).double(), data)
        batch = Batch(2 * torch.rand(1, 12, dtype=torch.float64) - 1, torch.tensor([seed]))
        defense = noise(relative=relative)
        update = client_update(task, FedSGD(), batch, Draws(seed), defense=defense)
        seen = Observation(task, update, Knowledge(None, 1, FedSGD(), defense=defense))
        found = PatchRead().reconstruct(seen, torch.Generator().manual_seed(0))
        known += found.status is Status.EXACT
        if found.status is Status.EXACT:
            assert float((found.inputs - batch.inputs).abs().max()) < 2 / 510
        told = replace(seen, knowledge=replace(seen.knowledge, defense=None))
        assert PatchRead().reconstruct(told, torch.Generator().manual_seed(0)).status is not Status.EXACT
    assert known == 4 * proved
