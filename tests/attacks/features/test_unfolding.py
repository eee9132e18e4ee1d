"""The rows that a convolution multiplies, against torch's own."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.attacks.features.unfolding import convolution

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@settings(max_examples=30, deadline=None)
@given(
    dims=st.integers(1, 3),
    size=st.integers(4, 6),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
)
def test_rows_times_the_weight_are_the_convolution(dims, size, kernel, stride, padding, dilation):
    if dilation * (kernel - 1) >= size:
        return
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, *[size] * dims, generator=draw, dtype=torch.float64)
    weight = torch.randn(4, 3, *[kernel] * dims, generator=draw, dtype=torch.float64)
    every = ([n] * dims for n in (kernel, stride, padding, dilation))
    unfolding = convolution([size] * dims, 3, *every)
    made = unfolding.rows(x.flatten(2)) @ weight.flatten(2).transpose(1, 2).flatten(1).T
    want = CONVOLUTIONS[dims](x, weight, stride=stride, padding=padding, dilation=dilation)
    assert torch.allclose(made.transpose(1, 2), want.flatten(2), atol=1e-10)


def test_maps_is_the_adjoint_of_rows():
    unfolding = convolution([5, 4], 2, [3, 2], [2, 1], [1, 0], [1, 1])
    draw = torch.Generator().manual_seed(0)
    h = torch.randn(1, 2, 20, generator=draw, dtype=torch.float64)
    rows = torch.randn(1, unfolding.places, unfolding.columns, generator=draw, dtype=torch.float64)
    assert float((unfolding.rows(h) * rows).sum()) == pytest.approx(float((h * unfolding.maps(rows)).sum()))
    ones = torch.ones_like(h)
    assert torch.equal(unfolding.maps(unfolding.rows(ones))[0, 0], unfolding.cover)
