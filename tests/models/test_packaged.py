"""Weights that come with the package: they load, and they do what their metadata says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from reproduce.classifier.training import accuracy
from safetensors import safe_open

from leakgauge.data import Parquet
from leakgauge.data.source import spec
from leakgauge.errors import InputError
from leakgauge.models import lenet, resnet20
from leakgauge.models.weights import load_weights, packaged, weights_path

CLASSIFIERS = {"lenet-cifar10": lenet, "resnet20-cifar10": lambda: resnet20(width=16)}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_is_as_accurate_on_held_out_images_as_its_file_says(name: str, shared: Path) -> None:
    module = CLASSIFIERS[name]()
    load_weights(module, packaged(name), "model")
    with safe_open(packaged(name), "pt") as file:
        stated = float(file.metadata()["accuracy"])
    source = Parquet(path=str(shared / "data" / "cifar10-test.parquet"))
    images = source.read(range(0, 10_000, 10))
    with torch.no_grad():
        measured = accuracy(module, spec(source), images)
    # A thousand of the ten thousand images: standard error below 0.016.
    assert abs(measured - stated) < 0.05
    assert name == "lenet-cifar10" or stated >= 0.85


def test_all_files_are_small_and_say_how_they_were_made() -> None:
    for path in packaged("resnet20-cifar10").parent.glob("*.safetensors"):
        assert path.stat().st_size <= 4 * 2**20
        with safe_open(path, "pt") as file:
            assert {"model", "recipe", "seed", "data"} <= set(file.metadata())


def test_a_plan_names_them_with_a_prefix_and_paths_without() -> None:
    assert weights_path("packaged:resnet20-cifar10") == packaged("resnet20-cifar10")
    assert weights_path("a/b.safetensors") == Path("a/b.safetensors")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="resnet20-cifar10") as caught:
        weights_path("packaged:resnet20-cifar", "model")
    assert caught.value.field == "model"
