"""Trap weights: what one example alone drives is read, as counted from the truth."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cases import SPEC, task
from leakgauge.clients import FedAvg, FedSGD, Protocol, client_update
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.metrics.metric import PSNR
from leakgauge.observation import Knowledge, Observation, Reconstruction, Status
from leakgauge.servers import Broadcast
from leakgauge.servers.imprint import LinearFirst, TrapWeights
from leakgauge.task import Batch, DataSpec, Mode, Task


def mlp(rows: int = 256, activation: type[nn.Module] = nn.ReLU, spec: DataSpec = SPEC) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(192, rows), activation(), nn.Linear(rows, 5))
    return Task.of(net.double(), spec)


def photos(n: int, seed: int = 0) -> Batch:
    g = torch.Generator().manual_seed(seed)
    level = 0.45 + 0.12 * torch.randn((n, 1, 1, 1), generator=g, dtype=torch.float64)
    texture = 0.8 * (torch.rand((n, *SPEC.shape), generator=g, dtype=torch.float64) - 0.5)
    return Batch((level + texture).clamp(0, 1), torch.randint(SPEC.classes, (n,), generator=g))


def cast(server, t: Task, seed: int = 0) -> Broadcast:
    return server.broadcast(t, torch.Generator().manual_seed(seed))


def read(sent: Broadcast, b: Batch, protocol: Protocol | None = None) -> Reconstruction:
    protocol = protocol or FedSGD()
    update = client_update(sent.task, protocol, b, Draws(0))
    known = Knowledge(labels=b.labels, example_count=len(b), local_training=protocol)
    assert sent.crafting is not None
    return sent.crafting.reconstruct(Observation(sent.task, update, known), torch.Generator().manual_seed(0))


def best(found: Reconstruction, b: Batch) -> Tensor:
    assert found.inputs is not None
    pairs = [PSNR()(found.inputs, x.expand_as(found.inputs)) for x in b.inputs]
    return torch.stack(pairs).amax(1)


def active(sent: Broadcast, layer: str, b: Batch) -> Tensor:
    """Which example activates which row, from the truth."""
    p = sent.task.parameters
    z = SPEC.normalise(b.inputs).flatten(1)
    return z @ p[f"{layer}.weight"].T + p[f"{layer}.bias"] > 0


def exposed(on: Tensor, rows: int) -> Tensor:
    """Examples that drive at least so many rows alone."""
    own = on & (on.sum(0) == 1)
    return own.sum(1) >= rows


CASES = {
    "mlp": (lambda: cast(TrapWeights(), mlp()), "1"),
    "first-before-convolutions": (lambda: cast(LinearFirst(rows=256), task("smooth")), "first"),
    "first-before-batchnorm": (lambda: cast(LinearFirst(rows=256), task("normed", Mode.TRAIN)), "first"),
    "traps-in-a-given-first": (
        lambda: cast(TrapWeights(), cast(LinearFirst(rows=256, factor=2.0), task("relu")).task),
        "first",
    ),
}


@pytest.mark.parametrize("n", [4, 8])
@pytest.mark.parametrize("case", CASES)
def test_examples_with_rows_of_their_own_are_exact(case: str, n: int) -> None:
    make, layer = CASES[case]
    sent, certain, exact, hidden = make(), 0, 0, 0
    for seed in range(4):
        b = photos(n, seed)
        on = active(sent, layer, b)
        scores, sure, never = best(found := read(sent, b), b), exposed(on, 2), ~exposed(on, 1)
        assert found.status in (Status.EXACT, Status.CONVERGED)
        assert found.status is Status.CONVERGED or bool((scores > 100).all())
        # Rows that agree to a thousandth are pooled: a mixture that another example hardly enters may be among them.
        assert bool((scores[sure] > 60).all())
        exact += int((scores[sure] > 200).sum())
        assert bool((scores[never] < 100).all()) or found.certified is not None
        certain, hidden = certain + int(sure.sum()), hidden + int(never.sum())
    assert certain > 2 * n  # of 4·n
    assert exact >= 0.8 * certain
    assert hidden > 0 or n == 4


def test_one_local_step_is_as_exact_as_a_gradient() -> None:
    sent, b = cast(TrapWeights(), mlp()), photos(8)
    sure = exposed(active(sent, "1", b), 2)
    assert int(sure.sum()) > 2
    assert bool((best(read(sent, b, FedAvg(lr=0.1)), b)[sure] > 60).all())


def test_a_larger_factor_activates_fewer_rows() -> None:
    b = photos(32)
    shares = [float(active(cast(TrapWeights(factor=f), mlp()), "1", b).double().mean()) for f in (1.01, 1.05, 1.2, 1.5)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.3
    assert shares[-1] < 0.01


def test_half_of_a_row_is_negative_and_heavier_by_the_factor() -> None:
    weight = cast(TrapWeights(factor=1.5), mlp()).task.parameters["1.weight"]
    raw = weight.view(-1, 3, 8, 8) / torch.tensor(SPEC.std, dtype=torch.float64).view(3, 1, 1)
    assert bool(((raw < 0).flatten(1).sum(1) == 96).all())
    ratio = float(raw[raw < 0].abs().mean() / raw[raw > 0].mean())
    assert abs(ratio - 1.5) < 0.05
    assert len({tuple(row.tolist()) for row in (raw < 0).flatten(1)}) == len(raw)


def test_normalisation_and_range_of_the_data_do_not_matter() -> None:
    """The same rows answer the same to data in other units: the layer works in shares of the range."""
    other = DataSpec(SPEC.shape, 5, low=-10.0, high=30.0, mean=(3.0,), std=(7.0,))
    b = photos(6)
    answers = []
    for spec, raw in ((SPEC, b.inputs), (other, 40 * b.inputs - 10)):
        p = cast(TrapWeights(), mlp(spec=spec)).task.parameters
        answers.append(spec.normalise(raw).flatten(1) @ p["1.weight"].T + p["1.bias"])
    assert torch.allclose(*answers)


@pytest.mark.parametrize(
    ("t", "problem"),
    [
        (lambda: task("smooth"), "no linear layer with bias that reads the input"),
        (lambda: mlp(activation=nn.Sigmoid), "no ReLU"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_mend_names_another_server(t, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        cast(TrapWeights(), t())
    assert "linear-first" in caught.value.hint


@pytest.mark.parametrize("server", [TrapWeights, LinearFirst])
def test_a_factor_that_traps_nothing_is_refused(server) -> None:
    with pytest.raises(InputError, match="factor"):
        server(factor=1.0)
