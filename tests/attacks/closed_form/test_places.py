"""Batches whose parts enter a layer one by one: told apart by attention, part by part, and proved."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.attacks.closed_form import PatchRead
from leakgauge.attacks.closed_form.entered import entered
from leakgauge.attacks.closed_form.places import Places, read_parts
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget
from leakgauge.data import Samples, spec
from leakgauge.defenses import Defense, NoDefense, noise
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation, Reconstruction, Status
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.view.graph import traced

PHOTOS = Samples(size=16)
PATCH, WIDTH, PLACES = 8, 48, 4
EXACT = 55.0  # dB that certified pictures have at least


class Block(nn.Module):
    """Attention with a norm before it, heads cut out of one bias-free weight or of three."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.norm, self.then, self.fused = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), fused
        self.all = nn.Linear(WIDTH, 3 * WIDTH, bias=not fused)
        self.out, self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.all(self.norm(x))
        if self.fused:
            q, k, v = h.unflatten(2, (-1, 2, 3)).unbind(4)
            scores = torch.einsum("nidh,njdh->nhij", q, k) / q.shape[2] ** 0.5
            h = torch.einsum("nhij,njdh->nihd", scores.softmax(3), v).flatten(2)
        else:
            q, k, v = (part.unflatten(2, (2, -1)).transpose(1, 2) for part in h.chunk(3, 2))
            h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(h)
        return x + self.down(F.gelu(self.up(self.then(x))))


class ViT(nn.Module):
    def __init__(self, *, cut: str = "convolution", token: bool = True, block: str = "three") -> None:
        super().__init__()
        self.cut = cut
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH) if cut == "convolution" else nn.Linear(3 * PATCH**2, WIDTH)
        self.first = nn.Parameter(torch.randn(1, int(token), WIDTH))
        self.where = nn.Parameter(0.3 * torch.randn(PLACES + int(token), WIDTH))
        plain = nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, dropout=0.0, batch_first=True)
        self.block = plain if block == "torch's" else Block(fused=block == "fused")
        self.head = nn.Linear(WIDTH, PHOTOS.classes)

    def forward(self, x: Tensor) -> Tensor:
        if self.cut == "convolution":
            tokens = self.patches(x).flatten(2).transpose(1, 2)
        else:
            tokens = self.patches(F.unfold(x, PATCH, stride=PATCH).transpose(1, 2))
        tokens = torch.cat([self.first.expand(len(x), -1, -1), tokens], 1) + self.where
        return self.head(self.block(tokens).mean(1))


def observed(
    build: Callable[[], nn.Module], inputs: Tensor, data: DataSpec | None = None, defense: Defense | None = None
) -> Observation:
    torch.manual_seed(0)
    task = Task.of(build(), data or spec(PHOTOS))
    batch, defense = Batch(inputs, torch.arange(len(inputs)) % task.data.classes), defense or NoDefense()
    update = client_update(task, FedSGD(), batch, Draws(0), defense=defense)
    return Observation(task, update, Knowledge(example_count=len(inputs), local_training=FedSGD(), defense=defense))


@cache
def photos(count: int) -> Tensor:
    return PHOTOS.read(range(count)).inputs


def read(observation: Observation) -> Reconstruction:
    return PatchRead().reconstruct(observation, torch.Generator().manual_seed(0))


def worst(found: Tensor, inputs: Tensor) -> float:
    """Decibels of the worst of them, each beside the example that is nearest to it, each example once."""
    errors = (found.double()[:, None] - inputs.double()).square().flatten(2).mean(2)
    assert errors.argmin(1).sort().values.tolist() == list(range(len(inputs)))
    return float(-10 * errors.min(1).values.max().log10())


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (ViT, 2),
        (ViT, 7),
        (lambda: ViT(token=False), 3),
        (lambda: ViT(cut="by hand", block="fused"), 3),
        (lambda: ViT(block="torch's"), 2),  # its ReLUs jump
    ],
    ids=["two", "seven", "no token", "fused", "torch's"],
)
def test_batches_of_photos_are_read_and_proved(build: Callable[[], nn.Module], count: int) -> None:
    found = read(observed(build, photos(count)))
    assert found.status is Status.EXACT, found.message
    assert found.inputs is not None
    assert found.labels is not None
    assert worst(found.inputs, photos(count)) > EXACT
    assert sorted(found.labels.tolist()) == list(range(count))


@pytest.mark.parametrize("turn", [1, 2])
def test_the_order_of_a_batch_changes_nothing(turn: int) -> None:
    inputs = photos(3).roll(turn, 0)
    found = read_parts(traced(observed(ViT, inputs).task), observed(ViT, inputs))
    assert not isinstance(found, str), found
    assert worst(found[0], photos(3)) > 30


