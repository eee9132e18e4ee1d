"""Every refusal of tasks, parts, losses and adapters names a way out, and that way works."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leakgauge as lg
from leakgauge.errors import InputError
from leakgauge.step import losses
from leakgauge.update import Update

IMAGE = {"x": lg.Image((1, 4, 4)), "y": lg.Classes(3)}


def net(outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, outputs))


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def step(module: nn.Module | None = None, of: Any = loss, parts: Any = None, **more: Any) -> lg.Task:
    return lg.Task.of_step(module or net(), of, parts or IMAGE, **more)


def sent(values: Any) -> Any:
    return lg.clients.client_update(step(), lg.clients.FedSGD(), values, lg.Draws(0))


X, Y = torch.rand(2, 1, 4, 4), torch.tensor([0, 2])
OUTSIDE = net()


def frozen(*, learns: bool) -> nn.Module:
    made = net()
    made[1].requires_grad_(learns)  # type: ignore[index]
    return made


def lazy(*, called: bool) -> nn.Module:
    made = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    if called:
        made(X)
    return made


def script() -> nn.Module:
    warnings.simplefilter("ignore")
    return torch.jit.trace(net(), X)  # type: ignore[no-any-return]


def packed(kind: torch.dtype) -> nn.Module:
    made = net()
    made.base = nn.Parameter(torch.zeros(2, 2).to(kind), requires_grad=False)  # type: ignore[assignment]
    return made


class Answers(nn.Module):
    """Answers with anything."""

    def __init__(self, way: Callable[[Tensor], Any], module: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.way = module or net(), way

    def forward(self, x: Tensor) -> Any:
        return self.way(self.body(x))


class Two(nn.Module):
    """A scan and a table."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(18, 3)

    def forward(self, scan: Tensor, row: Tensor) -> Tensor:
        return self.body(torch.cat([scan.flatten(1), row], 1))  # type: ignore[no-any-return]


def of_zeros(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """A step that some batches cannot take."""
    if bool(batch["y"].any()):
        raise ValueError("only class 0")
    return loss(model, batch)


def both(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["x"], batch["row"]), batch["y"])


