"""Valid files of every kind that leakgauge reads, and random damage to them."""

from __future__ import annotations

import json
import random
import re
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from reproduce.denoiser.network import DenoisingUNet, read_denoiser
from safetensors.torch import save_file
from torch import nn

from leakgauge.capture import Recorder
from leakgauge.cli.captured import plan_of
from leakgauge.cli.model import cohort_record
from leakgauge.data import open_source
from leakgauge.errors import InputError
from leakgauge.files import sealed
from leakgauge.frontiers.plan import FrontierConfig
from leakgauge.models.weights import read_model
from leakgauge.privacy.accounting import Ledger, Release
from leakgauge.risk.cohort import read_cohort, read_log
from leakgauge.risk.lint import lint_update, read_lint
from leakgauge.study.grammar import parse, read_yaml, validated
from leakgauge.study.plan import resolve_plan
from leakgauge.study.store import FILE, Store
from leakgauge.training import read_checkpoint, save_checkpoint
from leakgauge.update import EXAMPLES, UPDATE, WEIGHTS, Update, UpdateHeader, UpdateKind
from study.plans import document

PLAN = """name: plan
model: [lenet, {convnet: {width: 4}}]
data: {source: samples, size: 32, batch: 1, batches: 2}
clients: [fedsgd, {fedavg: {epochs: 1, lr: 0.01}}]
defenses: [none, [{clip: {norm: 1.0}}, {noise: {sigma: 0.1}}]]
attacks: [closed-form]
seeds: [0, 1]
gate: {identified: {max: 0.05}}
"""
ODD = [b"\x00" * 8, b"\xff" * 8, b"-1", b"1e999", b"1e9999999", b"1e-9999999", b"9" * 5000, b"nan", b"null", b"true"]
ODD += [
    b"[]",
    b"{}",
    b'""',
    b"0",
    b"-0.5",
    b"[[[[",
    b"{" * 64,
    b"[" * 5000,
    b"\x1b[2J",
    b"\xed\xa0\x80",
    b"!!python/name:os.system",
]
ODD += [struct.pack("<q", n) for n in (-1, 2**31, 2**62)]
TOKEN = re.compile(rb'"[^"]*"|[-+.\w/]+')


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
    asked = resolve_plan({"name": "n"}).begun({}, ["a", "b"], {}, counts_only=True)
    folder = path.parent / "made"
    Store.create(folder, asked, ["a", "b"]).close()
    path.write_bytes((folder / FILE).read_bytes())


def _first(kind: str) -> Callable[[Path], object]:
    return lambda path: open_source(f"{kind}:{path}").read([0])


def _plan(path: Path) -> None:
    path.write_text(PLAN)


def _ledger(path: Path) -> None:
    Ledger.enter(path, Release(noise_multiplier=1.0, sample_rate=0.1, steps=5))


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


LOG = "round,client,weight,examples\n1,ward-a,120,8\n1,ward-b,1/3,\n2,ward-a,80.5,4\n2,ward-c,1e2,12\n"
LINES = """{"round": 1, "client": "a", "weight": 3, "examples": 8, "coordinates": [4, 17]}
{"round": 1, "client": "b", "weight": "1/3"}
{"round": 2, "client": "a"}
"""
FRONTIER = """model: {mlp: {hidden: [6]}}
data: {source: samples, size: 8, images: 4}
client: {fedavg: {batch_size: 8, lr: 0.5}}
attack: closed-form
defenses: {top-k: [{topk: {keep: 0.1}}], noise: [{noise: {sigma: 0.1}}]}
"""


def _text(text: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(text)

    return write


def _sixteen(path: Path) -> None:
    Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 900).save(path)


def _archive(path: Path) -> None:
    np.savez(path, **{k: v.numpy() for k, v in nn.Linear(4, 2).state_dict().items()})


def _examples(path: Path) -> None:
    x = np.random.default_rng(0).random((4, 3, 4, 4), dtype=np.float32)
    np.savez(path, x=x, y=np.arange(4))


def _read_captured(path: Path) -> None:
    for place, name in (("own", EXAMPLES), ("other", EXAMPLES)):
        (path.parent / place).mkdir(exist_ok=True)
        (path.parent / place / name).write_bytes(path.read_bytes())
    source = open_source(f"capture:{path.parent / 'own'}")
    source.read(range(len(source)))


def _round(path: Path) -> None:
    """The update of a captured round, which says what its folder is."""
    before = nn.Linear(4, 2).state_dict()
    after = {k: v + 0.1 for k, v in before.items()}
    made = Recorder(folder=path.parent / "made").keep(before, after, round_="1", node="7", count=4)
    path.write_bytes((made / UPDATE).read_bytes())


def _read_round(path: Path) -> None:
    folder = path.parent / "round-1-node-7"
    folder.mkdir(exist_ok=True)
    (folder / UPDATE).write_bytes(path.read_bytes())
    _examples(folder / EXAMPLES)
    save_file(nn.Linear(4, 2).state_dict(), folder / WEIGHTS)
    plan_of([folder], model="lenet", client="fedavg", mode="train", data=None)
    list(lint_update(Update.load(folder / UPDATE), "here"))


def _dicom(path: Path) -> None:
    from data.test_dicom import scan

    scan(path, np.arange(64).reshape(8, 8) * 60)


def _lint_file(path: Path) -> None:
    path.write_text(json.dumps(sealed({"findings": [{"rule": "exact-read", "where": "here", "evidence": "seen"}]})))


def _denoiser(path: Path) -> None:
    save_file({k: v.contiguous() for k, v in DenoisingUNet(width=2).state_dict().items()}, path)


HAS_DICOM = find_spec("pydicom") is not None
DICOM = (Reader("scan.dcm", _dicom, lambda path: open_source(f"dicom:{path.parent}", size=8).read([0])),) * HAS_DICOM

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
    Reader("examples.npz", _examples, _read_captured),
    Reader("round.safetensors", _round, _read_round),
    Reader("log.csv", _text(LOG), lambda path: cohort_record(read_cohort(read_log(path)))),
    Reader("log.jsonl", _text(LINES), lambda path: cohort_record(read_cohort(read_log(path)))),
    Reader("frontier.yaml", _text(FRONTIER), lambda path: validated(FrontierConfig, read_yaml(path), "")),
    Reader("lint.json", _lint_file, lambda path: read_lint(path.parent, "")),
    Reader("model.npz", _archive, lambda path: read_model(path, "state")),
    Reader("denoiser.safetensors", _denoiser, read_denoiser),
    Reader("picture.jpg", _png, lambda path: open_source(f"folder:{path.parent}", size=8).read([0])),
    Reader("picture.gif", _png, lambda path: open_source(f"folder:{path.parent}", size=8).read([0])),
    *DICOM,
    Reader("sixteen.png", _sixteen, lambda path: open_source(f"folder:{path.parent}", size=8).read([0])),
    Reader("checkpoint.pt", lambda path: save_checkpoint(path, "me", {"step": 3}), lambda p: read_checkpoint(p, "me")),
)


def damage(data: bytes, dice: random.Random) -> bytes:
    """One to three changes: bits flipped, bytes removed, doubled, moved or made odd, a word odd, the end cut off."""
    found = bytearray(data)
    for _ in range(dice.randint(1, 3)):
        at, size = dice.randrange(len(found) + 1), dice.randint(1, 32)
        kind = dice.randrange(7)
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
        elif kind == 5 and (words := list(TOKEN.finditer(found))):
            word = dice.choice(words)
            found[word.start() : word.end()] = dice.choice(ODD)
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
