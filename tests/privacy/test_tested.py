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
from scipy.stats import binom, norm
from torch import Tensor

from leakgauge.cli import main
from leakgauge.defenses import DPSGD, Absolute, ClientDP, Clip, Compose, FedCDP, GaussianNoise, TopK
from leakgauge.errors import InputError
from leakgauge.privacy import Unit
from leakgauge.privacy.accounting import delta_of, epsilon_of_mu
from leakgauge.privacy.tested import (
    CanaryScores,
    Claim,
    ClaimOutcome,
    NoisePath,
    PrivacyTest,
    check_claim,
    refuted,
)


@pytest.mark.parametrize("mu", [0.2, 1.0, 4.0])
def test_epsilon_of_a_gaussian_mechanism_by_integration(mu: float) -> None:
    """δ(ε) = ∫ max(p − e^ε·q, 0), the hockey-stick divergence."""
    found = epsilon_of_mu(mu, 1e-5)
    edge = found / mu + mu / 2
    delta = quad(lambda x: norm.pdf(x - mu) - math.exp(found) * norm.pdf(x), edge, edge + 30, epsabs=1e-13)[0]
    assert delta == pytest.approx(1e-5, rel=1e-4)
    assert Claim(found, 1e-5).mu == pytest.approx(mu, rel=1e-6)


def test_no_noise_is_zero_epsilon() -> None:
    assert (delta_of(0.0, 0.0), epsilon_of_mu(1e-6, 1e-5)) == (0.0, 0.0)


@given(st.integers(20, 60), st.floats(0.0, 4.0, allow_subnormal=False), st.sampled_from((0.0, 1e-3, 0.1)))
@settings(max_examples=25, deadline=None)
def test_guesses_of_randomised_response_refute_no_more_than_is_stated(m: int, epsilon: float, delta: float) -> None:
    """Guesses right with probability (e^ε + δ)/(1 + e^ε) are exactly (ε, δ)-private."""
    counts = np.arange(m + 1)
    above = [refuted(int(k), m, gaussian=False, significance=0.05, delta=delta) > epsilon + 1e-9 for k in counts]
    often = binom.pmf(counts, m, (math.exp(epsilon) + delta) / (1 + math.exp(epsilon)))
    assert often @ np.asarray(above) <= 0.05 + 1e-9


@pytest.mark.parametrize(("gaussian", "delta"), [(True, 1e-5), (False, 1e-5), (True, 1e-3), (False, 1e-3)])
def test_more_right_guesses_raise_the_bound(gaussian: bool, delta: float) -> None:
    found = [refuted(c, 100, gaussian=gaussian, significance=0.05, delta=delta) for c in (0, 50, 70, 90, 100)]
    assert found == sorted(found)
    assert found[:2] == [0.0, 0.0]
    assert found[-1] > 3


def test_separate_runs_of_a_gaussian_mechanism_cover_its_epsilon() -> None:
    """Right guesses of N(±μ/2, 1) come with probability Φ(μ/2)."""
    counts, mu = np.arange(301), 1.0
    found = [refuted(int(c), 300, gaussian=True, significance=0.05, delta=1e-5) for c in counts]
    often = binom.pmf(counts, 300, norm.cdf(mu / 2))
    assert often @ (np.asarray(found) > epsilon_of_mu(mu, 1e-5)) <= 0.05
    assert found[round(300 * norm.cdf(mu / 2))] > 2.5  # true: 4.38


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
    "no noise on the last tenth": lambda u, g: (
        clipped(u).sum(0) + noise(u, g, Z * C) * (torch.arange(u.shape[1]) < 0.9 * u.shape[1])
    ),
    "one number for fifty entries": lambda u, g: (
        clipped(u).sum(0) + noise(u[:, ::50], g, Z * C).repeat_interleave(50)[: u.shape[1]]
    ),
    "one of ten seeds": lambda u, g: (
        clipped(u).sum(0) + noise(u, torch.Generator().manual_seed(int(torch.randint(10, (), generator=g))), Z * C)
    ),
    "the same noise on both halves": lambda u, g: (
        clipped(u).sum(0) + noise(u[:, ::2], g, Z * C).repeat(2)[: u.shape[1]]
    ),
    "noise left out one call in twenty": lambda u, g: (
        clipped(u).sum(0) + noise(u, g, Z * C) * (torch.rand((), generator=g) > 0.05)
    ),
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
    assert "contradicted: with 99 % confidence" in result.sentence


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
    assert np.median([r.epsilon for r in results]) > 0.5 * STATED.epsilon  # and the bound is worth something


