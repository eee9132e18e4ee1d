"""Files are whole, their owner's alone, and have one writer at a time."""

from __future__ import annotations

import errno
import multiprocessing
import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from leakgauge.errors import InputError
from leakgauge.files import private_folder, refuse_foreign, replacing, write_whole

SPAWN = multiprocessing.get_context("spawn")


def _writes(path: Path, text: str) -> None:
    for _ in range(40):
        write_whole(path, text * 20_000)


def test_a_reader_among_two_writers_never_sees_half(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "x.json", "a" * 20_000)
    writers = [SPAWN.Process(target=_writes, args=(path, letter)) for letter in "ab"]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers):
        seen = path.read_text()
        assert (len(seen), len(set(seen))) == (20_000, 1)
        reads += 1
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert reads
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_what_is_written_is_its_owners_alone(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        folder = private_folder(tmp_path / "out" / "inner")
        path = write_whole(folder / "report.json", "{}")
    finally:
        os.umask(old)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (folder.parent, folder, path)] == [0o700, 0o700, 0o600]


def test_a_folder_that_exists_keeps_its_permissions(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    private_folder(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_block_that_raises_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "x", "old")
    with suppress(ZeroDivisionError), replacing(path) as fresh:
        fresh.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_whole(tmp_path / "none" / "x", "text")


@pytest.mark.parametrize(("number", "hint"), [(errno.EROFS, "that you may write to"), (errno.ENOSPC, "free space")])
def test_what_helps_depends_on_why_it_cannot_be_written(
    number: int, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match=hint):
        write_whole(Path("x"), "text")


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        ((), ""),
        (("plan.yaml", "update.safetensors", "audit.log", ".gitignore", "audit.sqlite-journal", "before-1/"), ""),
        (("a.png", "audit.sqlite"), ""),
        (("a.png", "b.png", "plan.yaml"), "holds no results, but a.png and 1 more;"),
        (("train.py",), "holds no results, but train.py;"),
        (("scans/",), "holds no results, but scans;"),
    ],
)
def test_only_what_lies_beside_results_may_be_in_a_folder_that_is_begun(
    tmp_path: Path, names: tuple[str, ...], refused: str
) -> None:
    for name in names:
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
    refuse_foreign(tmp_path / "none", ("audit.sqlite",))
    if not refused:
        refuse_foreign(tmp_path, ("audit.sqlite",))
        return
    with pytest.raises(InputError, match=refused):
        refuse_foreign(tmp_path, ("audit.sqlite",))
