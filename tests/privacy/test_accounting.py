"""ε is Opacus' own, and the ledger forgets nothing."""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.errors import InputError
from leakgauge.privacy import Ledger, Release, Unit, epsilon_of, multiplier_for
from leakgauge.privacy.accounting import Uncountable, epsilon_exchanged

pytest.importorskip("opacus")

TEN = Release(noise_multiplier=1.0, sample_rate=0.05, steps=10)


@pytest.mark.parametrize(("accountant", "epsilon"), [("rdp", 2.16), ("prv", 1.67)])
def test_golden_values(accountant: str, epsilon: float) -> None:
    assert epsilon_of([TEN], 1e-5, accountant) == pytest.approx(epsilon, abs=0.005)


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_epsilon_is_what_opacus_says_step_by_step(accountant: str) -> None:
    from opacus.accountants import create_accountant

    theirs, ours = create_accountant(mechanism=accountant), Ledger(accountant=accountant)
    for z, q, steps in ((1.0, 0.05, 3), (1.0, 0.05, 2), (1.5, 0.1, 4), (1.0, 0.05, 1)):
        for _ in range(steps):
            theirs.step(noise_multiplier=z, sample_rate=q)
        ours = ours.spend(noise_multiplier=z, sample_rate=q, steps=steps)
    assert ours.epsilon(1e-5) == pytest.approx(theirs.get_epsilon(delta=1e-5), rel=1e-12)
    assert ours.steps == 10
    assert [r.steps for r in ours.releases] == [5, 4, 1]


def test_full_batches_can_be_counted_by_both() -> None:
    full = Release(noise_multiplier=2.0, sample_rate=1.0, steps=4)
    tight, loose = (epsilon_of([full], 1e-5, accountant) for accountant in ("prv", "rdp"))
    # One Gaussian mechanism with μ = 1: ε(1e-5) = 4.377 exactly (Balle and Wang, 2018, Eq. 6).
    assert 4.377 <= tight < 4.41
    assert tight < loose < 5


@settings(max_examples=4)
@given(st.floats(0.6, 8), st.floats(0.01, 1), st.integers(1, 200), st.floats(1.05, 3))
def test_epsilon_is_monotone(z: float, q: float, steps: int, factor: float) -> None:
    def epsilon(z: float, q: float, steps: int) -> float:
        return epsilon_of([Release(noise_multiplier=z, sample_rate=q, steps=steps)], 1e-5)

    here = epsilon(z, q, steps)
    assert epsilon(z * factor, q, steps) <= here * (1 + 1e-9)
    assert epsilon(z, min(q * factor, 1.0), steps) >= here * (1 - 1e-9)
    assert epsilon(z, q, steps + 10) >= here * (1 - 1e-9)


@pytest.mark.parametrize(("accountant", "steps"), [("rdp", 20), ("prv", 2)])
def test_the_multiplier_for_a_target_spends_it_and_no_more(accountant: str, steps: int) -> None:
    z = multiplier_for(2.0, sample_rate=0.05, steps=steps, delta=1e-5, accountant=accountant)
    assert 1.97 < epsilon_of([Release(noise_multiplier=z, sample_rate=0.05, steps=steps)], 1e-5, accountant) <= 2.0


def test_other_data_in_place_of_ones_own_are_twice_as_far() -> None:
    releases = [Release(noise_multiplier=2.0, sample_rate=1.0, steps=5)]
    doubled = [Release(noise_multiplier=1.0, sample_rate=1.0, steps=5)]
    for accountant in ("rdp", "prv"):
        assert epsilon_exchanged(releases, 1e-5, accountant) == epsilon_of(doubled, 1e-5, accountant)
    assert epsilon_exchanged([Release(noise_multiplier=2.0, sample_rate=0.5, steps=5)], 1e-5) is None


def test_where_half_the_noise_cannot_be_counted_it_is_not_said() -> None:
    """And the report of what can be counted is not lost."""
    faint = [Release(noise_multiplier=1e-300, sample_rate=1.0, steps=5)]
    assert epsilon_exchanged(faint, 1e-5) is None
    little = [Release(noise_multiplier=0.1, sample_rate=1.0, steps=1000)]
    assert epsilon_exchanged(little, 1e-5, "prv") is None
    with pytest.raises(Uncountable, match=r"prv would need .* points.*use rdp"):
        epsilon_of(little, 1e-5, "prv")
    assert epsilon_of(little, 1e-5, "rdp") > 1e4


@pytest.mark.filterwarnings("ignore:Optimal order is the")
def test_a_large_target_gets_as_little_noise_as_it_allows() -> None:
    z = multiplier_for(1e5, sample_rate=1.0, steps=10, delta=1e-5)
    spent = epsilon_of([Release(noise_multiplier=z, sample_rate=1.0, steps=10)], 1e-5)
    assert z < 0.05
    assert 0.99 * 1e5 <= spent <= 1e5


