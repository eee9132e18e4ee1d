"""The likelihood as a data term, the raw update it is given, and the weight of the variation beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from cases import SPEC, batch, task
from leakgauge.attacks.adaptive import counter_to
from leakgauge.attacks.adaptive.counter import STRENGTH, Counter, Likelihood, matching_variation
from leakgauge.attacks.adaptive.noise import Whitened
from leakgauge.attacks.matching import (
    Adam,
    Cosine,
    Matching,
    NoPrior,
    Objective,
    Pixels,
    Scheduled,
    SquaredL2,
    TotalVariation,
)
from leakgauge.attacks.matching.canvases import Given, LowResolution
from leakgauge.clients import FedAvg, FedSGD, Protocol, SecureAggregation, client_update
from leakgauge.compute import Budget, Compute
from leakgauge.defenses import (
    QSGD,
    AttackerView,
    Clip,
    Compose,
    Defense,
    NoDefense,
    Quantise,
    TopK,
    laplace,
    noise,
    view_of,
)
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation
from leakgauge.tensors import Tensors, entries, map_tensors


def seen(defense: Defense, protocol: Protocol = FedSGD(), *, training: bool = True) -> Observation:
    t, b = task("smooth"), batch(1)
    known = Knowledge(b.labels, 1, protocol if training else None, defense=defense)
    return Observation(t, client_update(t, protocol, b, Draws(3), defense=defense), known)


def near(observation: Observation) -> Tensors:
    g = torch.Generator().manual_seed(5)
    return map_tensors(lambda t: t + 0.1 * torch.randn(t.shape, generator=g, dtype=t.dtype), observation.update.tensors)


def test_it_is_the_mean_over_entries_of_what_the_view_states() -> None:
    observation = seen(noise(sigma=0.2))
    view, raw, sent = view_of(noise(sigma=0.2), observation.update, None), near(observation), observation.update.tensors
    best = sum(float((sent[k] * raw[k]).sum()) for k in sent) / sum(float(raw[k].square().sum()) for k in sent)
    by_hand = sum(float(((sent[k] - best * raw[k]) / 0.2).square().sum()) / 2 for k in sent) / entries(sent)
    assert float(Likelihood()(raw, sent, view)) == pytest.approx(by_hand)


def test_without_a_likelihood_it_is_the_cosine_to_the_update_on_the_wire() -> None:
    observation = seen(TopK(keep=0.2))
    view, raw, sent = view_of(TopK(keep=0.2), observation.update, None), near(observation), observation.update.tensors
    assert view.log_likelihood is None
    assert not Likelihood().wants_raw(view)
    wire = view(raw)
    assert float(Likelihood()(wire, sent, view)) == float(Cosine()(wire, sent, view))


def test_in_a_cohort_the_truth_explains_a_sparse_update() -> None:
    """Contract 1: the raw mean was compared with the sparse one, .55 away."""
    t, b = task("smooth"), batch(2)
    protocol = SecureAggregation(cohort=2)
    update = client_update(t, protocol, b, Draws(3), defense=TopK(keep=0.05))
    seen = Observation(t, update, Knowledge(b.labels, 2, protocol, defense=TopK(keep=0.05)))
    start = Pixels(first=Given(b.inputs))
    attack = Matching(objective=Likelihood(), prior=NoPrior(), canvas=start, minimiser=Adam(steps=1, lr=1e-12))
    found = attack.reconstruct(seen, torch.Generator().manual_seed(0), compute=Compute(dtype=torch.float64))
    assert found.objective is not None
    assert found.objective < 1e-6


def test_a_likelihood_after_deterministic_stages_is_that_of_the_last_on_what_they_make() -> None:
    both = Compose((Clip(norm=0.1), noise(sigma=0.2)))
    observation = seen(both)
    raw = near(observation)
    composed = view_of(both, observation.update, None).log_likelihood
    last = view_of(noise(sigma=0.2), observation.update, None).log_likelihood
    assert composed is not None
    assert last is not None
    assert float(composed(raw)) == pytest.approx(float(last(Clip(norm=0.1).on_update(raw, None))))


def test_gaussian_noises_add_in_variance() -> None:
    both = Compose((noise(sigma=0.3), noise(sigma=0.4)))
    observation = seen(both)
    raw = near(observation)
    composed = view_of(both, observation.update, None).log_likelihood
    one = view_of(noise(sigma=0.5), observation.update, None).log_likelihood
    assert composed is not None
    assert one is not None
    assert float(composed(raw)) == pytest.approx(float(one(raw)))


@pytest.mark.parametrize("first", [True, False])
def test_noise_beside_a_rounding_leaves_its_likelihood(first: bool) -> None:
    """It took it away, whatever its size: the attacker who knows both was as weak as one who knows neither. Where the
    noise is small it is the rounding's, where the grid is fine it is highest at what was sent and as wide as the noise.
    """

    def of(sigma: float, levels: int) -> Callable[[Tensors], Tensor]:
        stages = (noise(sigma=sigma), Quantise(levels=levels))
        both = view_of(Compose(stages if first else stages[::-1]), update, None).log_likelihood
        assert both is not None
        return both

    update = seen(Quantise(levels=3)).update
    alone = view_of(Quantise(levels=3), update, None).log_likelihood
    assert alone is not None
    inside = map_tensors(lambda t: 0.8 * t, update.tensors)
    assert float(of(1e-9, 3)(inside)) == pytest.approx(float(alone(inside)), rel=0.05)
    values = [
        float(of(0.3, 2**20)(map_tensors(lambda t, d=d: t + d, update.tensors))) for d in (-0.6, -0.3, 0.0, 0.3, 0.6)
    ]
    assert values[0] < values[1] < values[2] > values[3] > values[4]
    dropped = (values[2] - values[3]) / entries(update.tensors)
    assert dropped == pytest.approx(2 * math.log(math.cosh(math.pi / 3**0.5 / 2)), rel=0.02), "logistic, deviation .3"


@pytest.mark.parametrize(
    "stages",
    [
        (laplace(sigma=0.3), noise(sigma=0.4)),  # the sum has no simple law
        (noise(sigma=0.3), Clip(norm=0.1)),  # noise that is reshaped
        (noise(sigma=0.3), Clip(norm=0.1), noise(sigma=0.3)),
        (laplace(sigma=0.3), Quantise()),
        (Quantise(), noise(sigma=0.3), Quantise()),
    ],
    ids=repr,
)
def test_what_has_no_simple_likelihood_states_none(stages: tuple[Defense, ...]) -> None:
    assert view_of(Compose(stages), seen(Compose(stages)).update, None).log_likelihood is None


def test_a_defense_of_the_data_between_changes_nothing() -> None:
    both = Compose((noise(sigma=0.3), NoDefense()))
    assert view_of(both, seen(both).update, None).log_likelihood is not None


def test_the_length_of_the_simulated_update_does_not_count_but_its_sign_does() -> None:
    observation = seen(Quantise())
    view, o = view_of(Quantise(), observation.update, None), observation.update.tensors
    s = near(observation)
    one, long = (float(Likelihood()(map_tensors(lambda t, f=f: f * t, s), o, view)) for f in (1.0, 37.0))
    assert long == pytest.approx(one, rel=1e-9)
    away = float(Likelihood()(map_tensors(torch.neg, s), o, view))
    none = float(Likelihood()(map_tensors(torch.zeros_like, s), o, view))
    assert away == pytest.approx(none, rel=1e-3)
    assert one < none


def test_where_the_length_counts_it_is_what_the_view_states() -> None:
    observation = seen(Quantise())
    view, o, s = view_of(Quantise(), observation.update, None), observation.update.tensors, near(observation)
    assert view.log_likelihood is not None
    for factor in (1.0, 0.5, 37.0):
        long = map_tensors(lambda t, f=factor: f * t, s)
        found = float(Likelihood(scale_free=False)(long, o, view))
        assert found == pytest.approx(-float(view.log_likelihood(long)) / entries(o))


@pytest.mark.parametrize(
    ("objective", "protocol", "training", "ignored"),
    [
        (Cosine(), FedSGD(), True, True),
        (SquaredL2(), FedSGD(), True, False),
        (SquaredL2(), FedSGD(), False, False),  # a gradient has its length whatever the training
        (SquaredL2(), FedAvg(epochs=1, lr=0.1), True, False),
        (SquaredL2(), FedAvg(epochs=1, lr=0.1), False, True),
    ],
    ids=repr,
)
@pytest.mark.parametrize("defense", [Quantise(), QSGD(), noise(sigma=0.01)], ids=repr)
def test_a_counter_ignores_the_length_as_its_base_does_or_as_it_must(
    objective: Objective, protocol: Protocol, training: bool, ignored: bool, defense: Defense
) -> None:
    observation = seen(defense, protocol, training=training)
    counter = counter_to(defense)
    assert isinstance(counter, Counter)
    adapted = counter.adapt(Matching(objective=objective, prior=NoPrior()), defense, observation)
    assert type(adapted.objective) in (Likelihood, Whitened)
    assert adapted.objective.scale_free is ignored


def test_a_variation_weighs_in_unknowns_of_the_canvas() -> None:
    observation = seen(Quantise())
    weights = []
    for canvas in (Pixels(), LowResolution(factor=2), LowResolution(factor=4)):
        found = matching_variation(Matching(canvas=canvas, prior=TotalVariation(1e-3)), observation)
        assert isinstance(found, Scheduled)
        assert isinstance(found.prior, TotalVariation)
        weights.append(found.prior.weight)
    assert weights[1] == pytest.approx(weights[0] / 4)
    assert weights[2] == pytest.approx(weights[0] / 16)


def test_a_variation_weighs_in_pixels_an_entry_and_other_priors_stay() -> None:
    observation = seen(Quantise())
    found = matching_variation(Matching(prior=TotalVariation(1e-3)), observation)
    assert isinstance(found, Scheduled)
    assert isinstance(found.prior, TotalVariation)
    last = STRENGTH * torch.Size(SPEC.shape).numel() / entries(observation.update.tensors)
    assert found.prior.weight * found.at(99, 100, 0.0) == pytest.approx(last)
    assert found.prior.weight * found.at(0, 100, 0.0) == pytest.approx(10 * last)
    none = NoPrior()
    assert matching_variation(Matching(prior=none), observation) is none


@dataclass(frozen=True)
class Spy(Objective):
    """An objective that notes whether what it is given has been rounded, and asks for the raw update or not."""

    raw: bool
    rounded: list[bool]

    scale_free: ClassVar[bool] = True

    def wants_raw(self, view: AttackerView) -> bool:
        return self.raw

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Tensor:
        self.rounded.append(all(len(t.detach().unique()) <= 7 for t in simulated.values()))
        return Cosine()(simulated, observed, view)


@pytest.mark.parametrize("wants_raw", [False, True])
def test_attacks_match_what_is_not_rounded(wants_raw: bool) -> None:
    """With rounded values and the gradient of the identity a naive attack on an untrained LeNet did better."""
    spy = Spy(wants_raw, [])
    attack = Matching(objective=spy, minimiser=Adam(steps=2), counters=False)
    attack.reconstruct(seen(Quantise()), torch.Generator().manual_seed(0), budget=Budget(gradient_evaluations=2))
    assert spy.rounded
    assert not any(spy.rounded)


def test_an_objective_that_wants_the_raw_update_gets_it_before_the_support_is_applied() -> None:
    zeros: list[float] = []

    @dataclass(frozen=True)
    class Counts(Objective):
        raw: bool
        scale_free: ClassVar[bool] = True

        def wants_raw(self, view: AttackerView) -> bool:
            return self.raw

        def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Tensor:
            zeros.append(sum(float((t == 0).double().mean()) for t in simulated.values()) / len(simulated))
            return Cosine()(simulated, observed, view)

    for wants_raw in (False, True):
        attack = Matching(objective=Counts(wants_raw), minimiser=Adam(steps=1))
        attack.reconstruct(
            seen(TopK(keep=0.1)), torch.Generator().manual_seed(0), budget=Budget(gradient_evaluations=1)
        )
    assert zeros[0] > 0.8
    assert zeros[-1] < 0.1
