"""How an audit's database is opened, and what its trouble is called: SQLite in the folder, or PostgreSQL for a team."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, NullPool, create_engine, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError
from sqlalchemy.orm import Session

from leakgauge.errors import InputError, require
from leakgauge.files import PRIVATE_FILE
from leakgauge.study.tables import Base

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
        """Of rows; those that are there already stay as they are."""
        if self.shared:
            return postgresql.insert(table).on_conflict_do_nothing()
        return sqlite.insert(table).on_conflict_do_nothing()


def _line(reason: str) -> str:
    return " ".join(reason.split())[:200]
