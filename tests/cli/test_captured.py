"""One captured round on the command line: explained or not, and what a pipeline learns from the exit code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

from leakgauge.cli import main
from study.own_round import captured_round, photos

TRUTH = "{fedavg: {lr: 0.05, epochs: 2, batch_size: 8, shuffle: true}}"
WRONG = "{fedavg: {lr: 0.05, epochs: 3, batch_size: 8, shuffle: true}}"


def run(folder: Path, client: str, *more: str) -> Result:
    asked = ["captured", str(folder), "--model", "study.own_round:grouped", "--client", client, "--evaluations", "8"]
    return CliRunner().invoke(main, [*asked, *more])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captured_round(tmp_path_factory.mktemp("captures"), "grouped", "sgd", 16)


@pytest.mark.parametrize(
    ("client", "code", "words"), [(TRUTH, 0, "explains 100.0 %"), (WRONG, 1, "clients[0].epochs: 2")]
)
def test_a_check_explains_and_stops(folder: Path, client: str, code: int, words: str) -> None:
    done = run(folder, client, "--check")
    assert done.exit_code == code, done.output
    assert words in " ".join(done.output.split())
    assert not (folder / "plan.yaml").exists()
    assert not folder.with_name(f"{folder.name}-audit").exists()


def test_what_is_not_explained_is_not_attacked_unless_asked_for(folder: Path, tmp_path: Path) -> None:
    """After "nothing is concluded" it attacked for minutes, and exited with 0."""
    done = run(folder, WRONG, "-o", str(tmp_path / "out"))
    assert done.exit_code == 1, done.output
    assert "nothing was attacked" in done.output
    assert not (tmp_path / "out" / "report.html").exists()
    gated = run(folder, WRONG, "-o", str(tmp_path / "gated"), "--anyway", "--gate", "{identified: {max: 0.9}}")
    assert gated.exit_code == 1, gated.output
    assert (tmp_path / "gated" / "report.html").is_file()


def test_a_plan_that_was_changed_stays(tmp_path: Path) -> None:
    """A gate that the user had written into it was lost."""
    folder = captured_round(tmp_path, "grouped", "sgd", 16)
    options = ("--defense", "[{clip: {norm: 1}}, {noise: {sigma: 0.1}}]", "--gate", "{identified: {max: 0.1}}")
    for _ in range(2):
        run(folder, WRONG, *options, "-o", str(tmp_path / "a"))
    (plan,) = folder.glob("plan*.yaml")
    written = yaml.safe_load(plan.read_text())
    assert written["budget"] == {"gradient_evaluations": 8}
    assert written["defenses"] == [[{"clip": {"norm": 1}}, {"noise": {"sigma": 0.1}}]]
    plan.write_text(plan.read_text().replace("0.1", "0.2"))
    before = plan.read_text()
    done = run(folder, WRONG, *options, "-o", str(tmp_path / "b"))
    assert plan.read_text() == before
    assert "stays as it is" in done.output
    assert yaml.safe_load((folder / "plan-2.yaml").read_text()) == written


def test_data_is_said_as_in_a_plan(tmp_path: Path) -> None:
    """Grey pictures of 64 px had no way in."""
    folder = captured_round(tmp_path, "grouped", "sgd", 16)
    (folder / "examples.npz").unlink()
    inputs, labels = photos(40)
    np.savez(tmp_path / "photos.npz", x=inputs.numpy(), y=labels.numpy())
    said = f"{{source: 'npz:{tmp_path / 'photos.npz'}', normalise: false}}"
    done = run(folder, TRUTH, "--check", "--data", said)
    assert done.exit_code == 1, done.output
    assert "Record the order" in " ".join(done.output.split())
    whole = captured_round(tmp_path / "whole", "grouped", "sgd", 16)
    other = run(whole, TRUTH, "--check", "--data", said.replace("normalise", "size: 11, normalise"))
    assert other.exit_code == 1, other.output
    assert "(3, 11, 11), and the capture recorded (3, 12, 12): data.size" in " ".join(other.output.split())
    bad = run(folder, TRUTH, "--check", "--data", "{size: 64}")
    assert bad.exit_code == 2
    assert "--data" in bad.output
