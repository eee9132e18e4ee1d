"""A board of one small scene, from its rows to its page, and a defence from a folder outside."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from leaderboard.board import EXTERNAL, LOCK, NONE, PRIOR, Board, BoardRow, ranked
from leaderboard.command import standing
from leaderboard.page import render
from leaderboard.rerun import drawn, outside
from leaderboard.rerun import main as rerun
from safetensors.torch import save_file

from docs.pages import blocks
from leakgauge.cli import main
from leakgauge.clients import FedSGD, client_update
from leakgauge.defenses import noise
from leakgauge.draws import Draws

SCENE = """small:
  title: a small perceptron
  seconds: 1
  plan:
    model: {mlp: {hidden: [48], activation: tanh}}
    data: {source: "npz:{board}/pictures.npz", batch: 1, batches: 6}
    budget: {gradient_evaluations: 120}
    gallery: 20
"""
DEFENCES = """defences:
  - {defense: {clip: {norm: 0.1}}, reported: nothing}
  - {defense: {precode: {layer: nowhere}}}
  - {defense: {noise: {relative: 30.0}}}
"""
(OWN,) = (block.text for block in blocks("docs/how-to/leaderboard.md", "python"))


def _run(*words: object) -> Result:
    return CliRunner().invoke(main, ["leaderboard", *map(str, words), "--workers", "1"])


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    folder = tmp_path_factory.mktemp("board")
    pictures = np.random.default_rng(0).integers(0, 255, (60, 4, 4, 3), dtype=np.uint8)
    np.savez(folder / "pictures.npz", x=pictures.repeat(2, 1).repeat(2, 2), y=np.arange(60) % 3)
    (folder / "scenes.yaml").write_text(SCENE)
    (folder / "defences.yaml").write_text(DEFENCES)
    found = Board(folder)
    (folder / LOCK).write_text(json.dumps({name: scene.digest for name, scene in found.scenes.items()}))
    result = _run("run", "--board", folder)
    assert result.exit_code == 0, result.output
    return Board(folder)


def _row(board: Board, label: str) -> BoardRow:
    row = board.row(board.scenes["small"], label)
    assert row is not None, label
    return row


def test_every_scene_has_a_row_without_a_defence_and_one_of_the_prior(board: Board) -> None:
    none, prior = _row(board, NONE), _row(board, PRIOR)
    assert none.worst is not None
    assert (none.worst.count, none.worst.n, none.certified) == (6, 6, 6)
    assert prior.worst is not None
    assert prior.worst.count / prior.worst.n < 0.5
    assert {trial.attack for trial in none.trials} == {"auto", "search"}


def test_a_row_says_what_each_attacker_found_beside_the_power_of_the_search_alone(board: Board) -> None:
    clip = _row(board, "clip(norm=0.1)")
    assert (clip.certified, clip.reported, clip.privacy.epsilon) == (6, "nothing", None)
    assert clip.power == _row(board, NONE).power
    assert clip.power is not None
    assert clip.power.certified == 0
    assert "precode" in _row(board, "precode(layer=nowhere)").label
    assert _row(board, "precode(layer=nowhere)").refused


def test_rows_that_are_there_are_not_measured_again(board: Board) -> None:
    before = {path: path.stat().st_mtime_ns for path in (board.folder / "rows").rglob("*.json")}
    said = _run("run", "--board", board.folder)
    assert "4 of 4 rows, 0.0 core hours left" in said.output
    assert {path: path.stat().st_mtime_ns for path in (board.folder / "rows").rglob("*.json")} == before


def test_rows_of_older_attacks_are_named(board: Board) -> None:
    place, row = board.place("small", "clip(norm=0.1)"), _row(board, "clip(norm=0.1)")
    text = place.read_text()
    assert "older attacks" not in _run("run", "--plan", "--board", board.folder).output
    place.write_text(text.replace(row.versions["attacks"], "another"))
    assert "  1 of older attacks, " in (said := _run("run", "--plan", "--board", board.folder).output)
    assert said.endswith(": clip(norm=0.1)\n")
    place.write_text(text)


def test_rows_drawn_by_a_seed_are_measured_again_in_a_copy(
    board: Board, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert drawn(board, 0, 20) == drawn(board, 0, 9) != drawn(board, 1, 20)  # no refused one, and no prior
    seed = next(seed for seed in range(50) if drawn(board, seed, 1)[0].label == "clip(norm=0.1)")
    before = {path: path.stat().st_mtime_ns for path in (board.folder / "rows").rglob("*.json")}
    rerun(["--board", str(board.folder), "--copy", str(tmp_path / "copy"), "--seed", str(seed), "--rows", "1"])
    assert "small: clip(norm=0.1): within\n0 of 1 rows have a figure outside" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (board.folder / "rows").rglob("*.json")} == before
    row = _row(board, "clip(norm=0.1)")
    assert row.naive is not None
    assert row.adapted is not None
    less = replace(row, naive=replace(row.naive, count=2), adapted=replace(row.adapted, stands=False, said="no power"))
    assert list(outside(row, less)) == [
        f"naive: 2 of 6 singled out, kept 6 of 6 [{row.naive.low:.2f}, 1.00]",
        "adapted: counted True before, False now (no power)",
    ]


def test_a_defence_of_ones_own_that_only_confuses_stands_low(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_defence.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    said = _run("add", "my_defence:Defence", "--board", board.folder)
    assert said.exit_code == 0, said.output
    assert said.output.startswith("1 scene, about 0.2 core minutes\n")  # six clients, two attackers, a second each
    *lines, page = said.output.splitlines()
    assert (max(map(len, lines)) <= 80, page) == (True, str(board.folder / "index.html")), lines
    words = " ".join(said.output.split())
    row = _row(board, "my_defence:Defence")
    assert row.naive is not None
    assert row.adapted is not None
    assert row.naive.count < 3 < row.adapted.count
    places = [one.label for one in ranked(list(board.rows()))]
    assert f"stands {places.index(row.label) + 1} of {len(places)} ranked here (1 leaks least)" in words
    assert (row.naive.certified, _row(board, NONE).certified) == (0, 6)
    assert f"examples singled out: naive {row.naive.count} of 6, adapted {row.adapted.count} of 6" in words
    assert ", no defence 6 of 6 (6 proved) flag, naive: " in words  # so that a search without power does not puzzle
    assert row.naive.reasons
    assert all(f" flag, naive: {reason} " in words for reason in row.naive.reasons)
    assert places.index(row.label) > places.index("noise(relative=30.0)")
    kept = board.place("small", row.label).stat().st_mtime_ns
    _run("add", "my_defence:Defence", "--board", board.folder)
    assert board.place("small", row.label).stat().st_mtime_ns == kept
    (tmp_path / "my_defence.py").write_text(OWN.replace("Sends", "It sends"))
    _run("add", "my_defence:Defence", "--board", board.folder)
    assert board.place("small", row.label).stat().st_mtime_ns > kept


def test_the_base_class_is_not_taken_for_the_readers_own(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spelt.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    said = _run("add", "spelt:Defense", "--board", board.folder)
    assert (said.exit_code, "name your own" in said.output) == (2, True), said.output


def test_a_defence_that_says_nothing_of_itself_has_no_rank(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = OWN.replace("Defence(", "Silent(").partition("    def steps")[0]
    (tmp_path / "quiet.py").write_text(lines.replace("return turned(", "return map_tensors(torch.ones_like, "))
    monkeypatch.chdir(tmp_path)
    said = _run("add", "quiet:Silent", "--board", board.folder)
    assert "has no rank (unreliable)" in " ".join(said.output.split()), said.output
    row = _row(board, "quiet:Silent")
    assert (row.worst is not None, row.sure) == (True, False)
    assert row.label not in [one.label for one in ranked(list(board.rows()))]


def test_where_the_search_has_no_power_silence_is_no_number(board: Board) -> None:
    none = _row(board, NONE)
    assert none.power is not None
    from leaderboard.measure import cells

    silent = [
        replace(
            trial,
            scores=replace(trial.scores, identified=(False,), recovered=(False,), rank=(2,), certified=0),
        )
        for trial in none.trials
        if trial.scores is not None
    ]
    assert not any(cell.stands for cell in cells(silent, silent).values())
    mine = [trial for trial in silent if trial.attack == "auto"]
    assert all(cell.stands for cell in cells(mine, none.trials).values())


def test_a_row_that_is_not_counted_says_why_in_lines_of_its_own(board: Board) -> None:
    row = _row(board, "clip(norm=0.1)")
    assert row.naive is not None
    silent = replace(row.naive, stands=False, said="no attack gave a result: needs a trained embedding")
    first, *why = standing(board, replace(row, label="mine", naive=silent, adapted=silent)).splitlines()
    said = "mine has no rank, for no attack tells here whether it protects; examples singled out: naive not counted,"
    assert said in first
    assert why[:2] == [f"  not counted, {name}: {silent.said}" for name in ("naive", "adapted")]


def test_another_scene_is_refused(board: Board, tmp_path: Path) -> None:
    for name in ("defences.yaml", LOCK):
        (tmp_path / name).write_bytes((board.folder / name).read_bytes())
    (tmp_path / "scenes.yaml").write_text(SCENE.replace("120", "121"))
    (tmp_path / "pictures.npz").write_bytes((board.folder / "pictures.npz").read_bytes())
    said = _run("run", "--board", tmp_path)
    assert said.exit_code == 2
    assert "not the board's" in said.output


def test_the_page_has_every_row_and_says_what_was_not_run(board: Board) -> None:
    (board.folder / "defences.yaml").write_text(DEFENCES + "  - {defense: sign}\n")
    text = render(board)
    (board.folder / "defences.yaml").write_text(DEFENCES)
    for words in (NONE, PRIOR, "clip(norm=0.1)", "does not apply", "not run", "my_defence:Defence", "6&nbsp;of&nbsp;6"):
        assert words in text
    assert (board.folder / "index.html").exists()
    assert render(board) == render(board)


def test_an_entry_of_somebody_elses_is_scored_here(board: Board, tmp_path: Path) -> None:
    plan = board.scenes["small"].undefended
    for key in (key for key in plan.trials() if key.attack == 0):
        task, batch = plan.broadcast(key).task, plan.examples(key).batch
        update = client_update(task, FedSGD(), batch, Draws(key.batch), defense=noise(relative=1000.0))
        update.save(tmp_path / f"update-{key.batch}.safetensors")
        near = batch.inputs if key.batch else torch.zeros_like(batch.inputs)
        save_file({"inputs": near.contiguous()}, tmp_path / f"read-{key.batch}.safetensors")
    (tmp_path / "entry.yaml").write_text("{scene: small, name: theirs, reported: all come back}")
    said = _run("score", tmp_path, "--board", board.folder)
    assert said.exit_code == 0, said.output
    row = _row(board, "theirs")
    assert row.adapted is not None
    assert row.naive is not None
    assert (row.kind, row.adapted.count, row.adapted.recovered, row.naive.count < 3) == (EXTERNAL, 5, 5, True)
    assert "Uninformed" in row.naive.flags or not row.flags
    save_file({"inputs": torch.zeros(1, 3, 4, 4)}, tmp_path / "read-0.safetensors")
    assert _run("score", tmp_path, "--board", board.folder).exit_code == 2
