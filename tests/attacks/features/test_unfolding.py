"""The rows that a layer multiplies, found in the graph of its gradient, against torch's own layers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from leakgauge.attacks.features.inside import Inside
from leakgauge.task import DataSpec, Task

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def behind(layer, shape):
    """The first layer of a network as its gradient has it."""
    after = nn.Flatten(1)
    with torch.no_grad():
        wide = after(layer(torch.zeros(1, *shape, dtype=torch.float64))).shape[1]
    task = Task.of(nn.Sequential(layer, after, nn.Tanh(), nn.Linear(wide, 2)).double(), DataSpec(shape, 2))
    return Inside.of(task, 3).layers[0]


@settings(max_examples=15, deadline=None)
@given(
    dims=st.integers(1, 3),
    size=st.integers(4, 5),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
)
def test_rows_times_the_weight_are_the_convolution(dims, size, kernel, stride, padding, dilation):
    if dilation * (kernel - 1) >= size:
        return
    shape = (3, *[size] * dims)
    layer = CONVOLUTIONS[dims](3, 4, kernel, stride, padding, dilation, bias=False).double().requires_grad_()
    found = behind(layer, shape)
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    made = found.unfolding.rows(found.unfolding.of_hidden(x)) @ found.matrix(layer.weight.detach()).T
    assert torch.allclose(made.transpose(1, 2), layer(x).flatten(2), atol=1e-10)
    assert found.unfolding.channels == 3
    assert torch.equal(found.hidden_of(found.unfolding.of_hidden(x)), x)


@pytest.mark.parametrize("shape", [(5, 6), (12,)], ids=["a sequence", "one place"])
def test_rows_of_a_linear_layer_are_what_it_is_given(shape):
    layer = nn.Linear(shape[-1], 4).double()
    found = behind(layer, shape)
    x = torch.randn(2, *shape, dtype=torch.float64)
    made = found.unfolding.rows(found.unfolding.of_hidden(x)) @ found.matrix(layer.weight.detach()).T + layer.bias
    assert torch.allclose(made.flatten(1), layer(x).flatten(1), atol=1e-10)
    assert found.unfolding.places == (shape[0] if len(shape) > 1 else 1)


def test_maps_is_the_adjoint_of_rows():
    unfolding = behind(nn.Conv2d(2, 3, (3, 2), (2, 1), (1, 0)).double(), (2, 5, 4)).unfolding
    draw = torch.Generator().manual_seed(0)
    h = torch.randn(1, 2, 20, generator=draw, dtype=torch.float64)
    rows = torch.randn(1, unfolding.places, unfolding.columns, generator=draw, dtype=torch.float64)
    assert float((unfolding.rows(h) * rows).sum()) == pytest.approx(float((h * unfolding.maps(rows)).sum()))
    ones = torch.ones_like(h)
    assert torch.equal(unfolding.maps(unfolding.rows(ones))[0, 0], unfolding.cover)
