"""Soteria's scores against one backward pass per example and feature, and its mask on the wire."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reproduce.mkor.identity import IdentityTaps, modified_lenet5
from torch import nn

from cases import SPEC, batch, task
from leakgauge.clients import FedAvg, FedSGD, SecureAggregation, client_update, raw_update
from leakgauge.data import Parquet
from leakgauge.defenses import Clip, Compose, NoDefense, Soteria, noise, view_of
from leakgauge.defenses.representations import defended_layer, feature_sensitivity, soteria_mask
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.registry import DEFENSES
from leakgauge.task import Batch, DataSpec, Mode, Task
from leakgauge.tensors import Tensors


def literal(net: nn.Module, x: torch.Tensor, below: nn.Module) -> torch.Tensor:
    """One backward pass per example and feature, written out."""
    net.eval()
    features = below(x).shape[1]
    scores = torch.zeros(features, dtype=x.dtype)
    for k in range(len(x)):
        for f in range(features):
            z = x[k : k + 1].clone().requires_grad_()
            r = below(z)[0, f]
            r.backward()
            scores[f] += z.grad.norm() / (r.detach().abs() + 1e-10)
    return scores


@pytest.mark.parametrize("model", ["smooth", "relu", "normed", "dropped"])
@pytest.mark.parametrize("mode", list(Mode), ids=lambda m: m.value)
def test_scores_are_those_of_a_double_loop(model: str, mode: Mode) -> None:
    t, b = task(model, mode), batch(3)
    net = t.module.train(False)
    first = next(i for i, layer in enumerate(net) if isinstance(layer, nn.Linear))
    expected = literal(net, SPEC.normalise(b.inputs), net[:first])
    t.module.train(mode is Mode.TRAIN)
    assert torch.allclose(feature_sensitivity(t, b), expected, rtol=1e-9)
    assert t.module.training is (mode is Mode.TRAIN)
    assert not any(part._forward_pre_hooks for part in t.module.modules())


def test_chunks_do_not_matter(monkeypatch) -> None:
    whole = feature_sensitivity(task(), batch())
    monkeypatch.setattr("leakgauge.defenses.representations.MOST_ENTRIES", 3 * 4 * 192)
    assert torch.allclose(feature_sensitivity(task(), batch()), whole, rtol=1e-12)


@pytest.mark.parametrize("prune", [0.0, 12.5, 30.0, 80.0, 100.0])
def test_the_mask_is_numpys_percentile(prune: float) -> None:
    t, b = task(), batch()
    scores = feature_sensitivity(t, b).numpy()
    kept = soteria_mask(t, b, prune=prune)
    assert kept.numpy().tolist() == (scores >= np.percentile(scores, prune)).tolist()
    share = 1 - float(kept.double().mean())
    assert share == pytest.approx(prune / 100, abs=1 / len(kept))


def test_the_layer_is_found_by_computation_and_not_by_position() -> None:
    class Odd(nn.Module):
        """The classifier is registered first."""

        def __init__(self) -> None:
            super().__init__()
            self.a_classifier = nn.Linear(16, 5)
            self.z_first = nn.Linear(192, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a_classifier(torch.sigmoid(self.z_first(x.flatten(1))))

    t = Task.of(Odd().double(), SPEC)
    assert defended_layer(t) == "z_first"
    update = client_update(t, FedSGD(), batch(), Draws(0), defense=Soteria(layer="a_classifier")).tensors
    assert int((update["a_classifier.weight"] == 0).all(0).sum()) == 5
    assert not bool((update["z_first.weight"] == 0).all(0).any())
    with pytest.raises(InputError, match="name one of z_first, a_classifier"):
        defended_layer(t, "elsewhere")


def test_models_that_it_does_not_fit_are_refused() -> None:
    convolutional = nn.Sequential(nn.Conv2d(3, 5, 8), nn.Flatten())
    with pytest.raises(InputError, match="no linear layer"):
        Soteria().for_batch(Task.of(convolutional.double(), SPEC), batch())
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 5)).double()
    frozen[1].requires_grad_(False)
    with pytest.raises(InputError, match="does not train"):
        Soteria().for_batch(Task.of(frozen, SPEC), batch())
    mixer = nn.Sequential(nn.Linear(8, 2), nn.Flatten(), nn.Linear(48, 5)).double()
    with pytest.raises(InputError, match="name a layer that sees vectors"):
        Soteria().for_batch(Task.of(mixer, SPEC), batch())
    with pytest.raises(InputError, match="percent"):
        Soteria(prune=101.0)


def columns(tensors: Tensors) -> torch.Tensor:
    return (tensors["3.weight"] != 0).any(0)


@pytest.mark.parametrize("protocol", [FedSGD(), FedAvg(epochs=2, batch_size=3, lr=0.1)], ids=repr)
def test_only_the_columns_of_that_weight_are_zeroed(protocol) -> None:
    t, b = task(), batch()
    plain = client_update(t, protocol, b, Draws(0)).tensors
    sent = client_update(t, protocol, b, Draws(0), defense=Soteria()).tensors
    kept = soteria_mask(t, b)
    assert 0 < int(kept.sum()) < len(kept)
    assert torch.equal(columns(sent), kept)
    assert torch.equal(sent["3.weight"][:, kept], plain["3.weight"][:, kept])
    assert all(torch.equal(sent[k], plain[k]) for k in plain if k != "3.weight")


def test_the_mask_is_of_what_the_client_trains_on() -> None:
    """Bound after the batch stage: the mask is of the changed pictures, not of those before."""

    class Darken(NoDefense):
        def on_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
            return Batch(batch.inputs**6, batch.labels)

    t, b = task(), batch()
    dark = Batch(b.inputs**6, b.labels)
    sent = client_update(t, FedSGD(), b, Draws(0), defense=Compose((Soteria(), Darken()))).tensors
    assert not torch.equal(soteria_mask(t, b), soteria_mask(t, dark))
    assert torch.equal(columns(sent), soteria_mask(t, dark))


def test_without_a_batch_it_refuses_rather_than_doing_nothing() -> None:
    with pytest.raises(InputError, match="for_batch"):
        Soteria().on_update(task().parameters, torch.Generator())
    assert Soteria().acts_on_update
    with pytest.raises(InputError, match="secure aggregation"):
        client_update(task(), SecureAggregation(cohort=2), batch(), Draws(0), defense=Soteria())


@pytest.mark.parametrize("defense", [Soteria(), Compose((Soteria(), Clip(norm=0.1)))], ids=["alone", "clipped"])
def test_an_attacker_simulates_it_from_the_zero_columns(defense) -> None:
    t, b = task(), batch()
    update = client_update(t, FedSGD(), b, Draws(0), defense=defense)
    view = view_of(defense, update, None)
    assert view.support is not None
    assert torch.equal(view.support["3.weight"].all(0), soteria_mask(t, b))
    simulated = view(raw_update(t, FedSGD(), b, Draws(0), defense)[0])
    assert all(torch.allclose(simulated[k], update.tensors[k], rtol=1e-10) for k in simulated)


@pytest.mark.parametrize(("sigma", "hidden"), [(1e-5, False), (1e-3, False), (1.0, True)])
def test_noise_behind_it_hides_the_mask_where_it_is_as_large_as_the_update(sigma: float, hidden: bool) -> None:
    """Noise of 1e-4 of the update's norm used to: an attacker who knows both read at 6 dB what it reads at 17 to 22."""
    defense = Compose((Soteria(), noise(sigma=sigma)))
    update = client_update(task(), FedSGD(), batch(), Draws(0), defense=defense)
    view = view_of(defense, update, None)
    assert view.noise_scale is not None
    assert (view.support is None) == hidden
    alone = view_of(Soteria(), client_update(task(), FedSGD(), batch(), Draws(0), defense=Soteria()), None).support
    assert view.support is None or all(torch.equal(view.support[k], alone[k]) for k in alone)


def test_always_black_pixels_behind_a_relu_prune_nothing(shared) -> None:
    """Known artefact (MKOR's table): its modified network "withstands" Soteria because Soteria does nothing there."""
    source = Parquet(path=str(shared / "data" / "mnist-test.parquet"), channels=1)
    b = source.read(torch.randperm(len(source), generator=torch.Generator().manual_seed(0))[:30].tolist())
    torch.manual_seed(0)
    honest = Task.of(modified_lenet5(), DataSpec((1, 28, 28), 10))
    t = honest.with_state(IdentityTaps().craft(honest, torch.Generator().manual_seed(0))[0])
    scores = feature_sensitivity(t, b)
    black = (b.inputs == 0).all(0).flatten()
    assert float(black.double().mean()) > 0.3
    assert torch.equal(scores == 0, black)
    assert bool(soteria_mask(t, b, prune=30.0).all())
    assert not bool((scores >= torch.quantile(scores, 0.8)).all())


def test_it_is_registered() -> None:
    assert DEFENSES["soteria"].build(prune=80.0) == Soteria(prune=80.0)
