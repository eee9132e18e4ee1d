"""The output folder: belongs to one plan, and every file in it is written whole."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from leakgauge.errors import InputError, require
from leakgauge.files import Lock, private_folder, read_json, refuse_foreign, write_whole
from leakgauge.study.contents import changed

Kept = TypeVar("Kept")

BEGUN = "frontier.json"
"""What every folder of a frontier holds."""
HINT = "free space, then run the same command: what is finished is kept"


@dataclass(frozen=True)
class FrontierFolder:
    """Where one frontier keeps its audits, trainings and measurements."""

    path: Path
    created_at: str

    @staticmethod
    @contextmanager
    def open(path: Path, *, digest: str, raw: dict[str, Any], contents: Mapping[str, str]) -> Iterator[FrontierFolder]:
        """Begins or continues; nobody else writes into it meanwhile.

        Raises:
            InputError: it belongs to another plan, or to the same with other contents, each of which is named; it holds
                what is no frontier's; another frontier writes into it; or it cannot be written.
        """
        refuse_foreign(path, (BEGUN,))
        private_folder(path)
        lock = Lock(path / ".frontier.lock")
        try:
            free = lock.take()
        except OSError as error:
            hint = "give a folder that you may write to"
            raise InputError("output", f"{path} cannot be written ({error.strerror})", hint) from error
        busy = f"{path}: another frontier is writing into it"
        require(free, "output", busy, "wait until it has ended, or give another folder with -o")
        try:
            yield FrontierFolder._begun(path, digest=digest, raw=raw, contents=contents)
        finally:
            lock.release()

    @staticmethod
    def _begun(path: Path, *, digest: str, raw: dict[str, Any], contents: Mapping[str, str]) -> FrontierFolder:
        file = path / BEGUN
        if not file.exists():
            now = datetime.now(UTC).isoformat(timespec="seconds")
            first = {"digest": digest, "created_at": now, "config": raw, "contents": dict(contents)}
            write_whole(file, json.dumps(first, indent=1), HINT)
        begun = _read(file)
        require(
            begun is not None and begun.get("digest") == digest and isinstance(begun.get("created_at"), str),
            "output",
            f"{path} belongs to another plan",
            "give another folder with -o",
        )
        assert begun is not None
        different = ", ".join(changed(begun.get("contents") or {}, contents))
        rests = f"{path} holds results that rest on other contents of {different}"
        require(not different, "output", rests, "give another folder with -o")
        return FrontierFolder(path, begun["created_at"])

    def audit(self, setting: str) -> Path:
        """Folder of the audit of one setting."""
        return self.path / "leakage" / slug(setting)

    def training(self, name: str) -> Path:
        """File of a training's result; the checkpoint lies beside it."""
        return self.path / "utility" / f"{slug(name)}.json"

    def costs(self, name: str) -> Path:
        """File of the measured client time of one defence and protocol."""
        return self.path / "costs" / f"{slug(name)}.json"


def slug(text: str) -> str:
    """A file name that is readable and unique."""
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")[:60]
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def keep(path: Path, result: object) -> None:
    """Writes a dataclass whole."""
    private_folder(path.parent)
    record = TypeAdapter(type(result)).dump_python(result, mode="json")
    write_whole(path, json.dumps(record, indent=1, allow_nan=False) + "\n", HINT)


def kept(path: Path, kind: type[Kept]) -> Kept | None:
    """A result written by `keep`, or `None`. Raises `InputError` where the file holds something else."""
    try:
        return TypeAdapter(kind).validate_python(_read(path)) if path.exists() else None
    except ValidationError as error:
        problem = f"{path} cannot be read ({error.error_count()} wrong values)"
        raise InputError("output", problem, "remove it, then run again") from error


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = read_json(path)
    except (OSError, ValueError) as error:
        raise InputError("output", f"{path} cannot be read ({error})", "remove it, then run again") from error
    return found if isinstance(found, dict) else None