def masks(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return losses.places(model(batch["x"]), batch["y"])


def peft(*, others: bool) -> Any:
    """An update under the names of an adapter's file."""
    task = step()
    tensors = sent({"x": X, "y": Y}).tensors
    renamed = {("base.lora_" if others else "base_model.model.") + k: v for k, v in tensors.items()}
    return lg.attack(task, Update(renamed if others else tensors, sent({"x": X, "y": Y}).header))


SPEC, CONV = lg.DataSpec((1, 4, 4), 3), nn.Conv2d(1, 3, 1)
WAYS: dict[str, tuple[Callable[[], Any], str, Callable[[], Any]]] = {
    "mode": (lambda: step(mode="training"), "give eval or train", lambda: step(mode="train")),
    "nothing is trained": (
        lambda: step(frozen(learns=False)),
        "a model that learns",
        lambda: step(frozen(learns=True)),
    ),
    "TorchScript": (lambda: step(script()), "what it was made of", lambda: step(net())),
    "lazy": (lambda: step(lazy(called=False)), "call it once", lambda: step(lazy(called=True))),
    "packed": (lambda: step(packed(torch.int8)), "in bfloat16 or float32", lambda: step(packed(torch.float32))),
    "no tensor": (
        lambda: step(Answers(lambda z: {"logits": z})),
        "of the model's answer a tensor",
        lambda: step(Answers(lambda z: {"logits": z}), lambda m, b: F.cross_entropy(m(b["x"])["logits"], b["y"])),
    ),
    "no logits": (
        lambda: lg.Task.of(Answers(lambda z: z.sum()), SPEC),
        "a module that returns its logits",
        lambda: lg.Task.of(Answers(lambda z: (z, None)), SPEC),
    ),
    "too few outputs": (lambda: lg.Task.of(net(2), SPEC), "as many outputs", lambda: lg.Task.of(net(3), SPEC)),
    "masks": (
        lambda: lg.Task.of(CONV, SPEC),
        "leakgauge.Task.of_step",
        lambda: step(CONV, masks, {"x": lg.Image((1, 4, 4)), "y": lg.Mask(3, (4, 4))}),
    ),
    "two inputs": (
        lambda: lg.Task.of(Two(), SPEC),
        "leakgauge.Task.of_step",
        lambda: step(Two(), both, {**IMAGE, "row": lg.Numbers(2)}),
    ),
    "channels": (
        lambda: lg.Task.of(nn.Sequential(nn.Conv2d(3, 3, 4), nn.Flatten()), SPEC),
        "data.channels: 3",
        lambda: lg.Task.of(nn.Sequential(nn.Conv2d(3, 3, 4), nn.Flatten()), lg.DataSpec((3, 4, 4), 3)),
    ),
    "loss of labels": (
        lambda: lg.Task.of(net(), SPEC, loss=lambda z: z.sum()),  # type: ignore[arg-type,misc]
        "of logits [n, outputs] and labels [n]",
        lambda: lg.Task.of(net(), SPEC, loss=lambda z, y: F.cross_entropy(z, y)),
    ),
    "loss an example": (
        lambda: lg.Task.of(net(), SPEC, loss=nn.CrossEntropyLoss(reduction="none")),
        "return the mean",
        lambda: lg.Task.of(net(), SPEC, loss=nn.CrossEntropyLoss()),
    ),
    "step an example": (
        lambda: step(of=lambda m, b: m(b["x"]).sum(1)),
        "return the mean",
        lambda: step(of=lambda m, b: m(b["x"]).sum(1).mean()),
    ),
    "a model from outside": (
        lambda: step(of=lambda _, b: F.cross_entropy(OUTSIDE(b["x"]), b["y"])),
        "call the model that the loss is given",
        step,
    ),
    "detached": (lambda: step(of=lambda m, b: loss(m, b).detach()), "detach nothing", step),
    "another name": (lambda: step(of=lambda m, b: m(b["image"]).sum()), "takes the parts by name", step),
    "made-up parts": (
        lambda: step(of=of_zeros),
        "a probe that makes a batch",
        lambda: step(
            of=of_zeros,
            probe=lambda n, g: {"x": torch.rand(n, 1, 4, 4, generator=g), "y": torch.zeros(n, dtype=torch.long)},
        ),
    ),
    "a part's kind": (lambda: step(parts={"x": (1, 4, 4)}), "leakgauge.Image", step),
    "no input": (
        lambda: step(parts={"y": lg.Classes(3)}),
        "name what the network is given",
        lambda: step(parts=IMAGE),
    ),
    "a part is missing": (lambda: sent({"x": X}), "give x, y", lambda: sent({"x": X, "y": Y})),
    "a part too many": (lambda: sent({"x": X, "y": Y, "z": Y}), "give x, y", lambda: sent({"x": X, "y": Y})),
    "no mapping": (lambda: sent(X), "a dict, tuple or dataclass", lambda: sent((X, Y))),
    "no tensor in a part": (lambda: sent({"x": X, "y": [0, 2]}), "give a tensor", lambda: sent({"x": X, "y": Y})),
    "another shape": (lambda: sent({"x": X[:, 0], "y": Y}), "(2, 1, 4, 4)", lambda: sent({"x": X, "y": Y})),
    "not finite": (lambda: sent({"x": X / 0, "y": Y}), "clean the data", lambda: sent({"x": X, "y": Y})),
    "a class too high": (lambda: sent({"x": X, "y": Y + 1}), "from 0 to 2", lambda: sent({"x": X, "y": Y})),
    "a picture's shape": (lambda: lg.Image((4, 4)), "channels, height, width", lambda: lg.Image((1, 4, 4))),
    "a text's length": (lambda: lg.Text(0, 9), "a positive length", lambda: lg.Text(1, 9)),
    "padding": (lambda: lg.Text(3, 9, padding=9), "one of the tokens", lambda: lg.Text(3, 9, padding=8)),
    "no numbers": (lambda: lg.Numbers(0), "a positive count", lambda: lg.Numbers(1)),
    "ranges": (lambda: lg.Numbers(3, low=(0.0, 1.0)), "one each", lambda: lg.Numbers(3, low=(0.0, 0.5, 0.0))),
    "a range": (lambda: lg.Numbers(1, 3, 2), "low and high, in this order", lambda: lg.Numbers(1, 2, 3)),
    "categories": (lambda: lg.Categories((1, 2)), "at least two", lambda: lg.Categories((2, 2))),
    "no labels": (lambda: lg.Labels(0), "positive numbers", lambda: lg.Labels(1)),
    "values": (lambda: lg.Values(low=2, high=1), "give low and high", lambda: lg.Values(low=1, high=2)),
    "times": (lambda: lg.TimeToEvent(0), "a positive longest time", lambda: lg.TimeToEvent(1)),
    "adapters": (
        lambda: peft(others=True),
        "audit it with the model that made it",
        lambda: peft(others=False),
    ),
}


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.filterwarnings("ignore")
def test_a_refusal_names_a_way_out_that_works(name: str) -> None:
    refused, words, way = WAYS[name]
    with pytest.raises(InputError) as told:
        refused()
    assert words in str(told.value), str(told.value)
    assert "\n" not in str(told.value)
    assert "  " not in str(told.value), "a hint with a gap"
    assert way() is not None
