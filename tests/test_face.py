"""The short way in does what the parts do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import leakgauge as lg
from leakgauge.inspection.result import Level

DATA = lg.DataSpec((3, 8, 8), 4)


def task() -> lg.Task:
    torch.manual_seed(0)
    return lg.Task.of(lg.models.mlp(shape=DATA.shape, hidden=(16,), classes=4), DATA)


def test_attack_is_the_attack_on_what_the_header_says() -> None:
    one, batch = task(), lg.Batch(torch.rand(1, 3, 8, 8), torch.tensor([2]))
    update = lg.clients.client_update(one, lg.clients.FedSGD(), batch, lg.Draws(seed=1))
    found = lg.attack(one, update)
    assert found.status is lg.Status.EXACT
    assert lg.metrics.PSNR()(found.inputs, batch.inputs).item() > 100
    again = lg.attack(one, update, using=lg.attacks.closed_form.LinearRead(), seed=3)
    torch.testing.assert_close(again.inputs, found.inputs)


def test_attack_uses_what_it_is_given_and_nothing_else() -> None:
    one, batch = task(), lg.Batch(torch.rand(1, 3, 8, 8), torch.tensor([2]))
    client = lg.clients.FedAvg(lr=0.1)
    update = lg.clients.client_update(one, client, batch, lg.Draws(seed=1))
    found = lg.attack(one, update, using=lg.attacks.recipes.inverting_gradients())
    assert found.status is lg.Status.NOT_APPLICABLE
    known = lg.Knowledge(local_training=client)
    assert lg.attack(one, update, knows=known, budget=lg.Budget(gradient_evaluations=5)).inputs is not None


def test_inspect_takes_tensors_or_a_file_and_finds_what_is_crafted(tmp_path: Path) -> None:
    one = task()
    honest = lg.inspect(one.module.state_dict())
    assert honest.level is Level.NOTHING_FOUND
    save_file(one.module.state_dict(), tmp_path / "m.safetensors")
    assert lg.inspect(tmp_path / "m.safetensors").fingerprint == honest.fingerprint
    sent = lg.servers.Imprint().broadcast(one, torch.Generator().manual_seed(0))
    state = {name: sent.task.parameters[name] for name in one.module.state_dict()}
    examples = lg.Batch(torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 3]))
    found = lg.inspect(state, model=one.module, data=(DATA, examples), previous=one.module.state_dict())
    assert found.level is Level.CRAFTED
    assert "batch" in found.given
    assert "previous" in found.given


def test_inspect_names_the_tensor_that_does_not_fit() -> None:
    state = task().module.state_dict()
    name = next(iter(state))
    with pytest.raises(lg.InputError, match=name):
        lg.inspect(state, previous={**state, name: torch.zeros(3)})
