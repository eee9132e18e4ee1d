"""Texts that are their own targets: a causal language model with its own loss, whose last token enters no layer."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leakgauge as lg
from leakgauge.attacks.closed_form import LinearRead, PatchRead
from leakgauge.clients import FedSGD
from leakgauge.draws import Draws

LENGTH, VOCABULARY, WIDTH = 7, 60, 24


class Causal(nn.Module):
    """Two blocks of causal attention, with positions that are added, or none."""

    def __init__(self, *, tied: bool, places: bool, frozen: bool, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(vocabulary, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH)) if places else None
        self.mixes = nn.ModuleList([nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2)])
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        if tied:
            self.head.weight = self.words.weight
        if frozen:
            self.words.requires_grad_(False)
            self.head.requires_grad_(False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = x if self.places is None else x + self.places
        mask = torch.full((LENGTH, LENGTH), -math.inf).triu(1)
        for mix in self.mixes:
            q, k, v = mix(x).chunk(3, -1)
            x = x + (q @ k.transpose(1, 2) / WIDTH**0.5 + mask.to(x)).softmax(-1) @ v
        return self.head(x)  # type: ignore[no-any-return]


def own(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits = model(batch["text"])[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), batch["text"][:, 1:].flatten())


@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen tables"])
@pytest.mark.parametrize("places", [False, True], ids=["no places", "places"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("examples", [1, 2])
def test_the_last_token_is_found_by_what_the_loss_says(examples: int, tied: bool, places: bool, frozen: bool) -> None:
    task = lg.Task.of_step(Causal(tied=tied, places=places, frozen=frozen), own, {"text": lg.Text(LENGTH, VOCABULARY)})
    texts = torch.randint(VOCABULARY, (examples, LENGTH), generator=torch.Generator().manual_seed(examples))
    update = lg.clients.client_update(task, FedSGD(), {"text": texts}, Draws(0))
    found = lg.attack(task, update, knows=lg.Knowledge(example_count=examples, local_training=FedSGD()))
    assert found.tokens is not None, found.message
    assert found.tokens.order is not None, found.message
    assert sorted(found.tokens.order.tolist()) == sorted(texts.tolist())


@pytest.mark.parametrize("client", [FedSGD(), lg.clients.FedAvg(epochs=2)], ids=repr)
def test_a_last_token_whose_row_stands_still_is_not_said_to_be_absent(client: lg.clients.Protocol) -> None:
    """Behind several steps, or more tokens than a layer shows, rows are all that is read."""
    task = lg.Task.of_step(Causal(tied=False, places=True, frozen=False), own, {"text": lg.Text(LENGTH, VOCABULARY)})
    texts = torch.arange(6 * LENGTH).view(6, LENGTH)
    update = lg.clients.client_update(task, client, {"text": texts}, Draws(0))
    knows = lg.Knowledge(example_count=6, local_training=client, defense=lg.defenses.NoDefense())
    found = lg.attack(task, update, knows=knows)
    assert found.tokens is not None, found.message
    read = set(found.tokens.counts.sum(0).nonzero().flatten().tolist())
    assert read == set(texts[:, :-1].flatten().tolist())
    assert not found.tokens.whole
    assert "others may" in found.message


def test_a_target_that_may_ask_for_nothing_says_nothing_of_other_tokens() -> None:
    """Fine-tuning leaves the places of a question out of the loss; here those of the end."""
    task = lg.Task.of_step(
        Causal(tied=False, places=True, frozen=False),
        lambda m, b: F.cross_entropy(m(b["text"]).flatten(0, 1), b["next"].flatten()),
        {"text": lg.Text(LENGTH, VOCABULARY), "next": lg.NextToken(VOCABULARY, LENGTH)},
    )
    text = torch.arange(LENGTH)[None]
    target = torch.where(torch.arange(LENGTH) < 4, text + 1, -100)
    update = lg.clients.client_update(task, FedSGD(), {"text": text, "next": target}, Draws(0))
    knows = lg.Knowledge(example_count=1, local_training=FedSGD(), defense=lg.defenses.NoDefense())
    found = lg.attack(task, update, knows=knows)
    assert found.tokens is not None, found.message
    assert set(found.tokens.counts.sum(0).nonzero().flatten().tolist()) == {0, 1, 2, 3}
    assert not found.tokens.whole


class Translator(nn.Module):
    """An encoder and a head of each place, with one table for both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.mix = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.out.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        q, k, v = self.mix(x).chunk(3, -1)
        return self.out(x + (q @ k.transpose(1, 2) / WIDTH**0.5).softmax(-1) @ v)  # type: ignore[no-any-return]


