"""Client-level noise: the clip, the noise, and what is left of both in a mean."""

from __future__ import annotations

import pytest
import torch

from cases import batch, task
from leakgauge.clients import FedAvg, FedSGD, LocalTraining, client_update
from leakgauge.defenses import ClientDP, Clip, Compose, noise, view_of
from leakgauge.draws import Draws
from leakgauge.tensors import map_tensors, squared_norm


@pytest.mark.parametrize("protocol", [FedSGD(), FedAvg(epochs=2, batch_size=2, lr=0.1)], ids=repr)
def test_it_clips_the_whole_update_and_adds_noise_of_the_stated_size(protocol: FedSGD | LocalTraining) -> None:
    t, b, norm, z = task("relu"), batch(4), 0.05, 0.4
    raw = client_update(t, protocol, b, Draws(0)).tensors
    assert float(squared_norm(raw).sqrt()) > norm
    clipped = map_tensors(lambda v: v * norm / squared_norm(raw).sqrt(), raw)
    sent = [
        client_update(t, protocol, b, Draws(s), defense=ClientDP(noise_multiplier=z, norm=norm)).tensors
        for s in range(30)
    ]
    added = torch.stack([torch.cat([(u[k] - clipped[k]).flatten() for k in u]) for u in sent])
    assert float(added.std()) == pytest.approx(z * norm, rel=0.06)
    # In the mean of a cohort the noise shrinks with the root of its size, a client's part with the size.
    assert float(added.view(3, 10, -1).mean(1).std()) == pytest.approx(z * norm / 10**0.5, rel=0.15)


def test_it_is_clip_and_noise_to_the_attacker_too() -> None:
    t, b = task("relu"), batch(4)
    one, two = ClientDP(noise_multiplier=0.4, norm=0.05), Compose((Clip(norm=0.05), noise(sigma=0.02)))
    update = client_update(t, FedSGD(), b, Draws(7), defense=one)
    raw = client_update(t, FedSGD(), b, Draws(7)).tensors
    views = [view_of(d, update, None) for d in (one, two)]
    for view in views:
        assert view.noise_scale is not None
        assert all(float(s) == pytest.approx(0.02) for s in view.noise_scale.values())
        assert float(squared_norm(view(raw)).sqrt()) == pytest.approx(0.05)
    likelihood = views[0].log_likelihood
    assert likelihood is not None
    assert float(likelihood(views[0](raw))) > float(likelihood(map_tensors(lambda v: v + 0.02, views[0](raw))))


def test_noise_before_the_clip_has_no_known_scale() -> None:
    t, b = task("relu"), batch(4)
    defense = Compose((noise(sigma=1.0), ClientDP(noise_multiplier=0.4, norm=0.05)))
    assert view_of(defense, client_update(t, FedSGD(), b, Draws(7), defense=defense), None).noise_scale is None


def test_more_noise_on_it_does_not_undo_the_clip_in_the_likelihood() -> None:
    t, b = task("relu"), batch(4)
    more = Compose((ClientDP(noise_multiplier=0.4, norm=0.05), noise(sigma=0.01)))
    plain = Compose((Clip(norm=0.05), noise(sigma=(0.02**2 + 0.01**2) ** 0.5)))
    update = client_update(t, FedSGD(), b, Draws(7), defense=more)
    raw = client_update(t, FedSGD(), b, Draws(7)).tensors
    ours, theirs = (view_of(d, update, None).log_likelihood for d in (more, plain))
    assert ours is not None
    assert theirs is not None
    assert float(ours(raw)) == pytest.approx(float(theirs(raw)))
    assert float(ours(raw)) == pytest.approx(float(ours(map_tensors(lambda v: 3 * v, raw))))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_an_update_that_is_not_finite_counts_as_zero(value: float) -> None:
    """A local training that diverged would reveal itself with certainty."""
    broken = {"a": torch.tensor([1.0, value]), "b": torch.ones(3)}
    noise = ClientDP(norm=1.0, noise_multiplier=1.0).on_update(
        {k: torch.zeros_like(v) for k, v in broken.items()}, torch.Generator().manual_seed(0)
    )
    sent = ClientDP(norm=1.0, noise_multiplier=1.0).on_update(broken, torch.Generator().manual_seed(0))
    assert all(bool((sent[k] == noise[k]).all()) for k in broken)
    assert all(bool((v == 0).all()) for v in Clip(norm=1.0).on_update(broken, None).values())
