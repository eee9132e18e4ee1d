"""Files: written whole or not at all, for their owner alone; training states among them."""

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from leakgauge.errors import InputError, few, refusing

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
"""What leakgauge makes holds clients' examples or says how they leak: its owner's alone."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file beside `path`, of a name of its own, that takes its place when the block ends.

    A reader, a kill or a loss of power sees the old file or the new one; two writers leave one of the two. What a block
    that raises has written is removed."""
    fresh = path.with_name(f".{path.name[:150]}.{secrets.token_hex(8)}.part")
    os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE))
    try:
        yield fresh
        _flush(fresh)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    with suppress(OSError):  # some file systems have folders that cannot be opened
        _flush(path.parent)


def _flush(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_whole(path: Path, text: str | Iterable[str], hint: str = "free space, then write it again") -> Path:
    """Replaces a file at once, so that a reader or a kill never sees half of it. A long text may come in pieces."""
    try:
        with replacing(path) as fresh, fresh.open("w", encoding="utf-8") as file:
            file.writelines([text] if isinstance(text, str) else text)
    except OSError as error:
        denied = isinstance(error, PermissionError) or error.errno == errno.EROFS
        hint = "give a folder that you may write to" if denied else hint
        raise InputError("output", f"{path} cannot be written ({error.strerror})", hint) from error
    return path


def json_text(record: object) -> str:
    """As all files of ours have it: no infinity, and names as they are."""
    return json.dumps(record, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


BESIDE = (".yaml", ".yml", ".safetensors", ".json", ".xml", ".log")
"""Suffixes of what leakgauge reads and writes beside its results: plans, captures, a gate's files, logs."""


def refuse_foreign(folder: Path, results: Sequence[str]) -> None:
    """Leaves a folder of pictures, code or the like alone: one that is begun holds one of the `results`."""
    if not folder.is_dir() or any((folder / name).exists() for name in results):
        return
    foreign = sorted(path.name for path in folder.iterdir() if not _beside(path, results))
    if foreign:
        problem = f"{folder} holds no results, but {few(foreign, 1)}"
        raise InputError("output", problem, "give a new or empty folder with -o")


def _beside(path: Path, results: Sequence[str]) -> bool:
    if path.is_dir():
        return path.name.startswith((".", "before-")) or path.name == "logs"
    return path.name.startswith((".", *results)) or path.suffix in BESIDE


def private_folder(path: Path) -> Path:
    """Makes a folder and its parents for their owner alone; one that exists keeps its permissions."""
    with refusing("output", f"{path} cannot be made", "give a folder that you may write to", OSError, ValueError):
        for folder in (*reversed(path.parents), path):
            folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    return path


def json_of(text: str, *, floats_as_text: bool = False) -> Any:
    """What a JSON text holds, whoever wrote it. Raises `ValueError` where it is none, nests its brackets too deep, or
    has numbers of thousands of digits."""
    try:
        return json.loads(text, parse_float=str if floats_as_text else None)
    except RecursionError as error:
        raise ValueError("brackets within brackets, too many") from error


def read_json(path: Path) -> Any:
    return json_of(path.read_text(encoding="utf-8"))


def sealed(content: Mapping[str, object]) -> dict[str, object]:
    """What a JSON file is to hold, with a checksum of it."""
    text = json.dumps(content, sort_keys=True)
    return {**content, "checksum": hashlib.sha256(text.encode()).hexdigest()}


def unsealed(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `sealed` was given; without a checksum, as files of earlier versions are, all there is."""
    content = {key: value for key, value in found.items() if key != "checksum"}
    if "checksum" in found and sealed(content) != dict(found):
        raise ValueError("it was damaged or changed: its checksum differs")
    return content


def fingerprint_of_file(path: Path) -> str:
    """SHA-256 of the content."""
    with refusing(str(path), "cannot be read", "give a file that you may read", OSError), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
