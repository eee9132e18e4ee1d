"""How an audit's database is opened, and what its trouble is called: SQLite in the folder, or PostgreSQL for a team."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, NullPool, create_engine, event, func, make_url, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError
from sqlalchemy.orm import Session

from leakgauge.errors import InputError, require
from leakgauge.files import PRIVATE_FILE
from leakgauge.report.rows import Picture
from leakgauge.study.tables import Base, PictureRow, TrialRow, checksum_of

FILE = "audit.sqlite"
TABLES = 7_032_026
"""The lock under which tables and audits are begun, among all writers of a PostgreSQL database."""


@dataclass(frozen=True)
class Database:
    """One of the two kinds.

    Attributes:
        folder: of the audit.
        shared: whether several processes on several machines write into it, and several audits lie in it.
    """

    folder: Path
    engine: Engine
    shared: bool

    @staticmethod
    def of(folder: Path, url: str | None = None) -> Database:
        """SQLite in the folder, or what the URL names. Nothing is opened yet.

        Raises:
            InputError: the URL names no PostgreSQL database, or its driver is not installed.
        """
        if url is None:
            engine = create_engine(f"sqlite:///{folder / FILE}")
            event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys=ON"))
            return Database(folder, engine, shared=False)
        hint = "give postgresql+psycopg://user@host/database, and the password in PGPASSWORD or ~/.pgpass"
        try:
            named = make_url(url)
            require(named.get_backend_name() == "postgresql", "--store", "is no PostgreSQL database", hint)
            # A connection a read or write: a pool's would be left open by whoever breaks off, and go stale meanwhile.
            return Database(folder, create_engine(named, poolclass=NullPool), shared=True)
        except ArgumentError as error:
            raise InputError("--store", "is no URL of a database", hint) from error
        except ModuleNotFoundError as error:
            raise InputError("--store", f"needs {error.name}", "pip install 'leakgauge[postgres]'") from error

    @property
    def where(self) -> str:
        """In words, without a password."""
        return self.address if self.shared else str(self.folder / FILE)

    @property
    def address(self) -> str:
        """The URL without a password, as it may lie in a file."""
        return self.engine.url.set(password=None).render_as_string()

    @contextmanager
    def readable(self) -> Iterator[None]:
        """Turns database trouble into one line. What was stored before stays."""
        try:
            yield
        except OperationalError as error:
            raise self._of_operation(str(error.orig)) from error
        except DatabaseError as error:
            if "malformed" in str(error.orig) or self.shared:
                raise self.damaged(_line(str(error.orig))) from error
            problem = f"{self.where} is not an audit ({error.orig})"
            raise InputError("output", problem, "give another folder") from error
        except (TypeError, KeyError, ValueError) as error:  # what a value of another type makes of a row
            if isinstance(error, InputError):
                raise
            raise self.damaged(f"{type(error).__name__}: {error}") from error

    def _of_operation(self, reason: str) -> InputError:
        if self.shared:
            hint = "run the same command when it answers: finished trials are kept"
            return InputError("--store", f"{self.where} does not answer ({_line(reason)})", hint)
        if "full" in reason or "disk I/O" in reason:
            hint = "free space and run the same command: finished trials are kept"
            return InputError("output", f"the disk of {self.folder} is full ({reason})", hint)
        if "no such" in reason or "decode" in reason:
            return self.damaged(reason)
        problem = f"{self.folder} cannot be written ({reason})"
        return InputError("output", problem, "give a folder that you may write to")

    def damaged(self, reason: str) -> InputError:
        """What is said of a store that is not whole."""
        hint = "take it from a backup, or run the audit anew (--anew); nothing is read from a store that is not whole"
        return InputError("output", f"{self.where} is damaged, or of another version of leakgauge ({reason})", hint)

    def begin(self) -> None:
        """Makes the tables that are missing."""
        if not self.shared and not (self.folder / FILE).exists():
            os.close(os.open(self.folder / FILE, os.O_CREAT | os.O_WRONLY, PRIVATE_FILE))
        with self.engine.begin() as connection:
            if self.shared:
                connection.execute(text(f"SELECT pg_advisory_xact_lock({TABLES})"))
            Base.metadata.create_all(connection)

    def alone(self, session: Session) -> None:
        """Until the transaction ends no other writer begins an audit."""
        if self.shared:
            session.execute(text(f"SELECT pg_advisory_xact_lock({TABLES})"))

    def check(self, session: Session) -> None:
        """Raises `InputError` where SQLite's file is not whole; PostgreSQL sees to its own."""
        found = "ok" if self.shared else session.execute(text("PRAGMA quick_check(1)")).scalar()
        if found != "ok":
            raise self.damaged(str(found))

    def insert(self, table: type[Base]) -> sqlite.Insert | postgresql.Insert:
        """A statement that adds rows; those that are there already stay as they are."""
        if self.shared:
            return postgresql.insert(table).on_conflict_do_nothing()
        return sqlite.insert(table).on_conflict_do_nothing()


def _line(reason: str) -> str:
    return " ".join(reason.split())[:200]


@dataclass(frozen=True)
class Pictures(Mapping[str, Sequence[Picture]]):
    """Trial id → its pictures by slot; of the trials that have any.

    Attributes:
        key: of the audit in the database.
    """

    base: Database
    key: str

    def __getitem__(self, trial: str) -> Sequence[Picture]:
        """Raises `InputError` where one is damaged."""
        of = select(PictureRow).where(PictureRow.audit == self.key, PictureRow.trial == trial)
        with self.base.readable(), Session(self.base.engine) as session:
            found = [self._whole(row) for row in session.scalars(of.order_by(PictureRow.slot))]
        if not found:
            raise KeyError(trial)
        return found

    def __iter__(self) -> Iterator[str]:
        of = select(TrialRow.id).where(TrialRow.audit == self.key, TrialRow.pictures > 0).order_by(TrialRow.id)
        with self.base.readable(), Session(self.base.engine) as session:
            yield from session.scalars(of)

    def __len__(self) -> int:
        of = select(func.count()).select_from(TrialRow).where(TrialRow.audit == self.key, TrialRow.pictures > 0)
        with self.base.readable(), Session(self.base.engine) as session:
            return int(session.scalar(of) or 0)

    def check(self) -> None:
        """Raises `InputError` where one is damaged or missing."""
        mine = PictureRow.audit == self.key
        kept = select(PictureRow.trial, func.count().label("there")).where(mine).group_by(PictureRow.trial).subquery()
        there = func.coalesce(kept.c.there, 0)
        lost = select(TrialRow.id).outerjoin(kept, kept.c.trial == TrialRow.id)
        lost = lost.where(TrialRow.audit == self.key, there != TrialRow.pictures)
        with self.base.readable(), Session(self.base.engine) as session:
            with session.scalars(select(PictureRow).where(mine).execution_options(yield_per=100)) as rows:
                for row in rows:
                    self._whole(row)
                    session.expunge(row)
            name = session.scalars(lost.limit(1)).first()
            if name is not None:
                raise self.base.damaged(f"the pictures of trial {name}")

    def _whole(self, row: PictureRow) -> Picture:
        if row.checksum != checksum_of(row.trial, str(row.slot), row.name, row.original, row.reconstruction):
            raise self.base.damaged(f"a picture of trial {row.trial}")
        return Picture(name=row.name, slot=row.slot, original=row.original, reconstruction=row.reconstruction)
