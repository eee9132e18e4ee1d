"""An update on which the stated defence does not show is not sent; an honest one always is."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from leakgauge.defenses import ClientDP, Clip, Compose, Defense, Quantise, RandomK, TopK, noise
from leakgauge.errors import InputError
from leakgauge.guard import Promise, SendingGuard
from leakgauge.privacy.accounting import Ledger
from leakgauge.update import UpdateKind

SHAPES = {"conv.weight": (16, 3, 3, 3), "conv.bias": (16,), "fc.weight": (64, 64), "head.weight": (64, 64)}
DP = ClientDP(norm=1.0, noise_multiplier=0.5)
State = dict[str, Tensor]


def draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def received() -> State:
    g = draws(0)
    return {k: 0.1 * torch.randn(shape, generator=g) for k, shape in SHAPES.items()}


def raw(seed: int) -> State:
    """An update as data make them: sizes and kinds of tails differ from tensor to tensor."""
    g = draws(seed)
    size = 10 ** (2 * float(torch.rand((), generator=g)) - 1)
    made = {k: size * torch.randn(shape, generator=g) ** (1 + 2 * (seed % 2)) for k, shape in SHAPES.items()}
    if seed % 3 == 0:
        made["fc.weight"][: seed % 60] = 0
    return made


def sent(update: State) -> State:
    return {k: v + update[k] for k, v in received().items()}


@pytest.mark.parametrize(
    "defense",
    [
        DP,
        Clip(norm=1.0),
        Compose((Clip(norm=1.0), noise(sigma=0.02))),
        TopK(keep=0.1),
        Compose((Clip(norm=1.0), RandomK(keep=0.2, unbiased=True))),
        Quantise(levels=3),
        Compose((TopK(keep=0.1), noise(sigma=0.1))),
    ],
    ids=repr,
)
def test_honest_rounds_are_sent(defense: Defense) -> None:
    """Two hundred of each: parameters one by one, and differences."""
    assert SendingGuard(defense).refuse({}, {}) == ()
    replies = {None: SendingGuard(defense), UpdateKind.DELTA: SendingGuard(defense, sends=UpdateKind.DELTA)}
    rounded = isinstance(defense, Quantise)  # sums with weights are rounded again, and hold other sizes
    for seed in range(200):
        kind = UpdateKind.DELTA if rounded or seed % 2 else None
        update = defense.on_update(raw(seed), draws(1000 + seed))
        said = replies[kind].refuse(received(), update if kind else sent(update))
        assert said == (), (seed, said)


def everything_noisy(update: State, seed: int, sigma: float = 0.5) -> State:
    g = draws(seed)
    return {k: v + sigma * torch.randn(v.shape, generator=g) for k, v in update.items()}


def clipped(seed: int) -> State:
    return Clip(norm=1.0).on_update(raw(seed), None)


def on_some(seed: int, where: Callable[[str], bool]) -> State:
    noisy = everything_noisy(clipped(seed), seed)
    return {k: noisy[k] if where(k) else v for k, v in clipped(seed).items()}


def every_second(seed: int) -> State:
    noisy, bare = everything_noisy(clipped(seed), seed), clipped(seed)
    for k, v in noisy.items():
        v.view(-1)[::2] = bare[k].view(-1)[::2]
    return noisy


def one_seed_a_tensor(seed: int) -> State:
    return {k: v + 0.5 * torch.randn(v.shape, generator=draws(seed)) for k, v in clipped(seed).items()}


def uniform(seed: int) -> State:
    g = draws(seed)
    return {k: v + 0.5 * 3**0.5 * (2 * torch.rand(v.shape, generator=g) - 1) for k, v in clipped(seed).items()}


def a_number_a_row(seed: int) -> State:
    g = draws(seed)
    return {k: v + 0.5 * torch.randn((len(v), *[1] * (v.ndim - 1)), generator=g) for k, v in clipped(seed).items()}


def scaled(update: State, by: float) -> State:
    return {k: by * v for k, v in update.items()}


WEAK: dict[str, Callable[[int], State]] = {
    "no noise": clipped,
    "no clip": lambda seed: everything_noisy(scaled(clipped(seed), 100.0), seed),
    "raw": lambda seed: scaled(clipped(seed), 7.0),
    "half of the noise": lambda seed: everything_noisy(clipped(seed), seed, 0.25),
    "noise on the head alone": lambda seed: on_some(seed, lambda k: k.startswith("head")),
    "no noise on one layer": lambda seed: on_some(seed, lambda k: k != "conv.weight"),
    "noise on every second entry": every_second,
    "noise before the clip": lambda seed: Clip(norm=1.0).on_update(everything_noisy(clipped(seed), seed), None),
    "the same noise in every tensor": one_seed_a_tensor,
    "noise of another law": uniform,
    "a number a row": a_number_a_row,
    "not a number": lambda seed: everything_noisy(clipped(seed), seed) | {"conv.bias": torch.full((16,), torch.nan)},
    "infinity": lambda seed: {k: v + torch.inf for k, v in clipped(seed).items()},
    "a tensor beside": lambda seed: everything_noisy(clipped(seed), seed) | {"raw": torch.ones(3)},
}


@pytest.mark.parametrize("weaken", WEAK.values(), ids=WEAK)
def test_a_defence_that_was_forgotten_or_weakened_is_not_sent(weaken: Callable[[int], State]) -> None:
    guard = SendingGuard(DP, sends=UpdateKind.DELTA)
    for seed in range(20):
        assert guard.refuse(received(), weaken(seed)) != (), seed


def test_noise_of_the_round_before_and_other_stages_are_seen() -> None:
    guard = SendingGuard(DP)
    assert guard.refuse(received(), sent(everything_noisy(clipped(1), 5))) == ()
    assert "round before" in guard.refuse(received(), sent(everything_noisy(clipped(2), 5)))[0]
    assert "stated" in SendingGuard(TopK(keep=0.1)).refuse(received(), sent(raw(0)))[0]
    half = Quantise(levels=9).on_update(raw(0), draws(0))
    assert "sizes" in SendingGuard(Quantise(levels=3), sends=UpdateKind.DELTA).refuse(received(), half)[0]
    statistics = received() | {"bn.running_mean": torch.zeros(3)}
    moved = sent(everything_noisy(clipped(3), 9)) | {"bn.running_mean": torch.ones(3)}
    assert "no clip and no noise covers" in SendingGuard(DP).refuse(statistics, moved)[0]


def test_what_the_ledger_does_not_allow_is_not_sent(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    file = tmp_path / "ledger.json"
    one = Ledger(unit=Ledger().unit).spend(noise_multiplier=0.5, sample_rate=1.0).epsilon(1e-5)
    guard = SendingGuard(DP, ledger=file, epsilon=2.2 * one)
    said = [guard.refuse(received(), sent(everything_noisy(clipped(i), i))) for i in range(9)]
    allowed = sum(reasons == () for reasons in said)
    assert 0 < allowed < 9
    assert "may be spent" in said[-1][0]
    assert Ledger.load(file).steps == allowed
    assert guard.refuse(received(), sent(clipped(1)))
    assert Ledger.load(file).steps == allowed


def test_two_rounds_at_a_time_do_not_both_spend_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opacus")
    one = Ledger(unit=Ledger().unit).spend(noise_multiplier=0.5, sample_rate=1.0).epsilon(1e-5)

    def slow(book: Ledger, delta: float, plain: Callable[[Ledger, float], float] = Ledger.epsilon) -> float:
        time.sleep(0.3)  # long enough for the other to have read the same ledger
        return plain(book, delta)

    monkeypatch.setattr(Ledger, "epsilon", slow)
    guards = [SendingGuard(DP, ledger=tmp_path / "ledger.json", epsilon=1.1 * one) for _ in range(2)]
    honest = [sent(everything_noisy(clipped(i), i)) for i in range(2)]
    with ThreadPoolExecutor(2) as threads:
        said = list(threads.map(lambda guard, reply: guard.refuse(received(), reply), guards, honest))
    assert sorted(map(len, said)) == [0, 1]
    assert Ledger.load(tmp_path / "ledger.json").steps == 1


def test_a_defence_that_does_not_show_is_no_promise() -> None:
    for wrong in (noise(relative=1.0), Compose((noise(sigma=1.0), Clip(norm=1.0)))):
        with pytest.raises(InputError, match="defense"):
            Promise.of(wrong)
    with pytest.raises(InputError, match="ledger"):
        SendingGuard(Clip(norm=1.0), ledger="x", epsilon=1.0)


@pytest.mark.slow
def test_a_look_at_seven_million_parameters_is_fast() -> None:
    """On one thread, the best of fifty: what other processes take is not the guard's."""
    before = {f"{i}": torch.randn(1000, 1000) for i in range(7)}
    reply = {k: v + 0.01 * torch.randn(v.shape) for k, v in before.items()}
    options: dict[str, Any] = {"norm": 1.0, "sigma": 0.01}
    for sends, given in ((None, reply), (UpdateKind.DELTA, {k: reply[k] - before[k] for k in before})):
        took = []
        for _ in range(50):
            guard = SendingGuard(Promise(**options), sends=sends)
            began = time.process_time()
            assert guard.refuse(before, given) == ()
            took.append(time.process_time() - began)
        assert min(took) < 0.01, took
