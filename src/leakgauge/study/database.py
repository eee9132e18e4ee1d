"""An audit's database: its tables, each row with a checksum, and how SQLite in the folder or PostgreSQL is opened."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from leakgauge.errors import InputError, extra, require
from leakgauge.files import PRIVATE_FILE
from leakgauge.observation import Status

FILE = "audit.sqlite"
TABLES = 7_032_026  # the lock under which tables and audits are begun, among all writers of a PostgreSQL database


def checksum_of(*parts: str | bytes | None) -> str:
    digest = hashlib.sha256()
    for part in parts:
        raw = b"-" if part is None else part.encode() if isinstance(part, str) else part
        digest.update(f"{len(raw)}:".encode() + raw)
    return digest.hexdigest()[:32]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class Base(DeclarativeBase):
    # Without a row id a table has no second copy of its keys, which damage could make to differ.
    __table_args__: Any = {"sqlite_with_rowid": False}  # noqa: RUF012 - as SQLAlchemy wants it


class SealedRow(Base):
    """A row with a checksum of its own values."""

    __abstract__ = True
    checksum: Mapped[str]

    @classmethod
    def sealed(cls, **values: object) -> Mapping[str, object]:
        kept = (values[c.key] for c in cls.__table__.columns if c.key not in ("audit", "checksum"))
        return values | {"checksum": checksum_of(*(v if isinstance(v, bytes | None) else str(v) for v in kept))}

    @property
    def true_checksum(self) -> str:
        return str(self.sealed(**{c.key: getattr(self, c.key) for c in self.__table__.columns})["checksum"])

    @property
    def whole(self) -> bool:
        return self.checksum == self.true_checksum


TEXT = sa.String().with_variant(sa.String(collation="C"), "postgresql")  # sorted as Python sorts


class AuditRow(SealedRow):
    """What an audit is to do, and rests on."""

    __tablename__ = "audits"
    key: Mapped[str] = mapped_column(TEXT, primary_key=True)  # its `identity` and a number
    digest: Mapped[str]  # of the plan's text, the gate left out
    name: Mapped[str]
    # config, environment, contents: the plan as written, the machine, and what `leakgauge.study.identity` says; JSON.
    config: Mapped[str]
    environment: Mapped[str]
    contents: Mapped[str]
    counts_only: Mapped[bool]
    version: Mapped[str]
    created_at: Mapped[str]
    planned: Mapped[str]  # checksum of the ids of all trials

    @property
    def identity(self) -> str:
        """Hash of the plan and all that it rests on: equal audits of a team are one."""
        return identity_of(self.digest, json.loads(self.contents))


class PlannedRow(Base):
    __tablename__ = "planned"
    audit: Mapped[str] = mapped_column(sa.ForeignKey("audits.key"), primary_key=True)
    id: Mapped[str] = mapped_column(TEXT, primary_key=True)


class TrialRow(SealedRow):
    __tablename__ = "trials"
    audit: Mapped[str] = mapped_column(sa.ForeignKey("audits.key"), primary_key=True)
    id: Mapped[str] = mapped_column(TEXT, primary_key=True)
    record: Mapped[str]
    pictures: Mapped[int]
    created_at: Mapped[str]


DIED = json.dumps({"status": Status.DIED.value})[1:-1]
"""In the record of a trial that gave no answer; inside a text its quotation marks would be escaped."""


def died() -> sa.ColumnElement[bool]:
    """Condition on a `TrialRow`: the trial gave no answer."""
    return TrialRow.record.contains(DIED)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A true image and what an attack made of it, as PNG files; `slot` indexes the trial's lists of scores."""

    name: str
    slot: int
    original: bytes | None
    reconstruction: bytes | None


class PictureRow(SealedRow):
    __tablename__ = "pictures"
    audit: Mapped[str] = mapped_column(TEXT, primary_key=True)
    trial: Mapped[str] = mapped_column(TEXT, primary_key=True)
    slot: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    original: Mapped[bytes | None] = mapped_column(sa.LargeBinary)
    reconstruction: Mapped[bytes | None] = mapped_column(sa.LargeBinary)
    __table_args__ = (
        sa.ForeignKeyConstraint(["audit", "trial"], ["trials.audit", "trials.id"]),
        {"sqlite_with_rowid": False},
    )


def identity_of(digest: str, contents: Mapping[str, str]) -> str:
    return checksum_of(digest, *(part for item in sorted(contents.items()) for part in item))


