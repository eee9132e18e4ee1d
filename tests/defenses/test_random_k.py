"""Random-k: how many entries, which, and what the wire shows."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from hypothesis import given
from hypothesis import strategies as st

from leakgauge.defenses import Compose, RandomK, noise, view_of
from leakgauge.update import Update, UpdateHeader, UpdateKind

G = UpdateHeader(UpdateKind.GRADIENT, 1)


@given(st.integers(1, 40), st.integers(1, 1000), st.integers(0, 1000))
def test_exactly_k_entries_are_kept_at_their_values(n: int, thousandths: int, seed: int) -> None:
    t = torch.arange(1.0, n + 1)
    sent = RandomK(keep=thousandths / 1000).on_update({"w": t}, torch.Generator().manual_seed(seed))["w"]
    assert int((sent != 0).sum()) == math.ceil(Fraction(thousandths, 1000) * n)
    assert bool(((sent == t) | (sent == 0)).all())


def test_every_entry_is_as_likely_as_another() -> None:
    """1000 draws of 2 of 5. Hoeffding and a union over 5: a share is off .4 by more than .11 with p < 1e-9."""
    g, draws = torch.Generator().manual_seed(0), 1000
    shares = torch.stack([RandomK(keep=0.4).on_update({"w": torch.ones(5)}, g)["w"] for _ in range(draws)]).mean(0)
    assert float((shares - 0.4).abs().max()) < 0.11


def test_the_unbiased_one_multiplies_by_n_over_k() -> None:
    sent = RandomK(keep=0.25, unbiased=True).on_update({"w": torch.ones(8)}, torch.Generator().manual_seed(0))["w"]
    assert sorted(sent.tolist()) == [0.0] * 6 + [4.0] * 2


def test_edges() -> None:
    defense, g = RandomK(keep=0.5, unbiased=True), torch.Generator().manual_seed(0)
    assert defense.on_update({"w": torch.zeros(0)}, g)["w"].shape == (0,)
    assert defense.on_update({"w": torch.zeros(3)}, g)["w"].equal(torch.zeros(3))
    assert defense.on_update({"w": torch.tensor([5.0])}, g)["w"].tolist() == [5.0]
    everything = RandomK(keep=1.0).on_update({"w": torch.tensor([1.0, float("nan")])}, g)["w"]
    assert math.isnan(float(everything[1]))
    assert float(everything[0]) == 1.0


def test_the_support_is_on_the_wire_and_says_nothing_of_the_sizes() -> None:
    t = torch.arange(1.0, 21.0)
    sent = RandomK(keep=0.3).on_update({"w": t}, torch.Generator().manual_seed(0))
    view = view_of(RandomK(keep=0.3), Update(sent, G), None)
    assert view.support is not None
    assert view.support["w"].equal(sent["w"] != 0)
    assert not view.unsent_small
    assert view({"w": t})["w"].equal(sent["w"])


def test_noise_covers_the_support_where_it_is_as_large_as_the_update() -> None:
    """Noise of any size used to: a defence that is none by itself hid the other from its attacker."""
    raw = {"w": torch.arange(1.0, 21.0)}
    for sigma, hidden in ((0.01, False), (0.1, False), (30.0, True)):
        defense = Compose((RandomK(keep=0.3, unbiased=True), noise(sigma=sigma)))
        sent = defense.on_update(raw, torch.Generator().manual_seed(0))
        view = view_of(defense, Update(sent, G), None)
        assert (view.support is None) == hidden
        assert view.support is None or view.support["w"].equal(sent["w"].abs() > 1)
    assert torch.equal(view(raw)["w"], raw["w"]), "what is sent is the raw update in the mean over the places"
