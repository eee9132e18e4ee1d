"""Valid files of every kind that leakgauge reads, and random damage to them."""

from __future__ import annotations

import random
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from leakgauge.checkpoint import read_checkpoint, save_checkpoint
from leakgauge.data import open_source
from leakgauge.errors import InputError
from leakgauge.models.weights import read_model
from leakgauge.privacy.ledger import Ledger
from leakgauge.study.document import document
from leakgauge.study.grammar import parse, read_yaml
from leakgauge.study.store import FILE, Store
from leakgauge.study.tables import Asked
from leakgauge.update import Update, UpdateHeader, UpdateKind

PLAN = """name: plan
model: [lenet, {convnet: {width: 4}}]
data: {source: samples, size: 32, batch: 1, batches: 2}
clients: [fedsgd, {fedavg: {epochs: 1, lr: 0.01}}]
defenses: [none, [{clip: {norm: 1.0}}, {noise: {sigma: 0.1}}]]
attacks: [closed-form]
seeds: [0, 1]
gate: {identified: {max: 0.05}}
"""
ODD = [b"\x00" * 8, b"\xff" * 8, b"-1", b"1e999", b"null", b"[[[[", b"{" * 64, b"\x1b[2J", b"\xed\xa0\x80"]
ODD += [b"!!python/name:os.system", *(struct.pack("<q", n) for n in (-1, 2**31, 2**62))]


@dataclass(frozen=True)
class Reader:
    """A kind of file: how a valid one is written, and what reads it."""

    name: str
    write: Callable[[Path], None]
    read: Callable[[Path], object]


def _update(path: Path) -> None:
    tensors = {"0.weight": torch.randn(4, 3), "0.bias": torch.randn(4).half()}
    Update(tensors, UpdateHeader(UpdateKind.DELTA, 4, {"lr": "0.1"}), {"mean": torch.zeros(2)}).save(path)


def _state(path: Path) -> None:
    state = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)).state_dict()
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)


def _npz(path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    np.savez_compressed(path, x=x, y=np.arange(4))


def _parquet(path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    picture = path.with_suffix(".png")
    _png(picture)
    rows = [{"bytes": picture.read_bytes(), "path": "a.png"}] * 3
    parquet.write_table(pa.table({"image": rows, "label": [0, 1, 2]}), path)


def _png(path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)


def _store(path: Path) -> None:
    asked = Asked("d", "n", {"name": "n"}, {}, {}, ["a", "b"], counts_only=True)
    folder = path.parent / "made"
    Store.create(folder, asked).close()
    path.write_bytes((folder / FILE).read_bytes())


def _first(kind: str) -> Callable[[Path], object]:
    return lambda path: open_source(f"{kind}:{path}").read([0])


def _plan(path: Path) -> None:
    path.write_text(PLAN)


def _ledger(path: Path) -> None:
    Ledger().spend(noise_multiplier=1.0, sample_rate=0.1, steps=5).save(path)


def _read_store(path: Path) -> None:
    folder = path.parent / "opened"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    (folder / FILE).write_bytes(path.read_bytes())
    store = Store.open(folder)
    try:
        document(store)
    finally:
        store.close()


READERS = (
    Reader("update.safetensors", _update, Update.load),
    Reader("model.safetensors", _state, lambda path: read_model(path, "state")),
    Reader("model.pt", _state, lambda path: read_model(path, "state")),
    Reader("data.npz", _npz, _first("npz")),
    Reader("data.parquet", _parquet, _first("parquet")),
    Reader("picture.png", _png, lambda path: open_source(f"folder:{path.parent}", size=8).read([0])),
    Reader("plan.yaml", _plan, lambda path: parse(read_yaml(path))),
    Reader("ledger.json", _ledger, Ledger.load),
    Reader("store.sqlite", _store, _read_store),
    Reader("checkpoint.pt", lambda path: save_checkpoint(path, "me", {"step": 3}), lambda p: read_checkpoint(p, "me")),
)


def damage(data: bytes, dice: random.Random) -> bytes:
    """One to three changes: bits flipped, bytes removed, doubled or moved, odd ones put in, the end cut off."""
    found = bytearray(data)
    for _ in range(dice.randint(1, 3)):
        at, size = dice.randrange(len(found) + 1), dice.randint(1, 32)
        kind = dice.randrange(6)
        if kind == 0 and found:
            found[at % len(found)] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del found[at : at + size]
        elif kind == 2:
            found[at:at] = found[at : at + size]
        elif kind == 3:
            odd = dice.choice(ODD)
            found[at : at + len(odd)] = odd
        elif kind == 4:
            del found[at:]
        else:
            source = dice.randrange(len(found) + 1)
            found[at : at + size] = found[source : source + size]
    return bytes(found)


def outcome(reader: Reader, path: Path) -> str:
    """``read``, ``refused``, or the name of an error that no reader may raise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            reader.read(path)
        except InputError:
            return "refused"
        except BaseException as error:  # noqa: BLE001 - what is looked for
            return f"{type(error).__name__}: {error}"[:200]
    return "read"
