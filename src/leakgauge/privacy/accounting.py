"""What ε releases of Gaussian noise spend, by an accountant or by the trade-off curve of one mechanism (μ-GDP), and
whether a network can be trained with differential privacy at all."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from torch import nn

from leakgauge.errors import InputError, did_you_mean, require

HINTS: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.modules.batchnorm._BatchNorm, "mixes the examples of a batch; use GroupNorm"),
    (nn.modules.instancenorm._InstanceNorm, "keeps running statistics without noise; set track_running_stats=False"),
    (nn.LSTM, "has no per-example gradients; use opacus.layers.DPLSTM"),
    (nn.GRU, "has no per-example gradients; use opacus.layers.DPGRU"),
    (nn.RNN, "has no per-example gradients; use opacus.layers.DPRNN"),
    (nn.MultiheadAttention, "has no per-example gradients; use opacus.layers.DPMultiheadAttention"),
)


def validate_for_dp(module: nn.Module) -> tuple[str, ...]:
    """What must change in a network before DP-SGD, one sentence a layer; empty if nothing. Opacus decides.

    Layers without trainable parameters, which Opacus passes over, are looked at too: they mix examples as well.
    It is about training. An update computed in eval mode may be clipped example by example with BatchNorm as well.

    Raises:
        InputError: Opacus is not installed.
    """
    validators = opacus("opacus.validators").ModuleValidator.VALIDATORS
    found: list[str] = []
    for name, part in module.named_modules():
        errors = validators[type(part)](part) if type(part) in validators else []
        if errors:
            hint = next((text for kind, text in HINTS if isinstance(part, kind)), f"is refused ({errors[0]})")
            found.append(f"{name or 'the model'} ({type(part).__name__}) {hint}")
    return tuple(found)


ACCOUNTANTS = ("rdp", "prv")
"""Both give upper bounds: Rényi (fast, a little loose) and privacy-loss random variables (numerical, tight)."""


MOST_POINTS = 20_000_000
"""Most points of the grid of `prv`: two gigabytes and a quarter of a minute."""


class Uncountable(InputError):
    """An accountant cannot count so little noise, or so many steps."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """`steps` releases of a sum of contributions of norm ≤ C with noise N(0, (zC)²), each over a Poisson sample.

    Attributes:
        noise_multiplier: z.
        sample_rate: probability that an example (or client) is in one release.
        steps: releases, local steps times rounds.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int

    def __post_init__(self) -> None:
        z, q = self.noise_multiplier, self.sample_rate
        require(
            0 < z < float("inf"), "noise_multiplier", f"is {z}", "give a positive number; without noise there is no ε"
        )
        require(0 < q <= 1, "sample_rate", f"is {q}", "give a share in (0, 1], e.g. batch size / examples")
        whole = isinstance(self.steps, int) and self.steps >= 1
        require(whole, "steps", f"is {self.steps}", "give a positive whole number")


def opacus(part: str) -> Any:
    """A module of Opacus, which is an extra.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module(part)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "opacus":
            raise
        raise InputError("privacy", "needs Opacus, which is not installed", "pip install leakgauge[dp]") from error


def check_accountant(name: str) -> None:
    """Raises `InputError` for an accountant that guarantees nothing, or that nobody knows."""
    if name == "gdp":
        raise InputError(
            "accountant",
            "gdp is a central-limit approximation that under-reports ε (0.75 where 1.67 is tight, at 10 steps with "
            "z = 1 and rate .05), so it guarantees nothing",
            "use prv or rdp",
        )
    require(name in ACCOUNTANTS, "accountant", f"unknown name '{name}'", did_you_mean(name, ACCOUNTANTS))


def check_delta(delta: float, units: int, name: str) -> None:
    """δ must be below 1/`units`: whoever publishes one of them whole, at random, has ε = 0 at δ = 1/units.

    Raises:
        InputError: it is not.
    """
    hint = f"give less, {0.1 / units:.0e} say"
    require(delta * units < 1, "delta", f"{delta:g} is not below 1/{units}, one over the number of {name}", hint)


def epsilon_of(releases: Sequence[Release], delta: float, accountant: str = "rdp") -> float:
    """ε such that all releases together are (ε, δ)-differentially private, one contribution there or not; 0 for none.

    It is what Opacus says for the same history. Infinite or huge values are no error: they say that there is none.

    Raises:
        InputError: bad δ or accountant, or no Opacus.
        Uncountable: numbers that `prv` cannot handle.
    """
    check_accountant(accountant)
    require(0 < delta < 1, "delta", f"is {delta}", "give a number in (0, 1), below 1 / number of examples")
    if not releases:
        return 0.0
    counter = opacus("opacus.accountants").create_accountant(mechanism=accountant)
    counter.history = [(r.noise_multiplier, r.sample_rate, r.steps) for r in releases]
    with quiet():
        try:
            if accountant == "prv" and not (points := Grid.of(releases, 0.01, delta / 1000).points) < MOST_POINTS:
                raise Uncountable(
                    "accountant",
                    f"prv would need {points:.0e} points to count so little noise in so many steps",
                    "use rdp",
                )
            return float(counter.get_epsilon(delta=delta))
        except InputError:
            raise
        except (ZeroDivisionError, OverflowError):
            return math.inf  # so little noise that z² is no number
        except (RuntimeError, ValueError, MemoryError) as error:
            raise Uncountable(
                "accountant", f"{accountant} cannot count this ({str(error).splitlines()[0]})", "use rdp"
            ) from error


@dataclass(frozen=True)
class Grid:
    """The grid of privacy losses that prv would lay, by its own rule: gigabytes where ε is in the thousands.

    Attributes:
        reach: it goes from −reach to reach.
        width: the distance of its points.
    """

    reach: float
    width: float

    @property
    def points(self) -> float:
        """How many, possibly not a number."""
        return 2 * self.reach / self.width

    @staticmethod
    def of(releases: Sequence[Release], mesh: float, error: float) -> Grid:
        """For an ε that is off by at most `mesh` and a δ by at most `error`."""
        steps = [r.steps for r in releases]
        reach = opacus("opacus.accountants.analysis.prv").compute_safe_domain_size(
            prvs=privacy_losses(releases), max_self_compositions=steps, eps_error=mesh, delta_error=error
        )
        return Grid(float(reach), mesh / math.sqrt(sum(steps) * math.log(12 / error) / 2))


def privacy_losses(releases: Sequence[Release]) -> list[Any]:
    """Opacus' random variable of one step of each release."""
    prv = opacus("opacus.accountants.analysis.prv")
    return [prv.PoissonSubsampledGaussianPRV(r.sample_rate, r.noise_multiplier) for r in releases]


