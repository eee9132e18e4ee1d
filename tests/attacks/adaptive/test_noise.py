"""The counter to noise: what scale it knows, what it changes, and that it helps."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from cases import SPEC, batch, task
from leakgauge.attacks.adaptive import Adapted, Counter, Naive, counter_to
from leakgauge.attacks.adaptive.noise import NATURAL_VARIATION, STRENGTH, Whitened, against_noise, known_scale
from leakgauge.attacks.matching import (
    BoundedLBFGS,
    Cosine,
    Falling,
    Matching,
    NoPrior,
    Pixels,
    Prior,
    Scheduled,
    SquaredL2,
    TotalVariation,
    Uniform,
)
from leakgauge.attacks.matching.canvases import LowResolution
from leakgauge.attacks.recipes.auto import falling_variation
from leakgauge.clients import FedAvg, FedSGD, Protocol, SecureAggregation, client_update
from leakgauge.compute import Budget
from leakgauge.defenses import (
    DPSGD,
    AttackerView,
    ClientDP,
    Clip,
    ClipExamples,
    ClipLayers,
    Compose,
    Defense,
    FedCDP,
    NoDefense,
    TopK,
    noise,
)
from leakgauge.defenses.dp import laplace
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Batch
from leakgauge.tensors import entries, squared_norm


def observe(
    defense: Defense, protocol: Protocol | None = None, *, n: int = 4, seed: int = 7, b: Batch | None = None
) -> Observation:
    t, b, protocol = task("smooth"), b or batch(n), protocol or FedSGD()
    update = client_update(t, protocol, b, Draws(seed), defense=defense)
    return Observation(t, update, Knowledge(labels=b.labels, local_training=protocol, defense=defense))


@pytest.mark.parametrize(
    "protocol",
    [
        FedSGD(),
        FedAvg(epochs=3, batch_size=3, lr=1e-6),
        FedAvg(epochs=3, batch_size=2, lr=1e-6, momentum=0.9),
        FedAvg(epochs=3, batch_size=2, lr=1e-6, momentum=0.8, dampening=0.5),
        FedAvg(epochs=3, batch_size=2, lr=1e-6, momentum=0.9, nesterov=True),
    ],
    ids=repr,
)
@pytest.mark.parametrize("defense", [DPSGD(noise_multiplier=0.7, norm=0.5), FedCDP(noise_multiplier=0.1, norm=0.5)])
def test_the_scale_is_that_of_the_noise_on_the_update(protocol: Protocol, defense: Defense) -> None:
    """lr is so small that every step sees the same gradients."""
    clean = observe(defense.without_noise(), protocol).update.tensors
    added = []
    for seed in range(6):
        sent = observe(defense, protocol, seed=seed).update.tensors
        added.append(torch.cat([(sent[k] - clean[k]).flatten() for k in sent]))
    scale = known_scale(observe(defense, protocol))
    assert scale is not None
    assert float(scale["0.weight"]) == pytest.approx(float(torch.stack(added).std()), rel=0.05)


@pytest.mark.parametrize("snr", [0.0, -10.0])
@pytest.mark.parametrize("protocol", [FedSGD(), FedAvg(lr=0.01), FedAvg(epochs=2, lr=1e-6)], ids=repr)
def test_noise_in_proportion_to_the_gradient_is_estimated_from_gradient_and_delta_alike(
    snr: float, protocol: Protocol
) -> None:
    """Only the naive attack ran against Fed-CDP in a FedAvg client, under the name of the adapted one."""
    defense, added = FedCDP(snr=snr), []
    clean = observe(defense.without_noise(), protocol).update.tensors
    for seed in range(6):
        sent = observe(defense, protocol, seed=seed).update.tensors
        added.append(torch.cat([(sent[k] - clean[k]).flatten() for k in sent]))
    scale, true = known_scale(observe(defense, protocol)), float(torch.stack(added).std())
    assert scale is not None
    assert 0.8 * true < float(scale["0.weight"]) < 2.5 * true


@pytest.mark.parametrize("after", [noise(sigma=1e-7), noise(sigma=0.02), laplace(sigma=0.02)], ids=repr)
def test_noise_on_the_update_adds_to_that_of_the_steps(after: Defense) -> None:
    dp, protocol = DPSGD(noise_multiplier=0.7, norm=0.5), FedAvg(lr=1e-2, epochs=2)
    steps, both = (known_scale(observe(d, protocol)) for d in (dp, Compose((dp, after))))
    alone = known_scale(observe(after, protocol))
    assert steps is not None
    assert both is not None
    assert alone is not None
    for name, sigma in both.items():
        assert float(sigma) == pytest.approx(float((steps[name] ** 2 + alone[name] ** 2).sqrt()))


def test_labels_tell_the_number_of_examples() -> None:
    """Those who know the labels but were sent no count knew no scale, and attacked as if there were no noise."""
    dp = DPSGD(noise_multiplier=0.7, norm=0.5)
    for protocol in (FedSGD(), FedAvg(lr=1e-2, epochs=2)):
        seen = observe(dp, protocol)
        header = replace(seen.update.header, example_count=None)
        blind = replace(seen, update=replace(seen.update, header=header))
        assert blind.example_count is None
        counted, told = known_scale(seen), known_scale(blind)
        assert counted is not None
        assert told is not None
        for name, sigma in counted.items():
            assert torch.equal(sigma, told[name])


def test_an_unknown_scale_is_none() -> None:
    dp = DPSGD(noise_multiplier=0.7, norm=0.5)
    assert known_scale(observe(NoDefense())) is None
    assert known_scale(observe(Compose((noise(sigma=0.1), Clip(norm=0.1))))) is None
    assert known_scale(observe(Compose((dp, Clip(norm=1e-9))), FedAvg(lr=1e-3))) is None
    seen = observe(dp, FedAvg(lr=1e-3))
    blind = replace(seen, knowledge=replace(seen.knowledge, local_training=None))
    assert known_scale(blind) is None


def test_the_objective_is_the_likelihood_in_units_of_the_cosine() -> None:
    seen = observe(Compose((Clip(norm=0.5), noise(tensor_std=0.3))))
    o, scale = seen.update.tensors, known_scale(seen)
    assert scale is not None
    s = {k: v + 0.1 * torch.randn(v.shape, generator=torch.Generator().manual_seed(1)) for k, v in o.items()}
    ours, theirs = (torch.cat([(t[k] / scale[k]).flatten() for k in o]) for t in (s, o))
    cosine = float(ours @ theirs / ours.norm() / theirs.norm())
    assert float(Whitened(scale)(s, o, AttackerView())) == pytest.approx(1 - cosine)
    # −log of the likelihood at the best length, relative to that of a zero update, which is ½.
    best = float(ours @ theirs / ours.square().sum())
    nll = 0.5 * float((best * ours - theirs).square().sum() / theirs.square().sum())
    assert nll == pytest.approx((1 - cosine**2) / 2)
    even = {k: torch.tensor(0.1) for k in o}
    assert float(Whitened(even)(s, o, AttackerView())) == pytest.approx(float(Cosine()(s, o, AttackerView())))


def test_where_the_length_counts_the_objective_is_the_gaussian_likelihood_itself() -> None:
    seen = observe(Compose((Clip(norm=0.5), noise(tensor_std=0.3))))
    o, scale = seen.update.tensors, known_scale(seen)
    assert scale is not None
    s = {k: 3 * v + 0.1 * torch.randn(v.shape, generator=torch.Generator().manual_seed(1)) for k, v in o.items()}
    ours, theirs = (torch.cat([(t[k] / scale[k]).flatten() for k in o]) for t in (s, o))
    nll = 0.5 * float((ours - theirs).square().sum() / theirs.square().sum())
    assert float(Whitened(scale, scale_free=False)(s, o, AttackerView())) == pytest.approx(nll)


def test_the_weight_of_the_variation_follows_the_unknowns_of_the_canvas() -> None:
    seen, last = observe(noise(relative=0.5)), []
    for canvas in (Pixels(), LowResolution(factor=2)):
        prior = against_noise(Matching(canvas=canvas, prior=NoPrior()), noise(relative=0.5), seen).prior
        assert isinstance(prior, Scheduled)
        assert isinstance(prior.prior, TotalVariation)
        last.append(prior.prior.weight * prior.at(99, 100, 0.0))
    assert last[1] == pytest.approx(last[0] / 4)


def test_the_weight_of_the_variation_is_calibrated_from_the_noise() -> None:
    for relative in (0.1, 0.5):
        seen = observe(noise(relative=relative), n=2)
        adapted = against_noise(Matching(), noise(relative=relative), seen)
        o = seen.update.tensors
        sigma2 = relative**2 / (1 + relative**2) * float(squared_norm(o)) / entries(o)
        natural = NATURAL_VARIATION * sum(1 / s for s in SPEC.std) / 3
        expected = STRENGTH / natural * 2 * math.prod(SPEC.shape) * sigma2 / float(squared_norm(o))
        assert isinstance(adapted.prior, Scheduled)
        assert isinstance(adapted.prior.prior, TotalVariation)
        assert adapted.prior.prior.weight * adapted.prior.at(99, 100, 0.0) == pytest.approx(expected, rel=1e-4)
        assert isinstance(adapted.objective, Whitened)
    rough = replace(seen, knowledge=replace(seen.knowledge, public_data=torch.rand(4, *SPEC.shape)))
    tried = against_noise(Matching(), noise(relative=0.5), rough).prior
    assert isinstance(tried, Scheduled)
    assert isinstance(tried.prior, TotalVariation)
    assert tried.prior.weight < adapted.prior.prior.weight  # rougher pictures, a weaker prior


def test_canvas_minimiser_start_and_restarts_stay() -> None:
    attack = Matching(canvas=Pixels(first=Uniform()), minimiser=BoundedLBFGS(steps=77), restarts=2)
    adapted = against_noise(attack, noise(relative=1.0), observe(noise(relative=1.0)))
    assert replace(adapted, objective=attack.objective, prior=attack.prior, labels=attack.labels) == attack


def test_what_needs_no_adapting_is_left_alone() -> None:
    faint, loud = observe(noise(relative=1e-3)), observe(noise(relative=1.0))
    smooth = Matching(prior=falling_variation(100))
    alone = against_noise(smooth, noise(relative=1e-3), faint)
    assert replace(alone, labels=smooth.labels) == smooth, "but for how a label is read"
    assert against_noise(smooth, noise(relative=1.0), loud) is not smooth
    assert against_noise(smooth, noise(relative=1.0), observe(NoDefense())) is smooth

    # A prior of another kind stays.
    class Own(Prior):
        def __call__(self, z: torch.Tensor) -> torch.Tensor:
            return z.square().sum()

    kept = against_noise(Matching(prior=Own()), noise(relative=1.0), loud)
    assert isinstance(kept.prior, Own)


def test_the_length_of_the_update_is_not_needed() -> None:
    seen = observe(noise(relative=1.0), FedAvg(lr=0.01))
    blind = replace(seen, knowledge=replace(seen.knowledge, local_training=None, example_count=4))
    for attack in (Matching(), Matching(objective=SquaredL2())):
        adapted = against_noise(attack, noise(relative=1.0), blind)
        assert isinstance(adapted.objective, Whitened)
        assert adapted.objective.scale_free


@pytest.mark.parametrize(
    ("defense", "name"),
    [
        (noise(sigma=1.0), "maximum-a-posteriori"),
        (laplace(sigma=1.0), "maximum-a-posteriori"),
        (DPSGD(noise_multiplier=1.0, norm=1.0), "maximum-a-posteriori"),
        (FedCDP(snr=0.0), "maximum-a-posteriori"),
        (ClientDP(noise_multiplier=1.0, norm=1.0), "maximum-a-posteriori"),
        (Clip(norm=1.0), "simulated-clipping"),
        (ClipExamples(norm=1.0), "simulated-clipping"),
        (ClipLayers(norm=1.0), "simulated-clipping"),
    ],
    ids=repr,
)
def test_each_has_a_counter(defense: Defense, name: str) -> None:
    found = counter_to(defense)
    assert isinstance(found, Counter)
    assert found.name == name


def bars() -> Batch:
    """A picture with large even areas, as the prior expects."""
    x = torch.full((1, *SPEC.shape), 0.2, dtype=torch.float64)
    x[:, 0, 2:6], x[:, 1, :, 3:], x[:, 2, :4] = 0.9, 0.7, 0.6
    return Batch(x, torch.tensor([2]))


@pytest.mark.parametrize(
    "defense",
    [
        noise(relative=0.5),
        Compose((Clip(norm=0.1), noise(relative=0.5))),
        Compose((noise(relative=0.5), TopK(keep=0.9))),
        DPSGD(noise_multiplier=0.02, norm=1.0),
    ],
    ids=repr,
)
def test_who_knows_the_noise_does_better_on_a_smooth_picture(defense: Defense) -> None:
    truth = bars()
    seen = observe(defense, b=truth)
    attack = Matching(
        canvas=Pixels(first=Uniform()), prior=Falling(prior=TotalVariation(3e-2, smoothing=1e-6), to=1e-3)
    )
    errors = {}
    for name, run in (("naive", Naive(attack=attack)), ("adapted", Adapted(attack=attack))):
        found = run.reconstruct(seen, torch.Generator().manual_seed(0), budget=Budget(gradient_evaluations=80))
        assert found.inputs is not None
        errors[name] = float((found.inputs.double() - truth.inputs).square().mean())
    assert errors["adapted"] < 0.8 * errors["naive"]


@pytest.mark.parametrize(
    "defense", [ClientDP(noise_multiplier=0.5, norm=1.0), DPSGD(noise_multiplier=0.7, norm=0.5), noise(sigma=0.1)]
)
def test_behind_secure_aggregation_the_scale_is_that_of_the_mean(defense: Defense) -> None:
    cohort = SecureAggregation(cohort=2)
    sent = [observe(defense, cohort, seed=100 * s).update.tensors for s in range(8)]
    spread = torch.stack([torch.cat([v.flatten() for v in u.values()]) for u in sent]).var(0).mean().sqrt()
    scale = known_scale(observe(defense, cohort))
    assert scale is not None
    assert float(scale["0.weight"]) == pytest.approx(float(spread), rel=0.05)


def test_who_knows_the_draws_has_no_noise_to_allow_for() -> None:
    seen = observe(noise(relative=1.0))
    knows = replace(seen, knowledge=replace(seen.knowledge, draws=Draws(7)))
    attack = Matching()
    assert against_noise(attack, noise(relative=1.0), seen) is not attack
    assert against_noise(attack, noise(relative=1.0), knows) is attack
