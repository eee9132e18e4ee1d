"""Same values, same reading: whatever float type and scale an update was sent in."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cases import SPEC, batch
from leakgauge.attacks.closed_form import LinearRead
from leakgauge.clients import FedAvg, FedSGD, Protocol, client_update
from leakgauge.defenses import NoDefense
from leakgauge.draws import Draws
from leakgauge.metrics.metric import PSNR
from leakgauge.observation import Knowledge, Observation, Reconstruction, Status
from leakgauge.task import Task
from leakgauge.tensors import Wire
from leakgauge.update import Update

NETWORKS = {
    "relu": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 5)),
    "sigmoid": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Sigmoid(), nn.Linear(16, 5)),
    "softmax": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 5)),
}
TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SCALES = (1e-25, 1e-22, 1e-10, 1e-5, 1.0, 1e4, 1e25)
CERTIFIED = 54.0
"""PSNR of errors of half a grey level everywhere."""


def _read(task: Task, sent: Update, protocol: Protocol | None, examples: int = 1) -> Reconstruction:
    known = Knowledge(labels=torch.zeros(examples).long(), local_training=protocol, defense=NoDefense())
    return LinearRead().reconstruct(Observation(task, sent, known), torch.Generator().manual_seed(0))


def _sent(update: Update, scale: float, types: tuple[torch.dtype, ...]) -> Update:
    """Tensor by tensor in the types, again from the first after the last."""
    cast = {k: (v.double() * scale).to(types[i % len(types)]) for i, (k, v) in enumerate(update.tensors.items())}
    return Update(cast, update.header)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("protocol", [FedSGD(), FedAvg(epochs=4, lr=1e-3)], ids=["gradient", "delta"])
@pytest.mark.parametrize("examples", [1, 3])
def test_every_wire_reads_as_its_values_in_float64(network: str, protocol: Protocol, examples: int) -> None:
    torch.manual_seed(0)
    task, b = Task.of(NETWORKS[network](), SPEC), batch(examples, torch.float32)
    plain = client_update(task, protocol, b, Draws(0))
    for scale in SCALES:
        for types in (*((t,) for t in TYPES), (torch.bfloat16, torch.float16), (torch.float16, torch.float64)):
            sent = _sent(plain, scale, types)
            if not all(bool(torch.isfinite(t).all()) for t in sent.tensors.values()):
                continue  # the type has no such numbers
            wide = Update({k: v.double() for k, v in sent.tensors.items()}, sent.header)
            known = protocol if scale == 1 else None
            one, other = _read(task, sent, known, examples), _read(task, wide, known, examples)
            assert one.status is other.status
            if one.inputs is None or other.inputs is None:
                assert one.inputs is other.inputs
                continue
            torch.testing.assert_close(one.inputs, other.inputs, rtol=0, atol=0)
            if one.status is Status.EXACT:
                assert float(PSNR()(one.inputs, b.inputs).min()) >= CERTIFIED


@pytest.mark.parametrize(("kind", "least"), [(torch.float16, 75), (torch.bfloat16, 55), (torch.float32, 100)])
@pytest.mark.parametrize("lr", [1e-2, 1e-3])
def test_a_delta_in_half_precision_is_read_as_far_as_its_rounding_allows(
    kind: torch.dtype, least: float, lr: float
) -> None:
    """In the update's own type the squares vanished: 14.5 dB from float16 where float32 gave 87."""
    torch.manual_seed(0)
    task, b = Task.of(NETWORKS["relu"](), SPEC), batch(1, torch.float32)
    protocol = FedAvg(epochs=1, lr=lr)
    sent = _sent(client_update(task, protocol, b, Draws(0)), 1.0, (kind,))
    found = _read(task, sent, protocol)
    assert found.inputs is not None
    assert float(PSNR()(found.inputs, b.inputs)) >= least


@pytest.mark.parametrize("kind", TYPES)
def test_rounding_bounds_what_a_type_does_to_numbers(kind: torch.dtype) -> None:
    exact = torch.randn(2000, dtype=torch.float64) * torch.logspace(-6, 2, 2000, dtype=torch.float64)
    sent = exact.to(kind)
    bound = Wire.of(sent)
    assert bound == Wire.of(sent.double())
    assert bool(((sent.double() - exact).abs() <= bound.errors(sent.double()) * (1 + bound.unit)).all())
