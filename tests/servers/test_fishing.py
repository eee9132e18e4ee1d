"""One class (or one example of it) alone in a batch's gradient, and what that gives away."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cases import SPEC, batch, task
from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedAvg, FedSGD, SecureAggregation, client_update, example_gradients
from leakgauge.compute import Budget
from leakgauge.defenses import Clip, noise
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.metrics.metric import PSNR
from leakgauge.observation import Knowledge, Observation, Reconstruction, Status
from leakgauge.servers.imprint import ClassFishing
from leakgauge.task import Batch, Mode, Task, nll_raw
from leakgauge.tensors import inner, squared_norm

TARGET = 2
LABELS = torch.tensor([0, 1, TARGET, 3, 4, 0, 1, 3])


def eight(labels: torch.Tensor = LABELS, dtype: torch.dtype = torch.float64) -> Batch:
    return Batch(batch(8, dtype).inputs, labels)


def crafted(model: str, server=None, dtype: torch.dtype = torch.float64):
    server = server or ClassFishing(target=TARGET)
    return server.broadcast(task(model, dtype=dtype), torch.Generator().manual_seed(0))


def read(sent, b: Batch, *, protocol=None, defense=None, knows_training: bool = True, budget: int = 50):
    protocol = protocol or FedSGD()
    update = client_update(sent.task, protocol, b, Draws(0), defense=defense)
    known = Knowledge(
        example_count=len(b),
        local_training=protocol if knows_training else None,
        defense=defense,
        crafting=sent.crafting,
    )
    observation = Observation(sent.task, update, known)
    return sent.crafting.reconstruct(
        observation, torch.Generator().manual_seed(0), budget=Budget(gradient_evaluations=budget)
    )


def psnr(found: Reconstruction, x: torch.Tensor) -> float:
    return float(PSNR()(found.inputs.double(), x.double()))


def share(t: Task, b: Batch, example: int) -> tuple[float, float]:
    """Cosine of the batch's gradient below the classifier with one example's own, and the ratio of their lengths."""
    per = example_gradients(t, t.parameters, t.buffers, b, None)
    body = list(per)[:-2]
    whole, own = {k: per[k].mean(0) for k in body}, {k: per[k][example] / len(b) for k in body}
    lengths = squared_norm(whole).sqrt(), squared_norm(own).sqrt()
    return float(inner(whole, own) / (lengths[0] * lengths[1])), float(lengths[1] / lengths[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("model", ["smooth", "relu", "normed", "flat"])
def test_the_target_alone_has_a_gradient_below_the_classifier(model: str, dtype: torch.dtype) -> None:
    b = eight(dtype=dtype)
    cosine, ratio = share(crafted(model, dtype=dtype).task, b, 2)
    assert cosine > 1 - 1e-5
    assert ratio == pytest.approx(1, abs=1e-5)
    honest, _ = share(task(model, dtype=dtype), b, 2)
    assert honest < 0.9


def test_the_purified_update_is_the_gradient_of_the_target_in_every_tensor() -> None:
    sent, b = crafted("smooth"), eight()
    update = client_update(sent.task, FedSGD(), b, Draws(0))
    observation = Observation(sent.task, update, Knowledge(example_count=8))
    alone = sent.crafting.purified(observation, 1).update.tensors
    expected = client_update(sent.task, FedSGD(), b.take(torch.tensor([2])), Draws(0)).tensors
    for name, tensor in expected.items():
        assert torch.allclose(alone[name], tensor, rtol=1e-8, atol=1e-12), name


@pytest.mark.parametrize(
    ("protocol", "least"),
    [
        (FedSGD(), 150),
        (FedAvg(lr=0.1), 150),
        (FedAvg(epochs=3, lr=0.1, momentum=0.9), 25),
        (FedAvg(epochs=2, batch_size=4, lr=0.1), 20),
        (SecureAggregation(cohort=4), 150),
    ],
    ids=repr,
)
@pytest.mark.parametrize("knows_training", [True, False])
def test_a_linear_first_layer_gives_the_target_in_closed_form(protocol, least: float, knows_training: bool) -> None:
    """Exact for one gradient, with or without its scale; local steps that see others too blur it."""
    b = eight()
    found = read(crafted("flat"), b, protocol=protocol, knows_training=knows_training)
    assert found.labels.tolist() == [TARGET]
    assert psnr(found, b.inputs[2:3]) > least
    if found.status is Status.EXACT:  # no search: one simulation a label that is tried
        assert found.cost.gradient_evaluations <= b.labels.max() + 1


def test_float32_and_clipping_do_not_blur_it() -> None:
    b = eight(dtype=torch.float32)
    found = read(crafted("flat", dtype=torch.float32), b, defense=Clip(norm=0.1))
    assert found.status is Status.EXACT
    assert psnr(found, b.inputs[2:3]) > 60


def test_matching_finds_the_target_where_it_fails_on_the_honest_batch() -> None:
    b = eight()
    found = read(crafted("smooth"), b, budget=100)
    honest = task("smooth")
    update = client_update(honest, FedSGD(), b, Draws(0))
    known = Knowledge(example_count=8, labels=b.labels)
    budget = Budget(gradient_evaluations=100)
    usual = Auto().reconstruct(Observation(honest, update, known), torch.Generator().manual_seed(0), budget=budget)
    before = float(PSNR()(usual.inputs[2:3].double(), b.inputs[2:3]))
    assert psnr(found, b.inputs[2:3]) > before + 5


@pytest.mark.parametrize("protocol", [FedSGD(), FedAvg(epochs=2, batch_size=4, lr=0.05)], ids=repr)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_examples_of_the_class_are_counted(protocol, count: int) -> None:
    labels = torch.tensor([0, 1, 3, 4, 0, 1, 3, 4])
    labels[:count] = TARGET
    found = read(crafted("smooth"), eight(labels), protocol=protocol, budget=5)
    if count == 0:
        assert found.status is Status.NOT_APPLICABLE
        assert "no example was caught" in found.message
    else:
        assert found.labels.tolist() == [TARGET] * count
        assert "counted" in found.message


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("protocol", [FedAvg(lr=1e-4), FedAvg(epochs=2, batch_size=4, lr=1e-4)], ids=repr)
def test_short_steps_are_counted_in_coarse_types(dtype: torch.dtype, protocol: FedAvg) -> None:
    """The stand-ins' step was lost beside a bias of thousands: nothing to count by, and an OverflowError."""
    labels = torch.tensor([TARGET, TARGET, TARGET, 4, 0, 1, 3, 4])
    found = read(crafted("smooth", dtype=dtype), eight(labels, dtype), protocol=protocol, budget=5)
    assert found.labels.tolist() == [TARGET] * 3
    assert "counted" in found.message


