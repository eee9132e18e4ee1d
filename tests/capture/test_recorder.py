"""A round is captured alike whatever form its reply has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from leakgauge.capture import Recorder
from leakgauge.guard import Promise, SendingGuard
from leakgauge.study.explaining.rounds import read_update
from leakgauge.task import DataSpec, Task
from leakgauge.update import UPDATE, WEIGHTS, Update, UpdateKind


def test_a_difference_of_states_is_captured_as_the_states_are(tmp_path: Path) -> None:
    """With BatchNorm, as NVFlare sends it by default, the file was refused ("holds num_batches_tracked of int64"),
    and without the counter "changes running_mean, which the model freezes": who left both out had an audit that took
    the statistics for kept at home."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 4))
    before = {k: v.clone() for k, v in net.state_dict().items()}
    steps = torch.optim.SGD(net.parameters(), 0.1)
    nn.functional.cross_entropy(net(torch.rand(2, 3, 8, 8)), torch.tensor([0, 1])).backward()
    steps.step()
    after = {k: v.clone() for k, v in net.state_dict().items()}
    difference = {k: v - before[k] for k, v in after.items()}
    net.load_state_dict(before)
    task, found = Task.of(net, DataSpec((3, 8, 8), 4), mode="train"), []
    for sends, reply in ((None, after), (UpdateKind.DELTA, difference)):
        kept = Recorder(folder=tmp_path, sends=sends).keep(before, reply, round_="1", node=str(sends), count=2)
        found.append((Update.load(kept / UPDATE), read_update(kept / UPDATE, task)))
    (one, read), (other, again) = found
    assert one.buffers.keys() == other.buffers.keys()
    assert all(torch.allclose(one.buffers[k], other.buffers[k]) for k in one.buffers)
    assert read.tensors.keys() == again.tensors.keys() == task.parameters.keys()
    assert all(torch.equal(read.tensors[k], again.tensors[k]) for k in read.tensors)


def test_tensors_that_share_their_memory_are_kept(tmp_path: Path) -> None:
    """Safetensors refused them: heads that are the embedding, as in GPT-2, and gradients that are views of one."""
    before = {"table": torch.rand(5, 3)}
    before["head"] = before["table"]
    rows = torch.rand(2, 5, 3)
    reply = {"table": rows[0], "head": rows[1]}
    kept = Recorder(folder=tmp_path, sends=UpdateKind.GRADIENT).keep(before, reply, round_="1", node="a", count=2)
    assert all(torch.equal(v, reply[k]) for k, v in Update.load(kept / UPDATE).tensors.items())
    assert all(torch.equal(v, before[k]) for k, v in load_file(kept / WEIGHTS).items())


@pytest.mark.filterwarnings("ignore:torch.quantize_per")
def test_quantised_tensors_are_captured_as_the_numbers_that_they_stand_for(tmp_path: Path) -> None:
    """They passed for what does not train: an update lacked them, and a guard looked at none of their entries."""
    plain = {"w": torch.randn(16, 16, generator=torch.Generator().manual_seed(0)).clamp(-2, 2), "b": torch.zeros(16)}
    before = plain | {"w": torch.quantize_per_tensor(plain["w"], 0.02, 0, torch.qint8)}
    after = {k: v + 0.1 for k, v in plain.items()}
    after |= {"w": torch.quantize_per_tensor(after["w"], 0.02, 0, torch.qint8)}
    moved = after["w"].dequantize() - before["w"].dequantize()
    for sends in (None, UpdateKind.GRADIENT):
        kept = Recorder(folder=tmp_path, sends=sends).keep(before, after, round_="1", node=str(sends))
        sent = Update.load(kept / UPDATE)
        assert torch.equal(sent.tensors["w"], moved if sends is None else after["w"].dequantize())
        assert torch.equal(load_file(kept / WEIGHTS)["w"], before["w"].dequantize())
    assert torch.equal(Update.between(before, after).tensors["w"], moved)
    assert SendingGuard(Promise(norm=1.0)).refuse(before, after) != ()
    assert SendingGuard(Promise(norm=10.0)).refuse(before, after) == ()