def test_the_only_photo_is_read_where_no_gradient_shows_its_places() -> None:
    """Positions that are set once, as those of masked autoencoders are."""

    def fixed() -> nn.Module:
        net = ViT()
        net.where.requires_grad_(False)
        return net

    found = read(observed(fixed, photos(1)))
    assert found.status is Status.EXACT, found.message
    assert found.inputs is not None
    assert worst(found.inputs, photos(1)) > EXACT


def test_the_order_in_which_layers_are_declared_changes_nothing() -> None:
    """What stands behind the attention comes first among the parameters."""

    def backwards() -> nn.Module:
        net = ViT()
        first = net.block.all
        del net.block.all
        net.block.all = first
        assert [name for name, _ in net.block.named_children()][-1] == "all"
        return net

    assert read(observed(backwards, photos(2))).status is Status.EXACT


def test_where_a_gradient_has_no_derivative_the_pictures_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise RuntimeError("has no derivative")

    monkeypatch.setattr("leakgauge.attacks.closed_form.proof.jacobian", refuses)
    monkeypatch.setattr("leakgauge.attacks.matching.simulator.ROUNDING", 0.0)  # else the read may explain it all
    found = read(observed(ViT, photos(5)))
    assert found.status is Status.CONVERGED
    assert found.inputs is not None
    assert worst(found.inputs, photos(5)) > 30


def test_a_budget_that_ends_the_proof_is_said_and_the_pictures_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rounding is not forgiven, the read explains no update before it is improved."""
    monkeypatch.setattr("leakgauge.attacks.matching.simulator.ROUNDING", 0.0)
    observation = observed(ViT, photos(5))
    budgets = (Budget(gradient_evaluations=1), Budget(seconds=1e-3))
    for budget, status in zip(budgets, (Status.OUT_OF_BUDGET, Status.TIME_LIMIT), strict=True):
        found = PatchRead().reconstruct(observation, torch.Generator().manual_seed(0), budget=budget)
        assert found.status is status
        assert found.inputs is not None
        assert worst(found.inputs, photos(5)) > 30


def test_directions_give_their_parts() -> None:
    """Whatever the rows' lengths, and where some point against the row of zeros."""
    observation = observed(ViT, photos(2))
    places = next(filter(None, map(Places.of, entered(traced(observation.task), observation))))
    assert places.taken.sum() == PLACES
    ways = torch.randn(8, len(places.ways), generator=torch.Generator().manual_seed(0)).double()
    flat = 40 * ways @ places.ways
    rows = places.rows(flat)[:, places.taken]
    here = places.rows(torch.zeros_like(flat[:1]))[0, places.taken]
    assert bool(((rows * here).sum(2) < 0).any())
    for own, wanted in zip(rows, flat, strict=True):
        lengths = own.norm(dim=1, keepdim=True) * torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])
        made = places.example(own / lengths)
        assert float((made - wanted).norm()) < 1e-4 * float(wanted.norm())


def test_what_it_takes_is_said() -> None:
    twelve = read(observed(ViT, torch.rand(12, 3, 16, 16, generator=torch.Generator().manual_seed(0))))
    assert twelve.status is Status.NOT_APPLICABLE
    assert "4 parts of each example enter block.all" in twelve.message
    assert "of 48 directions" in twelve.message
    same = read(observed(ViT, photos(2)[:1].expand(2, -1, -1, -1)))
    assert same.status is Status.NOT_APPLICABLE


def test_a_patch_that_two_photos_share_is_no_wrong_picture() -> None:
    inputs = photos(2).clone()
    inputs[:, :, :PATCH, :PATCH] = 0.0
    found = read(observed(ViT, inputs))
    assert found.status is not Status.EXACT or (found.inputs is not None and worst(found.inputs, inputs) > EXACT)


def test_noise_is_not_read_as_parts() -> None:
    found = read(observed(ViT, photos(2), defense=noise(relative=1e-2)))
    assert found.status is not Status.EXACT


class Series(nn.Module):
    """Each step a row, of fewer numbers than there are examples: their rows depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.where = nn.Linear(2, WIDTH), nn.Parameter(torch.randn(6, WIDTH))
        self.block, self.head = Block(fused=False), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.steps(x) + self.where).mean(1))


@pytest.mark.parametrize("count", [2, 4])
def test_rows_that_depend_on_each_other_prove_nothing(count: int) -> None:
    inputs = torch.rand(count, 6, 2, generator=torch.Generator().manual_seed(0))
    found = read(observed(Series, inputs, DataSpec((6, 2), 3)))
    assert found.status is Status.NOT_APPLICABLE
