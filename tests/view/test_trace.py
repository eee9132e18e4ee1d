"""A gradient that is run node by node changes with its examples as its own differences do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from leakgauge import DataSpec, Mode
from leakgauge.batch import Batch
from leakgauge.task import Task
from leakgauge.view.derivatives import jacobian
from leakgauge.view.graph import traced


class Heads(nn.Module):
    """Self-attention over the rows of a picture, between two norms."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.mix, self.two = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.mean(1)
        seen = self.one(rows)
        return self.two(rows + self.mix(seen, seen, seen)[0])  # type: ignore[no-any-return]


def body(*parts: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(width, 3))


CONV, WIDE = 6 * 64, 192
NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "plain": lambda: body(nn.Conv2d(3, 6, 3, padding=1), nn.Tanh(), width=CONV),
    "batch norm": lambda: body(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Softplus(), width=CONV),
    "batch norm without memory": lambda: body(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6, track_running_stats=False), nn.Softplus(), width=CONV
    ),
    "batch norm of rows": lambda: body(nn.Flatten(), nn.Linear(WIDE, 6), nn.BatchNorm1d(6), nn.Tanh(), width=6),
    "instance norm": lambda: body(nn.Conv2d(3, 6, 3, padding=1), nn.InstanceNorm2d(6), nn.Softplus(), width=CONV),
    "group norm": lambda: body(nn.Conv2d(3, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.Softplus(), width=CONV),
    "layer norm": lambda: body(nn.Flatten(), nn.Linear(WIDE, 6), nn.LayerNorm(6), nn.GELU(), width=6),
    "root mean square": lambda: body(nn.Flatten(), nn.Linear(WIDE, 6), nn.RMSNorm(6), nn.SiLU(), width=6),
    "attention": lambda: body(Heads(), width=64),
    "weight norm": lambda: body(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(WIDE, 6)), width=6),
    **{
        kind.__name__: lambda kind=kind: body(nn.Flatten(), nn.Linear(WIDE, 6), kind(), width=6)
        for kind in (nn.SiLU, nn.Mish, nn.ELU, nn.SELU, nn.Hardswish, nn.LogSigmoid, nn.PReLU)
    },
    "pools": lambda: body(nn.AvgPool2d(2), nn.Conv2d(3, 6, 3), nn.MaxPool2d(2), nn.Softplus(), width=6),
}


@pytest.mark.parametrize("mode", [Mode.EVAL, Mode.TRAIN], ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", NETWORKS)
def test_signals_change_with_examples_as_their_differences_do(name: str, mode: Mode) -> None:
    """Means and deviations of a norm were constants on the way back, and derivatives of signals off by a seventh."""
    torch.manual_seed(0)
    task = Task.of(NETWORKS[name](), DataSpec((3, 8, 8), 3), mode=mode).to(torch.empty((), dtype=torch.float64))
    graph = traced(task).trace
    wanted = [node for node in graph.gradients.values() if node is not None]
    draws = torch.Generator().manual_seed(1)
    x, towards = (torch.rand(2, 3, 8, 8, generator=draws, dtype=torch.float64) for _ in range(2))

    def sent(inputs: Tensor) -> Tensor:
        made = graph.evaluate(wanted, task, Batch(inputs, torch.tensor([0, 2])))
        return torch.cat([tensor.flatten() for tensor in made])

    step = 1e-6
    with torch.no_grad():
        differences = (sent(x + step * towards) - sent(x - step * towards)) / (2 * step)
    _, slope = jacobian(sent, x)
    along = torch.from_numpy(slope.matvec(towards.flatten().numpy()))
    torch.testing.assert_close(along, differences, rtol=1e-5, atol=1e-6 * float(differences.norm()))
    back = torch.from_numpy(slope.rmatvec(differences.numpy()))
    torch.testing.assert_close(back @ towards.flatten(), differences.square().sum(), rtol=1e-5, atol=0)
