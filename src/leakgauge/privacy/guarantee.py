"""Which defences are differentially private, of what, and how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum

from leakgauge.defenses import (
    DPSGD,
    Absolute,
    ClientDP,
    Clip,
    ClipExamples,
    ClipLayers,
    Defense,
    FedCDP,
    GaussianNoise,
    Multiplier,
    Soteria,
    TopK,
    Transform,
    parts_of,
)
from leakgauge.defenses.noise import LaplaceNoise
from leakgauge.privacy.accounting import Release, check_accountant, epsilon_exchanged, epsilon_of


class Unit(Enum):
    """Whose data are hidden."""

    EXAMPLE = "example"
    CLIENT = "client"


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ)-differential privacy of one unit's contribution, there or replaced by nothing, over all steps.

    Which units take part, and how many, counts as known: it is not hidden (a server sees who sends, and n is on the
    wire). One unit's data in place of another's are twice as far apart, see `exchanged`.

    Attributes:
        epsilon, delta: of the whole training, never of a round.
        accountant: rdp or prv.
        unit: example or client.
        noise_multiplier: z that was counted: noise on the sum over the unit's largest contribution to it.
        sample_rate, steps: as counted.
    """

    epsilon: float
    delta: float
    accountant: str
    unit: Unit
    noise_multiplier: float
    sample_rate: float
    steps: int


@dataclass(frozen=True)
class NoGuarantee:
    """There is no ε, with the reason."""

    reason: str


@dataclass(frozen=True)
class Mechanism:
    """A Gaussian mechanism inside a defence."""

    noise_multiplier: float
    unit: Unit


def guarantee(
    defense: Defense,
    *,
    sample_rate: float,
    steps: int,
    delta: float,
    accountant: str = "rdp",
    examples: int | None = None,
    layers: int | None = None,
    gradient: bool = True,
) -> Guarantee | NoGuarantee:
    """What a defence guarantees over a training, or why nothing.

    What comes after clip and noise is post-processing, unless it looks at the data again (Soteria). What comes before
    does not matter, as long as it does not mix the units. Where one client is hidden, so is each of its examples;
    a composition with both kinds of noise gets the client's.

    Args:
        sample_rate: probability that a unit is in a step. It counts only if the server cannot see who takes part:
            for one whose updates the server receives one by one, the rate of clients is 1.
        steps: of noise: local steps times rounds for dp-sgd, rounds in which the client sends for client-dp.
        delta: below 1 / number of units.
        accountant: rdp or prv.
        examples: in one step, for fed-cdp, and for clip-examples with noise on the gradient (fedsgd).
        layers: of the model, for fed-cdp (`leakgauge.defenses.layers_of`).
        gradient: whether the client sends a gradient (fedsgd), not a delta: clip-examples with noise on a delta of
            several steps bounds nothing.

    Raises:
        InputError: numbers out of range, gdp as the accountant, or no Opacus.
    """
    check_accountant(accountant)
    Release(noise_multiplier=1.0, sample_rate=sample_rate, steps=steps)  # checks the numbers even without a mechanism
    found = mechanism(defense, examples=examples, layers=layers, gradient=gradient)
    if isinstance(found, NoGuarantee):
        return found
    release = Release(noise_multiplier=found.noise_multiplier, sample_rate=sample_rate, steps=steps)
    epsilon = epsilon_of([release], delta, accountant)
    if not math.isfinite(epsilon):
        return NoGuarantee(f"noise multiplier {found.noise_multiplier:.3g} is too small for a finite ε")
    return Guarantee(epsilon, delta, accountant, found.unit, found.noise_multiplier, sample_rate, steps)


def exchanged(found: Guarantee) -> float | None:
    """See `epsilon_exchanged`."""
    release = Release(noise_multiplier=found.noise_multiplier, sample_rate=found.sample_rate, steps=found.steps)
    return epsilon_exchanged([release], found.delta, found.accountant)


def mechanism(
    defense: Defense, *, examples: int | None = None, layers: int | None = None, gradient: bool = True
) -> Mechanism | NoGuarantee:
    """The Gaussian mechanism in a defence, and its unit; see `guarantee`."""
    parts = parts_of(defense)
    if not parts:
        return NoGuarantee("the update is sent as it is: neither clip nor noise")
    heir = next((part for part in parts if _changed(part)), None)
    if heir is not None:
        return NoGuarantee(f"{_name(heir)} changes what the defence that it derives from does to an update")
    by_client = _client_mechanism(parts)
    if isinstance(by_client, Mechanism):
        return by_client
    by_example = _example_mechanism(parts, examples, layers, gradient)
    if isinstance(by_example, Mechanism) or any(part.acts_on_examples for part in parts):
        return by_example
    return by_client


def _client_mechanism(parts: Sequence[Defense]) -> Mechanism | NoGuarantee:
    """The strongest clip + noise of the update stage after which nothing looks at the data."""
    best: Mechanism | NoGuarantee = NoGuarantee(_why_not(parts))
    bound: float | None = None
    for part in parts:
        z = None
        if _looks_again(part):
            # A mask tells of the batch what the noise has hidden. Zeroing does not lengthen the update.
            bound = bound if isinstance(part, Soteria) else None
            if isinstance(best, Mechanism):
                best = NoGuarantee(f"{_name(part)} looks at the batch after the noise")
        elif isinstance(part, Clip):
            bound = part.norm if math.isfinite(part.norm) else None
        elif isinstance(part, ClientDP):
            z, bound = part.noise_multiplier, None
        elif isinstance(part, GaussianNoise):
            z = part.scale.sigma / bound if bound is not None and type(part.scale) is Absolute else None
            bound = None
        elif part.acts_on_update and not isinstance(part, TopK):
            bound = None
        if z is not None and not (isinstance(best, Mechanism) and best.noise_multiplier >= z):
            best = Mechanism(z, Unit.CLIENT)
    return best


