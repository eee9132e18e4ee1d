"""`leakgauge privacy`."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from leakgauge.cli import main
from leakgauge.privacy.accounting import Ledger

pytest.importorskip("opacus")

TEN = ("--noise-multiplier", "1", "--sample-rate", "0.05", "--steps", "10", "--delta", "1e-5")


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["privacy", *words])
    return result.exit_code, " ".join(result.output.split())


def test_says_epsilon_and_what_it_means(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    code, text = run(*TEN, "--json", str(file))
    assert code == 0
    assert "ε = 1.67 at δ = 1e-05 over 10 steps, by prv" in text
    assert "one example" in text
    assert "1 000 without the updates is right at most 0.3 %" in text
    assert "not covered: samples drawn otherwise" in text
    found = json.loads(file.read_text())
    assert found["epsilon"] == pytest.approx(1.67, abs=0.005)
    assert found["reconstruction"]["at_most"] == pytest.approx(0.003, rel=0.05)
    assert "ε = 2.16" in run(*TEN, "--accountant", "rdp", "--unit", "client")[1]


def test_rounds_add_up_in_a_ledger(tmp_path: Path) -> None:
    book = ("--ledger", str(tmp_path / "l.json"), "--delta", "1e-5")
    half = ("--noise-multiplier", "1", "--sample-rate", "0.05", "--rounds", "5")
    assert "over 5 steps" in run(*half, *book, "--accountant", "rdp")[1]
    assert "ε = 2.16 at δ = 1e-05 over 10 steps, by rdp" in run(*half, *book)[1]
    code, text = run(*book)  # reading enters nothing
    assert (code, "over 10 steps" in text) == (0, True)
    code, text = run(*half, *book, "--accountant", "prv")
    assert (code, "the ledger's is rdp" in text) == (2, True)


def test_solves_for_the_multiplier() -> None:
    code, text = run("--target-epsilon", "2.1559", "--sample-rate", "0.05", "--steps", "10", "--delta", "1e-5",
                     "--accountant", "rdp")  # fmt: skip
    assert code == 0
    z = float(text.split("noise multiplier: ")[1].split(" ")[0])
    assert z == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*TEN, "--accountant", "gdp"), "guarantees nothing"),
        ((*TEN, "--units", "100000"), "1e-05 is not below 1/100000, one over the number of examples; give less, 1e-06"),
        ((*TEN, "--target-epsilon", "1"), "give one of them"),
        ((*TEN, "--prior", "2"), "prior"),
        ((*TEN, "--json", "/nowhere/x.json"), "no folder"),
        (("--delta", "1e-5"), "--noise-multiplier"),
        (("--noise-multiplier", "1", "--delta", "1e-5"), "--sample-rate"),
        (("--noise-multiplier", "0", "--sample-rate", "0.1", "--delta", "1e-5"), "noise_multiplier"),
        (("--noise-multiplier", "1", "--sample-rate", "0.1"), "--delta"),
        (("--noise-multiplier", "1", "--sample-rate", "0.1", "--delta", "2"), "delta"),
        (("--noise-multiplier", "1", "--sample-rate", "0.1", "--delta", "1e-5", "--rounds", "0"), "--rounds"),
    ],
)
def test_bad_input_is_one_line_and_code_2(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["privacy", *words])
    assert result.exit_code == 2
    assert said in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_what_cannot_be_counted_is_not_entered(tmp_path: Path) -> None:
    book = tmp_path / "l.json"
    assert run(*TEN, "--ledger", str(book), "--prior", "2")[0] == 2
    assert not book.exists()


def test_no_noise_to_speak_of_is_no_traceback_and_no_infinity_in_json(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    code, text = run("--noise-multiplier", "1e-200", "--sample-rate", "0.01", "--delta", "1e-5", "--accountant", "rdp",
                     "--json", str(file))  # fmt: skip
    assert (code, "ε = beyond use" in text) == (0, True)
    found = json.loads(file.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert found["epsilon"] is None
    assert found["reconstruction"]["at_most"] == 1


def test_a_closed_pipe_loses_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``leakgauge privacy … --ledger FILE | head -1``."""

    def closed(*_: object) -> None:
        raise BrokenPipeError

    book = tmp_path / "l.json"
    monkeypatch.setattr("click.echo", closed)
    with pytest.raises(BrokenPipeError):
        click.Group.main(main, ["privacy", *TEN, "--ledger", str(book)], standalone_mode=False)
    assert Ledger.load(book).steps == 10


def test_a_ledger_says_whether_it_is_new(tmp_path: Path) -> None:
    book = ("--ledger", str(tmp_path / "l.json"))
    assert "a new ledger" in run(*TEN, *book)[1]
    assert "added to what it held" in run(*TEN, *book)[1]
    code, text = run("--ledger", str(tmp_path / "other.json"), "--delta", "1e-5")
    assert code == 2
    assert "--ledger: no file" in text


def test_no_one_is_told_to_count_shuffled_batches_as_samples() -> None:
    code, text = run("--noise-multiplier", "1", "--delta", "1e-5")
    assert code == 2
    assert "--sample-rate: is missing; give 1 where each example is in one step of every epoch, shuffled or not" in text


@pytest.mark.parametrize("claim", [[], ["--noise-multiplier", "1", "--epsilon", "2"]], ids=["none", "two"])
def test_a_claim_is_given_once(claim: list[str]) -> None:
    done = CliRunner().invoke(main, ["privacy", "test", "math:fsum", "--clip", "1", "--delta", "1e-5", *claim])
    assert done.exit_code == 2
    assert "claim" in done.output
    assert ("given twice" in done.output) == bool(claim)
