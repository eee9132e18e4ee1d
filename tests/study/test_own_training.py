"""Clients as people train them: losses, half precision, tokens, tied weights and several inputs are explained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

import leakgauge as lg
from leakgauge.clients.local_training import CrossEntropy
from leakgauge.data import InMemory
from leakgauge.errors import InputError
from leakgauge.models import of_parts
from leakgauge.study.plan import resolve_plan
from leakgauge.update import Update

G = torch.Generator().manual_seed(0)
PIXELS = torch.rand(24, 3, 8, 8, generator=G)
LABELS = torch.arange(24) % 4
WEIGHTS = (0.5, 2.0, 1.0, 3.0)


def focal(logits: Tensor, labels: Tensor) -> Tensor:
    """A loss of somebody's own."""
    each = F.cross_entropy(logits, labels, reduction="none")
    return ((1 - (-each).exp()) ** 2 * each).mean()


def bce(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.BCEWithLogitsLoss(pos_weight=torch.tensor(WEIGHTS))(logits, F.one_hot(labels, 4).float())


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Tanh(), nn.Linear(16, 4))


class Words(nn.Module):
    """Integer tokens, padding, and an output layer that is tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.place = nn.Embedding(30, 8, padding_idx=0), nn.Parameter(torch.randn(5, 8))
        self.mix = nn.Linear(8, 8)
        self.out = nn.Linear(8, 30, bias=False)
        self.out.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids.long()) + self.place
        return self.out(torch.tanh(self.mix(x)).mean(1))


class Both(nn.Module):
    """A picture and a record beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.see, self.read, self.head = nn.Conv2d(3, 4, 3, 2), nn.Linear(5, 4), nn.Linear(40, 4)

    def forward(self, picture: Tensor, record: Tensor) -> Tensor:
        return self.head(torch.cat([torch.tanh(self.see(picture)).flatten(1), torch.tanh(self.read(record))], 1))


TOKENS = torch.randint(0, 30, (24, 5), generator=G)
RECORDS = torch.rand(24, 5, generator=G)


def trained(
    net: nn.Module, inputs: tuple[Tensor, ...], labels: Tensor, loss: Callable[..., Tensor], *, half: bool = False
) -> tuple[dict[str, Tensor], Update]:
    """Two steps of two examples in torch's own loop."""
    before = {k: v.clone() for k, v in net.state_dict().items()}
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for i in (0, 2):
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if half else nullcontext():
            value = loss(net(*(x[i : i + 2] for x in inputs)), labels[i : i + 2])
        value.backward()
        optimiser.step()
    update = Update.between(before, net.state_dict(), example_count=4)
    net.load_state_dict(before)
    return before, update


def explained(folder: Path, net: nn.Module, examples: InMemory, update: Update, **plan: Any) -> Any:
    update.save(folder / "u.safetensors")
    data = {"source": examples, "batch": 4, "batches": 1}
    clients = [{"fedavg": {"lr": 0.1, "batch_size": 2}}]
    told = {"model": net, "data": data, "clients": clients, "update": str(folder / "u.safetensors"), "gallery": 4}
    return resolve_plan(told | {"mode": "train"} | plan).explained()