@dataclass(frozen=True)
class Database:
    """SQLite's, of one audit and one writer; or, `shared` by audits and by writers on several machines,
    PostgreSQL's."""

    folder: Path
    engine: sa.Engine
    shared: bool

    @staticmethod
    def of(folder: Path, url: str | None = None) -> "Database":
        """SQLite in the folder, or what the URL names; nothing is opened yet. Raises `InputError` where that is no
        PostgreSQL database, or its driver is not installed."""
        if url is None:
            engine = sa.create_engine(f"sqlite:///{folder / FILE}")
            sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys=ON"))
            return Database(folder, engine, shared=False)
        hint = "give postgresql+psycopg://user@host/database, and the password in PGPASSWORD or ~/.pgpass"
        try:
            named = sa.make_url(url)
            require(named.get_backend_name() == "postgresql", "--store", "is no PostgreSQL database", hint)
            # A connection a read or write: a pool's would be left open by whoever breaks off, and go stale meanwhile.
            return Database(folder, sa.create_engine(named, poolclass=sa.NullPool), shared=True)
        except ArgumentError as error:
            raise InputError("--store", "is no URL of a database", hint) from error
        except ModuleNotFoundError as error:
            raise InputError("--store", f"needs {error.name}", extra("postgres")) from error

    @property
    def where(self) -> str:
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
        except InputError:
            raise
        except (TypeError, KeyError, ValueError) as error:  # what a value of another type makes of a row
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

    @contextmanager
    def beginning(self) -> Iterator[Session]:
        """A transaction on a database with all its tables, until whose end no other writer begins an audit."""
        alone = sa.text(f"SELECT pg_advisory_xact_lock({TABLES})" if self.shared else "SELECT 1")
        with self.readable():
            if not self.shared and not (self.folder / FILE).exists():
                os.close(os.open(self.folder / FILE, os.O_CREAT | os.O_WRONLY, PRIVATE_FILE))
            with Session(self.engine) as session, session.begin():
                session.execute(alone)
                Base.metadata.create_all(session.connection())
                self.check(session)
                yield session

    def check(self, session: Session) -> None:
        """Raises `InputError` where SQLite's file is not whole; PostgreSQL sees to its own."""
        found = "ok" if self.shared else session.execute(sa.text("PRAGMA quick_check(1)")).scalar()
        if found != "ok":
            raise self.damaged(str(found))

    def insert(self, table: type[Base]) -> sqlite.Insert | postgresql.Insert:
        """A statement that adds rows; those that are there already stay as they are."""
        insert = postgresql.insert if self.shared else sqlite.insert
        return insert(table).on_conflict_do_nothing()


def _line(reason: str) -> str:
    return " ".join(reason.split())[:200]


class Pictures(Mapping[str, Sequence[Picture]]):
    """Trial id → its pictures by slot; of the trials that have any. Making one checks that all are there and whole."""

    def __init__(self, base: Database, key: str) -> None:
        self.base, self.key, found = base, key, Counter[str]()
        planned = sa.select(TrialRow.id, TrialRow.pictures).where(TrialRow.audit == key).order_by(TrialRow.id)
        every = sa.select(PictureRow).where(PictureRow.audit == key).execution_options(yield_per=100)
        with base.readable(), Session(base.engine) as session:
            with session.scalars(every) as rows:
                for row in rows:
                    self._whole(row)
                    found[row.trial] += 1
                    session.expunge(row)
            for trial, pictures in session.execute(planned):
                if found[trial] != pictures:
                    raise base.damaged(f"the pictures of trial {trial}")
        self._trials = sorted(found)

    def __getitem__(self, trial: str) -> Sequence[Picture]:
        of = sa.select(PictureRow).where(PictureRow.audit == self.key, PictureRow.trial == trial)
        with self.base.readable(), Session(self.base.engine) as session:
            found = [self._whole(row) for row in session.scalars(of.order_by(PictureRow.slot))]
        if not found:
            raise KeyError(trial)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._trials)

    def __len__(self) -> int:
        return len(self._trials)

    def _whole(self, row: PictureRow) -> Picture:
        if not row.whole:
            raise self.base.damaged(f"a picture of trial {row.trial}")
        return Picture(name=row.name, slot=row.slot, original=row.original, reconstruction=row.reconstruction)
