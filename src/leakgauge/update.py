"""What a client sends: named tensors and a header, safetensors on disk."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from leakgauge.errors import few, refusing, require
from leakgauge.tensors import Tensors, apart, dense, differences, fingerprint, finite

FORMAT = "leakgauge-update-1"

UPDATE, WEIGHTS, EXAMPLES = "update.safetensors", "weights.safetensors", "examples.npz"
"""Files of a captured round: what the client sent, what it received, and what it trained on."""

NAMED = 6  # tensors that an error names at most

MAKE = "make one of the state dicts before and after training: leakgauge between BEFORE AFTER -o FOLDER"

OTHERS = (".pt", ".pth", ".bin", ".npz", ".npy", ".pkl", ".ckpt")  # files of state dicts and arrays

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # how names of BatchNorm's buffers end


def round_folder(round_: str, node: str, side: str = "") -> str:
    """Name of a round's folder. Whoever sent the round may have named it: what is no plain name becomes one."""
    return re.sub(r"[^\w.-]", "_", "-".join(filter(None, ("round", round_, "node", node, side))), flags=re.ASCII)[:200]


def trains(name: str, tensor: Tensor) -> bool:
    """Whether an entry of a state dict may be a parameter, and not BatchNorm's statistics or a counter."""
    return not name.endswith(STATISTICS) and tensor.is_floating_point()


class UpdateKind(Enum):
    """`GRADIENT`: the mean loss gradient. `DELTA`: θ_local − θ_server, which points the other way."""

    GRADIENT = "gradient"
    DELTA = "delta"


