"""What stops each exact read: of a client whose reads are known, and in words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leakgauge.data import Tokens
from leakgauge.frontiers import reads
from leakgauge.frontiers.folder import FrontierFolder
from leakgauge.frontiers.reads import reads_of, sentences
from leakgauge.frontiers.written import resolve_frontier
from texts import CLASSES, VOCABULARY, Encoder, texts

PLAN = {"data": {"batch": 1, "images": 4, "size": 12}, "attack": "closed-form", "gallery": 10}

TEXTS = Tokens(
    inputs=texts(40), labels=torch.arange(40) % CLASSES, words=[f"w{i}" for i in range(VOCABULARY)], padding=0
)


def records(tmp_path: Path, **keys: object) -> list[dict]:
    plan = resolve_frontier({**PLAN, **keys})
    with FrontierFolder.open(tmp_path / "out", digest="d", raw={}, contents={}) as folder:
        found = reads_of(plan, folder)
        assert reads_of(plan, folder) == found, "it is kept"
    return found


def test_a_dense_first_layer_is_read_until_noise_hides_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "LADDERS", reads.LADDERS[:1])
    batches = {"larger batch": [{"batch": 3}]}
    found = records(tmp_path, model={"mlp": {"hidden": [64]}}, client="fedsgd", defenses=batches)
    by = {(r["read"], r["batch"]): r for r in found}
    one, several = by["closed form of one example", 1], by["peeling", 3]
    assert (one["exact"], several["exact"]) == (1, 3)
    noise = {r["stopped"][0]["exact"] for r in (one, several)}
    assert all(noise), "noise of the update's own norm stops both"
    assert float(several["stopped"][0]["exact"]) < float(one["stopped"][0]["exact"]), "a batch is hidden by less"
    said = sentences(found)
    assert any(
        line.startswith("Peeling reads 3 of 3 examples exactly without a defence; what stops it") for line in said
    )
    assert all("noise of 1e-" in line for line in said)


def test_a_dense_first_layer_is_read_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "LADDERS", ())
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 12), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 10))
    found = records(tmp_path, model=net, client="fedsgd", defenses={"larger batch": [{"batch": 3}]})
    assert {("closed form of one example", 1), ("peeling", 3)} <= {(r["read"], r["exact"]) for r in found}


def test_the_tokens_of_texts_are_read_until_noise_hides_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "LADDERS", reads.LADDERS[:1])
    torch.manual_seed(0)
    data = {"source": TEXTS, "batch": 2, "images": 2}
    found = records(
        tmp_path, model=Encoder(), client="fedsgd", data=data, defenses={"top-k": [{"topk": {"keep": 0.5}}]}
    )
    assert [(r["read"], r["exact"], r["batch"]) for r in found] == [("tokens of texts", 2, 2)]
    stopped = found[0]["stopped"][0]
    assert 1e-4 < float(stopped["exact"]) <= float(stopped["seen"]) <= 1, "half of the tokens last as long as all"
    assert sentences(found)[0].startswith("Tokens of texts come back, no more and no fewer, from 2 of 2 without")


def test_a_convolution_allows_no_read(tmp_path: Path) -> None:
    assert (
        records(tmp_path, model="small-convnet", client="fedsgd", defenses={"top-k": [{"topk": {"keep": 0.1}}]}) == []
    )
    assert sentences([]) == []
