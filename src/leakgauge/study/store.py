"""Where finished trials live: one SQLite file per audit, one transaction and one checksum per trial."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, event, func, select, text
from sqlalchemy.orm import Session

from leakgauge.errors import InputError, require
from leakgauge.files import PRIVATE_FILE, Lock, private_folder
from leakgauge.report.picture import Picture
from leakgauge.study.contents import JUDGING, changed
from leakgauge.study.database import FILE as FILE
from leakgauge.study.database import damaged, readable
from leakgauge.study.tables import Asked, AuditRow, Base, PictureRow, PlannedRow, TrialRow, checksum_of
from leakgauge.study.trial import TrialResult
from leakgauge.version import __version__

LOCK = ".audit.lock"
RESULTS = (FILE, "report.json", "report.html")
ANEW = "give another folder with -o, or --anew to set the old results aside and start again"


class Store:
    """The finished trials of one audit. Only the main process writes, and only one at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = Lock(folder / LOCK)
        self._engine = create_engine(f"sqlite:///{folder / FILE}")
        event.listen(self._engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys=ON"))

    @staticmethod
    def create(folder: Path, asked: Asked, *, anew: bool = False) -> Store:
        """Opens the folder for this plan, new or begun. It is locked until the store is closed.

        Args:
            anew: sets results of another plan or other contents aside, in a folder of their own, and begins again.

        Raises:
            InputError: the folder belongs to another audit, or to one of other contents, each of which is named; it is
                in use, is damaged, or cannot be written.
        """
        private_folder(folder)
        store = Store(folder)
        try:
            free = store._lock.take()
        except OSError as error:
            raise InputError(
                "output", f"{folder} cannot be written ({error.strerror})", "give a folder that you may write to"
            ) from error
        busy = "another audit is writing into it"
        require(free, "output", f"{folder}: {busy}", "wait until it has ended, or give another folder with -o")
        try:
            if anew:
                store._set_aside()
            store._begin(asked)
        except BaseException:
            store.close()
            raise
        return store

    def _begin(self, asked: Asked) -> None:
        for left in self.folder.glob(".report.*.part"):  # of a run that was killed while it wrote
            left.unlink(missing_ok=True)
        with readable(self.folder):
            if not (self.folder / FILE).exists():
                os.close(os.open(self.folder / FILE, os.O_CREAT | os.O_WRONLY, PRIVATE_FILE))
            Base.metadata.create_all(self._engine)
            self._check()
            with Session(self._engine) as session, session.begin():
                row = session.scalars(select(AuditRow)).first()
                if row is None:
                    _enter(session, asked)
                    return
                _refuse_other(row, asked, self.folder)
                row.config = json.dumps(asked.config, default=str)  # the gate may be another
                row.checksum = row.true_checksum

    def _set_aside(self) -> None:
        there = [name for name in RESULTS if (self.folder / name).exists()]
        if not there:
            return
        n = 1
        while (old := self.folder / f"before-{n}").exists():
            n += 1
        private_folder(old)
        for name in (*there, f"{FILE}-journal"):
            if (self.folder / name).exists():
                (self.folder / name).replace(old / name)

    @staticmethod
    def open(folder: Path) -> Store:
        """Opens an audit that exists, to read it.

        Raises:
            InputError: there is none, or it is damaged.
        """
        hint = "run `leakgauge audit -o` into it first"
        require((folder / FILE).is_file(), "folder", f"{folder} holds no audit", hint)
        store = Store(folder)
        with readable(folder):
            store._check()
            with Session(store._engine) as session:
                begun = session.scalars(select(AuditRow)).first() is not None
        require(begun, "folder", f"{folder} holds no audit", "run `leakgauge audit` first")
        return store

    def _check(self) -> None:
        """Raises `InputError` where the file is not whole."""
        with Session(self._engine) as session:
            found = session.execute(text("PRAGMA quick_check(1)")).scalar()
            if found != "ok":
                raise damaged(self.folder, str(found))
            row = session.scalars(select(AuditRow)).first()
            if row is not None and row.checksum != row.true_checksum:
                raise damaged(self.folder, "the record of the plan")
            ids = session.scalars(select(PlannedRow.id).order_by(PlannedRow.id)).all()
            if row is not None and checksum_of(*ids) != row.planned:
                raise damaged(self.folder, "the list of trials")

    @property
    def audit(self) -> AuditRow:
        """The stored plan."""
        with readable(self.folder), Session(self._engine) as session:
            return session.scalars(select(AuditRow)).one()

    def finished(self) -> set[str]:
        """Ids of the trials that need no more work."""
        with readable(self.folder), Session(self._engine) as session:
            return set(session.scalars(select(TrialRow.id)))

    def missing(self) -> int:
        """How many planned trials have not run."""
        ran = select(TrialRow.id)
        with readable(self.folder), Session(self._engine) as session:
            count = session.scalar(select(func.count()).select_from(PlannedRow).where(PlannedRow.id.not_in(ran)))
            return int(count or 0)

    def add(self, result: TrialResult) -> None:
        """Keeps a trial and its pictures, both or neither."""
        record = json.dumps(result.record, allow_nan=False)
        with readable(self.folder), Session(self._engine) as session, session.begin():
            now = _now()
            count = len(result.pictures)
            checksum = checksum_of(result.id, record, str(count), now)
            session.add(TrialRow(id=result.id, record=record, pictures=count, created_at=now, checksum=checksum))
            session.flush()
            for p in result.pictures:
                kept = {"name": p.name, "original": p.original, "reconstruction": p.reconstruction}
                checksum = checksum_of(result.id, str(p.slot), *kept.values())
                session.add(PictureRow(trial=result.id, slot=p.slot, checksum=checksum, **kept))

    def each(self) -> Iterator[dict[str, Any]]:
        """Finished trials one by one, by id.

        Raises:
            InputError: one is damaged.
        """
        with readable(self.folder), Session(self._engine) as session:
            for row in session.scalars(select(TrialRow).order_by(TrialRow.id).execution_options(yield_per=100)):
                if row.checksum != checksum_of(row.id, row.record, str(row.pictures), row.created_at):
                    raise damaged(self.folder, f"trial {row.id}")
                session.expunge(row)
                yield json.loads(row.record)

    def records(self) -> list[dict[str, Any]]:
        """All finished trials, by id."""
        return list(self.each())

    def pictures(self) -> Pictures:
        """Trial id → its pictures by slot, each read when it is asked for.

        Raises:
            InputError: one is damaged or missing.
        """
        kept = select(PictureRow.trial, func.count().label("there")).group_by(PictureRow.trial).subquery()
        there = func.coalesce(kept.c.there, 0)
        lost = select(TrialRow.id).outerjoin(kept, kept.c.trial == TrialRow.id).where(there != TrialRow.pictures)
        with readable(self.folder), Session(self._engine) as session:
            for row in session.scalars(select(PictureRow).execution_options(yield_per=100)):
                self._whole(row)
                session.expunge(row)
            name = session.scalars(lost.limit(1)).first()
            if name is not None:
                raise damaged(self.folder, f"the pictures of trial {name}")
        return Pictures(self)

    def pictures_of(self, trial: str) -> list[Picture]:
        """By slot; empty for a trial without. Raises `InputError` where one is damaged."""
        of = select(PictureRow).where(PictureRow.trial == trial).order_by(PictureRow.slot)
        with readable(self.folder), Session(self._engine) as session:
            return [self._whole(row) for row in session.scalars(of)]

    def illustrated(self) -> list[str]:
        """Ids of the trials with pictures."""
        of = select(TrialRow.id).where(TrialRow.pictures > 0).order_by(TrialRow.id)
        with readable(self.folder), Session(self._engine) as session:
            return list(session.scalars(of))

    def _whole(self, row: PictureRow) -> Picture:
        if row.checksum != checksum_of(row.trial, str(row.slot), row.name, row.original, row.reconstruction):
            raise damaged(self.folder, f"a picture of trial {row.trial}")
        return Picture(name=row.name, slot=row.slot, original=row.original, reconstruction=row.reconstruction)

    def close(self) -> None:
        """Lets go of the file and the folder."""
        self._engine.dispose()
        self._lock.release()


@dataclass(frozen=True)
class Pictures(Mapping[str, Sequence[Picture]]):
    """The pictures of a store, none of which is held."""

    store: Store

    def __getitem__(self, trial: str) -> Sequence[Picture]:
        found = self.store.pictures_of(trial)
        if not found:
            raise KeyError(trial)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.store.illustrated())

    def __len__(self) -> int:
        return len(self.store.illustrated())


