"""The electrocardiogram: windows of one recording, labelled by where the beat is."""

from __future__ import annotations

import importlib

import pytest
import torch

from leakgauge.data import ECG, check, client_batches, gallery, open_source, spec
from leakgauge.errors import InputError


@pytest.fixture
def source() -> ECG:
    pytest.importorskip("pywt")
    return ECG()


def test_windows_are_pieces_of_the_recording(source: ECG) -> None:
    recording = importlib.import_module("pywt.data").ecg()
    low, high = float(recording.min()), float(recording.max())
    x = source.read([3, 0]).inputs
    assert x.shape == (2, 1, 256)
    assert x[0, 0].tolist() == pytest.approx([(v - low) / (high - low) for v in recording[96:352].tolist()], abs=1e-6)
    assert source.names([3]) == ["ecg[96:352]"]
    assert len(source) == 25
    check(source, range(25))


def test_labels_follow_their_rule(source: ECG) -> None:
    everything = source.read(range(25))
    for x, label in zip(everything.inputs, everything.labels.tolist(), strict=True):
        top = max(range(256), key=lambda i: float(x[0, i]))
        assert label == (1 + top // 64 if float(x[0, top]) > 0.6 else 0)
    assert set(everything.labels.tolist()) == {0, 1, 2, 3, 4}


def test_is_no_picture(source: ECG) -> None:
    assert not spec(source).is_image
    assert spec(source).mean == (0.0,)
    batch = client_batches(source, 4, 2)[1]
    others = gallery(source, batch, 10, torch.Generator().manual_seed(0))
    assert others.shape == (10, 1, 256)


def test_bad_windows_and_a_missing_package_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ({"window": 2048}, {"window": 255}, {"stride": 0}):
        with pytest.raises(InputError):
            ECG(**wrong)

    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InputError, match="PyWavelets"):
        ECG().read([0])


def test_takes_no_path() -> None:
    with pytest.raises(InputError, match="takes no path"):
        open_source("ecg:somewhere")
