"""Dealing data out: every example once, reproducible, as uneven as asked."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakgauge.errors import InputError
from leakgauge.training import dirichlet_partition


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=120),
    clients=st.integers(1, 20),
    alpha=st.sampled_from([1e-3, 0.1, 0.5, 10.0]),
    seed=st.integers(0, 2**31),
)
def test_every_example_goes_to_exactly_one_client(labels: list[int], clients: int, alpha: float, seed: int) -> None:
    y = torch.tensor(labels)
    if clients > len(labels):
        with pytest.raises(InputError, match="clients"):
            dirichlet_partition(y, clients, alpha, _seeded(seed))
        return
    hands = dirichlet_partition(y, clients, alpha, _seeded(seed))
    assert len(hands) == clients
    assert all(hands)
    assert sorted(i for hand in hands for i in hand) == list(range(len(labels)))
    assert hands == dirichlet_partition(y, clients, alpha, _seeded(seed))


def test_shares_have_the_mean_and_variance_of_the_dirichlet_distribution() -> None:
    """A symmetric Dirichlet share has mean 1/k and variance (k−1)/(k²(kα+1))."""
    k, alpha, n = 5, 0.5, 200
    y = torch.arange(400).repeat_interleave(n)
    hands = dirichlet_partition(y, k, alpha, _seeded(1))
    counts = torch.stack([torch.bincount(y[list(hand)], minlength=400) for hand in hands]).double() / n
    variance = (k - 1) / (k**2 * (k * alpha + 1))
    assert counts.mean().item() == pytest.approx(1 / k, abs=1e-9)
    assert counts.var().item() == pytest.approx(variance, rel=0.1)


def test_large_alpha_gives_everybody_the_same_mix_and_another_seed_another_deal() -> None:
    y = torch.arange(10).repeat(200)
    hands = dirichlet_partition(y, 10, 1e6, _seeded(0))
    for hand in hands:
        assert (torch.bincount(y[list(hand)], minlength=10) - 20).abs().max() <= 1
    assert hands != dirichlet_partition(y, 10, 1e6, _seeded(1))


@pytest.mark.parametrize(("clients", "alpha", "field"), [(0, 0.5, "clients"), (2, 0.0, "alpha"), (2, -1.0, "alpha")])
def test_bad_input_names_the_field(clients: int, alpha: float, field: str) -> None:
    with pytest.raises(InputError) as error:
        dirichlet_partition(torch.arange(4), clients, alpha, _seeded(0))
    assert error.value.field == field