def _enter(session: Session, asked: Asked) -> None:
    planned = sorted(asked.planned)
    row = AuditRow(
        digest=asked.digest,
        name=asked.name,
        config=json.dumps(asked.config, default=str),
        environment=json.dumps(asked.environment),
        contents=json.dumps(asked.contents, sort_keys=True),
        counts_only=asked.counts_only,
        version=__version__,
        created_at=_now(),
        planned=checksum_of(*planned),
    )
    row.checksum = row.true_checksum
    session.add(row)
    session.add_all(PlannedRow(id=name) for name in planned)


def _refuse_other(row: AuditRow, asked: Asked, folder: Path) -> None:
    """Raises `InputError` where results of this plan and the stored ones would be mixed."""
    if row.digest != asked.digest:
        before = json.loads(row.config)
        keys = sorted({*before, *asked.config} - {JUDGING})
        other = ", ".join(key for key in keys if before.get(key) != asked.config.get(key))
        raise InputError(
            "output", f"{folder} belongs to the audit '{row.name}' with another plan (other: {other})", ANEW
        )
    different = changed(json.loads(row.contents), asked.contents)
    require(
        not different, "output", f"{folder} holds results that rest on other contents of {', '.join(different)}", ANEW
    )
    require(
        row.counts_only or not asked.counts_only,
        "--counts-only",
        f"{folder} was begun with images",
        "give another folder with -o",
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