LOSSES: dict[str, tuple[Callable[..., Tensor], Any]] = {
    "label smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1), {"cross-entropy": {"label_smoothing": 0.1}}),
    "weighted classes": (
        nn.CrossEntropyLoss(weight=torch.tensor(WEIGHTS)),
        {"cross-entropy": {"weights": list(WEIGHTS)}},
    ),
    "both": (
        nn.CrossEntropyLoss(weight=torch.tensor(WEIGHTS), label_smoothing=0.2),
        {"cross-entropy": {"weights": list(WEIGHTS), "label_smoothing": 0.2}},
    ),
    "each class on its own": (bce, {"bce-with-logits": {"positive": list(WEIGHTS)}}),
    "one's own, by name": (focal, "study.test_own_training:focal"),
    "one's own, as a function": (focal, focal),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_the_plan_names_explains_the_update(tmp_path: Path, name: str) -> None:
    loss, told = LOSSES[name]
    net = mlp()
    _, update = trained(net, (PIXELS,), LABELS, loss)
    found = explained(tmp_path, net, InMemory(inputs=PIXELS, labels=LABELS), update, loss=told)
    assert found.holds
    assert found.fit.share > 0.999
    plain = explained(tmp_path, net, InMemory(inputs=PIXELS, labels=LABELS), update)
    assert plain.fit.share < found.fit.share


def test_a_loss_that_the_plan_forgot_is_named(tmp_path: Path) -> None:
    net = mlp()
    _, update = trained(net, (PIXELS,), LABELS, bce)
    strange = explained(tmp_path, net, InMemory(inputs=PIXELS, labels=LABELS), update)
    assert not strange.holds
    _, update = trained(net, (PIXELS,), LABELS, one_by_one)
    found = explained(tmp_path, net, InMemory(inputs=PIXELS, labels=LABELS), update)
    assert not found.holds
    assert (found.causes[0].key, found.causes[0].change) == ("loss", "bce-with-logits")


def one_by_one(logits: Tensor, labels: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, F.one_hot(labels, 4).float())


def test_mixed_precision_is_explained_as_far_as_its_rounding_goes(tmp_path: Path) -> None:
    net = mlp()
    _, update = trained(net, (PIXELS,), LABELS, F.cross_entropy, half=True)
    found = explained(tmp_path, net, InMemory(inputs=PIXELS, labels=LABELS), update)
    assert found.holds
    assert 0.99 < found.fit.share < 0.99999


def forms() -> Iterator[tuple[str, nn.Module, InMemory, tuple[Tensor, ...], nn.Module]]:
    words = Words()
    tokens = InMemory(inputs=TOKENS.float(), labels=LABELS, count=30, low=0.0, high=29.0)
    yield "tokens and tied weights", words, tokens, (TOKENS,), words
    both, flat = Both(), torch.cat([PIXELS.flatten(1), RECORDS], 1)
    yield "two inputs", both, InMemory(inputs=flat, labels=LABELS), (PIXELS, RECORDS), of_parts(both, (3, 8, 8), (5,))


@pytest.mark.parametrize("form", list(forms()), ids=lambda f: f[0])
@pytest.mark.parametrize("wrapped", ["", "module."])
def test_networks_of_any_form_are_explained(tmp_path: Path, form: tuple[Any, ...], wrapped: str) -> None:
    _, net, examples, inputs, audited = form
    before, update = trained(net, inputs, LABELS, F.cross_entropy)
    sent = Update({wrapped + k: v for k, v in update.tensors.items()}, update.header)
    found = explained(tmp_path, audited, examples, sent)
    assert found.holds
    assert found.fit.share > 0.999
    kept = {k: v for k, v in before.items() if k != "out.weight"}  # as safetensors keeps tied weights once
    save_file(kept, tmp_path / "w.safetensors")
    if not wrapped and "out.weight" in before:
        model = {"study.test_own_training:Words": {"weights": str(tmp_path / "w.safetensors")}}
        assert explained(tmp_path, model, examples, sent).fit.share > 0.999


def test_one_tied_tensor_that_moved_two_ways_is_refused(tmp_path: Path) -> None:
    net = Words()
    _, update = trained(net, (TOKENS,), LABELS, F.cross_entropy)
    split = Update(update.tensors | {"out.weight": 2 * update.tensors["out.weight"]}, update.header)
    examples = InMemory(inputs=TOKENS.float(), labels=LABELS, count=30, low=0.0, high=29.0)
    with pytest.raises(InputError, match=r"update: moves out.weight otherwise than words.weight"):
        explained(tmp_path, net, examples, split)


def test_parts_are_cut_out_in_order_and_parameters_keep_their_names() -> None:
    net = Both()
    made = of_parts(net, (3, 8, 8), (5,))
    assert made.state_dict().keys() == net.state_dict().keys()
    flat = torch.cat([PIXELS.flatten(1), RECORDS], 1)
    assert torch.equal(made(flat), net(PIXELS, RECORDS))
    with pytest.raises(InputError, match="shapes: are"):
        of_parts(net)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("cross-entropi", "loss: unknown name 'cross-entropi'"),
        ({"cross-entropy": {"label_smoothing": 2}}, r"loss\.cross-entropy\.label_smoothing: is 2.0; give a number"),
        ({"cross-entropy": {"weights": [1.0]}}, "has 1 values for 4 outputs; give one an output"),
        ({"cross-entropy": {"smoothing": 0.1}}, "unknown parameter 'smoothing'; did you mean 'label_smoothing'"),
        (lambda logits, labels: F.cross_entropy(logits, labels, reduction="none"), "loss: is not one number"),
    ],
)
def test_a_loss_that_cannot_be_is_one_line(loss: Any, words: str) -> None:
    examples = InMemory(inputs=PIXELS, labels=LABELS)
    with pytest.raises(InputError, match=words):
        lg.audit(mlp(), examples, batches=1, attacks=["closed-form"], loss=loss, gallery=4)


def test_two_functions_of_one_name_are_two_plans() -> None:
    """Results with one loss must not be taken for those with another."""

    def scaled(by: float) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda logits, labels: by * F.cross_entropy(logits, labels)

    model = mlp()

    def digest(loss: Any, identity: str | None = "mine") -> str:
        data = {"source": InMemory(inputs=PIXELS, labels=LABELS), "batches": 1}
        made = resolve_plan({"model": model, "data": data, "loss": loss})
        return replace(made, keys=made.keys.model_copy(update={"identity": identity})).digest

    assert digest(scaled(1.0), None) != digest(scaled(1.0), None), "a plan with it has a folder of its own"
    assert digest(CrossEntropy(label_smoothing=0.1)) == digest(CrossEntropy(label_smoothing=0.1))
    assert digest(CrossEntropy(label_smoothing=0.1)) != digest(CrossEntropy(label_smoothing=0.2))
