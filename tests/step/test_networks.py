"""Networks as people bring them: wrapped, in half precision, with checkpointed blocks, packed weights, adapters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import leakgauge as lg
from leakgauge.attacks.labels.strategy import find_classifier
from leakgauge.clients import FedSGD
from leakgauge.draws import Draws
from leakgauge.observation import Observation
from leakgauge.tensors import aligned
from leakgauge.update import Update

SPEC = lg.DataSpec((1, 6, 6), 4)


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 80), nn.ReLU(), nn.Linear(80, 4))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.body, self.reentrant = plain(), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, x, use_reentrant=self.reentrant)  # type: ignore[no-any-return]


class Switched(nn.Module):
    """As Hugging Face's: checkpointing is a switch of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.saves = plain(), True

    def gradient_checkpointing_disable(self) -> None:
        self.saves = False

    def forward(self, x: Tensor) -> Tensor:
        assert not self.saves
        return self.body(x)  # type: ignore[no-any-return]


WAYS: dict[str, Callable[[], nn.Module]] = {
    "data parallel": lambda: nn.DataParallel(plain()),
    "checkpointed": partial(Checkpointed, False),
    "checkpointed, reentrant": partial(Checkpointed, True),
    "switched": Switched,
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("way", WAYS)
def test_a_network_in_wrappings_is_read_as_it_is_without(way: str) -> None:
    task = lg.Task.of(WAYS[way](), SPEC)
    batch = lg.Batch(torch.rand(2, 1, 6, 6), torch.tensor([0, 3]))
    found = lg.attack(task, lg.clients.client_update(task, FedSGD(), batch, Draws(0)))
    assert found.status is lg.Status.EXACT
    x = torch.rand(2, 1, 6, 6, requires_grad=True)
    assert checkpoint(lambda t: t * 2, x, use_reentrant=False).grad_fn is not None  # as it was


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_networks_in_half_precision_are_given_what_they_compute_in(kind: torch.dtype) -> None:
    task = lg.Task.of(plain().to(kind), SPEC)
    batch = lg.Batch(torch.rand(1, 1, 6, 6), torch.tensor([2]))
    update = lg.clients.client_update(task, FedSGD(), batch, Draws(0))
    assert all(t.dtype is kind for t in update.tensors.values())
    found = lg.attack(task, update, budget=lg.Budget(gradient_evaluations=20))
    torch.testing.assert_close(found.inputs.float(), batch.inputs, rtol=0, atol=0.05)


def test_tokens_are_counted_beside_half_precision() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(600, 4), nn.Linear(4, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.out(self.words(ids).mean(1))  # type: ignore[no-any-return]

    task = lg.Task.of_step(
        Words().bfloat16(),
        lambda m, b: F.cross_entropy(m(b["text"]), b["y"]),
        {"text": lg.Text(3, 600), "y": lg.Classes(2)},
    )
    text = torch.tensor([[257, 599, 3]])
    update = lg.clients.client_update(task, FedSGD(), {"text": text, "y": torch.tensor([1])}, Draws(0))
    assert update.tensors["words.weight"].abs().sum(1).nonzero().flatten().tolist() == [3, 257, 599]
    assert find_classifier(Observation(task, update, lg.Knowledge(example_count=1))) is not None


def test_a_hook_that_asks_for_gradients_of_inputs_does_no_harm() -> None:
    """As fine-tuning with checkpointed blocks registers it on the embedding."""
    net = plain()
    net[1].register_forward_hook(lambda _module, _given, out: out.requires_grad_(True))
    task = lg.Task.of_step(
        net, lambda m, b: F.cross_entropy(m(b["x"]), b["y"]), {"x": lg.Image((1, 6, 6)), "y": lg.Classes(4)}
    )
    values = {"x": torch.rand(1, 1, 6, 6), "y": torch.tensor([2])}
    assert lg.attack(task, lg.clients.client_update(task, FedSGD(), values, Draws(0))).status is lg.Status.EXACT


def test_packed_weights_are_refused_with_the_way_out() -> None:
    net = plain()
    net[1].weight = nn.Parameter(torch.zeros(80, 18, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(lg.InputError, match=r"'1.weight' is uint8.*load the base in bfloat16"):
        lg.Task.of(net, SPEC)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_program_of_torchscript_is_refused_and_a_part_that_is_one_is_not() -> None:
    with pytest.raises(lg.InputError, match=r"TorchScript program.*give what it was made of"):
        lg.Task.of(torch.jit.script(plain()), SPEC)
    net = plain()
    net[1] = torch.jit.script(net[1])
    assert lg.Task.of(net, SPEC).parameters.keys() == lg.Task.of(plain(), SPEC).parameters.keys()


ADAPTED = [f"base_model.model.{part}.lora_{side}.default.weight" for part in ("q", "v") for side in "AB"]


@pytest.mark.parametrize("before", ["", "module.", "module._orig_mod."])
@pytest.mark.parametrize("file", [True, False], ids=["as saved", "as trained"])
def test_adapters_and_wrapped_names_find_their_parameters(before: str, file: bool) -> None:
    sent = {
        before + (n.replace(".default", "") if file else n): torch.full((1,), float(i)) for i, n in enumerate(ADAPTED)
    }
    found = aligned(ADAPTED, sent)
    assert {name: float(t) for name, t in found.items()} == {n: float(i) for i, n in enumerate(ADAPTED)}
    assert set(aligned(ADAPTED, {"other": torch.zeros(1)})) == {"other"}


def test_an_update_of_a_wrapped_network_is_attacked_under_its_names() -> None:
    task = lg.Task.of(plain(), SPEC)
    batch = lg.Batch(torch.rand(1, 1, 6, 6), torch.tensor([1]))
    update = lg.clients.client_update(task, FedSGD(), batch, Draws(0))
    wrapped = Update({f"module.{k}": v for k, v in update.tensors.items()}, update.header)
    assert lg.attack(task, wrapped).status is lg.Status.EXACT
