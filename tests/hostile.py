"""Files made to make their reader do something."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from leakgauge.cli.captured import plan_of
from leakgauge.compute import Compute
from leakgauge.data import open_source
from leakgauge.models import mlp
from leakgauge.models.weights import read_model
from leakgauge.study.grammar import parse, read_yaml
from leakgauge.study.plan import resolve_plan
from leakgauge.study.store import Store
from leakgauge.study.trial import run_trial
from leakgauge.training import read_checkpoint
from leakgauge.update import UPDATE, WEIGHTS, Update, UpdateHeader, UpdateKind
from study.plans import document

SECRET = "/etc/hostname"
"""What a hostile file would have read."""


class Evil:
    """Its pickle leaves a file behind."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch EVIL",)


@dataclass(frozen=True)
class Hostile:
    """A file in a folder, and what reads it."""

    write: Callable[[Path], Path]
    read: Callable[[Path], object]


def _pickled(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        torch.save({"w": torch.ones(2), "x": Evil()}, folder / name)
        return folder / name

    return write


def _plain_pickle(folder: Path) -> Path:
    (folder / "m.pt").write_bytes(pickle.dumps({"w": Evil()}))
    return folder / "m.pt"


def _objects(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        np.savez(folder / name, x=np.array([Evil(), Evil()], dtype=object), y=np.arange(2))
        return folder / name

    return write


def _slip(folder: Path) -> Path:
    """Entries of an archive that climb out of it."""
    np.savez(folder / "x.npz", x=np.zeros((4, 3, 4, 4), np.float32), y=np.arange(4))
    with zipfile.ZipFile(folder / "x.npz", "a") as archive:
        archive.writestr("../EVIL", b"x")
        archive.writestr("/EVIL", b"x")
    return folder / "x.npz"


def _round(folder: Path) -> Path:
    """A captured round whose update says that it is another's, elsewhere."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 4)).state_dict()
    save_file(net, folder / WEIGHTS)
    facts = {"round": "../../../etc", "node": "/etc/passwd", "weights": SECRET, "examples": SECRET}
    Update({k: v + 0.1 for k, v in net.items()}, UpdateHeader(UpdateKind.DELTA, 4, facts)).save(folder / UPDATE)
    return folder / UPDATE


def _read_round(path: Path) -> object:
    return plan_of([path.parent], model="mlp", client="fedavg", mode="train", data=None)


def _audited(folder: Path) -> Path:
    """A plan over a captured round, to be run whole."""
    np.savez(folder / "x.npz", x=np.random.default_rng(0).random((40, 3, 4, 4), np.float32), y=np.arange(40) % 4)
    facts = {"round": "../..", "node": SECRET, "\x1b[2J": "import os"}
    state = mlp(shape=(3, 4, 4), hidden=(6,), classes=4).state_dict()
    save_file(state, folder / WEIGHTS)
    sent = {name: torch.randn_like(value) for name, value in state.items()}
    Update(sent, UpdateHeader(UpdateKind.GRADIENT, 1, facts)).save(folder / UPDATE)
    plan = {
        "name": "__import__('os').system('touch EVIL')",
        "update": str(folder / UPDATE),
        "model": {"mlp": {"hidden": [6], "weights": str(folder / WEIGHTS)}},
        "data": {"source": f"npz:{folder / 'x.npz'}", "batch": 1, "batches": 1},
        "attacks": ["closed-form", {"inverting-gradients": {"steps": 2}}],
        "gallery": 5,
    }
    (folder / "plan.yaml").write_text(json.dumps(plan))
    return folder / "plan.yaml"


def _run(path: Path) -> None:
    plan = resolve_plan(read_yaml(path))
    plan.contents()
    plan.explained()
    for key in plan.trials()[:4]:
        run_trial(plan, key, compute=Compute())


def _text(name: str, text: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_text(text)
        return folder / name

    return write


def _paths_for_pictures(folder: Path) -> Path:
    """Rows that name files instead of holding pictures, as some readers of Parquet follow them."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = [{"bytes": None, "path": SECRET}, {"bytes": None, "path": "http://127.0.0.1:1/x.png"}]
    parquet.write_table(pa.table({"image": rows, "label": [0, 1]}), folder / "x.parquet")
    return folder / "x.parquet"


def _database(folder: Path) -> Path:
    note = {"store": "postgresql+psycopg://u@127.0.0.1:1/x?passfile=/etc/passwd", "audit": "a-1"}
    (folder / "store.json").write_text(json.dumps(note))
    return folder / "store.json"


def _open(path: Path) -> None:
    document(Store.open(path.parent))


BOMB = "a: &a [x, x]\n" + "".join(
    f"{c}: &{c} [*{p}, *{p}, *{p}, *{p}]\n" for p, c in zip("abcdefghij", "bcdefghijk", strict=True)
)

HOSTILE = {
    "pickle in a checkpoint": Hostile(_pickled("m.pt"), lambda path: read_model(path, "state")),
    "pickle as a model": Hostile(_plain_pickle, lambda path: read_model(path, "state")),
    "pickle in a training's state": Hostile(_pickled("t.pt"), lambda path: read_checkpoint(path, "me")),
    "objects in an archive": Hostile(_objects("x.npz"), lambda path: open_source(f"npz:{path}").read([0])),
    "objects in a model": Hostile(_objects("m.npz"), lambda path: read_model(path, "state")),
    "objects in a capture": Hostile(
        _objects("examples.npz"), lambda path: open_source(f"capture:{path.parent}").read([0])
    ),
    "entries that climb": Hostile(_slip, lambda path: open_source(f"npz:{path}").read([0])),
    "a round elsewhere": Hostile(_round, _read_round),
    "a capture audited": Hostile(_audited, _run),
    "yaml that constructs": Hostile(
        _text("p.yaml", "name: !!python/object/apply:os.system ['touch EVIL']\n"), lambda path: parse(read_yaml(path))
    ),
    "yaml that doubles": Hostile(_text("p.yaml", BOMB), lambda path: parse(read_yaml(path))),
    "paths for pictures": Hostile(_paths_for_pictures, lambda path: open_source(f"parquet:{path}").read([0, 1])),
    "another's database": Hostile(_database, _open),
}