@pytest.mark.slow
def test_honest_code_in_200_tests() -> None:
    """The share of false alarms is the 1 % that is stated, within its own interval."""
    alarms = sum(tried(honest, seed=seed).outcome is ClaimOutcome.CONTRADICTED for seed in range(10_000, 10_200))
    assert alarms <= 6


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
    ("defense", "unit", "examples"),
    [
        (DPSGD(norm=3.0, noise_multiplier=1.5), Unit.EXAMPLE, None),
        (ClientDP(norm=3.0, noise_multiplier=1.5), Unit.CLIENT, None),
        (Compose((Clip(norm=0.1), GaussianNoise(scale=Absolute(0.1)))), Unit.CLIENT, None),
        (FedCDP(noise_multiplier=0.5, norm=1.0), Unit.EXAMPLE, 8),
    ],
    ids=["dp-sgd", "client-dp", "clip + noise", "fed-cdp"],
)
def test_the_packages_own_defences_hold_what_they_state(defense: object, unit: Unit, examples: int | None) -> None:
    stated = NoisePath.of_defense(defense, examples)  # type: ignore[arg-type]
    claim, generator = Claim.of_noise(stated.noise_multiplier, 1e-5), torch.Generator().manual_seed(1)
    result = check_claim(stated, claim, clip=stated.clip, generator=generator, canaries=300, size=300)
    assert result.outcome is ClaimOutcome.NOT_CONTRADICTED
    assert result.unit is unit
    assert result.measured == pytest.approx(stated.noise_multiplier, rel=0.3)


def test_a_defence_without_epsilon_is_refused() -> None:
    with pytest.raises(InputError, match="states no ε"):
        NoisePath.of_defense(TopK(keep=0.1))


def test_guesses_read_no_truth() -> None:
    """The same scores with the opposite truth: what was right is wrong."""
    rng = np.random.default_rng(0)
    scores, present = rng.normal(size=100), rng.random(100) < 0.5
    assert CanaryScores(scores, present, scores).right + CanaryScores(scores, ~present, scores).right == 100


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
    assert (kept["outcome"], kept["unit"], kept["correct"]) == ("contradicted", "client", 200)
    code, text = run("canary_paths:bare", "--any-noise", "--epsilon", "2", "--clip", "1", *SMALL)
    assert (code, "any noise" in text) == (1, True)


BAD = [
    (("canary_paths:honest", "--noise-multiplier", "1", *SMALL), "--clip: is missing"),
    (("canary_paths:wrong", "--noise-multiplier", "1", "--clip", "1", *SMALL), "returned shape (4, 200)"),
    (("canary_paths:divides", "--noise-multiplier", "1", "--clip", "1", *SMALL), "returned NaN"),
    (("canary_paths:alone", "--noise-multiplier", "1", "--clip", "1", *SMALL), "raises TypeError"),
    (("canary_paths:honest", "--clip", "1", *SMALL), "claim: --noise-multiplier or --epsilon is missing"),
    (("canary_paths:no", "--epsilon", "1", "--clip", "1", *SMALL), "cannot import"),
    (("canary_paths", "--epsilon", "1", "--clip", "1", *SMALL), "names no function"),
    (SMALL, "path: is missing"),
    (("--defense", "topk", *SMALL), "needs keep"),
    (("--defense", "{topk: {keep: .1}}", *SMALL), "states no ε"),
    (("--defense", "{dp-sgd: {norm: 1, noise_multiplier: 1}}", "--clip", "1", *SMALL), "states them itself"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input_is_one_line(run: Callable[..., tuple[int, str]], words: tuple[str, ...], message: str) -> None:
    code, text = run(*words)
    assert code == 2
    assert message in text
