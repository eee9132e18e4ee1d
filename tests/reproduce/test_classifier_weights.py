"""A kill or bad held-out data while trained weights are scored loses neither them nor what they started from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from reproduce.classifier.weights import Scores, keep_weights
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from leakgauge.errors import InputError

NEW = {"w": torch.ones(2)}


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, Path]:
    output, checkpoint = tmp_path / "w.safetensors", tmp_path / "w.checkpoint"
    save_file({"w": torch.zeros(2)}, output)  # what the training started from
    checkpoint.write_bytes(b"all steps")
    return output, checkpoint


def meta_of(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        return dict(file.metadata() or {})


def test_weights_and_scores_are_written_together(place: tuple[Path, Path]) -> None:
    output, checkpoint = place
    keep_weights(NEW, output, {"seed": "0"}, checkpoint=checkpoint, score=lambda: {"accuracy": "0.5"})
    assert bool((load_file(output)["w"] == 1).all())
    assert meta_of(output) == {"seed": "0", "accuracy": "0.5"}
    assert list(output.parent.iterdir()) == [output]


def test_a_kill_while_scoring_leaves_start_and_checkpoint(place: tuple[Path, Path]) -> None:
    output, checkpoint = place

    def killed() -> Scores:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep_weights(NEW, output, {}, checkpoint=checkpoint, score=killed)
    assert bool((load_file(output)["w"] == 0).all())
    assert checkpoint.exists()


def test_bad_held_out_data_cost_the_scores_alone(place: tuple[Path, Path]) -> None:
    output, checkpoint = place

    def refused() -> Scores:
        raise InputError("test", "is broken", "replace it")

    with pytest.raises(InputError, match="is broken"):
        keep_weights(NEW, output, {"seed": "0"}, checkpoint=checkpoint, score=refused)
    assert bool((load_file(output)["w"] == 1).all())
    assert meta_of(output) == {"seed": "0"}
    assert checkpoint.exists()
