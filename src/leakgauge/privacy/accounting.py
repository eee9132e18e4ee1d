"""What ε releases of Gaussian noise spend, by an accountant or by the trade-off curve of one mechanism (μ-GDP), the
ledger of what a training has spent so far, and how often a reconstruction can succeed at all."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError
from scipy.optimize import brentq
from scipy.signal import lfilter
from scipy.special import log_ndtr, ndtr, ndtri

from leakgauge.errors import Checked, InputError, did_you_mean, installed, limited, refusing, require
from leakgauge.files import PRIVATE_FILE, json_text, read_json, write_whole


class Unit(Enum):
    """Whose data are hidden."""

    EXAMPLE = "example"
    CLIENT = "client"


ACCOUNTANTS = ("rdp", "prv")
"""Both give upper bounds: Rényi (fast, a little loose) and privacy-loss random variables (numerical, tight)."""

MOST_POINTS = 20_000_000  # most points of the grid of `prv`: two gigabytes and a quarter of a minute


class Uncountable(InputError):
    """An accountant cannot count so little noise, or so many steps."""


@dataclass(frozen=True, kw_only=True)
class Release(Checked):
    """Releases of a sum of contributions of norm ≤ C with noise N(0, (zC)²), z the `noise_multiplier`, each over a
    Poisson sample."""

    noise_multiplier: float = limited(MISSING, lambda z: 0 < z < math.inf, "give a positive number; without it no ε")
    #: probability that an example (or client) is in one release
    sample_rate: float = limited(MISSING, lambda q: 0 < q <= 1, "give a share in (0, 1], e.g. batch size / examples")
    #: releases, local steps times rounds
    steps: int = limited(MISSING, lambda n: isinstance(n, int) and n >= 1, "give a positive whole number")


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ)-differential privacy of one unit's contribution, there or replaced by nothing, over all steps.

    Which units take part, and how many, counts as known: it is not hidden (a server sees who sends, and n is on the
    wire). One unit's data in place of another's are twice as far apart, see `epsilon_exchanged`."""

    epsilon: float  #: epsilon, delta: of the whole training, never of a round
    delta: float
    accountant: str
    unit: Unit
    noise_multiplier: float  #: z that was counted: noise on the sum over the unit's largest contribution to it
    sample_rate: float
    steps: int

    @property
    def release(self) -> Release:
        return Release(noise_multiplier=self.noise_multiplier, sample_rate=self.sample_rate, steps=self.steps)


def opacus(part: str) -> Any:
    """A module of Opacus, which is an extra."""
    return installed(part, "privacy", "needs Opacus, which is not installed", "dp")


def check_accountant(name: str) -> None:
    """Raises `InputError` for an accountant that guarantees nothing, or that nobody knows."""
    gdp = (
        "gdp is a central-limit approximation that under-reports ε (0.75 where 1.67 is tight, at 10 steps with z = 1 "
        "and rate .05), so it guarantees nothing"
    )
    require(name != "gdp", "accountant", gdp, "use prv or rdp")
    require(name in ACCOUNTANTS, "accountant", f"unknown name '{name}'", did_you_mean(name, ACCOUNTANTS))


def check_delta(delta: float, units: int, name: str) -> None:
    """δ must be below 1/`units`: whoever publishes one of them whole, at random, has ε = 0 at δ = 1/units."""
    hint = f"give less, {0.1 / units:.0e} say"
    require(delta * units < 1, "delta", f"{delta:g} is not below 1/{units}, one over the number of {name}", hint)


