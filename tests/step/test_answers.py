"""Networks answer in many ways, and hold tensors of their own: the read is the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.attacks.effort import Effort, ReadingAttack
from leakgauge.attacks.exact import Peeling
from leakgauge.attacks.recipes import Auto
from leakgauge.attacks.recipes.portfolio import Portfolio
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.observation import Knowledge, Observation, Reconstruction, Status
from leakgauge.step.training import in_one_type, logits_of
from leakgauge.task import Batch, DataSpec, Loss, Task, cross_entropy

SPEC = DataSpec((1, 8, 8), 5)


@dataclass
class Output:
    loss: Tensor | None
    logits: Tensor
    hidden: tuple[Tensor, ...] = ()


class Heads(NamedTuple):
    logits: Tensor
    auxiliary: Tensor


WAYS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda z: z,
    "dict": lambda z: {"logits": z, "hidden": z[:, :1]},
    "dict without the name": lambda z: OrderedDict(out=z, aux=2 * z),
    "loss first": lambda z: (z.sum(), z),
    "list": lambda z: [z],
    "dataclass": lambda z: Output(None, z),
    "named tuple": lambda z: Heads(z, 2 * z),
    "nested": lambda z: ({"heads": (z, 3 * z)}, None),
}


class Answering(nn.Module):
    def __init__(self, way: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.way = way
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 5))

    def forward(self, x: Tensor) -> Any:
        return self.way(self.body(x))


def observe(module: nn.Module, n: int, loss: Loss = cross_entropy, spec: DataSpec = SPEC) -> tuple[Observation, Batch]:
    task = Task.of(module, spec, loss=loss)
    draw = torch.Generator().manual_seed(1)
    batch = Batch(torch.rand(n, *spec.shape, generator=draw), torch.randint(5, (n,), generator=draw))
    return Observation(task, client_update(task, FedSGD(), batch, Draws(0)), Knowledge(None, n, FedSGD())), batch


def read(observation: Observation, evaluations: int = 500) -> Reconstruction:
    draws = torch.Generator().manual_seed(0)
    return Auto().reconstruct(observation, draws, budget=Budget(gradient_evaluations=evaluations))


@pytest.mark.parametrize("way", WAYS)
def test_the_form_of_an_answer_changes_no_read(way: str) -> None:
    torch.manual_seed(0)
    found = read(observe(Answering(WAYS[way]), 3)[0])
    assert found.status is Status.EXACT
    assert not any(one.raised for one in found.tried)


def test_an_answer_without_examples_is_named() -> None:
    with pytest.raises(InputError, match="no tensor with a row an example"):
        logits_of({"loss": torch.zeros(())})


WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 0.3, 1.5])


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = WEIGHTS

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits @ torch.diag(self.scale), labels)


@pytest.mark.parametrize(
    "loss",
    [nn.CrossEntropyLoss(weight=WEIGHTS), lambda z, y: F.cross_entropy(z, y, weight=WEIGHTS), Weighted()],
    ids=["module", "closure", "plain attribute"],
)
def test_a_loss_that_holds_tensors_follows_the_reads_type(loss: Loss) -> None:
    torch.manual_seed(0)
    observation, _ = observe(Answering(WAYS["tensor"]), 4, loss)
    found = read(observation, 40)
    assert found.inputs is not None
    assert not any(one.raised for one in found.tried)
    double = observation.task.to(torch.empty((), dtype=torch.float64))
    logits = torch.randn(4, 5, dtype=torch.float64)
    assert double.loss_of(logits, torch.arange(4)).dtype is torch.float64


def test_whole_numbers_and_other_types_are_left_alone() -> None:
    with in_one_type(torch.float64):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
        picked = F.embedding(torch.tensor([1]), torch.eye(3))
        mixed = torch.ones(2, 2) @ torch.ones(2, 2, dtype=torch.float64)
    assert (product.dtype, picked.dtype, mixed.dtype) == (torch.float32, torch.float32, torch.float64)


@pytest.mark.parametrize("seed", range(4))
def test_no_class_is_certified_for_a_real_number(seed: int) -> None:
    """Labels 0 and 1 were tried for real ones, and a mixture of four examples that one fitted was proved."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.mse_loss(logits[:, 0], labels.to(logits).reshape(-1))

    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 1))
    task = Task.of(net, DataSpec((1, 8, 8), 1), loss=loss)
    assert not task.of_classes
    batch = Batch(torch.rand(4, 1, 8, 8), 3 * torch.randn(4, 1))
    observation = Observation(task, client_update(task, FedSGD(), batch, Draws(1)), Knowledge(None, 4, FedSGD()))
    for attack in (Peeling(), Auto(rough_steps=1)):
        found = attack.reconstruct(observation, torch.Generator().manual_seed(0), budget=Budget(50))
        if found.inputs is not None and found.certified is not None:
            far = (found.inputs[:, None] - batch.inputs[None]).abs().flatten(2).amax(2).amin(1)
            assert not bool((found.certified & (far > 1e-3)).any())


