"""Names of sources, and the hub through a stand-in for its client."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from leakgauge.data import Samples, open_source
from leakgauge.errors import InputError


class Rows:
    """What ``datasets.load_dataset`` answers, as far as it is used."""

    features = {"img": SimpleNamespace(), "label": SimpleNamespace(num_classes=5)}  # noqa: RUF012

    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return [0, 1, 2, 3]
        if key == 3:
            raise OSError("truncated")
        return {"img": Image.fromarray(np.full((6, 9), key * 50, np.uint8)), "label": key}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def load_dataset(path: str, name: str | None = None, *, split: str) -> Rows:
        calls.append((path, name, split))
        if path == "nobody/nothing":
            raise FileNotFoundError("Dataset doesn't exist")
        return Rows()

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


def test_hub_reads_through_its_client(hub: list[Any]) -> None:
    source = open_source("hf:ylecun/mnist", split="train", size=4)
    batch = source.read([2, 1])
    assert hub == [("ylecun/mnist", None, "train")]
    assert (source.shape, source.classes, len(source)) == ((1, 4, 4), 5, 4)
    assert batch.labels.tolist() == [2, 1]
    assert batch.inputs.mean((1, 2, 3)).tolist() == pytest.approx([100 / 255, 50 / 255])
    with pytest.raises(InputError, match=r"hf:ylecun/mnist\[3\]"):
        source.read([3])


def test_hub_failures_explain_themselves(hub: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="doesn't exist"):
        open_source("hf:nobody/nothing")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"leakgauge\[hub\]"):
        open_source("hf:ylecun/mnist")


def test_names_and_options() -> None:
    assert open_source("samples", size=8) == Samples(size=8)
    for text, complaint in [
        ("sample", "did you mean 'samples'"),
        ("parket:x", "did you mean 'parquet'"),
        ("folder", "names no place"),
        ("npz:", "names no place"),
        ("samples:x", "takes no path"),
        ("no.such.module:thing", "cannot import"),
    ]:
        with pytest.raises(InputError, match=complaint):
            open_source(text)
    with pytest.raises(InputError, match=r"data\.sise.*did you mean 'size'"):
        open_source("samples", sise=8)


def test_third_party_sources_resolve_by_module() -> None:
    assert open_source("leakgauge.data.pictures:Samples", size=8) == Samples(size=8)


def test_extras_are_not_imported_until_used() -> None:
    code = "import sys, leakgauge.data, leakgauge.metrics; print(*set(sys.argv[1:]) & set(sys.modules))"
    command = [sys.executable, "-c", code, "pyarrow", "datasets", "torchmetrics", "torchvision"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == ""
