"""Files that are odd in some way: one line and exit 2, or a level of their own, never a traceback or a green light."""

from __future__ import annotations

import warnings
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import save_file

from leakgauge.cli import main
from leakgauge.face import inspect

GOOD = {"0.weight": torch.randn(8, 12, generator=torch.Generator().manual_seed(0)), "0.bias": torch.zeros(8)}


def quantised(weight: torch.Tensor, channels: bool) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch will drop such tensors; files of them stay
        if not channels:
            return torch.quantize_per_tensor(weight, 0.02, 0, torch.qint8)
        scales, zeros = torch.linspace(0.02, 0.03, len(weight)), torch.zeros(len(weight), dtype=torch.long)
        return torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)])


def saved(folder: Path, state: object) -> Path:
    torch.save(state, folder / "s.pt")
    return folder / "s.pt"


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ({0: torch.ones(2, 2)}, "not a state dict"),
        ({"w": torch.ones(2, 2, device="meta")}, "no dense values"),
        ({"w": torch.eye(3).to_sparse()}, "no dense values"),
        ([torch.ones(2), 3], "not a state dict"),
        (3, "not a state dict"),
    ],
)
def test_what_is_no_dense_state_dict_is_one_line(tmp_path: Path, state: object, word: str) -> None:
    result = run(saved(tmp_path, state))
    assert result.exit_code == 2
    assert word in result.output
    assert result.output.strip().count("\n") == 0


@pytest.mark.parametrize("text", ["", "weights: none\n", "PK\x03\x04 cut", "\x80\x04cut"])
def test_text_and_cut_files_are_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.pt").write_text(text)
    result = run(tmp_path / "s.pt")
    assert result.exit_code == 2
    assert result.output.strip().count("\n") == 0


@pytest.mark.parametrize(
    "state",
    [
        {"w": torch.ones(4, 4, dtype=torch.bool)},
        {"w": torch.ones(4, 4, dtype=torch.complex64)},
        {"w": torch.ones(4, 4, dtype=torch.int8)},
        {"scale": torch.tensor(1.0)},
    ],
    ids=["bool", "complex", "int8", "scalar"],
)
def test_a_file_without_a_weight_that_could_be_judged_gets_no_green_light(tmp_path: Path, state: dict) -> None:
    result = run(saved(tmp_path, state))
    assert result.exit_code == 2
    assert "No rule could judge" in result.output


@pytest.mark.parametrize("factor", [1e30, 1e38])
def test_huge_weights_are_judged_and_not_a_crash(tmp_path: Path, factor: float) -> None:
    result = run(saved(tmp_path, {k: v * factor for k, v in GOOD.items()}), "-v")
    assert result.exit_code == 1
    assert "huge-weights" in result.output


@pytest.mark.parametrize("channels", [False, True])
def test_quantised_tensors_are_judged_as_the_numbers_that_they_stand_for(tmp_path: Path, channels: bool) -> None:
    first = torch.randn(16, 20, generator=torch.Generator().manual_seed(0)).clamp(-2, 2)
    first[8:] = first[:8]  # what an imprint shows
    held = {"0.weight": quantised(first, channels), "0.bias": torch.zeros(16)}
    plain = {name: t.dequantize() if t.is_quantized else t for name, t in held.items()}
    (tmp_path / "plain").mkdir()
    said = [run(saved(folder, state), "-v") for folder, state in ((tmp_path, held), (tmp_path / "plain", plain))]
    assert said[0].output == said[1].output
    assert said[0].exit_code == said[1].exit_code == 1 - channels
    assert inspect(held).findings == inspect(plain).findings


def test_more_options_never_lose_an_alarm(tmp_path: Path) -> None:
    from leakgauge.models import mlp

    torch.manual_seed(0)
    state = mlp(classes=8, shape=(3, 16, 16), hidden=[16]).state_dict()
    state["1.weight"][0, 0] = float("nan")
    file = saved(tmp_path, state)
    assert run(file).exit_code == 1
    model = "{mlp: {classes: 8, shape: [3, 16, 16], hidden: [16]}}"
    assert run(file, "--model", model, "--data", "{source: samples, size: 16}").exit_code == 1


@pytest.mark.parametrize("data", ["{source: samples, size: abc}", "{source: 3}", "{sauce: x}"])
def test_data_options_of_the_wrong_type_are_one_line(tmp_path: Path, data: str) -> None:
    save_file(GOOD, tmp_path / "s.safetensors")
    model = "{mlp: {shape: [12], hidden: [], classes: 8}}"
    result = run(tmp_path / "s.safetensors", "--model", model, "--data", data)
    assert result.exit_code == 2
    assert result.output.strip().count("\n") == 0


def test_files_are_whole_even_if_nobody_reads_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object, **__: object) -> None:
        raise BrokenPipeError

    save_file(GOOD, tmp_path / "s.safetensors")
    monkeypatch.setattr("leakgauge.inspection.verdict.lines", closed)
    files = tmp_path / "r.json", tmp_path / "p.html"
    words = ["inspect", str(tmp_path / "s.safetensors"), "--json", str(files[0]), "-o", str(files[1])]
    with pytest.raises(BrokenPipeError):
        click.Group.main(main, words, standalone_mode=False)
    assert all(file.stat().st_size > 500 for file in files)
