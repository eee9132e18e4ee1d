"""Data of the figures, and what stands in for those that cannot be shipped."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import numpy as np
import torch

from leakgauge.data import Parquet
from leakgauge.data.pictures import opened, pixels
from leakgauge.task import Batch


def skimage_data() -> Path:
    """The folder of scikit-image's own pictures."""
    found = importlib.util.find_spec("skimage")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "data"


def cifar(data: Path, examples: int, start: int = 0) -> Batch:
    """CIFAR-10's test photos with their labels, for networks of 100 outputs."""
    return Parquet(path=str(data / "cifar10-test.parquet")).read(range(start, start + examples))


def mnist(data: Path, examples: int) -> Batch:
    """The first digits, at the paper's 32×32."""
    return Parquet(path=str(data / "mnist-test.parquet"), size=32).read(range(examples))


def ecg() -> Batch:
    """One window of 256 samples of the ECG that PyWavelets ships, scaled to [0, 1] as a whole. Its label, 3, is the
    quarter that its R peak lies in."""
    recording = np.asarray(importlib.import_module("pywt.data").ecg(), dtype=np.float64)
    scaled = (recording - recording.min()) / (recording.max() - recording.min())
    return Batch(torch.from_numpy(scaled.astype(np.float32))[None, None, :256], torch.tensor([3]))


def head() -> Batch:
    """The Shepp–Logan head phantom, grey, 32×32: no fMRI can be shipped, and this is a slice of a head."""
    return _picture("phantom.png", 1)


def cells() -> Batch:
    """Stained tissue, colour, 32×32: a histology picture for the paper's cells."""
    return _picture("ihc.png", 3)


def faces(examples: int) -> Batch:
    """Faces of 25×25, grey, from Labeled Faces in the Wild; the subset's first half are faces. Labels 0, 1, 2, …"""
    whole = np.load(skimage_data() / "lfw_subset.npy")[:examples]
    return Batch(torch.from_numpy(whole.astype(np.float32))[:, None], torch.arange(examples))


def _picture(name: str, channels: int) -> Batch:
    with opened(skimage_data() / name, name) as picture:
        return Batch(pixels(picture, channels=channels, size=32)[None], torch.tensor([0]))
