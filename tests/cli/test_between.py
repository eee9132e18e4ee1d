"""Two files become a round that an audit reads, whatever people saved them as."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file
from torch import Tensor, nn

from leakgauge.cli import main
from leakgauge.models.weights import read_model
from leakgauge.update import Update, UpdateKind

State = dict[str, Tensor]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def as_safetensors(state: State, path: Path) -> list[str]:
    save_file(state, path)
    return []


def as_checkpoint(state: State, path: Path) -> list[str]:
    torch.save({"epoch": 1, "state_dict": {f"module.{k}": v for k, v in state.items()}}, path)
    return []


def as_flower_does(state: State, path: Path) -> list[str]:
    with path.open("wb") as file:
        np.savez(file, *[v.numpy() for v in state.values()])
    path.rename(path.with_suffix(".npz"))
    return ["--model", "cli.test_between:net"]


def as_a_list(state: State, path: Path) -> list[str]:
    torch.save(list(state.values()), path)
    return ["--model", "cli.test_between:net"]


@pytest.mark.parametrize(
    ("write", "suffix"),
    [(as_safetensors, ".safetensors"), (as_checkpoint, ".pt"), (as_flower_does, ".npz"), (as_a_list, ".pt")],
)
def test_two_files_are_a_round(tmp_path: Path, write: Callable[[State, Path], list[str]], suffix: str) -> None:
    before = {k: v.clone() for k, v in net().state_dict().items()}
    after = {k: v + (0.5 if v.is_floating_point() else 1) for k, v in before.items()}
    paths = [tmp_path / f"{name}{suffix}" for name in ("before", "after")]
    options = [write(state, path) for state, path in zip((before, after), paths, strict=True)].pop()
    done = CliRunner().invoke(main, ["between", *map(str, paths), "-o", str(tmp_path), "--examples", "4", *options])
    assert done.exit_code == 0, done.output
    folder = Path(done.output.strip())
    update = Update.load(folder / "update.safetensors")
    assert update.header.kind is UpdateKind.DELTA
    assert update.header.example_count == 4
    assert update.tensors.keys() == dict(net().named_parameters()).keys()
    assert all(torch.allclose(v, torch.full_like(v, 0.5)) for v in update.tensors.values())
    kept = read_model(folder / "weights.safetensors", "weights")
    assert all(torch.equal(kept[k], v) for k, v in before.items())


def test_a_gradient_is_taken_as_it_is(tmp_path: Path) -> None:
    state = net().state_dict()
    gradient = {k: torch.ones_like(p) for k, p in net().named_parameters()}
    as_safetensors(state, tmp_path / "b.safetensors")
    as_safetensors(gradient, tmp_path / "g.safetensors")
    words = ["between", str(tmp_path / "b.safetensors"), str(tmp_path / "g.safetensors"), "--holds", "gradient"]
    done = CliRunner().invoke(main, [*words, "-o", str(tmp_path / "rounds")])
    update = Update.load(Path(done.output.strip()) / "update.safetensors")
    assert update.header.kind is UpdateKind.GRADIENT
    assert torch.equal(update.tensors["0.weight"], gradient["0.weight"])


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({"0": torch.ones(2)}, {"0": torch.zeros(2)}, "BEFORE: holds arrays without names; give --model"),
        ({"a": torch.ones(2)}, {"a": torch.ones(2)}, "after: equals before in every entry"),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}, "after: and before do not share b"),
        ({"a": torch.ones(2)}, {"a": torch.ones(3)}, "after: has another shape of a"),
    ],
)
def test_what_is_no_round_is_one_line(tmp_path: Path, before: State, after: State, words: str) -> None:
    as_safetensors(before, tmp_path / "b.safetensors")
    as_safetensors(after, tmp_path / "a.safetensors")
    names = [str(tmp_path / f"{name}.safetensors") for name in "ba"]
    done = CliRunner().invoke(main, ["between", *names, "-o", str(tmp_path / "rounds")])
    assert done.exit_code == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