@dataclass(frozen=True)
class UpdateHeader:
    """Facts that travel beside the tensors."""

    kind: UpdateKind
    example_count: int | None = None  #: as sent by the client; `None` where the protocol does not send it.
    #: what the server configured, for people to read; attacks read `Knowledge` instead.
    protocol: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Update:
    """One client's message. `buffers` holds what the reply carries besides, e.g. BatchNorm statistics."""

    tensors: Tensors
    header: UpdateHeader
    buffers: Tensors | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", dense(self.tensors))

    @staticmethod
    def between(
        before: Mapping[str, Tensor],
        after: Mapping[str, Tensor],
        *,
        example_count: int | None = None,
        trained: Iterable[str] | None = None,
    ) -> "Update":
        """The delta between two state dicts, as a Flower-style client returns them.

        `trained`: names of the parameters that train. By default all floating entries but BatchNorm statistics; give
        them where layers are frozen or the module keeps other buffers: ``[name for name, p in model.named_parameters()
        if p.requires_grad]``. Raises `InputError`: two models, by names or shapes; nothing that trains, or has moved;
        no positive count.
        """
        before, after = dense(before), dense(after)
        count = "give the client's number of examples, or leave it out"
        require(example_count is None or example_count > 0, "example_count", f"is {example_count}", count)
        shared = before.keys() & after.keys()
        names = None if trained is None else list(trained)
        odd = sorted(before.keys() ^ after.keys() if names is None else set(names) - shared)
        same = "give two state dicts of one model (a wrapper such as DistributedDataParallel prefixes names)"
        require(not odd, "after", f"and before do not share {', '.join(odd[:3])}", same)
        shapes = [k for k in before if k in shared and after[k].shape != before[k].shape]
        require(not shapes, "after", f"has another shape of {', '.join(shapes[:3])}", same)
        names = [k for k in before if k in shared and trains(k, before[k])] if names is None else names
        require(bool(names), "before", "holds nothing that trains", "give the model's whole state dict")
        tensors = {k: (after[k] - before[k]).detach() for k in names}
        same_place = any(after[k].numel() and after[k].data_ptr() == before[k].data_ptr() for k in names)
        moved = any(not torch.equal(after[k], before[k].to(after[k])) for k in shared)
        hint = "copy the first before training: {k: v.clone() for k, v in model.state_dict().items()}"
        require(moved or not same_place, "after", "shares its memory with before, so nothing has moved", hint)
        require(moved, "after", "equals before in every entry: the update is zero", hint)
        buffers = {k: v.detach() for k, v in after.items() if k not in tensors}
        return Update(tensors, UpdateHeader(UpdateKind.DELTA, example_count), buffers or None)

    def check(self, parameters: Mapping[str, Tensor]) -> None:
        """Raises `InputError` unless the tensors are finite and match `parameters` name by name."""
        wrong = differences(parameters, self.tensors)
        problem = f"does not match the model: {few(wrong, NAMED)}"
        require(not wrong, "update", problem, "audit it with the model that made it")
        bad = ", ".join(k for k, v in self.tensors.items() if not finite(v))
        require(not bad, "update", f"holds NaN or infinity in {bad}", "the client diverged; capture another round")

    def save(self, path: Path | str) -> None:
        """Writes the update as safetensors; `load` gives it back bit for bit."""
        header = asdict(self.header) | {"kind": self.header.kind.value}
        tensors = {f"update/{k}": v for k, v in self.tensors.items()}
        tensors = apart(tensors | {f"buffer/{k}": v for k, v in (self.buffers or {}).items()})
        order = {"update": list(self.tensors), "buffer": None if self.buffers is None else list(self.buffers)}
        meta = {"format": FORMAT, "header": json.dumps(header), "order": json.dumps(order)}
        save_file(tensors, path, meta | {"checksum": _checksum(meta, tensors)})

    @staticmethod
    def load(path: Path | str) -> "Update":
        """Reads what `save` wrote. A file without a checksum, as older ones are, is read without that check. Raises
        `InputError`: not a readable safetensors file, not written by `save`, or changed since."""
        field, hint = f"update {path}", "give a file that Update.save wrote"
        require(Path(path).is_file(), field, "is no file", hint)
        plain = Path(path).suffix in OTHERS
        require(not plain, field, f"ends in {Path(path).suffix}, and updates are .safetensors", MAKE)
        with refusing(field, "cannot be read", hint), safe_open(path, framework="pt") as file:
            meta = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        require(meta.get("format") == FORMAT, field, "has no leakgauge header, so it is not an update", MAKE)
        sound = "checksum" not in meta or meta["checksum"] == _checksum(meta, tensors)
        require(sound, field, "was damaged or changed: its checksum differs", "copy it again from where it was written")
        with refusing(field, "has a header that cannot be read", hint):
            header, order = json.loads(meta["header"]), json.loads(meta["order"])
            sent = {k: tensors.pop(f"update/{k}") for k in order["update"]}
            kept = None if order["buffer"] is None else {k: tensors.pop(f"buffer/{k}") for k in order["buffer"]}
            read = UpdateHeader(UpdateKind(header["kind"]), header["example_count"], header["protocol"])
        count, facts = read.example_count, read.protocol
        require(not tensors, field, f"holds a tensor that its header does not name: {min(tensors, default='')}", hint)
        whole = count is None or (type(count) is int and count > 0)
        require(whole, field, f"has an example count of {count!r}", "a count is a whole number above zero")
        texts = isinstance(facts, dict) and all(isinstance(v, str) for v in facts.values())
        require(texts, field, "has facts of the protocol that are not text", hint)
        require(bool(sent), field, "holds no tensors", hint)
        odd = [f"{k} of {str(t.dtype).removeprefix('torch.')}" for k, t in sent.items() if not t.is_floating_point()]
        require(not odd, field, f"holds {', '.join(odd[:NAMED])}", "an update is of real numbers: leave counters out")
        return Update(sent, read, kept)


def _checksum(meta: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    names = sorted(tensors)
    text = json.dumps([meta.get("header"), meta.get("order"), names])
    return fingerprint(torch.tensor(list(text.encode()), dtype=torch.uint8), *(tensors[name] for name in names))
