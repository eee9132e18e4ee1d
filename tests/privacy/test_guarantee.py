"""Which compositions are differentially private."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from leakgauge.defenses import (
    DPSGD,
    Absolute,
    ClientDP,
    Clip,
    ClipExamples,
    ClipLayers,
    Compose,
    Defense,
    FedCDP,
    GaussianNoise,
    NoDefense,
    Soteria,
    TopK,
    noise,
)
from leakgauge.defenses.dp import laplace
from leakgauge.errors import InputError
from leakgauge.privacy import (
    Guarantee,
    Mechanism,
    NoGuarantee,
    Release,
    Unit,
    epsilon_of,
    guarantee,
    mechanism,
)
from leakgauge.task import Batch
from leakgauge.tensors import Tensors, map_tensors

pytest.importorskip("opacus")

DP = DPSGD(noise_multiplier=1.3, norm=1.0)
CLIENT = ClientDP(noise_multiplier=0.8, norm=2.0)


@dataclass(frozen=True)
class Mixing(Defense):
    """Mixes the examples of a batch."""

    def on_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        return Batch((batch.inputs + batch.inputs.flip(0)) / 2, batch.labels)


@dataclass(frozen=True)
class Scaling(Defense):
    """Changes the length of an update."""

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        return {k: 10 * v for k, v in tensors.items()}


@dataclass(frozen=True)
class Summing(Defense):
    """Changes example gradients in some way of its own."""

    def on_example_gradients(self, per_example: Tensors, generator: torch.Generator) -> Tensors:
        return map_tensors(lambda g: g.sum(0, keepdim=True).expand_as(g), per_example)


def both(*parts: Defense) -> Compose:
    return Compose(parts)


@pytest.mark.parametrize(
    ("defense", "z", "unit"),
    [
        (DP, 1.3, Unit.EXAMPLE),
        (both(DP, TopK(keep=0.1)), 1.3, Unit.EXAMPLE),
        (both(TopK(keep=0.1), DP), 1.3, Unit.EXAMPLE),  # dp-sgd is in the earlier stage wherever it is written
        (both(ClipExamples(norm=0.1), DP), 1.3, Unit.EXAMPLE),
        (both(DP, Clip(norm=1.0)), 1.3, Unit.EXAMPLE),
        (both(DP, noise(relative=0.1)), 1.3, Unit.EXAMPLE),
        (CLIENT, 0.8, Unit.CLIENT),
        (both(Soteria(), CLIENT, TopK(keep=0.1)), 0.8, Unit.CLIENT),
        (both(Mixing(), noise(relative=0.1), CLIENT), 0.8, Unit.CLIENT),
        (both(Clip(norm=2.0), noise(sigma=1.0)), 0.5, Unit.CLIENT),
        (both(Clip(norm=2.0), TopK(keep=0.1), noise(sigma=1.0)), 0.5, Unit.CLIENT),
        (both(CLIENT, Clip(norm=1.0), noise(sigma=3.0)), 3.0, Unit.CLIENT),
        (both(Clip(norm=1.0), noise(sigma=3.0), CLIENT), 3.0, Unit.CLIENT),
        (both(both(Clip(norm=2.0)), NoDefense(), noise(sigma=1.0)), 0.5, Unit.CLIENT),
        (both(DP, CLIENT), 0.8, Unit.CLIENT),
    ],
    ids=repr,
)
def test_private(defense: Defense, z: float, unit: Unit) -> None:
    assert mechanism(defense) == Mechanism(pytest.approx(z), unit)  # type: ignore[arg-type]
    held = guarantee(defense, sample_rate=0.5, steps=3, delta=1e-5)
    assert isinstance(held, Guarantee)
    expected = epsilon_of([Release(noise_multiplier=z, sample_rate=0.5, steps=3)], 1e-5)
    assert held == Guarantee(pytest.approx(expected), 1e-5, "rdp", unit, pytest.approx(z), 0.5, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("defense", "reason"),
    [
        (NoDefense(), "neither clip nor noise"),
        (noise(sigma=1.0), "without a clip"),
        (noise(relative=1.0), "depends on the data"),
        (both(Clip(norm=1.0), noise(relative=1.0)), "depends on the data"),
        (both(noise(sigma=1.0), Clip(norm=1.0)), "without a clip right before"),
        (both(Clip(norm=1.0), Scaling(), noise(sigma=1.0)), "without a clip right before"),
        (Clip(norm=1.0), "hides nothing"),
        (ClipExamples(norm=1.0), "hides nothing"),
        (TopK(keep=0.1), "TopK"),
        (both(Clip(norm=1.0), TopK(keep=0.1)), "no clip with noise"),
        (both(Clip(norm=1.0), laplace(sigma=1.0)), "L1 norm"),
        (Soteria(), "as they are"),
        (both(CLIENT, Soteria()), "looks at the batch after"),
        (both(DP, Soteria()), "looks at the batch after"),
        (both(Mixing(), DP), "many gradients"),
        (both(DP, ClipExamples(norm=0.1)), "after the noise"),
        (both(Summing(), DP), "not known to be bounded"),
        (both(ClipExamples(norm=1.0), noise(sigma=1.0)), "depends on n"),
        (both(ClipLayers(norm=1.0), noise(sigma=1.0)), "by itself"),
        (FedCDP(snr=0.0), "scales its noise with the data"),
        (FedCDP(noise_multiplier=1.0), "number of layers"),
    ],
    ids=repr,
)
def test_not_private(defense: Defense, reason: str) -> None:
    found = guarantee(defense, sample_rate=0.5, steps=3, delta=1e-5)
    assert isinstance(found, NoGuarantee)
    assert reason in found.reason


def test_noise_on_a_mean_needs_the_number_of_examples() -> None:
    # An example moves the mean of 8 by 0.5/8, and its noise is 0.25: z = 4.
    assert mechanism(both(ClipExamples(norm=0.5), noise(sigma=0.25)), examples=8) == Mechanism(4.0, Unit.EXAMPLE)


def test_fed_cdp_pays_for_its_layers() -> None:
    # An example moves the sum of clipped gradients by √4·C; noise on it is σC·√9.
    found = mechanism(FedCDP(noise_multiplier=0.6), examples=9, layers=4)
    assert found == Mechanism(pytest.approx(0.6 * 3 / 2), Unit.EXAMPLE)  # type: ignore[arg-type]


def test_bad_numbers_are_refused_even_where_nothing_is_guaranteed() -> None:
    for arguments in ({"sample_rate": 0.0}, {"steps": 0}, {"accountant": "gdp"}):
        with pytest.raises(InputError):
            guarantee(NoDefense(), **{"sample_rate": 0.5, "steps": 3, "delta": 1e-5, **arguments})


def test_little_noise_is_no_infinite_epsilon() -> None:
    found = guarantee(DPSGD(noise_multiplier=1e-170, norm=1.0), sample_rate=1.0, steps=1, delta=1e-5)
    assert isinstance(found, NoGuarantee)
    assert "too small" in found.reason


def test_an_infinite_norm_clips_nothing() -> None:
    infinite = float("inf")
    for defense in (both(Clip(norm=infinite), noise(sigma=1.0)), both(ClipExamples(norm=infinite), noise(sigma=1.0))):
        assert isinstance(guarantee(defense, sample_rate=0.5, steps=3, delta=1e-5, examples=8), NoGuarantee)


def test_clipped_examples_and_noise_on_a_delta_guarantee_nothing() -> None:
    """The noise comes once, after steps in which one example has moved what the others send."""
    defense = both(ClipExamples(norm=0.5), noise(sigma=0.25))
    found = guarantee(defense, sample_rate=0.5, steps=3, delta=1e-5, examples=8, gradient=False)
    assert isinstance(found, NoGuarantee)
    assert "later steps" in found.reason
    assert mechanism(DP, gradient=False) == Mechanism(1.3, Unit.EXAMPLE)
    assert isinstance(mechanism(CLIENT, gradient=False), Mechanism)


class Unclipped(DPSGD):
    """Neither clips nor adds noise."""

    def on_example_gradients(self, per_example: Tensors, generator: torch.Generator) -> Tensors:
        return per_example


class Doubled(Clip):
    def on_update(self, tensors: Tensors, generator: torch.Generator | None) -> Tensors:
        return map_tensors(lambda t: 2 * t, super().on_update(tensors, generator))


@dataclass(frozen=True, kw_only=True)
class Silent(DPSGD):
    norm: float = 1.0

    def noise_on_mean(self, examples: int) -> float:
        return 0.0


class Loose(ClientDP):
    @property
    def _parts(self) -> tuple[Clip, GaussianNoise]:
        return Clip(norm=1e9), GaussianNoise(scale=Absolute(self.noise_multiplier * self.norm))


class Nothing(Absolute):
    def of(self, raw: Tensors) -> Tensors:
        return map_tensors(lambda t: t.new_zeros(()), raw)


@dataclass(frozen=True, kw_only=True)
class Preset(DPSGD):
    """Another name and another default."""

    norm: float = 1.0


class Named(Clip):
    """Another name and nothing else."""


def test_a_class_that_writes_a_stage_anew_inherits_no_guarantee() -> None:
    noisy = noise(sigma=2.0)
    for defense in (Unclipped(norm=1.0, noise_multiplier=2.0), Compose((Doubled(norm=1.0), noisy))):
        found = guarantee(defense, sample_rate=1.0, steps=1, delta=1e-5)
        assert isinstance(found, NoGuarantee)
        assert "changes what the defence that it derives from does" in found.reason
    for same in (Compose((Named(norm=1.0), noisy)), Preset(noise_multiplier=2.0)):
        assert isinstance(guarantee(same, sample_rate=1.0, steps=1, delta=1e-5), Guarantee)


def test_a_class_that_writes_anew_what_a_stage_calls_inherits_no_guarantee() -> None:
    """Only the stages were compared: a DP-SGD whose `noise_on_mean` is zero had an ε."""
    silent = Compose((Clip(norm=1.0), GaussianNoise(scale=Nothing(2.0))))
    for defense in (Silent(noise_multiplier=2.0), Loose(norm=1.0, noise_multiplier=2.0), silent):
        assert isinstance(guarantee(defense, sample_rate=1.0, steps=1, delta=1e-5), NoGuarantee)
