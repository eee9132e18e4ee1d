"""Pruning by magnitude over the whole update."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakgauge.defenses import Compose, Prune, TopK, noise, view_of
from leakgauge.tensors import Tensors
from leakgauge.update import Update, UpdateHeader, UpdateKind

G = UpdateHeader(UpdateKind.GRADIENT, 1)


def sent_by(defense: Prune | TopK, tensors: Tensors) -> Tensors:
    return defense.on_update(tensors, torch.Generator())


@given(values=st.lists(st.integers(-5, 5), min_size=2, max_size=40), rate=st.floats(0.01, 0.99))
def test_the_smallest_of_all_entries_go_earlier_ones_staying_at_ties(values: list[int], rate: float) -> None:
    """Against a sort by hand. `Prune.kept` is taken for granted here; see the next test."""
    tensors = {"a": torch.tensor(values[:1]).double(), "b": torch.tensor(values[1:]).double()}
    stays = sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))[: Prune(rate=rate).kept(len(values))]
    expected = [float(v) if i in stays else 0.0 for i, v in enumerate(values)]
    sent = sent_by(Prune(rate=rate), tensors)
    assert [*sent["a"].tolist(), *sent["b"].tolist()] == expected


@pytest.mark.parametrize(
    ("rate", "total", "kept"), [(0.9, 10, 1), (0.9, 19, 2), (0.5, 3, 2), (0.99, 100, 1), (0.3, 10, 7)]
)
def test_the_share_is_rounded_down(rate: float, total: int, kept: int) -> None:
    assert Prune(rate=rate).kept(total) == kept
    sent = sent_by(Prune(rate=rate), {"w": torch.arange(1.0, total + 1)})["w"]
    assert int((sent != 0).sum()) == kept


def test_one_threshold_for_all_tensors_unlike_top_k() -> None:
    tensors = {"small": torch.tensor([0.1, 0.2]), "large": torch.tensor([5.0, 7.0])}
    assert sent_by(Prune(rate=0.5), tensors)["small"].tolist() == [0.0, 0.0]
    assert float(sent_by(TopK(keep=0.5), tensors)["small"].abs().sum()) > 0


def test_edges() -> None:
    nan = float("nan")
    defense = Prune(rate=0.5)
    assert sent_by(defense, {"w": torch.zeros(4)})["w"].equal(torch.zeros(4))
    assert sent_by(defense, {"w": torch.zeros(0)})["w"].shape == (0,)
    assert sent_by(defense, {"w": torch.tensor([3.0])})["w"].tolist() == [3.0]
    assert math.isnan(float(sent_by(defense, {"w": torch.tensor([1.0, nan])})["w"][1]))


def test_the_support_is_on_the_wire_and_the_rest_is_small() -> None:
    raw = {"a": torch.tensor([1.0, -4.0, 0.5]), "b": torch.tensor([0.2, 3.0])}
    sent = sent_by(Prune(rate=0.6), raw)
    view = view_of(Prune(rate=0.6), Update(sent, G), None)
    assert view.unsent_small
    assert view.support is not None
    assert view.support["a"].tolist() == [False, True, False]
    assert all(view(raw)[k].equal(sent[k]) for k in raw)


def test_covered_by_noise_the_attacker_prunes_its_own_simulation() -> None:
    raw = {"w": torch.arange(1.0, 11.0)}
    defense = Compose((Prune(rate=0.6), noise(sigma=0.01)))
    view = view_of(defense, Update(defense.on_update(raw, torch.Generator().manual_seed(0)), G), None)
    assert view(raw)["w"].equal(sent_by(Prune(rate=0.6), raw)["w"])
    assert view.log_likelihood is not None