def test_where_no_target_is_known_tokens_are_named_by_a_span() -> None:
    """The loss looks at targets one after the other, as those of everyday code do."""
    task = lg.Task.of_step(
        Translator(),
        lambda m, b: F.cross_entropy(m(b["text"]).flatten(0, 1), b["next"].view(-1)),
        {"text": lg.Text(LENGTH, VOCABULARY), "next": lg.NextToken(VOCABULARY, LENGTH)},
    )
    text = torch.tensor([[3, 19, 3, 0, 22, 11, 13]])
    update = lg.clients.client_update(task, FedSGD(), {"text": text, "next": 2 * text}, Draws(0))
    knows = lg.Knowledge(example_count=1, local_training=FedSGD(), defense=lg.defenses.NoDefense())
    found = lg.attack(task, update, knows=knows)
    assert found.tokens is not None, found.message
    assert set(found.tokens.counts.sum(0).nonzero().flatten().tolist()) == set(text.flatten().tolist())
    assert found.status is lg.Status.CONVERGED
    assert not found.tokens.whole


def test_tokens_are_proved_without_their_order_where_that_changes_nothing() -> None:
    net = Causal(tied=False, places=True, frozen=True)
    assert net.places is not None
    net.places.data *= 3e-5
    net.places.requires_grad_(False)

    def pooled(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        x = model.words(batch["text"]) + model.places  # type: ignore[operator]
        return F.cross_entropy(model.mixes[0](x).tanh().mean(1), batch["y"])  # type: ignore[index,operator]

    task = lg.Task.of_step(net, pooled, {"text": lg.Text(LENGTH, VOCABULARY), "y": lg.Classes(3 * WIDTH)})
    text = torch.tensor([[3, 19, 3, 0, 22, 11, 13]])
    update = lg.clients.client_update(task, FedSGD(), {"text": text, "y": torch.tensor([1])}, Draws(0))
    knows = lg.Knowledge(
        labels=torch.tensor([1]), example_count=1, local_training=FedSGD(), defense=lg.defenses.NoDefense()
    )
    found = lg.attack(task, update, knows=knows)
    assert found.tokens is not None, found.message
    assert found.tokens.order is None
    assert torch.equal(found.tokens.counts[0], torch.bincount(text[0], minlength=VOCABULARY))


def test_a_vocabulary_as_large_as_a_layer_is_wide_is_tried_whole() -> None:
    """Rows of other tensors move for no token."""
    net = Causal(tied=False, places=True, frozen=True, vocabulary=WIDTH)
    task = lg.Task.of_step(net, own, {"text": lg.Text(LENGTH, WIDTH)})
    text = torch.tensor([[3, 19, 7, 0, 22, 11, 13]])
    update = lg.clients.client_update(task, FedSGD(), {"text": text}, Draws(0))
    found = lg.attack(task, update)
    assert found.tokens is not None
    assert found.tokens.order is not None, found.message
    assert torch.equal(found.tokens.order, text)


TRUTHS = {"Values": torch.tensor([1.3]), "Labels(1)": torch.tensor([[1]]), "Labels(3)": torch.tensor([[1, 0, 1]])}


@pytest.mark.parametrize("name", TRUTHS)
def test_a_target_that_is_no_class_is_not_given_one(name: str) -> None:
    """The class of the largest output was the answer, and no target was searched for."""
    kind, y = {"Values": lg.Values(), "Labels(1)": lg.Labels(1), "Labels(3)": lg.Labels(3)}[name], TRUTHS[name]

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        z, wanted = model(batch["x"]), batch["y"].to(batch["x"].dtype)
        return F.mse_loss(z[:, 0], wanted) if wanted.ndim == 1 else F.binary_cross_entropy_with_logits(z, wanted)

    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(10), nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, y.numel())).eval()
    task = lg.Task.of_step(net, loss, {"x": lg.Numbers(10, 0.0, 1.0), "y": kind})
    batch = {"x": torch.rand(1, 10), "y": y}
    update = lg.clients.client_update(task, FedSGD(), batch, Draws(0))
    knows = lg.Knowledge(example_count=1, defense=lg.defenses.NoDefense())
    found = lg.attack(task, update, knows=knows, budget=lg.Budget(gradient_evaluations=60))
    torch.testing.assert_close(found.parts["x"].float(), batch["x"], atol=1e-3, rtol=0)
    torch.testing.assert_close(found.parts["y"].float(), y.float(), atol=1e-2, rtol=0)


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("name", TRUTHS)
def test_an_example_whose_error_signals_show_is_proved_with_a_target_that_is_no_class(name: str, told: bool) -> None:
    """No target was looked at beside patches, known or not, and so nothing was proved."""
    kind, y = {"Values": lg.Values(), "Labels(1)": lg.Labels(1), "Labels(3)": lg.Labels(3)}[name], TRUTHS[name]

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        z, wanted = model(batch["x"]), batch["y"].to(batch["x"].dtype)
        return F.mse_loss(z[:, 0], wanted) if wanted.ndim == 1 else F.binary_cross_entropy_with_logits(z, wanted)

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, y.numel()))
    task = lg.Task.of_step(net, loss, {"x": lg.Numbers(10, 0.0, 1.0), "y": kind})
    batch = {"x": torch.rand(1, 10), "y": y}
    update = lg.clients.client_update(task, FedSGD(), batch, Draws(0))
    for labels in (y.float(), y.float() - 0.5) if told else (None,):
        knows = lg.Knowledge(labels=labels, example_count=1, local_training=FedSGD(), defense=lg.defenses.NoDefense())
        found = lg.attack(task, update, knows=knows, using=PatchRead())
        proved = labels is None or bool((labels == y).all())
        assert (found.status is lg.Status.EXACT) == proved, found.message
        assert found.labels is not None
        torch.testing.assert_close(found.inputs.flatten(), batch["x"].flatten(), atol=1e-4, rtol=0)
        assert not proved or torch.allclose(found.labels.float(), y.float(), atol=1e-3)


class Single(nn.Module):
    """A regression that runs in float32 alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(10, 32), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError(x.dtype)
        return self.last(self.first(x).tanh())  # type: ignore[no-any-return]


def test_a_network_that_cannot_run_for_a_target_loses_no_read_of_its_inputs() -> None:
    torch.manual_seed(0)
    parts = {"x": lg.Numbers(10, 0.0, 1.0), "y": lg.Values()}
    task = lg.Task.of_step(Single(), lambda m, b: F.mse_loss(m(b["x"])[:, 0], b["y"]), parts)
    batch = {"x": torch.rand(1, 10), "y": torch.tensor([1.3])}
    update = lg.clients.client_update(task, FedSGD(), batch, Draws(0))
    knows = lg.Knowledge(example_count=1, local_training=FedSGD(), defense=lg.defenses.NoDefense())
    found = lg.attack(task, update, knows=knows, using=LinearRead())
    assert found.inputs is not None, found.message
    torch.testing.assert_close(found.inputs.flatten().float(), batch["x"].flatten(), atol=1e-4, rtol=0)
