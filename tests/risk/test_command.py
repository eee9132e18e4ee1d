"""`leakgauge count`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from leakgauge.cli import main


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["count", *words])
    return result.exit_code, " ".join(result.output.split())


def test_says_the_count_and_the_rank(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    code, text = run("{mlp: {shape: [40], hidden: [3], activation: sigmoid}}", "--batch", "4", "--json", str(file))
    assert code == 0
    found = json.loads(file.read_text())
    assert found["rank"]["rank"] == found["corrected"]["highest_rank"] == 123
    assert found["equations"] == 163
    assert [layer["unknowns"] for layer in found["layers"]] == [160, 12]
    assert "leaves 37 of 160 directions open" in text
    assert found["follows"].split(".")[0] in text


def test_full_rank_silent_units_and_open_brackets() -> None:
    assert (
        "fixes the 2 examples to first order (rank 80 of 80)"
        in run("{mlp: {shape: [40], hidden: [2], activation: sigmoid}}", "--batch", "2")[1]
    )
    code, text = run("{mlp: {hidden: [2], activation: relu}}", "--shape", "1,24", "--batch", "6")
    assert code == 0
    assert "cannot be had" in text
    text = run('{"reproduce.qian_hansen.networks:one_convolution": {size: 64, filters: 2}}', "--batch", "1")[1]
    assert "numerical rank: not counted above 50 million" in text
    assert "cannot be had" in text


def test_other_models_real_data_and_soft_labels() -> None:
    code, text = run("lenet", "--shape", "3x8x8", "--classes", "5", "--batch", "1", "--soft-labels")
    assert code == 0
    assert "rank 196 of 196" in text
    code, text = run(
        '{"reproduce.qian_hansen.networks:one_convolution": {filters: 8}}',
        "--data",
        "{source: samples, size: 8}",
        "--batch",
        "2",
    )
    assert code == 0
    assert "rank 384 of 384" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("lenett", "--batch", "1"), "did you mean 'lenet'"),
        (("lenet", "--batch", "0"), "--batch"),
        (("mlp", "--batch", "1", "--shape", "a,b"), "--shape"),
        (("{lenet: {", "--batch", "1"), "MODEL"),
        (("{lenet: {activation: swish}}", "--batch", "1"), "MODEL.lenet.activation: is 'swish'"),
        (("{lenet: {classes: ten}}", "--batch", "1"), "MODEL.lenet.classes: is 'ten'"),
        (("{lenet: {classes: 1}}", "--batch", "1"), "has 1 classes"),
        (("{lenet: {size: abc}}", "--batch", "1"), "MODEL.lenet.size: is 'abc'"),
        (("{lenet: {size: 0}}", "--batch", "1"), "shape (3, 0, 0)"),
        (("{mlp: {hidden: [4, 0]}}", "--batch", "1"), "hidden: is [4, 0]"),
        (("resnet18", "--batch", "1", "--mode", "train", "--shape", "3,8,8"), "batch: leaves BatchNorm"),
        (("{mlp: {shape: 5}}", "--batch", "1"), "MODEL.mlp.shape: is 5"),
        (("mlp", "--batch", "1", "--shape", "3,-8,8"), "--shape: makes examples of shape (3, -8, 8)"),
        (("mlp", "--batch", "1", "--data", "samples", "--shape", "3,8,8"), "--shape: is given with --data"),
        (("mlp", "--batch", "1", "--data", "samples", "--classes", "5"), "--classes: is given with --data"),
        (("lenet", "--batch", "9", "--data", "samples"), "batch larger than the data"),
        (("lenet", "--batch", "1", "--json", "/nowhere/at/all.json"), "no folder"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], says: str) -> None:
    code, text = run(*words)
    assert code == 2, text
    assert says in text
