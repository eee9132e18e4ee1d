"""Counts by hand, and the paper's worked case."""

from __future__ import annotations

import math

import pytest
import torch

from leakgauge.clients import FedSGD, client_update
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.models.small import one_hidden_layer
from leakgauge.risk.counting import (
    OneHidden,
    low_rank,
    needed_rows,
    rank_of,
)
from leakgauge.risk.jacobian import update_rank
from leakgauge.risk.layers import count_layers
from leakgauge.task import Batch, DataSpec, Task


def conv(size: int, channels: int = 3, filters: int = 1, kernel: int = 5, padding: int = 2) -> OneHidden:
    return OneHidden.convolution(
        channels=channels, size=size, filters=filters, classes=10, kernel=kernel, padding=padding
    )


def test_the_worked_case_of_the_appendix() -> None:
    """B = 2, n₁ = 3, n₂ = 2: every equation of the system, written out, is the update; and it fixes both examples."""
    d = 7
    g = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        task = Task.of(one_hidden_layer(classes=2, shape=(d,), units=3).double(), DataSpec((d,), 2))
    x = torch.rand((2, d), generator=g, dtype=torch.float64)
    y = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    w1, b1, w2, b2 = (p.tolist() for p in task.parameters.values())
    g_w1, g_b1 = [[0.0] * d for _ in range(3)], [0.0] * 3
    g_w2, g_b2 = [[0.0] * 3 for _ in range(2)], [0.0] * 2
    for k in range(2):
        xk = x[k].tolist()
        hidden = [1 / (1 + math.exp(-sum(w1[i][m] * xk[m] for m in range(d)) - b1[i])) for i in range(3)]
        scores = [math.exp(sum(w2[j][i] * hidden[i] for i in range(3)) + b2[j]) for j in range(2)]
        error = [scores[j] / sum(scores) - float(y[k, j]) for j in range(2)]
        for j in range(2):
            g_b2[j] += error[j] / 2
            for i in range(3):
                g_w2[j][i] += error[j] * hidden[i] / 2
        for i in range(3):
            delta = sum(error[j] * w2[j][i] for j in range(2)) * hidden[i] * (1 - hidden[i])
            g_b1[i] += delta / 2
            for m in range(d):
                g_w1[i][m] += delta * xk[m] / 2
    update = client_update(task, FedSGD(), Batch(x, y), Draws(0)).tensors
    for by_hand, sent in zip((g_w1, g_b1, g_w2, g_b2), update.values(), strict=True):
        assert (
            sent.tolist() == pytest.approx(by_hand)
            if sent.ndim == 1
            else torch.allclose(sent, sent.new_tensor(by_hand))
        )

    net = OneHidden.linear(inputs=d, units=3, classes=2)
    assert count_layers(task, 2).equations == sum(v.numel() for v in update.values()) == 11 + 3 * d
    assert needed_rows(net, 2) == 2
    assert update_rank(task, Batch(x, y[:, 0].long()), g).full
    assert update_rank(task, Batch(x, y), g, soft_labels=True).unknowns == 2 * d + 2


def test_first_proposition_reads_one_example_from_one_unit() -> None:
    task = Task.of(one_hidden_layer(classes=2, shape=(9,), units=1).double(), DataSpec((9,), 2))
    x = torch.rand((1, 9), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    update = client_update(task, FedSGD(), Batch(x, torch.tensor([1])), Draws(0)).tensors
    weight, bias = list(update.values())[:2]
    assert torch.allclose(weight[0] / bias[0], x[0], rtol=1e-9)


def test_the_corrected_count_does_not_grow_with_the_batch() -> None:
    assert [needed_rows(conv(32), b) for b in (1, 4)] == [10, 12]
    assert [needed_rows(conv(16), b) for b in (1, 2)] == [6, 8]
    assert needed_rows(OneHidden.linear(inputs=1024, units=1, classes=10), 8) == 8


def test_equations_that_repeat_others_raise_the_count() -> None:
    """Kernel 3, 16 pixels: B·C·d²/(B·d'² + C·k² + 1) says 9, but 9 filters leave directions open."""
    small = conv(16, kernel=3, padding=1)
    assert needed_rows(small, 1) == 10


def test_low_rank_matrices_have_their_dimension() -> None:
    """Tangent space by brute force: the differential of (A, B) → A·B at a random point."""
    g = torch.Generator().manual_seed(0)
    for rows, columns, rank in ((3, 5, 2), (4, 4, 1), (2, 6, 7)):
        r = min(rows, columns, rank)
        a, b = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((rows, r), (r, columns)))
        jacobian = torch.cat(
            [j.reshape(rows * columns, -1) for j in torch.autograd.functional.jacobian(torch.matmul, (a, b))], 1
        )
        assert int(torch.linalg.matrix_rank(jacobian)) == low_rank(rows, columns, rank)


def test_bad_numbers_name_their_field() -> None:
    for make, field in (
        (lambda: OneHidden.linear(inputs=0, units=1, classes=2), "inputs"),
        (lambda: OneHidden.linear(inputs=1, units=1, classes=1), "classes"),
        (lambda: conv(2, kernel=9), "kernel"),
        (lambda: rank_of(conv(8), 0), "batch"),
    ):
        with pytest.raises(InputError) as error:
            make()
        assert error.value.field == field
