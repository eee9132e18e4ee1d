"""Parquet in the Hugging Face layout."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from leakgauge.data import check, extras, open_source
from leakgauge.errors import InputError


def encoded(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def table(rows: range, image: str = "img", label: str = "fine_label", **broken: Any) -> pa.Table:
    images = [{"bytes": broken.get(f"row{i}", encoded(i)), "path": f"{i}.png"} for i in rows]
    return pa.table({image: images, label: [i % 3 for i in rows]})


def test_shards_and_row_groups_read_like_one_table(tmp_path: Path) -> None:
    pq.write_table(table(range(7)), tmp_path / "0.parquet", row_group_size=3)
    pq.write_table(table(range(7, 12)), tmp_path / "1.parquet", row_group_size=2)
    source = open_source(f"parquet:{tmp_path}")
    assert (len(source), source.shape, source.classes) == (12, (3, 8, 8), 3)
    order = [11, 0, 6, 7, 3, 0]
    batch = source.read(order)
    for image, i in zip(batch.inputs, order, strict=True):
        truth = np.asarray(Image.open(io.BytesIO(encoded(i)))) / 255
        torch.testing.assert_close(image.double(), torch.from_numpy(truth).permute(2, 0, 1), atol=1e-6, rtol=0)
    assert batch.labels.tolist() == [i % 3 for i in order]


def test_decodes_only_what_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(table(range(10), row5=b"broken"), tmp_path / "d.parquet")
    decoded: list[str] = []
    real = extras.opened
    monkeypatch.setattr(extras, "opened", lambda b, name: decoded.append(name) or real(b, name))
    source = open_source(f"parquet:{tmp_path / 'd.parquet'}", size=4, channels=3)
    assert source.read([2, 9]).inputs.shape == (2, 3, 4, 4)
    assert decoded == ["2.png", "9.png"]
    with pytest.raises(InputError, match=r"5\.png"):
        check(source, range(10))


def test_wrong_columns_and_files(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    pq.write_table(table(range(3), image="scan"), path)
    with pytest.raises(InputError, match="no column 'image'"):
        open_source(f"parquet:{path}").read([0])
    assert len(open_source(f"parquet:{path}", image_column="scan").read([0])) == 1
    pq.write_table(pa.table({"image": ["a", "b"], "label": [0, 1]}), path)
    with pytest.raises(InputError, match="encoded images"):
        open_source(f"parquet:{path}").read([0])
    pq.write_table(pa.table({"image": ["a"], "label": ["cat"]}), path)
    with pytest.raises(InputError, match="not integers"):
        open_source(f"parquet:{path}")
    path.write_bytes(path.read_bytes()[:50])
    for broken in (path, tmp_path / "nowhere.parquet", tmp_path / "nowhere"):
        with pytest.raises(InputError, match=r"data\.source"):
            open_source(f"parquet:{broken}")


def test_without_pyarrow_the_mend_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"\[parquet\]"):
        open_source(f"parquet:{tmp_path}")


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [("cifar10-test", (3, 32, 32), 10), ("mnist-test", (1, 28, 28), 10), ("imagenet-sample-256", (3, 256, 256), 1000)],
)
def test_data_sets(shared: Path, name: str, shape: tuple[int, ...], classes: int) -> None:
    source = open_source(f"parquet:{shared}/data/{name}.parquet")
    assert (source.shape, source.classes) == (shape, classes)
    check(source, [0, len(source) - 1])