def epsilon_exchanged(releases: Sequence[Release], delta: float, accountant: str = "rdp") -> float | None:
    """ε of telling one unit's data from any other data in their place: half the noise multipliers, at the same δ.

    `None` with sampling below 1, where half the multiplier is no bound that we know, and where no finite value is.
    """
    if any(r.sample_rate < 1 for r in releases):
        return None
    halved = [replace(r, noise_multiplier=r.noise_multiplier / 2) for r in releases]
    try:
        value = epsilon_of(halved, delta, accountant)
    except Uncountable:
        return None  # the accountant counts the noise itself, but not half of it
    return value if math.isfinite(value) else None


def multiplier_for(epsilon: float, *, sample_rate: float, steps: int, delta: float, accountant: str = "rdp") -> float:
    """A noise multiplier that spends at most `epsilon`, and at least 99 % of it, as far as the accountant counts: `prv`
    gives up at some hundreds."""
    check_accountant(accountant)
    require(epsilon > 0, "target_epsilon", f"is {epsilon}", "give a positive number")
    low, high = 0.05, 1.0

    def spent(z: float) -> float:
        try:
            return epsilon_of([Release(noise_multiplier=z, sample_rate=sample_rate, steps=steps)], delta, accountant)
        except Uncountable:
            return math.inf

    while spent(high) > epsilon:
        low, high = high, 2 * high
        require(high < 1e6, "target_epsilon", f"{epsilon} needs more noise than is useful", "give a larger ε")
    while low > 1e-6 and spent(low) <= epsilon:  # a large ε needs less noise than that
        low, high = low / 2, low
    at_high = spent(high)
    while at_high < 0.99 * epsilon and high / low > 1 + 1e-6:
        middle = (low * high) ** 0.5
        at_middle = spent(middle)
        if at_middle > epsilon:
            low = middle
        else:
            high, at_high = middle, at_middle
    return high


@contextmanager
def quiet() -> Iterator[None]:
    """Opacus warns where a wider grid of orders would be tighter (the bound holds) and divides by zero at rate 1."""
    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        warnings.filterwarnings("ignore", message="Optimal order is the")
        yield


def largest(refuted: Callable[[float], float], xtol: float = 1e-9) -> float:
    """The largest argument ≥ 0 at which `refuted`, which falls, is not negative; 0 where it is nowhere positive."""
    if refuted(0.0) <= 0:
        return 0.0
    high = 1.0
    while refuted(high) > 0:
        high *= 2
    return float(brentq(refuted, 0.0 if high == 1 else high / 2, high, xtol=xtol))


def delta_of(mu: float, epsilon: float) -> float:
    """The smallest δ for which a μ-GDP mechanism is (ε, δ)-differentially private.

    Source: Balle & Wang, *Improving the Gaussian Mechanism for Differential Privacy*, ICML 2018, Theorem 8, with
    μ = sensitivity/σ.
    """
    if mu == 0:
        return 0.0
    first, second = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return float(ndtr(first) - math.exp(epsilon + float(log_ndtr(second))))


def epsilon_of_mu(mu: float, delta: float) -> float:
    """The smallest ε ≥ 0 for which a μ-GDP mechanism is (ε, δ)-differentially private; δ in (0, 1)."""
    require(0 < delta < 1, "delta", f"is {delta}", "give a number in (0, 1), below 1 / number of units")
    return largest(lambda epsilon: delta_of(mu, epsilon) - delta, 1e-10)


def epsilon_of_noise(noise_multiplier: float, delta: float, releases: int = 1) -> float:
    """Exact ε of Gaussian releases without sampling: μ = √releases/z."""
    z = noise_multiplier
    require(0 < z < math.inf, "noise_multiplier", f"is {z}", "give the noise on the sum over the clip")
    return epsilon_of_mu(math.sqrt(releases) / z, delta)


def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ for which μ-GDP implies (ε, δ)-differential privacy. One Gaussian mechanism that states this
    (ε, δ) without slack is μ-GDP."""
    return largest(lambda mu: delta - delta_of(mu, epsilon), 1e-12)
