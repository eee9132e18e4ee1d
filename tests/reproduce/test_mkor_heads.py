"""MKOR's naive head: the same reading with most rows left honest."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.mkor.heads import Naive  # noqa: E402
from reproduce.mkor.lenet5 import LeNet5Taps, lenet5  # noqa: E402

from leakgauge.clients import FedSGD, client_update  # noqa: E402
from leakgauge.draws import Draws  # noqa: E402
from leakgauge.observation import Knowledge, Observation  # noqa: E402
from leakgauge.servers.mkor import (  # noqa: E402
    MKOR,
    Constant,
    NLLRaw,
)
from leakgauge.task import Batch, DataSpec, Task  # noqa: E402


def test_the_naive_head_reads_the_same_pictures_and_leaves_other_rows_honest() -> None:
    torch.manual_seed(0)
    honest = Task.of(lenet5(classes=10, channels=1).double(), DataSpec((1, 28, 28), 10))
    batch = Batch(torch.rand(12, 1, 28, 28, dtype=torch.float64), torch.arange(12) % 7)
    found = []
    for head in (Constant(), Naive()):
        sent = MKOR(taps=LeNet5Taps(), head=head, loss=NLLRaw()).broadcast(honest, torch.Generator())
        update = client_update(sent.task, FedSGD(), batch, Draws(0))
        assert sent.crafting is not None
        seen = Observation(sent.task, update, Knowledge(example_count=12, local_training=FedSGD()))
        found.append((sent.task.parameters, sent.crafting.reconstruct(seen, torch.Generator())))
    (whole, theirs), (part, ours) = found
    assert ours.labels.tolist() == theirs.labels.tolist() == list(range(7))
    torch.testing.assert_close(ours.inputs, theirs.inputs, rtol=0, atol=1e-5)
    linear = [name for name, value in honest.parameters.items() if value.ndim == 2]
    for name in linear[:-1]:
        assert torch.equal(part[name][10:], honest.parameters[name][10:])
        assert not torch.equal(part[name][:10], honest.parameters[name][:10])
        assert not torch.equal(whole[name][10:], honest.parameters[name][10:])
