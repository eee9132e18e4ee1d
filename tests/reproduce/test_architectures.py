"""Architectures that a dishonest server designed: they run like the honest model, and leak exactly what they claim."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from reproduce.inspection.architectures import (
    CouplingBlock,
    InputSkip,
    ReversibleNetwork,
    RoutedRead,
    SubModelPerExample,
    places,
)
from torch import Tensor, nn

from cases import SPEC, task
from leakgauge.clients import FedAvg, FedSGD, Protocol, client_update
from leakgauge.defenses import ClipExamples, Defense, NoDefense, noise
from leakgauge.draws import Draws
from leakgauge.metrics.metric import PSNR
from leakgauge.observation import Knowledge, Observation, Reconstruction, Status
from leakgauge.servers import Broadcast, Change, Server
from leakgauge.servers.imprint import LinearFirst
from leakgauge.task import Batch, Mode, Task

TEN = replace(SPEC, classes=10)
ALL: tuple[Server, ...] = (LinearFirst(rows=64), InputSkip(), ReversibleNetwork(), SubModelPerExample(copies=64))
BY_CLASS: tuple[Server, ...] = (InputSkip(), ReversibleNetwork())
names = lambda server: type(server).__name__  # noqa: E731


def net(outputs: int = 10, dtype: torch.dtype = torch.float64) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64, outputs))
    return Task.of(module.to(dtype), TEN)


def photos(labels: list[int], seed: int = 0, dtype: torch.dtype = torch.float64) -> Batch:
    g = torch.Generator().manual_seed(seed)
    inputs = torch.rand((len(labels), *SPEC.shape), generator=g, dtype=torch.float64)
    return Batch(inputs.to(dtype), torch.tensor(labels))


def cast(server: Server, t: Task, seed: int = 0) -> Broadcast:
    return server.broadcast(t, torch.Generator().manual_seed(seed))


def read(sent: Broadcast, b: Batch, protocol: Protocol | None = None, defense: Defense | None = None) -> Reconstruction:
    protocol = protocol or FedSGD()
    update = client_update(sent.task, protocol, b, Draws(0), defense=defense)
    known = Knowledge(example_count=len(b), local_training=protocol, defense=defense or NoDefense())
    assert sent.crafting is not None
    return sent.crafting.reconstruct(Observation(sent.task, update, known), torch.Generator().manual_seed(0))


def best(found: Reconstruction, b: Batch) -> Tensor:
    assert found.inputs is not None
    pairs = [PSNR()(found.inputs.double(), x.double().expand_as(found.inputs)) for x in b.inputs]
    return torch.stack(pairs).amax(1)


@pytest.mark.parametrize("honest", ["smooth", "relu", "normed", "dropped", "flat"])
@pytest.mark.parametrize("server", ALL, ids=names)
def test_the_architecture_carries_the_honest_model(server: Server, honest: str) -> None:
    t, state = task(honest, Mode.TRAIN), torch.random.get_rng_state()
    t = t.with_state({k: v + 0.01 for k, v in t.parameters.items()})  # not what the module itself holds
    before = {k: v.clone() for k, v in {**t.parameters, **t.buffers}.items()}
    inside = {k: v.clone() for k, v in t.module.state_dict().items()}
    sent, again = cast(server, t), cast(server, t)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in {**t.parameters, **t.buffers}.items())
    assert all(torch.equal(v, inside[k]) for k, v in t.module.state_dict().items())
    assert sent.crafting is not None
    assert sent.changes == (Change.ARCHITECTURE,)
    assert (sent.task.data, sent.task.mode, sent.task.outputs) == (t.data, t.mode, t.outputs)
    assert sent.task.stochastic is t.stochastic
    now = {**sent.task.parameters, **sent.task.buffers}
    assert all(torch.equal(now[f"model.{k}"], v) for k, v in {**t.parameters, **t.buffers}.items())
    assert set(sent.task.parameters) > {f"model.{k}" for k in t.parameters}
    assert all(v.dtype == torch.float64 for v in sent.task.parameters.values())
    assert all(torch.equal(v, again.task.parameters[k]) for k, v in sent.task.parameters.items())
    update = client_update(sent.task, FedSGD(), photos([1, 2, 3, 4]), Draws(0))
    assert all(bool((update.tensors[f"model.{k}"] != 0).any()) for k in t.parameters if k.endswith("weight"))


@pytest.mark.parametrize("server", ALL, ids=names)
def test_examples_do_not_mix_and_torch_func_agrees_with_a_loop(server: Server) -> None:
    """A batch's gradient is the mean of its examples' gradients, which vmap computes."""
    sent, b = cast(server, net()), photos([1, 2, 3, 4])
    whole = client_update(sent.task, FedSGD(), b, Draws(0)).tensors
    mapped = client_update(sent.task, FedSGD(), b, Draws(0), defense=ClipExamples(norm=1e9)).tensors
    singles = [client_update(sent.task, FedSGD(), b.take(torch.tensor([i])), Draws(0)).tensors for i in range(4)]
    for name, value in whole.items():
        assert torch.allclose(value, torch.stack([s[name] for s in singles]).mean(0), atol=1e-12)
        assert torch.allclose(value, mapped[name], atol=1e-12)


@pytest.mark.parametrize("server", [*BY_CLASS, SubModelPerExample(copies=512)], ids=names)
@pytest.mark.parametrize("n", [4, 8])
@pytest.mark.parametrize("protocol", [FedSGD(), FedAvg(lr=0.1)], ids=["fedsgd", "fedavg-1"])
def test_a_batch_is_read_exactly(server: Server, n: int, protocol: Protocol) -> None:
    b = photos(list(range(1, n + 1)))
    found = read(cast(server, net()), b, protocol)
    assert found.status is Status.EXACT
    assert found.inputs is not None
    assert len(found.inputs) == n
    assert bool((best(found, b) > 100).all())


@pytest.mark.parametrize("server", BY_CLASS, ids=names)
def test_labels_are_paired_with_their_images(server: Server) -> None:
    b = photos([7, 3, 9, 1])
    found = read(cast(server, net()), b)
    assert found.paired
    assert found.labels is not None
    assert found.labels.tolist() == [1, 3, 7, 9]
    assert found.inputs is not None
    assert torch.allclose(found.inputs, b.inputs[[3, 1, 0, 2]])


@pytest.mark.parametrize("server", BY_CLASS, ids=names)
def test_shared_classes_and_the_decoy_take_the_certificate(server: Server) -> None:
    b = photos([0, 1, 2, 2, 3])
    found = read(cast(server, net()), b)
    assert found.status is Status.CONVERGED
    assert "3 classes read, 2 of them with one example" in found.message
    assert "1 examples of the decoy class unread" in found.message
    scores = best(found, b)
    assert bool((scores[[1, 4]] > 100).all())
    assert bool((scores[[0, 2, 3]] < 40).all())
    assert read(cast(server, net()), photos([0, 1, 2, 3])).status is Status.CONVERGED
    assert read(cast(server, net()), photos([1, 2, 2, 3])).status is Status.CONVERGED
    assert read(cast(server, net()), photos([0, 0])).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize("server", [*BY_CLASS, SubModelPerExample()], ids=names)
def test_noise_and_known_defenses_leave_no_certificate(server: Server) -> None:
    b, sent = photos([1, 2, 3, 4]), cast(server, net())
    assert read(sent, b, defense=noise(relative=1e-2)).status is Status.CONVERGED
    assert read(sent, b, defense=ClipExamples(norm=0.1)).status is Status.CONVERGED
    assert sent.crafting is not None
    update = client_update(sent.task, FedSGD(), b, Draws(0), defense=noise(relative=1e-2))
    unaware = sent.crafting.reconstruct(Observation(sent.task, update, Knowledge()), torch.Generator().manual_seed(0))
    assert unaware.status is Status.CONVERGED
    scores = [float(best(read(sent, b, defense=noise(relative=r)), b).mean()) for r in (1e-6, 1e-4, 1e-2)]
    assert scores == sorted(scores, reverse=True)


def test_examples_with_a_copy_of_their_own_are_exact_and_others_are_not() -> None:
    """Occupancy from the truth, and its mean against the balls in bins."""
    sent, counts = cast(SubModelPerExample(copies=64), net()), []
    assert isinstance(sent.crafting, RoutedRead)
    for seed in range(12):
        b = photos([seed % 10, 1, 2, 3, 4, 5, 6, 7] * 4, seed)
        at = places(TEN.normalise(b.inputs).flatten(1).mean(1), sent.crafting.turns, 64).floor()
        alone = (at[:, None] == at).sum(1) == 1
        counts.append(float(alone.sum()))
        if seed < 3:
            found = read(sent, b)
            assert found.status is Status.CONVERGED
            scores = best(found, b)
            assert bool((scores[alone] > 100).all())
            assert bool((scores[~alone] < 100).all())
    expected = 32 * (1 - 1 / 64) ** 31
    assert abs(sum(counts) / len(counts) - expected) < 4 * 3.5 / len(counts) ** 0.5


def test_couplings_are_inverted_exactly() -> None:
    coupling = CouplingBlock((5, 4), 7, net(), torch.Generator().manual_seed(0))
    x = torch.randn(6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = coupling(x)
    assert bool(((y - x).abs() > 0.01).any())
    assert torch.allclose(coupling.inverse(y), x, atol=1e-12)
