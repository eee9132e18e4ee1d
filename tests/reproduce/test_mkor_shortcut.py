"""The shortcut against the network itself."""

from __future__ import annotations

import pytest
import torch
from reproduce.mkor.lenet5 import lenet5
from reproduce.mkor.shortcut import shortcut_update

from leakgauge.clients import FedSGD, client_update
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.models import vgg
from leakgauge.observation import Knowledge, Observation
from leakgauge.servers.mkor import MKOR, Decoy, NLLRaw
from leakgauge.task import Batch, DataSpec, Task

DATA = DataSpec((3, 32, 32), 6, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25))


def task() -> Task:
    torch.manual_seed(0)
    return Task.of(vgg(classes=6, channels=3, size=32).double(), DATA)


def batch() -> Batch:
    inputs = torch.rand((5, 3, 32, 32), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Batch(inputs, torch.tensor([0, 1, 1, 3, 4]))


@pytest.mark.parametrize("loss", [NLLRaw(), Decoy()], ids=lambda x: type(x).__name__)
def test_equal_to_the_real_network_in_all_that_is_read(loss) -> None:
    sent = MKOR(loss=loss).broadcast(task(), torch.Generator().manual_seed(2))
    real = client_update(sent.task, FedSGD(), batch(), Draws(0))
    fast = shortcut_update(sent.task, sent.crafting.map, batch(), chunk=2)
    assert fast.header.kind is real.header.kind
    name = sent.crafting.routes.weight
    positions = sent.crafting.map.positions
    torch.testing.assert_close(fast.tensors[name][:, positions], real.tensors[name][:, positions])
    torch.testing.assert_close(fast.tensors[sent.crafting.routes.bias], real.tensors[sent.crafting.routes.bias])
    knowledge = Knowledge(example_count=5, crafting=sent.crafting)
    images = [
        sent.crafting.reconstruct(Observation(sent.task, update, knowledge), torch.Generator()).inputs
        for update in (real, fast)
    ]
    torch.testing.assert_close(images[0], images[1], atol=1e-9, rtol=0)


def test_smooth_networks_are_refused() -> None:
    torch.manual_seed(0)
    smooth = Task.of(lenet5(classes=6, channels=1), DataSpec((1, 28, 28), 6))
    with pytest.raises(InputError, match="smooth"):
        shortcut_update(smooth, None, Batch(torch.rand(2, 1, 28, 28), torch.tensor([0, 1])))
