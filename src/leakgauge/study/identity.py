"""What the results of a plan rest on: its words, objects, files, data, code of the user's own, and versions."""

import ast
import dataclasses
import hashlib
import json
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from pathlib import Path, PurePath
from types import FunctionType
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from leakgauge import __version__
from leakgauge.data.source import Share, Source, share
from leakgauge.errors import InputError, few, require
from leakgauge.files import fingerprint_of_file
from leakgauge.study.database import AuditRow, checksum_of, now
from leakgauge.tensors import fingerprint

LENT = 1000  # examples beside the clients' of a source that lies in no file, which are read for its identity

ANEW = "give another folder with -o, or --anew to set the old results aside"

SHOWN = 3  # keys of a plan that an error names
JUDGING = "gate"  # the key of a plan that changes no trial: with another, a finished audit is judged anew


def contents(raw: Mapping[str, Any], source: Source, batches: Sequence[Sequence[int]]) -> dict[str, str]:
    """What a plan's results rest on beside its text → an identity of the content.

    Files that the plan names anywhere (an update, weights, a decoder), the files that its data lie in, modules of the
    user's own with those that they import from beside them, the versions of leakgauge and torch. A data source that
    lies in no file is identified by its labels, the clients' examples and `LENT` others. Raises `InputError` where a
    file cannot be read."""
    found = {"leakgauge": __version__, "torch": torch.__version__, "data": data_identity(source, batches)}
    for key, text in _texts({k: v for k, v in raw.items() if k not in (JUDGING, "name")}):
        path = Path(text)
        if key.startswith("update") and path.is_dir():  # of a captured round
            for file in sorted(path.glob("*.safetensors")):
                found[f"{key} {path.name}/{file.name}"] = fingerprint_of_file(file)
        if ("." in text or "/" in text) and path.is_file():
            found[f"{key} {path.name}"] = fingerprint_of_file(path)
        if ":" in text and (code := _code_of(text.partition(":")[0])):
            found[f"module {text.partition(':')[0]}"] = code
    return found


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """In words what differs, by name; versions with both."""
    found = []
    for name in sorted({*before, *now}):
        if name not in now or name not in before:
            found.append(f"{name} ({'is gone' if name not in now else 'is new'})")
        elif before[name] != now[name]:
            versions = f" ({before[name]}, now {now[name]})"
            found.append(name + (versions if name in ("leakgauge", "torch") else ""))
    return found


