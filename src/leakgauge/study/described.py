"""A plan's objects in JSON types, by what they hold; code of the user's own is named and not looked into."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leakgauge.checkpoint import fingerprint

KNOWN = ("leakgauge", "torch", "numpy", "builtins")
"""Packages whose code their version identifies."""
BOOKKEEPING = frozenset(vars(nn.Module()))
"""Members of a module that its state dict, or its hooks, stand for."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclasses.dataclass(frozen=True)
class Description:
    """An object in words.

    Attributes:
        words: in JSON types; objects of other values (weights, tensors, parameters) have other words.
        opaque: parts whose code may differ where the words do not: functions and classes of the user's own, modules
            with hooks, and whatever nothing here can look into.
    """

    words: Any
    opaque: tuple[str, ...]


def description(value: Any) -> Description:
    """A plan or a part of one in words, the same in every process."""
    found = _Words()
    words = found.of(value)
    return Description(words, tuple(dict.fromkeys(found.opaque)))


def described(value: Any) -> Any:
    """The words alone."""
    return description(value).words


class _Words:
    def __init__(self) -> None:
        self.opaque: list[str] = []
        self._inside: list[int] = []

    def of(self, value: Any) -> Any:
        if isinstance(value, Enum):
            return f"{type(value).__name__}.{value.name}"
        if value is None or isinstance(value, str | int | float):
            return value
        if id(value) in self._inside:  # what holds itself
            return _name(type(value))
        self._inside.append(id(value))
        try:
            return self._of(value)
        finally:
            self._inside.pop()

    def _of(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {_key(key): self.of(inside) for key, inside in value.items()}
        if isinstance(value, list | tuple):
            return [self.of(inside) for inside in value]
        if isinstance(value, set | frozenset):
            return sorted((self.of(inside) for inside in value), key=_text)
        if isinstance(value, Tensor):
            return f"tensor {tuple(value.shape)} {fingerprint(value)}"
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return f"array {value.shape} {value.dtype} {hashlib.sha256(value.tobytes()).hexdigest()[:16]}"
        if isinstance(value, np.generic | PurePath | bytes | complex | torch.dtype | torch.device):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, type | FunctionType | BuiltinFunctionType):
            return self._code(value, f"{value.__module__}.{value.__qualname__}")
        if isinstance(value, MethodType):
            return {str(self.of(value.__func__)): self.of(value.__self__)}
        if isinstance(value, functools.partial):
            return {"partial": self.of([value.func, value.args, value.keywords])}
        if isinstance(value, nn.Module):
            return {self._code(type(value), _name(type(value))): self._module(value)}
        return self._object(value)

    def _object(self, value: Any) -> Any:
        kind = self._code(type(value), _name(type(value)))
        if type(value).__module__ == "builtins":  # a generator, a module of code
            self.opaque.append(kind)
        if dataclasses.is_dataclass(value):
            return {kind: {f.name: self.of(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}}
        held = {k: v for k, v in getattr(value, "__dict__", {}).items() if not k.startswith("_")}
        return {kind: self.of(held)} if held else kind

    def _code(self, kind: Any, name: str) -> str:
        if (kind.__module__ or "").partition(".")[0] not in KNOWN:
            self.opaque.append(name)
        return name

    def _module(self, value: nn.Module) -> str:
        """A digest of its tensors, of those that train, and of each part's class and settings."""
        state, parts = value.state_dict(), {}
        for name, part in value.named_modules(remove_duplicate=False):
            held = vars(part)
            if any(held.get(hooks) for hooks in HOOKS):
                self.opaque.append(f"{_name(type(part))} with hooks")
            settings = {key: inside for key, inside in held.items() if key not in BOOKKEEPING}
            aside = {k: t for k, t in part.named_buffers(recurse=False) if k in part._non_persistent_buffers_set}
            parts[name] = [self._code(type(part), _name(type(part))), self.of(settings), self.of(aside)]
        trained = [name for name, parameter in value.named_parameters() if parameter.requires_grad]
        tensors = fingerprint(*(t for t in state.values() if isinstance(t, Tensor)))
        return hashlib.sha256(_text([list(state), tensors, trained, parts]).encode()).hexdigest()[:16]


def _name(kind: type) -> str:
    """A class in words: in this package room and name alone, so that a module may move without changing plans."""
    parts = kind.__module__.split(".")
    return ".".join([*(parts[:2] if parts[0] == "leakgauge" else parts), kind.__qualname__])


def _key(key: Any) -> str:
    return str(getattr(key, "__qualname__", key))  # the text of a function or a class has an address in it


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