def epsilon_of(releases: Sequence[Release], delta: float, accountant: str = "rdp") -> float:
    """ε such that all releases together are (ε, δ)-differentially private, one contribution there or not; 0 for none.

    It is what Opacus says for the same history. Infinite or huge values are no error: they say that there is none.
    Raises `InputError`: bad δ or accountant, or no Opacus; `Uncountable`: numbers that `prv` cannot handle.
    """
    check_accountant(accountant)
    require(0 < delta < 1, "delta", f"is {delta}", "give a number in (0, 1), below 1 / number of examples")
    if not releases:
        return 0.0
    counter = opacus("opacus.accountants").create_accountant(mechanism=accountant)
    counter.history = [(r.noise_multiplier, r.sample_rate, r.steps) for r in releases]
    with quiet():
        try:
            reach, width = grid_of(releases, 0.01, delta / 1000) if accountant == "prv" else (0.0, 1.0)
            if not 2 * reach / width < MOST_POINTS:
                problem = f"prv would need {2 * reach / width:.0e} points to count so little noise in so many steps"
                raise Uncountable("accountant", problem, "use rdp")
            return float(counter.get_epsilon(delta=delta))
        except InputError:
            raise
        except (ZeroDivisionError, OverflowError):
            return math.inf  # so little noise that z² is no number
        except (RuntimeError, ValueError, MemoryError) as error:
            problem = f"{accountant} cannot count this ({str(error).splitlines()[0]})"
            raise Uncountable("accountant", problem, "use rdp") from error


def grid_of(releases: Sequence[Release], mesh: float, error: float) -> tuple[float, float]:
    """The grid of privacy losses that prv would lay, by its own rule, for an ε that is off by at most `mesh` and a δ by
    at most `error`: how far it reaches to both sides, and the distance of its points. They take gigabytes where ε is in
    the thousands."""
    steps = [r.steps for r in releases]
    reach = opacus("opacus.accountants.analysis.prv").compute_safe_domain_size(
        prvs=privacy_losses(releases), max_self_compositions=steps, eps_error=mesh, delta_error=error
    )
    return float(reach), mesh / math.sqrt(sum(steps) * math.log(12 / error) / 2)


def privacy_losses(releases: Sequence[Release]) -> list[Any]:
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
    """A noise multiplier that spends at most `epsilon`, and at least 99 % of it; `prv` gives up at some hundreds."""
    check_accountant(accountant)
    require(epsilon > 0, "target_epsilon", f"is {epsilon}", "give a positive number")

    @cache
    def spent(z: float) -> float:
        try:
            return epsilon_of([Release(noise_multiplier=z, sample_rate=sample_rate, steps=steps)], delta, accountant)
        except Uncountable:
            return math.inf

    # prv takes long where there is little noise, and asks for hardly more than rdp does.
    first = 2.0**-20
    if accountant == "prv":
        first = multiplier_for(epsilon, sample_rate=sample_rate, steps=steps, delta=delta)
    high = next((z for z in (first * 2.0**k for k in range(41)) if spent(z) <= epsilon), math.inf)
    require(high < math.inf, "target_epsilon", f"{epsilon} needs more noise than is useful", "give a larger ε")
    low = high / 2
    while spent(low) <= epsilon and low > 2.0**-30:
        low, high = low / 2, low
    while spent(high) < 0.99 * epsilon and high / low > 1 + 1e-6:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if spent(middle) > epsilon else (low, middle)
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
    is_noise = 0 < noise_multiplier < math.inf
    require(is_noise, "noise_multiplier", f"is {noise_multiplier}", "give the noise on the sum over the clip")
    return epsilon_of_mu(math.sqrt(releases) / noise_multiplier, delta)


