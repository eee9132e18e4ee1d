"""The priors of Qian & Hansen against hand-written twins and finite differences."""

from __future__ import annotations

import math

import pytest
import torch

from leakgauge.attacks.matching import ByBatch, NoPrior, Orthogonality, SquaredNorm, TotalVariation
from leakgauge.errors import InputError
from leakgauge.registry import PRIORS
from leakgauge.task import DataSpec


def batch(n: int = 3, *shape: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.randn((n, *(shape or (1, 6))), generator=g, dtype=torch.float64)


@pytest.mark.parametrize("prior", [SquaredNorm(0.3), Orthogonality(0.3)], ids=repr)
@pytest.mark.parametrize("shape", [(5,), (2, 3, 3)], ids=str)
def test_priors_pass_finite_differences(prior, shape: tuple[int, ...]) -> None:
    z = batch(3, *shape).requires_grad_()
    assert torch.autograd.gradcheck(prior, (z,))
    assert torch.autograd.gradgradcheck(prior, (z,))


def test_orthogonality_is_a_loop_over_ordered_pairs() -> None:
    z = batch(4, 2, 5)
    by_hand = 0.0
    for i in range(4):
        for j in range(4):
            if i != j:
                by_hand += sum(float(a) * float(b) for a, b in zip(z[i].flatten(), z[j].flatten(), strict=True)) ** 2
    assert float(Orthogonality(0.7)(z)) == pytest.approx(0.7 * by_hand)


def test_orthogonality_at_the_edges() -> None:
    assert float(Orthogonality(1.0)(torch.eye(3)[:, None])) == 0
    assert float(Orthogonality(1.0)(torch.ones(1, 4))) == 0
    # Two equal examples of squared length 4: 4² in both orders.
    assert float(Orthogonality(1.0)(torch.ones(2, 4))) == 32


def test_the_norm_is_of_the_whole_batch() -> None:
    z = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert float(SquaredNorm(0.5)(z)) == 12.5


def test_priors_act_on_recordings_and_under_vmap() -> None:
    z = batch(6, 1, 16).view(2, 3, 1, 16)
    for prior in (SquaredNorm(0.1), Orthogonality(0.1)):
        together = torch.vmap(prior)(z)
        assert together.tolist() == pytest.approx([float(prior(one)) for one in z])


def test_the_batch_decides_which_prior_acts() -> None:
    prior = ByBatch(one=SquaredNorm(1.0), several=Orthogonality(1.0))
    one, two = torch.ones(1, 4), torch.ones(2, 4)
    assert float(prior(one)) == 4
    assert float(prior(two)) == 32
    assert not prior.refuses(DataSpec((4,), 2))
    assert "two spatial axes" in ByBatch(one=SquaredNorm(1.0), several=TotalVariation(1.0)).refuses(DataSpec((4,), 2))
    assert float(ByBatch(one=NoPrior(), several=NoPrior())(two)) == 0


@pytest.mark.parametrize("name", ["squared-norm", "orthogonality"])
def test_priors_have_names_and_refuse_negative_weights(name: str) -> None:
    assert PRIORS[name].build(weight=0.0)(torch.ones(2, 3)) == 0
    with pytest.raises(InputError) as error:
        PRIORS[name].build(weight=-math.pi)
    assert error.value.field == "weight"
