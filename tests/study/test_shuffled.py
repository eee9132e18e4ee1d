"""Under an order that is drawn a wrong plan explains as much as rounds of its own: another account must speak."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge.clients import FedAvg, LocalTraining, client_update
from leakgauge.data import Samples
from leakgauge.data.source import Share, spec
from leakgauge.defenses import NoDefense
from leakgauge.draws import Draws
from leakgauge.study.explaining.causes import Evidence, explain
from leakgauge.study.explaining.setting import Explained, Setting
from leakgauge.task import Batch, Task
from leakgauge.update import Update

SOURCE = Samples(size=16)
SPEC = spec(SOURCE)
CLIENT = FedAvg(epochs=2, batch_size=2, lr=0.15, shuffle=True)


def right(seed: int) -> Setting:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        conv = nn.Conv2d(3, 6, 3, padding=1)
        net = nn.Sequential(nn.AvgPool2d(2), conv, nn.GroupNorm(2, 6), nn.GELU(), nn.Flatten(), nn.Linear(384, 8))
    return Setting(Task.of(net, SPEC, mode="train"), CLIENT, NoDefense(), SOURCE.read(range(6)))


def captured(account: Setting, seed: int) -> Update:
    return client_update(account.task, account.protocol, account.batch, Draws(100 + seed))


def look(account: Setting, update: Update) -> Explained:
    strangers = SOURCE.others(frozenset(range(6)), Share.PUBLIC, 32, torch.Generator().manual_seed(0))

    def elsewhere() -> Iterator[tuple[str, Batch]]:
        yield "start: 0", SOURCE.read(range(6))

    return explain(account, update, Draws(0), Evidence(strangers, elsewhere))


def with_client(account: Setting, client: LocalTraining) -> Setting:
    return replace(account, protocol=client)


def normalised(account: Setting) -> Setting:
    data = replace(SPEC, mean=(0.0,), std=(1.0,))
    return replace(account, task=replace(account.task, data=data))


def one_epoch(account: Setting) -> Setting:
    return with_client(account, replace(CLIENT, epochs=1))


def fast(account: Setting) -> Setting:
    return with_client(account, replace(CLIENT, optimiser=CLIENT.optimiser.with_rate(1.5)))


def others(account: Setting) -> Setting:
    whole = SOURCE.read(range(8))
    return replace(account, batch=whole.take(torch.tensor([6, 7, 0, 1, 2, 3])))


def in_order(account: Setting) -> Setting:
    assert isinstance(account.protocol, LocalTraining)
    return with_client(account, replace(account.protocol, shuffle=False))


def dropping(account: Setting) -> Setting:
    module = account.task.module_copy()
    module.insert(5, nn.Dropout(0.1))
    return replace(account, task=Task.of(module, SPEC, mode="train"), protocol=replace(CLIENT, shuffle=False))


def test_a_right_plan_whose_order_nobody_recorded_is_not_accused_and_not_believed() -> None:
    account = right(0)
    found = look(account, captured(account, 0))
    assert not found.holds
    assert not found.causes
    assert "Record the order of the steps" in found.sentence


@pytest.mark.parametrize(
    "wrong", [one_epoch, in_order, *(pytest.param(w, marks=pytest.mark.slow) for w in (normalised, fast, others))]
)
def test_a_wrong_plan_does_not_vindicate_itself(wrong: Callable[[Setting], Setting]) -> None:
    """Three epochs for two lay inside what such a plan explains of rounds of its own, and were believed."""
    account = right(0)
    assert not look(wrong(account), captured(account, 0)).holds


def test_an_order_that_hardly_matters_needs_no_record() -> None:
    account = with_client(right(0), replace(CLIENT, optimiser=CLIENT.optimiser.with_rate(1e-4)))
    assert look(account, captured(account, 0)).holds


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "key"), [(fast, "clients[0].lr"), (normalised, "data.normalise"), (one_epoch, "")])
def test_behind_dropout_a_mistake_is_named_and_the_truth_believed(
    wrong: Callable[[Setting], Setting], key: str
) -> None:
    account = dropping(right(0))
    update = captured(account, 0)
    assert look(account, update).holds
    found = look(replace(wrong(account), protocol=replace(wrong(account).protocol, shuffle=False)), update)
    assert not found.holds
    assert found.causes[0].key.startswith(key)


def test_no_negative_share_is_printed() -> None:
    account = right(0)
    update = captured(account, 0)
    found = explain(
        account, replace(update, tensors={k: -v for k, v in update.tensors.items()}), Draws(0), Evidence(causes=False)
    )
    assert "The plan explains nothing of this update" in found.sentence
