"""Counters to PRECODE and MixUp: what is read in closed form, and what the search then does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from cases import SPEC, batch, task
from leakgauge.attacks.adaptive import Adapted, Counter, Naive, NoneKnown, counter_to
from leakgauge.attacks.adaptive.encodings import (
    Mixing,
    know_the_draw,
    read_codes,
    read_draws,
    read_mixing,
    unmix,
)
from leakgauge.attacks.matching import BoundedLBFGS, Cosine, Matching, Pixels, SquaredL2, Uniform
from leakgauge.attacks.matching.parts import CosinePerTensor
from leakgauge.clients import FedAvg, FedSGD, Protocol, SecureAggregation, client_update
from leakgauge.compute import Budget
from leakgauge.defenses import (
    AttackerView,
    Compose,
    Defense,
    InstaHide,
    MixUp,
    NoDefense,
    Precode,
    TopK,
    noise,
)
from leakgauge.defenses.representations import bottlenecks, moments
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Batch, Task

PRECODE = Precode(size=6)
ATTACK = Matching(canvas=Pixels(first=Uniform()), minimiser=BoundedLBFGS(steps=80))


def observed(t: Task, b: Batch, defense: Defense, protocol: Protocol | None = None, seed: int = 3) -> Observation:
    protocol = protocol or FedSGD()
    update = client_update(t, protocol, b, Draws(seed), defense=defense)
    known = Knowledge(labels=b.labels, example_count=len(b), local_training=protocol, defense=defense)
    return Observation(defense.on_task(t), update, known)


def true_draw(examples: int, seed: int = 3, size: int = 6) -> torch.Tensor:
    """ε as the client drew it in its only step."""
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(2**31, (), generator=Draws(seed).generator("model"))))
        return torch.randn((examples, size), dtype=torch.float64)


def distinct(n: int) -> Batch:
    return Batch(batch(n).inputs, torch.arange(n))


def mixing_of(examples: int, seed: int = 3, defense: Defense | None = None) -> torch.Tensor:
    """The client's mixing matrix, seen through unit vectors."""
    unit = Batch(torch.eye(examples, dtype=torch.float64), torch.arange(examples))
    return (defense or MixUp()).on_batch(unit, Draws(seed).generator("batch")).inputs