def refuse_other(row: AuditRow, asked: AuditRow, folder: Path) -> None:
    """Raises `InputError` where results of this plan and the stored ones would be mixed."""
    if row.digest != asked.digest:
        before, now = json.loads(row.config), json.loads(asked.config)
        other = [key for key in sorted({*before, *now} - {JUDGING}) if before.get(key) != now.get(key)]
        own = "is not given, and the plan holds objects of your own, whose code is not compared"
        hint = f"give identity='a name of this plan' in every run that {folder} belongs to, or another folder with -o"
        require(bool(other), "identity", own, hint)
        of = f"'{row.name}', of another {few(other, SHOWN)}"
        raise InputError("output", f"{folder} belongs to the audit {of}", ANEW)
    different = changed(json.loads(row.contents), json.loads(asked.contents))
    problem = f"{folder} holds results that rest on other contents of {', '.join(different)}"
    require(not different, "output", problem, ANEW)
    same, problem = row.counts_only or not asked.counts_only, f"{folder} was begun with images"
    require(same, "--counts-only", problem, "give another folder with -o")


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inside in value.items():
            yield from _texts(str(name), key)
            yield from _texts(inside, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for i, inside in enumerate(value):
            yield from _texts(inside, f"{key}[{i}]")


def data_identity(source: Source, batches: Sequence[Sequence[int]]) -> str:
    """Hash of the files that a source lies in, or else of the examples themselves."""
    whole = hashlib.sha256(fingerprint(source.labels).encode())
    if files := getattr(source, "files", ()):
        for path in files:
            whole.update(f"{path.name}\0{fingerprint_of_file(path)}\0".encode("utf-8", "surrogateescape"))
        return whole.hexdigest()
    held = [i for batch in batches for i in batch]
    for indices in (held, *(share(len(source), frozenset(held), part)[:LENT] for part in Share)):
        for index in indices:
            read = source.read([index])
            whole.update(fingerprint(read.inputs, read.labels).encode())
    return whole.hexdigest()


def _code_of(name: str) -> str:
    """Hash of a module of the user's own with all that it imports from beside it; empty for other modules."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or name.partition(".")[0] == "leakgauge":
        return ""
    start = Path(file)
    root = start.parents[name.count(".") + (start.stem == "__init__")]
    if root == Path(ast.__file__).parent:  # Python's own module of that name, where a plan says "csv:a file"
        return ""
    seen, left = {start}, [start]
    while left:
        for parts in _imports(left.pop(), root):
            for end in range(1, len(parts) + 1):
                base = root.joinpath(*parts[:end])
                new = {p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()} - seen
                seen |= new
                left += new
    whole = hashlib.sha256()
    for path in sorted(seen):
        whole.update(f"{path.relative_to(root)}\0{fingerprint_of_file(path)}\0".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def _imports(path: Path, root: Path) -> Iterator[tuple[str, ...]]:
    """Names of what a module imports, in parts, as seen from `root`."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):  # compiled, or in another encoding: it counts alone
        return
    package = path.relative_to(root).parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            inside = (*base, *(node.module.split(".") if node.module else ()))
            yield from ((*inside, alias.name) for alias in node.names)


class Described:
    """A plan, of an audit or a frontier, in words of JSON's types.

    The words are those of its file (`written`), else its fields: parts of this package by name and fields, tensors and
    weights by a digest, and by name alone what acts as its code says, which nothing here looks into: modules, functions
    and classes, and objects of those that are none of this package's.
    """

    keys: Any
    written: Mapping[str, Any] | None

    @property
    def config(self) -> dict[str, object]:
        return self._told[0]

    @property
    def digest(self) -> str:
        """Identity of the words, but for the gate; an output folder belongs to one, and to one state of its `contents`.
        A plan with a part that is told by name alone and without an `identity` is like no other, itself made once more
        included."""
        return self._told[1]

    def begun(
        self, contents: Mapping[str, str], planned: Sequence[str], on: Mapping[str, object], *, counts_only: bool
    ) -> AuditRow:
        """What a store keeps of its audit which begins now, without a key; `on`: the environment."""
        return AuditRow(
            name=self.keys.name,
            digest=self.digest,
            config=json.dumps(self.config, default=str),
            environment=json.dumps(on),
            contents=json.dumps(contents, sort_keys=True),
            counts_only=counts_only,
            version=__version__,
            created_at=now(),
            planned=checksum_of(*sorted(planned)),
        )

    @cached_property
    def _told(self) -> tuple[dict[str, object], str]:
        fields = (f.name for f in dataclasses.fields(self) if f.init and f.name not in ("written", "again"))  # type: ignore[arg-type]
        opaque: dict[str, None] = {}
        given = self.written if self.written is not None else {name: getattr(self, name) for name in fields}
        words = _described(given, opaque)
        ran = {key: value for key, value in words.items() if key != JUDGING}
        unlike = secrets.token_hex(8) if opaque and self.keys.identity is None else ""
        return words, hashlib.sha256((json.dumps(ran, sort_keys=True, default=str) + unlike).encode()).hexdigest()


def _described(value: Any, opaque: dict[str, None]) -> Any:
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping | BaseModel):
        return {str(key): _described(inside, opaque) for key, inside in dict(value).items()}
    if isinstance(value, list | tuple):
        return [_described(inside, opaque) for inside in value]
    if isinstance(value, set | frozenset):
        return sorted((_described(inside, opaque) for inside in value), key=str)
    if isinstance(value, PurePath | bytes | torch.dtype | torch.device):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, Tensor):
        return f"tensor {tuple(value.shape)} {fingerprint(value)}"
    is_code = isinstance(value, type | FunctionType)
    kind = value if is_code else type(value)
    room = (getattr(kind, "__module__", None) or "").split(".")
    own = room[0] == "leakgauge"
    # Room and name alone, so that a module of the package may move without changing plans.
    name = ".".join([*(room[:2] if own else room), kind.__qualname__])
    if own and dataclasses.is_dataclass(value) and not is_code:
        return {name: {f.name: _described(getattr(value, f.name), opaque) for f in dataclasses.fields(value) if f.init}}
    if not (own and is_code):
        opaque[name] = None
    if isinstance(value, nn.Module):
        return {name: fingerprint(*(t for t in value.state_dict().values() if isinstance(t, Tensor)))}
    return name


def withheld_name(name: str) -> str:
    """A short hash in place of a file's name, the same in every audit, so that two audits can be compared.

    Whoever can guess the name can check the guess: names that are themselves secrets should be changed in the data.
    """
    return f"#{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:12]}"