FORMAT = "leakgauge privacy ledger 1"
PATIENCE = 60.0  # seconds to wait for another writer of the same ledger


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Releases about one unit's data, in their order. ε is that of all of them together.

    A ledger is never changed: `spend` gives the next one, in which equal releases in a row are one entry. It counts
    what is entered, so it belongs beside the data: one for every data set (or client), not one for every model trained
    on it. Examples and clients do not add up.
    """

    accountant: str = "rdp"
    unit: Unit = Unit.EXAMPLE
    releases: tuple[Release, ...] = ()

    def __post_init__(self) -> None:
        check_accountant(self.accountant)

    def spend(self, *, noise_multiplier: float, sample_rate: float, steps: int = 1) -> "Ledger":
        """With `steps` more releases. Raises `InputError` for numbers out of range."""
        new = Release(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps)
        before = self.releases
        if before and replace(before[-1], steps=1) == replace(new, steps=1):
            return replace(self, releases=(*before[:-1], replace(new, steps=before[-1].steps + steps)))
        return replace(self, releases=(*before, new))

    @property
    def steps(self) -> int:
        return sum(release.steps for release in self.releases)

    def epsilon(self, delta: float) -> float:
        """ε at δ of everything spent so far; 0 before the first release."""
        return epsilon_of(self.releases, delta, self.accountant)

    @staticmethod
    def enter(path: Path, release: Release, *, accountant: str = "rdp", unit: Unit = Unit.EXAMPLE) -> "Ledger":
        """Adds a release to the ledger at `path`, begun there if there is none; one that is there keeps its own
        accountant and unit. Several processes may enter at a time."""
        with entering(path) as write:
            book = Ledger.load(path) if path.exists() else Ledger(accountant=accountant, unit=unit)
            book = book.spend(**asdict(release))
            write(book)
            return book

    @staticmethod
    def load(path: Path) -> "Ledger":
        """Reads what `enter` wrote. Raises `InputError` for anything else: a ledger that cannot be read is no empty
        one."""
        field = f"ledger {path}"
        hint = "give a file that Ledger.enter wrote; spent budget is not forgotten by deleting it"
        with refusing(field, "cannot be read", hint, OSError, ValueError):
            content = read_json(path)
        require(isinstance(content, dict) and content.get("format") == FORMAT, field, "is not a ledger", hint)
        missing = sorted({"accountant", "unit", "releases"} - content.keys())
        require(not missing, field, f"is damaged (no {', '.join(missing)})", hint)
        try:
            return TypeAdapter(Ledger).validate_python(content)
        except ValidationError as error:
            raise InputError(field, f"is damaged ({error.errors()[0]['msg']})", hint) from error


@contextmanager
def entering(path: Path) -> Iterator[Callable[[Ledger], Path]]:
    """The only writer of a ledger, from reading it to writing it: call what is given to write."""

    def write(book: Ledger) -> Path:
        return write_whole(path, json_text({"format": FORMAT} | TypeAdapter(Ledger).dump_python(book, mode="json")))

    lock = FileLock(path.with_name(f".{path.name[:150]}.lock"), PATIENCE, PRIVATE_FILE)
    denied = refusing(f"ledger {path}", "cannot be written", "give a file in a folder that you may write to", OSError)
    busy = f"is in use by another process for {PATIENCE:g} s"
    with denied, refusing(f"ledger {path}", busy, "run again when it has ended", Timeout):
        lock.acquire()
    try:
        yield write
    finally:
        lock.release()


MOST_LOSSES = 4_000_000
"""Most points of a discretised privacy loss; beyond, the mesh gets coarser, then the Rényi bound alone counts."""


def success_bound(spent: Guarantee | Sequence[Release], prior: float) -> float:
    """Reconstruction robustness: an attacker whose guess without the releases succeeds with probability at most κ
    succeeds with at most γ(κ) after seeing them all, whatever success means, if all but the unit's data is known.

    The smallest of the bounds that hold:

    * all units in every step: γ = Φ(Φ⁻¹(κ) + μ) with μ² = Σ steps/z². It is exact there, and no sampling is worse.
    * Rényi divergence D_α of the releases with the unit from those without (Balle, Cherubin and Hayes, 2022, by
      Hölder): γ ≤ (κ·e^{D_α})^{(α−1)/α}, smallest over α.
    * privacy-loss random variable, discretised as Opacus' prv does: γ ≤ κ·e^{ε+η} + δ(ε) + η', smallest over ε,
      with η, η' the errors of the discretisation. Up to these it is the trade-off function, so it is tight.

    Raises `InputError`: κ out of range; or a sample rate below 1 and no Opacus.
    """
    require(0 < prior < 1, "prior", f"is {prior}", "give a probability, e.g. 0.001")
    releases = (spent.release,) if isinstance(spent, Guarantee) else spent
    mu = math.hypot(*(math.sqrt(r.steps) / r.noise_multiplier for r in releases))
    if mu > 1e100:
        return 1.0  # so little noise that z² is no number
    bounds = [1.0, float(ndtr(ndtri(prior) + mu))]
    if any(r.sample_rate < 1 for r in releases):
        bounds += [_renyi(releases, prior), _privacy_loss(releases, prior)]
    return max(min(bounds), prior)


def sentence(spent: Guarantee | Sequence[Release], prior: float) -> str:
    odds, share = 1 / prior, success_bound(spent, prior)
    times = f"{odds:,.0f}".replace(",", " ") if odds >= 10 else f"{odds:.2g}"
    percent = f"{100 * share:.2g}" if share < 0.995 else f"{100 * share:.0f}"
    return (
        f"an attacker whose guess is right 1 time in {times} without the updates is right at most {percent} % of the "
        "time with them"
    )


def _renyi(releases: Sequence[Release], prior: float) -> float:
    orders = opacus("opacus.accountants").RDPAccountant.DEFAULT_ALPHAS
    rdp = opacus("opacus.accountants.analysis.rdp")
    with quiet():
        spent = sum(
            rdp.compute_rdp(q=r.sample_rate, noise_multiplier=r.noise_multiplier, steps=r.steps, orders=orders)
            for r in releases
        )
    alpha = np.asarray(orders, dtype=float)
    logs = (math.log(prior) + np.asarray(spent)) * (alpha - 1) / alpha
    finite = logs[np.isfinite(logs)]
    return math.exp(min(float(finite.min()), 0.0)) if finite.size else 1.0


def _privacy_loss(releases: Sequence[Release], prior: float) -> float:
    """The bound from δ(ε) over the grid of the composed, discretised privacy loss; 1 where the grid is too large."""
    prv = opacus("opacus.accountants.analysis.prv")
    error = prior * 1e-3
    with quiet():
        for mesh in (0.01, 0.1):
            reach, width = grid_of(releases, mesh, error)
            if not 2 * reach / width < MOST_LOSSES:
                continue
            domain = prv.Domain.create_aligned(-reach, reach, width)
            cut = [prv.TruncatedPrivacyRandomVariable(x, domain.t_min, domain.t_max) for x in privacy_losses(releases)]
            try:
                loss = prv.compose_heterogeneous([prv.discretize(x, domain) for x in cut], [r.steps for r in releases])
            except (RuntimeError, ValueError):
                continue  # its own check of the discretisation failed
            return _least(np.asarray(loss.domain.ts), np.asarray(loss.pmf), prior, mesh, error)
    return 1.0


def _least(ts: np.ndarray, pmf: np.ndarray, prior: float, mesh: float, error: float) -> float:
    """min over t of κ·e^{t+mesh} + Σ_{s>t} p(s)(1 − e^{t−s}) + error.

    The sum Σ_{s≥t} p(s)e^{t−s} is a recurrence on the even grid. Taken as e^t·Σ p(s)e^{−s} it overflows where losses
    reach hundreds, and a bound below the truth comes out.
    """
    falling = np.flip(np.clip(pmf, 0.0, None))
    upper = falling.cumsum()
    weighted = lfilter([1.0], [1.0, -math.exp(-float(ts[1] - ts[0]))], falling)
    delta = np.flip(np.clip(upper - weighted, 0.0, 1.0))
    bounds = prior * np.exp(np.minimum(ts + mesh, 700.0)) + delta + error
    return float(min(bounds.min(), 1.0))