@pytest.mark.filterwarnings("ignore:Optimal order is the")
def test_the_multiplier_for_a_target_is_what_opacus_finds() -> None:
    from opacus.accountants.utils import get_noise_multiplier

    wanted = {"sample_rate": 0.05, "steps": 20}
    theirs = get_noise_multiplier(target_epsilon=2.0, target_delta=1e-5, **wanted)
    assert multiplier_for(2.0, delta=1e-5, sample_rate=0.05, steps=20) == pytest.approx(theirs, rel=0.01)


def test_a_ledger_resumes_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    four, six = (Release(noise_multiplier=1.0, sample_rate=0.05, steps=n) for n in (4, 6))
    first = Ledger.enter(path, four, accountant="rdp", unit=Unit.CLIENT)
    assert Ledger.load(path) == first
    second = Ledger.enter(path, six)
    assert second.epsilon(1e-5) == pytest.approx(epsilon_of([TEN], 1e-5))
    assert (second.accountant, second.unit, first.steps) == ("rdp", Unit.CLIENT, 4)  # a ledger does not change
    assert Ledger.load(path).steps == 10
    assert json.loads(path.read_text())["releases"] == [{"noise_multiplier": 1.0, "sample_rate": 0.05, "steps": 10}]
    assert {p.name for p in tmp_path.iterdir()} == {"ledger.json", ".ledger.json.lock"}
    assert Ledger().epsilon(1e-5) == 0


def _enters(path: Path, times: int) -> None:
    for i in range(times):
        Ledger.enter(path, Release(noise_multiplier=1.0 + i, sample_rate=0.05, steps=1))


def test_several_processes_enter_into_one_ledger_and_no_entry_is_lost(tmp_path: Path) -> None:
    """A lost entry makes ε too small."""
    path, spawn = tmp_path / "ledger.json", multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_enters, args=(path, 25)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert Ledger.load(path).steps == 50


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"format": "other"}',
        '{"format": "leakgauge privacy ledger 1", "accountant": "rdp", "unit": "example"}',
        '{"format": "leakgauge privacy ledger 1", "accountant": "gdp", "unit": "example", "releases": []}',
        '{"format": "leakgauge privacy ledger 1", "accountant": "rdp", "unit": "example", "releases":'
        ' [{"noise_multiplier": 1, "sample_rate": 0.1, "steps": "ten"}]}',
        '{"format": "leakgauge privacy ledger 1", "accountant": "rdp", "unit": "house", "releases": []}',
    ],
)
def test_a_damaged_ledger_is_no_empty_one(tmp_path: Path, content: str) -> None:
    path = tmp_path / "ledger.json"
    path.write_text(content)
    with pytest.raises(InputError):
        Ledger.load(path)


def test_a_missing_ledger_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        Ledger.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Release(noise_multiplier=0.0, sample_rate=0.1, steps=1), "noise_multiplier"),
        (lambda: Release(noise_multiplier=float("nan"), sample_rate=0.1, steps=1), "noise_multiplier"),
        (lambda: Release(noise_multiplier=1.0, sample_rate=0.0, steps=1), "sample_rate"),
        (lambda: Release(noise_multiplier=1.0, sample_rate=1.5, steps=1), "sample_rate"),
        (lambda: Release(noise_multiplier=1.0, sample_rate=0.1, steps=0), "steps"),
        (lambda: Release(noise_multiplier=1.0, sample_rate=0.1, steps=1.5), "steps"),
        (lambda: epsilon_of([TEN], 0.0), "delta"),
        (lambda: epsilon_of([TEN], 1.0), "delta"),
        (lambda: epsilon_of([TEN], 1e-5, "gdp"), "accountant"),
        (lambda: epsilon_of([TEN], 1e-5, "rpd"), "accountant"),
        (lambda: Ledger(accountant="gdp"), "accountant"),
        (lambda: multiplier_for(0.0, sample_rate=0.1, steps=1, delta=1e-5), "target_epsilon"),
    ],
)
def test_bad_numbers_name_their_field(make: Any, field: str) -> None:
    with pytest.raises(InputError) as error:
        make()
    assert error.value.field == field


@pytest.fixture
def without_opacus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "opacus"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_NoOpacus(), *sys.meta_path])


class _NoOpacus:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "opacus":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


@pytest.mark.usefixtures("without_opacus")
def test_without_opacus_the_extra_is_named() -> None:
    with pytest.raises(InputError, match=r"\[dp\]"):
        epsilon_of([TEN], 1e-5)
