"""Lower bounds on ε, and a stated ε against what canaries show."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path as File

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm
from torch import Tensor

from leakgauge.cli import main
from leakgauge.defenses import DPSGD, Absolute, ClientDP, Clip, Compose, FedCDP, GaussianNoise, TopK
from leakgauge.errors import InputError
from leakgauge.intervals import proportion_upper
from leakgauge.privacy import Unit
from leakgauge.privacy.accounting import delta_of, epsilon_of_mu, mu_of
from leakgauge.privacy.canaries import CanaryScores, NoisePath, directions
from leakgauge.privacy.tested import (
    Claim,
    ClaimOutcome,
    Guesses,
    PrivacyTest,
    blow_up_inverse,
    check_claim,
    guess,
    one_run,
    one_run_gaussian,
    p_value,
    separate_runs_gaussian,
)

# canaries, guesses, correct, significance, δ → one-run bound, f-DP one-run bound; by running jax_privacy 2.0.0
ORACLE = [
    (10, 10, 9, 0.05, 1e-05, 0.42958612293589465, 1.0686457182107691),
    (50, 50, 50, 0.05, 1e-05, 2.7833087629132476, 6.8279658533116),
    (100, 100, 65, 0.05, 1e-05, 0.25683079855625823, 0.5649769833894575),
    (200, 20, 20, 0.05, 1e-05, 1.8164726132401656, 2.892102871817154),
    (200, 100, 88, 0.05, 1e-05, 1.4677011810896918, 2.8257030573747324),
    (200, 100, 88, 0.05, 0.001, 1.370446684949065, 1.9657149816297768),
    (200, 100, 88, 0.01, 1e-05, 1.2869692031240845, 2.169412378186495),
    (200, 100, 88, 0.01, 0.001, 0.3077650315992154, 1.481006718950552),
    (200, 200, 200, 0.05, 1e-05, 4.1882158070293585, 9.513956845680443),
    (1000, 500, 400, 0.05, 1e-05, 1.1979685996776859, 2.076806928840693),
    (1000, 1000, 977, 0.05, 1e-05, 3.3937183965483353, 6.449245613744536),
    (1000, 1000, 1000, 0.05, 1e-05, 5.782283131572193, 12.334570155595598),
    (1000, 300, 150, 0.05, 1e-05, 0.0, 0.0),
]


@pytest.mark.parametrize("case", ORACLE, ids=lambda case: f"{case[2]} of {case[1]} of {case[0]}")
def test_equal_to_another_implementation(case: tuple[float, ...]) -> None:
    m, made, correct, significance, delta, plain, gaussian = case
    guesses = Guesses(int(m), int(made), int(correct))
    assert one_run(guesses, significance=significance, delta=delta) == pytest.approx(plain, abs=1e-6)
    assert one_run_gaussian(guesses, significance=significance, delta=delta) == pytest.approx(gaussian, abs=1e-6)


@pytest.mark.parametrize("mu", [0.2, 1.0, 4.0])
def test_epsilon_of_a_gaussian_mechanism_by_integration(mu: float) -> None:
    """δ(ε) = ∫ max(p − e^ε·q, 0), the hockey-stick divergence."""
    found = epsilon_of_mu(mu, 1e-5)
    edge = found / mu + mu / 2
    delta = quad(lambda x: norm.pdf(x - mu) - math.exp(found) * norm.pdf(x), edge, edge + 30, epsabs=1e-13)[0]
    assert delta == pytest.approx(1e-5, rel=1e-4)
    assert mu_of(found, 1e-5) == pytest.approx(mu, rel=1e-6)


def test_a_blow_up_is_undone_by_the_shifted_test() -> None:
    """A threshold test on N(0, 1) of size p has power blow-up(p) on N(μ, 1)."""
    assert blow_up_inverse(norm.sf(0.3 - 1.5), 1.5) == pytest.approx(norm.sf(0.3))
    assert (delta_of(0.0, 0.0), epsilon_of_mu(1e-6, 1e-5)) == (0.0, 0.0)


@given(st.integers(5, 60), st.floats(0.0, 4.0, allow_subnormal=False), st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_p_values_of_randomised_response_are_honest(m: int, epsilon: float, seed: int) -> None:
    """Guesses right with probability e^ε/(1 + e^ε) are exactly ε-private: a p-value below α is as rare as α."""
    rng = np.random.default_rng(seed)
    correct = rng.binomial(m, 1 / (1 + math.exp(-epsilon)), 400)
    refuted = [p_value(Guesses(m, m, c), epsilon, 0.0) < 0.05 for c in range(m + 1)]
    rejected = np.mean(np.asarray(refuted)[correct])
    assert rejected <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / 400)


@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_more_right_guesses_raise_every_bound(delta: float) -> None:
    for bound in (one_run, one_run_gaussian, separate_runs_gaussian):
        found = [bound(Guesses(100, 100, c), significance=0.05, delta=delta) for c in (0, 50, 70, 90, 100)]
        assert found == sorted(found)
        assert found[:2] == [0.0, 0.0]
        assert found[-1] > 3


def test_separate_runs_of_a_gaussian_mechanism_cover_its_epsilon() -> None:
    """Right guesses of N(±μ/2, 1) come with probability Φ(μ/2)."""
    rng, mu = np.random.default_rng(7), 1.0
    correct = rng.binomial(300, norm.cdf(mu / 2), 1000)
    counts, often = np.unique(correct, return_counts=True)
    bounds = [separate_runs_gaussian(Guesses(300, 300, int(c)), significance=0.05, delta=1e-5) for c in counts]
    found = np.repeat(bounds, often)
    assert np.mean(found > epsilon_of_mu(mu, 1e-5)) <= 0.05 + 0.02
    assert np.median(found) > 2.5  # true: 4.38


C, Z, ROUNDS = 2.0, 1.0, 4
STATED = Claim.of_noise(Z, 1e-5)


def clipped(rows: Tensor, bound: float = C) -> Tensor:
    return rows * (bound / rows.norm(dim=-1, keepdim=True).clamp_min(1e-12)).clamp_max(1)


def noise(rows: Tensor, generator: torch.Generator, sigma: float) -> Tensor:
    return sigma * torch.randn(rows.shape[1], generator=generator)


def honest(rows: Tensor, generator: torch.Generator) -> Tensor:
    return clipped(rows).sum(0) + noise(rows, generator, Z * C)


Function = Callable[[Tensor, torch.Generator], Tensor]
FAULTS: dict[str, Function] = {
    "noise forgotten": lambda u, _: clipped(u).sum(0),
    "a quarter of the noise": lambda u, g: clipped(u).sum(0) + noise(u, g, Z * C / 4),
    "half of the noise": lambda u, g: clipped(u).sum(0) + noise(u, g, Z * C / 2),
    "sensitivity is not the clip": lambda u, g: clipped(u).sum(0) + noise(u, g, Z * 1e-4),
    "clipped after averaging": lambda u, g: clipped(u.mean(0)) + noise(u, g, Z * C / len(u)),
    "clipped after summing": lambda u, g: clipped(u.sum(0)) + noise(u, g, Z * C),
    "never clipped": lambda u, g: u.sum(0) + noise(u, g, Z * C),
    "clipped entry by entry": lambda u, g: u.clamp(-C, C).sum(0) + noise(u, g, Z * C),
    "clipped layer by layer": lambda u, g: (
        torch.cat([clipped(part).sum(0) for part in u.split(u.shape[1] // 4, 1)]) + noise(u, g, Z * C)
    ),
    "noise divided by the root of the size": lambda u, g: clipped(u).sum(0) + noise(u, g, Z * C / u.shape[1] ** 0.5),
    "noise divided twice by the number of updates": lambda u, g: clipped(u).mean(0) + noise(u, g, Z * C / len(u) ** 2),
    "the same noise in every call": lambda u, _: clipped(u).sum(0) + noise(u, torch.Generator().manual_seed(3), Z * C),
}


def tried(send: Function, claim: Claim = STATED, *, seed: int = 0, canaries: int = 1000) -> PrivacyTest:
    path, generator = NoisePath.of_function(send, Unit.EXAMPLE), torch.Generator().manual_seed(seed)
    return check_claim(path, claim, clip=C, generator=generator, canaries=canaries, size=canaries)


@pytest.mark.parametrize("fault", FAULTS)
def test_convicts(fault: str) -> None:
    result = tried(FAULTS[fault])
    assert result.outcome is ClaimOutcome.CONTRADICTED
    assert result.measured < 0.8 * Z
    assert "contradicted: with 95 % confidence" in result.sentence


def test_convicts_noise_divided_by_the_rounds() -> None:
    stated = Claim.of_noise(4.0, 1e-5, ROUNDS)
    assert (
        tried(lambda u, g: clipped(u).sum(0) + noise(u, g, 4.0 * C / ROUNDS), stated, canaries=400).outcome
        is ClaimOutcome.CONTRADICTED
    )
    assert (
        tried(lambda u, g: clipped(u).sum(0) + noise(u, g, 4.0 * C), stated, canaries=400).outcome
        is ClaimOutcome.NOT_CONTRADICTED
    )


def test_honest_code_is_seldom_contradicted() -> None:
    """A few tests; the 200 are slow."""
    results = [tried(honest, seed=seed, canaries=300) for seed in range(15)]
    assert sum(r.outcome is ClaimOutcome.CONTRADICTED for r in results) <= 2
    assert np.median([r.best.epsilon for r in results]) > 0.5 * STATED.epsilon  # and the bound is worth something


@pytest.mark.slow
def test_honest_code_in_200_tests() -> None:
    """The share of false alarms is at most the 5 % that is stated, within its own interval."""
    alarms = sum(tried(honest, seed=seed).outcome is ClaimOutcome.CONTRADICTED for seed in range(10_000, 10_200))
    assert alarms <= 10
    assert proportion_upper(alarms, 200) < 0.09


@pytest.mark.parametrize(
    "send", [lambda u, _: torch.zeros(u.shape[1]), lambda u, g: noise(u, g, 1.0), lambda u, g: honest(u / 100, g)]
)
def test_code_that_ignores_the_canaries_is_not_cleared(send: Function) -> None:
    result = tried(send)
    assert result.outcome is ClaimOutcome.NO_POWER
    assert "says nothing" in result.sentence


def test_says_how_much_noise_may_be_missing() -> None:
    """At the share that it names, nine of ten tests notice."""
    share = tried(honest, canaries=300).noticed
    assert 0.4 < share < 0.9

    def less(rows: Tensor, generator: torch.Generator) -> Tensor:
        return clipped(rows).sum(0) + noise(rows, generator, share * Z * C)

    below = [tried(less, seed=seed, canaries=300) for seed in range(10)]
    assert sum(r.outcome is ClaimOutcome.CONTRADICTED for r in below) >= 7


@pytest.mark.parametrize(
    ("defense", "unit", "examples", "layouts"),
    [
        (DPSGD(norm=3.0, noise_multiplier=1.5), Unit.EXAMPLE, None, 2),
        (ClientDP(norm=3.0, noise_multiplier=1.5), Unit.CLIENT, None, 1),
        (Compose((Clip(norm=0.1), GaussianNoise(scale=Absolute(0.1)))), Unit.CLIENT, None, 1),
        (FedCDP(noise_multiplier=0.5, norm=1.0), Unit.EXAMPLE, 8, 2),
    ],
    ids=["dp-sgd", "client-dp", "clip + noise", "fed-cdp"],
)
def test_the_packages_own_defences_hold_what_they_state(
    defense: object, unit: Unit, examples: int | None, layouts: int
) -> None:
    stated = NoisePath.of_defense(defense, examples)  # type: ignore[arg-type]
    claim, generator = Claim.of_noise(stated.noise_multiplier, 1e-5), torch.Generator().manual_seed(1)
    result = check_claim(stated, claim, clip=stated.clip, generator=generator, canaries=300, size=300)
    assert result.outcome is ClaimOutcome.NOT_CONTRADICTED
    assert (result.unit, len({bound.alone for bound in result.bounds})) == (unit, layouts)
    assert result.measured == pytest.approx(stated.noise_multiplier, rel=0.3)


def test_a_defence_without_epsilon_is_refused() -> None:
    with pytest.raises(InputError, match="states no ε"):
        NoisePath.of_defense(TopK(keep=0.1))


def test_guesses_read_no_truth() -> None:
    """The same scores with the opposite truth: what was right is wrong."""
    rng = np.random.default_rng(0)
    scores, present = rng.normal(size=100), rng.random(100) < 0.5
    for made in (100, 50, 11):
        one, other = (guess(CanaryScores(scores, truth), made) for truth in (present, ~present))
        assert one.made == other.made == made
        assert one.correct + other.correct == made


def test_canaries_are_orthogonal_and_dense() -> None:
    drawn = directions(50, 64, torch.Generator().manual_seed(0))
    assert torch.allclose(drawn @ drawn.T, torch.eye(50), atol=1e-5)
    quarters = drawn.square().reshape(50, 4, 16).sum(2)
    assert 0.05 < float(quarters.min()) < float(quarters.max()) < 0.5


MODULE = """
import numpy as np
def honest(updates, rng):
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    return (updates * np.minimum(1, 1 / np.maximum(norms, 1e-12))).sum(0) + rng.standard_normal(updates.shape[1])
def bare(updates, generator):
    return updates.sum(0)
