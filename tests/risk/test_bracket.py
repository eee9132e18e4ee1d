"""The bracket holds what a dense computation gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev

from leakgauge.batch import Batch, DataSpec
from leakgauge.clients import FedSGD, raw_update
from leakgauge.defenses import NoDefense
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.risk.bracket import error_bracket, relative_noise
from leakgauge.task import Task

DATA = DataSpec((1, 3, 4), 3)


def case(seed: int) -> tuple[Task, Batch, dict[str, Tensor]]:
    """A small network of any kind, a batch of one to three, and noise of 1e-4 to 1 of the update."""
    g = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    units, n = int(torch.randint(2, 12, (), generator=g)), int(torch.randint(3, 6, (), generator=g))
    smooth = (nn.Sigmoid(), nn.ReLU(), nn.Tanh())[seed % 3]
    task = Task.of(nn.Sequential(nn.Flatten(), nn.Linear(12, units), smooth, nn.Linear(units, 3)).double(), DATA)
    batch = Batch(torch.rand((n, 1, 3, 4), generator=g, dtype=torch.float64), torch.randint(3, (n,), generator=g))
    share = float(10 ** -(4 * torch.rand((), generator=g)))
    return task, batch, relative_noise(task, batch, share, g)


def dense(task: Task, batch: Batch, noise: dict[str, Tensor], prior: float = 0.25) -> float:
    """The same by the whole Jacobian."""

    def update(flat: Tensor) -> Tensor:
        sent = raw_update(task, FedSGD(), Batch(flat.view(batch.inputs.shape), batch.labels), Draws(0), NoDefense())[0]
        return torch.cat([(v / noise[k]).flatten() for k, v in sent.items()])

    j = jacrev(update)(batch.inputs.flatten())
    inner = j.T @ j + torch.eye(j.shape[1], dtype=torch.float64) / prior**2
    return float(torch.linalg.eigvalsh(inner).reciprocal().mean())


@pytest.mark.parametrize(
    ("steps", "seeds"),
    [
        (4, range(6)),
        (60, range(6)),
        # Two hundred cases, none of them twice.
        pytest.param(4, range(100), marks=pytest.mark.slow),
        pytest.param(16, range(100, 170), marks=pytest.mark.slow),
        pytest.param(60, range(170, 200), marks=pytest.mark.slow),
    ],
)
def test_it_holds_the_truth_in_every_case(steps: int, seeds: range) -> None:
    for seed in seeds:
        task, batch, noise = case(seed)
        found = error_bracket(task, batch, noise, torch.Generator().manual_seed(seed), probes=4, steps=steps)
        truth = dense(task, batch, noise)
        assert found.low * (1 - 1e-6) <= truth <= found.high * (1 + 1e-6), seed


def test_all_directions_leave_no_chance_and_long_runs_no_width() -> None:
    task, batch, noise = case(3)
    found = error_bracket(task, batch, noise, torch.Generator().manual_seed(0), probes=8, steps=60)
    assert found.whole
    assert found.high == pytest.approx(found.low, rel=1e-6)
    assert found.low == pytest.approx(dense(task, batch, noise), rel=1e-6)
    assert not found.refused


def test_a_short_run_is_refused() -> None:
    task, batch, _ = case(2)
    noise = relative_noise(task, batch, 1e-6, torch.Generator().manual_seed(0))
    assert error_bracket(task, batch, noise, torch.Generator().manual_seed(0), probes=8, steps=1).refused


def test_noise_that_says_nothing_leaves_the_prior() -> None:
    task, batch, _ = case(1)
    noise = relative_noise(task, batch, 1e9, torch.Generator().manual_seed(0))
    found = error_bracket(task, batch, noise, torch.Generator().manual_seed(0))
    assert found.psnr[0] == pytest.approx(found.prior_psnr, abs=1e-6)


def test_no_noise_is_one_clear_line() -> None:
    task, batch, noise = case(1)
    none = {name: torch.zeros(()) for name in noise}
    with pytest.raises(InputError, match="noise"):
        error_bracket(task, batch, none, torch.Generator())
