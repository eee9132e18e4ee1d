"""Weights from files and from the package."""

import hashlib
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from leakgauge.errors import InputError, did_you_mean, refusing, require
from leakgauge.tensors import dense, differences, finite, unwrapped

ROOM = 1 << 20  # bytes that the smallest file may unpack to
INSIDE = ("state_dict", "model_state_dict", "model", "net", "weights")  # keys under which checkpoints keep it
NAMELESS = re.compile(r"(arr_)?\d+")  # keys that ``numpy.savez(file, *arrays)`` and Flower give to arrays without names


def _loaded(path: Path, field: str) -> Any:
    """What a file holds: safetensors, a NumPy archive, or a torch checkpoint read weights-only (no code is run). Raises
    `InputError`: truncated, grows when it is unpacked, or a pickle that holds more than tensors."""
    with refusing(field, f"weights {path.name} cannot be read", "give a state dict"):
        if path.suffix == ".safetensors":
            return load_file(path)
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                grown = sum(entry.file_size for entry in archive.infolist())
            bomb = f"{path.name} unpacks to {grown:,} bytes"
            require(grown <= _most(path), field, bomb, "save it with torch.save, unpacked")
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return {name: torch.from_numpy(np.array(arrays[name])) for name in arrays.files}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of what torch itself calls for quantised tensors
                return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:  # on text and on cut files torch's reader raises anything
            hint = "save module.state_dict() alone, or use safetensors"
            raise InputError(field, f"weights {path.name} hold more than tensors", hint) from error


def _most(path: Path) -> int:
    return 4 * path.stat().st_size + ROOM


def _state(found: Any) -> dict[str, Tensor] | None:
    """The state dict that a checkpoint is or holds; `None` where there is none."""
    if isinstance(found, list | tuple):
        found = {str(i): value for i, value in enumerate(found)}
    elif isinstance(found, dict):
        inner = [found[key] for key in INSIDE if isinstance(found.get(key), dict) and found[key]]
        found = next((one for one in (found, *inner) if _is_state(one)), None)
    return dict(found) if _is_state(found) else None


def _is_state(found: Any) -> bool:
    return isinstance(found, dict) and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in found.items())


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over all tensors by name: name, dtype, shape and bytes, 64 hexadecimal digits.

    Independent of the order of the names and of the file's format; any changed bit changes it.
    """
    digest = hashlib.sha256()
    for name, value in sorted(dense(state).items()):
        tensor = value.detach().cpu()
        header = f"{name}\0{str(tensor.dtype).removeprefix('torch.')}\0{'x'.join(map(str, tensor.shape))}\0"
        digest.update(header.encode())
        if tensor.numel():
            digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_model(path: Path, field: str, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """A received model: a state dict, also one inside a checkpoint's dict or with a wrapper's prefix on every name, in
    ``.safetensors``, a NumPy archive, or a file of ``torch.save``.

    `names`: for arrays that were saved without names, in the order of the state dict, as Flower's clients send them.
    Raises `InputError`, which names `field`: missing, truncated, empty, not a state dict, as many nameless arrays as
    there are no names, or a pickle that holds more than tensors.
    """
    require(path.exists(), field, f"no file '{path}'", "give a state dict as .safetensors or from torch.save")
    require(path.is_file(), field, f"'{path}' is a folder", "give one file")
    if (state := _state(_loaded(path, field))) is None:
        raise InputError(field, f"weights {path.name} are not a state dict", "save module.state_dict()")
    require(bool(state), field, f"{path.name} holds no tensors", "save module.state_dict()")
    # A tensor whose values are all one byte of the file (an expanded view) fills the memory of whoever uses it.
    size = sum(t.numel() * t.element_size() for t in state.values())
    views = f"tensors hold {size:,} bytes, many times those of the file"
    require(size <= _most(path), field, views, "save tensors that hold their own values: t.contiguous()")
    for name, tensor in state.items():
        here = not tensor.is_meta and tensor.layout is torch.strided
        require(here, field, f"tensor '{name}' has no dense values", "save dense tensors that hold data")
    state = dense(state)
    if names is not None and all(NAMELESS.fullmatch(name) for name in state):
        counted = f"{path.name} holds {len(state)} arrays without names, the model has {len(names)} tensors"
        require(len(state) == len(names), field, counted, "give the arrays of the whole state dict, in its order")
        number = {name: int(name.rpartition("_")[2]) for name in state}
        return {name: state[key] for name, key in zip(names, sorted(state, key=number.__getitem__), strict=True)}
    return unwrapped(state)


def load_weights(module: nn.Module, path: Path, field: str) -> None:
    """Loads a state dict; every name and shape must agree. Parameters that the module freezes may be missing, as where
    adapters alone travel: they stay as the module made them."""
    optional = {name for name, p in module.named_parameters() if not p.requires_grad} | set(tied(module))
    own = module.state_dict()
    state = read_model(path, field, list(own))
    name, hint = f"weights {path.name}", "give the weights of this model"
    sent = any(key.startswith("update/") for key in state)
    require(not sent, field, f"{name} hold an update, not weights", "give what the server broadcast in that round")
    wrong = differences({k: v for k, v in own.items() if k in state or k not in optional}, state)
    require(not wrong, field, f"{name} do not fit: {', '.join(wrong[:6])}", hint)
    whole = [k for k, v in state.items() if own[k].is_floating_point() and not v.is_floating_point()]
    require(not whole, field, f"{name} hold whole numbers in {', '.join(whole[:6])}", "save the float values")
    bad = [k for k, v in state.items() if v.is_floating_point() and not finite(v)]
    require(not bad, field, f"{name} hold NaN or infinity in {', '.join(bad[:6])}", "the model diverged; take another")
    module.load_state_dict(own | state | {k: state[v] for k, v in tied(module).items() if k not in state})


def tied(module: nn.Module) -> dict[str, str]:
    """Names of parameters that are another one's tensor → that one's name, as of an embedding and its output layer."""
    every = dict(module.named_parameters(remove_duplicate=False))
    first = {id(p): name for name, p in module.named_parameters()}
    return {name: first[id(p)] for name, p in every.items() if first[id(p)] != name}


PREFIX = "packaged:"


def packaged(name: str, field: str = "weights") -> Path:
    """The file of a name, e.g. ``resnet20-cifar10``. Raises `InputError`: no such weights; names `field`."""
    folder = Path(str(files("leakgauge"))) / "weights"
    known = [path.stem for path in folder.glob("*.safetensors")]
    require(name in known, field, f"no packaged weights '{name}'", did_you_mean(name, known))
    return folder / f"{name}.safetensors"


def weights_path(text: str, field: str = "weights") -> Path:
    """``packaged:NAME`` or a path, as plans write it."""
    return packaged(text.removeprefix(PREFIX), field) if text.startswith(PREFIX) else Path(text)
