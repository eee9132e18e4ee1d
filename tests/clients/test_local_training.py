"""Local training against torch's own optimisers in a loop as people write it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.func import jacrev

from cases import SPEC, batch, task
from leakgauge.attacks.closed_form import LinearRead
from leakgauge.clients import SGD, Adam, FedAvg, LocalTraining, adamw, client_update, mean_gradient
from leakgauge.clients.local_training import CrossEntropy
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.observation import Knowledge, Observation, Status
from leakgauge.task import Batch, Mode
from leakgauge.tensors import Tensors

ADAM = {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-3}


def torch_loop(protocol: LocalTraining, optimiser: type, options: dict, mode: Mode, n: int) -> tuple[Tensors, Tensors]:
    """A training loop with `torch.optim`; what moved, and the buffers."""
    t, b = task("normed", mode), batch(n)
    net = copy.deepcopy(t.module).train(mode is Mode.TRAIN)
    start = {k: v.detach().clone() for k, v in net.named_parameters()}
    steps = optimiser(net.parameters(), **options)
    an_epoch = len(protocol.order(n, Draws(3))) // protocol.epochs
    for i, index in enumerate(protocol.order(n, Draws(3))):
        loss = nn.functional.cross_entropy(net(SPEC.normalise(b.inputs[index])), b.labels[index])
        (loss / protocol.accumulate).backward()
        last = i % an_epoch + 1 == an_epoch
        if (i % an_epoch + 1) % protocol.accumulate and not last:
            continue
        for name, p in net.named_parameters():
            p.grad += protocol.proximal * (p.detach() - start[name])
        if protocol.clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), protocol.clip)
        steps.step()
        steps.zero_grad()
    return {k: v.detach() - start[k] for k, v in net.named_parameters()}, dict(net.named_buffers())


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(
    ("protocol", "optimiser", "options"),
    [
        (LocalTraining(optimiser=Adam(**ADAM), epochs=3, batch_size=2), torch.optim.Adam, ADAM),
        (
            LocalTraining(optimiser=Adam(weight_decay=0.1, **ADAM), batch_size=2),
            torch.optim.Adam,
            {"weight_decay": 0.1, **ADAM},
        ),
        (
            LocalTraining(optimiser=adamw(weight_decay=0.3, **ADAM), epochs=2, batch_size=3, shuffle=True),
            torch.optim.AdamW,
            {"weight_decay": 0.3, **ADAM},
        ),
        (
            LocalTraining(optimiser=SGD(lr=0.1, momentum=0.9), epochs=2, batch_size=2, accumulate=2, clip=0.05),
            torch.optim.SGD,
            {"lr": 0.1, "momentum": 0.9},
        ),
        (
            LocalTraining(optimiser=SGD(lr=0.1), epochs=3, batch_size=4, proximal=0.7, drop_last=True),
            torch.optim.SGD,
            {"lr": 0.1},
        ),
    ],
    ids=lambda v: repr(v) if isinstance(v, LocalTraining) else "",
)
def test_it_is_the_loop_that_people_write(protocol: LocalTraining, optimiser: type, options: dict, mode: Mode) -> None:
    moved, buffers = torch_loop(
        protocol, optimiser, options, mode, 6 if protocol.drop_last else 5 + (mode is Mode.EVAL)
    )
    n = 6 if protocol.drop_last else 5 + (mode is Mode.EVAL)
    sent = client_update(task("normed", mode), protocol, batch(n), Draws(3), send_buffers=True)
    assert all(torch.allclose(sent.tensors[k], v, rtol=1e-8, atol=1e-12) for k, v in moved.items())
    assert sent.buffers is not None
    assert all(torch.allclose(sent.buffers[k], v) for k, v in buffers.items())


def test_drop_last_leaves_examples_out() -> None:
    protocol = LocalTraining(batch_size=2, drop_last=True)
    assert [i.tolist() for i in protocol.order(5, Draws(0))] == [[0, 1], [2, 3]]
    assert protocol.steps(5) == 2
    with pytest.raises(InputError, match="drop_last leaves 1 examples no step"):
        protocol.steps(1)


def test_fedavg_is_local_training_with_sgd() -> None:
    flat = FedAvg(epochs=2, batch_size=2, lr=0.1, momentum=0.5, weight_decay=0.1)
    deep = LocalTraining(optimiser=SGD(lr=0.1, momentum=0.5, weight_decay=0.1), epochs=2, batch_size=2)
    one, two = (client_update(task(), p, batch(), Draws(0)).tensors for p in (flat, deep))
    assert all(torch.equal(one[k], two[k]) for k in one)


@pytest.mark.parametrize("protocol", [LocalTraining(optimiser=Adam()), LocalTraining(clip=0.1)], ids=repr)
def test_it_has_a_derivative_where_a_gradient_is_zero(protocol: LocalTraining) -> None:
    """A unit that no example drives has a zero gradient, where a root has no derivative."""
    t, b = task("flat"), batch(1)

    def sent(x: torch.Tensor) -> torch.Tensor:
        return client_update_of(x)["1.weight"].sum()

    def client_update_of(x: torch.Tensor) -> Tensors:
        return protocol.local_training(t, Batch(x, b.labels), Draws(0), mean_gradient)[0]

    assert any((v == 0).any() for v in client_update_of(b.inputs).values())
    assert bool(torch.isfinite(jacrev(sent)(b.inputs)).all())


@pytest.mark.parametrize("named", [True, False])
def test_the_closed_form_certifies_nothing_of_an_optimiser_that_rescales_entries(named: bool) -> None:
    """Signs of an outer product are an outer product: after one step of Adam the read explains all and is wrong."""
    t, b = task("flat"), batch(1)
    protocol = LocalTraining(optimiser=Adam(lr=0.01))
    knows = Knowledge(example_count=1, local_training=protocol if named else None)
    seen = Observation(t, client_update(t, protocol, b, Draws(0)), knows)
    found = LinearRead().reconstruct(seen, torch.Generator().manual_seed(0))
    assert found.status is (Status.NOT_APPLICABLE if named else Status.CONVERGED)


def test_a_weight_below_zero_among_a_thousand_classes_is_said_with_the_hint() -> None:
    """The list filled the whole message, and the hint was cut off."""
    with pytest.raises(InputError, match=r"^weights: is .*; give one a class, each ≥ 0$"):
        CrossEntropy(weights=(1.0123456,) * 999 + (-1.0,))