def test_an_unknown_count_is_assumed_to_be_one_and_said_to_be() -> None:
    sent, b = crafted("flat"), eight()
    update = client_update(sent.task, FedSGD(), b, Draws(0), send_example_count=False)
    found = sent.crafting.reconstruct(Observation(sent.task, update, Knowledge()), torch.Generator())
    assert "assumed" in found.message
    assert psnr(found, b.inputs[2:3]) > 150


def test_noise_takes_the_certificate() -> None:
    found = read(crafted("flat"), eight(), defense=noise(relative=0.1))
    assert found.status is not Status.EXACT


def test_what_does_not_fit_is_refused() -> None:
    g = torch.Generator()
    unbiased = Task.of(nn.Sequential(nn.Flatten(), nn.Linear(192, 5, bias=False)), SPEC)
    for server, t, reason in (
        (ClassFishing(), unbiased, "no bias"),
        (ClassFishing(target=5), task("smooth"), "label from 0 to 4"),
        (ClassFishing(), Task.of(task("smooth").module, SPEC, loss=nll_raw), "cross-entropy"),
        (ClassFishing(), Task.of(nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.Tanh()), SPEC), "makes its logits"),
    ):
        with pytest.raises(InputError, match=reason):
            server.broadcast(t, g)
    with pytest.raises(InputError, match="saturation"):
        ClassFishing(saturation=0.0)


def test_a_row_of_zeros_still_catches() -> None:
    t = task("flat")
    blank = t.with_state({"3.weight": torch.zeros_like(t.parameters["3.weight"])})
    sent = ClassFishing(target=TARGET).broadcast(blank, torch.Generator().manual_seed(0))
    b = eight()
    assert psnr(read(sent, b), b.inputs[2:3]) > 150


def test_in_train_mode_the_batch_statistics_let_others_in() -> None:
    """A limit that the docstring states: the shares of a BatchNorm in train mode are not the target's alone."""
    sent = ClassFishing(target=TARGET).broadcast(task("normed", Mode.TRAIN), torch.Generator())
    one = client_update(sent.task, FedSGD(), eight(), Draws(0)).tensors["0.weight"]
    other = batch(8, seed=5).inputs
    other[2] = eight().inputs[2]
    two = client_update(sent.task, FedSGD(), Batch(other, LABELS), Draws(0)).tensors["0.weight"]
    assert float((one - two).norm() / one.norm()) > 0.01
