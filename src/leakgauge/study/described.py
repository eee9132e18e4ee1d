"""An object in JSON types, so that objects that act differently are described differently.

Nothing here knows a plan. What cannot be told apart (a lock, an open file) is called by its type alone.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import sys
import sysconfig
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from leakgauge.checkpoint import fingerprint
from leakgauge.data.source import Source
from leakgauge.errors import FOREIGN

OURS = "leakgauge"
INSTALLED = tuple({Path(sysconfig.get_paths()[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib")})
"""Where code lies that is not the user's own: its version tells it, not its instructions."""
BOOKKEEPING = frozenset(vars(nn.Module()))
"""Of a module; its tensors are in the state dict, its hooks are described apart."""
NAMED = (str, int, float, tuple, Enum, type(None))
"""Keys whose text is the same in every process."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def described(value: Any) -> Any:
    """`value` in JSON types. Objects of other contents (weights, tensors, parameters, private members, code of the
    user's own that is not installed) are described differently, in every process alike.

    Of the user's functions and classes the instructions count, with what they name in their module that is a constant,
    a function or a class. Of a data source and of what leakgauge made, private members are left out: they keep what
    was read already, and what a source reads is identified by itself.
    """
    return _Described().of(value)


class _Described:
    """One description: classes and functions are looked at once, and what holds itself does not go round."""

    def __init__(self) -> None:
        self._inside: set[int] = set()
        self._code: dict[int, str] = {}
        self._kept: list[object] = []  # so that no other object gets the number of one that was seen

    def of(self, value: Any) -> Any:
        if isinstance(value, Enum):
            return f"{self._kind(type(value))}.{value.name}"
        if value is None or type(value) in (str, int, float, bool):
            return value
        if id(value) in self._inside:
            return _name(type(value))
        self._inside.add(id(value))
        try:
            return self._of(value)
        finally:
            self._inside.discard(id(value))

    def _of(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            if all(isinstance(key, NAMED) for key in value):
                return {str(key): self.of(inside) for key, inside in value.items()}
            return [
                [self.of(key), self.of(inside)] for key, inside in value.items()
            ]  # an object's text has its address
        if isinstance(value, list | tuple):
            return [self.of(inside) for inside in value]
        if isinstance(value, set | frozenset):
            return {self._kind(type(value)): sorted((self.of(inside) for inside in value), key=_text)}
        if isinstance(value, Tensor):
            return f"tensor {tuple(value.shape)} {fingerprint(value)}"
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            inside = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]
            return f"array {value.shape} {value.dtype} {inside}"
        if isinstance(value, np.generic):
            return f"{value.dtype} {value.item()!r}"
        if isinstance(value, str | int | float):  # of a type of its own
            return value
        if isinstance(value, FunctionType | MethodType | BuiltinFunctionType | type | ModuleType):
            return self._callable(value)
        if isinstance(value, functools.partial):
            return {self._kind(type(value)): self.of([value.func, value.args, value.keywords])}
        if isinstance(value, nn.Module):
            return {self._kind(type(value)): self._module(value)}
        return self._object(value)

    def _object(self, value: Any) -> Any:
        kind = self._kind(type(value))
        if dataclasses.is_dataclass(value):
            return {kind: {f.name: self.of(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}}
        held: Any = _members(value)
        if isinstance(value, Source) or _is_ours(type(value)):
            held = {name: inside for name, inside in held.items() if not name.startswith("_")}
        elif not _is_own(type(value).__module__) and _pickles_itself(value):
            held = _pickled(value)  # what others keep besides, a path's hash or a logger's cache, is not the same twice
        return {kind: self.of(held)} if held else kind

    def _callable(self, value: Any) -> Any:
        if isinstance(value, FunctionType):
            return f"{value.__module__}.{value.__qualname__} {self._function(value)}"
        if isinstance(value, MethodType):
            return {self.of(value.__func__): self.of(value.__self__)}
        if isinstance(value, BuiltinFunctionType):
            owner = value.__self__
            named = f"{value.__module__}.{value.__qualname__}"
            return named if owner is None or isinstance(owner, ModuleType) else {named: self.of(owner)}
        return self._kind(value) if isinstance(value, type) else value.__name__

    def _kind(self, kind: type) -> str:
        """Of this package the room and the name alone, so that a plan stays the same when a module is moved; of a
        class of the user's own its code as well."""
        return f"{_name(kind)} {self._class(kind)}" if _is_own(kind.__module__) else _name(kind)

    def _class(self, kind: type) -> str:
        """Of a class and of its bases that are the user's own."""
        if id(kind) not in self._code:
            self._remember(kind)
            own = [base for base in kind.__mro__ if _is_own(base.__module__)]
            told = [[_name(base), self._body(base)] for base in own]
            self._code[id(kind)] = _digest(told)
        return self._code[id(kind)]

    def _body(self, kind: type) -> list[Any]:
        found: list[Any] = []
        for name, member in vars(kind).items():
            held = _functions_of(member)
            if held:
                found.append([name, *(self._function(f) for f in held)])
            elif not name.startswith("_abc_") and not (name.startswith("__") and name.endswith("__")):
                found.append([name, self.of(member)])
        return found

    def _function(self, value: FunctionType) -> str:
        if id(value) not in self._code:
            self._remember(value)
            inside = [self.of(cell.cell_contents) for cell in value.__closure__ or () if _filled(cell)]
            named = self._globals(value) if _is_own(value.__module__) else {}
            told = (_instructions(value.__code__), self.of(value.__defaults__), self.of(value.__kwdefaults__))
            self._code[id(value)] = _digest([*told, inside, named])
        return self._code[id(value)]

    def _remember(self, value: type | FunctionType) -> None:
        self._kept.append(value)
        self._code[id(value)] = "itself"

    def _globals(self, value: FunctionType) -> dict[str, object]:
        """What a function names in its module: constants, and functions and classes of the user's own."""
        found: dict[str, object] = {}
        for name in sorted(_names(value.__code__)):
            held = value.__globals__.get(name)
            constant = isinstance(held, str | int | float | tuple | Tensor)
            if constant or (isinstance(held, FunctionType | type) and _is_own(held.__module__)):
                found[name] = self.of(held)
        return found

    def _module(self, value: nn.Module) -> str:
        """Of its tensors, of those that train, and of each part's class, settings and hooks."""
        state = value.state_dict()
        parts = {name: self._part(part) for name, part in value.named_modules(remove_duplicate=False)}
        trained = [name for name, parameter in value.named_parameters() if parameter.requires_grad]
        return _digest(
            [list(state), fingerprint(*(t for t in state.values() if isinstance(t, Tensor))), trained, parts]
        )

    def _part(self, part: nn.Module) -> list[Any]:
        held = vars(part)
        hooks = [list(held[name].values()) for name in HOOKS if name in held]
        aside = {name: t for name, t in part.named_buffers(recurse=False) if name in part._non_persistent_buffers_set}
        settings = {name: inside for name, inside in held.items() if name not in BOOKKEEPING}
        return [self._kind(type(part)), self.of(settings), self.of(hooks), self.of(aside)]


def _name(kind: type) -> str:
    parts = kind.__module__.split(".")
    return ".".join([*(parts[:2] if parts[0] == OURS else parts), kind.__qualname__])


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == OURS


def _is_own(module: str | None) -> bool:
    """Whether code of that module is the user's: a script, a notebook, a file beside them; nothing installed."""
    name = module or ""
    if name.partition(".")[0] in (OURS, "builtins", *sys.builtin_module_names):
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    if name == "__main__":  # started by whatever is installed, a notebook's server for one
        return True
    if file is None:
        return name not in sys.stdlib_module_names
    return not any(Path(file).is_relative_to(folder) for folder in INSTALLED)


def _members(value: object) -> dict[str, object]:
    """What an object holds, in its dictionary and in its slots."""
    slots = [name for kind in type(value).__mro__ for name in _listed(vars(kind).get("__slots__", ()))]
    held = {name: getattr(value, name) for name in slots if not name.startswith("__") and hasattr(value, name)}
    return held | _dictionary(value)


def _dictionary(value: object) -> dict[str, object]:
    return dict(getattr(value, "__dict__", {}))


def _listed(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _pickles_itself(value: object) -> bool:
    """Whether it has no members, or says itself what it is made of anew; a function behind a cache says its name."""
    held = _dictionary(value)
    own = any({"__reduce__", "__reduce_ex__"} & vars(kind).keys() for kind in type(value).__mro__[:-1])
    return not held or (own and "__wrapped__" not in held)


def _pickled(value: object) -> Any:
    """What would be pickled of an object without members: of a path its parts, of a number its digits."""
    if isinstance(value, bytes | bytearray | complex):
        return repr(value)
    try:
        reduced = value.__reduce_ex__(4)
    except FOREIGN:
        return None
    return reduced if isinstance(reduced, str) else [r for r in reduced[1:] if r is not None and not callable(r)]


def _functions_of(member: Any) -> list[FunctionType]:
    """The functions that a member of a class is made of."""
    if isinstance(member, property):
        return [f for f in (member.fget, member.fset) if isinstance(f, FunctionType)]
    inner = member.__func__ if isinstance(member, staticmethod | classmethod) else member
    inner = inspect.unwrap(inner.func if isinstance(inner, functools.cached_property) else inner)
    return [inner] if isinstance(inner, FunctionType) else []


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # of a function that is being made
        return False


def _instructions(code: CodeType) -> list[object]:
    """Of a function and of those inside it, the same in every process."""
    inside = [_constant(c) for c in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), inside]


def _constant(value: object) -> object:
    if isinstance(value, CodeType):
        return _instructions(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)


def _names(code: CodeType) -> set[str]:
    """Of a function and of those inside it."""
    return set(code.co_names).union(*(_names(c) for c in code.co_consts if isinstance(c, CodeType)))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _digest(value: Any) -> str:
    return hashlib.sha256(_text(value).encode()).hexdigest()[:16]
