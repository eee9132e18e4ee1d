"""No exact reader certifies what is not there."""

from __future__ import annotations

from random import Random

import pytest

from hunt import targets
from hunt.certificates import Round, wrong
from hunt.scenarios import Scenario, built, names
from hunt.scenarios import wrong as unproved
from hunt.zoo import Net
from leakgauge.defenses import GaussianNoise
from leakgauge.defenses.dp import Absolute
from leakgauge.registry import DEFENSES
from same.further import LAYERS


def test_no_certificate_is_wrong_in_a_few_rounds() -> None:
    _, certified, off = wrong(range(25))
    assert not off, "\n".join(off)
    assert certified >= 5, "the draws test nothing"


def test_no_certificate_is_wrong_where_columns_are_left_out() -> None:
    """Zeros that stayed behind noise once passed for all that was left out."""
    _, certified, off = wrong(range(20000, 20040), columns=True)
    assert not off, "\n".join(off)
    assert certified >= 1, "the draws test nothing"


def test_no_certificate_is_wrong_where_other_examples_look_the_same() -> None:
    """A line of pixels that the network never reads was certified grey, what is squared with either sign."""
    _, certified, off = wrong(range(600_000, 600_030), fronts=True)
    assert not off, "\n".join(off)
    assert certified >= 1, "the draws test nothing"


@pytest.mark.parametrize("seed", [600_626, 602_314])
def test_no_certificate_is_wrong_behind_a_map_again(seed: int) -> None:
    """A map that adds neighbours; signs, which in the layer's plain form are of several sizes."""
    assert not wrong(range(seed, seed + 1), fronts=True)[2]


SEEDS = (1063, 1111, 1144, 4230)
"""Rounds of which a reader once certified what was none of the client's."""


@pytest.mark.parametrize("seed", SEEDS)
def test_no_certificate_is_wrong_again(seed: int) -> None:
    assert not wrong(range(seed, seed + 1))[2]


@pytest.mark.parametrize(("seed", "certified"), [(20459, 4), (20460, 2)])
def test_a_certificate_that_was_lost_once_is_given(seed: int, certified: int) -> None:
    """A clip that takes 3e-6 off the length; one of clients in a cohort, kept from acting by that of examples."""
    drawn = Round.drawn(seed)
    assert drawn is not None
    assert drawn.read("peeling") == (certified, [])


@pytest.mark.parametrize("seed", range(8))
def test_no_certificate_is_wrong_of_layers_in_other_words_behind_noise(seed: int) -> None:
    """Their gradient is a linear map of the update's, and so is its noise."""
    rng = Random(f"words {seed}")
    net = Net(first=rng.choice(sorted(LAYERS)))
    noise = GaussianNoise(scale=Absolute(sigma=10 ** rng.uniform(-10, -2)))
    assert not unproved(Scenario(net=net, defense=noise, examples=rng.choice((1, 2, 4)), seed=seed))


@pytest.mark.parametrize("defense", names(DEFENSES))
@pytest.mark.parametrize("net", [Net("patches"), Net(first="a sum of Kronecker products")], ids=["patches", "words"])
def test_no_certificate_is_wrong_behind_any_defence(net: Net, defense: str) -> None:
    """A clip by layers scales what shows the error signals otherwise than what they are solved in."""
    for seed in (180552, 1, 2):
        part = built(DEFENSES, defense, Random(seed))
        assert not unproved(Scenario(net=net, defense=part, seed=seed, using="patches", lacks=()))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_no_certificate_is_wrong_in_ten_thousand_rounds(part: int) -> None:
    _, _, off = wrong(range(1000 * part, 1000 * (part + 1)))
    assert not off, "\n".join(off)


def test_a_target_at_the_edge_of_where_a_loss_grows_in_a_line_is_not_told() -> None:
    """Huber, and float16: of all values beyond the edge the nearest was certified."""
    assert not targets.wrong("regression", [409])[2]


def test_a_place_that_carries_next_to_no_signal_is_not_told() -> None:
    """Dice of a mask, and float16: where the network is sure, one set place was taken for another."""
    assert not targets.wrong("masks", [409])[2]


def test_values_that_are_solved_for_do_not_prove_mixtures() -> None:
    """Where all units are driven by all, two mixtures with values of their own explain what two examples do."""
    assert not targets.wrong("regression", [400198])[2]


QUICK = "survival", "masks", "classes"
REST = [pytest.param(kind, marks=pytest.mark.slow) for kind in targets.KINDS if kind not in QUICK]


@pytest.mark.parametrize("kind", [*QUICK, *REST])
def test_no_certificate_is_wrong_of_any_kind_of_target(kind: str) -> None:
    """A thousand of each: `python -m hunt.targets`."""
    _, certified, off = targets.wrong(kind, range(25))
    assert not off, "\n".join(off)
    assert certified >= 1, "the draws test nothing"