def matched(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Rows of `ours` in the order that fits `theirs` best; one to one."""
    order = torch.cdist(theirs, ours).argmin(1)
    assert sorted(order.tolist()) == list(range(len(ours)))
    return ours[order]


@pytest.mark.parametrize("seed", range(2))
def test_sampling_hides_nothing_of_one_example(seed: int) -> None:
    seen = observed(task("smooth"), batch(1), PRECODE, seed=seed)
    (name,) = bottlenecks(seen.task)
    draw = read_draws(seen, name, None, torch.Generator())
    assert draw is not None
    assert torch.allclose(draw, true_draw(1, seed), atol=1e-6)


def test_a_layer_that_sends_no_bias_gradient_is_not_read() -> None:
    seen = observed(task("smooth"), batch(1), PRECODE)
    silent = {k: torch.zeros_like(v) if k.endswith("decoder.bias") else v for k, v in seen.update.tensors.items()}
    blind = replace(seen, update=replace(seen.update, tensors=silent))
    assert read_draws(blind, next(iter(bottlenecks(seen.task))), None, torch.Generator()) is None
    assert read_draws(seen, "nowhere", None, torch.Generator()) is None


@pytest.mark.parametrize("seed", range(2))
def test_what_several_examples_sampled_is_read_from_the_classifier(seed: int) -> None:
    """b = μ + σ·ε with the client's own features and draw."""
    b = distinct(3)
    seen = observed(task("smooth"), b, PRECODE, seed=seed)
    (name,) = bottlenecks(seen.task)
    codes = read_codes(seen, name, b.labels, torch.Generator().manual_seed(0))
    p = seen.task.parameters
    features = task("smooth").module[:3](SPEC.normalise(b.inputs))
    mean, std = moments(nn.functional.linear(features, p[f"{name}.encoder.weight"], p[f"{name}.encoder.bias"]))
    assert codes is not None
    assert torch.allclose(codes, mean + std * true_draw(3, seed), atol=1e-3)


@pytest.mark.parametrize("protocol", [FedSGD(), FedAvg(lr=5e-3)], ids=repr)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_codes_are_read_from_deltas_and_from_heads_without_bias(protocol: Protocol, bias: bool) -> None:
    """ROG's own client is one local step of a network whose last layer has no bias."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Flatten(), nn.Linear(192, 12), nn.Sigmoid(), nn.Linear(12, SPEC.classes, bias=bias))
    network, b = Task.of(layers.double(), SPEC), distinct(3)
    seen = observed(network, b, PRECODE, protocol)
    (name,) = bottlenecks(seen.task)
    codes = read_codes(seen, name, b.labels, torch.Generator().manual_seed(0))
    p = seen.task.parameters
    features = layers[:3](SPEC.normalise(b.inputs.double()))
    mean, std = moments(nn.functional.linear(features, p[f"{name}.encoder.weight"], p[f"{name}.encoder.bias"]))
    assert codes is not None
    assert torch.allclose(codes, mean + std * true_draw(3), atol=1e-3)


def test_codes_that_cannot_be_read() -> None:
    b, g = distinct(2), torch.Generator().manual_seed(0)
    delta = observed(task("smooth"), b, PRECODE, FedAvg(epochs=2))
    (name,) = bottlenecks(delta.task)
    assert read_codes(delta, name, b.labels, g) is None
    noisy = observed(task("smooth"), b, Compose((PRECODE, noise(relative=1.0))))
    assert read_codes(noisy, name, b.labels, g) is None
    assert read_draws(noisy, name, b.labels, g) is None
    below = observed(task("flat"), b, Precode(size=6, layer="1"))
    assert read_codes(below, next(iter(bottlenecks(below.task))), b.labels, g) is None


def test_the_counter_starts_from_the_read_and_without_labels_from_the_prior() -> None:
    for examples in (1, 3):
        seen = observed(task("smooth"), distinct(examples), PRECODE)
        (part,) = know_the_draw(ATTACK, PRECODE, seen).hidden
        start = part.start(examples, SPEC, torch.Generator())["buffer.3.bottleneck.draw"]
        assert float(start.abs().max()) > 0
        if examples == 1:
            assert torch.allclose(start, true_draw(1), atol=1e-6)
    unlabelled = replace(seen, knowledge=replace(seen.knowledge, labels=None))
    (part,) = know_the_draw(ATTACK, PRECODE, unlabelled).hidden
    assert float(part.start(3, SPEC, torch.Generator())["buffer.3.bottleneck.draw"].abs().max()) == 0


def test_the_counter_keeps_what_is_no_cosine_and_the_rest_of_the_attack() -> None:
    seen = observed(task("smooth"), batch(2), PRECODE)
    adapted = know_the_draw(ATTACK, PRECODE, seen)
    assert isinstance(adapted.objective, CosinePerTensor)
    assert (adapted.canvas, adapted.minimiser, adapted.prior) == (ATTACK.canvas, ATTACK.minimiser, ATTACK.prior)
    assert know_the_draw(replace(ATTACK, objective=SquaredL2()), PRECODE, seen).objective == SquaredL2()


@pytest.mark.parametrize(
    ("protocol", "variable"),
    [
        (FedSGD(), True),
        (FedAvg(epochs=2), True),
        (FedAvg(epochs=2, batch_size=4), True),
        (FedAvg(batch_size=2), False),
        (FedAvg(shuffle=True), False),
        (SecureAggregation(cohort=2), False),
    ],
    ids=repr,
)
def test_a_draw_of_the_whole_batch_is_a_variable_where_steps_see_the_whole_batch(
    protocol: Protocol, variable: bool
) -> None:
    seen = observed(task("smooth"), batch(4), PRECODE, protocol)
    adapted = know_the_draw(ATTACK, PRECODE, seen)
    assert bool(adapted.hidden) is variable
    found = Adapted(attack=replace(ATTACK, minimiser=BoundedLBFGS(steps=3))).reconstruct(
        seen, torch.Generator().manual_seed(0)
    )
    assert found.inputs is not None
    assert found.inputs.shape == (4, *SPEC.shape)


def test_precode_is_broken_where_naive_sees_nothing() -> None:
    """A sigmoid network, one example: the pixels come back, and without the counter they do not."""
    t, b = task("smooth"), batch(1)
    errors = {}
    for label, attack in (("naive", Naive(attack=ATTACK)), ("adapted", Adapted(attack=ATTACK))):
        found = attack.reconstruct(observed(t, b, PRECODE), torch.Generator().manual_seed(0))
        assert found.inputs is not None
        errors[label] = float((found.inputs - b.inputs).square().mean())
    assert errors["adapted"] < errors["naive"] / 10


@pytest.mark.parametrize("seed", range(2))
def test_the_mixing_matrix_is_read_from_the_classifier(seed: int) -> None:
    b = distinct(3)
    read = read_mixing(observed(task("smooth"), b, MixUp(), seed=seed), b.labels, torch.Generator().manual_seed(0))
    assert read is not None
    assert read[1] < 1e-8
    assert torch.allclose(matched(read[0], mixing_of(3, seed)), mixing_of(3, seed), atol=1e-2)


def test_unmixed_examples_are_read_as_unmixed() -> None:
    b = distinct(2)
    read = read_mixing(observed(task("smooth"), b, NoDefense()), b.labels, torch.Generator().manual_seed(0))
    assert read is not None
    assert torch.allclose(matched(read[0], torch.eye(2).double()), torch.eye(2).double(), atol=1e-2)


def test_what_cannot_be_read() -> None:
    generator, b = torch.Generator().manual_seed(0), distinct(2)
    delta = observed(task("smooth"), b, MixUp(), FedAvg(epochs=2))
    assert read_mixing(delta, b.labels, generator) is None
    assert read_mixing(observed(task("smooth"), distinct(1), MixUp()), torch.tensor([0]), generator) is None
    whole = Task.of(nn.Sequential(nn.Conv2d(3, 5, 8), nn.Flatten()).double(), SPEC)
    read = read_mixing(
        observed(whole, b, MixUp(), seed=0), b.labels, generator
    )  # a convolution over all is a linear layer
    assert read is not None
    assert torch.allclose(matched(read[0], mixing_of(2, 0)), mixing_of(2, 0), atol=1e-2)
    headless = Task.of(nn.Sequential(nn.Conv2d(3, 5, 8), nn.ReLU(), nn.Flatten()).double(), SPEC)
    assert read_mixing(observed(headless, b, MixUp()), b.labels, generator) is None
    many = torch.zeros(9, dtype=torch.long)
    assert read_mixing(observed(task("smooth"), batch(9), MixUp()), many, generator) is None


def test_a_noisy_read_is_not_believed_and_the_attack_stays() -> None:
    seen = observed(task("smooth"), distinct(2), Compose((MixUp(), noise(relative=1.0))))
    assert unmix(ATTACK, MixUp(), seen) is ATTACK
    unlabelled = replace(seen, knowledge=replace(seen.knowledge, labels=None))
    assert unmix(ATTACK, MixUp(), unlabelled) is ATTACK


def test_repeated_labels_leave_the_matrix_free() -> None:
    b = Batch(batch(2).inputs, torch.tensor([1, 1]))
    (part,) = unmix(ATTACK, MixUp(), observed(task("smooth"), b, MixUp())).hidden
    assert isinstance(part, Mixing)
    assert part.free
    (fixed,) = unmix(ATTACK, MixUp(), observed(task("smooth"), distinct(2), MixUp())).hidden
    assert isinstance(fixed, Mixing)
    assert not fixed.free


@pytest.mark.parametrize("free", [False, True])
def test_mixing_as_a_part_mixes_like_the_client(free: bool) -> None:
    part, b = Mixing(matrix=mixing_of(4), free=free), distinct(4)
    variables = {"pixels": b.inputs} | part.start(4, SPEC, torch.Generator())
    ours, theirs = part.encode(b, variables), MixUp().on_batch(b, Draws(3).generator("batch"))
    assert torch.allclose(ours.inputs, theirs.inputs, atol=2e-3)
    assert torch.allclose(ours.labels, theirs.labels, atol=2e-3)
    assert float(part.penalty(variables)) == 0


def test_unmixing_brings_back_the_examples_and_not_their_mixture() -> None:
    b = distinct(2)
    seed = next(s for s in range(99) if 0.2 < float(mixing_of(2, s)[0, 1]) < 0.4)
    seen = observed(task("smooth"), b, MixUp(), seed=seed)
    errors = {}
    for label, attack in (("naive", Naive(attack=ATTACK)), ("adapted", Adapted(attack=ATTACK))):
        found = attack.reconstruct(seen, torch.Generator().manual_seed(0), budget=Budget(gradient_evaluations=80))
        assert found.inputs is not None
        errors[label] = float((found.inputs - b.inputs).square().mean())
    assert errors["adapted"] < 0.7 * errors["naive"]


def test_with_known_draws_nothing_is_hidden() -> None:
    for defense, counter in ((PRECODE, know_the_draw), (MixUp(), unmix)):
        seen = observed(task("smooth"), distinct(2), defense)
        knowing = replace(seen, knowledge=replace(seen.knowledge, draws=Draws(3)))
        assert counter(ATTACK, defense, knowing).hidden == ()


def test_every_encoding_has_a_counter_or_a_reason() -> None:
    assert counter_to(PRECODE).name == "sampled-bottleneck"  # type: ignore[union-attr]
    assert counter_to(MixUp()).name == "unmixing"  # type: ignore[union-attr]
    found = counter_to(InstaHide())
    assert isinstance(found, NoneKnown)
    assert len(found.reason) > 40


def test_the_cosine_of_each_tensor() -> None:
    """By hand: parallel, orthogonal, opposite: 0, 1 and 2, whatever the lengths; nothing sent counts 1."""
    theirs = {
        k: torch.tensor(v) for k, v in {"a": [1.0, 0.0], "b": [1.0, 0.0], "c": [2.0, 0.0], "d": [0.0, 0.0]}.items()
    }
    ours = {
        k: torch.tensor(v) for k, v in {"a": [9.0, 0.0], "b": [0.0, 1e-3], "c": [-5.0, 0.0], "d": [1.0, 1.0]}.items()
    }
    assert float(CosinePerTensor()(ours, theirs, AttackerView())) == pytest.approx((0 + 1 + 2 + 1) / 4)
    one = {"a": torch.tensor([3.0, 4.0, 1.0])}
    other = {"a": torch.tensor([1.0, 1.0, -2.0])}
    assert float(CosinePerTensor()(one, other, AttackerView())) == pytest.approx(
        float(Cosine()(one, other, AttackerView()))
    )


def test_the_weights_of_a_mixture_are_read_from_one_local_step_as_from_a_gradient() -> None:
    b = distinct(2)
    sent, stepped = (observed(task("smooth"), b, MixUp(), client) for client in (FedSGD(), FedAvg(lr=0.3)))
    found = [read_mixing(o, b.labels, torch.Generator().manual_seed(0)) for o in (sent, stepped)]
    assert found[0] is not None
    assert found[1] is not None
    assert max(read[1] for read in found if read is not None) < 1e-10
    assert torch.allclose(found[0][0].sort().values, found[1][0].sort().values, atol=1e-4)


@pytest.mark.parametrize(
    ("defense", "client", "examples", "labels", "missing"),
    [
        (MixUp(), FedSGD(), 2, True, ""),
        (MixUp(), FedAvg(), 2, True, ""),
        (MixUp(), FedSGD(), 2, False, "the labels"),
        (MixUp(), FedAvg(epochs=2), 2, True, "a single gradient"),
        (PRECODE, FedAvg(epochs=2, shuffle=True), 1, False, ""),
        (PRECODE, FedAvg(epochs=2, shuffle=True), 2, False, "the whole batch in one order"),
        (PRECODE, FedAvg(epochs=2, batch_size=1), 2, False, "the whole batch in one order"),
        (TopK(keep=0.5), FedSGD(), 2, False, ""),
    ],
)
def test_a_counter_says_what_it_lacks_and_otherwise_acts(
    defense: Defense, client: Protocol, examples: int, labels: bool, missing: str
) -> None:
    b = distinct(2).take(torch.arange(examples))
    seen = observed(task("smooth"), b, defense, client)
    seen = replace(seen, knowledge=replace(seen.knowledge, labels=b.labels if labels else None, example_count=examples))
    found = counter_to(defense)
    assert isinstance(found, Counter)
    assert missing in found.lacks(seen)
    assert bool(missing) == bool(found.lacks(seen))
    base = Matching()
    acted = found.adapt(base, defense, seen)
    assert bool(acted.hidden) == (not missing and not isinstance(defense, TopK))


def test_a_mixture_of_more_than_eight_is_not_read() -> None:
    counter = counter_to(MixUp())
    assert isinstance(counter, Counter)
    for examples, missing in ((8, ""), (9, "a batch of two to 8 examples")):
        b = batch(examples)
        seen = observed(task("smooth"), b, MixUp())
        seen = replace(seen, knowledge=replace(seen.knowledge, labels=b.labels, example_count=examples))
        assert counter.lacks(seen) == missing