def wrong(updates, generator):
    return updates
def alone(updates):
    return updates
def divides(updates, generator):
    return (updates / updates.norm(dim=1, keepdim=True)).sum(0)
"""
SMALL = ("--delta", "1e-5", "--canaries", "200", "--size", "200")


@pytest.fixture
def run(tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    (tmp_path / "canary_paths.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "canary_paths", raising=False)

    def run(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["privacy", "test", *words])
        return result.exit_code, " ".join(result.output.split())

    return run


def test_the_command(run: Callable[..., tuple[int, str]], tmp_path: File) -> None:
    stated = ("--noise-multiplier", "1", "--clip", "1", *SMALL)
    code, text = run("canary_paths:honest", "--numpy", *stated)
    assert code == 0
    assert "is not contradicted by 200 canaries" in text
    assert "adjacency: add or remove one, their number known" in text
    code, text = run("canary_paths:bare", *stated, "--unit", "client", "--json", "r.json")
    assert code == 1
    assert "ε = 4.38 (δ = 1e-05, unit: one client) is contradicted" in text
    kept = json.loads((tmp_path / "r.json").read_text())
    assert (kept["outcome"], kept["unit"], len(kept["bounds"])) == ("contradicted", "client", 4)
    code, text = run("canary_paths:bare", "--any-noise", "--epsilon", "2", "--clip", "1", *SMALL)
    assert (code, "Gaussian" in text) == (1, False)


BAD = [
    (("canary_paths:honest", "--noise-multiplier", "1", *SMALL), "--clip: is missing"),
    (("canary_paths:wrong", "--noise-multiplier", "1", "--clip", "1", *SMALL), "returned shape (2, 200)"),
    (("canary_paths:divides", "--noise-multiplier", "1", "--clip", "1", *SMALL), "returned NaN"),
    (("canary_paths:alone", "--noise-multiplier", "1", "--clip", "1", *SMALL), "raises TypeError"),
    (("canary_paths:honest", "--clip", "1", *SMALL), "claim: --noise-multiplier or --epsilon is missing"),
    (("canary_paths:no", "--epsilon", "1", "--clip", "1", *SMALL), "cannot import"),
    (("canary_paths", "--epsilon", "1", "--clip", "1", *SMALL), "names no function"),
    (SMALL, "path: is missing"),
    (("--defense", "topk", *SMALL), "needs keep"),
    (("--defense", "{topk: {keep: .1}}", *SMALL), "states no ε"),
    (("--defense", "{dp-sgd: {norm: 1, noise_multiplier: 1}}", "--clip", "1", *SMALL), "states them itself"),
    (("canary_paths:bare", "--epsilon", "1", "--clip", "1", "--delta", "1e-5", "--size", "50"), "fewer than 1000"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input_is_one_line(run: Callable[..., tuple[int, str]], words: tuple[str, ...], message: str) -> None:
    code, text = run(*words)
    assert code == 2
    assert message in text
