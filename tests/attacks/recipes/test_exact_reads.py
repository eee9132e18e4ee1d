"""What the exact methods come to together: nothing that several examples get is kept from a single one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from leakgauge.attacks.closed_form import RowDifferences
from leakgauge.attacks.closed_form.proof import tried_labels
from leakgauge.attacks.effort import Effort
from leakgauge.attacks.recipes.auto import Auto
from leakgauge.attacks.recipes.exact_reads import AGREEING, read_exactly
from leakgauge.attacks.recipes.portfolio import Portfolio
from leakgauge.attacks.recipes.row_space import SpanFit
from leakgauge.batch import Batch, DataSpec
from leakgauge.clients import FedAvg, FedSGD, Protocol, client_update
from leakgauge.compute import Budget
from leakgauge.data import Samples, spec
from leakgauge.defenses import (
    DPSGD,
    QSGD,
    ClientDP,
    Clip,
    ClipExamples,
    Compose,
    Defense,
    FedCDP,
    Quantise,
    laplace,
    noise,
)
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR, assign
from leakgauge.models.networks import lenet, mlp
from leakgauge.observation import Knowledge, Observation, Reconstruction, Status
from leakgauge.servers.imprint import Imprint, ImprintBlock
from leakgauge.task import Task

SHAPE = DataSpec((3, 4, 4), 5)


def batch(n: int) -> Batch:
    return Batch(torch.rand((n, *SHAPE.shape), generator=torch.Generator().manual_seed(5)), torch.arange(n) % 5)


def task(module: nn.Module | None = None) -> Task:
    torch.manual_seed(0)
    return Task.of(module or mlp(hidden=(96,), shape=SHAPE.shape, classes=5, activation="relu"), SHAPE)


def seen(t: Task, b: Batch, defense: Defense | None = None, protocol: Protocol | None = None) -> Observation:
    protocol = protocol or FedSGD()
    update = client_update(t, protocol, b, Draws(1), defense=defense)
    return Observation(t, update, Knowledge(example_count=len(b), local_training=protocol, defense=defense))


def attacked(observation: Observation, evaluations: int = 60) -> Reconstruction:
    budget = Budget(gradient_evaluations=evaluations)
    return Auto().reconstruct(observation, torch.Generator().manual_seed(0), budget=budget)


def certified(found: Reconstruction, b: Batch) -> int:
    """How many are certified; each of them must be one of the batch."""
    if found.inputs is None:
        return 0
    sure = torch.full((len(found.inputs),), found.status is Status.EXACT)
    sure = sure if found.certified is None else found.certified
    pairs = assign(found.inputs.to(b.inputs), b.inputs)
    right = PSNR()(pairs.take(found.inputs.to(b.inputs)), b.inputs) > 45
    assert bool(right.sum() >= sure.sum())
    return int(sure.sum())


FAINT = (
    noise(sigma=1e-9),
    laplace(sigma=1e-9),
    Compose((Clip(norm=0.1), noise(sigma=1e-9))),
    Compose((noise(sigma=1e-9), Clip(norm=0.1))),
    Compose((ClipExamples(norm=0.1), noise(sigma=1e-9))),
    Quantise(levels=32767),
    Compose((Clip(norm=0.1), Quantise(levels=32767))),
    QSGD(levels=32767),
    DPSGD(noise_multiplier=1e-6, norm=0.1),
    ClientDP(noise_multiplier=1e-6, norm=0.1),
    FedCDP(noise_multiplier=1e-6, norm=0.1),
)


@pytest.mark.parametrize("defense", FAINT, ids=repr)
@pytest.mark.parametrize("n", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_behind_faint_noise_one_example_is_certified_as_four_are(n: int, defense: Defense) -> None:
    b = batch(n)
    assert certified(attacked(seen(task(), b, defense)), b) == n


@pytest.mark.parametrize(("relative", "near"), [(0.3, True), (1.0, False)])
def test_the_only_example_is_searched_for_from_a_read_that_explains_much_more_than_grey(
    relative: float, near: bool
) -> None:
    photos = Samples()
    torch.manual_seed(0)
    t = Task.of(mlp(hidden=(64,), shape=photos.shape, activation="relu"), spec(photos))
    portfolio = Portfolio(Effort(torch.Generator()))
    observation = seen(t, photos.read([0]), noise(relative=relative))
    read = read_exactly(portfolio, observation, torch.Generator().manual_seed(0))
    assert read.proved is None
    assert (read.start is not None) == near
    assert portfolio.spent < 50


def test_what_a_layer_further_in_holds_stands_beside_what_is_certified() -> None:
    """A long search explains more of an update by examples that are none than some of the true ones do beside it."""
    torch.manual_seed(5)
    t, b = task(mlp(hidden=(32, 16), shape=SHAPE.shape, classes=5, activation="relu")), batch(8)
    observation = seen(t, b)
    fitted, found = SpanFit().reconstruct(observation, torch.Generator().manual_seed(0)), attacked(observation, 400)
    assert found.inputs is not None
    assert fitted.inputs is not None
    assert 0 < certified(found, b) < len(fitted.inputs)
    assert float(torch.cdist(fitted.inputs.flatten(1).float(), found.inputs.flatten(1).float()).amin(1).max()) < 1e-3


class Headed(nn.Module):
    """A perceptron with a head that is no linear layer."""

    def __init__(self, head: str) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(48, 96), nn.Linear(96, 5)
        self.wide, self.head = nn.Linear(48, 5) if head == "wide" else None, head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        h = self.a(x).relu()
        if self.wide is not None:
            return self.out(h) + self.wide(x)
        if self.head == "cosine":
            return 5 * nn.functional.linear(nn.functional.normalize(h), self.out.weight)
        return self.out(h) / 0.7 if self.head == "temperature" else self.out(h).log_softmax(1)


@pytest.mark.parametrize("head", ["wide", "temperature", "log-softmax", "cosine"])
@pytest.mark.parametrize("n", [1, 2])
def test_labels_are_found_whatever_makes_the_logits(n: int, head: str) -> None:
    torch.manual_seed(0)
    t, b = task(Headed(head)), batch(n)
    b = Batch(b.inputs, 3 - b.labels)
    found = attacked(seen(t, b))
    assert certified(found, b) == n
    assert found.labels is not None
    pairs = assign(found.inputs, b.inputs)
    assert pairs.take(found.labels).tolist() == b.labels.tolist()


@pytest.mark.parametrize("labels_known", [False, True])
def test_tried_labels_need_no_length_and_no_head(labels_known: bool) -> None:
    torch.manual_seed(0)
    t, b = task(Headed("wide")), batch(6)
    client = FedAvg(lr=0.3)
    update = client_update(t, client, b, Draws(1), defense=Clip(norm=0.1))
    known = Knowledge(labels=b.labels.flip(0) if labels_known else None, example_count=6)
    found = tried_labels(Observation(t, update, known), b.inputs)
    assert found.labels is not None
    assert found.labels.tolist() == b.labels.tolist()
    assert found.confidence is not None
    assert found.confidence > 1 - 1e-3


class Chained(nn.Module):
    """A classifier of one output after another, each of which is given what was said before it."""

    def __init__(self, *, last_alone: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(48, 96), nn.ReLU())
        self.links = nn.ModuleList(nn.Linear(96 + k, 1) for k in range(5))
        for part in (self.body, *self.links[:-1]):
            part.requires_grad_(not last_alone)

    def forward(self, x: Tensor) -> Tensor:
        known = self.body(x)
        for link in self.links:
            known = torch.cat([known, link(known)], 1)
        return known[:, 96:]


@pytest.mark.parametrize("label", range(5))
def test_labels_are_told_by_as_many_tensors_as_it_takes(label: int) -> None:
    torch.manual_seed(label)
    t, b = task(Chained(last_alone=False)), Batch(torch.rand(1, *SHAPE.shape), torch.tensor([label]))
    found = tried_labels(seen(t, b), b.inputs)
    assert found.labels is not None
    assert found.confidence is not None
    assert found.labels.tolist() == [label]
    assert found.confidence > 1 - 1e-3


@pytest.mark.parametrize("label", range(4))
def test_of_classes_that_look_the_same_none_is_believed(label: int) -> None:
    t, b = task(Chained(last_alone=True)), Batch(torch.rand(1, *SHAPE.shape), torch.tensor([label]))
    assert tried_labels(seen(t, b), b.inputs).confidence == 0


FREE = {
    "bins behind kinks": (ImprintBlock(bins=32), "lenet", RowDifferences(plausible=True)),
    "bins in a wide network": (Imprint(), "mlp", RowDifferences(plausible=True)),
    "rows that agree": (None, "mlp", AGREEING),
}


@pytest.mark.parametrize("name", FREE)
def test_a_run_that_is_stopped_keeps_what_costs_nothing(name):
    """A search before them spent the time, and a server's bins were not looked at."""
    server, network, reader = FREE[name]
    data = DataSpec((3, 32, 32), 10)
    torch.manual_seed(0)
    net = lenet() if network == "lenet" else mlp(hidden=(128, 96), shape=data.shape, classes=10, activation="relu")
    t = Task.of(net, data)
    if server is not None:
        t = server.broadcast(t, torch.Generator().manual_seed(1)).task
    shades = torch.linspace(0.2, 0.8, 12).view(-1, 1, 1, 1)
    inputs = (torch.rand((12, *data.shape), generator=torch.Generator().manual_seed(2)) * 0.3 + shades - 0.15).clamp(
        0, 1
    )
    observation = seen(t, Batch(inputs, torch.arange(12) % 10))
    alone = reader.reconstruct(observation, torch.Generator().manual_seed(0))
    found = Auto().reconstruct(observation, torch.Generator().manual_seed(0), on_step=lambda _: True)
    assert alone.inputs is not None
    assert found.inputs is not None

    def near(read: Tensor) -> int:
        off = (inputs[:, None] - read[None]).flatten(2).square().mean(2).sqrt()
        return int((off.amin(1) < 1e-3).sum())

    assert near(alone.inputs) > 0
    assert near(found.inputs) >= near(alone.inputs)