def _example_mechanism(
    parts: Sequence[Defense], examples: int | None, layers: int | None, gradient: bool
) -> Mechanism | NoGuarantee:
    mixing = [p for p in parts if type(p).on_batch is not Defense.on_batch and not isinstance(p, Transform)]
    if mixing:
        return NoGuarantee(f"{_name(mixing[0])} changes the batch, so that one example may reach many gradients")
    stage = [p for p in parts if p.acts_on_examples]
    unknown = [p for p in stage if not isinstance(p, ClipExamples | ClipLayers | DPSGD | FedCDP)]
    if unknown:
        return NoGuarantee(f"{_name(unknown[0])} changes example gradients in a way that is not known to be bounded")
    noisy = [i for i, p in enumerate(stage) if isinstance(p, DPSGD | FedCDP)]
    if noisy and noisy[0] != len(stage) - 1:
        return NoGuarantee(f"{_name(stage[-1])} changes single gradients after the noise, which is in their mean only")
    again = [p for p in parts if _looks_again(p)]
    if again:
        return NoGuarantee(f"{_name(again[0])} looks at the batch after the noise")
    if not noisy:
        return _noise_on_gradient(parts, stage, examples, gradient)
    last = stage[-1]
    if isinstance(last, DPSGD):
        return Mechanism(last.noise_multiplier, Unit.EXAMPLE)
    assert isinstance(last, FedCDP)
    return _fed_cdp(last, examples, layers)


def _fed_cdp(defense: FedCDP, examples: int | None, layers: int | None) -> Mechanism | NoGuarantee:
    """An example moves the sum by C·√layers; noise on the sum is σC·√n (each example) or σC·n (on the mean)."""
    if type(defense.level) is not Multiplier:
        return NoGuarantee("fed-cdp at a signal-to-noise ratio scales its noise with the data")
    if examples is None or layers is None:
        return NoGuarantee(
            "fed-cdp clips layer by layer: its ε depends on the number of layers and of examples in a step, not given"
        )
    sums = examples if defense.after_averaging else math.sqrt(examples)
    return Mechanism(defense.level.sigma * sums / math.sqrt(layers), Unit.EXAMPLE)


def _noise_on_gradient(
    parts: Sequence[Defense], stage: Sequence[Defense], examples: int | None, gradient: bool
) -> Mechanism | NoGuarantee:
    """[clip-examples, noise(σ)] on the mean gradient of n: z = σ·n/C. n counts as known, as the wire says it."""
    first = next((p for p in parts if p.acts_on_update), None)
    if not stage or not isinstance(first, GaussianNoise) or type(first.scale) is not Absolute:
        return NoGuarantee(_why_not(parts))
    last = stage[-1]
    if not isinstance(last, ClipExamples):
        return NoGuarantee("each layer is clipped by itself, so the bound of the whole depends on their number")
    if not math.isfinite(last.norm):
        return NoGuarantee(_why_not(parts))
    if not gradient:
        return NoGuarantee(
            "noise on a delta of steps with clipped gradients: one example moves the later steps by more than its own "
            "gradient (dp-sgd adds noise in every step)"
        )
    if examples is None:
        return NoGuarantee(
            "noise on the mean of n clipped gradients: its ε depends on n, not given (dp-sgd scales the noise with n)"
        )
    return Mechanism(first.scale.sigma * examples / last.norm, Unit.EXAMPLE)


BOUNDED = (Clip, ClientDP, GaussianNoise, TopK, ClipExamples, ClipLayers, DPSGD, FedCDP, Soteria, Transform)
"""What is known of these is known of their own members alone."""

SAID = ("attacker_view", "tells_nothing")
"""Members that change nothing that is sent."""


def _changed(part: Defense) -> bool:
    """Whether it derives from one of `BOUNDED`, and writes one of its members anew: stages call the others."""
    kinds = type(part).__mro__
    base = next((known for known in kinds if known in BOUNDED), None)
    if base is None:
        return False
    fixed = set(dir(base)) - {field.name for field in fields(base)} - set(SAID)
    own = {name for kind in kinds[: kinds.index(base)] for name in vars(kind) if not name.startswith("__")}
    return bool(own & fixed)


def _looks_again(part: Defense) -> bool:
    """Whether its update stage was bound to the raw batch."""
    return type(part).for_batch is not Defense.for_batch


def _why_not(parts: Sequence[Defense]) -> str:
    noises = [p for p in parts if isinstance(p, GaussianNoise)]
    relative = [p for p in noises if type(p.scale) is not Absolute]
    if relative:
        return "the noise is scaled with the update itself, so its size depends on the data"
    if noises:
        return "noise without a clip right before it: one unit may move the update by any amount"
    if any(isinstance(p, LaplaceNoise) for p in parts):
        return "Laplace noise answers to the L1 norm, which no clip here bounds, and is not counted"
    if all(isinstance(p, Clip | ClipExamples | ClipLayers) for p in parts):
        return "clipping without noise bounds the update and hides nothing"
    if any(isinstance(p, Soteria) for p in parts):
        return "soteria sends the kept entries as they are"
    return f"{', '.join(_name(p) for p in parts)}: no clip with noise of known size"


def _name(part: Defense) -> str:
    return type(part).__name__