@pytest.mark.parametrize(
    ("loss", "classes"),
    [
        (cross_entropy, True),
        (nn.CrossEntropyLoss(label_smoothing=0.1), True),
        (lambda z, y: F.mse_loss(z, F.one_hot(y, 5).to(z)), True),
        (lambda z, y: F.mse_loss(z[:, 0], y.to(z)), False),
        (lambda z, y: F.huber_loss(z[:, :1], y.to(z).view(-1, 1)), False),
    ],
    ids=["plain", "smoothed", "one-hot", "squares", "huber"],
)
def test_the_loss_says_whether_labels_are_classes(loss: Loss, classes: bool) -> None:
    assert Task.of(Answering(WAYS["tensor"]), SPEC, loss=loss).of_classes is classes


class LooksUp(nn.Module):
    """A table whose first column is a category, as users write it; nothing beyond its rows can be looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.body = nn.Embedding(6, 4), nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.body(torch.cat([self.rows(x[:, 0].long()), x[:, 1:]], 1))}


@pytest.mark.parametrize("n", [1, 2])
def test_probes_stay_in_the_range_of_the_data(n: int) -> None:
    torch.manual_seed(0)
    spec = DataSpec((5,), 5, low=0.0, high=5.0)
    task, draw = Task.of(LooksUp(), spec), torch.Generator().manual_seed(1)
    batch = Batch(5 * torch.rand(n, 5, generator=draw), torch.randint(5, (n,), generator=draw))
    seen = Observation(task, client_update(task, FedSGD(), batch, Draws(0)), Knowledge(None, n, FedSGD()))
    found = read(seen, 60)
    assert found.inputs is not None
    assert [one for one in found.tried if one.raised] == []


class VisionTransformer(nn.Module):
    """Answers as Hugging Face's do."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, 24, 2, 2)
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, 24))
        self.first = nn.Parameter(torch.zeros(1, 1, 24))
        self.block = nn.TransformerEncoderLayer(24, 2, 32, dropout=0.0, activation=F.gelu, batch_first=True)
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Output:
        tokens = self.cut(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(x), -1, -1), tokens], 1) + self.place
        return Output(None, self.head(self.block(tokens).mean(1)))


@pytest.mark.parametrize(("low", "high", "mean"), [(0.0, 1.0, 0.0), (-3.0, 5.0, 0.4)])
def test_patches_are_read_of_a_network_that_answers_a_dataclass(low: float, high: float, mean: float) -> None:
    torch.manual_seed(0)
    spec = DataSpec((1, 8, 8), 5, low, high, (mean,), (2.0,))
    assert read(observe(VisionTransformer(), 1, spec=spec)[0]).status is Status.EXACT


class Raising(ReadingAttack):
    def read(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        raise RuntimeError("no such layer\nsecond line")


def test_a_method_that_raises_is_noted_and_ends_no_other() -> None:
    observation, _ = observe(Answering(WAYS["tensor"]), 2)
    portfolio = Portfolio(Effort(torch.Generator()))
    found = portfolio.run("broken", Raising(), observation, torch.Generator(), note=False)
    assert found.status is Status.FAILED
    assert portfolio.asked("question", lambda: [][1], "otherwise") == "otherwise"
    assert [(one.name, one.why, one.raised) for one in portfolio.tried] == [
        ("broken", "RuntimeError: no such layer", True),
        ("question", "IndexError: list index out of range", True),
    ]


class Fickle(nn.Module):
    """Runs on pictures of this size alone, as one that a data-dependent branch ends does; hooks end it too."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 5))

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype is torch.float64 and len(x) == 3:
            raise RuntimeError("three examples are too many")
        return self.body(x)


def test_one_broken_method_leaves_the_others_their_turn() -> None:
    torch.manual_seed(0)
    found = read(observe(Fickle(), 3)[0], 40)
    assert any(one.raised and "three examples" in one.why for one in found.tried)
    assert len([one for one in found.tried if not one.raised]) > 2
