"""Contracts that every registered server keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from reproduce.label_flip import LabelFlip
from torch import nn

from leakgauge.clients import FedAvg, FedSGD, client_update
from leakgauge.compute import Budget
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.models import mlp, vgg
from leakgauge.observation import Attack, Knowledge, Observation, Status
from leakgauge.registry import SERVERS
from leakgauge.servers import (
    MKOR,
    ClassFishing,
    Imprint,
    ImprintBlock,
    LinearFirst,
    TrapWeights,
)
from leakgauge.servers.mkor import NLLRaw
from leakgauge.servers.server import Broadcast, Change, Honest, Server
from leakgauge.task import Batch, DataSpec, Task

DATA = DataSpec((3, 16, 16), 6, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25))


def flat() -> nn.Module:
    return mlp(classes=6, shape=DATA.shape, hidden=[64])


def small_vgg() -> nn.Module:
    return vgg(classes=6, channels=3, size=16, blocks=((24,), (96,)), hidden=(32,))


@dataclass(frozen=True)
class Case:
    """A server with a host that it fits."""

    server: Server
    build: object


CASES = (
    Case(Honest(), flat),
    Case(MKOR(), small_vgg),
    Case(MKOR(loss=NLLRaw()), small_vgg),
    Case(ClassFishing(target=1), flat),
    Case(LabelFlip(), flat),
    Case(Imprint(), flat),
    Case(ImprintBlock(bins=16), flat),
    Case(LinearFirst(rows=64), flat),
    Case(TrapWeights(), flat),
)


def name(case: Case) -> str:
    return f"{type(case.server).__name__}-{CASES.index(case)}"


def host(case: Case) -> Task:
    torch.manual_seed(0)
    return Task.of(case.build().double(), DATA)


def batch(seed: int = 1) -> Batch:
    g = torch.Generator().manual_seed(seed)
    return Batch(torch.rand((4, *DATA.shape), generator=g, dtype=torch.float64), torch.tensor([1, 2, 3, 5]))


def sent(case: Case) -> Broadcast:
    return case.server.broadcast(host(case), torch.Generator().manual_seed(2))


def seen(broadcast: Broadcast, secret: Batch, protocol=None) -> Observation:
    update = client_update(broadcast.task, protocol or FedSGD(), secret, Draws(3))
    known = Knowledge(example_count=4, local_training=protocol or FedSGD(), crafting=broadcast.crafting)
    return Observation(broadcast.task, update, known)


def read(observation: Observation):
    generator = torch.Generator().manual_seed(4)
    crafting = observation.knowledge.crafting
    return crafting.reconstruct(observation, generator, budget=Budget(gradient_evaluations=5))


def test_every_registered_server_has_a_case() -> None:
    built = {type(c.server) for c in CASES}
    for entry in SERVERS:
        assert entry.build in built, entry.name
        assert entry.summary


@pytest.mark.parametrize("case", CASES, ids=name)
def test_the_honest_task_is_not_changed_and_the_broadcast_is_repeatable(case: Case) -> None:
    honest = host(case)
    before = {k: v.clone() for k, v in {**honest.parameters, **honest.buffers}.items()}
    first = case.server.broadcast(honest, torch.Generator().manual_seed(2))
    again = case.server.broadcast(honest, torch.Generator().manual_seed(2))
    for key, value in before.items():
        assert torch.equal({**honest.parameters, **honest.buffers}[key], value), key
    for key, value in first.task.parameters.items():
        assert torch.equal(again.task.parameters[key], value), key
    assert first.task.data == honest.data
    assert isinstance(case.server, Server)
    assert repr(replace(case.server)) == repr(case.server)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_what_changed_is_what_is_said(case: Case) -> None:
    honest, crafted = host(case), sent(case)
    if crafted.crafting is None:
        assert isinstance(case.server, Honest)
        assert crafted.task is not None
        return
    assert isinstance(crafted.crafting, Attack)
    shapes = {k: (v.shape, v.dtype) for k, v in honest.parameters.items()}
    same = shapes == {k: (v.shape, v.dtype) for k, v in crafted.task.parameters.items()}
    assert same is (Change.ARCHITECTURE not in crafted.changes)
    assert (crafted.task.loss is honest.loss) is (Change.LOSS not in crafted.changes)
    assert any(not torch.equal(v, honest.parameters.get(k, v[:0])) for k, v in crafted.task.parameters.items())


@pytest.mark.parametrize("case", [c for c in CASES if not isinstance(c.server, Honest)], ids=name)
@pytest.mark.parametrize("protocol", [FedSGD(), FedAvg(epochs=2, lr=0.01)], ids=["fedsgd", "fedavg"])
def test_2_the_read_depends_on_the_observation_alone_and_ends_in_a_status(case: Case, protocol) -> None:
    observation = seen(sent(case), batch(), protocol)
    first, again = read(observation), read(observation)
    assert isinstance(first.status, Status)
    assert first.status is again.status
    if first.inputs is None:
        assert first.message
        return
    assert torch.equal(first.inputs, again.inputs)
    assert tuple(first.inputs.shape[1:]) == DATA.shape
    assert bool(torch.isfinite(first.inputs).all())
    assert len(first.inputs) <= 4


@pytest.mark.parametrize("case", [c for c in CASES if not isinstance(c.server, Honest)], ids=name)
def test_nothing_within_a_craftings_reach_is_the_clients(case: Case) -> None:
    crafted = sent(case)
    one, other = read(seen(crafted, batch(1))), read(seen(crafted, batch(7)))
    if one.inputs is not None and other.inputs is not None and one.inputs.shape == other.inputs.shape:
        assert not torch.equal(one.inputs, other.inputs)


@pytest.mark.parametrize("case", [c for c in CASES if not isinstance(c.server, Honest)], ids=name)
def test_an_update_of_zeros_is_a_status_and_never_an_exception(case: Case) -> None:
    observation = seen(sent(case), batch())
    zeros = {k: torch.zeros_like(v) for k, v in observation.update.tensors.items()}
    empty = replace(observation, update=replace(observation.update, tensors=zeros))
    assert isinstance(read(empty).status, Status)


def test_hosts_that_do_not_fit_are_one_line() -> None:
    refused = 0
    for case in CASES:
        if isinstance(case.server, MKOR):
            torch.manual_seed(0)
            odd = nn.Sequential(nn.Flatten(), nn.LayerNorm(768), nn.Linear(768, 6)).double()
            with pytest.raises(InputError) as caught:
                case.server.broadcast(Task.of(odd, DATA), torch.Generator())
            assert "\n" not in str(caught.value)
            refused += 1
    assert refused == 2
