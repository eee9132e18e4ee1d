"""The replay says what peeling will read, before anything is sent."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leakgauge.attacks.exact import Peeling
from leakgauge.attacks.exact.candidates import Shares
from leakgauge.batch import Batch, DataSpec
from leakgauge.clients import FedSGD, client_update
from leakgauge.draws import Draws
from leakgauge.models import mlp
from leakgauge.observation import Knowledge, Observation
from leakgauge.risk.count import Replay, peel_mask, replay
from leakgauge.task import Task
from leakgauge.tensors import Wire

CELLS = [
    (units, batch, dtype, centred)
    for units, batch in ((20, 8), (40, 8), (40, 16), (80, 16), (80, 24))
    for dtype in (torch.float64, torch.float32)
    for centred in (False, True)
]


def known(value: Tensor) -> Shares:
    """Shares without error: one row an example, one column a unit."""
    return Shares(value.double(), torch.zeros_like(value).double(), torch.zeros_like(value).double())


def shares(text: str) -> Shares:
    return known(torch.tensor([[float(c) for c in row] for row in text.split()]))


@pytest.mark.parametrize(
    ("mask", "alone", "read", "rounds"),
    [
        ("100 010 001", 3, 3, 1),
        ("110 010 011", 2, 3, 2),  # the first and the last free the middle one
        ("110 011 101", 0, 0, 0),  # a row of two is no one's
        ("111 011 001", 1, 3, 3),  # each read frees the next
        ("11 11", 0, 0, 0),
        ("10 00", 1, 1, 1),
    ],
)
def test_a_mask_is_peeled_as_by_hand(mask: str, alone: int, read: int, rounds: int) -> None:
    told = peel_mask(shares(mask), Wire.through(torch.float64))
    assert (told.alone, told.read, told.rounds) == (alone, read, rounds)


def test_what_is_below_the_rounding_of_its_rows_is_silent() -> None:
    told = peel_mask(known(torch.tensor([[1.0, 1.0], [1e-9, 0.0]])), Wire.through(torch.float32))
    assert (told.read, told.silent) == (1, 1)
    assert told.rate == 0.5


def test_what_was_taken_out_carries_its_error_into_other_rows() -> None:
    """The first is read well, the second from what is left of a row that the first filled ten thousand times over."""
    value = torch.tensor([[1.0, 1.0], [0.0, 1e-4]])
    exact, blurred = known(value), known(value)
    blurred.error[0] = 1e-6
    assert [peel_mask(s, Wire.through(torch.float64)).read for s in (exact, blurred)] == [2, 1]


@pytest.mark.parametrize(("units", "size", "dtype", "centred"), CELLS)
def test_the_attack_reads_what_the_replay_says(units: int, size: int, dtype: torch.dtype, centred: bool) -> None:
    middle = {"mean": (0.5,), "std": (0.5,)} if centred else {}
    data = DataSpec((1, 10, 10), 10, **middle)
    torch.manual_seed(units + size)
    task = Task.of(mlp(hidden=(units,), shape=data.shape).to(dtype), data)
    g = torch.Generator().manual_seed(size)
    batch = Batch(torch.rand((size, *data.shape), generator=g, dtype=dtype), torch.randint(10, (size,), generator=g))
    told = replay(task, batch, g)
    assert isinstance(told, Replay)
    assert attacked(task, batch) == told.read


def attacked(task: Task, batch: Batch) -> int:
    """Examples that peeling reads, without its search for the last ones."""
    update = client_update(task, FedSGD(), batch, Draws(0))
    seen = Observation(task, update, Knowledge(example_count=len(batch)))
    found = Peeling(directions=0).reconstruct(seen, torch.Generator())
    if found.inputs is None:
        return 0
    gap = torch.cdist(batch.inputs.double().flatten(1), found.inputs.double().flatten(1))
    return int((gap < 0.01).any(1).sum())


def test_how_the_first_layer_is_written_does_not_matter() -> None:
    data = DataSpec((1, 10, 10), 10)
    torch.manual_seed(0)
    plain = mlp(hidden=(80,), shape=data.shape).double()
    linear = [m for m in plain.modules() if isinstance(m, torch.nn.Linear)]
    wide = torch.nn.Conv2d(1, 80, 10).double()
    wide.load_state_dict({"weight": linear[0].weight.view(80, 1, 10, 10), "bias": linear[0].bias})
    other = torch.nn.Sequential(wide, torch.nn.ReLU(), torch.nn.Flatten(), linear[1])
    batch = Batch(torch.rand(8, *data.shape).double(), torch.arange(8))
    told = [replay(Task.of(net, data), batch, torch.Generator()) for net in (plain, other)]
    assert isinstance(told[1], Replay)
    assert told[1] == told[0]


def test_it_says_why_it_does_not_apply() -> None:
    data = DataSpec((1, 10, 10), 10)
    batch = Batch(torch.rand(2, *data.shape), torch.tensor([0, 1]))
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 10))
    assert "no linear layer" in str(replay(Task.of(net, data), batch, torch.Generator()))
